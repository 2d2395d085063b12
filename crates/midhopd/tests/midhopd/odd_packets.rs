//! Correct but unusual packets: fragments, options, extension headers, urgent data. What works
//! without midhopd works with it.
//!
//! Each exchange is tried without the daemon first, so that what fails with it fails because of it.

use crate::ends::Ends;
use crate::hand::{ACK, CWR, ECE, Hand, Odd, PSH, Place, RST, SYN, prepare};
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, noise, receive_all, send_all, until};
use midhopd::data_plane::DataPlane;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// The form of a flow's packets.
#[derive(Debug, Clone, Default)]
struct Shape {
    name: &'static str,
    syn: Odd,
    data: Odd,
}

/// The common options of a SYN: MSS 1200.
const MSS: [u8; 4] = [2, 4, 4, 0xb0];

fn shape(name: &'static str, syn: Odd, data: Odd) -> Shape {
    Shape { name, syn, data }
}

fn both(name: &'static str, odd: &Odd) -> Shape {
    shape(name, Odd { options: MSS.into(), ..odd.clone() }, odd.clone())
}

/// Forms that both families have.
fn segments() -> Vec<Shape> {
    let plain = Odd::default;
    let mss = || Odd { options: MSS.into(), ..Odd::default() };
    let options = |options: &[u8]| Odd { options: options.into(), ..Odd::default() };
    // Experimental options, unassigned ones, and one whose length exceeds the header.
    let unknown = [254, 4, 0xde, 0xad, 77, 2, 1, 1];
    // The first fragment must contain the whole TCP header except for its options (RFC 7112).
    let long = [&MSS[..], &[1; 20]].concat();
    vec![
        shape("plain", mss(), plain()),
        shape("no MSS", plain(), plain()),
        shape("unknown options", options(&[&MSS[..], &unknown].concat()), options(&unknown)),
        shape("an option that is cut", options(&[2, 4, 4, 0xb0, 253, 40, 1, 2]), plain()),
        shape("ECN", Odd { flags: ECE | CWR, ..mss() }, Odd { class: 3, ..plain() }),
        shape("a SYN that is ECT", Odd { class: 2, flags: ECE | CWR, ..mss() }, plain()),
        shape("a SYN in fragments", Odd { fragments: Some(24), ..options(&long) }, plain()),
        shape("data in fragments", mss(), Odd { fragments: Some(400), ..plain() }),
        shape(
            "a SYN that is its only fragment",
            Odd { fragments: Some(1 << 16), ..mss() },
            plain(),
        ),
    ]
}

