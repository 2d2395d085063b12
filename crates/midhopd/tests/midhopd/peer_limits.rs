//! The limits of a peer, over all of its connections, and how long this end waits for servers and
//! names.

use crate::ends::{Authority, PORT, TARGETS};
use crate::program::{Running, Setup};
use crate::stage::{self, Family, PATIENCE, Stage, nft, until};
use crate::visitor::{Flow, Shown, Visitor};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Form, Request, Response};
use midhop_tunnel::http3::{Code, Settings, StreamKind};
use midhop_tunnel::target::Target;
use midhop_tunnel::varint;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;
use tokio::time::timeout;

fn far_config(authority: &Authority, tunnel: &str, peers: &str) -> String {
    let address = SocketAddr::new(Family::V4.server(), PORT);
    let own = authority.table("far", &format!("listen = \"{address}\"\n{TARGETS}{tunnel}"));
    format!("{own}{peers}")
}

fn request(target: Target) -> Request {
    Request { target, client: None, class: None, hops: 0 }
}

fn to(listener: &TcpListener) -> Request {
    request(Target::Address(listener.local_addr().expect("an address")))
}

/// A server on the gateway.
fn listen(stage: &Stage, family: Family) -> TcpListener {
    let address = match family {
        Family::V4 => IpAddr::from([10, 0, 2, 1]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 2, 0, 0, 0, 1]),
    };
    let bind = || TcpListener::bind(SocketAddr::new(address, 0));
    stage.gateway.run(bind).expect("entering").expect("a listener")
}

/// Drops all SYNs of a family to the gateway's servers, and their responses.
fn swallow(stage: &Stage, family: Family) {
    let protocol = if family == Family::V4 { "ipv4" } else { "ipv6" };
    nft(&stage.gateway, "add table inet t");
    nft(&stage.gateway, "add chain inet t c { type filter hook input priority 0; }");
    nft(
        &stage.gateway,
        &format!("add rule inet t c iifname wan0 meta nfproto {protocol} meta l4proto tcp drop"),
    );
}

#[test]
fn flows_are_counted_over_all_connections_of_a_peer() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "second", "far"]);
    let peers = "[peers.second]\n[peers.near]\nflows = 2\n";
    let far = stage::start(&stage.server, &far_config(&authority, "", peers));
    let ask = |peer: &str, family| {
        let listener = listen(&stage, family);
        let visitor = Visitor::new(&stage.gateway);
        let (answer, flow) = visitor.ask("far", &Shown::of(&authority, peer), &to(&listener));
        (answer, visitor, flow, listener)
    };
    // Each over a connection of its own.
    let mut flows: Vec<_> =
        [Family::V4, Family::V6].map(|family| ask("near", family)).into_iter().collect();
    assert!(flows.iter().all(|(answer, ..)| *answer == Response::Granted));
    assert_eq!(ask("near", Family::V4).0, Response::from(Cause::Full));
    assert_eq!(ask("second", Family::V6).0, Response::Granted, "others have their own");
    let excessive = || far.ledgers().iter().map(|it| it.excessive.value()).sum::<u64>();
    assert_eq!(excessive(), 1);
    flows.pop();
    until("there is room again", || ask("near", Family::V6).0 == Response::Granted);
}

#[test]
fn a_peer_has_so_many_connections_and_no_more() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "second", "far"]);
    let peers = "[peers.second]\n[peers.near]\nconnections = 2\n";
    let _far = stage::start(&stage.server, &far_config(&authority, "", peers));
    let listener = listen(&stage, Family::V4);
    let shown = Shown::of(&authority, "near");
    let come = || {
        let visitor = Visitor::new(&stage.gateway);
        let (answer, flow) = visitor.ask("far", &shown, &to(&listener));
        assert_eq!(answer, Response::Granted);
        (visitor, flow)
    };
    let mut kept: Vec<_> = (0..2).map(|_| come()).collect();
    let refused = || {
        let seen = Visitor::new(&stage.gateway).visit("far", Some(&shown), &to(&listener));
        match seen.ended {
            Some(quinn::ConnectionError::ApplicationClosed(close)) => {
                assert_eq!(Code(close.error_code.into_inner()), Code::EXCESSIVE_LOAD);
                true
            }
            None => false,
            Some(other) => panic!("{other}"),
        }
    };
    assert!(refused());
    let other = Visitor::new(&stage.gateway);
    let other = other.visit("far", Some(&Shown::of(&authority, "second")), &to(&listener));
    assert!(other.received, "others have their own: {other:?}");
    drop(kept.pop());
    until("there is room again", || !refused());
}

/// The kernel would retransmit the SYN for two minutes.
#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let patience = "connect_timeout = \"1 s\"\n";
    let config = far_config(&authority, patience, "[peers.near]\n");
    let _far = stage::start(&stage.server, &config);
    for family in [Family::V4, Family::V6] {
        let listener = listen(&stage, family);
        swallow(&stage, family);
        let visitor = Visitor::new(&stage.gateway);
        let shown = Shown::of(&authority, "near");
        let (answer, _flow) = visitor.ask("far", &shown, &to(&listener));
        assert_eq!(answer, Response::from(Cause::TimedOut));
    }
}

