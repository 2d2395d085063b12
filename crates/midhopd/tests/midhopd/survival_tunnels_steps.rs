//! A data plane at an end of a tunnel may die before and after each of its system calls.

use crate::flows::lasting::patient;
use crate::flows::{exchange, pass, read_until_error};
use crate::panics::thread;
use crate::records::{load, record};
use crate::stage::{Family, PATIENCE, ReadOnce, Stage};
use crate::survival::{DEATHS, Traced};
use crate::survival_tunnels::End::{self, Far, Near};
use crate::survival_tunnels::{Place, QUIC, TCP};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::Duration;

/// Unit: bytes. Sent by each end of the flow.
const BYTES: usize = 300_000;

/// When the flow of a step is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opened {
    /// Before the system calls of the data plane are counted: the flow has to go on.
    Before,
    /// While they are counted: until a first byte has returned it may be reset.
    Meanwhile,
}

/// The outcome of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All of it arrived, exactly once.
    Whole,
    /// It was reset before anything had returned to the client.
    Reset,
}

/// A server's connection, and what it has received.
struct Orphan {
    server: TcpStream,
    received: Vec<u8>,
}

/// An end of a tunnel whose data plane dies again and again.
struct Dying {
    place: Place,
    end: End,
    opened: Opened,
    listener: TcpListener,
    deaths: u32,
    /// Connections of flows that were reset before they were granted. None of them may end in
    /// order.
    orphans: Vec<Orphan>,
    resets: Vec<u32>,
}

impl Dying {
    fn set(family: Family, end: End, opened: Opened) -> Option<Self> {
        let stage = Stage::set()?;
        // Over TCP the far end's death is noticed soon. A flow that one end has opened and that the
        // other end does not know is kept for so long.
        let carrier = if end == Near { QUIC } else { TCP };
        let peer = &format!("{carrier}resume = \"8 s\"\n");
        let place = Place::on(stage, family, [peer; 2], "[daemon]\nworkers = 1\n");
        let listener = place.stage.listen(family);
        listener.set_nonblocking(true).expect("a mode");
        let (orphans, resets) = (Vec::new(), Vec::new());
        Some(Self { place, end, opened, listener, deaths: 0, orphans, resets })
    }

    /// Opens or carries a flow. The data plane dies at this start or end of a system call of its
    /// worker, if there are so many. Returns their number until the flow ended; none where
    /// processes may not be traced.
    fn step(&mut self, number: u32) -> Option<u32> {
        self.place.wait_for_a_tunnel();
        // So both ends know that they resume flows.
        let lasting = self.place.lasting_flow();
        let flow = (self.opened == Opened::Before).then_some(lasting);
        let running = self.place.running(self.end);
        let worker = thread(running.id(), "worker-0").cast_signed();
        let traced = Traced::new(Pid::from_raw(worker))?;
        let (over, mut steps) = (AtomicBool::new(false), 0);
        let (place, listener) = (&self.place, &self.listener);
        let outcome = scope(|scope| {
            let talk = scope.spawn(|| {
                let _over = Raised(&over);
                match &flow {
                    Some((client, server)) => {
                        pass(client, server);
                        exchange(client, server, BYTES);
                        (Outcome::Whole, Vec::new())
                    }
                    None => opening(place, listener),
                }
            });
            while steps < number && traced.step(|| over.load(Relaxed)) {
                steps += 1;
            }
            if steps == number {
                running.signal_data_plane(Signal::SIGKILL);
                traced.reap();
            }
            talk.join()
        });
        let (outcome, orphans) = outcome.unwrap_or_else(|_| {
            panic!("after its death at the start or end of system call {number} of {:?}", self.end)
        });
        self.orphans.extend(orphans);
        if outcome == Outcome::Reset {
            assert_eq!(steps, number, "reset, and nobody had died");
            self.resets.push(steps);
        } else if let Ok((_, from)) = self.listener.accept() {
            panic!("it was opened twice, from {from}, after {steps} of {number} system calls");
        }
        if steps < number {
            traced.release();
            return Some(steps);
        }
        self.deaths += 1;
        if self.deaths.is_multiple_of(DEATHS) {
            drop(flow);
            self.place.end(self.end);
            self.place.start(self.end);
        }
        Some(steps)
    }

    /// No connection of a flow that was reset may end in order after a part of the bytes.
    fn close(mut self) {
        self.place.end(Near);
        self.place.end(Far);
        let all = self.orphans.len();
        // A connection that neither end knows any more is closed without having received anything,
        // or is reset.
        let broken = self.orphans.into_iter().filter(is_broken).count();
        eprintln!(
            "{} deaths of {:?}, flow opened {:?}: reset before they were granted at {:?}, with {all} connections, {broken} of them reset",
            self.deaths, self.end, self.opened, self.resets
        );
    }
}

/// Whether a connection is reset. Otherwise it must have received nothing.
fn is_broken(orphan: &Orphan) -> bool {
    let mut stream = &orphan.server;
    match stream.read_once(&mut [0; 8]) {
        Ok(0) => {
            assert!(
                orphan.received.is_empty(),
                "a question ended in order, and its client was reset"
            );
            false
        }
        Ok(_) => read_until_error(stream) == ErrorKind::ConnectionReset,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            true
        }
    }
}

