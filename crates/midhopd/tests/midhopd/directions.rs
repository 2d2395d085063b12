//! Either side opens flows and either side sends: with one proxy, with a pair, with a pair in which
//! both open tunnels, and with a chain.
//!
//! `client – gateway – ground – origin`

use crate::ends::{Authority, PORT, TARGETS, far_config, near_tables};
use crate::ground::{Ground, at};
use crate::stage::{self, Family, noise, receive_all, send_all, start, until};
use midhop_testbed::namespace::{Namespace, veth};
use midhopd::data_plane::DataPlane;
use midhopd::ledger::{Counter, Ledger};
use midhopd::snapshot::Source;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::scope;

/// Bytes that the opener and the other end send: each end alone, and both.
const SENT: [(usize, usize); 3] = [(200_000, 0), (0, 200_000), (200_000, 200_000)];
const ACCEPT: [&str; 2] = ["after-connect", "early"];
const NEAR: &str = "\"lan0\", \"wan0\"";
const FAR: &str = "\"wan0\", \"out0\"";
const REJECT: &str = "otherwise = \"reject\"\n";
/// The port at which the near end listens if the far end opens tunnels too, and that of a chain's
/// last proxy.
const OTHER_PORT: u16 = PORT + 1;

/// The proxies of a test, from the client's side, and the address that each side sees of a flow
/// that the other one opens.
struct Course {
    proxies: Vec<DataPlane>,
    origin_sees: IpAddr,
    client_sees: IpAddr,
    _authority: Authority,
}

fn intercept(interfaces: &str, accept: &str) -> String {
    format!("[intercept]\ninterfaces = [{interfaces}]\naccept = \"{accept}\"\n")
}

/// The table of a peer to connect to, and the rule that sends flows to it.
fn towards(peer: &str, at: SocketAddr, rule: &str) -> String {
    format!("[peers.{peer}]\naddress = \"{at}\"\n[[rules]]\ntunnel = \"{peer}\"\n{rule}")
}

impl Course {
    fn new(proxies: Vec<DataPlane>, seen: [IpAddr; 2], authority: Authority) -> Self {
        let [origin_sees, client_sees] = seen;
        Self { proxies, origin_sees, client_sees, _authority: authority }
    }

    /// One proxy, on the gateway.
    fn integrated(ground: &Ground, family: Family, accept: &str) -> Self {
        let proxy = ground.stage.start(&intercept(NEAR, accept));
        let seen = [family.client(), at(family, 3, 2)];
        Self::new(vec![proxy], seen, Authority::new(&[]))
    }

    /// A pair whose near end opens the tunnel; both intercept all of their interfaces.
    fn pair(ground: &Ground, family: Family, accept: &str) -> Self {
        let authority = Authority::new(&["near", "far"]);
        let far = intercept(FAR, accept) + &far_config(family, &authority, "");
        let near = intercept(NEAR, accept) + &near_tables(family, &authority, "", "");
        let far = start(&ground.stage.server, &far);
        let near = ground.stage.start(&near);
        await_tunnel(&near, "far");
        Self::new(vec![near, far], [at(family, 3, 1), at(family, 3, 2)], authority)
    }

    /// A pair in which each end sends the other all flows, and lets none pass without the tunnel.
    fn mutual(ground: &Ground, family: Family, accept: &str) -> Self {
        let authority = Authority::new(&["near", "far"]);
        let near_at = SocketAddr::new(at(family, 2, 1), OTHER_PORT);
        let far_at = SocketAddr::new(at(family, 2, 2), PORT);
        let config = |own: &str, own_at, peer, peer_at, interfaces| {
            intercept(interfaces, accept)
                + &authority.table(own, &format!("listen = \"{own_at}\"\n{TARGETS}"))
                + &towards(peer, peer_at, REJECT)
        };
        let far = config("far", far_at, "near", near_at, FAR);
        let near = config("near", near_at, "far", far_at, NEAR);
        let far = start(&ground.stage.server, &far);
        let near = ground.stage.start(&near);
        await_tunnel(&near, "far");
        await_tunnel(&far, "near");
        Self::new(vec![near, far], [at(family, 3, 1), at(family, 1, 1)], authority)
    }

    /// Three proxies, of which two are on the ground's host.
    fn chain(ground: &Ground, family: Family, accept: &str) -> Self {
        let authority = Authority::new(&["near", "far", "last"]);
        let last_at = SocketAddr::new(at(family, 2, 2), OTHER_PORT);
        let own = authority.table("last", &format!("listen = \"{last_at}\"\n{TARGETS}"));
        let last = start(&ground.stage.server, &format!("{own}[peers.far]\n"));
        let onwards = format!(
            "{}match.interface = \"none0\"\n[[rules]]\nmatch.destination = \"{}/{}\"\n\
             tunnel = \"last\"\n{REJECT}",
            towards("last", last_at, ""),
            at(family, 3, 2),
            if family == Family::V4 { 32 } else { 128 },
        );
        let far = intercept(FAR, accept) + &far_config(family, &authority, &onwards);
        let near = intercept(NEAR, accept) + &near_tables(family, &authority, "", "");
        let far = start(&ground.stage.server, &far);
        let near = ground.stage.start(&near);
        await_tunnel(&near, "far");
        await_tunnel(&far, "last");
        let seen = [at(family, 3, 1), at(family, 3, 2)];
        Self::new(vec![near, far, last], seen, authority)
    }

