//! What the agent behind the lossy path knows of its peer before it: how long answers take, and whether it repairs.
//!
//! If the peer only observes, or is gone, nothing is held for it: a held segment hides the loss from the source until
//! the source's retransmission timer fires.

use crate::round_trip::RoundTrip;
use midhop_units::{Duration, Instant};

/// So long after a retransmission a peer still counts as one that repairs.
pub(super) const REPAIRS: Duration = Duration::from_s(60);
/// The timeout of a request before any answer was measured (RFC 6298 §2.1).
const FIRST_WAIT: Duration = Duration::from_s(1);
/// The least timeout of a request.
const WAIT_MIN: Duration = Duration::from_ms(10);
/// So many gaps in a row that were filled late, without a report of the peer, show that it is gone. One is not enough:
/// reports may be lost.
const UNANSWERED_MAX: u32 = 3;

#[derive(Debug)]
pub(super) struct Peer {
    /// Whether the peer must have shown that it repairs before anything is held.
    must_show: bool,
    /// The round trip to the peer.
    rtt: RoundTrip,
    /// When it last reported anything.
    last_report: Instant,
    /// Until when it counts as one that repairs.
    repairs: Instant,
    /// How many gaps since its last report were filled later than an answer of the peer takes.
    unanswered: u32,
}

impl Peer {
    pub fn new(must_show: bool) -> Self {
        Self {
            must_show,
            rtt: RoundTrip::default(),
            last_report: Instant::START,
            repairs: Instant::START,
            unanswered: 0,
        }
    }

    /// It reports something. `repairs`: it has retransmitted something.
    pub fn on_report(&mut self, now: Instant, repairs: bool) {
        (self.last_report, self.unanswered) = (now, 0);
        if repairs {
            self.repairs = now + REPAIRS;
        }
    }

    /// Data that was requested once, at `asked`, has arrived or was reported as lacking.
    pub fn on_answer(&mut self, now: Instant, asked: Instant) {
        let took = now - asked;
        // The retransmission may arrive before the report of it.
        if took <= self.wait() || !self.is_silent_since(asked) {
            self.rtt.sample(took);
            return;
        }
        // The source has retransmitted it.
        self.unanswered += 1;
        if self.unanswered >= UNANSWERED_MAX {
            self.on_no_answer(now);
        }
    }

    /// A request was not answered in time.
    pub fn on_no_answer(&mut self, now: Instant) {
        self.repairs = self.repairs.min(now);
    }

    /// Whether lost data is waited for at all.
    pub fn repairs(&self, now: Instant) -> bool {
        !self.must_show || now < self.repairs
    }

    /// Whether it has reported nothing since then, although a peer that repairs must answer.
    pub fn is_silent_since(&self, then: Instant) -> bool {
        self.must_show && self.last_report <= then
    }

    /// The timeout of a request.
    pub fn wait(&self) -> Duration {
        self.rtt.timeout(WAIT_MIN).unwrap_or(FIRST_WAIT)
    }
}
