//! Maps the outcome for a far side to HTTP and to TCP.

use super::stream::StreamError;
use crate::leg::{Failure, Refusal};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::target::Target;
use std::io;

/// Why a tunnel opened no flow.
#[derive(Debug)]
pub enum NoFlow {
    /// The far side did not accept, and the client gets its report.
    Refused(Failure),
    /// There is no tunnel, or the peer could not even try: the flow may go another way.
    Unavailable(String),
}

impl NoFlow {
    /// The meaning of `fault` for a flow towards `target`, before any byte of it was forwarded.
    pub fn of(fault: StreamError, target: &Target) -> Self {
        let StreamError::Denied(cause) = fault else { return Self::Unavailable(fault.to_string()) };
        match refusal_of(cause, target) {
            Some(refusal) => Self::Refused(Failure {
                error: StreamError::Denied(cause).into(),
                refusal: Some(refusal),
            }),
            None => Self::Unavailable(StreamError::Denied(cause).to_string()),
        }
    }
}

/// The refusal that a client gets for a far side that did not accept. None where the far side was not contacted.
fn refusal_of(cause: Cause, target: &Target) -> Option<Refusal> {
    let v4 = !matches!(target, Target::Address(address) if address.is_ipv6());
    // Codes of ICMP and ICMPv6.
    let (host, prohibited) = if v4 { (1, 13) } else { (3, 1) };
    match cause {
        Cause::Refused | Cause::NameUnknown => Some(Refusal::Reset),
        Cause::HostUnreachable => Some(Refusal::Unreachable(host)),
        Cause::NetworkUnreachable => Some(Refusal::Unreachable(0)),
        Cause::NotAllowed => Some(Refusal::Unreachable(prohibited)),
        Cause::TimedOut => Some(Refusal::Silence),
        Cause::Malformed | Cause::NamesOff | Cause::Loop | Cause::Full | Cause::Failed => None,
    }
}

/// The reported cause of a far side that was not opened.
pub fn cause_of(failure: &Failure) -> Cause {
    match failure.refusal {
        Some(Refusal::Reset) => Cause::Refused,
        Some(Refusal::Unreachable(0)) => Cause::NetworkUnreachable,
        Some(Refusal::Unreachable(13)) => Cause::NotAllowed,
        Some(Refusal::Unreachable(_)) => Cause::HostUnreachable,
        Some(Refusal::Silence) => Cause::TimedOut,
        None => Cause::Failed,
    }
}

impl From<NoFlow> for io::Error {
    fn from(no_flow: NoFlow) -> Self {
        match no_flow {
            NoFlow::Refused(failure) => failure.error,
            NoFlow::Unavailable(why) => Self::other(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_far_side_reaches_the_client_through_two_proxies() {
        for target in ["192.0.2.1:80", "[2001:db8::1]:80"] {
            let target = Target::parse(target).expect("a target");
            for refusal in [Refusal::Reset, Refusal::Silence, Refusal::Unreachable(0)] {
                let failure =
                    Failure { error: io::ErrorKind::Other.into(), refusal: Some(refusal) };
                match NoFlow::of(StreamError::Denied(cause_of(&failure)), &target) {
                    NoFlow::Refused(mapped) => assert_eq!(mapped.refusal, Some(refusal)),
                    other => panic!("{refusal:?}: {other:?}"),
                }
            }
        }
        // A fault of the far proxy itself is not the server's.
        let own = Failure { error: io::ErrorKind::Other.into(), refusal: None };
        let target = Target::parse("192.0.2.1:80").expect("a target");
        let no_flow = NoFlow::of(StreamError::Denied(cause_of(&own)), &target);
        assert!(matches!(no_flow, NoFlow::Unavailable(_)), "{no_flow:?}");
    }
}
