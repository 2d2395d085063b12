//! A netfilter queue: packets that wait in the kernel until the daemon says what becomes of them.

mod watch;

use crate::netlink::{Channel, Message, attributes, messages};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

const SUBSYSTEM: u16 = 3;
const PACKET: u16 = SUBSYSTEM << 8;
const VERDICT: u16 = SUBSYSTEM << 8 | 1;
const CONFIG: u16 = SUBSYSTEM << 8 | 2;
/// Enough of a packet for all headers that are looked at.
const COPIED_BYTES: u32 = 256;
/// When the queue is full, packets pass instead of being dropped.
const FAIL_OPEN: u32 = 1;

/// One bound queue.
#[derive(Debug)]
pub struct Queue {
    channel: Channel,
    number: u16,
}

/// A packet that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// What the verdict names it by.
    pub id: u32,
    /// Index of the interface on which it came.
    pub interface: u32,
    /// Its headers, from the network layer on.
    pub headers: Vec<u8>,
}

impl Queue {
    /// Binds a queue that holds at most `limit` packets; more pass by.
    pub fn bind(number: u16, limit: u32) -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkNetFilter)?;
        let config = || Message::netfilter(CONFIG, libc::NLM_F_ACK, 0, number);
        let bind = config().with(1, &[1, 0, 0, 0]);
        let [a, b, c, d] = COPIED_BYTES.to_be_bytes();
        let options = config()
            .with(2, &[a, b, c, d, 2])
            .with(3, &limit.to_be_bytes())
            .with(4, &FAIL_OPEN.to_be_bytes())
            .with(5, &FAIL_OPEN.to_be_bytes());
        channel.request(&bind.finish())?;
        channel.request(&options.finish())?;
        // A burst beyond the socket's buffer is no reason to stop: what did not fit passed by.
        crate::sockopt::set_int(&channel, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, 1)?;
        Ok(Self { channel, number })
    }

    /// The packets that are there now; `WouldBlock` when there are none.
    pub fn receive(&self) -> io::Result<Vec<Packet>> {
        let mut buffer = [0; 16 << 10];
        let received = self.channel.receive(&mut buffer, false)?;
        Ok(messages(received)
            .filter(|message| message.kind == PACKET)
            .filter_map(|message| packet(message.body.get(4..)?))
            .collect())
    }

    /// Lets a packet go on, with another firewall mark if one is given.
    pub fn pass(&self, id: u32, mark: Option<u32>) -> io::Result<()> {
        self.verdict(id, libc::NF_ACCEPT, mark)
    }

    /// Drops a packet.
    pub fn drop(&self, id: u32) -> io::Result<()> {
        self.verdict(id, libc::NF_DROP, None)
    }

    fn verdict(&self, id: u32, verdict: i32, mark: Option<u32>) -> io::Result<()> {
        let mut header = verdict.to_be_bytes().to_vec();
        header.extend_from_slice(&id.to_be_bytes());
        let mut message = Message::netfilter(VERDICT, 0, 0, self.number).with(2, &header);
        if let Some(mark) = mark {
            message = message.with(3, &mark.to_be_bytes());
        }
        self.channel.send(&message.finish())
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

fn packet(bytes: &[u8]) -> Option<Packet> {
    let mut packet = Packet { id: 0, interface: 0, headers: Vec::new() };
    let mut named = false;
    for (kind, value) in attributes(bytes) {
        match kind {
            1 => {
                packet.id = number(value)?;
                named = true;
            }
            5 => packet.interface = number(value)?,
            10 => packet.headers = value.to_vec(),
            _ => {}
        }
    }
    named.then_some(packet)
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}
