//! The figures of `make bench-survival` on moves: how long the ends of busy flows wait while a thousand flows go to
//! another machine, and their user's link breaks for a moment as its routes change.

use crate::program::{Running, log_of};
use crate::records::{load, ms, record};
use crate::relocation::{ACCEPT, Place, begin_to_move, outcome_of};
use crate::stage::Family;
use crate::survival::relayed;
use crate::upgrade::longest_waits;
use midhop_testbed::namespace::Namespace;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::json;
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Between the two places, one way.
const DELAY: &str = "10 ms";
/// How long no packet of a user passes, while the routes change.
const BREAK: Duration = Duration::from_millis(50);

type Pair = (TcpStream, TcpStream);

/// A round trip of a word: from the client in every other flow, else from the server.
fn word((first, second): &mut Pair) -> Result<(), ErrorKind> {
    let mut received = [0; 4];
    let mut passes = || {
        first.write_all(b"ping")?;
        second.read_exact(&mut received)?;
        second.write_all(b"pong")?;
        first.read_exact(&mut received)
    };
    passes().map_err(|error: std::io::Error| error.kind())
}

/// Has every packet that comes in by these devices dropped, or no longer.
fn cut(host: &Namespace, devices: &[&str], is_cut: bool) {
    let mut text = String::from("add table netdev broken\ndelete table netdev broken\n");
    for device in devices.iter().filter(|_| is_cut) {
        text += &format!(
            "table netdev broken {{\nchain {device} {{\ntype filter hook ingress device \"{device}\" priority 0\n\
             ip protocol tcp drop\n}}\n}}\n"
        );
    }
    let mut nft = host.command("nft");
    let child = nft.args(["-f", "-"]).stdin(Stdio::piped()).spawn();
    let mut child = child.expect("nft starts");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("a transaction");
    assert!(child.wait().expect("an end").success(), "nft refused: {text}");
}

/// The user's link breaks, and the routes change before it is there again.
fn change_routes_in_a_break(place: &Place) -> Duration {
    let hosts = [
        (&place.stage.client, &["lan0", "lan1"][..]),
        (&place.stage.gateway, &["lan0"][..]),
        (&place.second, &["lan0"][..]),
    ];
    let all = |is_cut: bool| {
        scope(|scope| {
            for (host, devices) in hosts {
                scope.spawn(move || cut(host, devices, is_cut));
            }
        });
    };
    all(true);
    let begun = Instant::now();
    place.change_routes_of(Family::V4);
    sleep(BREAK.saturating_sub(begun.elapsed()));
    all(false);
    begun.elapsed()
}

/// Unit: seconds of a processor, of all processes of a daemon.
fn cpu(running: &Running) -> f64 {
    let first = Pid::from_raw(running.first().cast_signed());
    [first, running.keeper(), running.data_plane()]
        .into_iter()
        .flat_map(|process| std::fs::read_dir(format!("/proc/{process}/task")).expect("threads"))
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .sum::<f64>()
        / 1e9
}

fn quantiles(mut times: Vec<Duration>) -> String {
    if times.is_empty() {
        return "none".to_owned();
    }
    times.sort_unstable();
    let last = times.len() - 1;
    let at = |at: usize| format!("{:.0}", times[at].as_secs_f64() * 1e3);
    format!("{}, {}, {}", at(last / 2), at(last * 99 / 100), at(last))
}

/// The longest waits of busy flows around `event`. A flow that is reset has none.
fn waits(flows: &mut [Pair], event: impl FnOnce()) -> Vec<Duration> {
    longest_waits(flows, |flow| word(flow).is_ok(), event)
}

#[test]
#[ignore = "takes a minute: make bench-survival"]
fn figures() {
    let flows: usize = std::env::var("MIDHOP_SURVIVAL_FLOWS")
        .map_or(1000, |count| count.parse().expect("a number"));
    for (name, busy, breaks, moves) in [
        ("not split, the routes change in a break", flows / 2, true, false),
        ("moved, all idle", 0, false, true),
        ("moved, and the routes change", flows / 2, false, true),
        ("moved, and the routes change in a break", flows / 2, true, true),
    ] {
        let place = Place::set_apart(Some(DELAY)).expect("a place for it");
        let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
        let running = moves.then(|| place.start(&old, &new));
        for host in [&place.stage.gateway, &place.second].iter().filter(|_| !moves) {
            host.set_sysctl("net.ipv4.ip_forward", "1").expect("a setting");
        }
        let listener = place.stage.listen(Family::V4);
        let mut pairs: Vec<Pair> = (0..flows)
            .map(|number| {
                let (client, server) = relayed(&place.stage, &listener);
                if number % 2 == 0 { (client, server) } else { (server, client) }
            })
            .collect();
        let usual = waits(&mut pairs[..busy], || {});
        let (mut outcome, mut command, mut broken) = (None, Duration::ZERO, Duration::ZERO);
        let used = Cell::new([0.0; 2]);
        let stalls = waits(&mut pairs[..busy], || {
            if let Some(running) = &running {
                let (before, begun) = (running.each_ref().map(cpu), Instant::now());
                let output = begin_to_move(&old, "all").wait_with_output().expect("an end");
                command = begun.elapsed();
                let after = running.each_ref().map(cpu);
                used.set([after[0] - before[0], after[1] - before[1]]);
                outcome = Some(outcome_of(&output));
            }
            if breaks {
                broken = change_routes_in_a_break(&place);
            } else {
                place.change_routes_of(Family::V4);
            }
        });
        let alive = pairs.iter_mut().map(word).filter(Result::is_ok).count();
        record(
            "moves",
            json!({
                "case": name, "flows": flows, "busy": busy, "alive": alive, "waits_ms": ms(&stalls),
                "usual_waits_ms": ms(&usual), "command_ms": command.as_secs_f64() * 1e3,
                "break_ms": broken.as_secs_f64() * 1e3, "cpu_old_s": used.get()[0], "cpu_new_s": used.get()[1],
                "moved": outcome.as_ref().map(|outcome| outcome.moved),
            }),
        );
        let per_flow = |seconds: f64| seconds * 1e6 / flows as f64;
        let [there, here] = used.get();
        println!(
            "{name}: {flows} flows, {busy} of them busy; {alive} live after it; longest wait of a word (median, 99 %, most): {} ms \
             (before: {} ms); the command took {:.0} ms, the break {:.0} ms; CPU while it ran, relaying with it: {:.0} + {:.0} us a \
             flow (old + new place); {outcome:?}; load {}",
            quantiles(stalls),
            quantiles(usual),
            command.as_secs_f64() * 1e3,
            broken.as_secs_f64() * 1e3,
            per_flow(there),
            per_flow(here),
            load()
        );
        if let Some(running) = running {
            assert!(alive == flows, "{}\n{}", log_of(&old), log_of(&new));
            drop(pairs);
            for (running, setup) in running.into_iter().zip([&old, &new]) {
                running.signal(Signal::SIGTERM);
                assert_eq!(running.end(), Some(0), "{}", log_of(setup));
            }
        }
    }
}
