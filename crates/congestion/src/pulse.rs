//! A controller for a link of unknown and changing rate: it measures the rate by pulses (decision 0051).
//!
//! Once per round trip it sends at twice the estimated capacity of the link, for an eighth of the round trip. The
//! acknowledgements of such a pulse show what the link carries. If it carries all of the pulse's rate, the next pulse
//! is stronger. If it carries less, that is the capacity. Between pulses the data in flight is held at the product of
//! capacity and round-trip time and a little more, so that the queue of a pulse drains at once.
//!
//! - Capacity is a rate of arrivals, not a count of losses: a radio's losses do not change it. The lost part is
//!   measured while no queue stands, and sent in addition.
//! - A falling capacity is seen within a quarter of a round trip of acknowledgements: they come more slowly than the
//!   data left. That needs no shortest round-trip time, which may be out of date on a changing path.
//! - On a longer path all data waits, and yet the link delivers less than pulses show that it can: there is no queue.
//! - After a silence of the acknowledgements (an outage of the link) measuring begins anew. The estimates stay.
//! - Other flows in the queue look like a longer path at first, so that is assumed first. If the path is longer, the
//!   capacity is then reached. If all data still waits, there are other flows. Then CUBIC, or BBR, competes with them,
//!   until the responses to pulses show that no others are left.
//!
//! Source: ours. Bursts that measure are the idea of packet trains, and of SQP (Ray et al., arXiv 2207.11857: its
//! bursts are video frames); that data in flight beyond the product is a queue is BBR's (draft-ietf-ccwg-bbr-06).

mod calm;
mod contest;
mod dips;
mod doubt;
mod drains;

use self::calm::Calm;
use self::contest::Contest;
use self::dips::Dips;
use self::doubt::{Doubt, Finding};
use crate::arrivals::{Arrival, Arrivals};
use crate::common::Common;
use crate::description::Description;
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, LostSegment, Restart, Rto,
    Spurious,
};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// The smallest window. Unit: segments.
const WINDOW_MIN: u64 = 4;
/// The highest rate that is assumed for a link.
const RATE_MAX: Rate = Rate::from_mbit_per_s(100_000);
/// Gains are in quarters.
const UNIT: u64 = 4;
/// The gain of a pulse when the capacity is found, and the largest while it is not.
const GAIN_FOUND: u64 = 8;
const GAIN_MAX: u64 = 32;
/// If a short queue drops a part of the pulses, they become weaker, down to this gain.
const GAIN_MIN: u64 = 5;
/// A pulse was dropped in part if, beyond the radio's losses, more than this part of a cycle's data was lost.
const DROPPED_PART: u64 = 64;
/// The start ends without a measurement if more than this part was lost.
const SURPLUS_PART: u64 = 4;
/// Weak pulses become stronger after so many cycles in which no pulse was dropped in part.
const UNHURT_CYCLES: u32 = 16;
/// A pulse did not reach the link's limit if this part of its additional rate was delivered. Unit: percent.
const FREE_PERCENT: u64 = 75;
/// A pulse lasts this part of a round trip.
const PULSE_PART: u64 = 8;
/// A pulse has at least so many segments: fewer measure too roughly.
const PULSE_SEGMENTS: u64 = 32;
/// The next pulse begins after so many times the length of the last one at the earliest.
const PULSE_REST: u64 = 6;
/// Other flows fill the queue if a larger part of a cycle was lost, beyond the radio's losses, while all data waited.
const CROWD_PART: u64 = 48;
/// How long the shortest round-trip time is valid.
const SHORTEST_WINDOW: Duration = Duration::from_s(60);
/// The multiples of this number are spread evenly over 32 bits (2³² / φ).
const GOLDEN: u32 = 2_654_435_769;
/// The queue that may stand on purpose: this part of the round trip, within these bounds.
const QUEUE_PART: u64 = 32;
const QUEUE_MIN: Duration = Duration::from_ms(3);
const QUEUE_MAX: Duration = Duration::from_ms(20);
/// Between pulses the rate differs from the capacity by this much at most. Unit: percent.
const SLOWEST_PERCENT: u64 = 50;
const FASTEST_PERCENT: u64 = 125;
/// A capacity falls by at most this in a quarter of a round trip. Unit: percent.
const FALL_PERCENT: u64 = 50;
/// If the time between acknowledgements grows this many times, the link has an outage.
const SILENCE: u64 = 4;
/// A longer time than usual that shows no outage.
const SILENCE_MIN: Duration = Duration::from_ms(5);
/// The first window is that of a path with this round-trip time.
const START_RTT: Duration = Duration::from_ms(100);

