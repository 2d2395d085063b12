//! A whole session of a client of the explicit listeners: its handshake in pieces of any sizes, the
//! daemon's answer, and the first bytes of the flow.

use midhop_tunnel::cause::Cause;
use midhop_tunnel::target::Target;
use midhop_tunnel::template;
use midhopd::explicit::handshake::{Handshake, Protocol, State};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// More than a handshake may be: storing more would let a stranger use up memory. Unit: bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The longest piece of a session. Unit: bytes.
const PIECE_BYTES_MAX: usize = 64;

/// A session: a byte that selects protocol and answer, a byte with the number of piece sizes that follow, the
/// sizes, then what the client sends. The last size counts for all pieces that follow.
///
/// Whatever the pieces: the client gets the same answers, the flow gets each byte behind the request once
/// and in order, and what is stored of a client that has not made its request is bounded.
pub fn explicit(data: &[u8]) {
    let [choice, count, rest @ ..] = data else { return };
    let (sizes, input) = rest.split_at(usize::from(*count).min(rest.len()));
    let whole = session(*choice, &[], input);
    let cut = session(*choice, sizes, input);
    assert_eq!(whole, cut);
    if let Some(flow) = &whole.flow {
        assert!(input.ends_with(flow), "the flow has bytes that the client did not send");
    }
}

/// The result of a session.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    state: State,
    answers: Vec<u8>,
    /// What the server gets; none: there is no flow.
    flow: Option<Vec<u8>>,
}

fn session(choice: u8, sizes: &[u8], input: &[u8]) -> Outcome {
    let protocol = if choice & 1 == 1 { Protocol::HttpConnect } else { Protocol::Socks5 };
    let mut handshake = Handshake::new(protocol);
    let mut answers = Vec::new();
    let mut sizes = sizes.iter().map(|size| usize::from(*size) % PIECE_BYTES_MAX + 1);
    let (mut at, mut size) = (0, input.len().max(1));
    while at < input.len() && handshake.wants_input() {
        size = sizes.next().unwrap_or(size);
        let piece = &input[at..(at + size).min(input.len())];
        at += piece.len();
        handshake.handle_input(piece);
        while let Some(answer) = handshake.poll_output() {
            answers.extend(answer);
        }
    }
    if let State::Asked(target) = handshake.state() {
        // Any target that can be requested here can be requested through a tunnel.
        assert_eq!(template::target_of(&template::path_of(target)).as_ref(), Ok(target));
        handshake.answer(match choice >> 1 & 3 {
            0 => Err(Cause::Refused),
            1 => Err(Cause::NotAllowed),
            2 => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))),
            _ => Ok(SocketAddr::from((Ipv6Addr::LOCALHOST, 1))),
        });
        // A second answer changes nothing.
        let state = handshake.state().clone();
        handshake.answer(Err(Cause::Refused));
        assert_eq!(*handshake.state(), state);
    } else if handshake.wants_input() {
        handshake.handle_timeout();
        assert_eq!(*handshake.state(), State::Refused);
    }
    answers.extend(std::iter::from_fn(|| handshake.poll_output()).flatten());
    let state = handshake.state().clone();
    let kept = handshake.into_rest();
    if state == State::Connected {
        let flow = [&kept[..], &input[at..]].concat();
        return Outcome { state, answers, flow: Some(flow) };
    }
    assert!(kept.len() <= HEAD_BYTES_MAX + size, "{} bytes kept of nobody", kept.len());
    Outcome { state, answers, flow: None }
}

/// A target: as HTTP's authority, and as the path of a template. What is understood can
/// be written, and is then understood as the same.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let understood = [Target::parse(text), template::target_of(text).ok()];
    for target in understood.into_iter().flatten() {
        assert_eq!(Target::parse(&target.to_string()).as_ref(), Some(&target));
        let path = template::path_of(&target);
        assert!(path.bytes().all(|byte| byte.is_ascii_graphic()), "{path:?}");
        assert_eq!(template::target_of(&path).as_ref(), Ok(&target));
        match &target {
            Target::Address(address) => assert!(address.port() > 0 && !is_mapped(address)),
            // A name that reads as an address would be treated as a name.
            Target::Name(name, port) => {
                assert!(*port > 0 && name.parse::<std::net::IpAddr>().is_err());
            }
        }
    }
}

/// IPv4 in the form of IPv6: rules for IPv4 would not match it.
fn is_mapped(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some())
}
