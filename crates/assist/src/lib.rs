//! Agents that process the packets of TCP connections between their ends, and end no connection.
//!
//! [`Snoop`] and [`DProxy`] repair losses from a cache. [`AckDecimation`] forwards fewer acknowledgements, and
//! [`AckSpacing`] more even ones. All are sans-IO: time is an argument, and the result of a call is a list of
//! [`Actions`]. Agents know a packet by its [`Carried`]. It may be a simulator's packet, which has no bytes, or one
//! that a kernel handed over, whose headers [`wire`] reads and writes.
//!
//! Invariants of all: the state of packets and flows is bounded; nothing is acknowledged that the receiver has
//! not acknowledged; a segment's payload is forwarded unchanged.
//!
//! Source: RFC 3135 §3 for agents of this kind, and those that each module names.
//!
//! Decision 0034.

mod acks;
mod agent;
mod d_proxy;
mod decimation;
mod flows;
mod judge;
pub mod message;
mod round_trip;
mod sequence;
mod snoop;
mod spacing;
mod spans;
#[cfg(test)]
mod testing;
pub mod wire;

pub use acks::acknowledgement;
pub use agent::{Agent, Headed, Heading, Row};
pub use d_proxy::{DProxy, DProxySettings, Side};
pub use decimation::{AckDecimation, AckDecimationSettings, DECIMATED};
pub use snoop::{Snoop, SnoopSettings};
pub use spacing::{AckSpacing, AckSpacingSettings};

use midhop_tcp::Segment;
use midhop_units::Duration;
use std::fmt::Debug;
use std::ops::RangeInclusive;

/// One of the two directions of a flow: the key by which an agent finds its state.
pub trait Way: Copy + Ord + Debug {
    /// The other direction of the flow.
    #[must_use]
    fn back(self) -> Self;
}

/// A TCP packet as an agent processes it.
pub trait Carried: Clone + Debug {
    /// The key of its flow and direction.
    type Way: Way;

    /// Its flow and direction.
    fn way(&self) -> Self::Way;

    /// Its header.
    fn segment(&self) -> &Segment;

    /// The same packet with another header: acknowledgment number, window, timestamps and SACK blocks may differ.
    #[must_use]
    fn with(self, segment: Segment) -> Self;

    /// Header and payload of the network layer. Unit: bytes.
    fn size(&self) -> u32;

    /// How much of a cache it takes. Unit: bytes.
    ///
    /// Where caches stand for links, that is the packet alone; where they take memory, [`place`] as well.
    fn room(&self) -> u64 {
        self.size().into()
    }

    /// Whether it is a pure acknowledgement.
    fn is_pure_ack(&self) -> bool {
        self.segment().is_pure_ack()
    }
}

/// The memory that an agent's cache takes for a packet, beside the packet's own bytes. Unit: bytes.
///
/// A map that grows at its end keeps its nodes half full.
pub const fn place<P>() -> u64 {
    2 * size_of::<P>() as u64 + 256
}

/// What an agent wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<P, W> {
    /// Forward the packet: one that came, changed or not, or a copy.
    Send(P),
    /// Drop the packet, for this cause.
    Drop(P, &'static str),
    /// Send a report on a flow's direction to the other of two agents.
    Report(W, Report),
}

/// A report of one of two agents to the other, about a span of sequence numbers in a stream that passes between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// What happened to the span.
    pub topic: Topic,
    /// Its first sequence number.
    pub from: u32,
    /// The sequence number after it.
    pub to: u32,
}

/// What happened to a part of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// It is missing behind the lossy path.
    Wanted,
    /// It has not passed the agent before the lossy path, or is left to the source.
    Lacking,
    /// It is a segment that has just arrived behind the lossy path.
    Arrived,
    /// It was retransmitted.
    Resent,
}

/// Collects what an agent wants done, in order.
#[derive(Debug)]
pub struct Actions<P: Carried>(Vec<Action<P, P::Way>>);

impl<P: Carried> Default for Actions<P> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<P: Carried> Actions<P> {
    /// Forwards a packet.
    pub fn send(&mut self, packet: P) {
        self.0.push(Action::Send(packet));
    }

    /// Drops a packet.
    pub fn drop(&mut self, packet: P, cause: &'static str) {
        self.0.push(Action::Drop(packet, cause));
    }

    /// Sends a report to the other of two agents.
    pub fn report(&mut self, way: P::Way, report: Report) {
        self.0.push(Action::Report(way, report));
    }

    /// Removes what was collected. The capacity stays.
    pub fn drain(&mut self) -> impl Iterator<Item = Action<P, P::Way>> + '_ {
        self.0.drain(..)
    }
}

/// What is wrong with an agent's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key of the wrong setting.
    pub key: &'static str,
    /// What is wrong.
    pub what: String,
    /// Which values are valid.
    pub hint: String,
}

/// If an acknowledgement is held for longer, its sender takes it for lost.
const HOLD_MAX: Duration = Duration::from_s(1);

impl Fault {
    /// Checks that a number is one of a range.
    fn unless_within(
        key: &'static str,
        number: u32,
        range: RangeInclusive<u32>,
    ) -> Result<(), Self> {
        if range.contains(&number) {
            return Ok(());
        }
        let hint = format!("{} to {}", range.start(), range.end());
        Err(Self { key, what: format!("{number} is out of range"), hint })
    }

    /// Checks that an acknowledgement may be held for so long.
    fn unless_short(key: &'static str, time: Duration) -> Result<(), Self> {
        if time <= HOLD_MAX {
            return Ok(());
        }
        let hint = format!("at most {HOLD_MAX}");
        Err(Self { key, what: format!("{time} is too long"), hint })
    }
}

/// The counts of an agent, under the names of a record.
pub type Counts = Vec<(&'static str, u64)>;
