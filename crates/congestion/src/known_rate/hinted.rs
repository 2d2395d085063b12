//! A configured rate that may be wrong. The flow sends at it until the path contradicts it, and then measures the path.
//!
//! - *Too much* is configured if a queue stands or much is lost, so that the flow
//!   [retreats](super::KnownRate::retreats), and retreats again before it has returned to the rate.
//! - *Too little* is found by probes: from time to time the flow sends 1.5 times the rate for an eighth of a round
//!   trip. Too little is configured if, twice in a row, the probe arrives faster than the rate and waits less than it
//!   would on a path of the configured rate. The time between probes grows. After each probe a little less is sent, so
//!   that a queue that it left drains. A flow probes only while it is alone on its leg.
//!
//! After that [pulses](crate::pulse) measure what the path carries, and the flow sends at that rate. If it equals the
//! configured rate for long enough, that is believed again; the second time takes twice as long.
//!
//! Source: ours.
//!
//! Decision 0061.

use super::{KnownRate, KnownRateSettings, part};
use crate::arrivals::{Arrival, Arrivals, Span};
use crate::pulse::Pulsed;
use crate::{
    Ack, CongestionControl, Established, Handover, Loss, LostSegment, Restart, Rto, Spurious,
};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// The rate of a probe relative to the configured rate. Unit: percent.
const PROBE_PERCENT: u64 = 150;
/// A probe lasts this part of a round trip.
const PROBE_PART: u64 = 8;
/// A probe has at least so many segments: fewer measure too roughly.
const PROBE_SEGMENTS: u64 = 32;
/// What is sent after a probe until it has arrived, relative to the rate. Unit: percent.
const AFTER_PERCENT: u64 = 94;
/// If too little is configured, a probe arrives at least this fast, relative to the rate. Unit: percent.
const MORE_PERCENT: u64 = 115;
/// If too little is configured, some data of the second half of a probe waits at most this part of the time that it
/// would wait on a path of the configured rate. If the path carries just what [`MORE_PERCENT`] demands, that part is
/// 61 %. Unit: percent.
const WAITED_PERCENT: u64 = 80;
/// So many probes in a row must show it.
const PROBES_AGREE: u32 = 2;
/// Rounds at the rate before the first probe.
const ROUNDS_BEFORE: u64 = 3;
/// The time between probes that find nothing: at first, and at most.
const PROBE_AGAIN: Duration = Duration::from_s(4);
const PROBE_AGAIN_MAX: Duration = Duration::from_s(64);
/// After so many retreats the path carries less than configured.
const RETREATS: u32 = 2;
/// A measured rate within these bounds equals the configured one. Unit: percent.
const SAME_PERCENT: std::ops::RangeInclusive<u64> = 92..=108;
/// For how long it must be equal, the first time and at most.
const BELIEVE_AFTER: Duration = Duration::from_s(10);
const BELIEVE_AFTER_MAX: Duration = Duration::from_s(160);

/// A flow with a configured rate that may be wrong, as a controller.
#[derive(Debug)]
pub struct Hinted {
    known: KnownRate,
    initial_window: u32,
    arrivals: Arrivals,
    probe: Probe,
    /// When the next probe is due at the earliest, and the time between it and the following one.
    due: Instant,
    again: Duration,
    /// Probes in a row that found more than the configured rate.
    agree: u32,
    /// Rounds in a row at the rate.
    rounds: u64,
    round: u64,
    acked_at: Instant,
    /// The law that sends instead of the known rate, while the path contradicts that.
    measured: Option<Box<Measured>>,
    believe_after: Duration,
}

/// The present probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    None,
    /// Sent from one moment to another; not all of it has arrived.
    Sent(Instant, Instant),
}

#[derive(Debug)]
struct Measured {
    law: Pulsed,
    /// Since when the measured rate equals the configured one.
    agrees_since: Option<Instant>,
}

impl Hinted {
    /// A new connection, as [`KnownRate::new`].
    pub fn new(mss: Bytes, initial_window: u32, settings: KnownRateSettings) -> Self {
        Self {
            known: KnownRate::new(mss, initial_window, settings),
            initial_window,
            arrivals: Arrivals::default(),
            probe: Probe::None,
            due: Instant::START,
            again: PROBE_AGAIN,
            agree: 0,
            rounds: 0,
            round: 0,
            acked_at: Instant::START,
            measured: None,
            believe_after: BELIEVE_AFTER,
        }
    }

