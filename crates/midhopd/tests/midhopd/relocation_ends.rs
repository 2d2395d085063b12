//! Half-closed flows that have moved: each end arrives once, behind the last byte, though the new place dies.

use crate::program::{Running, Setup, log_of};
use crate::relocation::{ACCEPT, Place, move_all};
use crate::stage::{Family, ReadOnce, noise, queued, receive_all, send_all, until};
use crate::survival::{kill_data_plane, relayed};
use midhop_linux::tcp_info::TcpInfo;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::scope;

/// Unit: bytes. More than an end that does not read has room for, and less than a gateway has.
const SOME: usize = 180_000;
/// Unit: bytes. More than all queues between two ends have room for.
const MUCH: usize = 24 << 20;

/// Two places, and flows that move from the one to the other.
struct Moving {
    new: Setup,
    old: Setup,
    second: Running,
    _first: Running,
    listener: TcpListener,
    place: Place,
    /// Whether the end that ends its stream first is the server.
    from_server: bool,
}

impl Moving {
    fn set(family: Family, from_server: bool) -> Option<Self> {
        let place = Place::set()?;
        let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
        let [first, second] = place.start(&old, &new);
        let listener = place.stage.listen(family);
        Some(Self { new, old, second, _first: first, listener, place, from_server })
    }

    /// The end that ends its stream first, and the other one.
    fn flow(&self) -> (TcpStream, TcpStream) {
        let (client, server) = relayed(&self.place.stage, &self.listener);
        if self.from_server { (server, client) } else { (client, server) }
    }

    fn move_flows(&self, flows: u64) {
        move_all(&self.old, "new", flows);
        self.place.change_routes();
    }

    /// Kills the data plane of the new place, and waits until the next one has its flows.
    fn kill(&self) {
        kill_data_plane(&self.second);
        until("it has come up", || self.new.try_status().is_ok());
    }

    /// Waits until there are this many flows. All others have ended in order.
    fn are_left(&self, flows: u64) {
        until("the others have ended", || self.new.status().flows == flows);
        for (how, count) in self.new.status().ended_total {
            assert!(how == "fin" || count == 0, "{count} {how}: {}", log_of(&self.new));
        }
    }

    fn none_is_lost(&self) {
        let totals = self.new.status().orphaned_flows_total;
        assert_eq!(totals.get("lost"), Some(&0), "{totals:?}: {}", log_of(&self.new));
    }
}

fn is_over(end: &TcpStream) -> bool {
    TcpInfo::of(end).expect("information").is_closed()
}

/// Whether the other end's kernel has all of it, FIN included.
fn is_sent(end: &TcpStream) -> bool {
    queued::unacknowledged(end) == 0
}

/// One end has ended its stream before the flow moves, and this was passed on. The other one has answered and ended
/// after the move; some of that waits at the new place when its data plane is killed.
fn an_end_from_before_a_move_outlives_a_death(family: Family, from_server: bool) {
    let Some(moving) = Moving::set(family, from_server) else { return };
    let answer = noise(9, SOME);
    let flows = [moving.flow(), moving.flow(), moving.flow()];
    for (first, second) in &flows {
        send_all(first, b"a question");
        assert_eq!(receive_all(second), b"a question");
    }
    moving.move_flows(3);
    let [(first, second), (closed_by, closing), (waiting, mut late)] = flows;
    send_all(&second, &answer);
    send_all(&closing, &answer);
    until("their connections are over", || is_over(&second) && is_over(&closing));
    drop(closing);
    let unread = queued::unread(&first);
    assert!(unread < SOME, "all {unread} bytes have arrived, and nothing is at stake");
    moving.kill();
    moving.none_is_lost();
    assert!(receive_all(&first) == answer, "what was answered");
    moving.are_left(2);
    // Another death, while nothing but ends is left of the one, and everything of the other.
    moving.kill();
    assert!(receive_all(&closed_by) == answer, "what was answered");
    late.write_all(b"an answer").expect("writing");
    late.shutdown(Shutdown::Write).expect("ending");
    assert_eq!(receive_all(&waiting), b"an answer");
    moving.none_is_lost();
    moving.are_left(0);
}

#[test]
fn a_clients_end_from_before_a_move_outlives_a_death_ipv4() {
    an_end_from_before_a_move_outlives_a_death(Family::V4, false);
}

#[test]
fn a_clients_end_from_before_a_move_outlives_a_death_ipv6() {
    an_end_from_before_a_move_outlives_a_death(Family::V6, false);
}

#[test]
fn a_servers_end_from_before_a_move_outlives_a_death_ipv4() {
    an_end_from_before_a_move_outlives_a_death(Family::V4, true);
}

#[test]
fn a_servers_end_from_before_a_move_outlives_a_death_ipv6() {
    an_end_from_before_a_move_outlives_a_death(Family::V6, true);
}

/// Ends that have arrived behind bytes which nobody has read yet, when the flow moves.
fn what_waits_in_front_of_an_end_outlives_a_move_and_a_death(from_server: bool) {
    let Some(moving) = Moving::set(Family::V4, from_server) else { return };
    let (some, much) = (noise(5, SOME), noise(6, MUCH));
    let (one, both, large) = (moving.flow(), moving.flow(), moving.flow());
    // The gateway has these ends in a queue of its own, behind the bytes.
    for (first, _) in [&one, &both] {
        send_all(first, &some);
        until("the gateway has all of it", || is_sent(first));
    }
    scope(|scope| {
        scope.spawn(|| send_all(&both.1, &much));
        scope.spawn(|| send_all(&large.0, &much));
        until("bytes wait at the readers", || {
            [&both.0, &large.1].into_iter().all(|end| queued::unread(end) > 0)
        });
        moving.move_flows(3);
        moving.kill();
        moving.none_is_lost();
        let received = scope.spawn(|| receive_all(&both.0) == much);
        assert!(receive_all(&both.1) == some, "what one said");
        moving.kill();
        assert!(receive_all(&large.1) == much, "every byte arrives before the end does");
        assert!(received.join().expect("a reader"), "what the other said");
        assert!(receive_all(&one.1) == some, "every byte arrives before the end does");
    });
    for ((mut first, mut second), answer) in [(one, "an answer"), (large, "another")] {
        second.write_all(answer.as_bytes()).expect("writing");
        drop(second);
        assert_eq!(receive_all(&first), answer.as_bytes());
        assert_eq!(first.read_once(&mut [0]).expect("an end"), 0);
    }
    moving.none_is_lost();
    moving.are_left(0);
}

#[test]
fn what_waits_in_front_of_a_clients_end_outlives_a_move_and_a_death() {
    what_waits_in_front_of_an_end_outlives_a_move_and_a_death(false);
}

#[test]
fn what_waits_in_front_of_a_servers_end_outlives_a_move_and_a_death() {
    what_waits_in_front_of_an_end_outlives_a_move_and_a_death(true);
}
