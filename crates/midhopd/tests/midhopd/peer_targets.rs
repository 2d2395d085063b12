//! The targets that peers may request, and the clients that they may claim: not this host, not its
//! networks, and not other peers' clients.

use crate::ends::{self, Authority, PORT};
use crate::stage::{self, Family, Stage, until};
use crate::visitor::{Flow, Shown, Visitor};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::target::Target;
use midhopd::data_plane::DataPlane;
use midhopd::ledger::{Counter, Ledger};
use std::net::{IpAddr, SocketAddr, TcpListener};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A far end on the server's host, and its peers on the gateway.
struct Scene {
    stage: Stage,
    authority: Authority,
}

impl Scene {
    fn set() -> Option<Self> {
        Some(Self { stage: Stage::set()?, authority: Authority::new(&["near", "second", "far"]) })
    }

    /// Starts the far end; `tunnel` adds to the table of that name, `peer` to its peer's table and
    /// what follows it.
    fn far(&self, tunnel: &str, peer: &str) -> DataPlane {
        let address = SocketAddr::new(Family::V4.server(), PORT);
        let own = self.authority.table("far", &format!("listen = \"{address}\"\n{tunnel}"));
        let config = format!("{own}[peers.second]\n[peers.near]\n{peer}");
        stage::start(&self.stage.server, &config)
    }

    fn ask_as(&self, peer: &str, target: Target, client: Option<SocketAddr>) -> (Response, Flow) {
        let request = Request { target, client, class: None, hops: 0 };
        let visitor = Visitor::new(&self.stage.gateway);
        let shown = Shown::of(&self.authority, peer);
        let answer = visitor.ask("far", &shown, &request);
        // Its runtime would end with it: the flow is only observed.
        std::mem::forget(visitor);
        answer
    }

    fn ask(&self, target: SocketAddr) -> Response {
        self.ask_as("near", Target::Address(target), None).0
    }

    /// A server on a host other than the far end's: the gateway.
    fn other(&self, family: Family) -> TcpListener {
        let address = match family {
            Family::V4 => IpAddr::from([10, 0, 2, 1]),
            Family::V6 => IpAddr::from([0xfd00, 0, 0, 2, 0, 0, 0, 1]),
        };
        let bind = || TcpListener::bind(SocketAddr::new(address, 0));
        self.stage.gateway.run(bind).expect("entering").expect("a listener")
    }
}

fn at(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("an address")
}

fn sum(proxy: &DataPlane, count: fn(&Ledger) -> &Counter) -> u64 {
    proxy.ledgers().iter().map(|ledger| count(ledger).value()).sum()
}

#[test]
fn this_host_and_private_networks_are_closed_unless_they_are_opened() {
    let Some(scene) = Scene::set() else { return };
    let no = Response::from(Cause::NotAllowed);
    let networks = "targets = [\"10.0.0.0/8\", \"fd00::/8\"]\n";
    let own = "targets = [\"10.0.2.2/32\", \"fd00:0:0:2::2/128\"]\n";
    for (tunnel, peer, other_is_open, own_is_open) in [
        ("", "", false, false),
        // However wide a prefix is, this host's own addresses have to be named or permitted
        // explicitly.
        (networks, "", true, false),
        (own, "", false, true),
        ("local_targets = true\n", "", false, true),
        ("", networks, true, false),
        (networks, "targets = []\n", false, false),
    ] {
        let far = scene.far(tunnel, peer);
        for family in FAMILIES {
            let (other, this) = (scene.other(family), scene.stage.listen(family));
            for (listener, is_open) in [(&other, other_is_open), (&this, own_is_open)] {
                let expected = if is_open { Response::Granted } else { no };
                assert_eq!(scene.ask(at(listener)), expected, "{tunnel}{peer}: {listener:?}");
            }
        }
        let denied = [other_is_open, own_is_open].iter().filter(|is_open| !**is_open).count();
        assert_eq!(sum(&far, |it| &it.forbidden), 2 * denied as u64);
    }
}

