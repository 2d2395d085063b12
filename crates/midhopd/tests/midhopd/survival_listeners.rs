//! Listeners, and flows that are being opened, outlive the process that was to serve them.

use crate::explicit::{self, HTTP, gateway};
use crate::flows::exchange;
use crate::panics::thread;
use crate::program::{Running, Setup, log_of, output_in, traces};
use crate::stage::{self, Family, Stage, until};
use crate::survival::{DEATHS, Traced, kill_data_plane, relayed, wait_until_it_serves};
use crate::upgrade::{another, assert_done, upgrade};
use nix::libc::{SYS_accept4, SYS_connect};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::scope;

const CONFIG: &str = "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n";

/// Connects to an explicit listener that is not served, and sends a request.
fn ask(stage: &Stage, family: Family, target: SocketAddr) -> TcpStream {
    let mut stream = stage.connect(SocketAddr::new(gateway(family), HTTP)).expect("the listener");
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nearly");
    stream.write_all(request.as_bytes()).expect("asking");
    stream
}

/// Whether all threads of a process are stopped.
fn is_stopped(process: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

/// The response, and the far side of its flow.
fn answered(client: &mut TcpStream, listener: &TcpListener) -> TcpStream {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("an answer");
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    let (mut server, _) = listener.accept().expect("the far side");
    crate::flows::impatient(&server);
    let mut early = [0; 5];
    server.read_exact(&mut early).expect("what came with the request");
    assert_eq!(&early, b"early");
    server
}

fn clients_that_wait_are_served(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let (setup, running) = explicit::start(&stage, "");
    let listener = stage.listen(family);
    let target = listener.local_addr().expect("an address");
    let program = another(&setup, "next");
    for is_upgrade in [false, true, false] {
        wait_until_it_serves(&stage);
        let before = running.data_plane();
        // From here on no process accepts: the kernel completes the handshakes of clients.
        kill(before, Signal::SIGSTOP).expect("a signal");
        until("all of it stands still", || is_stopped(before));
        let clients: Vec<_> = (0..5).map(|_| ask(&stage, family, target)).collect();
        if is_upgrade {
            assert_done(&upgrade(&stage, &setup, &program), &setup);
        } else {
            kill(before, Signal::SIGKILL).expect("a signal");
        }
        for mut client in clients {
            let server = answered(&mut client, &listener);
            exchange(&client, &server, 300_000);
        }
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

#[test]
fn clients_that_wait_at_an_explicit_listener_are_served_ipv4() {
    clients_that_wait_are_served(Family::V4);
}

#[test]
fn clients_that_wait_at_an_explicit_listener_are_served_ipv6() {
    clients_that_wait_are_served(Family::V6);
}

/// The addresses of listeners on the gateway, each as often as there is a listener.
fn listeners(stage: &Stage) -> Vec<String> {
    let output = output_in(&stage.gateway, Command::new("ss").args(["-H", "-l", "-t", "-n"]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned))
        .filter(|address| !address.ends_with(":9310"))
        .collect();
    found.sort_unstable();
    found
}

/// No death and no upgrade adds or loses a listener. Listeners without a leg in the new
/// configuration are closed.
#[test]
fn listeners_are_those_of_the_configuration() {
    let Some(stage) = Stage::set() else { return };
    let legs = "[legs.wan0]\n[legs.lan0]\n";
    let setup = Setup::new(&format!("{CONFIG}{legs}"));
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = relayed(&stage, &listener);
    let before = listeners(&stage);
    assert!(before.len() >= 8, "two workers, two legs, two families: {before:?}");
    let program = another(&setup, "next");
    for _ in 0..2 {
        kill_data_plane(&running);
        wait_until_it_serves(&stage);
        assert_eq!(listeners(&stage), before);
        assert_done(&upgrade(&stage, &setup, &program), &setup);
        assert_eq!(listeners(&stage), before);
        stage::pass(&mut client, &mut server);
    }
    setup.rewrite(&format!("{CONFIG}[legs.wan0]\n"));
    assert_done(&upgrade(&stage, &setup, &program), &setup);
    let after = listeners(&stage);
    assert!(after.len() + 4 <= before.len(), "{before:?} {after:?}");
    let (client, server) = relayed(&stage, &listener);
    exchange(&client, &server, 100_000);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}

/// The outcome of a connection that was being opened when its data plane died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opened {
    Served,
    Reset,
    Silence,
}

/// Opens a connection, and sends four bytes in each direction.
fn open(stage: &Stage, listener: &TcpListener) -> Opened {
    let word = || {
        let mut client = stage.connect(listener.local_addr().expect("an address"))?;
        client.write_all(b"ping")?;
        let mut answer = [0; 4];
        client.read_exact(&mut answer)?;
        assert_eq!(&answer, b"pong");
        Ok(())
    };
    match word() {
        Ok(()) => Opened::Served,
        Err(error) => {
            let error: std::io::Error = error;
            let reset = [ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused];
            if reset.contains(&error.kind()) { Opened::Reset } else { Opened::Silence }
        }
    }
}

/// A server that answers each request, until the test is over.
fn answer_all(listener: &TcpListener, over: &AtomicBool) {
    listener.set_nonblocking(true).expect("a mode");
    scope(|scope| {
        while !over.load(Relaxed) {
            let Ok((mut server, _)) = listener.accept() else {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            };
            scope.spawn(move || {
                crate::flows::impatient(&server);
                let mut word = [0; 4];
                // The far side of a connection that died has sent no request.
                if server.read_exact(&mut word).is_ok() {
                    let _ = server.write_all(b"pong");
                }
            });
        }
    });
    listener.set_nonblocking(false).expect("a mode");
}

/// After a client is accepted, the calls that query its addresses and its cookie follow. So many
/// starts and ends of system calls later it is recorded.
const NOTED: u32 = 10;

/// A connection is opened, and its data plane dies before and after the system calls that this
/// takes. The next data plane serves it, or it passes directly. One moment is excepted: when the
/// dead one had accepted the client and had not recorded it.
fn connections_are_served(family: Family, first: u32) {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&CONFIG.replace("workers = 2", "workers = 1"));
    let mut running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let (mut deaths, mut reset) = (0, Vec::new());
    // A SYN that is dropped is retransmitted after a second, so not every system call is tried in
    // each family.
    for number in (first..).step_by(3) {
        running.data_plane();
        wait_until_it_serves(&stage);
        let worker = thread(running.id(), "worker-0").cast_signed();
        let Some(traced) = Traced::new(Pid::from_raw(worker)) else {
            return midhop_testkit::skipped("no process may be traced here");
        };
        let (over, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let (mut steps, mut accepted) = (0, None);
        scope(|scope| {
            scope.spawn(|| answer_all(&listener, &done));
            let opening = scope.spawn(|| {
                let opened = open(&stage, &listener);
                over.store(true, Relaxed);
                opened
            });
            while steps < number && traced.step(|| over.load(Relaxed)) {
                steps += 1;
                if traced.call() == Some(SYS_accept4) {
                    accepted.get_or_insert(steps);
                }
            }
            if steps == number {
                running.signal_data_plane(Signal::SIGKILL);
                deaths += 1;
                traced.reap();
            }
            let opened = opening.join();
            done.store(true, Relaxed);
            let opened = opened.expect("it ends");
            if opened != Opened::Served {
                let since = accepted.map(|accepted| steps - accepted);
                eprintln!("{opened:?} at {number}, {since:?} after the client was accepted");
                reset.push((since, opened));
            }
        });
        if steps < number {
            traced.release();
            break;
        }
        if deaths % DEATHS == 0 {
            running.signal(Signal::SIGTERM);
            assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
            running = Running::start(&stage, &setup);
        }
    }
    eprintln!(
        "{deaths} deaths; reset so many starts and ends of calls after the client: {reset:?}"
    );
    assert!(deaths > 15, "{deaths} deaths: it is opened elsewhere");
    for (since, opened) in reset {
        assert_eq!(opened, Opened::Reset);
        assert!(since.is_some_and(|since| since <= NOTED), "reset {since:?} after the client came");
    }
}

#[test]
fn connections_are_served_whenever_the_data_plane_dies_ipv4() {
    connections_are_served(Family::V4, 1);
}

#[test]
fn connections_are_served_whenever_the_data_plane_dies_ipv6() {
    connections_are_served(Family::V6, 2);
}

/// The data plane dies when its own connection to the server is open, and before it has read that. This connection is
/// reset before the client's SYN goes on to the server, which would take it for a part of that connection otherwise.
#[test]
fn a_client_whose_far_side_was_opened_needs_no_second_syn() {
    let Some(stage) = Stage::set() else { return };
    let setup = Setup::new(&CONFIG.replace("workers = 2", "workers = 1"));
    let running = Running::start(&stage, &setup);
    for _ in 0..DEATHS - 1 {
        running.data_plane();
        wait_until_it_serves(&stage);
        // Each time another server, of which the data plane does not know that it answers.
        let listener = stage.listen(Family::V4);
        let worker = thread(running.id(), "worker-0").cast_signed();
        let Some(traced) = Traced::new(Pid::from_raw(worker)) else {
            return midhop_testkit::skipped("no process may be traced here");
        };
        let address = listener.local_addr().expect("an address");
        let mut client = scope(|scope| {
            let client = scope.spawn(|| stage.connect(address).expect("a connection"));
            while traced.call() != Some(SYS_connect) {
                assert!(traced.step(|| false));
            }
            // The end of the call.
            assert!(traced.step(|| false));
            running.signal_data_plane(Signal::SIGKILL);
            traced.reap();
            client.join().expect("a client")
        });
        let info = midhop_linux::tcp_info::TcpInfo::of(&client).expect("its state");
        assert_eq!(info.retransmissions, 0, "its first SYN has reached the server");
        client.write_all(b"x").expect("writing");
        // The server may have accepted the connection that was reset.
        let arrived = (0..2).any(|_| {
            let (mut server, _) = listener.accept().expect("a connection");
            server.read(&mut [0]).is_ok_and(|bytes| bytes == 1)
        });
        assert!(arrived);
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
    assert_eq!(traces(&stage.gateway), [""; 0], "left behind");
}