    fn sums(&self, count: fn(&Ledger) -> &Counter) -> Vec<u64> {
        let sum = |proxy: &DataPlane| proxy.ledgers().iter().map(|it| count(it).value()).sum();
        self.proxies.iter().map(sum).collect()
    }

    /// Every flow is opened through the first proxy and carries its bytes, whichever end opens it
    /// and whichever sends.
    fn carries(&self, ground: &Ground, family: Family) {
        let (outside, inside) = (ground.listen(family), ground.listen_inside(family));
        let mut flows = 0;
        for sent in SENT {
            let (opener, other, seen) = ground.flow(&outside);
            assert_eq!(seen.ip(), self.origin_sees, "whom the origin sees");
            carry(&opener, &other, sent);
            let (opener, other, seen) = ground.flow_inwards(&inside);
            assert_eq!(seen.ip(), self.client_sees, "whom the client sees");
            carry(&opener, &other, sent);
            flows += 2;
        }
        until("all flows have ended in order", || self.sums(|it| &it.ended)[0] == flows);
        assert_eq!(self.sums(|it| &it.flows)[0], flows, "no flow comes twice");
        assert_eq!(self.sums(|it| &it.bypassed_by_limit), vec![0; self.proxies.len()]);
    }
}

fn await_tunnel(proxy: &DataPlane, peer: &str) {
    until("the tunnel is open", || Source::of(proxy).take().peers[peer].tunnels > 0);
}

fn carry(opener: &TcpStream, other: &TcpStream, (opened, answered): (usize, usize)) {
    let (opened, answered) = (noise(1, opened), noise(2, answered));
    scope(|scope| {
        scope.spawn(|| send_all(opener, &opened));
        scope.spawn(|| send_all(other, &answered));
        let received = scope.spawn(|| receive_all(other));
        assert!(receive_all(opener) == answered, "what the other end sent");
        assert!(received.join().expect("the other end") == opened, "what the opener sent");
    });
}

fn all_directions(family: Family, course: fn(&Ground, Family, &str) -> Course) {
    let Some(ground) = Ground::set() else { return };
    for accept in ACCEPT {
        course(&ground, family, accept).carries(&ground, family);
    }
}

#[test]
fn integrated_ipv4() {
    all_directions(Family::V4, Course::integrated);
}

#[test]
fn integrated_ipv6() {
    all_directions(Family::V6, Course::integrated);
}

#[test]
fn pair_ipv4() {
    all_directions(Family::V4, Course::pair);
}

#[test]
fn pair_ipv6() {
    all_directions(Family::V6, Course::pair);
}

#[test]
fn mutual_pair_ipv4() {
    all_directions(Family::V4, Course::mutual);
}

#[test]
fn mutual_pair_ipv6() {
    all_directions(Family::V6, Course::mutual);
}

#[test]
fn chain_ipv4() {
    all_directions(Family::V4, Course::chain);
}

#[test]
fn chain_ipv6() {
    all_directions(Family::V6, Course::chain);
}

/// A near end that intercepts `interfaces`, with its rule's `otherwise`, and the far end.
fn pair_with(ground: &Ground, family: Family, interfaces: &str, otherwise: &str) -> Course {
    let authority = Authority::new(&["near", "far"]);
    let far = start(&ground.stage.server, &far_config(family, &authority, ""));
    let near = intercept(interfaces, "after-connect")
        + &near_tables(family, &authority, "", &format!("otherwise = \"{otherwise}\"\n"));
    let near = ground.stage.start(&near);
    await_tunnel(&near, "far");
    Course::new(vec![near, far], [at(family, 3, 1), at(family, 3, 2)], authority)
}

/// Flows from the peer's side pass by if the other side's interface is not intercepted, or if the
/// rule says so.
fn passes_by(family: Family) {
    let Some(ground) = Ground::set() else { return };
    let listener = ground.listen_inside(family);
    for (interfaces, otherwise) in [("\"wan0\"", "split"), (NEAR, "bypass")] {
        let course = pair_with(&ground, family, interfaces, otherwise);
        let (opener, other, seen) = ground.flow_inwards(&listener);
        assert_eq!(seen.ip(), at(family, 3, 2), "{interfaces} {otherwise}");
        carry(&opener, &other, (100_000, 100_000));
        assert_eq!(course.sums(|it| &it.flows), [0, 0], "{interfaces} {otherwise}");
        assert_eq!(course.sums(|it| &it.bypassed_by_rule), [1, 0], "{interfaces} {otherwise}");
    }
}

#[test]
fn flows_from_the_peers_side_pass_by_ipv4() {
    passes_by(Family::V4);
}

