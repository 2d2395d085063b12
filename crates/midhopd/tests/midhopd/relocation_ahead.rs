//! What flows hold travels before they stand still.

use crate::flows::EndedFlow;
use crate::program::{Setup, log_of, midhopd};
use crate::relocation::{ACCEPT, Place, begin_to_move, ip, outcome_of, stands_still};
use crate::stage::{Family, noise, pass, receive_all, send_all, until};
use crate::survival::{kill_data_plane, relayed};
use midhop_linux::tcp_info::TcpInfo;
use nix::sys::signal::Signal;
use std::io::Read;
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{scope, sleep};
use std::time::{Duration, SystemTime};

/// Unit: bytes. What each end sends.
const SENT: usize = 8 << 20;
/// Unit: bytes. What a direction holds at least when it moves.
const HELD: u64 = 3 << 19;

/// Two gateways of which the first holds much in its receive queues, and little in its send queues.
fn place(delay: &str) -> Option<Place> {
    let place = Place::set_apart(Some(delay))?;
    let Place { stage, .. } = &place;
    let small = "4096 65536 65536";
    for (host, key, sizes) in [
        (&stage.gateway, "rmem", "4096 6291456 6291456"),
        (&stage.gateway, "wmem", "4096 65536 262144"),
        (&stage.client, "rmem", small),
        (&stage.server, "rmem", small),
    ] {
        host.set_sysctl(&format!("net.ipv4.tcp_{key}"), sizes).expect("a limit");
    }
    Some(place)
}

/// Reads all, slowly at first.
fn read_slowly(mut stream: &TcpStream, is_slow: &AtomicBool) -> Vec<u8> {
    let mut bytes = vec![0; SENT];
    let mut at = 0;
    while is_slow.load(Relaxed) && at < SENT / 4 {
        let piece = &mut bytes[at..at + 4000];
        stream.read_exact(piece).expect("reading");
        at += piece.len();
        sleep(Duration::from_millis(3));
    }
    while is_slow.load(Relaxed) {
        sleep(Duration::from_millis(3));
    }
    stream.read_exact(&mut bytes[at..]).expect("reading");
    let end = stream.read(&mut [0]).expect("an end");
    assert_eq!(end, 0, "more than was sent");
    bytes
}

/// Unit: bytes. What the other end's kernel has taken of what this end has sent.
fn acknowledged(stream: &TcpStream) -> u64 {
    TcpInfo::of(stream).expect("information").acknowledged_bytes
}

/// Tells slow readers, also if a test fails, that they need not be slow any more.
struct Fast<'a>(&'a AtomicBool);

impl Drop for Fast<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// Starts `midhopd move --at` for all flows, in so many seconds and less than one.
fn begin_to_move_in(setup: &Setup, seconds: u64) -> (Child, SystemTime) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
    let at = now.as_secs() + 1 + seconds;
    let text = time::OffsetDateTime::from_unix_timestamp(at.cast_signed()).expect("a time");
    let (hour, minute, second) = text.to_hms();
    let text = format!("{}T{hour:02}:{minute:02}:{second:02}Z", text.date());
    let mut command = midhopd();
    command.args(["move", "--json", "--to", "new", "--flows", "all", "--at", &text, "--socket"]);
    command.arg(setup.socket()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("midhopd starts");
    (child, SystemTime::UNIX_EPOCH + Duration::from_secs(at))
}

/// Moves this many flows, and returns the bytes of their states: all, and those sent while they stood still.
fn move_with_states(old: &Setup, new: &Setup, flows: u64, begin: impl Fn() -> Child) -> [u64; 2] {
    let (mut moved, mut bytes) = (0, [0; 2]);
    until("all have moved", || {
        let outcome = outcome_of(&begin().wait_with_output().expect("an end"));
        // On a busy host it may not be stopped in time.
        let others: Vec<_> = outcome.stayed.keys().filter(|why| **why != "busy").collect();
        let logs = || format!("{}\n{}", log_of(old), log_of(new));
        assert!(outcome.lost == 0 && others.is_empty(), "{outcome:?}\n{}", logs());
        moved += outcome.moved;
        bytes[0] += outcome.state_bytes;
        bytes[1] += outcome.state_frozen_bytes;
        moved == flows
    });
    bytes
}

