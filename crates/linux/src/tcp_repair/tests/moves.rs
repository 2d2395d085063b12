//! Connections that are open in both directions.

use super::stage::*;
use crate::netns::write_sysctl;
use crate::nfqueue::NfQueue;
use crate::nft::{Table, Unbound};
use crate::sockopt;
use crate::tcp_repair::{LocalEnd, Mode, dump, is_on, is_over, switch};
use nix::libc;
use std::net::Shutdown;

/// Has something in every queue, and the near end frozen: of its bytes some have arrived without being acknowledged, some
/// are lost, and some were never sent; of the far end's some are unread and some are lost.
fn fill_queues(stage: &Stage, pair: &Pair, [out, back]: [&mut Writer; 2]) {
    for end in [&pair.near, &pair.far] {
        let size = (libc::SOL_SOCKET, libc::SO_SNDBUF);
        sockopt::set_int(end, size.0, size.1, 1 << 19).expect("an option");
    }
    back.write(&pair.far, 50_000);
    wait_for_unread(&pair.near, 50_000);
    deafen(&stage.places[0]);
    let before = unread(&pair.far);
    out.write(&pair.near, 5_000);
    wait_for_unread(&pair.far, before + 5_000);
    deafen(&stage.far);
    out.write(&pair.near, 200_000);
    back.write(&pair.far, 30_000);
    stage.freeze(0);
    heal(&stage.places[0]);
    heal(&stage.far);
}

/// Both ends write, read all, and close. Neither has an error.
#[track_caller]
fn finish(pair: &Pair, [out, back]: [&mut Writer; 2], mut read: [Vec<u8>; 2]) {
    read_all(&pair.far, &mut read[0], out.written);
    read_all(&pair.near, &mut read[1], back.written);
    out.write(&pair.near, 10_000);
    back.write(&pair.far, 10_000);
    read_all(&pair.far, &mut read[0], out.written);
    read_all(&pair.near, &mut read[1], back.written);
    pair.near.shutdown(Shutdown::Write).expect("ending");
    read_to_end(&pair.far, &mut read[0]);
    back.write(&pair.far, 1_000);
    pair.far.shutdown(Shutdown::Write).expect("ending");
    read_to_end(&pair.near, &mut read[1]);
    out.check(&read[0]);
    back.check(&read[1]);
    wait_until("both ends are closed", || {
        info(&pair.near).is_closed() && info(&pair.far).is_closed()
    });
    for end in [&pair.near, &pair.far] {
        assert!(is_over(end).expect("a state"));
        assert!(sockopt::take_error(end).expect("a query").is_none());
    }
}

/// Moves a connection with full queues to the other place, and back when it is idle.
fn move_busy(v4: bool, opener: Opener, sysctls: &[(&str, &str)]) {
    let Some(stage) = Stage::new(v4, sysctls) else { return };
    let mut pair = stage.connect(opener);
    let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
    // The path is measured.
    out.write(&pair.near, 20_000);
    read_all(&pair.far, &mut read[0], 20_000);
    wait_until("all is acknowledged", || {
        sockopt::unacknowledged(&pair.near).expect("a count") == 0
    });
    let before = info(&pair.near);
    fill_queues(&stage, &pair, [&mut out, &mut back]);
    let mut moved = stage.relocate(pair.near, [0, 1], true);
    let state = &moved.state;
    assert_eq!((state.local_end, state.remote_ended), (LocalEnd::Open, false));
    assert_eq!(state.receive.unread.len(), 50_000);
    let [sent, unsent] = [&state.send.sent, &state.send.unsent].map(Vec::len);
    assert!(sent > 5_000 && unsent > 0 && sent + unsent == 205_000, "{sent} {unsent}");
    assert!(state.path.rtt_us > 0 && state.path.cwnd > 0, "{:?}", state.path);
    let settled = state.negotiated;
    moved.send_rest(&pair.far, &mut read[0]);
    pair.near = moved.near;
    let now = info(&pair.near);
    // Without scaling, both shifts are set to 0 all the same.
    let options = |options: u8| options & !4;
    assert_eq!(options(now.options), options(before.options));
    assert_eq!(now.window_scales, before.window_scales);
    assert_eq!(now.mss, before.mss, "the segment size in use");
    read_all(&pair.far, &mut read[0], out.written);
    read_all(&pair.near, &mut read[1], back.written);
    wait_until("all is acknowledged", || {
        sockopt::unacknowledged(&pair.near).expect("a count") == 0
    });
    let mut moved = stage.relocate(pair.near, [1, 0], false);
    assert_eq!(moved.state.queued_bytes(), 0);
    let again = moved.state.negotiated;
    assert_eq!((again.mss, again.selective_acks), (settled.mss, settled.selective_acks));
    assert_eq!(again.timestamps.is_some(), settled.timestamps.is_some());
    moved.send_rest(&pair.far, &mut read[0]);
    pair.near = moved.near;
    finish(&pair, [&mut out, &mut back], read);
}

