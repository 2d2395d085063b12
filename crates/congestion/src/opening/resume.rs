//! Careful Resume: a connection begins at the window of an earlier one over the same path.
//!
//! Source: RFC 9959. [`Observer`] is the Observe Phase, `Resume` the others: Reconnaissance (is this
//! the saved path?), Unvalidated (the jump, spread over a round trip), Validating (does the
//! sent data arrive?), Safe Retreat (it did not), Normal. PipeSize counts what the path is known to
//! carry.
//!
//! With [`Jump::Known`] the same machine jumps at the first round trip to a configured rate, as
//! a proxy knows it of its own modem: nothing has to be confirmed, slow start ends there, and everything
//! else, the retreat too, is as in the RFC.
//!
//! Differs: transmissions of the Unvalidated Phase are recognised by count, since every
//! transmission ends delivered or lost; the end of the round trip is checked when an acknowledgement
//! arrives. Acknowledgements for data sent before the jump are part of the PipeSize from the start, as
//! flight_size, and not counted again, as in the RFC's examples. A saved record has no lifetime here: the
//! keeper of records decides when they are too old.
//!
//! Invariant: at any time at most one connection sends by a [`Record`], and none once it has failed.

use crate::{
    Ack, Established, Handover, Loss, LostSegment, reno,
    segments::{Segmented, saturated},
};
use midhop_units::{Bytes, Duration, Instant, Rate};
use record::Claim;
pub use record::Record;

/// What an earlier connection measured on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// saved_cwnd: the bytes delivered in a round trip.
    pub window: Bytes,
    /// saved_rtt: the smallest round-trip time.
    pub rtt: Duration,
}

/// The target of a connection's jump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Jump {
    /// To half of the saved window, where the path is the same (RFC 9959), but not beyond `window_max`.
    Saved {
        /// The saved values, and whether another connection is using them.
        record: Record,
        /// max_jump: the largest jump.
        window_max: Bytes,
    },
    /// To the product of a known rate and the round-trip time, but not beyond `window_max`.
    Known {
        /// The path's rate, for this connection alone.
        rate: Rate,
        /// The largest jump.
        window_max: Bytes,
    },
}

/// The Observe Phase: measures what to save.
///
/// Give it every acknowledgement of a connection; save its result at the connection's end. A round
/// trip that a queue had made longer counts for the data that it delivered in the time of the shortest, so that
/// an overshoot does not count as capacity (RFC 9959, "Observing the Path Capacity").
#[derive(Debug, Clone, Copy, Default)]
pub struct Observer {
    round: u64,
    delivered: Bytes,
    window: Bytes,
    rtt: Option<Duration>,
    /// The shortest of this round.
    rtt_round: Option<Duration>,
}

impl Observer {
    /// An acknowledgement.
    pub fn on_ack(&mut self, ack: &Ack) {
        if ack.round != self.round {
            // A round cut short by a lack of data adds nothing new, but nothing wrong.
            self.window = self.window.max(self.carried());
            self.round = ack.round;
            self.delivered = Bytes::ZERO;
            self.rtt_round = None;
        }
        self.delivered = self.delivered.saturating_add(ack.acked);
        if let Some(rtt) = ack.rtt {
            self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
            self.rtt_round = Some(self.rtt_round.map_or(rtt, |least| least.min(rtt)));
        }
    }

    /// What this round has delivered per shortest round-trip time.
    fn carried(&self) -> Bytes {
        match (self.rtt, self.rtt_round) {
            (Some(least), Some(round)) if round > least => {
                let bytes = u128::from(self.delivered.get()) * u128::from(least.as_ns());
                let bytes = bytes / u128::from(round.as_ns());
                Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
            _ => self.delivered,
        }
    }

    /// The most delivered in a round trip; `None` before the first is over.
    pub fn saved(&self) -> Option<Saved> {
        let rtt = self.rtt?;
        (self.window > Bytes::ZERO).then_some(Saved { window: self.window, rtt })
    }
}

/// The state of the jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Reconnaissance,
    Unvalidated {
        entered: Instant,
        rtt: Duration,
        leap: Leap,
    },
    /// Until the transmission `last` has ended.
    Validating {
        last: u64,
        leap: Leap,
    },
    /// Likewise; `last` is `None` until the next acknowledgement reports the data in flight.
    Retreat {
        loss: Loss,
        last: Option<u64>,
        leap: Leap,
    },
    Normal,
}

/// A jump. Transmissions are numbered by their bytes, in the order they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leap {
    /// The first of its transmissions.
    first: u64,
    /// PipeSize.
    pipe: u64,
}