/// Starts the far end as a program with its own `/etc/hosts` and `/etc/resolv.conf`.
fn start_with_names(stage: &Stage, setup: &Setup, hosts: &str, servers: &str) -> Running {
    let place = |name: &str, text: &str| {
        std::fs::write(setup.path().join(name), text).expect("a file");
        format!("mount --bind '{}' /etc/{name}", setup.path().join(name).display())
    };
    let script = [place("hosts", hosts), place("resolv.conf", servers), "exec \"$@\"".to_owned()];
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-e", "-c", &script.join("\n"), "sh"]);
    Running::start_as(&stage.server, setup, command)
}

/// If one family is silent, a name is reached by the other one without delay, although each may be
/// silent for a minute.
#[test]
fn a_dead_family_delays_no_name() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let patience = "connect_timeout = \"60 s\"\n";
    let setup = Setup::new(&far_config(&authority, patience, "[peers.near]\n"));
    let hosts = "fd00:0:0:2::1 both.test\n10.0.2.1 both.test\n";
    let _far = start_with_names(&stage, &setup, hosts, "");
    for dead in [Family::V6, Family::V4] {
        nft(&stage.gateway, "flush ruleset");
        swallow(&stage, dead);
        let alive = if dead == Family::V4 { Family::V6 } else { Family::V4 };
        let listener = listen(&stage, alive);
        let port = listener.local_addr().expect("an address").port();
        let target = Target::parse(&format!("both.test:{port}")).expect("a target");
        let visitor = Visitor::new(&stage.gateway);
        let (answer, _flow) = visitor.ask("far", &Shown::of(&authority, "near"), &request(target));
        assert_eq!(answer, Response::Granted, "{dead:?}");
        listener.accept().expect("by the family that is alive");
    }
}

/// Seven hundred names that one peer requests, and no name server responds.
#[test]
fn names_that_nobody_answers_hold_up_no_other_peer_and_take_no_threads() {
    const NAMES: usize = 700;
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "second", "far"]);
    let setup = Setup::new(&far_config(&authority, "", "[peers.near]\n[peers.second]\n"));
    let hosts = "fd00:0:0:2::1 six.test\n10.0.2.1 four.test\n";
    nft(&stage.gateway, "add table inet t");
    nft(&stage.gateway, "add chain inet t c { type filter hook input priority 0; }");
    nft(&stage.gateway, "add rule inet t c meta l4proto udp udp dport 53 drop");
    let far = start_with_names(&stage, &setup, hosts, "nameserver 10.0.2.1\n");
    let visitor = Visitor::new(&stage.gateway);
    let (connecting, _) = visitor.knock("far", Some(&Shown::of(&authority, "near")));
    let (connection, mut answers, _control) = visitor.runtime.block_on(async {
        let connection = connecting.await.expect("a peer gets in");
        let mut control = connection.open_uni().await.expect("a stream");
        let mut settings = Vec::new();
        varint::write(StreamKind::CONTROL, &mut settings);
        settings.extend(Settings::own().encode());
        control.write_all(&settings).await.expect("settings");
        let mut answers = Vec::new();
        for number in 0..NAMES {
            let target = Target::parse(&format!("n{number}.test:80")).expect("a target");
            let (mut send, receive) = connection.open_bi().await.expect("a stream");
            let asked = request(target).encode(Form::Classic);
            send.write_all(&asked).await.expect("a request");
            answers.push((send, receive));
        }
        (connection, answers, control)
    });
    // The later ones of these are refused because there is no room: the earlier ones are being
    // looked up then.
    let mut denied = 0;
    visitor.runtime.block_on(async {
        for (_, receive) in answers.iter_mut().rev().take(NAMES / 2) {
            let chunk = timeout(PATIENCE, receive.read_chunk(1, true)).await.expect("an answer");
            denied += usize::from(chunk.expect("no reset").is_some());
        }
    });
    assert_eq!(denied, NAMES / 2);
    let threads = std::fs::read_dir(format!("/proc/{}/task", far.id())).expect("threads").count();
    assert!(threads < 64, "{threads} threads");
    for (name, family) in [("four.test", Family::V4), ("six.test", Family::V6)] {
        let listener = listen(&stage, family);
        let port = listener.local_addr().expect("an address").port();
        let target = Target::parse(&format!("{name}:{port}")).expect("a target");
        let other = Visitor::new(&stage.gateway);
        let shown = Shown::of(&authority, "second");
        let (answer, _flow): (_, Flow) = other.ask("far", &shown, &request(target));
        assert_eq!(answer, Response::Granted, "{name}");
    }
    // Those that were looked up all the while have no response yet: nothing waited for them.
    let waiting = visitor.runtime.block_on(async {
        let mut waiting = 0;
        for (_, receive) in answers.iter_mut().take(32) {
            let chunk = timeout(std::time::Duration::ZERO, receive.read_chunk(1, true)).await;
            waiting += usize::from(chunk.is_err());
        }
        waiting
    });
    assert_eq!(waiting, 32);
    drop(connection);
}
