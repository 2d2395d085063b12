//! The refusal of a far side, so that the client can get it unchanged.

use midhop_linux::sockopt;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

/// ICMP's and ICMPv6's numbers for "destination unreachable".
const UNREACHABLE_V4: u8 = 3;
const UNREACHABLE_V6: u8 = 1;

/// The response of a far side that does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A reset: no listener.
    Reset,
    /// It cannot be reached; with the code of ICMP or ICMPv6.
    Unreachable(u8),
    /// It never answered.
    Silence,
}

/// Why a far side was not opened.
#[derive(Debug)]
pub struct Failure {
    /// The kernel's error.
    pub error: io::Error,
    /// The report of the far side or the network; `None` if the fault is this host's.
    pub refusal: Option<Refusal>,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self { error, refusal: None }
    }
}

/// Turns on or off that ICMP errors are reported in the socket's error queue.
pub fn explain(socket: impl AsFd, far: SocketAddr, on: bool) -> io::Result<()> {
    let on = i32::from(on);
    match far {
        SocketAddr::V4(_) => sockopt::set_int(socket, libc::IPPROTO_IP, libc::IP_RECVERR, on),
        SocketAddr::V6(_) => sockopt::set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, on),
    }
}

/// The code of the ICMP message that ended an attempt, if one did.
pub fn code(socket: &impl AsRawFd) -> Option<u8> {
    let mut payload = [0; 64];
    let mut iov = [IoSliceMut::new(&mut payload)];
    let mut space = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut iov, Some(&mut space), flags).ok()?;
    message.cmsgs().ok()?.find_map(|control| {
        let (error, kind) = match control {
            ControlMessageOwned::Ipv4RecvErr(error, _) => (error, UNREACHABLE_V4),
            ControlMessageOwned::Ipv6RecvErr(error, _) => (error, UNREACHABLE_V6),
            _ => return None,
        };
        (error.ee_type == kind).then_some(error.ee_code)
    })
}

/// What an error of `connect` means for the far side, given the ICMP code if there was one.
pub fn of(error: &io::Error, code: Option<u8>, far: SocketAddr) -> Option<Refusal> {
    let v4 = far.is_ipv4();
    if let Some(code) = code {
        return Some(Refusal::Unreachable(code));
    }
    match error.raw_os_error()? {
        libc::ECONNREFUSED | libc::ECONNRESET => Some(Refusal::Reset),
        libc::ENETUNREACH => Some(Refusal::Unreachable(0)),
        libc::EHOSTUNREACH | libc::EHOSTDOWN => Some(Refusal::Unreachable(if v4 { 1 } else { 3 })),
        libc::EACCES => Some(Refusal::Unreachable(if v4 { 13 } else { 1 })),
        libc::ETIMEDOUT => Some(Refusal::Silence),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_far_side_are_distinguished_from_this_hosts_own_faults() {
        let far: SocketAddr = "192.0.2.1:80".parse().expect("an address");
        let far6: SocketAddr = "[2001:db8::1]:80".parse().expect("an address");
        let refusal = |number, code, far| of(&io::Error::from_raw_os_error(number), code, far);
        assert_eq!(refusal(libc::ECONNREFUSED, None, far), Some(Refusal::Reset));
        // A port's host may report it by ICMP as well: then ICMP is what the client gets.
        assert_eq!(refusal(libc::ECONNREFUSED, Some(3), far), Some(Refusal::Unreachable(3)));
        assert_eq!(refusal(libc::EHOSTUNREACH, Some(6), far), Some(Refusal::Unreachable(6)));
        assert_eq!(refusal(libc::EHOSTUNREACH, None, far6), Some(Refusal::Unreachable(3)));
        assert_eq!(refusal(libc::ETIMEDOUT, None, far), Some(Refusal::Silence));
        assert_eq!(refusal(libc::EMFILE, None, far), None);
    }
}
