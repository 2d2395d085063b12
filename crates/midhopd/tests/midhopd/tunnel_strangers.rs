//! Which clients may use a tunnel and which may not, the peers that are connected meanwhile, and
//! the replacement of certificates.

use crate::ends::{self, Authority, Ends, PORT, far_config, near_config};
use crate::program::{Running, Setup, errors, log_of, midhopd, wording_of};
use crate::stage::{self, Family, ReadOnce, Stage, noise, pass, until};
use crate::visitor::{Shown, Visitor};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::http3::{Code, Frame};
use midhop_tunnel::target::Target;
use nix::sys::signal::Signal;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, UdpSocket};

const EARLY: &str = "accept = \"early\"\n";

fn request(listener: &TcpListener) -> Request {
    let target = Target::Address(listener.local_addr().expect("an address"));
    Request { target, client: None, class: None, hops: 0 }
}

#[test]
fn strangers_get_nothing_and_learn_nothing() {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, Family::V4, EARLY);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    let asked = request(&listener);
    listener.set_nonblocking(true).expect("a mode");
    let others = Authority::new(&["near", "far"]);
    ends.authority.issue("old", -3, -1);
    ends.authority.issue("young", 1, 3);
    midhop_pki::authority::issue(ends.authority.path(), "unknown", 30).expect("a certificate");
    let own = |name| Shown::of(&ends.authority, name);
    for (who, shown) in [
        ("nothing shown", None),
        ("a known name by another authority", Some(Shown::of(&others, "near"))),
        ("our authority, but a name that nobody knows", Some(own("unknown"))),
        ("expired", Some(own("old"))),
        ("not valid yet", Some(own("young"))),
    ] {
        let visitor = Visitor::new(&stage.gateway);
        let seen = visitor.visit("far", shown.as_ref(), &asked);
        assert!(!seen.received && seen.ended.is_some(), "{who}: {seen:?}");
        assert!(listener.accept().is_err(), "{who}: a flow was opened");
        // A client that does not know the name of the far end does not learn it.
        for name in ["other.example", "near"] {
            let seen = Visitor::new(&stage.gateway).visit(name, shown.as_ref(), &asked);
            assert!(!seen.received && seen.ended.is_some(), "{who}: {seen:?}");
            assert_eq!(seen.certificate, None, "{who}");
        }
        pass(&mut client, &mut server);
    }
    // The same request by a peer is granted: the request itself is valid.
    let visitor = Visitor::new(&stage.gateway);
    // The client stays connected: leaving at once would cancel its request.
    let (answer, _flow) = visitor.ask("far", &own("near"), &asked);
    assert_eq!(answer, Response::Granted);
    until("the peer's flow is there", || listener.accept().is_ok());
    until("it is counted", || ends.sums(|ledger| &ledger.flows) == [1, 2]);
}

#[test]
fn an_expired_name_that_is_known_is_a_stranger_s() {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, Family::V4, EARLY);
    let listener = stage.listen(Family::V4);
    let again = Authority::new(&[]);
    for file in ["ca.pem", "ca.key"] {
        std::fs::copy(ends.authority.path().join(file), again.path().join(file)).expect("a copy");
    }
    for (from, to, welcome) in [(-3, -1, false), (1, 3, false), (-1, 1, true)] {
        again.issue("near", from, to);
        let shown = Shown::of(&again, "near");
        let seen = Visitor::new(&stage.gateway).visit("far", Some(&shown), &request(&listener));
        assert_eq!(seen.received, welcome, "{from} {to}: {seen:?}");
    }
}

/// Several proxies may have the same name: a new connection takes nothing from those that are
/// alive.
#[test]
fn a_second_peer_of_a_name_takes_nothing_from_the_first() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let _far = ends::start_far(&stage, Family::V4, &authority, "");
    let listener = stage.listen(Family::V4);
    let (asked, shown) = (request(&listener), Shown::of(&authority, "near"));
    let visitors = [(); 2].map(|()| Visitor::new(&stage.gateway));
    let flows = visitors.each_ref().map(|visitor| {
        let (answer, flow) = visitor.ask("far", &shown, &asked);
        assert_eq!(answer, Response::Granted);
        (flow, listener.accept().expect("the peer's flow").0)
    });
    // Longer than the timeout of a sign of life.
    std::thread::sleep(std::time::Duration::from_secs(7));
    for (visitor, (mut flow, mut server)) in visitors.iter().zip(flows) {
        server.write_all(b"still").expect("writing");
        let received = visitor.runtime.block_on(flow.frame());
        assert!(
            matches!(&received, Ok(Some(Frame::Data(bytes))) if bytes == "still"),
            "{received:?}"
        );
    }
}

