//! Selects the algorithm of a socket.

use socket2::{Domain, SockRef, Socket, Type};
use std::{io, os::fd::AsFd};

/// Why a socket could not be given an algorithm.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// No algorithm of this name is registered.
    #[error(
        "the kernel has no congestion control \"{name}\" (or no longer: the process that registered it has ended)"
    )]
    Unknown {
        /// The name.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The algorithm is there, but not for everyone.
    #[error(
        "congestion control \"{name}\" is not open to ordinary processes; CAP_NET_ADMIN over the \
         network namespace is needed"
    )]
    NoPrivilege {
        /// The name.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Any other refusal.
    #[error("the socket refused congestion control \"{name}\"")]
    Refused {
        /// The name.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Makes `socket` use the algorithm registered under `name`, from its next connection or at once.
///
/// # Errors
/// When the kernel refuses, see [`SelectError`].
pub fn select(socket: impl AsFd, name: &str) -> Result<(), SelectError> {
    SockRef::from(&socket).set_tcp_congestion(name.as_bytes()).map_err(|source| {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT) => SelectError::Unknown { name, source },
            Some(libc::EPERM) => SelectError::NoPrivilege { name, source },
            _ => SelectError::Refused { name, source },
        }
    })
}

/// Whether a socket of this process may use the algorithm `name` now.
///
/// It tries on a socket of its own. The list in `net.ipv4.tcp_available_congestion_control`
/// is not sufficient: it omits what a module would bring, and shows no permissions.
pub fn available(name: &str) -> bool {
    // Without IPv4 there may be IPv6; algorithms serve both.
    let scratch = Socket::new(Domain::IPV4, Type::STREAM, None)
        .or_else(|_| Socket::new(Domain::IPV6, Type::STREAM, None));
    scratch.is_ok_and(|scratch| select(&scratch, name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_reno_and_none_has_nonsense() {
        assert!(available("reno"));
        assert!(!available("no-such-thing"));
        assert!(!available(""));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        select(&socket, "reno").expect("reno is built in");
        let error = select(&socket, "no-such-thing").expect_err("it does not exist");
        assert!(matches!(error, SelectError::Unknown { .. }), "{error:?}");
    }
}
