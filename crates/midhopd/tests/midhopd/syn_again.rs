//! A SYN with the addresses and ports of an existing flow: one that was sent twice, or that of a
//! client which has lost its state. RFC 9293 §3.10.7.4 and RFC 5961 §4 define the server's
//! response; through midhopd it is the same.

use crate::hand::{ACK, Hand, Odd, Place, RST, SYN, Segment, prepare};
use crate::pair::{Pair, REJECT};
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, nft, until};
use midhopd::data_plane::DataPlane;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The common options of a SYN: MSS 1200.
const MSS: [u8; 4] = [2, 4, 4, 0xb0];
const PORT: u16 = 33_000;
/// Number of flows whose SYN is sent many times at once.
const FLOWS: u16 = 8;
const SYNS: u32 = 30;

fn syn() -> Odd {
    Odd { options: MSS.into(), ..Odd::default() }
}

/// Both sides of the gateway, with rules that require a valid connection.
fn set() -> Option<Stage> {
    let stage = Stage::set()?;
    prepare(&stage);
    nft(&stage.gateway, "add table inet fw");
    nft(&stage.gateway, "add chain inet fw f { type filter hook forward priority 0; }");
    for hook in ["input", "output"] {
        nft(
            &stage.gateway,
            &format!("add chain inet fw {hook} {{ type filter hook {hook} priority 0; }}"),
        );
        nft(&stage.gateway, &format!("add rule inet fw {hook} ct state invalid drop"));
    }
    nft(&stage.gateway, "add rule inet fw f ct state invalid drop");
    Some(stage)
}

fn target(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("an address")
}

fn accepted(listener: &TcpListener, from: SocketAddr) -> TcpStream {
    let (server, peer) = listener.accept().expect("a connection");
    assert_eq!(peer, from, "the server sees its client");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    server
}

/// Bytes in both directions.
fn exchange(hand: &mut Hand, server: &mut TcpStream) {
    let before = hand.received.len();
    hand.send_data(b"ping", &Odd::default());
    let mut received = [0; 4];
    server.read_exact(&mut received).expect("bytes");
    assert_eq!(&received, b"ping");
    server.write_all(b"pong").expect("writing");
    hand.receive_data(before + 4);
    assert_eq!(&hand.received[before..], b"pong");
}

/// The response to a SYN that is not the first.
fn answer(hand: &Hand) -> Segment {
    let mut found = None;
    until("the SYN is answered", || {
        let segment = hand.listen(Duration::from_millis(50));
        found = segment.filter(|segment| segment.has(ACK) && segment.bytes.is_empty());
        found.is_some()
    });
    found.expect("it came")
}

fn settled(proxy: &DataPlane, flows: u64) {
    until("all flows have ended", || proxy.admission().flows() == 0);
    let split: u64 = proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum();
    assert_eq!(split, flows);
}

/// Its SYN arrives once more, late.
fn twice(family: Family, accept: Option<&str>) {
    let Some(stage) = set() else { return };
    let proxy = accept.map(|accept| stage.proxy(&format!("accept = \"{accept}\"\n")));
    let listener = stage.listen(family);
    let mut hand = Hand::new(&stage, Place::Client, family, PORT);
    let first = hand.next;
    hand.connect(target(&listener), &syn());
    let mut server = accepted(&listener, hand.own);
    exchange(&mut hand, &mut server);
    hand.send(SYN, first, b"", &syn());
    let segment = answer(&hand);
    assert!(!segment.has(SYN) && !segment.has(RST), "{segment:?}");
    assert_eq!(
        (segment.sequence, segment.acknowledged),
        (hand.expected, hand.next),
        "where it stands"
    );
    exchange(&mut hand, &mut server);
    hand.end();
    assert_eq!(server.read_once(&mut [0]).expect("an end"), 0);
    drop(server);
    hand.receive_end();
    if let Some(proxy) = proxy {
        settled(&proxy, 1);
    }
}

/// Number of packets that wait in the queues.
fn queued(stage: &Stage) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue");
    let queues = stage.gateway.run(read).expect("entering").expect("a kernel with queues");
    let waiting = |queue: &str| queue.split_whitespace().nth(2)?.parse::<u64>().ok();
    queues.lines().map(|queue| waiting(queue).unwrap_or_else(|| panic!("{queue}"))).sum()
}

