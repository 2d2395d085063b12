//! IPv6 extension headers in front of TCP that a proxy's socket might not accept: routing headers
//! of each type, with and without segments left, and authentication. Such flows pass by, packet for
//! packet as their ends sent them, unless a rule rejects them.
//!
//! Both ends do without a kernel, so no header type depends on a kernel's configuration.

use crate::hand::{
    AUTHENTICATION, DESTINATION, HOP_BY_HOP, Hand, Odd, Place, ROUTING, RST, SYN, address, prepare,
};
use crate::stage::{Family, PATIENCE, Stage, nft, until};
use crate::strangers::counter;
use midhopd::data_plane::DataPlane;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::thread;

/// The common options of a SYN: MSS 1200.
const MSS: [u8; 4] = [2, 4, 4, 0xb0];
/// The final destination of packets with segments left.
const BEYOND: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, 0, 7);

/// Extension headers in front of TCP.
#[derive(Debug, Clone)]
struct Front {
    name: &'static str,
    headers: Vec<(u8, Vec<u8>)>,
    beyond: Option<IpAddr>,
}

impl Front {
    fn new(name: &'static str, headers: Vec<(u8, Vec<u8>)>) -> Self {
        Self { name, headers, beyond: None }
    }

    /// A routing header (RFC 8200 §4.4) with one address, and this many segments left.
    fn routed(name: &'static str, kind: u8, stops: u8) -> Self {
        let mut header = vec![0, 2, kind, stops, 0, 0, 0, 0];
        header.extend(BEYOND.octets());
        let beyond = (stops > 0).then_some(BEYOND.into());
        Self { name, headers: vec![(ROUTING, header)], beyond }
    }

    fn odd(&self, options: &[u8]) -> Odd {
        let Self { headers, beyond, .. } = self.clone();
        Odd { headers, beyond, options: options.into(), ..Odd::default() }
    }

    fn is_routed(&self) -> bool {
        self.headers.iter().any(|(kind, _)| *kind == ROUTING)
    }
}

fn fronts() -> Vec<Front> {
    let padding = |kind: u8| (kind, vec![0, 0, 1, 4, 0, 0, 0, 0]);
    let routing = |kind: u8| Front::routed("", kind, 0).headers.remove(0);
    // Without addresses, RFC 5095 lets it pass even as type 0.
    let empty = (ROUTING, vec![0, 0, 0, 0, 0, 0, 0, 0]);
    // An index, a number, and a value that nobody here can verify (RFC 4302 §2).
    let authentication = (AUTHENTICATION, [&[0, 4, 0, 0][..], &[7; 20]].concat());
    vec![
        Front::new("an empty routing header", vec![empty]),
        Front::routed("type 0, no stop ahead", 0, 0),
        Front::routed("type 0, a stop ahead", 0, 1),
        Front::routed("type 2, no stop ahead", 2, 0),
        Front::routed("type 2, a stop ahead", 2, 1),
        Front::routed("type 3, no stop ahead", 3, 0),
        Front::routed("type 3, a stop ahead", 3, 1),
        Front::routed("type 4, no stop ahead", 4, 0),
        Front::routed("type 4, a stop ahead", 4, 1),
        Front::routed("of no known type, no stop ahead", 200, 0),
        Front::routed("of no known type, a stop ahead", 200, 1),
        Front::new("a routing header behind others", vec![padding(0), padding(60), routing(4)]),
        Front::new("a routing header before others", vec![routing(4), padding(60)]),
        Front::new("authentication", vec![authentication.clone()]),
        Front::new("authentication behind others", vec![padding(0), authentication]),
    ]
}

/// The headers as they arrive: each has the number of the next.
fn arriving(front: &Front) -> Vec<(u8, Vec<u8>)> {
    const TCP: u8 = 6;
    let kinds = front.headers.iter().skip(1).map(|(kind, _)| *kind).chain([TCP]);
    let mut headers = front.headers.clone();
    headers.iter_mut().zip(kinds).for_each(|((_, header), next)| header[0] = next);
    headers
}

