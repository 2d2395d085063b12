//! Hostile peers: they are admitted, and then send what no correct proxy would.

use crate::ends::{Authority, start_far};
use crate::hostile::{Flow, Hostile};
use crate::stage::{self, Family, ReadOnce, Stage, noise, until};
use crate::visitor::Shown;
use midhop_tunnel::connect::Request;
use midhop_tunnel::http3::Code;
use midhop_tunnel::target::Target;
use midhopd::data_plane::DataPlane;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const LIMIT: u64 = 64 << 20;
/// The part of that limit for all streams of the only peer.
const ROOM: u64 = LIMIT / 2;
/// One datagram of each stream, and what was counted late.
const SLACK: u64 = 1 << 20;

struct Scene {
    stage: Stage,
    far: DataPlane,
    shown: Shown,
    listener: TcpListener,
    family: Family,
}

impl Scene {
    fn set(family: Family) -> Option<Self> {
        let stage = Stage::set()?;
        let authority = Authority::new(&["near", "far"]);
        let more = "[limits]\nmemory = \"64 MiB\"\n";
        let far = start_far(&stage, family, &authority, more);
        assert_eq!(far.budget().limit(), LIMIT);
        let shown = Shown::of(&authority, "near");
        let listener = stage.listen(family);
        Some(Self { stage, far, shown, listener, family })
    }

    fn enter(&self, heeds: bool) -> Hostile {
        Hostile::enter(&self.stage.gateway, self.family, &self.shown, heeds)
    }

    fn ask(&self, peer: &Hostile) -> (Flow, TcpStream) {
        let target = Target::Address(self.listener.local_addr().expect("an address"));
        let flow = peer.ask(&Request { target, client: None, class: None, hops: 0 });
        let (server, _) = self.listener.accept().expect("the far side");
        server.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
        (flow, server)
    }

    fn violations(&self) -> u64 {
        let of = |ledger: &std::sync::Arc<midhopd::ledger::Ledger>| {
            ledger.peers().get("near").map_or(0, |peer| peer.violations)
        };
        self.far.ledgers().iter().map(of).sum()
    }
}

/// A flow of a well-behaved peer, by which a test sees that the far end still works.
struct Sound {
    peer: Hostile,
    flow: Flow,
    server: TcpStream,
}

impl Sound {
    fn new(scene: &Scene) -> Self {
        let peer = scene.enter(false);
        let (flow, server) = scene.ask(&peer);
        Self { peer, flow, server }
    }

    fn pass(&mut self) {
        assert_eq!(self.peer.send_some(&mut self.flow, b"ping"), Some(4));
        let mut received = [0; 4];
        self.server.read_exact(&mut received).expect("reading");
        assert_eq!(&received, b"ping");
        self.server.write_all(b"pong").expect("writing");
        let read = self.flow.receive.read_chunk(64, true);
        self.peer.runtime.block_on(read).expect("no fault").expect("no end");
    }
}

/// Sends into each flow what is accepted, up to `each` bytes. Stops when `enough` holds and a sound
/// flow has continued for some rounds after that, or the connection is gone. Returns how much was
/// sent.
fn pour(
    scene: &Scene,
    peer: &Hostile,
    flows: &mut [Flow],
    each: u64,
    sound: &mut Sound,
    enough: impl Fn(u64) -> bool,
) -> u64 {
    let piece = noise(1, 64 << 10);
    let mut rounds = 0;
    let mut sent = 0;
    until("enough is sent", || {
        for flow in flows.iter_mut() {
            while flow.sent < each && peer.send_some(flow, &piece).is_some_and(|count| count > 0) {}
        }
        sound.pass();
        let held = scene.far.budget().held();
        assert!(held <= ROOM + SLACK, "{held} bytes are held");
        sent = flows.iter().map(|flow| flow.sent).sum();
        rounds += u32::from(enough(held));
        rounds > 200 || peer.connection.close_reason().is_some()
    });
    sent
}

/// One byte of a stream is never sent, and everything after it is.
fn a_gap(family: Family) {
    let Some(scene) = Scene::set(family) else { return };
    let mut sound = Sound::new(&scene);
    let peer = scene.enter(false);
    let (flow, mut server) = scene.ask(&peer);
    peer.withhold_next(&flow);
    // Dropping a flow ends it.
    let mut flows = [flow];
    let sent = pour(&scene, &peer, &mut flows, 200_000_000, &mut sound, |held| held > 1 << 20);
    assert!(peer.has_withheld());
    // The flow control window exceeds what is held by at most this.
    assert!(sent <= ROOM + SLACK, "{sent} bytes were taken of one stream");
    peer.connection.close(0_u32.into(), b"");
    // The server does read.
    let error = server.read_once(&mut [0; 1]).expect_err("a reset, and no byte before it");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    until("all is given back", || scene.far.budget().held() == 0);
    sound.pass();
}

#[test]
fn a_byte_withheld_costs_no_more_than_was_granted_ipv4() {
    a_gap(Family::V4);
}

#[test]
fn a_byte_withheld_costs_no_more_than_was_granted_ipv6() {
    a_gap(Family::V6);
}

/// Each stream stays within its credit, but there are many.
#[test]
fn bytes_withheld_of_many_streams_cost_no_more_than_their_peer_s_room() {
    let Some(scene) = Scene::set(Family::V4) else { return };
    let mut sound = Sound::new(&scene);
    let peer = scene.enter(true);
    let (mut flows, servers): (Vec<_>, Vec<_>) = (0..120).map(|_| scene.ask(&peer)).unzip();
    flows.iter().for_each(|flow| peer.withhold_next(flow));
    let full = |held| held > ROOM - SLACK;
    let sent = pour(&scene, &peer, &mut flows, 900 << 10, &mut sound, full);
    assert_eq!(peer.connection.close_reason(), None);
    assert!(sent <= 2 * ROOM + SLACK, "{sent} bytes were taken");
    peer.connection.close(0_u32.into(), b"");
    drop(servers);
    until("all is given back", || scene.far.budget().held() == 0);
    assert_eq!(scene.violations(), 0, "each kept to what it was granted");
    sound.pass();
}

/// A peer that announces that it heeds credit, knows its credit, and exceeds it.
fn beyond(family: Family) {
    let Some(scene) = Scene::set(family) else { return };
    let mut sound = Sound::new(&scene);
    let peer = scene.enter(true);
    // By the time of this response, the far end knows that the peer knows its credit.
    let _first = scene.ask(&peer);
    (0..10).for_each(|_| sound.pass());
    let (flow, _server) = scene.ask(&peer);
    peer.withhold_next(&flow);
    let mut flows = [flow];
    let sent = pour(&scene, &peer, &mut flows, 200_000_000, &mut sound, |_| false);
    assert!(sent < ROOM, "{sent}");
    match peer.ended() {
        quinn::ConnectionError::ApplicationClosed(close) => {
            assert_eq!(close.error_code.into_inner(), Code::GENERAL_PROTOCOL_ERROR.0);
        }
        other => panic!("{other:?}"),
    }
    until("it is counted", || scene.violations() == 1);
    until("all is given back", || scene.far.budget().held() == 0);
    sound.pass();
}

#[test]
fn whoever_goes_beyond_what_it_was_granted_is_refused_ipv4() {
    beyond(Family::V4);
}

#[test]
fn whoever_goes_beyond_what_it_was_granted_is_refused_ipv6() {
    beyond(Family::V6);
}