    /// The payload that the configured rate allows now.
    fn configured(&self) -> Rate {
        self.known.payload(self.known.place.share())
    }

    fn is_probing(&self, now: Instant) -> bool {
        matches!(self.probe, Probe::Sent(_, end) if now < end)
    }

    /// The path carries `payload`, and not the configured rate.
    fn contradict(&mut self, now: Instant, payload: Rate) {
        let Some(rtt) = self.known.min_rtt.min() else { return };
        self.probe = Probe::None;
        self.agree = 0;
        self.arrivals.clear();
        let law = Pulsed::at(Bytes::new(self.known.mss), self.initial_window, now, rtt, payload);
        self.measured = Some(Box::new(Measured { law, agrees_since: None }));
    }

    /// Examines what the path shows of a flow at the known rate.
    fn doubt(&mut self, ack: &Ack) {
        if self.known.retreats() >= RETREATS {
            let carried = self.known.payload(self.known.rate());
            return self.contradict(ack.now, part(carried, 100, super::RETREAT_PERCENT));
        }
        let Some(sample) = ack.sample else { return };
        if ack.round != self.round {
            self.round = ack.round;
            let steady = self.known.ceiling().is_none() && !sample.is_app_limited;
            self.rounds = if steady { self.rounds + 1 } else { 0 };
        }
        match self.probe {
            Probe::Sent(start, end) => {
                let (at, sent, delivered) = (ack.now, sample.departed, ack.delivered.get());
                self.arrivals.push(Arrival { at, sent, delivered }, Duration::MAX);
                if sample.is_app_limited {
                    self.give_up();
                } else if sample.sent > end {
                    self.conclude(ack.now, start, end);
                }
            }
            Probe::None if self.rounds >= ROUNDS_BEFORE && ack.now >= self.due => {
                self.start(ack.now);
            }
            Probe::None => {}
        }
    }

    fn start(&mut self, now: Instant) {
        // Beside other flows, a probe would take from them what it finds.
        let alone = self.known.place.leg().active() <= 1;
        let known = |_: &Duration| alone && !self.known.guessed;
        let Some(rtt) = self.known.min_rtt.min().filter(known) else { return };
        let fastest = part(self.configured(), PROBE_PERCENT, 100);
        let fewest = fastest.time_for(Bytes::new(PROBE_SEGMENTS * self.known.mss));
        self.arrivals.clear();
        self.probe = Probe::Sent(now, now + (rtt / PROBE_PART).max(fewest));
    }

    /// This probe shows nothing.
    fn give_up(&mut self) {
        self.probe = Probe::None;
        self.agree = 0;
        self.rounds = 0;
    }

    /// A probe has arrived.
    fn conclude(&mut self, now: Instant, start: Instant, end: Instant) {
        self.probe = Probe::None;
        let few = PROBE_SEGMENTS / 4 * self.known.mss;
        let Some(span) = self.arrivals.between(start, end, few) else {
            return self.give_up();
        };
        let carried = span.rate();
        let more = carried >= part(self.configured(), MORE_PERCENT, 100);
        if !more || !self.outran(start, end) {
            self.agree = 0;
            self.due = now + self.again;
            self.again = (self.again * 2).min(PROBE_AGAIN_MAX);
            return;
        }
        self.agree += 1;
        if self.agree >= PROBES_AGREE {
            self.again = PROBE_AGAIN;
            self.contradict(now, carried);
        }
    }

    /// Whether a probe waited less than it would on a path of the configured rate. A host that had no processor for a
    /// while handles at once what has arrived meanwhile. Its acknowledgements then come as closely as those of a
    /// faster path. But no acknowledgement can come earlier than the path permits.
    fn outran(&self, start: Instant, end: Instant) -> bool {
        let Some(rtt) = self.known.min_rtt.min() else { return false };
        let configured = self.configured();
        let latter = |span: &Span| span.is_half_of(end.saturating_since(start));
        self.arrivals.each_between(start, end).filter(|(span, _)| latter(span)).any(
            |(span, took)| {
                let waited = took.saturating_sub(rtt);
                waited <= span.queueing_at(configured) * WAITED_PERCENT / 100
            },
        )
    }