/// Flows whose SYN is sent many times at once: some of these SYNs are processed when the flow has
/// begun. None may be processed when it has ended: it would open another flow, which keeps its
/// place until a long timeout.
fn flows_of_many_syns(stage: &Stage, listener: &TcpListener, accept: impl Fn(&Hand) -> TcpStream) {
    let family = if target(listener).is_ipv4() { Family::V4 } else { Family::V6 };
    for flow in 0..FLOWS {
        let mut hand = Hand::new(stage, Place::Client, family, PORT + flow);
        hand.other = target(listener);
        for _ in 0..SYNS {
            hand.send(SYN, hand.next, b"", &syn());
        }
        hand.connect(target(listener), &syn());
        let mut server = accept(&hand);
        exchange(&mut hand, &mut server);
        until("every SYN was looked at", || queued(stage) == 0);
        hand.end();
        assert_eq!(server.read_once(&mut [0]).expect("an end"), 0);
        drop(server);
        hand.receive_end();
    }
}

fn often(family: Family, accept: Option<&str>) {
    let Some(stage) = set() else { return };
    let proxy = accept.map(|accept| stage.proxy(&format!("accept = \"{accept}\"\n")));
    let listener = stage.listen(family);
    flows_of_many_syns(&stage, &listener, |hand| accepted(&listener, hand.own));
    if let Some(proxy) = proxy {
        settled(&proxy, u64::from(FLOWS));
    }
}

/// A client that starts again has lost its flow, and opens another one from the same port.
fn anew(family: Family, accept: Option<&str>) {
    let Some(stage) = set() else { return };
    let proxy = accept.map(|accept| stage.proxy(&format!("accept = \"{accept}\"\n")));
    let listener = stage.listen(family);
    let mut hand = Hand::new(&stage, Place::Client, family, PORT);
    hand.connect(target(&listener), &syn());
    let mut server = accepted(&listener, hand.own);
    exchange(&mut hand, &mut server);
    let mut again = Hand::new(&stage, Place::Client, family, PORT);
    again.other = hand.other;
    again.next = 70_000_000;
    again.send(SYN, again.next, b"", &syn());
    let segment = answer(&again);
    assert!(!segment.has(SYN) && !segment.has(RST), "{segment:?}");
    assert_eq!(segment.acknowledged, hand.next, "where the old one stands");
    // It resets the connection that it does not know.
    again.send(RST, segment.acknowledged, b"", &Odd::default());
    let ended = server.read_once(&mut [0]).expect_err("it is reset");
    assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset);
    again.connect(target(&listener), &syn());
    let mut server = accepted(&listener, again.own);
    exchange(&mut again, &mut server);
    again.end();
    assert_eq!(server.read_once(&mut [0]).expect("an end"), 0);
    drop(server);
    again.receive_end();
    if let Some(proxy) = proxy {
        settled(&proxy, 2);
    }
}

fn all(case: impl Fn(Family, Option<&str>), family: Family) {
    for accept in [None, Some("after-connect"), Some("early"), Some("learned")] {
        println!("{accept:?}");
        case(family, accept);
    }
}

#[test]
fn a_syn_that_comes_late_once_more_disturbs_nothing_ipv4() {
    all(twice, Family::V4);
}

#[test]
fn a_syn_that_comes_late_once_more_disturbs_nothing_ipv6() {
    all(twice, Family::V6);
}

#[test]
fn a_syn_that_comes_many_times_opens_one_flow_ipv4() {
    all(often, Family::V4);
}

#[test]
fn a_syn_that_comes_many_times_opens_one_flow_ipv6() {
    all(often, Family::V6);
}

#[test]
fn a_client_that_forgot_its_flow_opens_another_ipv4() {
    all(anew, Family::V4);
}

#[test]
fn a_client_that_forgot_its_flow_opens_another_ipv6() {
    all(anew, Family::V6);
}

/// The far side of the flow is in a tunnel: the near end handles the repeated SYNs.
#[test]
fn a_syn_of_a_flow_in_a_tunnel_opens_one_flow_however_often_it_comes() {
    let Some(stage) = set() else { return };
    let pair = Pair::new("", "", REJECT);
    let _daemons = pair.start(&stage);
    until("there is a tunnel", || pair.tunnels_of_near(&stage)[0] > 0);
    let listener = stage.listen(Family::V4);
    flows_of_many_syns(&stage, &listener, |_| {
        let (server, _far_end) = listener.accept().expect("a connection");
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        server
    });
}
