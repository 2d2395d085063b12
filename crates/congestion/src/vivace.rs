//! PCC Vivace: tries rates, and moves in the direction in which their utility grows.
//!
//! Source: M. Dong et al., "PCC Vivace: online-learning congestion control", NSDI 2018, with the
//! utility that punishes latency. Time is cut into monitor intervals of a round trip each. The data
//! of an interval is followed to its acknowledgement or loss, and its utility computed. A flow doubles its
//! rate until its utility falls, then sends two pairs of intervals a twentieth above and below its
//! rate, in an order that the seed decides. Where both pairs agree it moves along the gradient, further
//! with each step that confirms the direction, and tries again where one does not.
//!
//! Differs: the utility is of the intended rate, which pacing keeps, so that the number of whole
//! segments in an interval is no noise. The smallest step is one hundredth of the rate, as in the authors'
//! code. An interval decides nothing if the application ran out of data, the window limited the sender, or the
//! round-trip time jumped as on a change of the path and not as with a growing queue.
//! A slope of the round-trip times below three of its standard errors counts as zero: acknowledgements
//! that a receiver delays show no queue. There is a window, of two products of rate and
//! smoothed round-trip time.

mod interval;
mod utility;

pub use utility::utility_micros;

use crate::common::Common;
use crate::description::Description;
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, LostSegment, Restart, Rto,
    Spurious, random::Draws,
};
use interval::{Interval, Role};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};
use std::collections::VecDeque;

/// How far probes are from the rate. Unit: percent.
const PROBE_PERCENT: u64 = 5;
/// The bound of a step: this much, and more with every step that met it. Unit: percent.
const BOUND_PERCENT: u64 = 5;
const BOUND_STEP_PERCENT: u64 = 10;
const STEP_MIN_PERCENT: u64 = 1;
/// Intervals whose results may be outstanding: each lasts a round trip, and its results take two.
const OUTSTANDING_MAX: usize = 16;
/// An interval has at least so many segments.
const SEGMENTS_MIN: u64 = 10;
/// A growing queue never makes the round-trip time jump by so much from one acknowledgement to the next.
const JUMP_MIN: Duration = Duration::from_ms(10);
const RATE_MAX: Rate = Rate::from_bits_per_s(1_000_000_000_000);

/// The state of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Doubling its rate.
    Starting,
    /// Comparing rates above and below its own.
    Probing,
    /// Moving along the gradient.
    Moving,
}

/// A step, to be judged by its result.
#[derive(Debug, Clone, Copy)]
struct Step {
    up: bool,
    /// Steps in this direction so far.
    count: u64,
    /// k: the bound in use; one more with each step that met its bound.
    bounded: u64,
    /// Its start, and the utility there.
    from: (Rate, i64),
}

/// PCC Vivace as a controller.
#[derive(Debug, Clone)]
pub struct Vivace {
    mss: u64,
    initial_window: u64,
    draws: Draws,
    stage: Stage,
    /// The centre of the probes. `None` while no round-trip time is known.
    rate: Option<Rate>,
    intervals: VecDeque<Interval>,
    /// Whether the very first interval has its result.
    has_result: bool,
    /// The best result of the start: rate and utility.
    best: Option<(Rate, i64)>,
    /// Probes still to be sent, and whether the first of each pair is the upper one.
    probes_sent: usize,
    upper_first: [bool; 2],
    results: [Option<(bool, i64)>; 4],
    step: Option<Step>,
    srtt: Option<Duration>,
    last_rtt: Option<Duration>,
    /// Whether the current interval is to end early.
    cut: bool,
    timed_out: bool,
}

impl Vivace {
    /// A new connection with segments of `mss` and a window of `initial_window` segments.
    pub fn new(mss: Bytes, initial_window: u32, seed: Seed) -> Self {
        let mss = mss.get().max(1);
        Self {
            mss,
            initial_window: u64::from(initial_window).max(1).saturating_mul(mss),
            draws: Draws::new(seed),
            stage: Stage::Starting,
            rate: None,
            intervals: VecDeque::with_capacity(OUTSTANDING_MAX),
            has_result: false,
            best: None,
            probes_sent: 0,
            upper_first: [false; 2],
            results: [None; 4],
            step: None,
            srtt: None,
            last_rtt: None,
            cut: false,
            timed_out: false,
        }
    }

