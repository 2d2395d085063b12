//! Flows that move more than once.

use crate::flows::{Over, exchange_until, fill};
use crate::program::Setup;
use crate::relocation::{
    ACCEPT, LISTEN, Place, begin_to_move_to, move_all, outcome_of, relayed_bytes,
};
use crate::stage::{Family, noise, pass, queued, receive_all, send_all, until};
use crate::survival::relayed;
use midhop_linux::tcp_info::TcpInfo;
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::thread::scope;

const OLD: &str = "10.0.7.1:4433";

/// Two places of which each lets the other move flows there.
fn setups(place: &Place) -> [Setup; 2] {
    let setup = |name: &str, listen: &str, peer: &str, address: &str| {
        let own = place.authority.table(name, &format!("listen = \"{listen}\"\n"));
        Setup::new(&format!(
            "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n{own}[peers.{peer}]\naddress = \"{address}\"\n{ACCEPT}"
        ))
    };
    [setup("old", OLD, "new", LISTEN), setup("new", LISTEN, "old", OLD)]
}

fn flows_move_there_and_back(family: Family) {
    let Some(place) = Place::set() else { return };
    let [old, new] = setups(&place);
    let _running = place.start(&old, &new);
    until("both tunnels are open", || new.peer("old").tunnels > 0 && old.peer("new").tunnels > 0);
    let listener = place.stage.listen(family);
    let mut idle = relayed(&place.stage, &listener);
    let half_closed = [relayed(&place.stage, &listener), relayed(&place.stage, &listener)];
    let [(one, other), (third, fourth)] = &half_closed;
    // One that has passed on before, and one behind bytes that nobody reads.
    send_all(one, b"a question");
    assert_eq!(receive_all(other), b"a question");
    let some = noise(7, 180_000);
    send_all(fourth, &some);
    until("the gateway has all of it", || queued::unacknowledged(fourth) == 0);
    let busy: Vec<_> = (0..3).map(|_| relayed(&place.stage, &listener)).collect();
    let flows = 3 + busy.len() as u64;
    let over = AtomicBool::new(false);
    scope(|scope| {
        for (client, server) in &busy {
            scope.spawn(|| exchange_until(client, server, &over));
        }
        let _over = Over(&over);
        let journeys = [(&old, "new"), (&new, "old"), (&old, "new"), (&new, "old")];
        for (from, peer) in journeys {
            // What a flow has relayed is counted anew at each place.
            until("busy flows go on", || relayed_bytes(from) > 1 << 20);
            move_all(from, peer, flows);
            if peer == "new" { place.change_routes() } else { place.change_routes_back() }
        }
    });
    pass(&mut idle.0, &mut idle.1);
    assert!(receive_all(third) == some, "every byte arrives before the end does");
    for (from, to) in [(other, one), (third, fourth)] {
        send_all(from, b"an answer");
        assert_eq!(receive_all(to), b"an answer");
    }
    drop((idle, half_closed, busy));
    until("no flow is left", || old.status().flows == 0 && new.status().flows == 0);
    old.assert_no_errors();
    new.assert_no_errors();
}

#[test]
fn flows_move_there_and_back_ipv4() {
    flows_move_there_and_back(Family::V4);
}

#[test]
fn flows_move_there_and_back_ipv6() {
    flows_move_there_and_back(Family::V6);
}

#[test]
fn the_state_of_a_flow_that_is_full_does_not_grow_with_its_moves() {
    let Some(place) = Place::set() else { return };
    let [old, new] = setups(&place);
    let _running = place.start(&old, &new);
    until("both tunnels are open", || new.peer("old").tunnels > 0 && old.peer("new").tunnels > 0);
    let listener = place.stage.listen(Family::V4);
    let (client, server) = relayed(&place.stage, &listener);
    let mut sent = 0;
    let mut states = Vec::new();
    // The client does not read: all buffers on its way are filled each time.
    for (from, peer) in [(&old, "new"), (&new, "old")].into_iter().cycle().take(8) {
        // On a busy host what is full now may not be a moment later.
        until("all buffers are full", || {
            let more = fill(&server);
            sent += more;
            more == 0
        });
        states.push(moved_state(from, peer));
        if peer == "new" { place.change_routes() } else { place.change_routes_back() }
    }
    // Had the gateway offered more than its buffers take, this would wait to be sent again, for longer each time.
    until("the gateway has all that was sent", || unacknowledged(&server) == 0);
    let (first, last) = (states[0], states[7]);
    assert!(first > 1 << 20 && last < 2 * first, "{states:?}");
    server.shutdown(std::net::Shutdown::Write).expect("an end");
    assert_eq!(receive_all(&client).len(), sent, "every byte arrives");
    drop((client, server));
    old.assert_no_errors();
    new.assert_no_errors();
}

/// Unit: segments. What was sent and not acknowledged.
fn unacknowledged(socket: &TcpStream) -> u32 {
    TcpInfo::of(socket).expect("a TCP connection").unacknowledged
}

/// Moves the one flow there is, and returns the size of its state.
fn moved_state(from: &Setup, peer: &str) -> u64 {
    let mut state = 0;
    until("it has moved", || {
        let output = begin_to_move_to(peer, from, "all").wait_with_output().expect("an end");
        let outcome = outcome_of(&output);
        state = outcome.state_bytes;
        // On a busy host it may not be stopped in time.
        assert!(outcome.moved == 1 || outcome.stayed.contains_key("busy"), "{outcome:?}");
        outcome.moved == 1
    });
    state
}
