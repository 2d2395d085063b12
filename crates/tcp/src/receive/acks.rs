//! When an acknowledgement leaves.
//!
//! Source: RFC 9293 §3.8.6.3 and RFC 5681 §4.2; the quick acknowledgements at the start are Linux'
//! (net/ipv4/tcp_input.c).

use midhop_units::Instant;

use super::reassembly::Arrival;
use crate::settings::DelayedAck;

/// Whether the peer is due an acknowledgement.
#[derive(Debug, Clone)]
pub(crate) struct Owed {
    quick: u32,
    /// The position up to which data was last acknowledged.
    acknowledged: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Nothing,
    By(Instant),
    AtOnce,
}

impl Owed {
    pub fn new(rule: &DelayedAck) -> Self {
        Self { quick: rule.quick, acknowledged: 0, state: State::Nothing }
    }

    /// Data has arrived; everything below `nxt` was received.
    pub fn on_data(
        &mut self,
        now: Instant,
        rule: &DelayedAck,
        arrival: Arrival,
        nxt: u64,
        segment: u64,
    ) {
        let waiting = nxt.saturating_sub(self.acknowledged);
        let full = u64::from(rule.segments.max(1)).saturating_mul(segment);
        if arrival != Arrival::InOrder || self.quick > 0 || waiting >= full {
            self.quick = self.quick.saturating_sub(1);
            self.state = State::AtOnce;
        } else if self.state == State::Nothing {
            self.state = State::By(now + rule.timeout);
        }
    }

    /// An acknowledgement must leave at once.
    pub fn at_once(&mut self) {
        self.state = State::AtOnce;
    }

    pub fn is_due(&self, now: Instant) -> bool {
        match self.state {
            State::Nothing => false,
            State::By(at) => at <= now,
            State::AtOnce => true,
        }
    }

    /// When it is due, if it waits; else [`Instant::NEVER`].
    pub fn due(&self) -> Instant {
        match self.state {
            State::By(at) => at,
            State::Nothing | State::AtOnce => Instant::NEVER,
        }
    }

    /// The position up to which data was last acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// A segment has left that acknowledges everything below `nxt`.
    pub fn on_sent(&mut self, nxt: u64) {
        self.acknowledged = nxt;
        self.state = State::Nothing;
    }
}