fn what_flows_hold_travels_ahead(family: Family, in_seconds: Option<u64>) {
    let Some(place) = place("5 ms") else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(family);
    let flows: Vec<_> = (0..2).map(|_| relayed(&place.stage, &listener)).collect();
    // Its end waits behind what it holds.
    let ended = relayed(&place.stage, &listener);
    let bytes = noise(9, SENT);
    let is_slow = AtomicBool::new(true);
    scope(|scope| {
        let _fast = Fast(&is_slow);
        let _ended: Vec<_> = flows.iter().map(EndedFlow).collect();
        let ends = || flows.iter().flat_map(|(client, server)| [client, server]);
        let readers: Vec<_> =
            ends().map(|end| scope.spawn(|| read_slowly(end, &is_slow) == bytes)).collect();
        for end in ends() {
            scope.spawn(|| send_all(end, &bytes));
        }
        send_all(&ended.1, &bytes[..SENT / 4]);
        until("much is held", || {
            ends().all(|end| acknowledged(end) > HELD + (SENT / 4) as u64)
                && acknowledged(&ended.1) >= (SENT / 4) as u64
        });
        let [all, frozen] = move_with_states(&old, &new, 3, || match in_seconds {
            None => begin_to_move(&old, "all"),
            Some(seconds) => begin_to_move_in(&old, seconds).0,
        });
        place.change_routes();
        eprintln!("{all} bytes, {frozen} of them while the flows stood still");
        // How much it is depends on how busy the host is.
        assert!(all > 4 * HELD && all - frozen > 2 * HELD, "{frozen} of {all}");
        is_slow.store(false, Relaxed);
        for reader in readers {
            assert!(reader.join().expect("a reader"), "a byte is missing, or another's");
        }
        assert!(receive_all(&ended.0) == bytes[..SENT / 4], "behind an end");
    });
    drop((flows, ended));
    until("no flow is left", || old.status().flows == 0 && new.status().flows == 0);
    old.assert_no_errors();
    new.assert_no_errors();
}

#[test]
fn what_flows_hold_travels_ahead_ipv4() {
    what_flows_hold_travels_ahead(Family::V4, None);
}

#[test]
fn what_flows_hold_travels_ahead_ipv6() {
    what_flows_hold_travels_ahead(Family::V6, None);
}

#[test]
fn what_flows_hold_travels_until_the_moment_of_a_move() {
    what_flows_hold_travels_ahead(Family::V4, Some(2));
}

/// Also flows that the new place does not take yet: its routes may come late.
#[test]
fn flows_go_on_until_the_moment_of_a_move() {
    let Some(place) = place("5 ms") else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let mut flows: Vec<_> = (0..3).map(|_| relayed(&place.stage, &listener)).collect();
    let client = Family::V4.client();
    ip(&place.second, Family::V4, &format!("route del {client} dev lan0"));
    let (mut moving, at) = begin_to_move_in(&old, 6);
    let is_early =
        || at.duration_since(SystemTime::now()).is_ok_and(|left| left.as_millis() > 2500);
    while is_early() {
        for (client, server) in &mut flows {
            pass(client, server);
        }
        assert!(!stands_still(&place.stage.gateway, Family::V4) || !is_early());
        assert!(moving.try_wait().expect("waiting").is_none() || !is_early());
    }
    ip(&place.second, Family::V4, &format!("route add {client} dev lan0"));
    let outcome = outcome_of(&moving.wait_with_output().expect("an end"));
    assert!(SystemTime::now() >= at, "it did not wait");
    assert_eq!((outcome.moved, outcome.lost), (3, 0), "{outcome:?}\n{}", log_of(&new));
    place.change_routes();
    for (client, server) in &mut flows {
        pass(client, server);
    }
}

/// A death while copies are sent costs nothing.
fn a_flow_outlives_a_death_while_it_is_copied(old_dies: bool) {
    // Copies are confirmed some hundred kilobytes at a time: they take seconds.
    let Some(place) = place("500 ms") else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let [first, second] = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let flow = relayed(&place.stage, &listener);
    let bytes = noise(5, SENT);
    scope(|scope| {
        let _ended = EndedFlow(&flow);
        scope.spawn(|| send_all(&flow.1, &bytes));
        until("much is held", || acknowledged(&flow.1) > HELD);
        let moving = begin_to_move(&old, "all");
        until("it is announced", || stands_still(&place.second, Family::V4));
        if old_dies {
            kill_data_plane(&first);
        } else {
            second.signal_data_plane(Signal::SIGKILL);
        }
        assert!(!stands_still(&place.stage.gateway, Family::V4), "it stood still already");
        assert!(receive_all(&flow.0) == bytes, "a byte is missing, or another's");
        let output = moving.wait_with_output().expect("an end");
        if !old_dies {
            let outcome = outcome_of(&output);
            assert_eq!((outcome.moved, outcome.lost), (0, 0), "{outcome:?}");
        }
    });
}

#[test]
fn a_flow_outlives_its_data_plane_while_it_is_copied() {
    a_flow_outlives_a_death_while_it_is_copied(true);
}

#[test]
fn a_flow_outlives_the_data_plane_to_which_it_is_copied() {
    a_flow_outlives_a_death_while_it_is_copied(false);
}
