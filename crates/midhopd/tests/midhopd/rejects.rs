//! A rule that rejects is a promise: no flow that it names gets through while the daemon lives.

use crate::program::{Desk, Running, log_of};
use crate::stage::{Family, Stage, until};
use nix::sys::signal::Signal;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

const CONFIG: &str =
    "[intercept]\ninterfaces = \"lan0\"\n[legs.lan0]\n[[rules]]\naction = \"reject\"\n";
const RELOADS: usize = 20;
/// So many at a time keep a SYN under way at any moment.
const CLIENTS: usize = 4;

/// Clients try to connect without a pause while the configuration is read again and again.
fn reload_under_attempts(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let desk = Desk::new(CONFIG);
    let running = Running::start(&stage, &desk);
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    let (stop, refused, passed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Who gets through has its place in the backlog back at once.
            listener.set_nonblocking(true).expect("a mode");
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
        let reloads = || log_of(&desk).matches("configuration reloaded").count();
        for number in 1..=RELOADS {
            let before = refused.load(Relaxed) + passed.load(Relaxed);
            until("clients try", || refused.load(Relaxed) + passed.load(Relaxed) > before);
            running.signal(Signal::SIGHUP);
            until("it has reloaded", || reloads() == number);
        }
        // Whatever passed has done so at a reload, if none does after the last.
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