#[test]
fn a_busy_connection_moves_over_ipv4() {
    move_busy(true, Opener::Near, &[]);
}

#[test]
fn a_busy_connection_moves_over_ipv6() {
    move_busy(false, Opener::Far, &[]);
}

#[test]
fn a_connection_without_timestamps_moves() {
    for v4 in [true, false] {
        move_busy(v4, Opener::Far, &[("net.ipv4.tcp_timestamps", "0")]);
    }
}

#[test]
fn a_connection_without_window_scaling_moves() {
    for v4 in [true, false] {
        move_busy(v4, Opener::Near, &[("net.ipv4.tcp_window_scaling", "0")]);
    }
}

#[test]
fn a_connection_without_sack_moves() {
    move_busy(true, Opener::Near, &[("net.ipv4.tcp_sack", "0")]);
}

#[test]
fn options_are_the_connection_s_and_not_the_new_place_s() {
    let keys = ["net.ipv4.tcp_timestamps", "net.ipv4.tcp_window_scaling", "net.ipv4.tcp_sack"];
    for [here, there] in [["0", "1"], ["1", "0"]] {
        let Some(stage) = Stage::new(true, &keys.map(|key| (key, here))) else { return };
        let mut pair = stage.connect(Opener::Near);
        let set = || keys.iter().for_each(|key| write_sysctl(key, there).expect("a value"));
        stage.places[1].run(set).expect("entered");
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        fill_queues(&stage, &pair, [&mut out, &mut back]);
        let mut moved = stage.relocate(pair.near, [0, 1], true);
        assert_eq!(moved.state.negotiated.selective_acks, here == "1");
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        finish(&pair, [&mut out, &mut back], read);
    }
}

/// The clock's unit is a route's at the old place, and the connection's at the new one.
#[test]
fn timestamps_of_microseconds_move() {
    for v4 in [true, false] {
        let Some(stage) = Stage::new(v4, &[]) else { return };
        if let Err(error) = stage.stamp_microseconds(0) {
            return midhop_testkit::skipped(format!("this takes Linux 6.7: {error}"));
        }
        let mut pair = stage.connect(Opener::Near);
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        fill_queues(&stage, &pair, [&mut out, &mut back]);
        let mut moved = stage.relocate(pair.near, [0, 1], true);
        let clock = moved.state.negotiated.timestamps.expect("they are on");
        if !clock.microseconds {
            return midhop_testkit::skipped("this takes Linux 6.7");
        }
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        assert_ne!(info(&pair.near).options & 64, 0);
        finish(&pair, [&mut out, &mut back], read);
    }
}

#[test]
fn full_buffers_move() {
    for v4 in [true, false] {
        let Some(stage) = Stage::new(v4, &[]) else { return };
        let mut pair = stage.connect(Opener::Near);
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        // Nobody reads: both windows close, and both send queues fill.
        let mut last = None;
        wait_until("both windows are closed", || {
            out.fill(&pair.near);
            back.fill(&pair.far);
            let ends = [&pair.near, &pair.far];
            let waiting = ends.map(|it| (unread(it), sockopt::unsent(it).expect("a count")));
            let flying = ends.map(|it| info(it).unacknowledged);
            let full = flying == [0, 0] && waiting.iter().all(|it| it.0 > 0 && it.1 > 0);
            let now = Some((waiting, out.written, back.written));
            std::mem::replace(&mut last, now) == now && full
        });
        let mut moved = stage.relocate(pair.near, [0, 1], false);
        let state = &moved.state;
        assert!(state.send.unsent.len() > 10_000 && state.receive.unread.len() > 10_000);
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        read_all(&pair.near, &mut read[1], back.written);
        finish(&pair, [&mut out, &mut back], read);
    }
}

