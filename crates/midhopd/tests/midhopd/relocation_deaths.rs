//! The processes of either place die or are upgraded while flows move, or after that: each flow lives at one place, or its
//! ends learn that it is over.

use crate::program::{Running, Setup, log_of};
use crate::relocation::{ACCEPT, Place, begin_to_move, move_all, moved, stands_still};
use crate::stage::{Family, ReadOnce, until};
use crate::survival::{kill_data_plane, relayed};
use crate::upgrade::{another, assert_done, upgrade_in};
use nix::sys::signal::{Signal, kill};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::thread::{scope, sleep};
use std::time::Duration;

/// How many flows move.
const FLOWS: usize = 12;

/// What has become of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Both of its ends are answered by the other.
    Lives,
    /// An end knows that it is over, and the other one knows or is not answered.
    Reset,
    /// Neither end is answered.
    Silent,
}

fn fate_by(error: &io::Error) -> Fate {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Fate::Reset,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Fate::Silent,
        _ => panic!("a flow ends in another way: {error}"),
    }
}

/// Any other fate is a fault: an end that nobody sent, or bytes of nobody.
fn fate_of(ends: &[TcpStream; 2]) -> Fate {
    let mut told = [None, None];
    for (from, to) in [(0, 1), (1, 0)] {
        let mut received = [0; 4];
        if let Err(error) = (&ends[from]).write_all(b"ping") {
            told[from] = Some(fate_by(&error));
            break;
        }
        match (&ends[to]).read_exact(&mut received) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                panic!("an end that nobody sent")
            }
            Err(error) => {
                told[to] = Some(fate_by(&error));
                break;
            }
            Ok(()) => assert_eq!(&received, b"ping"),
        }
    }
    if told == [None, None] {
        return Fate::Lives;
    }
    for (end, told) in ends.iter().zip(&mut told) {
        // An end that was reset is told once.
        if *told != Some(Fate::Reset) {
            match (&mut &*end).read_once(&mut [0; 4]) {
                Ok(count) => panic!("an end that nobody sent, or {count} bytes"),
                Err(error) => *told = Some(fate_by(&error)),
            }
        }
    }
    if told.contains(&Some(Fate::Reset)) { Fate::Reset } else { Fate::Silent }
}

fn fates_of(flows: &[[TcpStream; 2]]) -> Vec<Fate> {
    scope(|scope| {
        let asked: Vec<_> = flows.iter().map(|ends| scope.spawn(|| fate_of(ends))).collect();
        asked.into_iter().map(|fate| fate.join().expect("a fate")).collect()
    })
}

/// The process that dies.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Keeper,
    /// The holder of all sockets.
    First,
}

fn murder(mut running: Running, victim: Victim) {
    match victim {
        Victim::Keeper => kill(running.keeper(), Signal::SIGKILL).expect("a signal"),
        Victim::First => running.signal(Signal::SIGKILL),
    }
    until("its daemon ends", || running.has_ended());
}

/// When it dies.
#[derive(Debug, Clone, Copy)]
enum When {
    /// So long after the first flow is restored at the new place.
    Within(Duration),
    /// After the move.
    After,
}

/// Starts to move all flows, and waits until the first one is restored at the new place, and then for `pause`.
fn begin(place: &Place, old: &Setup, pause: Duration) -> Child {
    let mut moving = begin_to_move(old, "all");
    until("a flow stands still there, or all have moved", || {
        let has_ended = moving.try_wait().expect("waiting").is_some();
        has_ended || stands_still(&place.second, Family::V4)
    });
    sleep(pause);
    moving
}

/// Flows move while a process of one place dies. Returns their fates.
fn fates(is_old: bool, victim: Victim, when: When) -> Option<Vec<Fate>> {
    let place = Place::set()?;
    // A tunnel whose other end has died is soon known to be gone.
    let quick = "fallback = \"off\"\nkeepalive = \"500 ms\"\ntimeout = \"4 s\"\n";
    let (old, new) = (place.old_setup(quick), place.new_setup(&format!("{ACCEPT}{quick}")));
    let [first, second] = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let flows: Vec<_> = (0..FLOWS).map(|_| relayed(&place.stage, &listener).into()).collect();
    let moving = match when {
        When::Within(pause) => Some(begin(&place, &old, pause)),
        When::After => {
            move_all(&old, "new", FLOWS as u64);
            None
        }
    };
    let (dies, _lives) = if is_old { (first, second) } else { (second, first) };
    murder(dies, victim);
    if let Some(moving) = moving {
        let _ = moving.wait_with_output().expect("an end");
    }
    if is_old {
        place.change_routes();
    }
    let fates = fates_of(&flows);
    let remaining: &Setup = if is_old { &new } else { &old };
    let live = fates.iter().filter(|fate| **fate == Fate::Lives).count();
    eprintln!(
        "{victim:?} of the {} place, {when:?}: {live} live, {fates:?}",
        if is_old { "old" } else { "new" }
    );
    // What is reset, or is not there, is not relayed.
    until("no other flows are left", || remaining.status().flows == live as u64);
    remaining.assert_no_errors();
    drop(flows);
    Some(fates)
}

