//! Paths with a smaller MTU than the interfaces at their ends, on either leg.
//!
//! The router before the narrow link reports it by ICMP to the packet's sender. On the client's leg
//! that is the server's address, which is not the proxy's own. Or the router reports nothing: then
//! only the kernel's own probing finds it, which `midhopd doctor` recommends.

use crate::stage::{Family, PATIENCE, Stage, nft, noise, receive_all, send_all};
use midhop_testbed::namespace::{Namespace, veth};
use midhopd::data_plane::DataPlane;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::scope;

/// The MTU of the narrow link. Unit: bytes.
const NARROW: &str = "1300";
const EARLY: &str = "accept = \"early\"\n";
const BYTES: usize = 400_000;

/// The end that is behind a narrow link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deep {
    Client,
    Server,
}

impl Deep {
    /// The number of its network.
    fn net(self) -> u8 {
        match self {
            Self::Client => 3,
            Self::Server => 4,
        }
    }
}

fn at(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 0, net, host]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, u16::from(net), 0, 0, 0, u16::from(host)]),
    }
}

/// Adds a host behind the client or the server, which becomes a router before a narrow link.
fn dig(stage: &Stage, family: Family, deep: Deep) -> Namespace {
    let host = Namespace::create("deep").expect("a namespace");
    let (router, hop, device) = match deep {
        Deep::Client => (&stage.client, family.client(), "lan0"),
        Deep::Server => (&stage.server, family.server(), "wan0"),
    };
    router.set_sysctl("net.ipv4.ip_forward", "1").expect("a router");
    router.set_sysctl("net.ipv6.conf.all.forwarding", "1").expect("a router");
    let [near, far] = veth(router, "deep0", &host, "deep0", 1500).expect("a link");
    // Only the direction to this host is limited: the host itself has an MTU of 1500 bytes, and
    // announces it.
    let narrow = router.command("ip").args(["link", "set", "deep0", "mtu", NARROW]).status();
    assert!(narrow.expect("ip starts").success());
    let (prefix, any) = match family {
        Family::V4 => (24, IpAddr::from([0, 0, 0, 0])),
        Family::V6 => (64, IpAddr::from([0u16; 8])),
    };
    let net = deep.net();
    router.add_address("deep0", at(family, net, 1), prefix).expect("an address");
    host.add_address("deep0", at(family, net, 2), prefix).expect("an address");
    router.add_neighbour("deep0", at(family, net, 2), far.mac).expect("a neighbour");
    host.add_neighbour("deep0", at(family, net, 1), near.mac).expect("a neighbour");
    host.add_route(any, 0, at(family, net, 1)).expect("a route");
    stage.gateway.add_route(at(family, net, 0), prefix, hop).expect("the gateway's route");
    let _ = device;
    host
}

/// Connects, and sends much from the end on the broad side to the end on the narrow side.
fn pass(stage: &Stage, family: Family, deep: Deep, host: &Namespace, proxy: &DataPlane) {
    let server = if deep == Deep::Server { host } else { &stage.server };
    let client = if deep == Deep::Client { host } else { &stage.client };
    let address = match deep {
        Deep::Server => at(family, deep.net(), 2),
        Deep::Client => family.server(),
    };
    let listener = server.run(|| TcpListener::bind(SocketAddr::new(address, 0)));
    let listener = listener.expect("entering").expect("a listener");
    let target = listener.local_addr().expect("an address");
    let client = client.run(|| TcpStream::connect_timeout(&target, PATIENCE));
    let client = client.expect("entering").expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    }
    let (broad, narrow) = if deep == Deep::Server { (client, server) } else { (server, client) };
    let bytes = noise(5, BYTES);
    scope(|scope| {
        scope.spawn(|| send_all(&broad, &bytes));
        assert!(receive_all(&narrow) == bytes, "every byte came");
    });
    let flows: u64 = proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum();
    assert_eq!(flows, 1, "the flow was split");
}

/// The router reports that a packet is too big.
fn announced(family: Family) {
    for deep in [Deep::Client, Deep::Server] {
        let Some(stage) = Stage::set() else { return };
        let host = dig(&stage, family, deep);
        let proxy = stage.proxy(EARLY);
        pass(&stage, family, deep, &host, &proxy);
    }
}

#[test]
fn packets_that_are_reported_too_big_are_sent_smaller_ipv4() {
    announced(Family::V4);
}

#[test]
fn packets_that_are_reported_too_big_are_sent_smaller_ipv6() {
    announced(Family::V6);
}

/// The router drops such packets without a report.
fn black_hole(family: Family) {
    for deep in [Deep::Client, Deep::Server] {
        let Some(stage) = Stage::set() else { return };
        let host = dig(&stage, family, deep);
        let router = if deep == Deep::Client { &stage.client } else { &stage.server };
        nft(
            router,
            "add table inet mute; \
             add chain inet mute output { type filter hook output priority 0; }; \
             add rule inet mute output meta l4proto { icmp, ipv6-icmp } drop",
        );
        // The setting that `midhopd doctor` recommends.
        stage.gateway.set_sysctl("net.ipv4.tcp_mtu_probing", "1").expect("a parameter");
        let proxy = stage.proxy(EARLY);
        pass(&stage, family, deep, &host, &proxy);
    }
}

#[test]
fn packets_that_vanish_for_their_size_are_sent_smaller_ipv4() {
    black_hole(Family::V4);
}

#[test]
fn packets_that_vanish_for_their_size_are_sent_smaller_ipv6() {
    black_hole(Family::V6);
}
