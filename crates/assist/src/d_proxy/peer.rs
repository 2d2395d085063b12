//! What the agent behind the lossy way knows of the one before it: how long its answers take, and whether it repairs.
//!
//! A peer that only looks on, or is gone, is not waited for: what is held then keeps from the source that something was lost, until
//! its retransmission timer runs out.

use crate::round_trip::RoundTrip;
use midhop_units::{Duration, Instant};

/// How long a peer that has sent something again is taken to do so.
pub(super) const REPAIRS: Duration = Duration::from_s(60);
/// How long an answer is waited for as long as none has come (RFC 6298 §2.1).
const FIRST_WAIT: Duration = Duration::from_s(1);
/// No answer is expected faster.
const WAIT_MIN: Duration = Duration::from_ms(10);
/// So many gaps in a row that were filled late, without a word from the peer, show that it is gone: reports may be lost.
const UNANSWERED_MAX: u32 = 3;

#[derive(Debug)]
pub(super) struct Peer {
    /// Whether it is waited for only where it has shown that it repairs.
    must_show: bool,
    /// To it and back.
    rtt: RoundTrip,
    /// When it last reported anything.
    last_report: Instant,
    /// Until when it is taken to send again what is lost.
    repairs: Instant,
    /// How many gaps have been filled since it last reported anything, later than it takes.
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

    /// It reports something; `repairs`: it has sent something again.
    pub fn on_report(&mut self, now: Instant, repairs: bool) {
        (self.last_report, self.unanswered) = (now, 0);
        if repairs {
            self.repairs = now + REPAIRS;
        }
    }

    /// What was asked for at `asked`, and once only, has come or is known to be lacking.
    pub fn on_answer(&mut self, now: Instant, asked: Instant) {
        let took = now - asked;
        // What comes again may come before the report of it.
        if took <= self.wait() || !self.is_silent_since(asked) {
            self.rtt.sample(took);
            return;
        }
        // Its source has sent it again.
        self.unanswered += 1;
        if self.unanswered >= UNANSWERED_MAX {
            self.on_no_answer(now);
        }
    }

    /// It has not answered for as long as is waited.
    pub fn on_no_answer(&mut self, now: Instant) {
        self.repairs = self.repairs.min(now);
    }

    /// Whether what is lost is waited for at all.
    pub fn repairs(&self, now: Instant) -> bool {
        !self.must_show || now < self.repairs
    }

    /// Whether it has reported nothing since then, though a peer that repairs must answer.
    pub fn is_silent_since(&self, then: Instant) -> bool {
        self.must_show && self.last_report <= then
    }

    /// How long an answer is waited for.
    pub fn wait(&self) -> Duration {
        self.rtt.timeout(WAIT_MIN).unwrap_or(FIRST_WAIT)
    }
}
