//! Connections of which one end has closed its direction, or both have.

use super::stage::*;
use crate::netns::NetNamespace;
use crate::sockopt;
use crate::tcp_repair::{LocalEnd, Mode, dump, is_over, prepare, restore, switch};
use std::net::Shutdown;

/// Moves a half-closed connection, which `arrange` has closed so far; then has both ends read all and close what is open.
/// The far end's close is complete, without an error.
struct Case<'a> {
    what: &'a str,
    v4: bool,
    arrange: &'a dyn Fn(&Stage, &Pair, [&mut Writer; 2]),
    local_end: LocalEnd,
    remote_ended: bool,
}

impl Case<'_> {
    fn run(&self) {
        let what = format!("{}, IPv4: {}", self.what, self.v4);
        let Some(stage) = Stage::new(self.v4, &[]) else { return };
        let mut pair = stage.connect(if self.v4 { Opener::Near } else { Opener::Far });
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        (self.arrange)(&stage, &pair, [&mut out, &mut back]);
        stage.freeze(0);
        for place in [&stage.places[0], &stage.far] {
            in_nft(place, "add table inet deaf");
            heal(place);
        }
        let mut moved = stage.relocate(pair.near, [0, 1], true);
        let ends = (moved.state.local_end, moved.state.remote_ended);
        assert_eq!(ends, (self.local_end, self.remote_ended), "{what}");
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        // And once more, where the kernel has another name for the state, unless both ends are acknowledged
        // by now: what is over does not move.
        stage.freeze(1);
        let place = usize::from(is_over(&pair.near).expect("a state"));
        if place == 1 {
            stage.thaw(1);
        } else {
            let mut moved = stage.relocate(pair.near, [1, 0], true);
            assert_eq!(moved.state.remote_ended, self.remote_ended, "{what}");
            assert_eq!(moved.state.local_end == LocalEnd::Open, self.local_end == LocalEnd::Open);
            moved.send_rest(&pair.far, &mut read[0]);
            pair.near = moved.near;
        }
        assert!(!is_over(&pair.near).expect("a state") || self.local_end != LocalEnd::Open);
        if self.local_end == LocalEnd::Open {
            out.write(&pair.near, 7_000);
            pair.near.shutdown(Shutdown::Write).expect("ending");
        }
        if !self.remote_ended {
            back.write(&pair.far, 7_000);
            pair.far.shutdown(Shutdown::Write).expect("ending");
        }
        read_to_end(&pair.far, &mut read[0]);
        read_to_end(&pair.near, &mut read[1]);
        out.check(&read[0]);
        back.check(&read[1]);
        wait_until(&what, || is_over(&pair.near).expect("a state") && info(&pair.far).is_closed());
        for end in [&pair.near, &pair.far] {
            assert!(sockopt::take_error(end).expect("a query").is_none(), "{what}");
        }
        // The near end's close sends nothing that the far end would take for an abort.
        count_resets(&stage.places[place]);
        drop(pair);
        assert_eq!(resets(&stage.places[place]), 0, "{what}");
    }
}

/// Counts what a place sends with a RST.
fn count_resets(place: &NetNamespace) {
    in_nft(
        place,
        "table inet resets { chain out { type filter hook output priority 0; tcp flags & (fin | rst) != 0 counter\n }\n}",
    );
}

fn resets(place: &NetNamespace) -> u64 {
    let list = || crate::nft::ask(&["list", "table", "inet", "resets"]);
    let listed = place.run(list).expect("entered").expect("a table");
    let count = listed.split("packets ").nth(1).and_then(|it| it.split(' ').next());
    count.and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("no counter in {listed}"))
}

fn in_both_families(
    what: &str,
    (local_end, remote_ended): (LocalEnd, bool),
    arrange: impl Fn(&Stage, &Pair, [&mut Writer; 2]),
) {
    for v4 in [true, false] {
        Case { what, v4, arrange: &arrange, local_end, remote_ended }.run();
    }
}

