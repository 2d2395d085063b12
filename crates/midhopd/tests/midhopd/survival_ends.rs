//! Flows of random size, which end in both directions while the processes that relay them die.
//!
//! Some ends read slowly, so that bytes and ends wait in every queue at the moment of a death.

use crate::flows::lasting::patient;
use crate::program::{Running, Setup, log_of};
use crate::records::{load, record};
use crate::stage::{Family, ReadOnce, Stage, noise, pass, until};
use crate::survival::{CONFIG, kill_data_plane, relayed};
use crate::survival_tunnels::{BOTH, End, Place, QUIC, TCP};
use nix::sys::signal::Signal;
use serde_json::json;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, Scope, scope, sleep};
use std::time::Duration;

/// Deaths in one round: more within seconds would end the daemon.
const DEATHS: usize = 4;
/// Unit: bytes. The most that one end sends in one piece.
const PIECE: usize = 16 << 10;

/// Random numbers that a seed determines.
struct Dice {
    seed: u64,
    rolls: u64,
}

impl Dice {
    /// A number below `end`.
    fn roll(&mut self, end: u64) -> u64 {
        self.rolls += 1;
        let bytes = noise(self.seed.wrapping_mul(1 << 20).wrapping_add(self.rolls), 16);
        let number = bytes.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        number % end
    }

    /// A number of bytes below 2 to the power of `exponent`; each order of magnitude is as likely.
    fn size(&mut self, exponent: u64) -> usize {
        let most = 1 << self.roll(exponent + 1);
        usize::try_from(self.roll(most)).unwrap_or(0)
    }
}

/// What one end of a flow does.
struct EndPlan<'a> {
    sends: &'a [u8],
    receives: &'a [u8],
    /// The pause after each piece that it sends, and after each read.
    pauses: [Duration; 2],
}

impl EndPlan<'_> {
    fn send(&self, mut stream: &TcpStream) {
        for piece in self.sends.chunks(PIECE) {
            stream.write_all(piece).expect("writing");
            sleep(self.pauses[0]);
        }
        stream.shutdown(Shutdown::Write).expect("ending");
    }

    fn receive(&self, mut stream: &TcpStream) {
        let (mut at, mut buffer) = (0, vec![0; 4 * PIECE]);
        loop {
            let count = stream.read_once(&mut buffer).expect("no reset");
            if count == 0 {
                return assert_eq!(at, self.receives.len(), "it ended in order, but too early");
            }
            let as_sent = self.receives.get(at..at + count);
            assert!(
                as_sent.is_some_and(|sent| sent == &buffer[..count]),
                "other bytes, after {at}"
            );
            at += count;
            sleep(self.pauses[1]);
        }
    }
}

/// A thread for each of very many.
fn spawn<'s>(scope: &'s Scope<'s, '_>, what: impl FnOnce() + Send + 's) {
    Builder::new().stack_size(128 << 10).spawn_scoped(scope, what).expect("a thread");
}

/// Runs the flows to their ends. `kill` is called with 0, 1, … whenever another part of their ends
/// has arrived.
fn run_to_their_ends(
    flows: &[(TcpStream, TcpStream)],
    dice: &mut Dice,
    exponent: u64,
    kill: impl Fn(usize),
) {
    let bytes = noise(dice.seed, (1 << exponent) + flows.len());
    let mut plans = Vec::new();
    for n in 0..flows.len() {
        let [up, down] = [(); 2].map(|()| &bytes[n..][..dice.size(exponent)]);
        let mut pause = |often: u64, most: u64| {
            let most = if dice.roll(often) == 0 { most } else { 1 };
            Duration::from_micros(dice.roll(most))
        };
        let [client, server] = [(); 2].map(|()| [pause(2, 20_000), pause(4, 20_000)]);
        plans.push([
            EndPlan { sends: up, receives: down, pauses: client },
            EndPlan { sends: down, receives: up, pauses: server },
        ]);
    }
    let ends = AtomicUsize::new(0);
    scope(|scope| {
        for ((client, server), plans) in flows.iter().zip(&plans) {
            for (stream, plan) in [client, server].into_iter().zip(plans) {
                let ends = &ends;
                spawn(scope, move || plan.send(stream));
                spawn(scope, move || {
                    // Also if it fails: the deaths do not wait for it.
                    let _counted = Counted(ends);
                    plan.receive(stream);
                });
            }
        }
        for n in 0..DEATHS {
            let part = 2 * flows.len() * n / DEATHS;
            until("more flows end", || ends.load(Relaxed) >= part);
            kill(n);
        }
    });
}

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// One proxy, whose data plane is killed.
fn round_of_split_flows(family: Family, flows: usize, exponent: u64, seed: u64) {
    let Some(stage) = Stage::set() else { return };
    eprintln!("seed {seed}");
    let setup = Setup::new(CONFIG);
    let running = Running::start(&stage, &setup);
    let listener = stage.listen(family);
    let flows: Vec<_> = (0..flows).map(|_| relayed(&stage, &listener)).collect();
    flows.iter().for_each(patient);
    let mut dice = Dice { seed, rolls: 0 };
    run_to_their_ends(&flows, &mut dice, exponent, |_| kill_data_plane(&running));
    until("it has come up", || setup.try_status().is_ok());
    let totals = setup.status().orphaned_flows_total;
    assert_eq!(totals.get("lost"), Some(&0), "{totals:?}: {}", log_of(&setup));
    until("no flow is left", || setup.flows().is_empty());
    drop(flows);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&setup));
}

