//! A rule that rejects is always kept: no flow that matches it gets through while the daemon lives.

use crate::hand::{Hand, Odd, Place, RST, SYN, address, prepare};
use crate::program::{Running, Setup};
use crate::stage::{Family, PATIENCE, Stage, nft, until};
use crate::strangers::counter;
use nix::sys::signal::{Signal, kill};
use socket2::SockRef;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const CONFIG: &str =
    "[intercept]\ninterfaces = \"lan0\"\n[legs.lan0]\n[[rules]]\naction = \"reject\"\n";
const RELOADS: u64 = 20;
/// This many clients keep a SYN under way at any moment.
const CLIENTS: usize = 4;

/// Clients try to connect without a pause while the configuration is reloaded again and again.
fn reload_under_attempts(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    let (stop, refused, passed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            // A client that gets through frees its place in the backlog at once.
            let socket = SockRef::from(&listener);
            socket.set_read_timeout(Some(Duration::from_millis(50))).expect("an option");
            while !stop.load(Relaxed) {
                drop(listener.accept());
            }
        });
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let count = match stage.connect(address) {
                        Ok(_) => &passed,
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => &refused,
                        Err(error) => panic!("neither refused nor passed: {error}"),
                    };
                    count.fetch_add(1, Relaxed);
                }
            });
        }
        until("clients are refused", || refused.load(Relaxed) > 100);
        assert_eq!(passed.load(Relaxed), 0, "flows passed before the first reload");
        for number in 1..=RELOADS {
            let before = refused.load(Relaxed) + passed.load(Relaxed);
            until("clients try", || refused.load(Relaxed) + passed.load(Relaxed) > before);
            running.signal(Signal::SIGHUP);
            until("it has reloaded", || setup.reloads() == [number, 0]);
        }
        // SYNs have only passed during reloads, if none passes after the last one.
        let before = [&refused, &passed].map(|count| count.load(Relaxed));
        until("clients are refused again", || refused.load(Relaxed) > before[0] + 100);
        println!(
            "passed during reloads {}, after them {}",
            before[1],
            passed.load(Relaxed) - before[1]
        );
        stop.store(true, Relaxed);
    });
    assert!(refused.load(Relaxed) > 0, "nobody was refused");
    assert_eq!(passed.load(Relaxed), 0, "flows passed a rule that rejects them");
}

#[test]
fn a_reload_lets_no_flow_past_a_rule_that_rejects_ipv4() {
    reload_under_attempts(Family::V4);
}

#[test]
fn a_reload_lets_no_flow_past_a_rule_that_rejects_ipv6() {
    reload_under_attempts(Family::V6);
}

/// A port that a rule rejects, and one that is open.
const SHUT: u16 = 81;
const OPEN: u16 = 80;
const SHUT_RULE: &str = "[daemon]\nworkers = 1\n[intercept]\ninterfaces = \"lan0\"\n\
     [limits]\npending = 16\n[[rules]]\nmatch.destination_port = 81\naction = \"reject\"\n";

/// SYNs from many ports, and the number of them that reach the server's host.
struct Knocks<'a> {
    stage: &'a Stage,
    hand: Hand,
}

impl<'a> Knocks<'a> {
    fn new(stage: &'a Stage, family: Family) -> Self {
        prepare(stage);
        nft(
            &stage.server,
            "table inet seen { counter open { }; counter shut { }; \
             chain c { type filter hook prerouting priority -500; \
             tcp dport 80 counter name open; tcp dport 81 counter name shut; }; }",
        );
        let mut hand = Hand::new(stage, Place::Client, family, 20_000);
        hand.other = SocketAddr::new(address(Place::Server, family), 0);
        Self { stage, hand }
    }

    /// Sends a SYN from a port that was not used before.
    fn knock(&mut self, port: u16) {
        self.hand.own.set_port(self.hand.own.port() + 1);
        self.hand.other.set_port(port);
        let odd = Odd { options: vec![2, 4, 4, 0xb0], ..Odd::default() };
        self.hand.send(SYN, self.hand.next, b"", &odd);
    }

    fn seen(&self, port: u16) -> u64 {
        counter(&self.stage.server, "seen", if port == OPEN { "open" } else { "shut" })
    }

    /// Sends SYNs to both ports until a new one to the open port arrives. By then a SYN has passed
    /// this host, whatever happened to those for the other port.
    fn insist(&mut self, what: &str) {
        let before = self.seen(OPEN);
        until(what, || {
            for port in [SHUT, OPEN] {
                self.knock(port);
            }
            self.seen(OPEN) > before
        });
    }
}

/// The queue is not read and fills up: what may pass then passes, and nothing else.
fn a_full_queue(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let mut knocks = Knocks::new(&stage, family);
    for port in [SHUT, OPEN] {
        knocks.knock(port);
        until("it passes where there is no daemon", || knocks.seen(port) == 1);
    }
    let setup = Setup::new(SHUT_RULE);
    let running = Running::start(&stage, &setup);
    knocks.knock(SHUT);
    assert!(knocks.hand.listen(PATIENCE).expect("a refusal").has(RST));
    assert_eq!(knocks.seen(SHUT), 1, "it is refused here");
    running.stop_data_plane();
    // More than the queue has room for, before the SYNs that must find it full.
    for _ in 0..2000 {
        knocks.knock(OPEN);
    }
    for _ in 0..10 {
        knocks.insist("SYNs pass a full queue");
    }
    assert_eq!(knocks.seen(SHUT), 1, "a full queue let SYNs pass that a rule rejects");
    running.signal_data_plane(Signal::SIGCONT);
    knocks.insist("it goes on");
    assert_eq!(knocks.seen(SHUT), 1, "SYNs passed once it went on");
}

#[test]
fn a_full_queue_lets_no_flow_past_a_rule_that_rejects_ipv4() {
    a_full_queue(Family::V4);
}

#[test]
fn a_full_queue_lets_no_flow_past_a_rule_that_rejects_ipv6() {
    a_full_queue(Family::V6);
}

/// All processes of the daemon are killed. The table remains, and stops flows that a rule rejects.
fn all_are_killed(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let mut knocks = Knocks::new(&stage, family);
    let setup = Setup::new(SHUT_RULE);
    let running = Running::start(&stage, &setup);
    let keeper = running.keeper();
    kill(keeper, Signal::SIGKILL).expect("a signal");
    running.signal(Signal::SIGKILL);
    running.end();
    until("the keeper has ended", || kill(keeper, None).is_err());
    for _ in 0..10 {
        knocks.insist("others pass");
    }
    assert_eq!(knocks.seen(SHUT), 0, "flows passed a rule that rejects them");
}

#[test]
fn a_rule_that_rejects_stops_flows_though_all_are_killed_ipv4() {
    all_are_killed(Family::V4);
}

#[test]
fn a_rule_that_rejects_stops_flows_though_all_are_killed_ipv6() {
    all_are_killed(Family::V6);
}