/// A connection whose client puts these headers in front of every segment.
fn exchange(stage: &Stage, port: u16, front: &Front) {
    let mut near = Hand::new(stage, Place::Client, Family::V6, port);
    let mut far = Hand::new(stage, Place::Server, Family::V6, port);
    let (name, to) = (front.name, far.own);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            let syn = far.wait_for_syn();
            assert_eq!(syn.headers, arriving(front), "{name}: other headers came");
            assert_eq!(syn.from, SocketAddr::new(address(Place::Client, Family::V6), port));
            far.answer(&Odd { options: MSS.into(), ..Odd::default() });
            far.receive_data(900);
            assert_eq!(far.received, [9; 900], "{name}");
            far.end();
            far.receive_end();
        });
        near.connect(to, &front.odd(&MSS));
        near.send_data(&[9; 900], &front.odd(&[]));
        near.receive_end();
        near.end();
        served.join().expect(name);
    });
}

fn splits(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum()
}

fn routed(proxy: &DataPlane) -> u64 {
    proxy.passed().expect("it intercepts").total()["routing_header"]
}

fn pass_untouched(accept: &str) {
    let Some(stage) = Stage::set() else { return };
    prepare(&stage);
    let mut port = 36_000;
    for front in fronts() {
        println!("{} without midhopd", front.name);
        port += 1;
        exchange(&stage, port, &front);
    }
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    for front in fronts() {
        println!("{} with it", front.name);
        port += 1;
        let before = routed(&proxy);
        exchange(&stage, port, &front);
        assert_eq!(splits(&proxy), 0, "{}: it passes by", front.name);
        assert_eq!(routed(&proxy) > before, front.is_routed(), "{}: it is counted", front.name);
    }
}

#[test]
fn routed_and_authenticated_flows_pass_untouched() {
    pass_untouched("after-connect");
}

#[test]
fn routed_and_authenticated_flows_pass_untouched_early() {
    pass_untouched("early");
}

/// A flow that a rule rejects does not pass because of the headers in front of it.
#[test]
fn a_rule_that_rejects_holds_behind_all_extension_headers() {
    let Some(stage) = Stage::set() else { return };
    prepare(&stage);
    nft(
        &stage.server,
        "table inet seen { counter syns { }; chain c { type filter hook prerouting priority -500; \
         tcp flags & (fin|syn|rst|ack) == syn counter name syns; }; }",
    );
    let seen = || counter(&stage.server, "seen", "syns");
    let padding = |kind: u8| (kind, vec![0, 0, 1, 4, 0, 0, 0, 0]);
    // An authentication header belongs to IPsec, whose flows match no rule of the firewall or of
    // the daemon.
    let is_ipsec = |front: &Front| front.headers.iter().any(|(kind, _)| *kind == AUTHENTICATION);
    let mut fronts: Vec<Front> = fronts().into_iter().filter(|it| !is_ipsec(it)).collect();
    fronts.extend([
        Front::new("hop-by-hop options", vec![padding(HOP_BY_HOP)]),
        Front::new("destination options", vec![padding(DESTINATION)]),
        Front::new("both", vec![padding(HOP_BY_HOP), padding(DESTINATION)]),
    ]);
    let mut hand = Hand::new(&stage, Place::Client, Family::V6, 37_000);
    hand.other = SocketAddr::new(address(Place::Server, Family::V6), 80);
    let send = |hand: &mut Hand, front: &Front| {
        // Another flow each time, of which nothing is known.
        hand.own.set_port(hand.own.port() + 1);
        hand.send(SYN, hand.next, b"", &front.odd(&MSS));
    };
    for front in &fronts {
        let before = seen();
        send(&mut hand, front);
        until(front.name, || seen() == before + 1);
    }
    let before = seen();
    let rule = "[[rules]]\nmatch.destination_port = 80\naction = \"reject\"\n";
    let _proxy = stage.proxy(&format!("[daemon]\nworkers = 1\n{rule}"));
    for front in &fronts {
        send(&mut hand, front);
    }
    // There is one queue: the packets before this one are decided on before it is refused.
    send(&mut hand, &Front::new("nothing", Vec::new()));
    let answer = hand.listen(PATIENCE).expect("a refusal");
    assert!(answer.has(RST));
    assert_eq!(seen(), before, "SYNs passed a rule that rejects them");
    // Other flows pass.
    hand.other.set_port(81);
    for front in &fronts {
        let before = seen();
        send(&mut hand, front);
        until(front.name, || seen() > before);
    }
}