impl Leap {
    /// Of `acked` more bytes, with which `ended` transmissions have ended, the bytes of the jump show
    /// the path's capacity; earlier ones are counted already.
    fn count(self, acked: u64, ended: u64) -> Self {
        let of_the_jump = ended.saturating_sub(self.first).min(acked);
        Self { pipe: self.pipe.saturating_add(of_the_jump), ..self }
    }
}

/// A beginning with a jump.
#[derive(Debug)]
pub(crate) struct Resume {
    jump: Jump,
    phase: Phase,
    window_initial: Bytes,
    /// The shortest of the Reconnaissance Phase.
    rtt_min: Option<Duration>,
    /// While this connection uses the record.
    claim: Option<Claim>,
    delivered: u64,
    lost: u64,
    in_flight: u64,
}

impl Resume {
    /// A jump of a connection that begins with `window`.
    pub fn new(jump: Jump, window: Bytes) -> Self {
        Self {
            window_initial: window,
            jump,
            phase: Phase::Reconnaissance,
            rtt_min: None,
            claim: None,
            delivered: 0,
            lost: 0,
            in_flight: 0,
        }
    }

    /// The law has processed it already.
    pub fn on_established(&mut self, law: &mut dyn Segmented, established: &Established) {
        self.confirm(established.rtt);
        if let (Jump::Known { .. }, Some(rtt)) = (&self.jump, established.rtt) {
            self.leap(law, established.now, rtt);
        }
    }

    /// Processes an acknowledgement for the jump; returns whether the law may grow by it.
    pub fn on_ack(&mut self, law: &mut dyn Segmented, ack: &Ack) -> bool {
        self.delivered = self.delivered.saturating_add(ack.acked.get());
        self.in_flight = ack.in_flight.get();
        let acked = ack.acked.get();
        match self.phase {
            Phase::Normal => true,
            Phase::Reconnaissance => {
                self.confirm(ack.rtt);
                if let Some(rtt) = ack.rtt
                    && !ack.app_limited
                    && self.delivered >= self.window_initial.get()
                {
                    self.leap(law, ack.now, rtt);
                    // The acknowledgement that ends the phase grows the window only without a jump.
                    return self.phase == Phase::Normal;
                }
                true
            }
            Phase::Unvalidated { entered, rtt, leap } => {
                let flight = self.in_flight.saturating_add(acked);
                let used_up = flight.saturating_add(mss(law)) > law.window().get();
                let arrives = self.ended() > leap.first;
                if arrives || used_up || ack.now.saturating_since(entered) >= rtt {
                    self.land(law, flight, leap.count(acked, self.ended()));
                }
                false
            }
            Phase::Validating { last, leap } => {
                let leap = leap.count(acked, self.ended());
                self.phase = Phase::Validating { last, leap };
                if self.ended() >= last {
                    self.end();
                }
                true
            }
            Phase::Retreat { loss, last, leap } => {
                let leap = leap.count(acked, self.ended());
                let last = last.unwrap_or(self.ended() + self.in_flight);
                self.phase = Phase::Retreat { loss, last: Some(last), leap };
                if self.ended() >= last {
                    self.come_back(law, &loss, leap.pipe);
                }
                false
            }
        }
    }

    /// Whether the law handles the loss itself: not a loss of the jump.
    pub fn on_loss(&mut self, law: &mut dyn Segmented, loss: &Loss) -> bool {
        match self.phase {
            Phase::Unvalidated { leap, .. } => self.retreat(law, loss, None, leap),
            Phase::Validating { last, leap } => self.retreat(law, loss, Some(last), leap),
            Phase::Retreat { .. } => {}
            Phase::Reconnaissance | Phase::Normal => {
                self.phase = Phase::Normal;
                return true;
            }
        }
        false
    }

    /// The law handles it next.
    pub fn on_rto(&mut self, law: &mut dyn Segmented) {
        match self.phase {
            Phase::Unvalidated { leap, .. }
            | Phase::Validating { leap, .. }
            | Phase::Retreat { leap, .. } => set_window(law, leap.pipe),
            Phase::Reconnaissance | Phase::Normal => {}
        }
        if let Some(claim) = self.claim.take() {
            claim.fail();
        }
        self.end();
    }

    /// A spurious loss still ends the jump: what it had found is not undone. The law handles it next.
    pub fn on_spurious(&mut self, law: &mut dyn Segmented) {
        if let Phase::Retreat { loss, leap, .. } = self.phase {
            self.come_back(law, &loss, leap.pipe);
        }
    }

    /// The new path is not the saved one, and nothing shows that it carries the data in flight.
    /// The law has processed it already.
    pub fn on_handover(&mut self, law: &mut dyn Segmented, handover: &Handover) {
        match self.phase {
            Phase::Reconnaissance => self.phase = Phase::Normal,
            Phase::Unvalidated { leap, .. } => {
                let in_flight = Bytes::new(self.in_flight);
                let loss = Loss { now: handover.now, lost: Bytes::ZERO, in_flight };
                self.retreat(law, &loss, None, leap);
            }
            Phase::Validating { .. } | Phase::Retreat { .. } | Phase::Normal => {}
        }
    }

