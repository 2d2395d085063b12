//! Agents that meet the packets of TCP connections between their ends and end none of them.
//!
//! [`Snoop`] and [`DProxy`] repair losses from a cache; [`AckDecimation`] and [`AckSpacing`] have fewer, or
//! evener, acknowledgements go on. All are sans-IO: time is an argument, and what they want done stands in
//! [`Actions`]. They know a packet by what [`Carried`] has of it, be it one of a simulator's, which has no bytes,
//! or one that a kernel handed over, whose headers [`wire`] reads and writes.
//!
//! Invariants of all: what is kept of packets and flows has a bound; nothing is acknowledged that its receiver has
//! not acknowledged; a segment's payload is passed on as it came.
//!
//! Source: RFC 3135 §3 for agents of this kind, and each module for its own.

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

/// One of the two directions of a flow, by which an agent tells it from all others.
pub trait Way: Copy + Ord + Debug {
    /// The other direction of the flow.
    #[must_use]
    fn back(self) -> Self;
}

/// A packet of TCP as an agent meets it.
pub trait Carried: Clone + Debug {
    /// How it names its flow and direction.
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

    /// What keeping it takes of a cache. Unit: bytes.
    ///
    /// Where caches stand for links, that is the packet alone; where they take memory, [`place`] as well.
    fn room(&self) -> u64 {
        self.size().into()
    }

    /// Whether it does nothing but acknowledge.
    fn is_pure_ack(&self) -> bool {
        self.segment().is_pure_ack()
    }
}

/// What an agent's cache takes of memory for a packet, beside the packet's own bytes. Unit: bytes.
///
/// A map that grows at its end keeps its nodes half full.
pub const fn place<P>() -> u64 {
    2 * size_of::<P>() as u64 + 256
}

/// What an agent wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<P, W> {
    /// The packet goes on: one that came, changed or not, or a copy.
    Send(P),
    /// The packet is gone, for this cause.
    Drop(P, &'static str),
    /// A report on a flow's direction goes to the other of two agents.
    Report(W, Report),
}

/// What one of two agents reports to the other of what lies from one sequence number to before another, in a stream that passes
/// between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// What became of it.
    pub topic: Topic,
    /// The first of it.
    pub from: u32,
    /// The first that is not.
    pub to: u32,
}

/// What became of a part of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// It is missing behind the lossy way.
    Wanted,
    /// It has not passed the agent before the lossy way, or is left to the source.
    Lacking,
    /// It is a segment that has just arrived behind the lossy way.
    Arrived,
    /// It has been sent again.
    Resent,
}

/// Takes down what an agent wants done, in its order.
#[derive(Debug)]
pub struct Actions<P: Carried>(Vec<Action<P, P::Way>>);

impl<P: Carried> Default for Actions<P> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<P: Carried> Actions<P> {
    /// Lets a packet go on.
    pub fn send(&mut self, packet: P) {
        self.0.push(Action::Send(packet));
    }

    /// Gives a packet up.
    pub fn drop(&mut self, packet: P, cause: &'static str) {
        self.0.push(Action::Drop(packet, cause));
    }

    /// Sends a report to the other of two agents.
    pub fn report(&mut self, way: P::Way, report: Report) {
        self.0.push(Action::Report(way, report));
    }

    /// What was taken down. The room for it stays.
    pub fn drain(&mut self) -> impl Iterator<Item = Action<P, P::Way>> + '_ {
        self.0.drain(..)
    }
}

/// What is wrong with an agent's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Which of them.
    pub key: &'static str,
    /// What.
    pub what: String,
    /// What it may be.
    pub hint: String,
}

/// An acknowledgement that is held for longer its sender takes for lost.
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

/// What an agent counts, under the names of a record: what, and how often.
pub type Counts = Vec<(&'static str, u64)>;