/// A flag that is set when this is dropped, also if a test fails.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Opens a flow, waits for a response, and sends much both ways. Also returns the connections of
/// servers that received nothing.
fn opening(place: &Place, listener: &TcpListener) -> (Outcome, Vec<Orphan>) {
    let refused = AtomicBool::new(false);
    scope(|scope| {
        let answering = scope.spawn(|| answer(listener, &refused));
        let asked = ask(place, listener);
        refused.store(asked.is_err(), Relaxed);
        let (server, orphans) = answering.join().expect("the server");
        match (asked, server) {
            (Ok(client), Some(server)) => {
                let flow = (client, server);
                patient(&flow);
                exchange(&flow.0, &flow.1, BYTES);
                (Outcome::Whole, orphans)
            }
            (Ok(_), None) => panic!("nobody has answered, and an answer came"),
            (Err(error), server) => {
                let kinds = [ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused];
                assert!(kinds.contains(&error.kind()), "{error}");
                let server = server.map(|server| Orphan { server, received: b"ping".to_vec() });
                (Outcome::Reset, orphans.into_iter().chain(server).collect())
            }
        }
    })
}

/// A client that has received a response.
fn ask(place: &Place, listener: &TcpListener) -> std::io::Result<TcpStream> {
    let mut client = place.stage.connect(listener.local_addr().expect("an address"))?;
    client.write_all(b"ping")?;
    let mut received = [0; 4];
    client.read_exact(&mut received)?;
    if received != *b"pong" { Err(std::io::Error::other("another answer")) } else { Ok(client) }
}

/// The connection on which a request arrived, which is answered, and those without one. A client
/// that repeats its request from the beginning, because the first attempt died, may use another
/// connection.
fn answer(listener: &TcpListener, refused: &AtomicBool) -> (Option<TcpStream>, Vec<Orphan>) {
    let mut waiting: Vec<Orphan> = Vec::new();
    loop {
        // Checked once more after it is known that no further connection will arrive.
        let is_last = refused.load(Relaxed);
        while let Ok((server, _)) = listener.accept() {
            server.set_nonblocking(true).expect("a mode");
            waiting.push(Orphan { server, received: Vec::new() });
        }
        let mut asked = None;
        for (n, Orphan { server, received }) in waiting.iter_mut().enumerate() {
            let mut buffer = [0; 8];
            let count = server.read(&mut buffer).unwrap_or_default();
            received.extend(&buffer[..count]);
            assert!(b"ping".starts_with(received), "{received:?}");
            if received == b"ping" {
                asked = Some(n);
            }
        }
        let rest = |waiting: Vec<Orphan>| {
            for Orphan { server, .. } in &waiting {
                server.set_nonblocking(false).expect("a mode");
                server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            }
            waiting
        };
        if let Some(n) = asked {
            let mut server = waiting.remove(n).server;
            server.set_nonblocking(false).expect("a mode");
            server.write_all(b"pong").expect("answering");
            return (Some(server), rest(waiting));
        }
        if is_last {
            return (None, rest(waiting));
        }
        sleep(Duration::from_millis(1));
    }
}

/// This many deaths, spread over all system calls that a flow takes.
fn it_may_die(family: Family, end: End, opened: Opened, deaths: u32) {
    let Some(mut dying) = Dying::set(family, end, opened) else { return };
    let Some(all) = dying.step(u32::MAX) else {
        return midhop_testkit::skipped("no process may be traced here");
    };
    assert!(all > 40, "{all} starts and ends of system calls: the relay is elsewhere");
    let deaths = deaths.min(all);
    for n in 0..deaths {
        let number = 1 + u64::from(n) * u64::from(all - 1) / u64::from(deaths.max(2) - 1);
        dying.step(u32::try_from(number).expect("one of them"));
    }
    eprintln!("{all} starts and ends of system calls in {family:?}");
    // Over QUIC the number of system calls varies.
    assert!(dying.deaths * 4 > deaths, "{} deaths of {deaths}", dying.deaths);
    dying.close();
}

#[test]
fn the_near_end_may_die_before_and_after_its_system_calls() {
    it_may_die(Family::V4, Near, Opened::Before, 12);
}

#[test]
fn the_near_end_may_die_while_a_flow_is_opened() {
    it_may_die(Family::V6, Near, Opened::Meanwhile, 12);
}

#[test]
fn the_far_end_may_die_before_and_after_its_system_calls() {
    it_may_die(Family::V6, Far, Opened::Before, 8);
}

#[test]
fn the_far_end_may_die_while_a_flow_is_opened() {
    it_may_die(Family::V4, Far, Opened::Meanwhile, 8);
}

/// The figures of `make bench-survival`: deaths at all system calls, or at a given number.
#[test]
#[ignore = "takes long: make bench-survival"]
fn figures() {
    let deaths = std::env::var("MIDHOP_SURVIVAL_STEPS")
        .map_or(u32::MAX, |count| count.parse().expect("a number"));
    for end in [Near, Far] {
        for opened in [Opened::Before, Opened::Meanwhile] {
            it_may_die(Family::V4, end, opened, deaths);
            record(
                "tunnel-steps",
                json!({ "end": format!("{end:?}"), "opened": format!("{opened:?}"), "deaths_at_most": deaths }),
            );
        }
    }
    println!("no flow was broken or changed after its first byte had come back; load {}", load());
}