    /// Believes the configured rate again, if it has been measured for long enough.
    fn compare(&mut self, now: Instant) {
        let configured = self.configured();
        let Some(measured) = &mut self.measured else { return };
        let capacity = measured.law.capacity().unwrap_or(Rate::ZERO);
        let percent =
            u128::from(capacity.bits_per_s()) * 100 / u128::from(configured.bits_per_s().max(1));
        let percent = u64::try_from(percent).unwrap_or(u64::MAX);
        if !SAME_PERCENT.contains(&percent) || measured.law.is_contested() {
            measured.agrees_since = None;
            return;
        }
        let since = *measured.agrees_since.get_or_insert(now);
        if now.saturating_since(since) >= self.believe_after {
            self.measured = None;
            self.believe_after = (self.believe_after * 2).min(BELIEVE_AFTER_MAX);
            self.known.believe();
            self.rounds = 0;
            self.due = now + self.again;
        }
    }
}

impl CongestionControl for Hinted {
    fn on_established(&mut self, established: &Established) {
        self.known.on_established(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.acked_at = ack.now;
        self.known.on_ack(ack);
        match &mut self.measured {
            Some(measured) => {
                measured.law.on_ack(ack);
                self.compare(ack.now);
            }
            None => self.doubt(ack),
        }
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        match &mut self.measured {
            Some(measured) => measured.law.on_lost_segment(segment),
            None => self.known.on_lost_segment(segment),
        }
    }

    fn on_loss(&mut self, loss: &Loss) {
        if let Some(measured) = &mut self.measured {
            measured.law.on_loss(loss);
        }
    }

    fn on_rto(&mut self, rto: &Rto) {
        self.known.on_rto(rto);
        self.give_up();
        if let Some(measured) = &mut self.measured {
            measured.law.on_rto(rto);
        }
    }

    fn on_spurious(&mut self, spurious: &Spurious) {
        self.known.on_spurious(spurious);
        if let Some(measured) = &mut self.measured {
            measured.law.on_spurious(spurious);
        }
    }

    fn on_rate(&mut self, rate: Rate) {
        // The same report once more changes nothing.
        if rate != self.known.place.leg().rate() {
            self.known.on_rate(rate);
            self.measured = None;
            self.give_up();
        }
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.known.on_handover(handover);
        self.give_up();
        match &mut self.measured {
            // A report of the new path is newer than what was measured.
            Some(_) if handover.rate.is_some() => self.measured = None,
            Some(measured) => measured.law.on_handover(handover),
            None => {}
        }
    }

    fn on_restart(&mut self, restart: &Restart) {
        self.known.on_restart(restart);
        self.give_up();
        if let Some(measured) = &mut self.measured {
            measured.law.on_restart(restart);
        }
    }

    fn window(&self) -> Bytes {
        if let Some(measured) = &self.measured {
            return measured.law.window();
        }
        let window = self.known.window();
        let Probe::Sent(start, end) = self.probe else { return window };
        let beyond = part(self.configured(), PROBE_PERCENT - 100, 100);
        window + beyond.bytes_in(end.saturating_since(start))
    }

    fn pacing_rate(&self) -> Option<Rate> {
        if let Some(measured) = &self.measured {
            return measured.law.pacing_rate();
        }
        let rate = self.known.pacing_rate()?;
        Some(match self.probe {
            Probe::None => rate,
            Probe::Sent(..) if self.is_probing(self.acked_at) => part(rate, PROBE_PERCENT, 100),
            Probe::Sent(..) => part(rate, AFTER_PERCENT, 100),
        })
    }

    fn governs_recovery(&self) -> bool {
        true
    }

    fn measures(&self) -> bool {
        self.measured.is_some() || self.probe != Probe::None
    }

    fn carried(&self) -> Option<Rate> {
        let measured = self.measured.as_ref()?;
        measured.law.capacity().map(|payload| self.known.gross(payload))
    }
}