fn shapes(family: Family) -> Vec<Shape> {
    let mut shapes = segments();
    if family == Family::V4 {
        let options = |bytes: &[u8]| Odd { ip_options: bytes.into(), ..Odd::default() };
        let tiny = Odd { options: MSS.into(), fragments: Some(8), ..Odd::default() };
        shapes.extend([
            shape("a SYN in tiny fragments", tiny, Odd::default()),
            both("router alert", &options(&[0x94, 4, 0, 0])),
            both("time stamps", &options(&[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            both("record of the route", &options(&[7, 7, 4, 0, 0, 0, 0, 0])),
            both("options that do nothing", &options(&[1, 1, 1, 0])),
            both("forty bytes of options", &options(&[1; 40])),
            both(
                "options and fragments",
                &Odd { fragments: Some(16), ..options(&[0x94, 4, 0, 0]) },
            ),
        ]);
    } else {
        let padding = |kind: u8| (kind, vec![0, 0, 1, 4, 0, 0, 0, 0]);
        let headers = |kinds: &[u8]| Odd {
            headers: kinds.iter().map(|kind| padding(*kind)).collect(),
            ..Odd::default()
        };
        let alert = Odd { headers: vec![(0, vec![0, 0, 5, 2, 0, 0, 1, 0])], ..Odd::default() };
        shapes.extend([
            both("hop-by-hop options", &headers(&[0])),
            both("router alert", &alert),
            both("destination options", &headers(&[60])),
            both("hop-by-hop and destination options", &headers(&[0, 60])),
            both("two destination options", &headers(&[60, 60])),
            both("options and fragments", &Odd { fragments: Some(24), ..headers(&[0]) }),
        ]);
    }
    shapes
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

/// Exchanges bytes both ways in packets of this form, and both ends end in order.
fn exchange(stage: &Stage, family: Family, listener: &TcpListener, port: u16, shape: &Shape) {
    let mut hand = Hand::new(stage, Place::Client, family, port);
    hand.connect(target(listener), &shape.syn);
    let mut server = accepted(listener, hand.own);
    let (up, down) = (noise(u64::from(port), 900), noise(7, 5000));
    for piece in up.chunks(300) {
        hand.send_data(piece, &shape.data);
    }
    let mut received = vec![0; up.len()];
    server.read_exact(&mut received).expect(shape.name);
    assert!(received == up, "{}: other bytes came", shape.name);
    server.write_all(&down).expect("writing");
    hand.receive_data(down.len());
    assert!(hand.received == down, "{}: other bytes came back", shape.name);
    hand.end();
    assert_eq!(server.read_once(&mut [0]).expect("an end"), 0, "{}", shape.name);
    drop(server);
    hand.receive_end();
}

fn splits(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum()
}

fn settled(proxy: &DataPlane) {
    until("all flows have ended", || proxy.admission().flows() == 0);
    until("no buffer is held", || proxy.budget().held() == 0);
}

/// Tries all forms without the daemon and with it.
fn all(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    prepare(&stage);
    let listener = stage.listen(family);
    let mut port = 30_000;
    for shape in shapes(family) {
        println!("{} without midhopd", shape.name);
        port += 1;
        exchange(&stage, family, &listener, port, &shape);
    }
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    for shape in shapes(family) {
        port += 1;
        let before = splits(&proxy);
        exchange(&stage, family, &listener, port, &shape);
        println!("{} with it: {} split", shape.name, splits(&proxy) - before);
        assert_eq!(splits(&proxy), before + 1, "{}: it is split as others are", shape.name);
    }
    settled(&proxy);
}

#[test]
fn odd_packets_are_carried_as_without_it_ipv4() {
    all(Family::V4, "after-connect");
}

#[test]
fn odd_packets_are_carried_as_without_it_ipv6() {
    all(Family::V6, "after-connect");
}

#[test]
fn odd_packets_are_carried_as_without_it_early_ipv4() {
    all(Family::V4, "early");
}

#[test]
fn odd_packets_are_carried_as_without_it_early_ipv6() {
    all(Family::V6, "early");
}

/// The same, from a server whose packets have this form.
fn answer(stage: &Stage, family: Family, port: u16, shape: &Shape) {
    let mut hand = Hand::new(stage, Place::Server, family, port);
    let target = hand.own;
    let (up, down) = (noise(9, 5000), noise(u64::from(port), 900));
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            // ECN depends on the client's request; the SYN-ACK does not use it.
            hand.accept_oddly(&Odd { flags: 0, ..shape.syn.clone() });
            for piece in down.chunks(300) {
                hand.send_data(piece, &shape.data);
            }
            hand.receive_data(up.len());
            assert!(hand.received == up, "{}: other bytes came", shape.name);
            hand.end();
            hand.receive_end();
        });
        let mut client = stage.connect(target).expect(shape.name);
        let mut received = vec![0; down.len()];
        client.read_exact(&mut received).expect(shape.name);
        assert!(received == down, "{}: other bytes came back", shape.name);
        client.write_all(&up).expect("writing");
        assert_eq!(client.read_once(&mut [0]).expect("an end"), 0, "{}", shape.name);
        drop(client);
        served.join().expect(shape.name);
    });
}

