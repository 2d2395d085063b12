//! A netfilter queue of the daemon. The keeper gives its verdicts where there is one.
//!
//! Decision 0007.

mod watch;

use crate::keeper::line::line;
use crate::keeper::order::{LeftPackets, Order, Verdict};
use midhop_linux::nfqueue::{NfQueue, Packet, Verdicts};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Receive buffer of a worker: some hundreds of SYNs. With more, each SYN would wait for too long.
const SOCKET_BYTES: i32 = 1 << 20;

/// This many drops are sent together: a drop is not urgent, and each message wakes the keeper.
const DROPPED_TOGETHER: usize = 32;

/// One bound queue.
#[derive(Debug)]
pub struct Queue {
    queue: NfQueue,
    /// Verdicts that are to be sent to the keeper.
    given: RefCell<Vec<Verdict>>,
}

impl Queue {
    /// Binds a queue that holds at most `limit` packets; more pass by.
    pub fn bind(number: u16, limit: u32) -> io::Result<Self> {
        let queue = NfQueue::bind(number, limit, SOCKET_BYTES)?;
        Ok(Self { queue, given: RefCell::default() })
    }

    /// Binds a queue that holds at most `limit` packets; more are dropped. Only their headers are to be had.
    pub fn bind_shut(number: u16, limit: u32) -> io::Result<Self> {
        let queue = NfQueue::bind_shut(number, limit, SOCKET_BYTES)?;
        Ok(Self { queue, given: RefCell::default() })
    }

    /// The packets in the queue now; `WouldBlock` when there are none.
    pub fn receive(&self) -> io::Result<Vec<Packet>> {
        self.queue.receive()
    }

    /// The kernel's number of the queue.
    pub fn number(&self) -> u16 {
        self.queue.verdicts().number()
    }

    /// Lets a packet go on, with another firewall mark if one is given.
    pub fn pass(&self, id: u32, mark: Option<u32>) -> io::Result<()> {
        self.verdict(id, true, mark)
    }

    /// Drops a packet.
    pub fn drop(&self, id: u32) -> io::Result<()> {
        self.verdict(id, false, None)
    }

    /// Lets the keeper give the verdicts, where there is one. [`Queue::give`] sends those of a turn together.
    ///
    /// # Errors
    /// When it does not take the queue.
    pub fn hand_over(&self) -> io::Result<()> {
        self.hand_over_with(LeftPackets::Passes)
    }

    /// The same; the packets that are in it when this process ends are dropped.
    ///
    /// # Errors
    /// As [`Queue::hand_over`].
    pub fn hand_over_shut(&self) -> io::Result<()> {
        self.hand_over_with(LeftPackets::Drops)
    }

    fn hand_over_with(&self, left: LeftPackets) -> io::Result<()> {
        let Some(line) = line() else { return Ok(()) };
        line.order(&Order::Queue(self.number(), left), Some(&self.queue)).map(drop)
    }

    fn verdict(&self, packet: u32, passes: bool, mark: Option<u32>) -> io::Result<()> {
        if line().is_some() {
            let verdict = Verdict { queue: self.number(), packet, passes, mark };
            self.given.borrow_mut().push(verdict);
            return Ok(());
        }
        self.queue.verdicts().give(packet, passes, mark)
    }

    /// Whether the pending verdicts are due: a packet that may go on does not wait for others.
    pub fn is_due(&self) -> bool {
        let given = self.given.borrow();
        given.len() >= DROPPED_TOGETHER || given.iter().any(|verdict| verdict.passes)
    }

    /// Sends the pending verdicts. When this returns, the packets that may pass have passed.
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

    /// Sends the pending verdicts.
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

/// Gives the verdicts on the packets of a queue that another process reads.
#[derive(Debug)]
pub struct QueueJudge(Verdicts, LeftPackets);

impl QueueJudge {
    /// Creates it for a queue.
    pub fn of(channel: OwnedFd, number: u16, left: LeftPackets) -> Self {
        Self(Verdicts::of(channel, number), left)
    }

    /// Whether the packets in it go on when it is dropped.
    pub fn passes(&self) -> bool {
        self.1 == LeftPackets::Passes
    }

    /// Gives a verdict.
    ///
    /// # Errors
    /// When it is another queue's, or the kernel refuses.
    pub fn give(&self, verdict: &Verdict) -> io::Result<()> {
        let Verdict { queue, packet, passes, mark } = *verdict;
        if queue != self.0.number() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.0.give(packet, passes, mark)
    }
}

impl Drop for QueueJudge {
    fn drop(&mut self) {
        // The reader of the queue is gone. The packets in it go on, as they would have without a
        // queue. The table stops those that may not pass. Others are dropped by the kernel.
        if self.passes() {
            let _ = self.0.pass_all();
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.as_raw_fd()
    }
}