/// A pulse: what was sent from its start to its end.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    start: Instant,
    end: Instant,
    gain: u64,
    /// The capacity when the pulse began.
    from: Rate,
}

/// What a cycle has shown. A cycle lasts from the acknowledgement of one pulse to that of the next.
#[derive(Debug, Clone, Copy, Default)]
struct Cycle {
    began: Instant,
    /// The largest rate of arrivals over most of a pulse's length.
    best: Rate,
    rtt_min: Option<Duration>,
    rtt_max: Duration,
    acked: u64,
    lost: u64,
    /// The part of them that was sent while no pulse made a queue.
    calm_acked: u64,
    calm_lost: u64,
    /// Whether the cycle measures too little: data was lacking, or the link had an outage.
    spoilt: bool,
    /// Whether data was lacking.
    lacking: bool,
    /// Whether the capacity fell.
    fallen: bool,
}

/// The controller.
#[derive(Debug, Clone)]
pub struct Pulsed {
    mss: u64,
    initial_window: u64,
    /// Payload that the link delivers. `None` while no round-trip time is known.
    capacity: Option<Rate>,
    /// Whether a pulse has reached the link's limit since the start.
    found: bool,
    /// The shortest round-trip time since the path last grew longer.
    base: Option<Duration>,
    arrivals: Arrivals,
    pulse: Option<Pulse>,
    /// The gain of the next pulse.
    gain: u64,
    cycle: Cycle,
    calm: Calm,
    /// The part that the radio loses, by cycles in which no data waited at all.
    clean: Calm,
    in_flight: u64,
    /// The usual time between acknowledgements.
    spacing: Option<Duration>,
    acked_at: Instant,
    timed_out: bool,
    /// Judges whether waiting data shows a longer path or other flows.
    doubt: Doubt,
    /// Tests whether the assumed path contains a queue.
    dips: Dips,
    /// The law that competes with other flows, while there are some.
    contest: Option<Box<Contest>>,
    /// The gain of pulses when the limit is known.
    usual_gain: u64,
    /// Cycles in a row in which no pulse was dropped in part.
    unhurt: u32,
    /// The largest recent capacity.
    most: Rate,
    /// How many pulses there were, and when the next one is due while other flows compete.
    pulses: u32,
    pulse_due: Instant,
    /// The shortest recent round-trip time, and since when it is recorded.
    shortest: (Duration, Instant),
}

impl Pulsed {
    /// A new connection with segments of `mss` and a window of `initial_window` segments.
    pub fn new(mss: Bytes, initial_window: u32) -> Self {
        let mss = mss.get().max(1);
        Self {
            mss,
            initial_window: u64::from(initial_window).max(1).saturating_mul(mss),
            capacity: None,
            found: false,
            base: None,
            arrivals: Arrivals::default(),
            pulse: None,
            gain: GAIN_MAX,
            cycle: Cycle::default(),
            calm: Calm::default(),
            clean: Calm::default(),
            in_flight: 0,
            spacing: None,
            acked_at: Instant::START,
            timed_out: false,
            doubt: Doubt::default(),
            dips: Dips::default(),
            contest: None,
            usual_gain: GAIN_FOUND,
            unhurt: 0,
            most: Rate::ZERO,
            pulses: 0,
            pulse_due: Instant::START,
            shortest: (Duration::MAX, Instant::START),
        }
    }

    /// A connection whose link is known to carry `capacity` of payload, over a round trip of `rtt` without a queue.
    pub(crate) fn at(
        mss: Bytes,
        initial_window: u32,
        now: Instant,
        rtt: Duration,
        capacity: Rate,
    ) -> Self {
        let fresh = Self::new(mss, initial_window);
        let mut pulsed = Self { found: true, gain: GAIN_FOUND, acked_at: now, ..fresh };
        pulsed.begin(now, rtt, capacity);
        pulsed
    }