fn all_from_servers(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    prepare(&stage);
    let mut port = 35_000;
    for shape in shapes(family) {
        println!("{} without midhopd", shape.name);
        port += 1;
        answer(&stage, family, port, &shape);
    }
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    for shape in shapes(family) {
        port += 1;
        let before = splits(&proxy);
        answer(&stage, family, port, &shape);
        println!("{} with it: {} split", shape.name, splits(&proxy) - before);
        assert_eq!(splits(&proxy), before + 1, "{}: it is split as others are", shape.name);
    }
    settled(&proxy);
}

#[test]
fn odd_answers_are_carried_as_without_it_ipv4() {
    all_from_servers(Family::V4, "after-connect");
}

#[test]
fn odd_answers_are_carried_as_without_it_ipv6() {
    all_from_servers(Family::V6, "after-connect");
}

/// A SYN with a wrong checksum opens nothing: the content of the next SYN counts.
fn broken_syn(family: Family) {
    let Some(stage) = Stage::set() else { return };
    prepare(&stage);
    let listener = stage.listen(family);
    let proxies = [None, Some("after-connect"), Some("early")];
    for (port, accept) in (31_000..).zip(proxies) {
        let proxy = accept.map(|accept| stage.proxy(&format!("accept = \"{accept}\"\n")));
        let mut hand = Hand::new(&stage, Place::Client, family, port);
        hand.other = target(&listener);
        let odd = Odd { options: MSS.into(), bad_checksum: true, ..Odd::default() };
        hand.send(SYN, hand.next, b"", &odd);
        hand.next += 5000;
        // `connect` checks which SYN was answered.
        hand.connect(target(&listener), &Odd { bad_checksum: false, ..odd.clone() });
        let mut server = accepted(&listener, hand.own);
        hand.send(ACK | PSH, hand.next, b"evil", &Odd { options: Vec::new(), ..odd });
        hand.send_data(b"good", &Odd::default());
        let mut received = [0; 4];
        server.read_exact(&mut received).expect("bytes");
        assert_eq!(&received, b"good", "{accept:?}");
        hand.end();
        drop(server);
        hand.receive_end();
        if let Some(proxy) = proxy {
            settled(&proxy);
        }
    }
}

#[test]
fn a_syn_with_a_bad_checksum_opens_nothing_ipv4() {
    broken_syn(Family::V4);
}

#[test]
fn a_syn_with_a_bad_checksum_opens_nothing_ipv6() {
    broken_syn(Family::V6);
}

/// Data in a SYN is taken once, and overlapping segments form one stream.
fn overlapping(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    prepare(&stage);
    let listener = stage.listen(family);
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    let mut hand = Hand::new(&stage, Place::Client, family, 32_000);
    let sent = noise(3, 4000);
    hand.other = target(&listener);
    let odd = Odd { options: MSS.into(), ..Odd::default() };
    let first = hand.next;
    // There is no cookie for this data, so it has to be sent again.
    hand.send(SYN, first, &sent[..400], &odd);
    hand.connect(target(&listener), &odd);
    let mut server = accepted(&listener, hand.own);
    let begin = hand.next;
    let at = |offset: usize| begin.wrapping_add(offset as u32);
    let none = Odd::default();
    // Out of order, twice, and overlapping.
    for (from, to) in [(3000, 4000), (500, 1500), (1000, 2000), (500, 1200), (1900, 3100)] {
        hand.send(ACK | PSH, at(from), &sent[from..to], &none);
    }
    hand.send_data_at(begin, &sent[..600], &none);
    hand.next = at(sent.len());
    let mut received = vec![0; sent.len()];
    server.read_exact(&mut received).expect("bytes");
    assert!(received == sent, "other bytes came");
    hand.end();
    assert_eq!(server.read_once(&mut [0]).expect("an end"), 0);
    drop(server);
    hand.receive_end();
    assert_eq!(splits(&proxy), 1);
    settled(&proxy);
}

#[test]
fn overlapping_segments_are_one_stream_ipv4() {
    overlapping(Family::V4, "after-connect");
}

#[test]
fn overlapping_segments_are_one_stream_ipv6() {
    overlapping(Family::V6, "early");
}