#[test]
fn an_end_of_the_far_end_moves_read_or_unread() {
    in_both_families("unread", (LocalEnd::Open, true), |_, pair, [out, back]| {
        back.write(&pair.far, 20_000);
        pair.far.shutdown(Shutdown::Write).expect("ending");
        wait_until("it arrives", || sockopt::is_read_side_shut(&pair.near).expect("a query"));
        assert_eq!(unread(&pair.near), 20_000);
        out.write(&pair.near, 3_000);
    });
    in_both_families("nothing unread", (LocalEnd::Open, true), |_, pair, _| {
        pair.far.shutdown(Shutdown::Write).expect("ending");
        wait_until("it arrives", || sockopt::is_read_side_shut(&pair.near).expect("a query"));
        read_to_end(&pair.near, &mut Vec::new());
    });
}

#[test]
fn an_end_of_the_far_end_is_acknowledged_at_the_new_place() {
    in_both_families("not acknowledged", (LocalEnd::Open, true), |stage, pair, [_, back]| {
        back.write(&pair.far, 20_000);
        wait_until("it is acknowledged", || {
            sockopt::unacknowledged(&pair.far).expect("a count") == 0
        });
        deafen(&stage.far);
        pair.far.shutdown(Shutdown::Write).expect("ending");
        wait_until("it arrives", || sockopt::is_read_side_shut(&pair.near).expect("a query"));
    });
}

#[test]
fn an_end_of_this_end_moves_wherever_it_is() {
    in_both_families("acknowledged", (LocalEnd::Acknowledged, false), |_, pair, [out, back]| {
        out.write(&pair.near, 20_000);
        pair.near.shutdown(Shutdown::Write).expect("ending");
        back.write(&pair.far, 20_000);
        wait_until("all is acknowledged", || {
            sockopt::unacknowledged(&pair.near).expect("a count") == 0
        });
        wait_for_unread(&pair.near, 20_000);
    });
    in_both_families("lost", (LocalEnd::Sent, false), |stage, pair, [out, back]| {
        back.write(&pair.far, 20_000);
        wait_for_unread(&pair.near, 20_000);
        deafen(&stage.far);
        out.write(&pair.near, 5_000);
        pair.near.shutdown(Shutdown::Write).expect("ending");
    });
    in_both_families("acknowledged in vain", (LocalEnd::Sent, false), |stage, pair, [out, _]| {
        deafen(&stage.places[0]);
        out.write(&pair.near, 5_000);
        pair.near.shutdown(Shutdown::Write).expect("ending");
        wait_until("it arrives", || sockopt::is_read_side_shut(&pair.far).expect("a query"));
    });
    in_both_families("unsent", (LocalEnd::Unsent, false), |stage, pair, [out, back]| {
        back.write(&pair.far, 20_000);
        wait_for_unread(&pair.near, 20_000);
        deafen(&stage.far);
        // More than the first window of congestion control, and less than the send buffer.
        out.write(&pair.near, 40_000);
        pair.near.shutdown(Shutdown::Write).expect("ending");
        assert!(sockopt::unsent(&pair.near).expect("a count") > 1_000);
    });
    in_both_families("unsent alone", (LocalEnd::Unsent, false), |stage, pair, [out, _]| {
        out.write(&pair.near, 5_000);
        wait_until("all is acknowledged", || {
            sockopt::unacknowledged(&pair.near).expect("a count") == 0
        });
        stage.freeze(0);
        pair.near.shutdown(Shutdown::Write).expect("ending");
        stage.thaw(0);
    });
}

