//! Threads that fail. If a worker fails, the whole daemon ends, and nothing is left behind. If the
//! thread that follows the host's firewall fails, it goes on.
//!
//! No input makes these threads fail. So `strace` makes the call in which one waits fail with an
//! error that no kernel returns, and a worker's event loop cannot continue after that.

use crate::program::{Running, Setup, log_of, traces, wording_of};
use crate::stage::{self, Family, ReadOnce, Stage, nft, receive_all, send_all, until};
use nix::sys::signal::Signal;
use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};

/// With a keeper, and with more workers than the one that fails.
const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";
/// The error with which waiting fails. Unlike the interruption by a signal it is never expected.
const WORKER_FAILS: &str = "inject=epoll_wait,epoll_pwait,epoll_pwait2:error=EBADF";
const FOLLOWER_FAILS: &str = "inject=poll,ppoll:error=EBADF";

/// The thread of a process with this name.
pub fn thread(process: u32, name: &str) -> u32 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    let mut numbers =
        tasks.map(|task| task.expect("a thread").file_name().into_string().expect("a number"));
    let found = numbers.find(|number| {
        let comm = std::fs::read_to_string(format!("/proc/{process}/task/{number}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    });
    found.unwrap_or_else(|| panic!("no thread {name}")).parse().expect("a number")
}

/// Makes each call in which a thread waits fail from now on, as `fails` describes; none if this
/// host cannot do that.
fn break_waiting(thread: u32, fails: &str) -> Option<Tracer> {
    let mut strace = Command::new("strace");
    strace.args(["--quiet=all", "-e", fails, "--output=/dev/null", "-p", &thread.to_string()]);
    match strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => Some(Tracer(child)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            midhop_testkit::skipped("strace is not there");
            None
        }
        Err(error) => panic!("strace: {error}"),
    }
}

/// Dropping this ends the tracing.
struct Tracer(Child);

impl Tracer {
    fn has_failed(&mut self) -> bool {
        self.0.try_wait().expect("waiting").is_some_and(|status| !status.success())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_worker_that_panics(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let mut running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    // A flow that is split, and live when the worker fails.
    let (mut client, mut server) = stage.flow(&listener);
    stage::pass(&mut client, &mut server);
    let worker = thread(running.id(), "worker-1");
    let Some(mut tracer) = break_waiting(worker, WORKER_FAILS) else { return };
    until("one of them ends", || running.has_ended() || tracer.has_failed());
    if !running.has_ended() {
        midhop_testkit::skipped("strace may look into no process here");
        return;
    }
    assert_eq!(running.end(), Some(1), "{}", log_of(&setup));
    let log = wording_of(&setup);
    assert!(log.contains("worker 1 has panicked"), "{log}");
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind: {log}");
    // Both ends of the flow that was split receive an end.
    for (name, end) in [("client", &mut client), ("server", &mut server)] {
        match end.read_once(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("the {name} hears {other:?}: {log}"),
        }
    }
    // New flows pass, and another daemon can start.
    let talk = || {
        let (client, server) = stage.flow(&listener);
        send_all(&client, b"without it");
        assert_eq!(receive_all(&server), b"without it");
    };
    talk();
    let next = Running::start(&stage, &setup);
    talk();
    next.signal(Signal::SIGTERM);
    assert_eq!(next.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

#[test]
fn a_worker_that_panics_takes_the_daemon_with_it_ipv4() {
    a_worker_that_panics(Family::V4);
}

#[test]
fn a_worker_that_panics_takes_the_daemon_with_it_ipv6() {
    a_worker_that_panics(Family::V6);
}

#[test]
fn following_the_firewall_goes_on_after_it_failed() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let keeper = running.keeper().as_raw().cast_unsigned();
    let Some(mut tracer) = break_waiting(thread(keeper, "follower"), FOLLOWER_FAILS) else {
        return;
    };
    // The call in which it waits fails from the next time on, and so does the program that it
    // starts to query the firewall.
    let has_failed = || wording_of(&setup).contains("following the firewall's changes");
    until("it fails", || {
        nft(&stage.gateway, "table inet another { }");
        nft(&stage.gateway, "delete table inet another");
        has_failed() || tracer.has_failed()
    });
    if !has_failed() {
        midhop_testkit::skipped("strace may look into no process here");
        return;
    }
    drop(tracer);
    nft(&stage.gateway, "flush ruleset");
    until("the table is there again", || {
        traces(&stage.gateway).iter().any(|trace| trace.contains("midhop_main"))
    });
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}