    /// The flow's state.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The best rate so far; probes lie around it.
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    fn take_rtt(&mut self, rtt: Duration) {
        self.srtt = Some(match self.srtt {
            None => rtt,
            Some(srtt) => Duration::from_ns((srtt.as_ns() / 8 * 7).saturating_add(rtt.as_ns() / 8)),
        });
        if self.rate.is_none() {
            let rate = Rate::of(Bytes::new(self.initial_window), rtt.max(Duration::from_us(1)));
            self.rate = Some(self.within_bounds(rate));
        }
    }

    /// At least two segments per round trip.
    fn within_bounds(&self, rate: Rate) -> Rate {
        let srtt = self.srtt.unwrap_or(Duration::from_s(1)).max(Duration::from_us(1));
        rate.max(Rate::of(Bytes::new(2 * self.mss), srtt)).min(RATE_MAX)
    }

    /// The interval continues or the next one begins.
    fn advance(&mut self, now: Instant) {
        let (Some(rate), Some(srtt)) = (self.rate, self.srtt) else { return };
        if let Some(current) = self.intervals.back_mut() {
            let least = current.rate.time_for(Bytes::new(SEGMENTS_MIN * self.mss));
            if !self.cut && now.saturating_since(current.start) < srtt.max(least) {
                return;
            }
            current.end = Some(now);
        }
        self.cut = false;
        let (role, rate) = match self.stage {
            // The first is sent at the current rate, each further one at twice the one before.
            Stage::Starting if self.intervals.is_empty() => (Role::Starting, rate),
            Stage::Starting => {
                let doubled = self.within_bounds(scaled(rate, 200));
                self.rate = Some(doubled);
                (Role::Starting, doubled)
            }
            Stage::Probing if self.probes_sent < 4 => {
                let nth = self.probes_sent;
                self.probes_sent += 1;
                let up = self.upper_first[nth / 2] == nth.is_multiple_of(2);
                let percent = if up { 100 + PROBE_PERCENT } else { 100 - PROBE_PERCENT };
                (Role::Probing { nth, up }, scaled(rate, percent))
            }
            Stage::Moving if self.step.is_some() && !self.has_moving() => (Role::Moving, rate),
            Stage::Probing | Stage::Moving => (Role::Waiting, rate),
        };
        if self.intervals.len() == OUTSTANDING_MAX {
            let first = self.intervals.pop_front();
            if first.is_some_and(|first| first.role != Role::Waiting) {
                // Its result will not come.
                self.probe();
            }
        }
        self.intervals.push_back(Interval::new(role, rate, now));
    }

    fn has_moving(&self) -> bool {
        self.intervals.iter().any(|interval| interval.role == Role::Moving)
    }

    /// Takes the results of intervals that are complete, now that data sent
    /// at `sent` has arrived.
    fn conclude(&mut self, sent: Instant) {
        // A segment is found lost by data sent a little later.
        let margin = self.srtt.unwrap_or(Duration::ZERO) / 8;
        while let Some(first) = self.intervals.front().copied() {
            let settled = first
                .end
                .map(|end| end + margin.max(first.rate.time_for(Bytes::new(4 * self.mss))));
            if settled.is_none_or(|settled| sent < settled) {
                return;
            }
            self.intervals.pop_front();
            match first.role {
                Role::Starting => self.started(first.rate, first.utility()),
                Role::Probing { nth, up } => self.probed(nth, up, first.utility()),
                Role::Moving => self.moved(first.utility()),
                Role::Waiting => {}
            }
        }
    }

    fn started(&mut self, rate: Rate, utility: Option<i64>) {
        let first = !std::mem::replace(&mut self.has_result, true);
        if self.stage != Stage::Starting {
            return;
        }
        match (utility, self.best) {
            // Data sent before the first acknowledgement counts as short of data: nothing had been
            // delivered that could show the opposite.
            (None, None) if first => {}
            (Some(utility), Some((best, worth))) if utility < worth => {
                self.rate = Some(best);
                self.probe();
            }
            (Some(utility), _) => self.best = Some((rate, utility)),
            // The results show nothing: more of them would not help.
            (None, _) => {
                self.rate = Some(self.best.map_or(rate, |(best, _)| best));
                self.probe();
            }
        }
    }

