//! A netfilter queue: packets that wait in the kernel until the daemon says what becomes of them.

mod watch;

use super::conntrack::TrackedConnection;
use crate::keeper::line::line;
use crate::keeper::order::{Order, Verdict};
use midhop_linux::netlink::{Channel, Message, attributes, messages};
use midhop_linux::sockopt;
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

const SUBSYSTEM: u16 = 3;
const PACKET: u16 = SUBSYSTEM << 8;
const VERDICT: u16 = SUBSYSTEM << 8 | 1;
/// A verdict on all packets up to one.
const VERDICTS: u16 = SUBSYSTEM << 8 | 3;
/// A packet behind all that were ever there: they are counted from 1.
const LAST: u32 = i32::MAX.cast_unsigned();
const CONFIG: u16 = SUBSYSTEM << 8 | 2;
/// All of a SYN, whatever headers IPv6 puts before it.
const COPIED_BYTES: u32 = 0xffff;
/// When the queue is full, packets pass instead of being dropped.
const FAIL_OPEN: u32 = 1;
/// What connection tracking knows of the packet comes with it.
const CONNTRACK: u32 = 2;
/// One packet of the largest size, or many SYNs.
const BUFFER_BYTES: usize = 128 << 10;
/// What the kernel may hold for a worker to read: some hundreds of SYNs. With more, each would wait for
/// too long.
const SOCKET_BYTES: i32 = 1 << 20;

/// So many packets are dropped at once: nobody waits for that, and each time wakes the keeper.
const DROPPED_TOGETHER: usize = 32;

/// One bound queue.
#[derive(Debug)]
pub struct Queue {
    channel: Channel,
    number: u16,
    /// Verdicts that wait to be given by the keeper.
    given: RefCell<Vec<Verdict>>,
    buffer: RefCell<Vec<u8>>,
}

/// A packet that waits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packet {
    /// What the verdict names it by.
    pub id: u32,
    /// Index of the interface on which it came.
    pub interface: u32,
    /// Index of the interface by which it leaves; 0 before routing.
    pub egress: u32,
    /// Its firewall mark.
    pub mark: u32,
    /// From the network header on.
    pub bytes: Vec<u8>,
    /// What connection tracking knows of its connection, where the kernel gives it.
    pub connection: Option<TrackedConnection>,
}

