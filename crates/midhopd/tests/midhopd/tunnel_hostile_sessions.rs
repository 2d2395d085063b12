//! A hostile peer: it has a certificate, and sends random input over whole sessions.
//!
//! Streams of all kinds, with requests and frames that are changed, cut, sent twice or never ended;
//! resets, stops and silence; connections that are closed at any moment with any reason. Meanwhile
//! a well-behaved peer's flow continues, and when the hostile peer is gone, nothing of it is left.
//!
//! `MIDHOP_ATTACK_SEED` sets the random seed, which a failure reports.

use crate::ends::Ends;
use crate::stage::{self, Family, ReadOnce, Stage, pass, until};
use crate::visitor::{Shown, Visitor};
use bytes::Bytes;
use midhop_tunnel::connect::{Form, Request};
use midhop_tunnel::http3::{Settings, StreamKind, field, frame};
use midhop_tunnel::payload::Payload;
use midhop_tunnel::target::Target;
use midhop_tunnel::varint;
use midhopd::data_plane::DataPlane;
use quinn::VarInt;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const SESSIONS: u64 = 40;
/// The most actions in a session.
const ACTS: usize = 24;
/// How long the hostile peer waits for responses, so that they can affect the following actions.
const LISTENS: Duration = Duration::from_millis(5);

/// Marsaglia's xorshift.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn bytes(&mut self, limit: usize) -> Vec<u8> {
        (0..self.below(limit)).map(|_| self.below(256) as u8).collect()
    }

    /// Changes, removes or duplicates some of the bytes; mostly leaves them unchanged.
    fn changed(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        while !bytes.is_empty() && self.one_in(4) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes[at] = self.below(256) as u8,
                1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..(at + 1 + self.below(8)).min(bytes.len()))),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    }

    fn code(&mut self) -> VarInt {
        let codes = [0x100, 0x101, 0x102, 0x10b, 0x10c, 0x10f, 0, 0x33, u32::MAX];
        VarInt::from_u32(codes[self.below(codes.len())])
    }
}

/// The content of a control stream, or of another unidirectional stream.
fn announcement(dice: &mut Dice) -> Vec<u8> {
    let kinds = [StreamKind::CONTROL, 1, 2, 3, 0x21, 0x21, 0x54, dice.below(1 << 20) as u64];
    let mut bytes = Vec::new();
    varint::write(kinds[dice.below(kinds.len())], &mut bytes);
    if !dice.one_in(4) {
        bytes.extend(Settings::own().encode());
    }
    for _ in 0..dice.below(4) {
        let kinds = [frame::SETTINGS, frame::GOAWAY, frame::BACKLOG, frame::DATA, 0x0d, 0x21];
        let payload = dice.bytes(40);
        frame::write(kinds[dice.below(kinds.len())], &payload, &mut bytes);
    }
    dice.changed(bytes)
}

/// The content of a bidirectional stream: a request, or something like it, and some of a flow.
fn request(dice: &mut Dice, open: SocketAddr) -> Vec<u8> {
    let targets = [
        Target::Address(open),
        Target::Address(open),
        Target::Address(SocketAddr::new(open.ip(), 9)),
        Target::Name("nowhere.invalid".to_owned(), 80),
        Target::Address(([127, 0, 0, 1], 80).into()),
    ];
    let target = targets[dice.below(targets.len())].clone();
    let client = dice.one_in(3).then(|| SocketAddr::from(([10, 9, 0, 1], 50_000)));
    let class = dice.one_in(3).then(|| "bulk".to_owned());
    let request = Request { target, client, class, hops: dice.below(4) as u8 };
    let forms = [Form::Classic, Form::Template { authority: "far:443" }];
    let form = forms[dice.below(forms.len())];
    let mut bytes = Vec::new();
    let fields = dice.changed(field::encode(&request.fields(form)));
    frame::write(frame::HEADERS, &fields, &mut bytes);
    for _ in 0..dice.below(5) {
        match dice.below(4) {
            0 => frame::write(dice.below(1 << 14) as u64, &dice.bytes(100), &mut bytes),
            1 => bytes.extend(Payload::Capsules.head(dice.below(1 << 12))),
            _ => frame::write(frame::DATA, &dice.bytes(2000), &mut bytes),
        }
    }
    // A frame that is longer than what is sent.
    if dice.one_in(4) {
        frame::write_head(frame::DATA, dice.below(1 << 30), &mut bytes);
        bytes.extend(dice.bytes(1000));
    }
    dice.changed(bytes)
}

