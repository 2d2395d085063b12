//! What a scenario says of congestion control reaches the senders, and shows in what they send.

mod scenes;

use midhop_experiment::congestion::{OpeningPlan, Own};
use midhop_experiment::record::{Record, TransferResult};
use midhop_sim::{Options, run};
use midhop_units::{Bytes, Duration, Rate};
use scenes::{FILE, plan};

fn quick(more: &str, set: &[&str]) -> Record {
    let options =
        Options { checking: set.contains(&"transfers.file.bytes=1 MB"), ..Options::default() };
    let result = run(&plan(more, set), &options);
    let (record, _) = result.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

fn file(congestion: &str, set: &[&str]) -> TransferResult {
    let own = congestion_of("file", congestion);
    let set = [&[own.as_str()], set].concat();
    let record = quick(FILE, &set);
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    record.transfers[0].clone()
}

fn congestion_of(transfer: &str, congestion: &str) -> String {
    format!("transfers.{transfer}.congestion={congestion}")
}

fn queue_max(record: &Record) -> u64 {
    let down = record.links.iter().find(|it| it.name == "satellite" && it.direction == "down");
    down.map_or(0, |down| down.queue_bytes_max)
}

#[test]
fn a_plan_shows_all_that_an_algorithm_is_told() {
    let tuning = |congestion: &str| {
        let set = congestion_of("file", congestion);
        plan(FILE, &[&set]).transfers[0].tuning.clone()
    };
    let cubic = tuning("cubic").expect("one of ours");
    assert_eq!((cubic.slow_start.as_deref(), cubic.initial_window), (Some("hystart"), 10));
    assert_eq!((cubic.opening, cubic.pacing), (OpeningPlan::Burst, false));
    let spread = tuning("{ algorithm = \"reno\", opening = \"initial-spreading\" }");
    assert!(spread.expect("one of ours").pacing, "what is spread is paced");
    assert!(tuning("hybla").expect("one of ours").pacing, "as the program asks the kernel");
    let hybla = tuning("{ algorithm = \"hybla\", rtt0 = \"50 ms\" }").expect("one of ours").own;
    let rtt0 = match hybla {
        Own::Hybla { rtt0, .. } => rtt0,
        other => panic!("{other:?}"),
    };
    assert_eq!(rtt0, Duration::from_ms(50));
    let known = tuning("known-rate").expect("one of ours").own;
    let Own::KnownRate { link, rate, .. } = known else { panic!("{known:?}") };
    assert_eq!((link.as_str(), rate), ("satellite", Rate::from_mbit_per_s(20)));
    let search = tuning("{ algorithm = \"cubic\", slow_start = \"search\" }");
    assert_eq!(search.expect("one of ours").slow_start.as_deref(), Some("search"));
    assert_eq!(tuning("illinois"), None, "some kernel may know it");
}

#[test]
fn a_larger_initial_window_is_quicker() {
    let small = file("{ algorithm = \"cubic\", initial_window = 2 }", &[]);
    let large = file("{ algorithm = \"cubic\", initial_window = 40 }", &[]);
    assert!(large.took + Duration::from_ms(200) < small.took, "{} {}", large.took, small.took);
}

#[test]
fn a_connection_begins_as_it_is_told() {
    let geo = ["links.satellite.delay=290 ms", "transfers.file.bytes=1 MB"];
    let burst = file("cubic", &geo);
    let resumed = file(
        "{ algorithm = \"cubic\", opening = \"careful-resume\", saved_window = \"1.5 MB\", \
         saved_rtt = \"600.4 ms\" }",
        &geo,
    );
    let jumped = file("{ algorithm = \"cubic\", opening = \"jump\", rate = \"18 Mbit/s\" }", &geo);
    // No more: the receiver's own window begins at 64 kB, as Linux has it.
    let gain = Duration::from_ms(100);
    assert!(resumed.took + gain < burst.took, "{} {}", resumed.took, burst.took);
    assert!(jumped.took + gain < burst.took, "{} {}", jumped.took, burst.took);
}

#[test]
fn flows_of_known_rate_share_their_leg_and_fill_it_through_losses() {
    let text = "[transfers.a]\nfrom = \"server\"\nto = \"client\"\nseconds = 5\nflows = 2\n\
                congestion = \"known-rate\"\n\
                [transfers.b]\nfrom = \"server\"\nto = \"client\"\nseconds = 5\n\
                congestion = { algorithm = \"known-rate\", link = \"satellite\" }\n";
    let record = quick(text, &["links.satellite.down.loss=0.01"]);
    let bytes: Vec<u64> = record
        .transfers
        .iter()
        .flat_map(|transfer| transfer.flows.iter().map(|flow| flow.bytes.get()))
        .collect();
    let all: u64 = bytes.iter().sum();
    assert_eq!(bytes.len(), 3);
    // 20 Mbit/s carry 12.06 MB of payload in five seconds.
    assert!(all > 10_500_000, "{bytes:?}");
    for flow in &bytes {
        assert!((all / 4..all * 5 / 12).contains(flow), "{bytes:?}");
    }
    assert!(queue_max(&record) < 60_000, "nobody overbooks it: {}", queue_max(&record));
}

const XCP: &str = "[nodes.near]\n[links.access]\nbetween = [\"gateway\", \"near\"]\n\
    rate = \"1 Gbit/s\"\ndelay = \"2 ms\"\n\
    [transfers.far]\nfrom = \"server\"\nto = \"client\"\nseconds = 18\ncongestion = \"xcp\"\n\
    [transfers.near]\nfrom = \"near\"\nto = \"client\"\nseconds = 10\nstart = \"8 s\"\n\
    congestion = \"xcp\"\n";
const ROUTER: &str = "links.satellite.down.aqm=xcp";

#[test]
fn xcp_shares_evenly_between_round_trips_and_keeps_the_queue_short() {
    // Round trips of 54 and 250 ms.
    let set = [ROUTER, "links.internet.delay=100 ms"];
    let record = quick(XCP, &set);
    let flow = |name: &str| {
        let found = record.transfers.iter().find(|it| it.name == name);
        found.expect("it ran")
    };
    let (far, near) = (flow("far"), flow("near"));
    assert_eq!((far.flows[0].retransmissions, near.flows[0].retransmissions), (0, 0));
    // 2.41 MB a second of payload: the far one alone for 8 s, then half for 10 s.
    let shared = 10.0 * 2.41e6 / 2.0;
    let ratio = near.bytes.get() as f64 / shared;
    assert!((0.8..1.1).contains(&ratio), "near has {ratio} of its share");
    let ratio = far.bytes.get() as f64 / (8.0 * 2.41e6 + shared);
    assert!((0.8..1.05).contains(&ratio), "far has {ratio} of its share");
    // The longer path holds 625 kB, and the queue as much; half of it is met while the near one learns.
    assert!(queue_max(&record) < 312_000, "{}", queue_max(&record));
}

#[test]
fn an_xcp_flow_learns_its_window_in_a_few_round_trips() {
    let geo = ["links.satellite.delay=290 ms", "transfers.file.bytes=12 MB", ROUTER];
    let took = |name: &str, loss: &str| file(name, &[&geo[..], &[loss]].concat()).took;
    let clean = "links.satellite.down.loss=0";
    // 5 s at full rate, and the round trips until then.
    let xcp = took("xcp", clean);
    assert!(xcp < Duration::from_s(10), "{xcp}");
    let lossy = "links.satellite.down.loss=0.005";
    let halving = took("xcp", lossy);
    let keeping = took("{ algorithm = \"xcp\", keep_on_loss = true }", lossy);
    assert!(keeping + Duration::from_s(1) < halving, "{keeping} {halving}");
}

#[test]
fn dvegas_told_of_its_terminals_queue_keeps_it_short() {
    let text = "[transfers.push]\nfrom = \"terminal\"\nto = \"server\"\nseconds = 10\n";
    let run = |congestion: &str| {
        let set = congestion_of("push", congestion);
        let record = quick(text, &[&set, "links.satellite.delay=250 ms"]);
        let up = record.links.iter().find(|it| it.name == "satellite" && it.direction == "up");
        (up.map_or(0, |up| up.queue_bytes_max), record.transfers[0].bytes)
    };
    let (deaf, _) = run("dvegas");
    let (told, bytes) = run("{ algorithm = \"dvegas\", queue_feedback = true }");
    assert_ne!(deaf, told, "what the terminal says must count");
    assert!(bytes > Bytes::new(1_000_000), "{bytes}");
}
