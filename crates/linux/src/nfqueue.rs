//! Netfilter queues: packets wait in the kernel until a program gives a verdict on them
//! (`include/uapi/linux/netfilter/nfnetlink_queue.h`).

use crate::conntrack::Connection;
use crate::netlink::{Channel, Message, attributes, messages};
use crate::sockopt;
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

const SUBSYSTEM: u16 = 3;
const PACKET: u16 = SUBSYSTEM << 8;
const VERDICT: u16 = SUBSYSTEM << 8 | 1;
const CONFIG: u16 = SUBSYSTEM << 8 | 2;
/// A verdict on all packets up to a given one.
const VERDICTS: u16 = SUBSYSTEM << 8 | 3;
/// An ID higher than that of any packet: IDs are counted from 1.
const LAST: u32 = i32::MAX.cast_unsigned();
/// Unit: bytes. The whole packet, whatever IPv6 extension headers it has.
const WHOLE: u32 = 0xffff;
/// Unit: bytes. The headers of a packet, with some options.
const HEADERS: u32 = 256;
/// When the queue is full, packets pass instead of being dropped.
const FAIL_OPEN: u32 = 1;
/// The packet comes with its conntrack attributes.
const CONNTRACK: u32 = 2;
/// Unit: bytes. Holds one packet of the largest size, or many small ones.
const BUFFER_BYTES: usize = 128 << 10;

/// A bound queue.
#[derive(Debug)]
pub struct NfQueue {
    verdicts: Verdicts,
    buffer: RefCell<Vec<u8>>,
}

/// A queued packet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packet {
    /// The ID by which a verdict names it.
    pub id: u32,
    /// The index of the interface on which it arrived.
    pub interface: u32,
    /// The index of the interface through which it leaves; 0 before routing.
    pub egress: u32,
    /// Its firewall mark.
    pub mark: u32,
    /// The packet from its network header on.
    pub bytes: Vec<u8>,
    /// Its connection in connection tracking, if the kernel reports it.
    pub connection: Option<Connection>,
}

impl NfQueue {
    /// Binds a queue of at most `packets`. Those for which it has no room pass. `socket_bytes` is the buffer of packets
    /// that are ready to be read.
    ///
    /// # Errors
    /// When the kernel refuses: this requires `CAP_NET_ADMIN` and a kernel with `NETFILTER_NETLINK_QUEUE`.
    pub fn bind(number: u16, packets: u32, socket_bytes: i32) -> io::Result<Self> {
        Self::bind_copying(
            WHOLE,
            &[FAIL_OPEN | CONNTRACK, FAIL_OPEN],
            (number, packets, socket_bytes),
        )
    }

    /// The same, but packets for which it has no room are dropped, and only their headers are to be had.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_shut(number: u16, packets: u32, socket_bytes: i32) -> io::Result<Self> {
        Self::bind_copying(HEADERS, &[0], (number, packets, socket_bytes))
    }

    /// `flags` are tried in turn.
    fn bind_copying(
        copied: u32,
        flags: &[u32],
        (number, packets, socket_bytes): (u16, u32, i32),
    ) -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkNetFilter)?;
        let config = || Message::netfilter(CONFIG, libc::NLM_F_ACK, 0, number);
        let bind = config().with(1, &[1, 0, 0, 0]);
        let [a, b, c, d] = copied.to_be_bytes();
        let options = |flags: u32| {
            config()
                .with(2, &[a, b, c, d, 2])
                .with(3, &packets.to_be_bytes())
                .with(4, &flags.to_be_bytes())
                .with(5, &flags.to_be_bytes())
                .finish()
        };
        channel.request(&bind.finish())?;
        // Not every kernel has connection tracking, or the module that links it to queues.
        let mut outcome = Ok(());
        for flags in flags {
            outcome = channel.request(&options(*flags));
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
        // A burst that exceeds the socket's buffer is not fatal: what did not fit has passed, or was dropped.
        sockopt::set_int(&channel, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, 1)?;
        let room = |name| sockopt::set_int(&channel, libc::SOL_SOCKET, name, socket_bytes);
        // To exceed net.core.rmem_max requires a privilege that root of a user namespace lacks.
        room(libc::SO_RCVBUFFORCE).or_else(|_| room(libc::SO_RCVBUF))?;
        let buffer = RefCell::new(vec![0; BUFFER_BYTES]);
        Ok(Self { verdicts: Verdicts { channel, number }, buffer })
    }

    /// The packets that are ready to be read.
    ///
    /// # Errors
    /// `WouldBlock` when there are none.
    pub fn receive(&self) -> io::Result<Vec<Packet>> {
        let mut buffer = self.buffer.borrow_mut();
        let received = self.verdicts.channel.receive(&mut buffer, false)?;
        Ok(messages(received)
            .filter(|message| message.kind == PACKET)
            .filter_map(|message| packet(message.body.get(4..)?))
            .collect())
    }

    /// Gives the verdicts on its packets.
    pub fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }
}

