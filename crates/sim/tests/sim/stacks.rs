//! Hosts use the TCP settings of their plan: seen on the wire, in time and in the record.

use crate::scenes::{FILE, plan};
use midhop_experiment::record::{PhaseTimes, Record};
use midhop_sim::{Options, run};
use midhop_units::{Bytes, Duration, Rate};

/// Runs with every invariant checked after every event.
fn checked(more: &str, set: &[&str]) -> Record {
    let options = Options { checking: true, ..Options::default() };
    let (record, _) = run(&plan(more, set), &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    record
}

/// The mean size of packets over the satellite towards the client, and the number of packets back.
fn downlink(record: &Record) -> (u64, u64) {
    let link = |way: &str| {
        let found = record.links.iter().find(|it| it.name == "satellite" && it.direction == way);
        found.expect("a satellite")
    };
    (link("down").bytes_in / link("down").packets_in, link("up").packets_in)
}

#[test]
fn packets_have_the_size_that_is_asked_for() {
    let (usual, _) = downlink(&checked(FILE, &[]));
    let (small, _) = downlink(&checked(FILE, &["tcp.packet=1024 B"]));
    assert!((1_480..=1_500).contains(&usual), "{usual}");
    assert!((1_010..=1_024).contains(&small), "{small}");
    // A setting at one end is enough: that end announces it in its SYN.
    let (small, _) = downlink(&checked(FILE, &["nodes.client.tcp={ packet = \"576 B\" }"]));
    assert!((570..=576).contains(&small), "{small}");
}

#[test]
fn a_host_without_selective_acknowledgements_repairs_a_hole_per_round_trip() {
    let lossy = ["links.satellite.down.loss=0.02", "transfers.file.congestion=reno"];
    let with = checked(FILE, &lossy);
    let without = checked(FILE, &[&lossy[..], &["tcp.sack=false"]].concat());
    let recovering = |record: &Record| {
        let phases = record.transfers[0].flows[0].phases.expect("the simulator sees them");
        phases.recovery + phases.loss
    };
    assert!(recovering(&without) > recovering(&with) * 3 / 2, "{without:?}");
    assert!(without.transfers[0].took > with.transfers[0].took);
}

#[test]
fn a_fixed_window_bounds_the_goodput() {
    let buffer = ["tcp.receive_buffer=64 KiB", "tcp.window_scaling=false"];
    let record = checked(FILE, &buffer);
    let flow = &record.transfers[0].flows[0];
    let rtt = flow.rtt_min.expect("measured");
    assert!(flow.goodput <= Rate::of(Bytes::new(65_535), rtt), "{flow:?}");
    let in_flight = record.series.iter().find(|it| it.quantity == "in_flight" && it.flow.is_some());
    let most = in_flight.expect("sampled").value.iter().copied().fold(0.0, f64::max);
    assert!((60_000.0..=65_535.0).contains(&most), "{most}");
    // The sender's own buffer binds too.
    let record = checked(FILE, &["nodes.server.tcp.send_buffer=32 KiB"]);
    let flow = &record.transfers[0].flows[0];
    assert!(flow.goodput <= Rate::of(Bytes::new(32_768), rtt), "{flow:?}");
}

#[test]
fn a_host_that_remembers_ends_slow_start_where_the_last_connection_did() {
    let twice = format!(
        "{FILE}congestion = \"reno\"\n[transfers.second]\nfrom = \"server\"\nto = \"client\"\nbytes = \"2 MB\"\n\
         start = \"20 s\"\ncongestion = \"reno\"\n[peps.gw]\nlegs.satellite = {{ congestion = \"reno\" }}\n"
    );
    let resent = |record: &Record| {
        record.transfers.iter().map(|it| it.flows[0].retransmissions).collect::<Vec<_>>()
    };
    let forgets = resent(&checked(&twice, &[]));
    assert!(forgets[0] > 50 && forgets[0] == forgets[1], "{forgets:?}");
    let remembers = resent(&checked(&twice, &["tcp.threshold_cache=true"]));
    assert_eq!(remembers[0], forgets[0]);
    assert!(remembers[1] < forgets[1] / 10, "{remembers:?}");
    // A cache at the client has no effect, since it sends no data.
    let client = resent(&checked(&twice, &["nodes.client.tcp.threshold_cache=true"]));
    assert_eq!(client, forgets);

    // A proxy's host caches thresholds for its own legs.
    let legs = |set: &[&str]| {
        let record = checked(&twice, &[&["nodes.gateway.pep=gw"], set].concat());
        record.legs.iter().find(|leg| leg.link == "satellite").expect("a leg").retransmissions
    };
    let remembers = legs(&["nodes.gateway.tcp.threshold_cache=true"]);
    assert!(remembers < legs(&[]) * 6 / 10, "{remembers}");
}

#[test]
fn acknowledgements_are_as_rare_as_the_receiver_has_them() {
    let back = |delayed: &str| {
        let delayed = format!("tcp.delayed_ack={delayed}");
        // No losses, so that only the rule decides when to acknowledge.
        let record = checked(FILE, &[&delayed, "links.satellite.queue=4 MB"]);
        downlink(&record).1
    };
    let (every, usual, stretched) =
        (back("false"), back("true"), back("{ segments = 8, quick = 0 }"));
    let segments = 2_000_000 / 1448;
    assert!(every >= segments, "{every}");
    assert!((segments / 2..segments * 2 / 3).contains(&usual), "{usual}");
    assert!((segments / 8..segments / 4).contains(&stretched), "{stretched}");
}

#[test]
fn a_queue_that_marks_slows_senders_without_loss() {
    let marking = [
        "links.satellite.down.aqm=codel",
        "transfers.file.bytes=6 MB",
        "transfers.file.congestion=reno",
    ];
    let dropped =
        |record: &Record| record.links.iter().flat_map(|it| it.drops.values()).sum::<u64>();
    let without = checked(FILE, &marking);
    assert!(dropped(&without) > 0, "{:?}", without.links);
    let with = checked(FILE, &[&marking[..], &["tcp.ecn=true"]].concat());
    assert!(dropped(&with) < dropped(&without), "{:?}", with.links);
    assert!(with.links.iter().any(|it| it.marks > 0), "{:?}", with.links);
}

#[test]
fn phases_add_up_to_the_time_with_data_on_its_way() {
    let set = ["links.satellite.down.loss=0.005", "transfers.file.bytes=5 MB"];
    let record = checked(FILE, &set);
    let transfer = &record.transfers[0];
    let phases = transfer.flows[0].phases.expect("the simulator sees them");
    assert!(phases.slow_start > Duration::ZERO && phases.recovery > Duration::ZERO, "{phases:?}");
    assert!(phases.avoidance > Duration::ZERO, "{phases:?}");
    // A round trip for the handshake and half a round trip for the request pass without data.
    assert!(phases.total() <= transfer.took, "{phases:?} of {}", transfer.took);
    assert!(phases.total() + Duration::from_ms(130) >= transfer.took, "{phases:?}");
    let measured = record.series.iter().find(|it| it.quantity == "delivery_rate");
    let rates = &measured.expect("sampled").value;
    assert!(rates.iter().all(|rate| (0.0..=21.0).contains(rate)), "{rates:?}");
}

#[test]
fn a_proxy_reports_how_long_its_legs_were_in_which_phase() {
    let pep = "[peps.gw]\nlegs.satellite = { congestion = \"hybla-plus\" }\n";
    let more = format!("{FILE}{pep}");
    let set = ["nodes.gateway.pep=gw", "links.satellite.down.loss=0.01"];
    let record = checked(&more, &set);
    let leg = record.legs.iter().find(|leg| leg.link == "satellite").expect("a leg");
    let phases: PhaseTimes = leg.phases.expect("the simulator sees them");
    assert!(phases.recovery > Duration::ZERO, "{phases:?}");
    assert!(phases.total() <= record.transfers[0].took, "{phases:?}");
}
