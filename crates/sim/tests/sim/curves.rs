//! Curves over time, and the figures that studies read from them.

use midhop_experiment::Scenario;
use midhop_experiment::record::{Record, Series};
use midhop_sim::{Options, run};
use midhop_study::Figure;

const CABLE: &str = r#"
title = "a cable"
duration = "30 s"
[nodes]
client = {}
server = {}
[links.cable]
between = ["client", "server"]
rate = "10 Mbit/s"
delay = "5 ms"
"#;

/// A file through a proxy between a satellite link and cables.
const PROXY: &str = r#"
title = "a proxy"
duration = "60 s"
[nodes]
client = {}
gateway = { pep = "gw" }
server = {}
[links.satellite]
between = ["client", "gateway"]
rate = "10 Mbit/s"
delay = "250 ms"
[links.internet]
between = ["gateway", "server"]
rate = "100 Mbit/s"
delay = "5 ms"
[peps.gw]
[transfers.file]
from = "server"
to = "client"
bytes = "4 MB"
"#;

fn record(more: &str) -> Record {
    record_of(CABLE, more)
}

fn record_of(scenario: &str, more: &str) -> Record {
    let plans = Scenario::parse("s.toml", &(scenario.to_owned() + more)).and_then(|it| it.plans());
    let plan = plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    run(&plan, &Options::default()).unwrap_or_else(|error| panic!("{error}")).0
}

fn read(record: &Record, figure: &str) -> f64 {
    let text = format!("name = \"f\"\nshows = \"x\"\nscenario = \"s\"\n{figure}");
    let figure: Figure = toml::from_str(&text).expect("a figure");
    figure.read(record).expect("a value")
}

#[test]
fn a_late_transfer_is_measured_from_its_start() {
    let record = record(
        "[transfers.file]\nfrom = \"server\"\nto = \"client\"\nseconds = 5\nstart = \"20.01 s\"\n",
    );
    let mbit = record.transfers[0].bytes.get() as f64 * 8.0 / 1e6;
    assert!(mbit > 40.0, "the link carries nearly 50 Mbit in 5 s, not {mbit}");
    let span = read(&record, "metric = \"span\"\nuntil = \"30 s\"");
    assert!((span / (mbit / 30.0) - 1.0).abs() < 1e-3, "{span}, not {}", mbit / 30.0);
    let start = read(&record, "metric = \"start\"");
    assert!((0.0..1.0).contains(&start), "{start} s");
}

#[test]
fn what_is_outstanding_is_more_than_what_is_in_flight_where_packets_are_lost() {
    let record = record(
        "down.loss = 0.02\nqueue = \"100 kB\"\n[transfers.file]\nfrom = \"server\"\n\
         to = \"client\"\nbytes = \"8 MB\"\n",
    );
    assert!(record.transfers[0].flows[0].retransmissions > 20);
    let series = |quantity: &str| -> &Series {
        let of_flow = |it: &&Series| it.quantity == quantity && it.flow == Some(0);
        record.series.iter().find(of_flow).expect("a curve")
    };
    let (outstanding, in_flight) = (series("outstanding"), series("in_flight"));
    assert_eq!(outstanding.time_s, in_flight.time_s);
    let pairs = || outstanding.value.iter().zip(&in_flight.value);
    let samples = outstanding.value.len();
    assert!(pairs().all(|(outstanding, in_flight)| outstanding >= in_flight));
    // Data that was lost, or has arrived behind a hole, is not in flight and not acknowledged yet.
    let apart = pairs().filter(|(outstanding, in_flight)| outstanding > in_flight).count();
    assert!(apart * 20 > samples, "{apart} of {samples}");
    let mean = outstanding.value.iter().sum::<f64>() / samples as f64 / 1e3;
    assert!((read(&record, "metric = \"outstanding-mean\"") - mean).abs() < 1e-9);
    let most = read(&record, "metric = \"outstanding-max\"") * 1e3;
    assert!(outstanding.value.iter().all(|value| *value <= most + 1e-6), "{most}");
    assert!(outstanding.value.iter().any(|value| *value >= most - 1e-6), "{most}");
}

/// The curves of the leg on which a proxy sends, and those of the transfer's own sender.
#[test]
fn each_leg_of_a_proxy_has_curves_of_its_own() {
    let record = record_of(PROXY, "flows = 2\n[links.satellite.down]\nloss = 0.01\n");
    let leg = record.legs.iter().find(|leg| leg.link == "satellite").expect("a leg");
    let curve = |quantity: &str| -> &Series {
        let of_leg = |it: &&Series| it.quantity == quantity && it.place == leg.place();
        record.series.iter().find(of_leg).unwrap_or_else(|| panic!("no {quantity}"))
    };
    let least = curve("rtt").value.iter().copied().fold(f64::INFINITY, f64::min);
    assert!((500.0..600.0).contains(&least), "{least} ms over the satellite");
    assert!(curve("cwnd").value.iter().all(|bytes| *bytes > 0.0));
    let resent = &curve("retransmissions").value;
    assert!(
        resent.windows(2).all(|pair| pair[0] <= pair[1]),
        "it counts both flows, also once over"
    );
    assert!(resent.last().is_some_and(|last| *last > 0.0 && *last <= leg.retransmissions as f64));
    let phases = &curve("phase").value;
    assert!(phases.contains(&0.0) && phases.contains(&2.0), "slow start and fast recovery");
    let server = record.series.iter().find(|it| it.quantity == "rtt" && it.place == "file");
    let server = server.expect("the server's own leg").value.iter().copied().fold(0.0, f64::max);
    assert!(server < 500.0, "{server} ms between server and gateway");
}

/// With cross traffic through the same proxy: the record's counts of a leg are of transfers alone.
#[test]
fn the_window_over_a_link_is_that_of_whoever_sends_over_it() {
    let others =
        "[traffic.others]\nkind = \"bulk\"\nfrom = \"server\"\nto = \"client\"\nflows = 3\n";
    let record = record_of(PROXY, others);
    let leg = record.legs.iter().find(|leg| leg.link == "satellite").expect("a leg");
    // The run ends before the last acknowledgements have arrived.
    assert!(leg.connections == 1 && leg.bytes <= record.transfers[0].bytes, "{leg:?}");
    let mean = |quantity: &str, place: &str| {
        let of = |it: &&Series| it.quantity == quantity && it.place == place;
        let values = &record.series.iter().find(of).expect("a curve").value;
        values.iter().sum::<f64>() / values.len() as f64
    };
    let near = |figure: &str, wanted: f64| {
        let got = read(&record, figure);
        assert!((got - wanted).abs() < 1e-6, "{figure}: {got}, not {wanted}");
    };
    let place = leg.place();
    near("metric = \"window\"\nlink = \"satellite\"", mean("cwnd", &place) / 1e3);
    near("metric = \"round-trip\"\nlink = \"satellite\"", mean("rtt", &place));
    near("metric = \"window\"\nlink = \"internet\"", mean("cwnd", "file") / 1e3);
    near("metric = \"round-trip\"", mean("rtt", "file"));
    assert!(mean("rtt", &place) > 500.0 && mean("rtt", "file") < 500.0);
}