#[test]
fn what_arrived_out_of_order_is_sent_again() {
    for v4 in [true, false] {
        let Some(stage) = Stage::new(v4, &[]) else { return };
        let mut pair = stage.connect(Opener::Near);
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        pair.far.set_nodelay(true).expect("an option");
        back.write(&pair.far, 1_000);
        wait_for_unread(&pair.near, 1_000);
        // The next segment is lost, however often it is sent.
        switch(&pair.far, Mode::On).expect("repair mode");
        let next = dump(&pair.far, QUEUE_MAX).expect("a state").send.unacknowledged;
        switch(&pair.far, Mode::OffWithoutProbe).expect("the connection goes on");
        let lost = format!("type filter hook prerouting priority -300; tcp sequence {next} drop\n");
        in_nft(&stage.places[0], &format!("table inet hole {{\n chain in {{ {lost} }}\n}}"));
        for _ in 0..5 {
            back.write(&pair.far, 1_000);
        }
        wait_until("there is a hole", || info(&pair.far).sacked > 0);
        stage.freeze(0);
        assert_eq!(unread(&pair.near), 1_000);
        let mut moved = stage.relocate(pair.near, [0, 1], true);
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        read_all(&pair.near, &mut read[1], back.written);
        finish(&pair, [&mut out, &mut back], read);
    }
}

#[test]
fn a_connection_goes_on_where_it_was_when_a_move_fails() {
    for v4 in [true, false] {
        let Some(stage) = Stage::new(v4, &[]) else { return };
        let pair = stage.connect(Opener::Near);
        let reuse = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        sockopt::set_int(&pair.near, reuse.0, reuse.1, v4.into()).expect("an option");
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        fill_queues(&stage, &pair, [&mut out, &mut back]);
        switch(&pair.near, Mode::On).expect("repair mode");
        assert!(is_on(&pair.near).expect("a TCP socket"));
        let dumps = [(); 2].map(|()| unprivileged(|| dump(&pair.near, QUEUE_MAX)));
        let [mut one, other] = dumps.map(|it| it.expect("a state"));
        // All but the clock stands still.
        one.negotiated.timestamps = other.negotiated.timestamps;
        assert_eq!(one, other);
        stage.thaw(0);
        switch(&pair.near, Mode::Off).expect("the connection goes on");
        assert!(!is_on(&pair.near).expect("a TCP socket"));
        let reuse = sockopt::read_int(&pair.near, reuse.0, reuse.1).expect("an option");
        assert_eq!(reuse, i32::from(v4));
        read_all(&pair.far, &mut read[0], out.written);
        read_all(&pair.near, &mut read[1], back.written);
        finish(&pair, [&mut out, &mut back], read);
    }
}

#[test]
fn the_probe_measures_the_path_of_an_idle_connection() {
    for v4 in [true, false] {
        let Some(stage) = Stage::new(v4, &[]) else { return };
        let mut pair = stage.connect(Opener::Near);
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        let mut moved = stage.relocate(pair.near, [0, 1], false);
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        wait_until("the probe is answered", || info(&pair.near).rtt_us > 0);
        assert_eq!(sockopt::unacknowledged(&pair.near).expect("a count"), 0);
        finish(&pair, [&mut out, &mut back], read);
    }
}

/// A connection that enters repair mode forgets that it owes an acknowledgement.
#[test]
fn a_delayed_acknowledgement_is_sent_before_repair_mode() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let pair = stage.connect(Opener::Near);
    let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
    let by_timer = || stage.delayed_acknowledgements(0);
    let owes = || sockopt::unacknowledged(&pair.far).expect("a count") > 0;
    // On a busy host the timer may be first.
    wait_until("one is owed until repair mode", || {
        let delay = sockopt::set_int(&pair.near, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 0);
        delay.expect("an option");
        let before = by_timer();
        back.write(&pair.far, 100);
        read_all(&pair.near, &mut read[1], back.written);
        let owed = owes();
        switch(&pair.near, Mode::On).expect("repair mode");
        let owed = owed && by_timer() == before;
        wait_until("it is acknowledged", || !owes());
        assert!(!owed || by_timer() == before, "the timer has sent it");
        switch(&pair.near, Mode::OffWithoutProbe).expect("no repair mode");
        owed
    });
    finish(&pair, [&mut out, &mut back], read);
}