    /// Begins to probe around the rate. Data sent before no longer matters.
    fn probe(&mut self) {
        self.stage = Stage::Probing;
        self.step = None;
        self.probes_sent = 0;
        self.results = [None; 4];
        self.upper_first = [self.draws.below(2) == 0, self.draws.below(2) == 0];
        self.disregard();
    }

    /// The rate has changed: the current interval ends, and is compared with nothing.
    fn disregard(&mut self) {
        self.cut = true;
        for interval in &mut self.intervals {
            interval.role = Role::Waiting;
        }
    }

    fn probed(&mut self, nth: usize, up: bool, utility: Option<i64>) {
        let (Some(rate), Some(utility)) = (self.rate, utility) else {
            // Half of a pair proves nothing.
            self.probe();
            return;
        };
        self.results[nth] = Some((up, utility));
        let [Some(a), Some(b), Some(c), Some(d)] = self.results else { return };
        let difference = |one: (bool, i64), other: (bool, i64)| {
            let (up, down) = if one.0 { (one.1, other.1) } else { (other.1, one.1) };
            i128::from(up) - i128::from(down)
        };
        let (first, second) = (difference(a, b), difference(c, d));
        if first == 0 || second == 0 || (first > 0) != (second > 0) {
            self.probe();
            return;
        }
        let up = first > 0;
        // The better one of the last pair is the starting point.
        let from = if c.0 == up { c.1 } else { d.1 };
        let width = i128::from(rate.bits_per_s()) * 2 * i128::from(PROBE_PERCENT) / 100;
        let gradient = gradient_micros((first + second) / 2, width);
        let percent = if up { 100 + PROBE_PERCENT } else { 100 - PROBE_PERCENT };
        self.stage = Stage::Moving;
        let from = (scaled(rate, percent), from);
        self.go(Step { up, count: 0, bounded: 0, from }, gradient);
    }

    /// Makes a step from `step.from` along a gradient of utility per Mbit/s. Unit: millionths.
    fn go(&mut self, mut step: Step, gradient: u128) {
        step.count += 1;
        // The confidence amplifier: 1, 2, 3, 5, 7, …
        let confidence = if step.count <= 3 { step.count } else { 2 * step.count - 3 };
        let base = step.from.0.bits_per_s();
        // A gradient of one is a step of a Mbit/s.
        let wanted = gradient.saturating_mul(u128::from(confidence));
        let bound_of = |bounded: u64| {
            let percent = BOUND_PERCENT.saturating_add(bounded.saturating_mul(BOUND_STEP_PERCENT));
            u128::from(base) * u128::from(percent) / 100
        };
        let bound = bound_of(step.bounded);
        step.bounded = if wanted > bound {
            step.bounded.saturating_add(1)
        } else {
            // The smallest k whose bound is not met.
            (0..step.bounded).find(|&k| wanted <= bound_of(k)).unwrap_or(step.bounded)
        };
        let least = u128::from(base) * u128::from(STEP_MIN_PERCENT) / 100;
        let change = u64::try_from(wanted.min(bound).max(least)).unwrap_or(u64::MAX);
        let bits = if step.up { base.saturating_add(change) } else { base.saturating_sub(change) };
        let rate = self.within_bounds(Rate::from_bits_per_s(bits));
        self.rate = Some(rate);
        if rate == step.from.0 {
            // At a limit of the rate no further step is possible.
            self.probe();
            return;
        }
        self.step = Some(step);
        self.disregard();
    }

    fn moved(&mut self, utility: Option<i64>) {
        let (Some(rate), Some(step)) = (self.rate, self.step) else { return };
        let Some(utility) = utility else {
            self.rate = Some(step.from.0);
            self.probe();
            return;
        };
        let gained = i128::from(utility) - i128::from(step.from.1);
        if gained <= 0 {
            self.rate = Some(step.from.0);
            self.probe();
            return;
        }
        let width = i128::from(rate.bits_per_s().abs_diff(step.from.0.bits_per_s()));
        self.go(Step { from: (rate, utility), ..step }, gradient_micros(gained, width));
    }