/// One connection, from its handshake to its end.
async fn session(connecting: quinn::Connecting, dice: &mut Dice, open: SocketAddr) {
    let connection = connecting.await.expect("a peer gets in");
    let (mut one_way, mut both_ways) = (Vec::new(), Vec::new());
    // Mostly it begins correctly: a peer that breaks the first rule gets no further.
    if !dice.one_in(4)
        && let Ok(mut control) = connection.open_uni().await
    {
        let mut bytes = Vec::new();
        varint::write(StreamKind::CONTROL, &mut bytes);
        bytes.extend(Settings::own().encode());
        let _ = control.write_all(&bytes).await;
        one_way.push(control);
    }
    for _ in 0..dice.below(ACTS) {
        match dice.below(20) {
            0 => {
                let opened = tokio::time::timeout(LISTENS, connection.open_uni()).await;
                let Ok(Ok(mut send)) = opened else { continue };
                let _ = tokio::time::timeout(LISTENS, send.write_all(&announcement(dice))).await;
                one_way.push(send);
            }
            1..=9 => {
                let opened = tokio::time::timeout(LISTENS, connection.open_bi()).await;
                let Ok(Ok((mut send, receive))) = opened else { continue };
                let bytes = request(dice, open);
                for piece in bytes.chunks(1 + dice.below(bytes.len().max(1))) {
                    let _ = tokio::time::timeout(LISTENS, send.write_all(piece)).await;
                }
                both_ways.push((send, receive));
            }
            10..=12 if !both_ways.is_empty() => {
                let at = dice.below(both_ways.len());
                let (send, receive) = &mut both_ways[at];
                match dice.below(3) {
                    0 => drop(send.finish()),
                    1 => drop(send.reset(dice.code())),
                    _ => drop(receive.stop(dice.code())),
                }
            }
            13..=16 if !both_ways.is_empty() => {
                let at = dice.below(both_ways.len());
                let _ = tokio::time::timeout(LISTENS, both_ways[at].1.read_chunk(4096, true)).await;
            }
            17 => {
                let _ = connection.send_datagram(Bytes::from(dice.bytes(1100)));
            }
            _ => tokio::time::sleep(LISTENS).await,
        }
        if connection.close_reason().is_some() {
            return;
        }
    }
    match dice.below(3) {
        // In order, with a reason that looks like a line of a log.
        0 => connection.close(dice.code(), b"\n\x1b[31mERROR midhopd: forged"),
        1 => both_ways.into_iter().for_each(|(mut send, _)| drop(send.finish())),
        _ => {}
    }
}

/// Accepts everything that the far end opens for the hostile peer, until it is stopped.
fn serve(listener: &TcpListener, stop: &AtomicBool) {
    listener.set_nonblocking(true).expect("a mode");
    thread::scope(|scope| {
        while !stop.load(Relaxed) {
            match listener.accept() {
                Ok((mut stream, _)) => {
                    stream.set_nonblocking(false).expect("a mode");
                    stream.set_read_timeout(Some(stage::PATIENCE)).expect("a timeout");
                    scope.spawn(move || {
                        let mut piece = [0; 1000];
                        while let Ok(count @ 1..) = stream.read_once(&mut piece) {
                            let _ = stream.write_all(&piece[..count]);
                        }
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(midhop_testkit::POLL)
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn a_peer_that_turned_harms_nobody_and_leaves_nothing() {
    let Some(stage) = Stage::set() else { return };
    let seed = std::env::var("MIDHOP_ATTACK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(1);
    println!("again: MIDHOP_ATTACK_SEED={seed}");
    let ends =
        Ends::start_with(&stage, Family::V4, "accept = \"early\"\n", ["", "[peers.rogue]\n"]);
    midhop_pki::authority::issue(ends.authority.path(), "rogue", 30).expect("a certificate");
    let shown = Shown::of(&ends.authority, "rogue");
    let (listener, prey) = (stage.listen(Family::V4), stage.listen(Family::V4));
    let open = prey.local_addr().expect("an address");
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    let flows = |end: &DataPlane| end.admission().flows();
    let before = flows(&ends.far);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| serve(&prey, &stop));
        for number in 0.. {
            // Enough of its requests have to be granted: some seeds produce few of them.
            let [_, granted] = ends.sums(|ledger| &ledger.flows);
            if number >= SESSIONS && granted > SESSIONS / 4 {
                break;
            }
            assert!(number < 20 * SESSIONS, "{granted} flows were granted in {number} sessions");
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9).wrapping_add(number) << 8 | 0x5a);
            // The visitor's endpoint is dropped, and so the connection of a peer that left without
            // a notice.
            let visitor = Visitor::new(&stage.gateway);
            let (connecting, _) = visitor.knock("far", Some(&shown));
            visitor.runtime.block_on(session(connecting, &mut dice, open));
            pass(&mut client, &mut server);
        }
        stop.store(true, Relaxed);
    });
    let (mut another, mut its_server) = stage.flow(&listener);
    pass(&mut another, &mut its_server);
    drop((another, its_server));
    until("the hostile peer's flows are gone", || flows(&ends.far) == before);
    pass(&mut client, &mut server);
    drop((client, server));
    until("all flows are gone", || flows(&ends.far) + flows(&ends.near) == 0);
    let held = || ends.far.budget().held() + ends.near.budget().held();
    until("no buffer is held", || held() == 0);
}