    /// The estimated rate that the link delivers.
    pub fn capacity(&self) -> Option<Rate> {
        self.capacity
    }

    /// The round-trip time without a queue.
    pub fn base_rtt(&self) -> Option<Duration> {
        self.base
    }

    /// Whether it competes with other flows for the link.
    pub fn is_contested(&self) -> bool {
        self.contest.is_some()
    }

    /// The first round-trip time of an otherwise unknown path.
    fn begin_unknown(&mut self, now: Instant, rtt: Duration) {
        let like = rtt.clamp(Duration::from_us(1), START_RTT);
        self.begin(now, rtt, Rate::of(Bytes::new(self.initial_window), like));
    }

    fn begin(&mut self, now: Instant, rtt: Duration, capacity: Rate) {
        let rtt = rtt.max(Duration::from_us(1));
        self.base = Some(rtt);
        self.shortest = (rtt, now);
        self.capacity = Some(self.within_bounds(capacity));
        self.start_pulse(now);
        self.cycle = Cycle { began: now, ..Cycle::default() };
    }

    fn rtt(&self) -> Duration {
        self.base.unwrap_or(START_RTT).max(Duration::from_us(1))
    }

    /// At least two segments per round trip.
    fn within_bounds(&self, rate: Rate) -> Rate {
        rate.max(Rate::of(Bytes::new(2 * self.mss), self.rtt())).min(RATE_MAX)
    }

    /// The capacity, and in addition what the radio will lose.
    fn gross(&self) -> Rate {
        if let Some(contest) = &self.contest {
            return self.within_bounds(contest.rate());
        }
        let capacity = self.capacity.unwrap_or(Rate::ZERO);
        scaled(capacity, 65_536, 65_536 - self.calm.lost_q16()).min(RATE_MAX)
    }

    /// The queue that may stand on purpose.
    fn queue(&self) -> Duration {
        (self.rtt() / QUEUE_PART).clamp(QUEUE_MIN, QUEUE_MAX) * (self.usual_gain - UNIT)
            / (GAIN_FOUND - UNIT)
    }

    /// How long a pulse of this gain lasts.
    fn pulse_time(&self, gain: u64) -> Duration {
        let fewest =
            scaled(self.gross(), gain, UNIT).time_for(Bytes::new(PULSE_SEGMENTS * self.mss));
        (self.rtt() / PULSE_PART).max(fewest.min(self.rtt() / 2))
    }

    /// The data that should be in flight between pulses. Unit: bytes.
    fn target(&self) -> u64 {
        if let Some(contest) = &self.contest {
            return contest.window();
        }
        let mut way = self.rtt() + self.queue();
        if self.dips.is_active() {
            way = way * dips::LEFT_PERCENT / 100;
        }
        let product = self.gross().bytes_in(way).get();
        // Data that has arrived and waits for its acknowledgement.
        let apart = self.spacing.unwrap_or(Duration::ZERO).min(self.rtt() / PULSE_PART);
        product.saturating_add(self.gross().bytes_in(apart).get())
    }

    fn start_pulse(&mut self, now: Instant) {
        let Some(from) = self.capacity else { return };
        let end = now + self.pulse_time(self.gain);
        self.calm.interrupt(now, end);
        self.pulse = Some(Pulse { start: now, end, gain: self.gain, from });
    }

    fn is_pulsing(&self, now: Instant) -> bool {
        self.pulse.is_some_and(|pulse| now < pulse.end)
    }

    fn take_rtt(&mut self, ack: &Ack) {
        let (Some(_), Some(sample)) = (ack.rtt, ack.sample) else { return };
        let rtt = ack.now.saturating_since(sample.departed).max(Duration::from_us(1));
        self.base = Some(self.base.map_or(rtt, |base| base.min(rtt)));
        let cycle = &mut self.cycle;
        cycle.rtt_min = Some(cycle.rtt_min.map_or(rtt, |min| min.min(rtt)));
        cycle.rtt_max = cycle.rtt_max.max(rtt);
    }

