//! SOCKS version 5, without authentication.
//!
//! Source: RFC 1928.

use super::handshake::{DialOutcome, Parsed, Target};
use midhop_tunnel::cause::Cause;
use std::net::{IpAddr, SocketAddr};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Reply codes: RFC 1928 §6.
mod reply {
    pub(super) const SUCCEEDED: u8 = 0;
    pub(super) const FAILURE: u8 = 1;
    pub(super) const NOT_ALLOWED: u8 = 2;
    pub(super) const NETWORK_UNREACHABLE: u8 = 3;
    pub(super) const HOST_UNREACHABLE: u8 = 4;
    pub(super) const REFUSED: u8 = 5;
    pub(super) const TTL_EXPIRED: u8 = 6;
    pub(super) const COMMAND_UNKNOWN: u8 = 7;
    pub(super) const ADDRESS_TYPE_UNKNOWN: u8 = 8;
}

/// Parses the list of methods that the client offers. Returns the reply to it.
pub(super) fn parse_greeting(input: &[u8]) -> Parsed<[u8; 2]> {
    match *input {
        [] => Parsed::More,
        // Another protocol or an older version: the client would not understand our reply.
        [version, ..] if version != VERSION => Parsed::Wrong(Vec::new()),
        [_, count, ref rest @ ..] => match rest.get(..usize::from(count)) {
            None => Parsed::More,
            Some(methods) if methods.contains(&NO_AUTHENTICATION) => {
                Parsed::Done([VERSION, NO_AUTHENTICATION], 2 + methods.len())
            }
            Some(_) => Parsed::Wrong(vec![VERSION, NO_METHOD]),
        },
        [_] => Parsed::More,
    }
}

/// Parses the request.
pub(super) fn parse_request(input: &[u8]) -> Parsed<Target> {
    match input.first() {
        None => return Parsed::More,
        Some(&VERSION) => {}
        Some(_) => return wrong(reply::FAILURE),
    }
    let &[_, command, _, kind, ref rest @ ..] = input else { return Parsed::More };
    if command != CONNECT {
        return wrong(reply::COMMAND_UNKNOWN);
    }
    let (length, from) = match kind {
        IPV4 => (4, 0),
        IPV6 => (16, 0),
        NAME => match rest.first() {
            Some(&length) => (usize::from(length), 1),
            None => return Parsed::More,
        },
        _ => return wrong(reply::ADDRESS_TYPE_UNKNOWN),
    };
    let Some((host, port)) = rest
        .get(from..from + length + 2)
        .and_then(|bytes| bytes.split_last_chunk::<2>())
        .map(|(host, port)| (host, u16::from_be_bytes(*port)))
    else {
        return Parsed::More;
    };
    let host = if kind == NAME {
        std::str::from_utf8(host).ok().map(str::to_owned)
    } else {
        address(host).map(|address| address.to_string())
    };
    match host.and_then(|host| Target::of(&host, port)) {
        Some(target) => Parsed::Done(target, 4 + from + length + 2),
        None => wrong(reply::FAILURE),
    }
}

/// The reply to a request with this outcome.
pub(super) fn answer(outcome: DialOutcome) -> Vec<u8> {
    let code = match outcome {
        Ok(bound) => return encode(reply::SUCCEEDED, bound),
        Err(Cause::NotAllowed | Cause::NamesOff) => reply::NOT_ALLOWED,
        Err(Cause::Refused) => reply::REFUSED,
        Err(Cause::HostUnreachable | Cause::NameUnknown) => reply::HOST_UNREACHABLE,
        Err(Cause::NetworkUnreachable) => reply::NETWORK_UNREACHABLE,
        Err(Cause::TimedOut) => reply::TTL_EXPIRED,
        Err(Cause::Full | Cause::Loop | Cause::Failed | Cause::Malformed) => reply::FAILURE,
    };
    encode(code, SocketAddr::from(([0, 0, 0, 0], 0)))
}

fn wrong(code: u8) -> Parsed<Target> {
    Parsed::Wrong(encode(code, SocketAddr::from(([0, 0, 0, 0], 0))))
}

fn encode(code: u8, bound: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![VERSION, code, 0];
    match bound.ip().to_canonical() {
        IpAddr::V4(address) => {
            bytes.push(IPV4);
            bytes.extend(address.octets());
        }
        IpAddr::V6(address) => {
            bytes.push(IPV6);
            bytes.extend(address.octets());
        }
    }
    bytes.extend(bound.port().to_be_bytes());
    bytes
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
