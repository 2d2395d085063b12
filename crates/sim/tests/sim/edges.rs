//! Runs at the limits: flows that end late, start late, wait for ever or take no time.

use midhop_experiment::record::Record;
use midhop_experiment::{Plan, Scenario};
use midhop_sim::{Options, RunError, run};
use midhop_units::Duration;

/// Two hosts and a proxy between them; `more` configures what is sent.
const SPLIT: &str = r#"
title = "a proxy"
duration = "60 s"
[nodes]
client = {}
gateway = { pep = "p" }
server = {}
[links.lan]
between = ["client", "gateway"]
rate = "100 Mbit/s"
delay = "1 ms"
[links.satellite]
between = ["gateway", "server"]
rate = "20 Mbit/s"
delay = "50 ms"
"#;

/// Two hosts.
const CABLE: &str = r#"
title = "a cable"
duration = "20 s"
[nodes]
client = {}
server = {}
[links.cable]
between = ["client", "server"]
"#;

fn plan(text: &str) -> Plan {
    let plans = Scenario::parse("edge.toml", text).and_then(|scenario| scenario.plans());
    plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
}

fn run_of(plan: &Plan) -> Record {
    let options = Options { checking: true, ..Options::default() };
    run(plan, &options).unwrap_or_else(|error| panic!("{error}")).0
}

fn refused(text: &str) -> String {
    let plans = Scenario::parse("edge.toml", text).and_then(|scenario| scenario.plans());
    plans.err().map(|error| error.to_string()).unwrap_or_default()
}

fn count(record: &Record, name: &str) -> u64 {
    record.nodes.iter().filter_map(|node| node.counts.get(name)).sum()
}

#[test]
fn a_transfer_of_which_nothing_has_arrived_is_no_fault_of_physics() {
    let text = "preset = \"geo\"\n[transfers.file]\nfrom = \"server\"\nto = \"client\"\n\
                bytes = \"1 MB\"\nstart = \"19.8 s\"\n";
    let record = run_of(&plan(&(CABLE.to_owned() + text)));
    assert!(!record.transfers[0].complete);
    assert_eq!(record.validity.faults, Vec::<String>::new());
}

#[test]
fn no_curve_of_a_link_is_above_its_rate() {
    // The run ends at a sampling time.
    let text = "rate = \"12 Mbit/s\"\ndelay = \"9 ms\"\n[traffic.steady]\nkind = \"constant\"\n\
                from = \"server\"\nto = \"client\"\nrate = \"1.2 Mbit/s\"\n";
    let record = run_of(&plan(&(CABLE.to_owned() + text)));
    let down = record.series.iter().find(|it| it.quantity == "rate" && it.place == "cable.down");
    let down = down.expect("sampled");
    assert!(down.time_s.is_sorted_by(|before, after| before < after), "{:?}", down.time_s);
    let steady = &down.value[2..];
    assert!(steady.iter().all(|value| (1.0..1.4).contains(value)), "{steady:?}");
}

#[test]
fn a_proxy_counts_flows_that_live_and_not_those_that_wait_for_late_segments() {
    // About two flows at once; the wait is a minute.
    let text = "[peps.p]\nlimits.flows = 20\n[traffic.files]\nkind = \"arrivals\"\n\
                from = \"server\"\nto = \"client\"\nper_second = 5.0\nbytes = \"20 kB\"\n";
    let record = run_of(&plan(&(SPLIT.to_owned() + text)));
    assert!(count(&record, "flows") > 200, "{:?}", record.nodes);
    assert_eq!(count(&record, "flows-bypassed-by-limit"), 0);
}

#[test]
fn a_flow_through_a_proxy_ends_once() {
    let text = "reorder = { probability = \"5 %\", by = \"2 s\" }\n[peps.p]\n[transfers.page]\n\
                from = \"client\"\nto = \"server\"\nopens = \"from\"\nconnections = \"new\"\n\
                objects = [\"100 kB\", \"100 kB\", \"100 kB\", \"100 kB\", \"100 kB\", \"100 kB\"]\n";
    let record = run_of(&plan(&(SPLIT.to_owned() + text)));
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    let reset = count(&record, "flows-reset");
    let ends = count(&record, "flows-ended") + reset;
    assert!(ends <= count(&record, "flows"), "{:?}", record.nodes);
    assert_eq!(reset, 0, "{:?}", record.nodes);
}