/// Urgent bytes stay in their place in the stream: with little data, and in the middle of much.
fn urgent(family: Family, bytes: usize) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    let flow = stage.flow(&listener);
    send_urgently(&flow, bytes);
    assert_eq!(splits(&proxy), 1);
    drop(flow);
    settled(&proxy);
}

fn send_urgently((client, server): &(TcpStream, TcpStream), bytes: usize) {
    for (from, to) in [(client, server), (server, client)] {
        let sent = noise(5, bytes);
        std::thread::scope(|scope| {
            let received = scope.spawn(|| receive_all(to));
            let mut from = from;
            let (first, second) = sent.split_at(bytes / 2);
            from.write_all(first).expect("writing");
            let socket = socket2::SockRef::from(&from);
            assert_eq!(socket.send_out_of_band(b"!").expect("an urgent byte"), 1);
            send_all(from, second);
            let received = received.join().expect("hearing");
            let whole = [first, b"!", second].concat();
            assert_eq!(received.len(), whole.len(), "bytes are missing");
            assert!(received == whole, "other bytes came");
        });
    }
}

/// The same through a tunnel.
#[test]
fn urgent_bytes_stay_in_the_stream_of_a_tunnel() {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, Family::V4, "");
    let listener = stage.listen(Family::V4);
    for bytes in [1000, 5_000_000] {
        send_urgently(&stage.flow(&listener), bytes);
    }
    assert_eq!(ends.sums(|ledger| &ledger.flows)[1], 2, "they went by the tunnel");
    settled(&ends.near);
    settled(&ends.far);
}

#[test]
fn urgent_bytes_stay_in_the_stream_ipv4() {
    urgent(Family::V4, 1000);
}

#[test]
fn urgent_bytes_stay_in_the_stream_ipv6() {
    urgent(Family::V6, 1000);
}

#[test]
fn an_urgent_byte_in_the_middle_of_much_stops_nothing_ipv4() {
    urgent(Family::V4, 20_000_000);
}

#[test]
fn an_urgent_byte_in_the_middle_of_much_stops_nothing_ipv6() {
    urgent(Family::V6, 20_000_000);
}

/// Both ends open the connection at the same time, and their SYNs cross.
fn at_once(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    prepare(&stage);
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    let mut near = Hand::new(&stage, Place::Client, family, 33_000);
    let mut far = Hand::new(&stage, Place::Server, family, 34_000);
    let odd = Odd { options: MSS.into(), ..Odd::default() };
    far.next = 7_000_000;
    near.other = far.own;
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let odd = Odd { options: MSS.into(), ..Odd::default() };
            far.wait_for_syn();
            // First as if the other SYN had not arrived yet, then as if it arrived after its own.
            far.send(SYN, far.next, b"", &odd);
            let first = far.next;
            loop {
                let segment = far.listen(PATIENCE).expect("an answer to its SYN");
                assert!(!segment.has(RST), "a reset");
                if segment.has(ACK) && segment.acknowledged == first.wrapping_add(1) {
                    break;
                }
            }
            far.send(SYN | ACK, first, b"", &odd);
            far.next = first.wrapping_add(1);
            far.acknowledge();
            far.receive_data(4);
            assert_eq!(far.received, b"ping");
            far.send_data(b"pong", &Odd::default());
            far.receive_end();
            far.end();
        });
        near.connect(near.other, &odd);
        near.send_data(b"ping", &Odd::default());
        near.receive_data(4);
        assert_eq!(near.received, b"pong");
        near.end();
        near.receive_end();
        far.join().expect("the far end");
    });
    settled(&proxy);
}

#[test]
fn ends_that_open_at_once_are_connected_ipv4() {
    at_once(Family::V4, "after-connect");
}

#[test]
fn ends_that_open_at_once_are_connected_ipv6() {
    at_once(Family::V6, "after-connect");
}

#[test]
fn ends_that_open_at_once_are_connected_early_ipv4() {
    at_once(Family::V4, "early");
}
