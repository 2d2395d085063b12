//! Moves while packets are lost, while rules change, and while the processes of either place die.

use crate::flows::{Over, exchange, exchange_until};
use crate::program::{Running, Setup, log_of};
use crate::relocation::{
    ACCEPT, Place, begin_to_move, move_all, moved, outcome_of, relayed_bytes, stands_still,
};
use crate::stage::{Family, nft, noise, queued, until};
use crate::survival::relayed;
use midhop_linux::tcp_info::TcpInfo;
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::thread::scope;

/// Unit: bytes. Messages of such lengths are lost.
const LOST: [usize; 2] = [1000, 1200];

/// From now on, packets with a message of this length do not arrive.
fn lose(host: &midhop_testbed::namespace::Namespace, hook: &str, bytes: usize) {
    let most = bytes + 100;
    nft(
        host,
        &format!(
            "table inet lossy {{\n chain c {{ type filter hook {hook} priority -400; \
             meta l4proto tcp meta length {bytes}-{most} drop; }}\n}}"
        ),
    );
}

/// Both connections have a hole when the flow moves: the far ends of both have acknowledged, or sent, what comes behind
/// it.
fn holes_are_filled_after_a_move(family: Family) {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(family);
    let (client, server) = relayed(&place.stage, &listener);
    lose(&place.stage.gateway, "prerouting", LOST[0]);
    lose(&place.stage.client, "input", LOST[1]);
    let messages = |seed: u64, first: usize| {
        let rest = (1..6).map(move |n| noise(seed + n, 400));
        std::iter::once(noise(seed, first)).chain(rest).collect::<Vec<_>>()
    };
    let (up, down) = (messages(10, LOST[0]), messages(20, LOST[1]));
    for message in &up {
        (&client).write_all(message).expect("writing");
    }
    // The gateway sends each message in a segment of its own.
    for message in &down {
        let before = relayed_bytes(&old);
        (&server).write_all(message).expect("writing");
        until("it is relayed", || relayed_bytes(&old) >= before + message.len() as u64);
    }
    let sacked = || TcpInfo::of(&client).expect("information").sacked;
    until("the gateway has what comes behind the hole", || sacked() > 0);
    let held = || TcpInfo::of(&client).expect("information").out_of_order;
    until("the client has what comes behind the hole", || held() > 0);
    move_all(&old, "new", 1);
    place.change_routes();
    nft(&place.stage.client, "delete table inet lossy");
    for ((mut to, messages), from) in [(&server, up), (&client, down)].into_iter().zip("cs".chars())
    {
        let mut received = vec![0; messages.iter().map(Vec::len).sum()];
        to.read_exact(&mut received).expect("reading");
        assert!(received == messages.concat(), "what {from} sent");
    }
    exchange(&client, &server, 300_000);
}

#[test]
fn holes_are_filled_after_a_move_ipv4() {
    holes_are_filled_after_a_move(Family::V4);
}

#[test]
fn holes_are_filled_after_a_move_ipv6() {
    holes_are_filled_after_a_move(Family::V6);
}

#[test]
fn busy_flows_move_over_links_that_lose_packets() {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let flows: Vec<_> = (0..6).map(|_| relayed(&place.stage, &listener)).collect();
    let hosts = [&place.stage.client, &place.stage.server, &place.stage.gateway, &place.second];
    for host in hosts {
        // The tunnel's datagrams are not concerned.
        nft(
            host,
            "table inet lossy {\n chain c { type filter hook prerouting priority -400; \
             meta l4proto tcp numgen random mod 100 < 4 drop; }\n}",
        );
    }
    let over = AtomicBool::new(false);
    scope(|scope| {
        for (client, server) in &flows {
            scope.spawn(|| exchange_until(client, server, &over));
        }
        let _over = Over(&over);
        until("the transfers have begun", || relayed_bytes(&old) > 2 << 20);
        move_all(&old, "new", 6);
        place.change_routes();
        until("they go on", || relayed_bytes(&new) > 2 << 20);
        for host in hosts {
            nft(host, "delete table inet lossy");
        }
    });
}

/// Another configuration, which needs another table.
fn reload(running: &Running, setup: &Setup, config: &str) {
    let before = setup.reloads();
    setup.rewrite(config);
    running.signal(Signal::SIGHUP);
    until("it is applied", || setup.reloads() != before);
    assert_eq!(setup.reloads(), [before[0] + 1, before[1]], "{}", log_of(setup));
}