#[test]
fn no_spelling_of_an_address_opens_it() {
    let Some(scene) = Scene::set() else { return };
    let _far = scene.far("targets = [\"10.0.0.0/8\", \"fd00::/8\"]\n", "");
    let port = at(&scene.stage.listen(Family::V4)).port();
    let any = TcpListener::bind("127.0.0.1:0").expect("a listener");
    for address in [
        "127.0.0.1",
        "127.1.2.3",
        "0.0.0.0",
        "169.254.169.254",
        "100.64.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "255.255.255.255",
        "224.0.0.1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.2.2",
        "::10.0.2.2",
        "64:ff9b::10.0.2.2",
        "64:ff9b::169.254.169.254",
        "2002:a00:202::1",
        "2001:0:a00:202::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "fc00::1",
    ] {
        let address = SocketAddr::new(address.parse().expect(address), port);
        assert_eq!(scene.ask(address), Response::from(Cause::NotAllowed), "{address}");
    }
    // A name is checked by its address.
    let target = Target::parse(&format!("localhost:{}", at(&any).port())).expect("a target");
    let (answer, _flow) = scene.ask_as("near", target, None);
    assert_eq!(answer, Response::from(Cause::NotAllowed));
}

#[test]
fn an_address_that_comes_to_this_host_is_closed_at_once() {
    let Some(scene) = Scene::set() else { return };
    let _far = scene.far("targets = [\"10.0.0.0/8\", \"fd00::/8\"]\n", "");
    // On the server's own network no host responds for addresses that are not in use, not even with
    // an error.
    for (address, bits, is_routed) in [
        ("10.0.2.77", 32, false),
        ("11.1.1.1", 32, true),
        ("fd00:0:0:2::77", 128, false),
        ("2a00::77", 128, true),
    ] {
        let address: IpAddr = address.parse().expect(address);
        let target = SocketAddr::new(address, 9);
        if is_routed {
            let before = scene.ask(target);
            assert_ne!(before, Response::from(Cause::NotAllowed), "it is nobody's");
        }
        scene.stage.server.add_address("wan0", address, bits).expect("an address more");
        until("it is an own address", || scene.ask(target) == Response::from(Cause::NotAllowed));
    }
}

#[test]
fn a_claim_is_believed_only_of_the_peer_s_own_clients() {
    let Some(scene) = Scene::set() else { return };
    let rules = "[[rules]]\nmatch.source = [\"10.9.0.0/16\", \"fd09::/16\"]\naction = \"split\"\n\
                 [[rules]]\naction = \"reject\"\n";
    let clients = "clients = [\"10.9.0.0/16\", \"fd09::/16\"]\n";
    for (peer, believed) in [("", false), ("clients = \"10.8.0.0/16\"\n", false), (clients, true)] {
        let far = scene.far(ends::TARGETS, &format!("{peer}{rules}"));
        for family in FAMILIES {
            let listener = scene.stage.listen(family);
            let target = || Target::Address(at(&listener));
            for claim in ["10.9.0.1:1000", "[fd09::1]:1000", "[::ffff:10.9.0.1]:1000"] {
                let client = Some(claim.parse().expect(claim));
                let (answer, _flow) = scene.ask_as("near", target(), client);
                let expected = if believed { Response::Granted } else { Cause::NotAllowed.into() };
                assert_eq!(answer, expected, "{peer}: {claim}");
                // For another peer they are never its own clients.
                let (answer, _flow) = scene.ask_as("second", target(), client);
                assert_eq!(answer, Response::from(Cause::NotAllowed), "{peer}: {claim}");
            }
            let (answer, _flow) = scene.ask_as("near", target(), None);
            assert_eq!(answer, Response::from(Cause::NotAllowed), "{peer}: no claim");
        }
        let ignored = if believed { 6 } else { 12 };
        assert_eq!(sum(&far, |it| &it.disbelieved), ignored, "{peer}");
    }
}

#[test]
fn rules_distinguish_peers() {
    let Some(scene) = Scene::set() else { return };
    let rules = "[[rules]]\nmatch.peer = \"second\"\naction = \"reject\"\n";
    let far = scene.far(ends::TARGETS, rules);
    for family in FAMILIES {
        let listener = scene.stage.listen(family);
        for (peer, expected) in
            [("near", Response::Granted), ("second", Response::from(Cause::NotAllowed))]
        {
            let (answer, _flow) = scene.ask_as(peer, Target::Address(at(&listener)), None);
            assert_eq!(answer, expected, "{peer}");
        }
    }
    assert_eq!(sum(&far, |it| &it.rejected), 2);
}
