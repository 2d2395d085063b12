//! The laboratory's modems: what they report, by DLEP, and when.

use midhop_dlep::Router;
use midhop_experiment::Scenario;
use midhop_linux::sockopt;
use midhop_testbed::lab::{Links, Network};
use midhop_testbed::namespace::Namespace;
use midhop_testbed::runner::start_modems;
use midhop_units::{Duration, Instant, Rate};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

const SCENARIO: &str = r#"
title = "a link that fades"
duration = "30 s"
[nodes]
client = {}
terminal = { pep = "near" }
gateway = { pep = "far" }
[links.lan]
between = ["client", "terminal"]
[links.satellite]
between = ["terminal", "gateway"]
up = { rate = "5 Mbit/s" }
down = { rate = { trace = [["0 s", "20 Mbit/s"], ["1 s", "8 Mbit/s"], ["5 s", "12 Mbit/s"]] } }
[peps.near]
peers.far = { node = "gateway", modem = {} }
rules = [{ tunnel = "far" }]
[peps.far]
peers.user = { node = "terminal", modem = {} }
[transfers.file]
from = "gateway"
to = "client"
bytes = "1 MB"
"#;

/// A router's session with the modem of a node.
struct Session {
    router: Router,
    stream: TcpStream,
    began: std::time::Instant,
}

impl Session {
    fn open(network: &Network, node: &str) -> Self {
        let host = network.node(node).expect("a node");
        let stream = host.run(|| TcpStream::connect("127.0.0.1:854")).expect("entered");
        let stream = stream.expect("a modem");
        // A router requires this: packets from at most one hop away.
        sockopt::set_int(&stream, libc::IPPROTO_IP, libc::IP_MINTTL, 255).expect("an option");
        stream.set_read_timeout(Some(std::time::Duration::from_millis(5))).expect("a limit");
        let router = Router::new(Instant::START, "a test");
        Self { router, stream, began: std::time::Instant::now() }
    }

    /// Waits for another rate than `last`, and returns it.
    fn next(&mut self, last: Option<Rate>) -> Rate {
        let mut buffer = [0; 4096];
        loop {
            let now = Instant::START + Duration::from(self.began.elapsed());
            assert!(self.began.elapsed().as_secs() < 60, "nothing else is reported");
            self.stream.write_all(&self.router.to_send()).expect("sent");
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the modem has closed the session"),
                Ok(length) => self.router.on_received(now, &buffer[..length]).expect("valid"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.router.on_time(now).expect("alive");
                }
                Err(error) => panic!("{error}"),
            }
            if let Some(rate) = self.router.rate(None).filter(|rate| Some(*rate) != last) {
                return rate;
            }
        }
    }
}

#[test]
fn a_modem_reports_what_its_link_is_drawn_to_carry_from_the_run_s_start_on() {
    if let Err(missing) = Namespace::create("a try") {
        midhop_testkit::skipped(missing);
        return;
    }
    let scenario = Scenario::parse("test.toml", SCENARIO).expect("a scenario");
    let plan = scenario.plans().expect("a plan").swap_remove(0);
    let mut network = Network::build(&plan, Links::Emulated).expect("built");
    let modems = start_modems(&plan, &network).expect("modems");
    let mbit = Rate::from_mbit_per_s;
    assert_eq!(Session::open(&network, "terminal").next(None), mbit(5));
    let mut session = Session::open(&network, "gateway");
    assert_eq!(session.next(None), mbit(20), "until the run starts, what it starts with");
    network.start(plan.seed).expect("started");
    modems.begin(network.epoch());
    assert_eq!(session.next(Some(mbit(20))), mbit(8));
    assert_eq!(session.next(Some(mbit(8))), mbit(12));
    // A router that reconnects gets the current rate.
    drop(session);
    assert_eq!(Session::open(&network, "gateway").next(None), mbit(12));
    drop(modems);
    let host = network.node("gateway").expect("a node");
    let gone = host.run(|| TcpStream::connect("127.0.0.1:854")).expect("entered");
    assert!(gone.is_err(), "it is gone with the run");
}