    /// Outstanding data no longer measures the path.
    fn spoil(&mut self) {
        for interval in &mut self.intervals {
            interval.spoilt = true;
        }
    }

    /// The interval in which the data was sent.
    fn interval(&mut self, sent: Instant) -> Option<&mut Interval> {
        self.intervals.iter_mut().rev().find(|interval| interval.holds(sent))
    }
}

/// So many hundredths of `rate`, rounded down.
fn scaled(rate: Rate, percent: u64) -> Rate {
    let bits = u128::from(rate.bits_per_s()) * u128::from(percent) / 100;
    Rate::from_bits_per_s(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// The size of a gradient: a difference of utilities in millionths over one of rates in bits per
/// second. Unit: millionths per Mbit/s.
fn gradient_micros(difference: i128, width: i128) -> u128 {
    difference.unsigned_abs().saturating_mul(1_000_000) / width.unsigned_abs().max(1)
}

impl Vivace {
    pub(crate) const DESCRIPTION: Description =
        Description { name: "vivace", draws: true, ..Description::OWN_RULE };

    pub(crate) fn controller(common: &Common<'_>) -> Controller {
        Controller::new(Self::new(common.mss, common.initial_window, common.seed))
    }
}

impl CongestionControl for Vivace {
    fn on_established(&mut self, established: &Established) {
        if let Some(rtt) = established.rtt {
            self.take_rtt(rtt);
            self.advance(established.now);
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.timed_out = false;
        let Some(sample) = ack.sample else { return };
        if let Some(rtt) = ack.rtt {
            self.take_rtt(rtt);
            let step = self.last_rtt.map_or(Duration::ZERO, |last| {
                Duration::from_ns(rtt.as_ns().abs_diff(last.as_ns()))
            });
            self.last_rtt = Some(rtt);
            // A slow link's own segments are apart by as much.
            let apart =
                self.rate.map_or(Duration::ZERO, |rate| rate.time_for(Bytes::new(8 * self.mss)));
            if step > JUMP_MIN.max(apart).max(rtt / 8) {
                self.spoil();
            }
        }
        if let Some(interval) = self.interval(sample.sent) {
            interval.acknowledge(ack.acked.get());
            interval.spoilt |= sample.is_app_limited;
            if let Some(rtt) = ack.rtt {
                interval.measure(sample.sent, rtt);
            }
        }
        self.conclude(sample.sent);
        self.advance(ack.now);
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        if let Some(interval) = self.interval(segment.sent) {
            interval.lose(segment.size.get());
        }
    }

    fn on_loss(&mut self, _loss: &Loss) {}

    fn on_rto(&mut self, rto: &Rto) {
        self.timed_out = true;
        self.spoil();
        if let Some(rate) = self.rate {
            self.rate = Some(self.within_bounds(scaled(rate, 50)));
            self.probe();
            self.advance(rto.now);
        }
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.timed_out = false;
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.spoil();
        self.last_rtt = None;
        if handover.rtt.is_some() {
            self.srtt = handover.rtt;
        }
        if let Some(rate) = handover.rate.or(self.rate) {
            self.rate = Some(self.within_bounds(rate));
            self.probe();
        }
    }

    fn on_restart(&mut self, restart: &Restart) {
        self.last_rtt = None;
        self.advance(restart.now);
    }

    fn is_in_slow_start(&self) -> bool {
        self.stage == Stage::Starting
    }

    fn window(&self) -> Bytes {
        if self.timed_out {
            return Bytes::new(4 * self.mss);
        }
        let (Some(srtt), Some(rate)) = (self.srtt, self.pacing_rate()) else {
            return Bytes::new(self.initial_window);
        };
        let products = rate.bytes_in(srtt).get().saturating_mul(2);
        Bytes::new(products.max(self.initial_window))
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.intervals.back().map(|interval| interval.rate).or(self.rate)
    }

    fn governs_recovery(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