/// What a peer that is not midhopd sees of refusals, names and broken connections.
#[test]
fn a_peer_is_answered_in_http_s_words() {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, Family::V4, EARLY);
    let shown = Shown::of(&ends.authority, "near");
    let visitor = Visitor::new(&stage.gateway);
    for (target, cause) in [
        ("nowhere.invalid:80", Cause::NameUnknown),
        ("10.0.2.2:9", Cause::Refused),
        ("192.0.2.1:80", Cause::NetworkUnreachable),
        ("127.0.0.1:80", Cause::NotAllowed),
    ] {
        let target = Target::parse(target).expect("a target");
        let request = Request { target: target.clone(), client: None, class: None, hops: 0 };
        let (response, mut flow) = visitor.ask("far", &shown, &request);
        assert_eq!(response, Response::from(cause), "{target}");
        let after = visitor.runtime.block_on(flow.frame()).expect("an end in order");
        assert_eq!(after, None, "{target}");
    }
    let listener = stage.listen(Family::V4);
    let (response, mut flow) = visitor.ask("far", &shown, &request(&listener));
    assert_eq!(response, Response::Granted);
    let (mut server, _) = listener.accept().expect("the far side");
    server.write_all(b"so far").expect("writing");
    let received = visitor.runtime.block_on(flow.frame()).expect("what came before the reset");
    assert_eq!(received, Some(Frame::Data("so far".into())));
    socket2::SockRef::from(&server).set_linger(Some(std::time::Duration::ZERO)).expect("a linger");
    drop(server);
    match visitor.runtime.block_on(flow.frame()) {
        Err(quinn::ReadError::Reset(code)) => {
            assert_eq!(Code(code.into_inner()), Code::CONNECT_ERROR);
        }
        other => panic!("{other:?}"),
    }
    // And in the other direction.
    let (response, mut flow) = visitor.ask("far", &shown, &request(&listener));
    assert_eq!(response, Response::Granted);
    let (mut server, _) = listener.accept().expect("the far side");
    flow.send.reset(quinn::VarInt::from_u32(0x10f)).expect("a reset");
    let error = server.read_once(&mut [0; 1]).expect_err("a reset, not an end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn garbage_is_answered_by_less_and_harms_nobody() {
    let Some(stage) = Stage::set() else { return };
    let _ends = Ends::start(&stage, Family::V4, EARLY);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    let socket = stage.client.run(|| UdpSocket::bind("10.0.1.2:0")).expect("entering");
    let socket = socket.expect("a socket");
    socket.connect(SocketAddr::new(Family::V4.server(), PORT)).expect("an address");
    socket.set_nonblocking(true).expect("a mode");
    let (mut sent, mut answered, mut buffer) = (0, 0, [0; 2048]);
    for seed in 0..20_000_u64 {
        let mut datagram = noise(seed + 1, (seed * 37 % 1400) as usize + 1);
        // In turn: random bytes; a long header of version 1, of version 2 and of an unknown
        // version; a short header.
        let head: &[u8] = match seed % 5 {
            0 => &[],
            1 => &[0xc3, 0, 0, 0, 1, 8],
            2 => &[0xc3, 0x6b, 0x33, 0x43, 0xcf, 8],
            3 => &[0xff, 0, 0, 0, 0, 20],
            _ => &[0x40],
        };
        let length = head.len().min(datagram.len());
        datagram[..length].copy_from_slice(&head[..length]);
        sent += socket.send(&datagram).unwrap_or(0);
        while let Ok(count) = socket.recv(&mut buffer) {
            answered += count;
        }
        if seed % 4000 == 0 {
            pass(&mut client, &mut server);
        }
    }
    pass(&mut client, &mut server);
    while let Ok(count) = socket.recv(&mut buffer) {
        answered += count;
    }
    assert!(answered <= sent, "{answered} bytes came back for {sent}");
    // A new flow, too.
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
}