    /// Whether the time since the last acknowledgement is much longer than usual.
    fn was_silent(&mut self, now: Instant) -> bool {
        let apart = now.saturating_since(std::mem::replace(&mut self.acked_at, now));
        let usual = self.spacing.get_or_insert(apart);
        let silent = apart > (*usual * SILENCE).saturating_add(SILENCE_MIN);
        // A silence has little weight, and if acknowledgements become rarer, that is soon the usual time.
        *usual = (*usual * 15 + apart.min(*usual * 4 + SILENCE_MIN)) / 16;
        silent
    }

    /// Uses a larger capacity at once, and a smaller one if the queue has grown.
    fn measure(&mut self, arrival: Arrival) {
        let Some(capacity) = self.capacity else { return };
        let few = 8 * self.mss;
        let pulse = self.pulse_time(self.pulse.map_or(self.gain, |pulse| pulse.gain));
        if let Some(span) = self.arrivals.over(pulse * 3 / 4, few) {
            let rate = self.within_bounds(span.rate());
            self.cycle.best = self.cycle.best.max(rate);
            if rate > capacity && self.contest.is_none() {
                self.capacity = Some(rate);
            }
        }
        if self.contest.is_some() {
            return;
        }
        let quarter = (self.rtt() / 4).max(pulse * 2);
        if let Some(span) = self.arrivals.over(quarter, 2 * few) {
            let grown = span.grown();
            let rate = span.rate();
            if grown > (self.rtt() / 16).max(QUEUE_MIN)
                && u128::from(rate.bits_per_s()) * 10 < u128::from(capacity.bits_per_s()) * 9
            {
                let rate = rate.max(scaled(capacity, FALL_PERCENT, 100));
                self.capacity = Some(self.within_bounds(rate));
                self.found = true;
                self.gain = self.usual_gain;
                self.arrivals.restart(arrival);
                self.cycle.best = Rate::ZERO;
                self.cycle.spoilt = true;
                self.cycle.fallen = true;
            }
        }
    }

    /// A pulse and the data after it have arrived.
    fn conclude(&mut self, ack: &Ack, pulse: Pulse) {
        let cycle = self.cycle;
        let rtt = self.rtt();
        let lasted = ack.now.saturating_since(cycle.began);
        self.know_the_shortest(&cycle, ack.now);
        if self.contest.is_some() {
            self.contend(&cycle, pulse, lasted);
            self.cycle = Cycle { began: ack.now, ..Cycle::default() };
            return;
        }
        if !cycle.spoilt && cycle.best > Rate::ZERO {
            let beyond = 100 + (pulse.gain - UNIT) * FREE_PERCENT / UNIT;
            let free = cycle.best >= scaled(pulse.from, beyond, 100);
            if free {
                self.gain = (pulse.gain * 2).min(GAIN_MAX);
            } else {
                self.found = true;
                self.gain = self.usual_gain;
            }
            self.capacity = Some(self.within_bounds(cycle.best));
        }
        self.most = scaled(self.most, 255, 256).max(cycle.best);
        let low = rtt + self.queue() * 2 + self.pulse_time(pulse.gain) * 2;
        if cycle.rtt_max <= low {
            self.calm.learn(cycle.calm_acked, cycle.calm_lost);
        }
        let idle = self.idles(&cycle, lasted);
        let beyond = low.saturating_sub(rtt);
        let shortest = cycle.rtt_max <= self.shortest.0.saturating_add(beyond);
        if shortest && !idle && self.dips.agree() {
            self.clean.learn(cycle.calm_acked, cycle.calm_lost);
        }
        self.fit_pulses(&cycle);
        self.look_at_the_wait(&cycle, pulse, lasted);
        if self.contest.is_none() && self.found {
            if self.dropped_more_than(DROPPED_PART, &cycle, &self.clean) && !cycle.fallen {
                self.dips.want();
            }
            self.dips.step(self.rtt());
        }
        self.cycle = Cycle { began: ack.now, ..Cycle::default() };
    }