fn config_of(setup: &Setup) -> String {
    std::fs::read_to_string(setup.config()).expect("a configuration")
}

const RULE: &str = "\n[[rules]]\nmatch = { destination_port = 81 }\naction = \"reject\"\n";

fn written_to_each(flows: &[(TcpStream, TcpStream)]) {
    for (client, server) in flows {
        (&*client).write_all(b"said to the server").expect("writing");
        (&*server).write_all(b"said to the client").expect("writing");
    }
}

fn is_received_by_each(flows: &[(TcpStream, TcpStream)]) {
    let mut received = [0; 18];
    for (client, server) in flows {
        (&*server).read_exact(&mut received).expect("reading");
        assert_eq!(&received, b"said to the server");
        (&*client).read_exact(&mut received).expect("reading");
        assert_eq!(&received, b"said to the client");
    }
}

/// The old place reads its configuration again while its flows stand still; their ends go on to send.
#[test]
fn a_reload_of_the_old_place_leaves_flows_still() {
    // Far enough for the new place to be stopped between the announcement and the states.
    let Some(place) = Place::set_apart(Some("500 ms")) else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let [first, second] = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let flows: Vec<_> = (0..4).map(|_| relayed(&place.stage, &listener)).collect();
    let moving = begin_to_move(&old, "all");
    until("the flows are announced", || stands_still(&place.second, Family::V4));
    // The answer leaves, and the states come a second later.
    std::thread::sleep(std::time::Duration::from_millis(300));
    second.stop_data_plane();
    until("the flows stand still", || still_flows(&place, Family::V4) == 4);
    reload(&first, &old, &format!("{}{RULE}", config_of(&old)));
    written_to_each(&flows);
    // What is acknowledged here is lost if the flow moves.
    let is_known = |end: &TcpStream| {
        let retransmits = TcpInfo::of(end).expect("information").retransmissions > 0;
        retransmits || queued::unacknowledged(end) == 0
    };
    until("packets were dropped, or answered", || {
        flows.iter().all(|(client, server)| is_known(client) && is_known(server))
    });
    second.signal_data_plane(Signal::SIGCONT);
    let output = moving.wait_with_output().expect("an end");
    let outcome = outcome_of(&output);
    assert_eq!(outcome.lost, 0, "{outcome:?}");
    if outcome.moved > 0 {
        assert_eq!(outcome.moved, 4, "they are moved together: {outcome:?}");
        place.change_routes();
    }
    is_received_by_each(&flows);
    for (client, server) in &flows {
        exchange(client, server, 300_000);
    }
}

/// How many flows stand still at the old place.
fn still_flows(place: &Place, family: Family) -> usize {
    let set = if family == Family::V4 { "still_out4" } else { "still_out6" };
    let mut list = place.stage.gateway.command("nft");
    list.args(["list", "set", "inet", "midhop_main", set]);
    let listed = String::from_utf8_lossy(&list.output().expect("nft starts").stdout).into_owned();
    listed.matches(" timeout ").count() / 2
}

/// The new place reads its configuration again while it has flows that are not committed. The table of its peer stays as
/// it is: another one would close the tunnel.
#[test]
fn a_reload_of_the_new_place_leaves_flows_still() {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let [first, second] = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let flows: Vec<_> = (0..4).map(|_| relayed(&place.stage, &listener)).collect();
    let moving = begin_to_move(&old, "all");
    until("a flow is restored there", || {
        stands_still(&place.second, Family::V4) || moved(&new)[1] > 0
    });
    first.stop_data_plane();
    reload(&second, &new, &format!("{}{RULE}", config_of(&new)));
    // They would be answered from here already.
    place.change_routes();
    written_to_each(&flows);
    first.signal_data_plane(Signal::SIGCONT);
    let output = moving.wait_with_output().expect("an end");
    let outcome = outcome_of(&output);
    assert_eq!(outcome.lost, 0, "{outcome:?}");
    if outcome.moved == 0 {
        // On a busy host it came too late.
        place.change_routes_back();
    }
    is_received_by_each(&flows);
    for (client, server) in &flows {
        exchange(client, server, 300_000);
    }
}
