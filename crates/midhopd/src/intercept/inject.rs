//! Raw sockets that inject held SYNs again, that send ICMP errors to their clients, and acknowledgements of connections that
//! have moved here.

use super::Marks;
use crate::ends::Side;
use midhop_linux::sockopt;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, SockaddrIn6, sendmsg};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// The most bytes of assisted flows that wait in the kernel. It is large, because all packets held
/// behind a gap leave at once.
const MENDED_BYTES: i32 = 4 << 20;

/// Sockets of both address families, in the network namespace in which they were opened.
#[derive(Debug)]
pub struct Injector {
    openings: PerFamily,
    resets: PerFamily,
    errors: PerFamily,
    mended: PerFamily,
    /// Of clients' connections and of servers'.
    acknowledgements: [PerFamily; 2],
}

#[derive(Debug)]
struct PerFamily {
    v4: Socket,
    /// None on a host without IPv6.
    v6: Option<Socket>,
}

impl Injector {
    /// Opens the sockets. This takes CAP_NET_RAW; sending does not.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(marks: Marks) -> io::Result<Self> {
        Ok(Self {
            openings: PerFamily::with_headers(marks.injected)?,
            resets: PerFamily::with_headers(marks.refused())?,
            errors: PerFamily::of(marks.client, Protocol::ICMPV4, Protocol::ICMPV6)?,
            mended: PerFamily::with_headers(marks.mended())?.with_room(MENDED_BYTES)?,
            acknowledgements: [
                PerFamily::with_headers(marks.client)?,
                PerFamily::with_headers(marks.server)?,
            ],
        })
    }

    /// Delivers a SYN to a listener of this host.
    ///
    /// # Errors
    /// When the kernel does not send it.
    pub fn open_client(&self, packet: &[u8], server: IpAddr) -> io::Result<()> {
        self.openings.send(packet, server)
    }

    /// Has the kernel answer a SYN with a reset.
    ///
    /// # Errors
    /// When the kernel does not send it.
    pub fn reset(&self, packet: &[u8], server: IpAddr) -> io::Result<()> {
        self.resets.send(packet, server)
    }

    /// Sends a packet of an assisted flow by an interface.
    ///
    /// # Errors
    /// When the kernel does not send it.
    pub fn mend(&self, packet: &[u8], to: IpAddr, interface: u32) -> io::Result<()> {
        self.mended.send_by(packet, to, interface)
    }

    /// Waits until the socket has room for a packet of an assisted flow to an address. Returns
    /// whether it has.
    pub fn wait_for_room(&self, to: IpAddr, patience: PollTimeout) -> bool {
        let Ok(socket) = self.mended.socket(to) else { return true };
        poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], patience) == Ok(1)
    }

    /// Sends a segment of a connection of this host that its kernel does not send, to the connection's far end.
    ///
    /// # Errors
    /// When the kernel does not send it.
    pub fn acknowledge(&self, packet: &[u8], to: Side, address: IpAddr) -> io::Result<()> {
        self.acknowledgements[to as usize].send(packet, address)
    }

    /// Sends an ICMP message to a client.
    ///
    /// # Errors
    /// When the kernel does not send it.
    pub fn error(&self, message: &[u8], client: IpAddr) -> io::Result<()> {
        self.errors.send(message, client)
    }
}

impl PerFamily {
    /// Sets the send buffer to this many bytes, or to as many as the kernel allows.
    fn with_room(self, bytes: i32) -> io::Result<Self> {
        for socket in [Some(&self.v4), self.v6.as_ref()].into_iter().flatten() {
            let room = |name| sockopt::set_int(socket, libc::SOL_SOCKET, name, bytes);
            // Exceeding net.core.wmem_max takes a privilege that root of a user namespace lacks.
            room(libc::SO_SNDBUFFORCE).or_else(|_| room(libc::SO_SNDBUF))?;
        }
        Ok(self)
    }

    /// Sockets to which whole packets are written.
    fn with_headers(mark: u32) -> io::Result<Self> {
        let raw = Protocol::from(libc::IPPROTO_RAW);
        let this = Self::of(mark, raw, raw)?;
        if let Some(v6) = &this.v6 {
            sockopt::set_int(v6, libc::IPPROTO_IPV6, libc::IPV6_HDRINCL, 1)?;
        }
        Ok(this)
    }

    fn of(mark: u32, v4: Protocol, v6: Protocol) -> io::Result<Self> {
        let open = |domain, protocol| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            socket.set_nonblocking(true)?;
            socket.set_mark(mark)?;
            // Nothing is read from this socket: packets that the kernel delivers to it are not
            // kept.
            socket.set_recv_buffer_size(0)?;
            Ok(socket)
        };
        let v6 = match open(Domain::IPV6, v6) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => None,
            outcome => Some(outcome?),
        };
        Ok(Self { v4: open(Domain::IPV4, v4)?, v6 })
    }

    fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        self.socket(to)?.send_to(packet, &SockAddr::from(SocketAddr::new(to, 0)))?;
        Ok(())
    }

    /// The same by an interface. It is given, because this socket does not have the mark of the
    /// original packet, by which the administrator's rules may have chosen the route.
    fn send_by(&self, packet: &[u8], to: IpAddr, interface: u32) -> io::Result<()> {
        let descriptor = self.socket(to)?.as_raw_fd();
        let content = [io::IoSlice::new(packet)];
        let none = MsgFlags::empty();
        match to {
            IpAddr::V4(address) => {
                let any = libc::in_addr { s_addr: 0 };
                let by = libc::in_pktinfo {
                    ipi_ifindex: interface.cast_signed(),
                    ipi_spec_dst: any,
                    ipi_addr: any,
                };
                let by = [ControlMessage::Ipv4PacketInfo(&by)];
                let to = SockaddrIn::from(SocketAddrV4::new(address, 0));
                sendmsg(descriptor, &content, &by, none, Some(&to))?;
            }
            IpAddr::V6(address) => {
                let any = libc::in6_addr { s6_addr: [0; 16] };
                let by = libc::in6_pktinfo { ipi6_addr: any, ipi6_ifindex: interface };
                let by = [ControlMessage::Ipv6PacketInfo(&by)];
                let to = SockaddrIn6::from(SocketAddrV6::new(address, 0, 0, 0));
                sendmsg(descriptor, &content, &by, none, Some(&to))?;
            }
        }
        Ok(())
    }

    fn socket(&self, to: IpAddr) -> io::Result<&Socket> {
        match to {
            IpAddr::V4(_) => Ok(&self.v4),
            IpAddr::V6(_) => self.v6.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into()),
        }
    }
}