    /// Whether more than one in `part` bytes of a cycle was lost, beyond twice the radio's losses.
    fn dropped_more_than(&self, part: u64, cycle: &Cycle, radio: &Calm) -> bool {
        let all = cycle.acked.saturating_add(cycle.lost);
        let radio = u128::from(all) * u128::from(radio.lost_q16()) / 65_536;
        u128::from(cycle.lost) > 2 * radio + u128::from(all / part)
    }

    /// If the queue is too short for a pulse, it drops a part of it: the pulses become weaker.
    fn fit_pulses(&mut self, cycle: &Cycle) {
        if self.dropped_more_than(DROPPED_PART, cycle, &self.calm) {
            if !self.found && self.dropped_more_than(SURPLUS_PART, cycle, &self.calm) {
                self.found = true;
                self.gain = self.usual_gain;
            } else if self.found && !cycle.fallen {
                self.usual_gain = self.usual_gain.midpoint(UNIT).max(GAIN_MIN);
                self.gain = self.gain.min(self.usual_gain);
            }
            self.unhurt = 0;
        } else {
            self.unhurt += 1;
            if self.unhurt >= UNHURT_CYCLES {
                self.usual_gain = (self.usual_gain * 2 - UNIT).min(GAIN_FOUND);
                self.unhurt = 0;
            }
        }
    }

    /// If all data of a cycle waited although the link delivered less than it can, either the path has become longer,
    /// and there was no queue, or other flows are in the queue. A longer path is assumed first.
    fn look_at_the_wait(&mut self, cycle: &Cycle, pulse: Pulse, lasted: Duration) {
        let Some(rtt_min) = cycle.rtt_min else { return };
        let rate = Rate::of(Bytes::new(cycle.acked), lasted);
        let idle = self.idles(cycle, lasted);
        let waits = rtt_min > self.rtt() + self.queue() + self.rtt() / 32;
        let shortest = self.shortest.0;
        let crowded = rtt_min > shortest + shortest / 8 + QUEUE_MIN
            && !cycle.fallen
            && self.dropped_more_than(CROWD_PART, cycle, &self.clean);
        let finding = if self.doubt.overflows(crowded) {
            Finding::Others
        } else if self.dips.disturb() {
            Finding::Nothing
        } else {
            self.doubt.consider(waits, idle)
        };
        match finding {
            Finding::Nothing => {}
            Finding::Longer => {
                self.base = Some(rtt_min);
                self.dips.doubt();
            }
            Finding::Others => {
                self.doubt.forget();
                self.base = Some(self.shortest.0.min(rtt_min));
                // A little less than half of the data in flight is near a fair part of two, and nearer to that of more.
                let part = self.answer(pulse).map_or(contest::ALL, |part| part.max(1));
                let most = u64::try_from(contest::ALL * 45 / part).unwrap_or(100).min(100);
                let link = self.most.max(rate);
                let window = rate.bytes_in(rtt_min * most / 100);
                let window = window.max(Bytes::new(WINDOW_MIN * self.mss));
                self.contest = Some(Box::new(Contest::new(self.mss, window, rtt_min, link)));
            }
        }
    }

    /// Whether the link delivered less than it can.
    fn idles(&self, cycle: &Cycle, lasted: Duration) -> bool {
        let rate = u128::from(Rate::of(Bytes::new(cycle.acked), lasted).bits_per_s());
        let capacity = self.capacity.map_or(0, |capacity| u128::from(capacity.bits_per_s()));
        rate * 100 < capacity * 90 && !cycle.lacking
    }

    fn know_the_shortest(&mut self, cycle: &Cycle, now: Instant) {
        let (Some(rtt_min), Some(base)) = (cycle.rtt_min, self.base) else { return };
        if now.saturating_since(self.shortest.1) > SHORTEST_WINDOW {
            self.shortest = (base, now);
        }
        if rtt_min < self.shortest.0 - self.shortest.0 / 16 {
            // The measured losses of the radio may have been drops of a queue.
            self.clean.forget();
        }
        self.shortest.0 = self.shortest.0.min(rtt_min);
    }

