//! Properties that must hold for any bytes that a stranger can send or a user can write: no panic, and those
//! below.
//!
//! One function per target takes any bytes. `fuzz/` passes them from a fuzzer (`make fuzz`), for which
//! everything is built once more. The test `corpus` of this crate passes all inputs that the fuzzer found
//! worth keeping, in a moment.

mod assist;
mod conversation;
mod explicit;
mod files;
mod meter_link;
mod modem;
mod peer;
mod peer_tcp;
mod reload;
mod relocation;
mod repairs;
mod script;
mod snapshot;
mod streams;
mod syns;
mod tcp;
mod tunnel;
mod world;

use midhop_experiment::Scenario;
use midhop_testbed::meter;
use midhop_tunnel::cause::Cause;
use midhopd::explicit::handshake::{Handshake, Protocol, State};
use midhopd::intercept::Segment;
use std::net::{Ipv4Addr, SocketAddr};

/// A target: its name, which is that of its corpus, and the function that takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

pub use assist::assist;
pub use conversation::conversation;
pub use explicit::{explicit, target};
pub use files::{elements, hypatia, mahimahi, recording};
pub use meter_link::meter_link;
pub use modem::modem;
pub use peer::peer;
pub use peer_tcp::peer_tcp;
pub use reload::{configuration, reload};
pub use relocation::relocation;
pub use repairs::fec;
pub use snapshot::snapshot;
pub use streams::reassembly;
pub use syns::syns;
pub use tcp::{endpoint, packet};
pub use tunnel::{capsules, stream};

/// Targets that run whole sessions with a real daemon: some thousand times slower than the others.
pub const SLOW: [&str; 3] = ["conversation", "peer", "peer_tcp"];

/// Every target.
pub const TARGETS: [Target; 27] = [
    ("assist", assist),
    ("capsules", capsules),
    ("configuration", configuration),
    ("conversation", conversation),
    ("elements", elements),
    ("endpoint", endpoint),
    ("explicit", explicit),
    ("fec", fec),
    ("handshake", handshake),
    ("hypatia", hypatia),
    ("mahimahi", mahimahi),
    ("meter", meter),
    ("meter_link", meter_link),
    ("modem", modem),
    ("packet", packet),
    ("peer", peer),
    ("peer_tcp", peer_tcp),
    ("reassembly", reassembly),
    ("recording", recording),
    ("reload", reload),
    ("relocation", relocation),
    ("scenario", scenario),
    ("segment", segment),
    ("snapshot", snapshot),
    ("stream", stream),
    ("syns", syns),
    ("target", target),
];

/// A scenario: any text gives plans, or one error with a message. Includes proxies' tables.
pub fn scenario(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let plans = Scenario::parse("fuzz.toml", text).and_then(|scenario| scenario.plans());
    if let Err(error) = plans {
        assert!(!error.message.is_empty());
        assert!(!error.to_string().is_empty());
    }
}

/// The first packet of a flow, as it came from the wire, cut anywhere by the queue.
pub fn segment(data: &[u8]) {
    if let Some(segment) = Segment::parse(data) {
        assert_eq!(segment.source.is_ipv4(), segment.destination.is_ipv4());
    }
}

/// A client of the explicit mode: HTTP CONNECT if the first byte is odd, else SOCKS5. The rest of
/// that byte is the size of the pieces that it sends.
///
/// How the bytes are cut changes neither the request nor the answer.
pub fn handshake(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    let protocol = if choice & 1 == 1 { Protocol::HttpConnect } else { Protocol::Socks5 };
    let piece = usize::from(choice >> 1).max(1);
    let (whole, answers) = shake_hands(protocol, input, input.len().max(1));
    let (cut, answers_cut) = shake_hands(protocol, input, piece);
    assert_eq!(whole.state(), cut.state());
    assert_eq!(answers, answers_cut);
    assert!(whole.into_rest().len() <= input.len());
    assert!(cut.into_rest().len() <= input.len().min(HEAD_KEPT_MAX + piece));
}

/// More than any handshake may need: storing more would let a stranger use up memory.
const HEAD_KEPT_MAX: usize = 32 << 10;

fn shake_hands(protocol: Protocol, input: &[u8], piece: usize) -> (Handshake, Vec<u8>) {
    let mut handshake = Handshake::new(protocol);
    let mut answers = Vec::new();
    for bytes in input.chunks(piece) {
        if !handshake.wants_input() {
            break;
        }
        handshake.handle_input(bytes);
        answers.extend(std::iter::from_fn(|| handshake.poll_output()).flatten());
    }
    if matches!(handshake.state(), State::Asked(_)) {
        let outcome = match input.last() {
            Some(0) => Err(Cause::Refused),
            _ => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))),
        };
        handshake.answer(outcome);
    }
    handshake.handle_timeout();
    answers.extend(std::iter::from_fn(|| handshake.poll_output()).flatten());
    (handshake, answers)
}

/// The other end of a meter's connection: a client if the first byte is odd, else a server. The
/// rest of that byte is the size of the pieces in which the bytes arrive.
///
/// How they are cut changes nothing, and no more payload is found than bytes arrived.
pub fn meter(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    let reader = if choice & 1 == 1 { meter::Reader::Server } else { meter::Reader::Client };
    let piece = usize::from(choice >> 1).max(1);
    let whole = meter::Outline::of(reader, input, input.len().max(1));
    let cut = meter::Outline::of(reader, input, piece);
    match (whole, cut) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(whole, cut);
            assert!(whole.payload <= input.len() as u64);
        }
        (Err(whole), Err(cut)) => assert_eq!(whole.to_string(), cut.to_string()),
        (whole, cut) => panic!("{whole:?} in one piece, {cut:?} in pieces of {piece}"),
    }
}
