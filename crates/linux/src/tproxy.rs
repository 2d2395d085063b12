//! Sockets with addresses of other hosts, and the routes that deliver those hosts' packets to them
//! (`Documentation/networking/tproxy.rst`).

use crate::link::LOOPBACK_INDEX;
use crate::route_table::{Family, RouteEntry};
use crate::sockopt;
use nix::libc;
use std::io;
use std::os::fd::AsFd;

/// Allows an IPv4 or IPv6 socket to use addresses that do not belong to this host.
///
/// # Errors
/// When the kernel refuses: this requires `CAP_NET_ADMIN` or `CAP_NET_RAW`.
pub fn set_transparent(socket: impl AsFd, v4: bool) -> io::Result<()> {
    let (level, name) = match v4 {
        true => (libc::SOL_IP, libc::IP_TRANSPARENT),
        false => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    };
    sockopt::set_int(socket, level, name, 1)
}

/// Routes of a table, for IPv4 and IPv6, that deliver every packet to this host.
pub fn local_routes(table: u32) -> [RouteEntry; 2] {
    Family::BOTH.map(|family| RouteEntry::to_this_host(family, table, LOOPBACK_INDEX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_transparent_socket_takes_any_address() {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};
        use std::net::SocketAddr;
        use std::os::fd::AsRawFd;
        for (family, address) in
            [(AddressFamily::Inet, "192.0.2.1:0"), (AddressFamily::Inet6, "[2001:db8::1]:0")]
        {
            let own = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
            let own = own.expect("a socket");
            let address = SockaddrStorage::from(address.parse::<SocketAddr>().expect("one"));
            assert!(bind(own.as_raw_fd(), &address).is_err(), "it is another host's");
            if let Err(error) = set_transparent(&own, family == AddressFamily::Inet) {
                return midhop_testkit::skipped(format!("this takes CAP_NET_ADMIN: {error}"));
            }
            bind(own.as_raw_fd(), &address).expect("any address");
        }
        assert!(set_transparent(UdpSocket::bind("127.0.0.1:0").expect("a socket"), false).is_err());
    }
}