impl AsFd for NfQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.verdicts.channel.as_fd()
    }
}

impl AsRawFd for NfQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.verdicts.channel.as_raw_fd()
    }
}

/// Gives the verdicts on the packets of a queue.
#[derive(Debug)]
pub struct Verdicts {
    channel: Channel,
    number: u16,
}

impl Verdicts {
    /// Verdicts for a queue that another process has bound to this descriptor.
    pub fn of(channel: OwnedFd, number: u16) -> Self {
        Self { channel: Channel::of(channel), number }
    }

    /// The number of the queue.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Accepts or drops a packet; sets another firewall mark, if given.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn give(&self, packet: u32, passes: bool, mark: Option<u32>) -> io::Result<()> {
        let outcome = if passes { libc::NF_ACCEPT } else { libc::NF_DROP };
        let mut header = outcome.to_be_bytes().to_vec();
        header.extend_from_slice(&packet.to_be_bytes());
        let mut message = Message::netfilter(VERDICT, 0, 0, self.number).with(2, &header);
        if let Some(mark) = mark {
            message = message.with(3, &mark.to_be_bytes());
        }
        self.channel.send(&message.finish())
    }

    /// Accepts all packets that wait.
    ///
    /// # Errors
    /// When the kernel refuses. It does not report that nothing waits.
    pub fn pass_all(&self) -> io::Result<()> {
        let mut header = libc::NF_ACCEPT.to_be_bytes().to_vec();
        header.extend_from_slice(&LAST.to_be_bytes());
        let all = Message::netfilter(VERDICTS, 0, 0, self.number).with(2, &header);
        self.channel.send(&all.finish())
    }
}

fn packet(bytes: &[u8]) -> Option<Packet> {
    let mut packet = Packet::default();
    let mut named = false;
    for (kind, value) in attributes(bytes) {
        match kind {
            1 => {
                packet.id = number(value)?;
                named = true;
            }
            3 => packet.mark = number(value)?,
            5 => packet.interface = number(value)?,
            6 => packet.egress = number(value)?,
            10 => packet.bytes = value.to_vec(),
            11 => packet.connection = Connection::read(value),
            _ => {}
        }
    }
    named.then_some(packet)
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_packet_is_read_with_its_mark_and_its_interfaces() {
        let bytes = Message::netfilter(PACKET, 0, 0, 7)
            .with(1, &[0, 0, 0, 9, 8, 0, 3])
            .with(3, &5u32.to_be_bytes())
            .with(5, &2u32.to_be_bytes())
            .with(6, &3u32.to_be_bytes())
            .with(10, b"a packet")
            .finish();
        let message = messages(&bytes).next().expect("a message");
        let read = packet(&message.body[4..]).expect("a packet");
        assert_eq!((read.id, read.mark, read.interface, read.egress), (9, 5, 2, 3));
        assert_eq!((read.bytes.as_slice(), read.connection), (&b"a packet"[..], None));
        assert_eq!(packet(&message.body[4 + 12..]), None, "nobody can name it");
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = packet(&bytes);
        }
    }
}
