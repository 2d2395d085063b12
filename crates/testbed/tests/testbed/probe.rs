//! The probe on a node of a real network: it finds the node's sockets, their links and their losses.
//!
//! Figures are compared with the link's own counts and with physical limits, never with this
//! machine's speed.

use midhop_experiment::Scenario;
use midhop_experiment::record::Series;
use midhop_testbed::lab::{Links, Network};
use midhop_testbed::namespace::Namespace;
use midhop_testbed::probe::Probe;
use midhop_units::{Duration, Seed};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

const SCENARIO: &str = r#"
title = "a test"
duration = "60 s"
[nodes]
client = {}
gateway = { pep = "gw" }
server = {}
[links.satellite]
between = ["client", "gateway"]
rate = "20 Mbit/s"
delay = "40 ms"
down = { loss = 0.05 }
[links.internet]
between = ["gateway", "server"]
rate = "1 Gbit/s"
delay = "5 ms"
[peps.gw]
"#;
const LONG: usize = 600_000;
const SHORT: usize = 3_000;

/// A connection from one node to another: its opening end, its accepted end.
fn connect(from: &Namespace, to: &Namespace, address: IpAddr) -> (TcpStream, TcpStream) {
    let listening = to.run(|| TcpListener::bind(SocketAddr::new(address, 0)));
    let listener = listening.expect("entered").expect("listening");
    let there = listener.local_addr().expect("bound");
    let opened = from.run(|| TcpStream::connect(there)).expect("entered").expect("connected");
    (opened, listener.accept().expect("accepted").0)
}

fn send(mut from: &TcpStream, mut to: &TcpStream, bytes: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&vec![7; bytes]).expect("sent"));
        let mut taken = vec![0; bytes];
        to.read_exact(&mut taken).expect("received");
    });
}

/// Waits until no socket of `node` has anything left to send or to send again.
fn wait_for_acknowledgements(node: &Namespace) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let is_idle = || {
        let text = tables.map(|table| std::fs::read_to_string(table).expect("a table")).concat();
        // Columns: number, local, remote, state, queued to send:to read, …
        let queues = text.lines().filter_map(|line| line.split_whitespace().nth(4));
        queues.filter(|queue| queue.contains(':')).all(|queue| queue.starts_with("00000000:"))
    };
    while !node.run(is_idle).expect("entered") {
        assert!(std::time::Instant::now() < deadline, "never acknowledged");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The gateway sends over its lossy leg, and exchanges little over the other, over one IP version.
fn watch(family: usize) {
    if let Err(missing) = Namespace::create("a try") {
        midhop_testkit::skipped(missing);
        return;
    }
    let scenario = Scenario::parse("test.toml", SCENARIO).expect("a scenario");
    let plan = scenario.plans().expect("a plan").swap_remove(0);
    let mut network = Network::build(&plan, Links::Emulated).expect("built");
    network.start(Seed(7)).expect("started");
    let node = |name: &str| network.node(name).expect("a node").clone();
    let (client, gateway, server) = (node("client"), node("gateway"), node("server"));
    let home = |name: &str| network.home(name).expect("an address")[family];
    let probe = Probe::start(&plan, |name| network.node(name), network.epoch());
    let probe = probe.expect("sock_diag").expect("a node with a proxy");

    let brief = connect(&gateway, &server, home("server"));
    send(&brief.0, &brief.1, SHORT);
    drop(brief);
    let (receiver, sender) = connect(&client, &gateway, home("gateway"));
    send(&sender, &receiver, LONG);
    // Before anything is closed, every lost packet of the gateway has been retransmitted, and there
    // is no reason to send more.
    wait_for_acknowledgements(&gateway);
    let report = probe.finish();
    let links = network.finish().expect("no emulator stopped").links;
    drop((sender, receiver));

    let places: Vec<String> = report.legs.iter().map(|leg| leg.place()).collect();
    assert_eq!(places, ["gateway.internet", "gateway.satellite"]);
    let (internet, satellite) = (&report.legs[0], &report.legs[1]);
    assert_eq!((internet.connections, satellite.connections), (1, 1));
    assert!(internet.bytes.get() as usize >= SHORT, "{internet:?}");
    assert_eq!(satellite.bytes.get() as usize, LONG);
    assert!(satellite.rtt_min >= Some(Duration::from_ms(80)), "{satellite:?}");
    assert!(internet.rtt_min >= Some(Duration::from_ms(10)), "{internet:?}");
    let down = links.iter().find(|link| link.name == "satellite" && link.direction == "down");
    let lost = down.and_then(|down| down.drops.get("loss")).copied().unwrap_or(0);
    assert!(lost > 0, "5 % lost, and of {down:?} none");
    assert!(satellite.retransmissions >= lost, "{lost} lost, but {satellite:?}");
    assert_eq!(internet.retransmissions, 0);

    let curve = |quantity: &str| -> &Series {
        let belongs =
            |series: &&Series| series.place == "gateway.satellite" && series.quantity == quantity;
        report.series.iter().find(belongs).expect(quantity)
    };
    let units = ["cwnd", "in_flight", "rtt", "retransmissions", "delivery_rate", "pacing_rate"]
        .map(|quantity| curve(quantity).unit.as_str());
    assert_eq!(units, ["B", "B", "ms", "segments", "Mbit/s", "Mbit/s"]);
    let (outstanding, in_flight) = (curve("outstanding"), curve("in_flight"));
    assert_eq!((outstanding.unit.as_str(), &outstanding.time_s), ("B", &in_flight.time_s));
    // With 5 % loss, most of the data arrives behind a hole at some time.
    let pairs = || outstanding.value.iter().zip(&in_flight.value);
    assert!(pairs().any(|(outstanding, in_flight)| outstanding > in_flight), "{outstanding:?}");
    let cwnd = curve("cwnd");
    assert!(cwnd.value.iter().all(|&bytes| bytes > 0.0) && cwnd.flow.is_none(), "{cwnd:?}");
    assert!(cwnd.time_s.windows(2).all(|pair| pair[0] < pair[1]), "{cwnd:?}");
    // The kernel's smoothing starts from the handshake; nothing was ever shorter than the path.
    assert!(curve("rtt").value.iter().all(|&ms| ms >= 80.0), "{:?}", curve("rtt"));
    let resent = curve("retransmissions");
    assert!(resent.value.windows(2).all(|pair| pair[0] <= pair[1]), "{resent:?}");
    assert_eq!(resent.value.last(), Some(&(satellite.retransmissions as f64)));
}

#[test]
fn legs_are_distinguished_and_losses_are_found_over_ipv4() {
    watch(0);
}

#[test]
fn legs_are_distinguished_and_losses_are_found_over_ipv6() {
    watch(1);
}

#[test]
fn a_plan_without_a_proxy_is_not_watched() {
    let text = SCENARIO.replace("{ pep = \"gw\" }", "{}").replace("[peps.gw]", "");
    let scenario = Scenario::parse("test.toml", &text).expect("a scenario");
    let plan = scenario.plans().expect("a plan").swap_remove(0);
    let probe = Probe::start(&plan, |_| None, midhop_units::Instant::START);
    assert!(probe.expect("nothing to refuse").is_none());
}