    pub fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.lost = self.lost.saturating_add(segment.size.get());
    }

    /// Whether the opening and not the transport has reduced the window.
    pub fn governs_recovery(&self) -> bool {
        matches!(self.phase, Phase::Retreat { .. })
    }

    /// The pacing rate for the jump to `window`; `None` without a jump.
    pub fn pacing_rate(&self, window: Bytes) -> Option<Rate> {
        match self.phase {
            Phase::Unvalidated { rtt, .. } => Some(Rate::of(window, rtt)),
            _ => None,
        }
    }

    fn confirm(&mut self, rtt: Option<Duration>) {
        self.rtt_min = self.rtt_min.into_iter().chain(rtt).min();
    }

    /// The size of the jump over a path of `rtt`; `None` where it is not the saved path.
    fn jump(&self, rtt: Duration) -> Option<u64> {
        match &self.jump {
            Jump::Known { rate, window_max } => Some(rate.bytes_in(rtt).min(*window_max).get()),
            Jump::Saved { record, window_max } => {
                let saved = record.saved()?;
                let shortest = self.rtt_min.unwrap_or(rtt);
                let most = Duration::from_ns(saved.rtt.as_ns().saturating_mul(10));
                let same = shortest > saved.rtt / 2 && shortest <= most;
                same.then_some((saved.window.get() / 2).min(window_max.get()))
            }
        }
    }

    /// Jumps, or continues without a jump that would gain nothing.
    fn leap(&mut self, law: &mut dyn Segmented, now: Instant, rtt: Duration) {
        self.phase = Phase::Normal;
        let Some(jump) = self.jump(rtt) else { return };
        if jump <= law.window().get() {
            return;
        }
        if let Jump::Saved { record, .. } = &self.jump {
            let Some(claim) = record.claim() else { return };
            self.claim = Some(claim);
        }
        let leap = Leap { first: self.ended() + self.in_flight, pipe: self.in_flight };
        self.phase = Phase::Unvalidated { entered: now, rtt, leap };
        if let Jump::Known { .. } = self.jump {
            // Doubling would find nothing beyond it.
            let most = saturated(jump / mss(law));
            let window = law.segments();
            window.ssthresh = window.ssthresh.min(most.max(reno::WINDOW_MIN));
        }
        set_window(law, jump);
    }

    /// The jump is over: was it used?
    fn land(&mut self, law: &mut dyn Segmented, flight: u64, leap: Leap) {
        let window = law.window().get();
        let without = leap.pipe.max(self.window_initial.get()).min(window);
        let flight = flight.min(window);
        if flight <= without {
            set_window(law, without);
            self.end();
        } else {
            set_window(law, flight);
            self.phase = Phase::Validating { last: self.ended() + self.in_flight, leap };
        }
    }

    /// Transmissions whose fate is known.
    fn ended(&self) -> u64 {
        self.delivered + self.lost
    }

    fn retreat(&mut self, law: &mut dyn Segmented, loss: &Loss, last: Option<u64>, leap: Leap) {
        if let Some(claim) = self.claim.take() {
            claim.fail();
        }
        let half = (leap.pipe / 2).min(law.window().get());
        set_window(law, half);
        self.phase = Phase::Retreat { loss: *loss, last, leap };
    }

    /// The law handles the loss as one of the window that the path has carried: its
    /// threshold and its memory come from there, its window stays.
    fn come_back(&mut self, law: &mut dyn Segmented, loss: &Loss, pipe: u64) {
        let window = law.window().get();
        set_window(law, pipe);
        law.on_loss(loss);
        let carried = saturated(pipe / mss(law));
        let own = law.segments();
        if own.ssthresh > carried {
            // A law that does not treat losses as congestion; then β is the RFC's, 0.5.
            own.ssthresh = reno::halve(carried);
        }
        let window = window.min(law.window().get());
        set_window(law, window);
        self.end();
    }

    /// Careful Resume is over: another connection may use the record, if it has not failed.
    fn end(&mut self) {
        self.phase = Phase::Normal;
        self.claim = None;
    }
}

fn mss(law: &mut dyn Segmented) -> u64 {
    u64::from(law.segments().mss())
}

fn set_window(law: &mut dyn Segmented, bytes: u64) {
    let segments = saturated(bytes / mss(law));
    law.segments().cwnd = segments.max(reno::WINDOW_MIN);
}

mod record;

#[cfg(test)]
mod tests;