#[test]
fn a_flood_of_handshakes_keeps_no_peer_out() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = Setup::new(&far_config(Family::V4, &authority, ""));
    let _far = Running::start_in(&stage.server, &far);
    // The responses are dropped, so none of these handshakes ends.
    stage::nft(&stage.client, "add table inet t");
    stage::nft(&stage.client, "add chain inet t c { type filter hook input priority 0; }");
    stage::nft(&stage.client, "add rule inet t c meta l4proto udp drop");
    let flood = Visitor::new(&stage.client);
    let knocking: Vec<_> = (0..500).map(|_| flood.knock("far", None)).collect();
    let limited = || far.status().handshakes_limited_total.values().sum::<u64>();
    until("the far end has noticed", || limited() > 0);
    let config = near_config(Family::V4, &authority, EARLY, "", "otherwise = \"reject\"\n");
    let _near = stage.start(&config);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    let own = Family::V4.server();
    assert_eq!(server.peer_addr().expect("a peer").ip(), own, "by the tunnel");
    drop(knocking);
}

/// Early data could be replayed, and would open flows again: no client is offered to send any.
#[test]
fn nothing_is_taken_that_might_be_replayed() {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, Family::V4, EARLY);
    let shown = Shown::of(&ends.authority, "near");
    assert!(!Visitor::new(&stage.gateway).may_speak_early("far", &shown));
}

/// New certificates are used from the next handshake on; existing connections stay.
#[test]
fn a_reload_takes_new_certificates_and_drops_no_tunnel() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = Setup::new(&far_config(Family::V4, &authority, ""));
    let running_far = Running::start_in(&stage.server, &far);
    let near = Setup::new(&near_config(Family::V4, &authority, EARLY, "", ""));
    let running_near = Running::start(&stage, &near);
    let listener = stage.listen(Family::V4);
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    let of_others = stage.listen(Family::V4);
    let asked = request(&of_others);
    let shown = Shown::of(&authority, "near");
    let before = Visitor::new(&stage.gateway).visit("far", Some(&shown), &asked).certificate;
    // Certificates of another authority.
    let others = Authority::new(&["near", "far"]);
    for file in ["ca.pem", "near.pem", "near.key", "far.pem", "far.key"] {
        std::fs::copy(others.path().join(file), authority.path().join(file)).expect("a copy");
    }
    for (running, setup) in [(&running_far, &far), (&running_near, &near)] {
        running.signal(Signal::SIGHUP);
        until("it has reloaded", || setup.reloads() == [1, 0]);
    }
    pass(&mut client, &mut server);
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    assert_eq!(near.peer("far").opened_total, 1, "{}", log_of(&near));
    let now = Shown::of(&others, "near");
    let after = Visitor::new(&stage.gateway).visit("far", Some(&now), &asked);
    assert!(after.received && after.certificate != before, "{after:?}");
    let seen = Visitor::new(&stage.gateway).visit("far", Some(&shown), &asked);
    assert!(!seen.received, "who was known by the old authority is a stranger now");
    // A broken file changes nothing, and nothing else of the same configuration is followed.
    std::fs::write(authority.path().join("far.pem"), "nonsense").expect("writing");
    far.rewrite(&far_config(Family::V4, &authority, "[log]\nlevel = \"off\"\n"));
    running_far.signal(Signal::SIGHUP);
    until("it has reported", || far.reloads() == [1, 1]);
    let fault = far.status().reload.and_then(|reload| reload.error).expect("an error");
    assert!(fault.error.contains("far.pem"), "{fault:?}");
    assert!(fault.hint.as_ref().is_some_and(|hint| hint.contains("midhopd pki show")), "{fault:?}");
    let after = Visitor::new(&stage.gateway).visit("far", Some(&now), &asked);
    assert!(after.received, "{after:?}");
    pass(&mut client, &mut server);
}

#[test]
fn a_certificate_of_one_s_own_that_nobody_takes_is_reported() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near"]);
    let far = Setup::new(&far_config(Family::V4, &authority, ""));
    let check = |code: i32, message: &str| {
        let output = midhopd().arg("check").arg(far.config()).output().expect("midhopd");
        assert_eq!(output.status.code(), Some(code), "{}", errors(&output));
        assert!(errors(&output).contains(message), "{message}: {}", errors(&output));
        assert!(!output.stdout.is_empty(), "the plan is printed all the same");
    };
    check(1, "far.pem");
    for (from, to, code, message) in [
        (-3, -1, 1, "far.pem has expired"),
        (1, 3, 1, "far.pem is not valid before"),
        (-300, 2, 0, "far.pem expires soon"),
        (-1, 90, 0, ""),
    ] {
        authority.issue("far", from, to);
        check(code, message);
        let _running = Running::start_in(&stage.server, &far);
        assert!(wording_of(&far).contains(message), "{message}: {}", log_of(&far));
    }
}
