//! Whole runs: results are complete, deterministic, fully counted, and no faster than physics
//! allows.

use crate::scenes::{FILE, plan};
use midhop_experiment::record::Record;
use midhop_sim::{Options, RunError, check, run};
use midhop_units::{Bytes, Duration};

/// Runs with every invariant checked after every event.
fn checked(more: &str, set: &[&str]) -> Record {
    let options = Options { checking: true, ..Options::default() };
    let (record, _) = run(&plan(more, set), &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

fn quick(more: &str, set: &[&str]) -> Record {
    let result = run(&plan(more, set), &Options::default());
    let (record, _) = result.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

#[test]
fn a_file_arrives_near_the_limit() {
    let record = checked(FILE, &[]);
    let transfer = &record.transfers[0];
    assert!(transfer.complete, "{transfer:?}");
    assert_eq!(transfer.bytes, Bytes::new(2_000_000));
    let limit = transfer.limit.as_ref().expect("the satellite is narrow");
    assert!((0.5..=1.0).contains(&limit.efficiency), "{limit:?}");
    assert!(transfer.flows[0].rtt_min.is_some_and(|rtt| rtt >= Duration::from_us(70_400)));
    assert_eq!(record.environment.runner, "sim");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let lossy = ["links.satellite.down.loss=0.01", "transfers.file.flows=3"];
    let text = |set: &[&str]| quick(FILE, set).to_json().expect("a record has a form");
    let first = text(&lossy);
    assert_eq!(first, text(&lossy));
    let other = text(&[&lossy[..], &["seed=2"]].concat());
    let series = |text: &str| Record::from_json(text).expect("a record").series;
    assert_ne!(series(&first), series(&other));
}

#[test]
fn every_packet_is_accounted_for() {
    let set = [
        "links.satellite.down.loss=0.02",
        "links.satellite.down.duplicate=0.01",
        "links.satellite.up.loss=0.01",
        "links.satellite.queue=20 packets",
        "transfers.file.flows=4",
        "transfers.file.bytes=300 kB",
    ];
    let record = checked(FILE, &set);
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    let down = record.links.iter().find(|l| l.name == "satellite" && l.direction == "down");
    let down = down.expect("it has a satellite");
    assert!(down.drops["loss"] > 0 && down.drops["queue"] > 0, "{down:?}");
    let sent_again: u64 = record.transfers[0].flows.iter().map(|flow| flow.retransmissions).sum();
    assert!(sent_again >= down.drops["queue"], "{sent_again} of {:?}", down.drops);
}

#[test]
fn pages_uploads_and_times_end_as_they_should() {
    let text = "[transfers.page]\nfrom = \"server\"\nto = \"client\"\nparallel = 2\n\
         objects = [\"50 kB\", \"200 kB\", \"10 kB\", \"100 kB\", \"1 B\"]\n\
         [transfers.fresh]\nfrom = \"server\"\nto = \"client\"\nparallel = 2\nconnections = \"new\"\n\
         objects = [\"50 kB\", \"200 kB\", \"10 kB\"]\nstart = \"500 ms\"\n\
         [transfers.push]\nfrom = \"client\"\nto = \"server\"\nopens = \"from\"\nbytes = \"300 kB\"\n\
         flows = 2\nfamily = \"ipv6\"\n\
         [transfers.timed]\nfrom = \"client\"\nto = \"server\"\nseconds = 3\n\
         [transfers.pulled]\nfrom = \"server\"\nto = \"client\"\nseconds = 2\nstart = \"1 s\"\n";
    let record = checked(text, &[]);
    for transfer in &record.transfers {
        assert!(transfer.complete, "{transfer:?}");
    }
    let named = |name: &str| record.transfers.iter().find(|it| it.name == name).expect(name);
    let (page, fresh) = (named("page"), named("fresh"));
    assert_eq!((page.objects.len(), page.flows.len()), (5, 2));
    assert_eq!((fresh.objects.len(), fresh.flows.len()), (3, 3));
    for object in page.objects.iter().chain(&fresh.objects) {
        assert!(object.start < object.first_byte && object.first_byte <= object.end);
    }
    assert_eq!(named("push").bytes, Bytes::new(600_000));
    let took = named("timed").took;
    assert!(took >= Duration::from_s(3) && took < Duration::from_s(6), "{took}");
    assert!(named("pulled").flows[0].start >= Duration::from_s(1));
}

#[test]
fn the_end_of_the_run_cuts_what_is_under_way() {
    let record = quick(FILE, &["duration=1 s", "transfers.file.bytes=100 MB"]);
    let transfer = &record.transfers[0];
    assert!(!transfer.complete && transfer.bytes > Bytes::ZERO);
    assert!(transfer.flows[0].error.as_ref().is_some_and(|error| error.contains("time limit")));
    assert!(transfer.took <= Duration::from_s(1));
}

#[test]
fn what_the_simulator_lacks_is_refused_with_a_reason() {
    let refused = |set: &[&str], more: &str| {
        let text = format!("{FILE}{more}");
        run(&plan(&text, set), &Options::default()).expect_err("refused").to_string()
    };
    let quick = "[peps.gw]\nlegs.satellite.congestion = \"quick\"\n";
    let pep = refused(&["nodes.gateway={ pep = \"gw\" }"], quick);
    assert!(pep.contains("gateway") && pep.contains("legs.satellite.congestion"), "{pep}");
    let refused = |set: &[&str], more: &str| {
        let text = format!("{FILE}{more}");
        let error = check(&plan(&text, set)).expect_err("refused");
        let key = error.key().expect("a key of the scenario").to_string();
        (key, error.to_string(), error.hint().unwrap_or_default().to_owned())
    };
    let (key, unknown, hint) = refused(&["transfers.file.congestion=cubik"], "");
    assert_eq!(key, "transfers.file.congestion");
    assert!(unknown.contains("`cubik`") && hint.contains("did you mean `cubic`?"), "{hint}");
    let bulk = "[traffic.noise]\nkind = \"bulk\"\nfrom = \"server\"\nto = \"client\"\n\
         congestion = \"quick\"\n";
    let (key, _, hint) = refused(&[], bulk);
    assert_eq!(key, "traffic.noise.congestion");
    assert!(hint.contains("cubic") && hint.contains("bbr3"), "{hint}");
    let stop = Options { interrupted: &|| true, ..Options::default() };
    let long = plan(FILE, &["transfers.file.bytes=200 MB", "transfers.file.flows=5"]);
    assert!(matches!(run(&long, &stop), Err(RunError::Interrupted)));
}

#[test]
fn cross_traffic_takes_its_share() {
    let traffic = "[traffic.noise]\nkind = \"constant\"\nfrom = \"server\"\nto = \"client\"\n\
         rate = \"10 Mbit/s\"\n";
    let alone = quick(FILE, &[]);
    let shared = checked(&format!("{FILE}{traffic}"), &[]);
    assert!(shared.transfers[0].took.as_s_f64() > 1.3 * alone.transfers[0].took.as_s_f64());
    let noise = &shared.traffic[0];
    let sent_s = noise.packets_sent as f64 * 12e3 / 10e6;
    assert!((sent_s - shared.transfers[0].took.as_s_f64()).abs() < 0.2, "{noise:?}");
    assert!(noise.packets_received > noise.packets_sent / 2);
}

#[test]
fn every_kind_of_traffic_runs_to_its_stop() {
    let text = "[traffic.a]\nkind = \"bulk\"\nfrom = \"server\"\nto = \"client\"\nflows = 2\nstop = \"5 s\"\n\
         [traffic.b]\nkind = \"web\"\nfrom = \"server\"\nto = \"client\"\nsessions = 20\n\
         [traffic.c]\nkind = \"on-off\"\nfrom = \"client\"\nto = \"server\"\nrate = \"2 Mbit/s\"\n\
         packet = \"200 B\"\nshape = 1.5\n\
         [traffic.d]\nkind = \"arrivals\"\nfrom = \"client\"\nto = \"server\"\nper_second = 4.0\n\
         bytes = \"20 kB\"\n\
         [traffic.e]\nkind = \"bulk\"\nfrom = \"client\"\nto = \"server\"\nopens = \"from\"\nstart = \"2 s\"\n\
         stop = \"4 s\"\n";
    let record = checked(text, &["duration=20 s"]);
    let of = |name: &str| record.traffic.iter().find(|it| it.name == name).expect(name);
    assert_eq!((of("a").flows, of("a").complete), (2, 2));
    // Data in flight when the traffic stops arrives later, but no faster than the link carries it.
    assert!((8.0..19.4).contains(&of("a").goodput.mbit_per_s()), "{:?}", of("a"));
    assert!(of("b").complete > 10, "{:?}", of("b"));
    // 4 a second for 20 s: 80, with a tolerance of four standard deviations.
    assert!((45..=115).contains(&of("d").flows), "{:?}", of("d"));
    assert!(of("d").complete + 5 > of("d").flows, "{:?}", of("d"));
    assert!(of("c").packets_sent > 1_000, "{:?}", of("c"));
    assert_eq!((of("e").flows, of("e").complete), (1, 1));
    assert!(record.nodes.is_empty(), "{:?}", record.nodes);
}