impl Queue {
    /// Binds a queue that holds at most `limit` packets; more pass by.
    pub fn bind(number: u16, limit: u32) -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkNetFilter)?;
        let config = || Message::netfilter(CONFIG, libc::NLM_F_ACK, 0, number);
        let bind = config().with(1, &[1, 0, 0, 0]);
        let [a, b, c, d] = COPIED_BYTES.to_be_bytes();
        let options = |flags: u32| {
            config()
                .with(2, &[a, b, c, d, 2])
                .with(3, &limit.to_be_bytes())
                .with(4, &flags.to_be_bytes())
                .with(5, &flags.to_be_bytes())
                .finish()
        };
        channel.request(&bind.finish())?;
        // Not every kernel has connection tracking, or the glue to it.
        if channel.request(&options(FAIL_OPEN | CONNTRACK)).is_err() {
            channel.request(&options(FAIL_OPEN))?;
        }
        // A burst beyond the socket's buffer is no reason to stop: what did not fit passed by.
        sockopt::set_int(&channel, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, 1)?;
        let room = |name| sockopt::set_int(&channel, libc::SOL_SOCKET, name, SOCKET_BYTES);
        // Beyond net.core.rmem_max takes a privilege that root of a user namespace lacks.
        room(libc::SO_RCVBUFFORCE).or_else(|_| room(libc::SO_RCVBUF))?;
        let buffer = RefCell::new(vec![0; BUFFER_BYTES]);
        Ok(Self { channel, number, given: RefCell::default(), buffer })
    }

    /// The packets that are there now; `WouldBlock` when there are none.
    pub fn receive(&self) -> io::Result<Vec<Packet>> {
        let mut buffer = self.buffer.borrow_mut();
        let received = self.channel.receive(&mut buffer, false)?;
        Ok(messages(received)
            .filter(|message| message.kind == PACKET)
            .filter_map(|message| packet(message.body.get(4..)?))
            .collect())
    }

    /// By which the kernel knows it.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Lets a packet go on, with another firewall mark if one is given.
    pub fn pass(&self, id: u32, mark: Option<u32>) -> io::Result<()> {
        self.verdict(id, true, mark)
    }

    /// Drops a packet.
    pub fn drop(&self, id: u32) -> io::Result<()> {
        self.verdict(id, false, None)
    }

    /// Lets the keeper give the verdicts, where there is one: those of a turn together, by [`Queue::give`].
    ///
    /// # Errors
    /// When it does not take the queue.
    pub fn hand_over(&self) -> io::Result<()> {
        let Some(line) = line() else { return Ok(()) };
        line.order(&Order::Queue(self.number), Some(&self.channel)).map(drop)
    }

    fn verdict(&self, packet: u32, passes: bool, mark: Option<u32>) -> io::Result<()> {
        let verdict = Verdict { queue: self.number, packet, passes, mark };
        if line().is_some() {
            self.given.borrow_mut().push(verdict);
            return Ok(());
        }
        give(&self.channel, &verdict)
    }

    /// Whether verdicts that wait are to be given now: a packet that is to go on waits for no others.
    pub fn is_due(&self) -> bool {
        let given = self.given.borrow();
        given.len() >= DROPPED_TOGETHER || given.iter().any(|verdict| verdict.passes)
    }

    /// Gives the verdicts that wait; when it returns, what they let pass has passed.
    ///
    /// # Errors
    /// When there is no keeper any more.
    pub fn settle(&self) -> io::Result<()> {
        let passes = self.given.borrow().iter().any(|verdict| verdict.passes);
        self.give()?;
        match line() {
            Some(line) if passes => line.order(&Order::Settle, None).map(drop),
            _ => Ok(()),
        }
    }

    /// Gives the verdicts that wait.
    ///
    /// # Errors
    /// When there is no keeper any more.
    pub fn give(&self) -> io::Result<()> {
        let given = std::mem::take(&mut *self.given.borrow_mut());
        match line() {
            Some(line) if !given.is_empty() => line.verdicts(&given),
            _ => Ok(()),
        }
    }
}

/// What gives the verdicts on the packets of a queue that another process reads.
#[derive(Debug)]
pub struct QueueJudge {
    channel: Channel,
    number: u16,
}

impl QueueJudge {
    /// That of a queue.
    pub fn of(channel: OwnedFd, number: u16) -> Self {
        Self { channel: Channel::of(channel), number }
    }

    /// Gives a verdict.
    ///
    /// # Errors
    /// When it is another queue's, or the kernel refuses.
    pub fn give(&self, verdict: &Verdict) -> io::Result<()> {
        if verdict.queue != self.number {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        give(&self.channel, verdict)
    }
}

impl Drop for QueueJudge {
    fn drop(&mut self) {
        // Whoever reads the queue is gone. What waits in it goes on, as it would have without a queue; what may
        // not, the table stops. With nothing there the kernel says so, and nobody minds.
        let mut header = libc::NF_ACCEPT.to_be_bytes().to_vec();
        header.extend_from_slice(&LAST.to_be_bytes());
        let all = Message::netfilter(VERDICTS, 0, 0, self.number).with(2, &header);
        let _ = self.channel.send(&all.finish());
    }
}

fn give(channel: &Channel, verdict: &Verdict) -> io::Result<()> {
    let outcome = if verdict.passes { libc::NF_ACCEPT } else { libc::NF_DROP };
    let mut header = outcome.to_be_bytes().to_vec();
    header.extend_from_slice(&verdict.packet.to_be_bytes());
    let mut message = Message::netfilter(VERDICT, 0, 0, verdict.queue).with(2, &header);
    if let Some(mark) = verdict.mark {
        message = message.with(3, &mark.to_be_bytes());
    }
    channel.send(&message.finish())
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
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
            11 => packet.connection = TrackedConnection::read(value),
            _ => {}
        }
    }
    named.then_some(packet)
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}