    /// Our share of the delivered data, by what arrived of a pulse and of as much time before it. Unit: 1/1024.
    fn answer(&self, pulse: Pulse) -> Option<i64> {
        let length = pulse.end.saturating_since(pulse.start);
        let few = 4 * self.mss;
        let before = self.arrivals.between(pulse.start - length, pulse.start, few)?;
        contest::part(before, self.arrivals.between(pulse.start, pulse.end, few)?)
    }

    /// A cycle beside other flows is over. The link is ours again if they leave no queue, or take nothing of a pulse.
    fn contend(&mut self, cycle: &Cycle, pulse: Pulse, lasted: Duration) {
        let answer = self.answer(pulse).filter(|_| !cycle.spoilt);
        let Some(rtt_min) = cycle.rtt_min else { return };
        let empty = rtt_min <= self.rtt() + self.queue() + self.rtt() / 16;
        let Some(contest) = &mut self.contest else { return };
        if contest.conclude(empty, lasted, answer) {
            let rate = Rate::of(Bytes::new(cycle.acked), lasted);
            self.contest = None;
            self.capacity = Some(self.within_bounds(cycle.best.max(rate)));
            self.doubt.forget();
            self.gain = self.usual_gain;
        }
    }

    /// The link had an outage, or the path changed: data that arrived at that time measures nothing.
    fn disregard(&mut self, arrival: Option<Arrival>) {
        self.arrivals.clear();
        if let Some(arrival) = arrival {
            self.arrivals.restart(arrival);
        }
        self.cycle.spoilt = true;
    }
}