/// Some moments in the middle of a move of this many flows.
const MOMENTS: [u64; 4] = [0, 8, 30, 100];

/// What has not moved has died with the old place: it was reset, or stood still.
fn the_old_place_dies(victim: Victim) {
    for moment in MOMENTS {
        let when = When::Within(Duration::from_millis(moment));
        if fates(true, victim, when).is_none() {
            return;
        }
    }
    let fates = fates(true, victim, When::After).expect("a stage");
    assert_eq!(fates, [Fate::Lives; FLOWS], "they live at the new place");
}

#[test]
fn flows_live_at_one_place_or_end_when_the_old_keeper_dies() {
    the_old_place_dies(Victim::Keeper);
}

#[test]
fn flows_live_at_one_place_or_end_when_the_old_holder_dies() {
    the_old_place_dies(Victim::First);
}

/// The old place resets what may have been at the new one.
fn the_new_place_dies(victim: Victim) {
    for moment in MOMENTS {
        let when = When::Within(Duration::from_millis(moment));
        let Some(fates) = fates(false, victim, when) else { return };
        assert!(!fates.contains(&Fate::Silent), "{fates:?}");
    }
    let fates = fates(false, victim, When::After).expect("a stage");
    assert_eq!(fates, [Fate::Reset; FLOWS], "they have died with the new place");
}

#[test]
fn flows_live_at_one_place_or_are_reset_when_the_new_keeper_dies() {
    the_new_place_dies(Victim::Keeper);
}

#[test]
fn flows_live_at_one_place_or_are_reset_when_the_new_holder_dies() {
    the_new_place_dies(Victim::First);
}

/// What happens to the places while flows move.
#[derive(Debug, Clone, Copy)]
enum Event {
    OldIsUpgraded,
    NewIsUpgraded,
    DataPlanesDie,
}

/// Both places serve after it. Flows that have moved have their packets forwarded by the old place. A flow that the old place
/// has reset, because it might have moved, may have moved: then its ends are gone. The new place learns that by probes and
/// retransmissions, once the routes lead there.
fn flows_move_while(event: Event) {
    let probing = ["lan0", "wan0"].map(|leg| {
        format!("[legs.{leg}]\nkeepalive = {{ idle = \"2 s\", interval = \"2 s\", count = 4 }}\n")
    });
    let probing = probing.concat();
    // The commit arrives 400 ms after the announcement, and the answer 100 ms later. An upgrade takes a while to start.
    for moment in [100, 200, 300, 450] {
        let Some(place) = Place::set_apart(Some("100 ms")) else { return };
        let (old, new) =
            (place.old_setup(&probing), place.new_setup(&format!("{ACCEPT}{probing}")));
        let [first, second] = place.start(&old, &new);
        let listener = place.stage.listen(Family::V4);
        let flows: Vec<[TcpStream; 2]> =
            (0..FLOWS).map(|_| relayed(&place.stage, &listener).into()).collect();
        let moving = begin(&place, &old, Duration::from_millis(moment));
        let upgraded = |host, setup| {
            assert_done(&upgrade_in(host, setup, &another(setup, "next")), setup);
        };
        match event {
            Event::OldIsUpgraded => upgraded(&place.stage.gateway, &old),
            Event::NewIsUpgraded => upgraded(&place.second, &new),
            Event::DataPlanesDie => [&first, &second].into_iter().for_each(kill_data_plane),
        }
        let output = moving.wait_with_output().expect("an end");
        until("both serve", || [&old, &new].iter().all(|setup| setup.try_status().is_ok()));
        let fates = fates_of(&flows);
        let live = fates.iter().filter(|fate| **fate == Fate::Lives).count();
        let there = moved(&new)[1];
        let all = format!(
            "{event:?} after {moment} ms: {live} live, {there} have moved, {fates:?}\n{}\n{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            log_of(&old),
            log_of(&new),
        );
        eprintln!("{event:?} after {moment} ms: {live} live, {there} have moved");
        assert!(!fates.contains(&Fate::Silent), "{all}");
        // What is upgraded has no flow die.
        assert!(live == FLOWS || matches!(event, Event::DataPlanesDie), "{all}");
        drop(flows);
        until("the old place's flows have ended", || old.status().flows == 0);
        // What lives at the new place alone has no ends.
        place.change_routes();
        until("the new place's flows have ended", || new.status().flows == 0);
    }
}

#[test]
fn flows_move_while_the_old_place_is_upgraded() {
    flows_move_while(Event::OldIsUpgraded);
}

#[test]
fn flows_move_while_the_new_place_is_upgraded() {
    flows_move_while(Event::NewIsUpgraded);
}

#[test]
fn flows_move_while_both_data_planes_die() {
    flows_move_while(Event::DataPlanesDie);
}