/// What nobody has read is not acknowledged at once, and no kernel restores that it is to be.
#[test]
fn what_a_connection_has_to_acknowledge_is_in_its_state() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let pair = stage.connect(Opener::Near);
    let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
    let by_timer = || stage.delayed_acknowledgements(0);
    let owes = || sockopt::unacknowledged(&pair.far).expect("a count") > 0;
    out.write(&pair.near, 10);
    read_all(&pair.far, &mut read[0], 10);
    let mut owed = None;
    // On a busy host the timer may be first.
    wait_until("one is owed, unread", || {
        let delay = sockopt::set_int(&pair.near, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 0);
        delay.expect("an option");
        let before = by_timer();
        back.write(&pair.far, 100);
        wait_for_unread(&pair.near, 100);
        switch(&pair.near, Mode::On).expect("repair mode");
        let state = dump(&pair.near, QUEUE_MAX).expect("a state");
        if owes() && by_timer() == before {
            owed = Some(state);
        }
        switch(&pair.near, Mode::OffWithoutProbe).expect("no repair mode");
        read_all(&pair.near, &mut read[1], back.written);
        owed.is_some()
    });
    let state = owed.expect("a state");
    let owed = state.owed_acknowledgement().expect("one is owed");
    assert_eq!(owed.sequence, state.send.unacknowledged);
    assert_eq!(owed.acknowledgement, state.receive.next);
    assert_eq!(owed.timestamp, state.negotiated.timestamps.map(|clock| clock.value));
    let (window, shift) = (state.window, state.negotiated.window_scales.expect("scaled").receive);
    let edge = window.receive_updated_at.wrapping_add(window.receive);
    let offered = owed.acknowledgement.wrapping_add(u32::from(owed.window) << shift);
    assert!(offered.wrapping_sub(edge) < 1 << shift, "{offered} instead of {edge}");
    wait_until("it is acknowledged", || !owes());
    switch(&pair.near, Mode::On).expect("repair mode");
    let settled = dump(&pair.near, QUEUE_MAX).expect("a state");
    assert_eq!(settled.owed_acknowledgement(), None);
    switch(&pair.near, Mode::OffWithoutProbe).expect("no repair mode");
    finish(&pair, [&mut out, &mut back], read);
}

/// Without an answer, the octet in front is sent again: the far end takes it for a keepalive.
#[test]
fn a_probe_that_is_lost_does_no_harm() {
    for v4 in [true, false] {
        let Some(stage) = Stage::new(v4, &[]) else { return };
        let mut pair = stage.connect(Opener::Far);
        let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
        out.write(&pair.near, 4_000);
        read_all(&pair.far, &mut read[0], 4_000);
        deafen(&stage.far);
        let mut moved = stage.relocate(pair.near, [0, 1], false);
        moved.send_rest(&pair.far, &mut read[0]);
        pair.near = moved.near;
        let resent = || info(&pair.near).retransmissions;
        wait_until("the octet is sent again, and lost", || resent() > 0);
        out.write(&pair.near, 2_000);
        heal(&stage.far);
        read_all(&pair.far, &mut read[0], out.written);
        finish(&pair, [&mut out, &mut back], read);
    }
}

/// Nothing has to be lost: the route changes first, and the new place queues what comes until the connection is there.
#[test]
fn what_is_held_at_the_new_place_arrives() {
    let Some(stage) = Stage::new(true, &[]) else { return };
    let there = &stage.places[1];
    let mut pair = stage.connect(Opener::Near);
    let ([mut out, mut back], mut read) = (Writer::both(), [Vec::new(), Vec::new()]);
    back.write(&pair.far, 20_000);
    wait_for_unread(&pair.near, 20_000);
    let bound = there.run(|| NfQueue::bind(7, 1_024, 1 << 20)).expect("entered");
    let queue = match bound {
        Ok(queue) => queue,
        Err(error) => return midhop_testkit::skipped(format!("this takes NFQUEUE: {error}")),
    };
    for (name, priority) in [("lost", -400), ("held", -300)] {
        let chain = format!("chain in {{ type filter hook prerouting priority {priority}; }}");
        in_nft(there, &format!("table inet {name} {{\n {chain}\n}}"));
    }
    let hold = || Table::open("held")?.add_queue("in", 7, Unbound::Passes);
    there.run(hold).expect("entered").expect("a rule");
    stage.route_to(1);
    back.write(&pair.far, 10_000);
    let mut held = 0;
    wait_until("segments are held", || {
        let packets = queue.receive().unwrap_or_default();
        // Without the headers of IPv4 and of TCP with timestamps.
        held += packets.iter().map(|it| it.bytes.len() - 52).sum::<usize>();
        held >= 10_000
    });
    // From here on the far end retransmits in vain: what has passed this hook does not pass it again.
    in_nft(there, "add rule inet lost in meta l4proto tcp drop");
    stage.freeze(0);
    // No chain of the new place may be added or deleted meanwhile: what is queued goes on at the next chain by its number
    // (`nf_reinject`), or is dropped (`nf_queue_nf_hook_drop`).
    let mut moved = stage.rebuild(pair.near, 1, || queue.verdicts().pass_all().expect("a verdict"));
    moved.send_rest(&pair.far, &mut read[0]);
    pair.near = moved.near;
    wait_for_unread(&pair.near, 30_000);
    in_nft(there, "delete table inet lost; delete table inet held");
    finish(&pair, [&mut out, &mut back], read);
}