/// `rate` × `numerator` / `denominator`, rounded down.
fn scaled(rate: Rate, numerator: u64, denominator: u64) -> Rate {
    let bits =
        u128::from(rate.bits_per_s()) * u128::from(numerator) / u128::from(denominator.max(1));
    Rate::from_bits_per_s(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// The rate between pulses that brings the data in flight to `target` in a quarter of a round trip.
pub(crate) fn steered(capacity: Rate, target: u64, in_flight: u64, quarter: Duration) -> Rate {
    let product = i128::from(capacity.bytes_in(quarter).get()).max(1);
    let missing = i128::from(target) - i128::from(in_flight);
    let percent = 100 + missing * 100 / product;
    let percent = percent.clamp(SLOWEST_PERCENT.into(), FASTEST_PERCENT.into());
    scaled(capacity, u64::try_from(percent).unwrap_or(100), 100).min(RATE_MAX)
}

impl Pulsed {
    pub(crate) const DESCRIPTION: Description =
        Description { name: "pulse", ..Description::OWN_RULE };

    pub(crate) fn controller(common: &Common<'_>) -> Controller {
        Controller::new(Self::new(common.mss, common.initial_window))
    }
}

impl CongestionControl for Pulsed {
    fn on_established(&mut self, established: &Established) {
        if let Some(rtt) = established.rtt {
            self.begin_unknown(established.now, rtt);
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.timed_out = false;
        self.in_flight = ack.in_flight.get();
        if self.capacity.is_none()
            && let Some(rtt) = ack.rtt
        {
            self.begin_unknown(ack.now, rtt);
        }
        let Some(sample) = ack.sample else { return };
        let silent = self.was_silent(ack.now);
        self.take_rtt(ack);
        let delivered = ack.delivered.get();
        let arrival = Arrival { at: ack.now, sent: sample.departed, delivered };
        self.cycle.acked = self.cycle.acked.saturating_add(ack.acked.get());
        if self.calm.holds(sample.sent) {
            self.cycle.calm_acked = self.cycle.calm_acked.saturating_add(ack.acked.get());
        }
        self.cycle.spoilt |= sample.is_app_limited;
        self.cycle.lacking |= sample.is_app_limited;
        if silent {
            self.disregard(Some(arrival));
        } else {
            self.arrivals.push(arrival, self.rtt() * 2);
            self.measure(arrival);
        }
        let rtt = self.rtt();
        if let Some(contest) = &mut self.contest {
            contest.on_ack(ack, ack.now.saturating_since(sample.departed), rtt);
        }
        if let Some(pulse) = self.pulse {
            let rest = (pulse.end.saturating_since(pulse.start)) * PULSE_REST;
            let over = sample.sent > pulse.end
                && ack.now.saturating_since(pulse.start) >= rest.max(self.rtt());
            if over {
                self.conclude(ack, pulse);
                self.pulse = None;
                // Flows that send as they are acknowledged would adapt to pulses that come once per round trip.
                self.pulses = self.pulses.wrapping_add(1);
                let turn = u64::from(self.pulses.wrapping_mul(GOLDEN) >> 24);
                self.pulse_due = ack.now + self.rtt() * turn / 256;
            }
        }
        let due = self.contest.is_none() || ack.now >= self.pulse_due;
        if due && self.pulse.is_none() && self.in_flight <= self.target() + self.target() / 16 {
            self.start_pulse(ack.now);
        }
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.cycle.lost = self.cycle.lost.saturating_add(segment.size.get());
        if self.calm.holds(segment.sent) {
            self.cycle.calm_lost = self.cycle.calm_lost.saturating_add(segment.size.get());
        }
        if let Some(contest) = &mut self.contest {
            contest.on_lost_segment(segment);
        }
    }

    fn on_loss(&mut self, loss: &Loss) {
        if let Some(contest) = &mut self.contest {
            contest.on_loss(loss, self.clean.lost_q16());
        }
    }

    fn on_rto(&mut self, rto: &Rto) {
        if let Some(contest) = &mut self.contest {
            contest.on_rto(rto);
        }
        // Until an acknowledgement arrives, there may be no link.
        self.timed_out = true;
        self.disregard(None);
    }

    fn on_spurious(&mut self, spurious: &Spurious) {
        self.timed_out = false;
        if let Some(contest) = &mut self.contest {
            contest.on_spurious(spurious);
        }
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.disregard(None);
        if handover.rtt.is_some() {
            self.base = handover.rtt;
            self.shortest = (Duration::MAX, handover.now);
        }
        if let Some(rate) = handover.rate
            && self.capacity.is_some()
        {
            self.capacity = Some(self.within_bounds(rate));
        }
    }

    fn on_restart(&mut self, restart: &Restart) {
        self.disregard(None);
        self.acked_at = restart.now;
        self.in_flight = 0;
        self.cycle = Cycle { began: restart.now, ..Cycle::default() };
        if let Some(contest) = &mut self.contest {
            contest.on_restart(restart);
        }
        if self.capacity.is_some() {
            self.start_pulse(restart.now);
        }
    }

    fn is_in_slow_start(&self) -> bool {
        !self.found
    }

    fn window(&self) -> Bytes {
        let least = WINDOW_MIN * self.mss;
        if self.timed_out {
            return Bytes::new(least);
        }
        if self.capacity.is_none() {
            return Bytes::new(self.initial_window);
        }
        if let Some((window, _)) = self.contest.as_ref().and_then(|contest| contest.own()) {
            return window.max(Bytes::new(least));
        }
        let target = self.target();
        let room = match self.pulse {
            Some(pulse) if self.is_pulsing(self.acked_at) => {
                let beyond = scaled(self.gross(), pulse.gain - UNIT, UNIT);
                beyond.bytes_in(pulse.end.saturating_since(pulse.start)).get()
            }
            _ => target / 8,
        };
        let least = if self.contest.is_some() { least } else { least.max(self.initial_window) };
        Bytes::new(target.saturating_add(room).max(least))
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.capacity?;
        if let Some((_, rate)) = self.contest.as_ref().and_then(|contest| contest.own()) {
            return Some(rate.min(RATE_MAX));
        }
        let gross = self.gross();
        Some(match self.pulse {
            Some(pulse) if self.is_pulsing(self.acked_at) => {
                scaled(gross, pulse.gain, UNIT).min(RATE_MAX)
            }
            _ if self.in_flight < self.initial_window && self.contest.is_none() => {
                scaled(gross, GAIN_MAX, UNIT).min(RATE_MAX)
            }
            _ => steered(gross, self.target(), self.in_flight, self.rtt() / 4),
        })
    }

    fn governs_recovery(&self) -> bool {
        true
    }

    fn measures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