#[test]
fn flows_from_the_peers_side_pass_by_ipv6() {
    passes_by(Family::V6);
}

/// If nothing may pass without the tunnel, flows that arrive without it are reset at once.
fn is_refused(family: Family) {
    let Some(ground) = Ground::set() else { return };
    let listener = ground.listen_inside(family);
    let course = pair_with(&ground, family, NEAR, "reject");
    let address = listener.local_addr().expect("an address");
    let connect = || TcpStream::connect_timeout(&address, stage::PATIENCE);
    let error = ground.origin.run(connect).expect("entering").expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(course.sums(|it| &it.rejected), [1, 0]);
    assert_eq!(course.sums(|it| &it.flows), [0, 0], "the far end is not asked");
}

#[test]
fn flows_from_the_peers_side_are_refused_ipv4() {
    is_refused(Family::V4);
}

#[test]
fn flows_from_the_peers_side_are_refused_ipv6() {
    is_refused(Family::V6);
}

/// A server behind the origin, which reaches the ground's tunnel over a link of its own: flows
/// arrive by another interface than the one towards the ground.
struct Beyond {
    listener: TcpListener,
    _server: Namespace,
}

impl Beyond {
    fn set(ground: &Ground, family: Family) -> Self {
        let Ground { stage, origin } = ground;
        let server = Namespace::create("beyond").expect("a namespace");
        let prefix = if family == Family::V4 { 24 } else { 64 };
        let any = if family == Family::V4 { [0; 4].into() } else { IpAddr::from([0u16; 8]) };
        for (from, to, net, name) in
            [(&stage.server, origin, 4, "alt0"), (origin, &server, 5, "deep0")]
        {
            let [near, far] = veth(from, name, to, name, 1500).expect("a link");
            let (near_at, far_at) = (at(family, net, 1), at(family, net, 2));
            from.add_address(name, near_at, prefix).expect("an address");
            to.add_address(name, far_at, prefix).expect("an address");
            from.add_neighbour(name, far_at, far.mac).expect("a neighbour");
            to.add_neighbour(name, near_at, near.mac).expect("a neighbour");
        }
        let host = if family == Family::V4 { 32 } else { 128 };
        origin.add_route(at(family, 2, 2), host, at(family, 4, 1)).expect("a route to the tunnel");
        server.add_route(any, 0, at(family, 5, 1)).expect("the server's route");
        for (hop, next) in [(&stage.gateway, at(family, 2, 2)), (&stage.server, at(family, 3, 2))] {
            hop.add_route(at(family, 5, 0), prefix, next).expect("a route to the server");
        }
        let bind = || TcpListener::bind(SocketAddr::new(at(family, 5, 2), 0));
        let listener = server.run(bind).expect("entering").expect("a listener");
        Self { listener, _server: server }
    }
}

/// A second gateway beyond the ground sends all flows back into a tunnel to the ground, which has
/// opened them: the ground reports a loop, and the gateway carries the flows on without the tunnel.
fn comes_back(family: Family, transparent: bool) {
    let Some(ground) = Ground::set() else { return };
    let authority = Authority::new(&["near", "far", "beyond"]);
    let net = if family == Family::V4 { "10.0.1.0/24" } else { "fd00:0:0:1::/64" };
    let stands = if transparent { format!("transparent = \"{net}\"\n") } else { String::new() };
    let far = far_config(family, &authority, &format!("{stands}[peers.beyond]\n{stands}"));
    let far = start(&ground.stage.server, &far);
    let near = intercept(NEAR, "after-connect") + &near_tables(family, &authority, "", REJECT);
    let near = ground.stage.start(&near);
    let beyond = Beyond::set(&ground, family);
    let far_at = SocketAddr::new(at(family, 2, 2), PORT);
    let own = authority.table("beyond", "") + &towards("far", far_at, "");
    let beyond_proxy = start(&ground.origin, &(intercept("\"out0\"", "after-connect") + &own));
    await_tunnel(&near, "far");
    await_tunnel(&beyond_proxy, "far");
    let (client, server) = ground.stage.flow(&beyond.listener);
    let own = client.local_addr().expect("an address").ip();
    let expected = if transparent { own } else { at(family, 3, 1) };
    assert_eq!(server.peer_addr().expect("a peer").ip(), expected, "whom the server sees");
    carry(&client, &server, (100_000, 100_000));
    let sum = |proxy: &DataPlane| proxy.ledgers().iter().map(|it| it.flows.value()).sum::<u64>();
    assert_eq!([&near, &far, &beyond_proxy].map(sum), [1, 1, 1], "each takes the flow once");
}

#[test]
fn a_flow_that_comes_back_to_where_it_was_opened_goes_on_ipv4() {
    for transparent in [false, true] {
        comes_back(Family::V4, transparent);
    }
}

#[test]
fn a_flow_that_comes_back_to_where_it_was_opened_goes_on_ipv6() {
    for transparent in [false, true] {
        comes_back(Family::V6, transparent);
    }
}
