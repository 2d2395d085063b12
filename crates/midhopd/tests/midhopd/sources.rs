//! The distance of the sources of a tunnel's flows is measured and reported.
//!
//! `gateway with a source – link – server's host with the far end of a tunnel, its near end, and a source`

use crate::ends::{Authority, start_far};
use crate::stage::{Family, PATIENCE, Stage, until};
use crate::visitor::{Flow, Shown, Visitor};
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::http3::frame;
use midhop_tunnel::target::Target;
use midhopd::snapshot::Source;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

#[test]
fn a_near_source_is_distinguished_from_a_far_one() {
    let link = "rate = \"100 Mbit/s\"\ndelay = \"50 ms\"\n";
    let Some(stage) = Stage::set_over(link, link, "100 ms") else { return };
    let authority = Authority::new(&["near", "far"]);
    let leg = "rtt = \"540 ms\"\nrate = \"10 Mbit/s\"\n";
    let far = start_far(&stage, Family::V4, &authority, leg);
    let visitor = Visitor::new(&stage.server);
    let shown = Shown::of(&authority, "near");
    let listen = |namespace: &midhop_testbed::namespace::Namespace, address: [u8; 4]| {
        let bind = || TcpListener::bind(SocketAddr::from((address, 0)));
        namespace.run(bind).expect("entering").expect("a listener")
    };
    let sources = [listen(&stage.server, [10, 0, 2, 2]), listen(&stage.gateway, [10, 0, 2, 1])];
    let mut flows = Vec::new();
    for listener in &sources {
        let address = listener.local_addr().expect("an address");
        let request =
            Request { target: Target::Address(address), client: None, class: None, hops: 0 };
        let (answer, mut flow) = visitor.ask("far", &shown, &request);
        assert_eq!(answer, Response::Granted);
        let (mut server, _) = listener.accept().expect("the far side");
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        server.write_all(&[1; 100_000]).expect("a source sends something");
        ask(&visitor, &mut flow, &mut server);
        flows.push((flow, server));
    }
    let snapshots = Source::of(&far);
    let of = |address: SocketAddr| {
        let shown = snapshots.take().busiest;
        shown.into_iter().find(|flow| flow.server == address).and_then(|flow| flow.source)
    };
    for ((listener, (flow, server)), (condition, is_far)) in
        sources.iter().zip(&mut flows).zip([("near-idle", false), ("far-idle", true)])
    {
        let address = listener.local_addr().expect("an address");
        // Delays of a busy host look like a queue, until round-trip times have been normal for a
        // while.
        until("a source is measured, and the leg is idle", || {
            ask(&visitor, flow, server);
            of(address).is_some_and(|source| !source.condition.name().ends_with("congested"))
        });
        let source = of(address).expect("a source");
        println!("{source:?}");
        assert_eq!(source.condition.name(), condition, "{source:?}");
        assert_eq!(source.rtt.as_ns() >= 100_000_000, is_far, "{source:?}");
        assert!(source.bandwidth_ratio.is_some());
    }
    let peer = snapshots.take().peers["near"].clone();
    assert_eq!(peer.conditions["near-idle"].flows, 1, "{peer:?}");
    assert_eq!(peer.conditions["far-idle"].flows, 1, "{peer:?}");
    assert_eq!(peer.conditions["far-congested"].flows, 0, "{peer:?}");
}

/// Sends a request over a flow, and waits until it has reached the server.
fn ask(visitor: &Visitor, flow: &mut Flow, server: &mut TcpStream) {
    visitor.runtime.block_on(async {
        let mut sent = Vec::new();
        frame::write(frame::DATA, b"ask", &mut sent);
        flow.send.write_all(&sent).await.expect("asking");
    });
    server.read_exact(&mut [0; 3]).expect("a question");
}