#[test]
fn flows_of_a_proxy_draw_their_own_probes() {
    let text = "[peps.p]\nlegs.satellite.congestion = \"bbr\"\n[transfers.up]\nfrom = \"client\"\n\
                to = \"server\"\nopens = \"from\"\nseconds = 20\nflows = 3\n";
    let mut plan = plan(&(SPLIT.to_owned() + text));
    let shares = [1, 2].map(|seed| {
        plan.seed = midhop_units::Seed(seed);
        let record = run(&plan, &Options::default()).unwrap_or_else(|error| panic!("{error}")).0;
        record.transfers[0].flows.iter().map(|flow| flow.bytes).collect::<Vec<_>>()
    });
    assert_ne!(shares[0], shares[1]);
}

#[test]
fn no_round_trip_is_shorter_than_the_path() {
    for congestion in ["cubic", "bbr", "vegas"] {
        let text = "rate = \"100 Mbit/s\"\ndelay = \"0.2 ms\"\ndown.loss = \"0.1 %\"\n\
                    [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"20 MB\"\n";
        let text = format!("{CABLE}{text}congestion = \"{congestion}\"\n");
        let record = run_of(&plan(&text));
        let rtt = record.transfers[0].flows[0].rtt_min.expect("measured");
        assert!(rtt >= Duration::from_us(400), "{congestion}: {rtt}");
    }
}

#[test]
fn what_has_arrived_is_reported_though_the_sender_gave_up() {
    // The outage is longer than a sender waits; another transfer keeps the run going.
    let text = "[nodes]\na = {}\nb = {}\nc = {}\n[links.l]\nbetween = [\"a\", \"b\"]\n\
                rate = \"2 Mbit/s\"\ndelay = \"50 ms\"\n\
                outages = [{ start = \"3 s\", length = \"2000 s\", hold = true }]\n\
                [links.m]\nbetween = [\"a\", \"c\"]\nrate = \"10 kbit/s\"\ndelay = \"1 ms\"\n\
                [transfers.keeps]\nfrom = \"c\"\nto = \"a\"\nseconds = 2400\n\
                [transfers.breaks]\nfrom = \"b\"\nto = \"a\"\nseconds = 1500\n";
    let plan = plan(&format!("title = \"an outage\"\nduration = \"2500 s\"\n{text}"));
    let record = run(&plan, &Options::default()).unwrap_or_else(|error| panic!("{error}")).0;
    let broken = record.transfers.iter().find(|it| it.name == "breaks").expect("it ran");
    assert!(broken.bytes.get() > 400_000, "{broken:?}");
}

#[test]
fn amounts_and_times_out_of_bounds_are_refused() {
    let link = "rate = \"12 Mbit/s\"\ndelay = \"9 ms\"\n";
    let file = "[transfers.file]\nfrom = \"server\"\nto = \"client\"\n";
    let huge = refused(&format!("{CABLE}{link}{file}bytes = \"18446744073709551610 B\"\n"));
    assert!(huge.contains("edge.toml:14") && huge.contains("bytes"), "{huge}");
    let page = refused(&format!("{CABLE}{link}{file}objects = [\"1 kB\", \"2000000 GB\"]\n"));
    assert!(page.contains("objects"), "{page}");
    let traffic = "[traffic.t]\nfrom = \"server\"\nto = \"client\"\n";
    let burst = "kind = \"on-off\"\nrate = \"1 kbit/s\"\non = \"1 ns\"\noff = \"1 ns\"\n";
    let short = refused(&format!("{CABLE}{link}{traffic}{burst}"));
    assert!(short.contains("too short"), "{short}");
    let burst = "kind = \"arrivals\"\nper_second = 1.0\nbytes = \"2000000 GB\"\n";
    let huge = refused(&format!("{CABLE}{link}{traffic}{burst}"));
    assert!(huge.contains("bytes"), "{huge}");
}

#[test]
fn a_way_that_takes_no_time_is_refused() {
    let text = "[transfers.t]\nfrom = \"server\"\nto = \"client\"\nseconds = 5\n";
    let error = run(&plan(&(CABLE.to_owned() + text)), &Options::default()).err();
    assert!(matches!(error, Some(RunError::Timeless { .. })), "{error:?}");
}