/// A tunnel, whose ends' data planes are killed in turn.
fn round_of_tunnel_flows(family: Family, carrier: &str, flows: usize, exponent: u64, seed: u64) {
    let Some(stage) = Stage::set() else { return };
    eprintln!("seed {seed}");
    let mut place = Place::between(stage, family, carrier);
    // The first flow may be requested before it is known that flows can be resumed.
    drop(place.lasting_flow());
    let listener = place.stage.listen(family);
    let flows: Vec<_> = (0..flows).map(|_| relayed(&place.stage, &listener)).collect();
    flows.iter().for_each(patient);
    let mut dice = Dice { seed, rolls: 0 };
    run_to_their_ends(&flows, &mut dice, exponent, |n| {
        kill_data_plane(place.running(BOTH[n % 2]));
    });
    drop(flows);
    for end in BOTH {
        place.end(end);
    }
}

#[test]
fn flows_that_end_are_whole_whenever_the_data_plane_dies_ipv4() {
    round_of_split_flows(Family::V4, 40, 20, 1);
}

#[test]
fn flows_that_end_are_whole_whenever_the_data_plane_dies_ipv6() {
    round_of_split_flows(Family::V6, 40, 20, 2);
}

#[test]
fn flows_that_end_are_whole_whenever_an_end_of_their_tunnel_dies_over_quic() {
    round_of_tunnel_flows(Family::V4, QUIC, 20, 16, 3);
}

#[test]
fn flows_that_end_are_whole_whenever_an_end_of_their_tunnel_dies_over_tcp() {
    round_of_tunnel_flows(Family::V6, TCP, 20, 16, 4);
}

/// The tunnel's connection ends without a word, while nothing waits to be sent on it.
fn an_idle_flow_outlives_a_death(carrier: &str, dying: End) {
    let Some(place) = Place::set(Family::V4, carrier) else { return };
    let (mut client, mut server) = place.lasting_flow();
    for _ in 0..3 {
        kill_data_plane(place.running(dying));
        pass(&mut client, &mut server);
    }
}

#[test]
fn an_idle_flow_outlives_a_near_end_over_tcp() {
    an_idle_flow_outlives_a_death(TCP, End::Near);
}

#[test]
fn an_idle_flow_outlives_a_far_end_over_tcp() {
    an_idle_flow_outlives_a_death(TCP, End::Far);
}

/// The figures of `make bench-survival`: 300 flows in each round.
#[test]
#[ignore = "takes minutes: make bench-survival"]
fn figures() {
    const FLOWS: usize = 300;
    let deaths: usize = std::env::var("MIDHOP_SURVIVAL_DEATHS")
        .map_or(200, |count| count.parse().expect("a number"));
    let rounds = deaths.div_ceil(DEATHS);
    for round in 0..rounds {
        let seed = u64::from(std::process::id()) << 16 | round as u64;
        let family = if round % 2 == 0 { Family::V4 } else { Family::V6 };
        round_of_split_flows(family, FLOWS, 22, seed);
        let carrier = if round % 4 < 3 { QUIC } else { TCP };
        round_of_tunnel_flows(family, carrier, FLOWS, 18, seed);
        record(
            "ends",
            json!({ "round": round, "seed": seed, "deaths": DEATHS, "flows": FLOWS, "family": format!("{family:?}") }),
        );
    }
    println!(
        "{} deaths among split flows and as many of ends of tunnels, {} flows of random size each: all whole; load {}",
        rounds * DEATHS,
        rounds * FLOWS,
        load()
    );
}