#[test]
fn ends_of_both_ends_move() {
    // The kernel's LAST_ACK.
    in_both_families("this end's last", (LocalEnd::Sent, true), |stage, pair, [out, back]| {
        back.write(&pair.far, 20_000);
        pair.far.shutdown(Shutdown::Write).expect("ending");
        wait_until("it arrives", || sockopt::is_read_side_shut(&pair.near).expect("a query"));
        deafen(&stage.far);
        out.write(&pair.near, 5_000);
        pair.near.shutdown(Shutdown::Write).expect("ending");
        assert_eq!(info(&pair.near).state, 9);
    });
    // CLOSING.
    in_both_families("both at once", (LocalEnd::Sent, true), |stage, pair, [out, back]| {
        deafen(&stage.far);
        out.write(&pair.near, 5_000);
        pair.near.shutdown(Shutdown::Write).expect("ending");
        back.write(&pair.far, 5_000);
        pair.far.shutdown(Shutdown::Write).expect("ending");
        wait_until("it arrives", || info(&pair.near).state == 11);
    });
    in_both_families("this end's unsent", (LocalEnd::Unsent, true), |stage, pair, [out, back]| {
        back.write(&pair.far, 5_000);
        pair.far.shutdown(Shutdown::Write).expect("ending");
        wait_until("it arrives", || sockopt::is_read_side_shut(&pair.near).expect("a query"));
        deafen(&stage.far);
        out.write(&pair.near, 40_000);
        pair.near.shutdown(Shutdown::Write).expect("ending");
    });
}

#[test]
fn a_half_closed_connection_goes_on_where_it_was_when_a_move_fails() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let pair = stage.connect(Opener::Near);
    let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
    back.write(&pair.far, 20_000);
    out.write(&pair.near, 20_000);
    pair.near.shutdown(Shutdown::Write).expect("ending");
    wait_for_unread(&pair.near, 20_000);
    stage.freeze(0);
    switch(&pair.near, Mode::On).expect("repair mode");
    unprivileged(|| dump(&pair.near, QUEUE_MAX)).expect("a state");
    stage.thaw(0);
    switch(&pair.near, Mode::Off).expect("the connection goes on");
    back.write(&pair.far, 20_000);
    pair.far.shutdown(Shutdown::Write).expect("ending");
    read_to_end(&pair.far, &mut read[0]);
    read_to_end(&pair.near, &mut read[1]);
    out.check(&read[0]);
    back.check(&read[1]);
    wait_until("both are closed", || [&pair.near, &pair.far].iter().all(|it| info(it).is_closed()));
}

#[test]
fn closing_in_repair_mode_sends_nothing() {
    for has_unread in [false, true] {
        let Some(stage) = Stage::new(true, &[]) else { return };
        let pair = stage.connect(Opener::Near);
        let [mut out, mut back] = Writer::both();
        if has_unread {
            // Without repair mode, what is unread makes of a close a reset.
            back.write(&pair.far, 1_000);
            wait_for_unread(&pair.near, 1_000);
        }
        out.write(&pair.near, 1_000);
        count_resets(&stage.places[0]);
        switch(&pair.near, Mode::On).expect("repair mode");
        let state = dump(&pair.near, QUEUE_MAX).expect("a state");
        drop(pair.near);
        assert_eq!(resets(&stage.places[0]), 0);
        // Neither does the one that was to replace it.
        let prepared = stage.places[0].run(|| prepare(state.local, &state.buffers));
        let socket = prepared.expect("entered").expect("a socket");
        let unsent = restore(&socket, &state).expect("restored");
        drop((socket, unsent));
        assert_eq!(resets(&stage.places[0]), 0);
        assert!(!info(&pair.far).is_closed());
    }
}

#[test]
fn a_connection_that_is_over_is_recognised() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let mut pair = stage.connect(Opener::Near);
    pair.far.shutdown(Shutdown::Write).expect("ending");
    wait_until("it arrives", || sockopt::is_read_side_shut(&pair.near).expect("a query"));
    pair.near = stage.relocate(pair.near, [0, 1], false).near;
    assert!(!is_over(&pair.near).expect("a state"));
    pair.near.shutdown(Shutdown::Write).expect("ending");
    wait_until("it is over", || is_over(&pair.near).expect("a state"));
    switch(&pair.near, Mode::On).expect("repair mode");
    let refused = dump(&pair.near, QUEUE_MAX).expect_err("it is over");
    assert!(refused.to_string().contains("state 5"), "{refused}");
}
