//! BBR version 1, as Linux ships it.
//!
//! Source: net/ipv4/tcp_bbr.c of Linux 6.12; N. Cardwell et al., "BBR: congestion-based congestion
//! control", ACM Queue 14(5), 2016.
//!
//! Differs: data is counted in bytes; bounds are rounded up to whole segments as there. The data in
//! flight is used as it is, without an estimate of the data that a queueing discipline holds until its departure
//! time, because the transport counts data as in flight once it has left. Round-trip times of delayed
//! acknowledgements are not distinguished from others.

mod aggregation;

use super::policer::{Look, Policer};
use super::{BbrSettings, HeldBack, Sample, WindowedMax, scaled};
use crate::common::Common;
use crate::description::{Description, InKernel};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, LostSegment, Phase, Restart,
    Rto, Spurious, random::Draws,
};
use aggregation::Aggregation;
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};

/// Gains have eight binary places.
const UNIT: u64 = 256;
/// 2/ln 2: the smallest gain that doubles the rate each round.
const HIGH_GAIN: u64 = UNIT * 2885 / 1000 + 1;
const DRAIN_GAIN: u64 = UNIT * 1000 / 2885;
const CWND_GAIN: u64 = 2 * UNIT;
/// The pacing gains of a cycle: probe, drain the queue of the probe, cruise.
const CYCLE: [u64; 8] = [UNIT * 5 / 4, UNIT * 3 / 4, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT];
/// Where a cycle may begin: anywhere but in the phase that drains.
const CYCLE_STARTS: u64 = 7;
const BANDWIDTH_ROUNDS: u64 = 10;
const MIN_RTT_WINDOW: Duration = Duration::from_s(10);
const PROBE_RTT_TIME: Duration = Duration::from_ms(200);
/// Unit: segments.
const WINDOW_MIN: u64 = 4;
const FULL_ROUNDS: u32 = 3;
/// Below this rate one segment leaves at a time, above it at least two.
const QUANTUM_RATE: Rate = Rate::from_bits_per_s(1_200_000);
const QUANTUM_MAX: u64 = 65_535 - 320;
/// Paced a hundredth below the measured rate, so that a queue drains.
const MARGIN_PERCENT: u64 = 1;

/// The state of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Doubling the rate each round.
    Startup,
    /// Emptying the queue that the start left.
    Drain,
    /// Cycling around the measured rate.
    ProbeBw,
    /// Sending almost nothing, to measure the path without a queue.
    ProbeRtt,
}

/// BBR version 1 as a controller.
#[derive(Debug, Clone)]
pub struct BbrV1 {
    mss: u64,
    initial_window: u64,
    draws: Draws,
    mode: Mode,
    cwnd: u64,
    prior_cwnd: u64,
    pacing_rate: Option<Rate>,
    bandwidth: WindowedMax,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    /// Only data sent since then measures the path, until some has arrived.
    path_since: Option<Instant>,
    rounds: u64,
    round_start: bool,
    round_end: u64,
    full: bool,
    full_bandwidth: u64,
    full_count: u32,
    cycle: usize,
    cycle_at: Instant,
    probe_rtt_done: Option<Instant>,
    probe_rtt_round_done: bool,
    idle_restart: bool,
    phase: Phase,
    conserving: bool,
    aggregation: Aggregation,
    held_back: HeldBack,
    policer: Policer,
    delivered: u64,
    lost: u64,
}

impl BbrV1 {
    /// A new connection with segments of `mss`.
    pub fn new(mss: Bytes, settings: BbrSettings) -> Self {
        let mss = mss.get().max(1);
        let initial_window = u64::from(settings.initial_window).saturating_mul(mss);
        Self {
            mss,
            initial_window,
            draws: Draws::new(settings.seed),
            mode: Mode::Startup,
            cwnd: initial_window,
            prior_cwnd: 0,
            pacing_rate: None,
            bandwidth: WindowedMax::default(),
            min_rtt: None,
            min_rtt_at: Instant::START,
            path_since: None,
            rounds: 0,
            round_start: false,
            round_end: 0,
            full: false,
            full_bandwidth: 0,
            full_count: 0,
            cycle: 0,
            cycle_at: Instant::START,
            probe_rtt_done: None,
            probe_rtt_round_done: false,
            idle_restart: false,
            phase: Phase::Open,
            conserving: false,
            aggregation: Aggregation::default(),
            held_back: HeldBack::default(),
            policer: Policer::default(),
            delivered: 0,
            lost: 0,
        }
    }

    /// A connection that continues by this law, at `rate` over a round-trip time of `rtt` without a queue.
    /// `sent_until_now`: what was delivered, and what is in flight.
    pub(crate) fn resumed(
        mss: Bytes,
        seed: Seed,
        now: Instant,
        rate: Rate,
        rtt: Duration,
        sent_until_now: u64,
    ) -> Self {
        let mut law = Self::new(mss, BbrSettings { seed, ..BbrSettings::default() });
        law.full = true;
        law.min_rtt = Some(rtt);
        law.min_rtt_at = now;
        law.aggregation.restart(now);
        law.round_end = sent_until_now;
        law.bandwidth = WindowedMax::new(0, rate.bits_per_s());
        law.cwnd = law.inflight(CWND_GAIN);
        law.enter_probe_bw(now);
        law.pace(law.pacing_gain());
        law
    }

    /// The flow's state.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The measured rate of the path, or what a policer on it lets through.
    pub fn bandwidth(&self) -> Rate {
        self.policer.rate().unwrap_or(Rate::from_bits_per_s(self.bandwidth.max()))
    }

    /// The rate of a policer on the path, where one was detected.
    pub fn policed(&self) -> Option<Rate> {
        self.policer.rate()
    }

    /// The measured round-trip time without queues.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt
    }

    /// The pacing gain over the measured rate. Unit: 1/256.
    pub fn pacing_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            // A policer would drop anything above its rate.
            Mode::ProbeBw if self.policer.rate().is_some() => UNIT,
            Mode::ProbeBw => CYCLE[self.cycle],
            Mode::ProbeRtt => UNIT,
        }
    }

    fn cwnd_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeBw => CWND_GAIN,
            Mode::ProbeRtt => UNIT,
        }
    }

    /// The product of rate and round-trip time, `gain` times. Unit: segments, rounded up.
    fn bdp(&self, gain: u64) -> u64 {
        let Some(min_rtt) = self.min_rtt else { return self.initial_window.div_ceil(self.mss) };
        let bits = u128::from(self.bandwidth().bits_per_s()) * u128::from(min_rtt.as_ns());
        let bytes = bits * u128::from(gain) / u128::from(UNIT) / 8_000_000_000;
        u64::try_from(bytes.div_ceil(u128::from(self.mss))).unwrap_or(u64::MAX / self.mss)
    }

    /// How many segments leave at once where segments are made in batches: a millisecond's worth.
    fn quantum(&self) -> u64 {
        let rate = self.pacing_rate.unwrap_or(Rate::ZERO);
        let least = if rate < QUANTUM_RATE { 1 } else { 2 };
        // A 1024th of a second, as Linux shifts.
        let bytes = (rate.bits_per_s() / 8 / 1024).min(QUANTUM_MAX);
        (bytes / self.mss).max(least).min(127)
    }

    /// `segments` with the allowance for batches at both ends. Unit: bytes.
    fn budget(&self, segments: u64) -> u64 {
        let mut segments = segments.saturating_add(3 * self.quantum());
        // An even number avoids a delayed acknowledgement.
        segments = segments.saturating_add(segments & 1);
        if self.mode == Mode::ProbeBw && self.cycle == 0 {
            segments = segments.saturating_add(2);
        }
        segments.saturating_mul(self.mss)
    }

    fn inflight(&self, gain: u64) -> u64 {
        self.budget(self.bdp(gain))
    }

    fn update_bandwidth(&mut self, ack: &Ack, sample: Option<Sample>) {
        self.round_start = false;
        let Some((sample, rate)) = sample.and_then(|sample| Some((sample, sample.rate?))) else {
            return;
        };
        if sample.prior_delivered >= self.round_end {
            self.round_end = ack.delivered.get();
            self.rounds += 1;
            self.round_start = true;
            self.conserving = false;
        }
        self.look_for_a_policer(ack.now, ack.lost > Bytes::ZERO, sample.app_limited);
        let bits = rate.bits_per_s();
        if !sample.app_limited || bits >= self.bandwidth.max() {
            self.bandwidth.update(BANDWIDTH_ROUNDS, self.rounds, bits);
        }
    }

    fn look_for_a_policer(&mut self, now: Instant, loses: bool, app_limited: bool) {
        let over = self.policer.look(Look {
            now,
            delivered: self.delivered,
            lost: self.lost,
            loses,
            round_start: self.round_start,
            app_limited,
            probing: self.mode == Mode::ProbeBw,
        });
        if over {
            self.enter_probe_bw(now);
        }
    }

    fn update_aggregation(&mut self, ack: &Ack, sample: Option<Sample>) {
        if sample.is_none_or(|sample| sample.rate.is_none()) {
            return;
        }
        if self.round_start {
            self.aggregation.on_round();
        }
        let bandwidth = self.bandwidth();
        self.aggregation.on_ack(ack.now, ack.acked.get(), bandwidth, self.cwnd);
    }

    fn update_cycle(&mut self, ack: &Ack, sample: Option<Sample>) {
        if self.mode != Mode::ProbeBw {
            return;
        }
        let min_rtt = self.min_rtt.unwrap_or(Duration::MAX);
        let elapsed = ack.now.saturating_since(self.cycle_at) > min_rtt;
        let in_flight = sample.map_or(ack.in_flight.get(), |sample| sample.prior_in_flight);
        let gain = self.pacing_gain();
        let over = if gain > UNIT {
            let next = in_flight.saturating_add(self.quantum() * self.mss);
            elapsed && (ack.lost > Bytes::ZERO || next >= self.inflight(gain))
        } else if gain < UNIT {
            elapsed || in_flight <= self.inflight(UNIT)
        } else {
            elapsed
        };
        if over {
            self.advance_cycle(ack.now);
        }
    }

    fn advance_cycle(&mut self, now: Instant) {
        self.cycle = (self.cycle + 1) % CYCLE.len();
        self.cycle_at = now;
    }

    fn enter_probe_bw(&mut self, now: Instant) {
        self.mode = Mode::ProbeBw;
        self.cycle = CYCLE.len() - 1 - self.draws.below(CYCLE_STARTS) as usize;
        self.advance_cycle(now);
    }

    fn check_full(&mut self, sample: Option<Sample>) {
        let app_limited = sample.is_none_or(|sample| sample.app_limited);
        if self.full || !self.round_start || app_limited {
            return;
        }
        let bandwidth = self.bandwidth.max();
        if u128::from(bandwidth) * 4 >= u128::from(self.full_bandwidth) * 5 {
            self.full_bandwidth = bandwidth;
            self.full_count = 0;
            return;
        }
        self.full_count += 1;
        self.full = self.full_count >= FULL_ROUNDS;
    }

    fn check_drain(&mut self, ack: &Ack) {
        if self.mode == Mode::Startup && self.full {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && ack.in_flight.get() <= self.inflight(UNIT) {
            self.enter_probe_bw(ack.now);
        }
    }

    fn update_min_rtt(&mut self, ack: &Ack, sample: Option<Sample>) {
        let expired = ack.now.saturating_since(self.min_rtt_at) > MIN_RTT_WINDOW;
        let mut renewed = expired;
        if let Some(since) = self.path_since {
            if sample.is_none_or(|sample| sample.sent < since) {
                return;
            }
            renewed = true;
            self.path_since = ack.rtt.is_none().then_some(since);
        }
        if let Some(rtt) = ack.rtt
            && (renewed || self.min_rtt.is_none_or(|min| rtt < min))
        {
            self.min_rtt = Some(rtt);
            self.min_rtt_at = ack.now;
        }
        if expired && !self.idle_restart && self.mode != Mode::ProbeRtt {
            self.mode = Mode::ProbeRtt;
            self.save_cwnd();
            self.probe_rtt_done = None;
        }
        if self.mode == Mode::ProbeRtt {
            self.probe_rtt(ack);
        }
        if sample.is_some_and(|sample| sample.delivered > 0) {
            self.idle_restart = false;
        }
    }

    fn probe_rtt(&mut self, ack: &Ack) {
        let in_flight = ack.in_flight.get();
        self.held_back.mark(ack.delivered.get(), in_flight);
        if self.probe_rtt_done.is_some() {
            self.probe_rtt_round_done |= self.round_start;
            if self.probe_rtt_round_done {
                self.check_probe_rtt_done(ack.now);
            }
        } else if in_flight <= WINDOW_MIN * self.mss {
            self.probe_rtt_done = Some(ack.now + PROBE_RTT_TIME);
            self.probe_rtt_round_done = false;
            self.round_end = ack.delivered.get();
        }
    }

    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt_done.is_none_or(|done| now <= done) {
            return;
        }
        self.min_rtt_at = now;
        self.cwnd = self.cwnd.max(self.prior_cwnd);
        if self.full {
            self.enter_probe_bw(now);
        } else {
            self.mode = Mode::Startup;
        }
    }

    /// The window to restore after a recovery or a probe of the round-trip time.
    ///
    /// Called before `phase` changes.
    fn save_cwnd(&mut self) {
        self.prior_cwnd = if self.phase == Phase::Open && self.mode != Mode::ProbeRtt {
            self.cwnd
        } else {
            self.prior_cwnd.max(self.cwnd)
        };
    }

    fn pace(&mut self, gain: u64) {
        let rate = scaled(self.bandwidth(), gain, UNIT);
        let rate = scaled(rate, 100 - MARGIN_PERCENT, 100);
        if rate > Rate::ZERO && (self.full || self.pacing_rate.is_none_or(|old| rate > old)) {
            self.pacing_rate = Some(rate);
        }
    }

    /// The first rate: the window per round-trip time, at the gain of the start.
    fn pace_first(&mut self, rtt: Duration) {
        let rate = Rate::of(Bytes::new(self.cwnd), rtt.max(Duration::from_us(1)));
        self.pacing_rate = Some(scaled(scaled(rate, HIGH_GAIN, UNIT), 100 - MARGIN_PERCENT, 100));
    }

    /// Recovery's bound on the window. Returns whether it alone sets the window.
    fn recover(&mut self, ack: &Ack) -> bool {
        let lost = ack.lost.get();
        if lost > 0 {
            self.cwnd = self.cwnd.saturating_sub(lost).max(self.mss);
        }
        let (before, acked) = (self.phase, ack.acked.get());
        let in_flight = ack.in_flight.get();
        if ack.phase == Phase::Recovery && before != Phase::Recovery {
            // The first round sends only as much as arrives.
            self.conserving = true;
            self.round_end = ack.delivered.get();
            self.cwnd = in_flight.saturating_add(acked);
        } else if before != Phase::Open && ack.phase == Phase::Open {
            self.cwnd = self.cwnd.max(self.prior_cwnd);
            self.conserving = false;
        }
        self.phase = ack.phase;
        if self.conserving {
            self.cwnd = self.cwnd.max(in_flight.saturating_add(acked));
        }
        self.conserving
    }

    fn set_cwnd(&mut self, ack: &Ack) {
        if !self.recover(ack) {
            let bonus = if self.full { self.aggregation.bonus(self.bandwidth()) } else { 0 };
            let target = self.budget(self.bdp(self.cwnd_gain()) + bonus / self.mss);
            let grown = self.cwnd.saturating_add(ack.acked.get());
            if self.full {
                self.cwnd = grown.min(target);
            } else if self.cwnd < target || ack.delivered.get() < self.initial_window {
                self.cwnd = grown;
            }
            self.cwnd = self.cwnd.max(WINDOW_MIN * self.mss);
        }
        if self.mode == Mode::ProbeRtt {
            self.cwnd = self.cwnd.min(WINDOW_MIN * self.mss);
        }
    }
}

impl BbrV1 {
    pub(crate) const DESCRIPTION: Description =
        Description { name: "bbr", kernel: InKernel::Native, draws: true, ..Description::OWN_RULE };

    pub(crate) fn controller(common: &Common<'_>) -> Controller {
        Controller::new(Self::new(common.mss, BbrSettings::of(common)))
    }
}

impl CongestionControl for BbrV1 {
    fn on_established(&mut self, established: &Established) {
        self.min_rtt_at = established.now;
        self.aggregation.restart(established.now);
        if let Some(rtt) = established.rtt {
            self.min_rtt = Some(rtt);
            self.pace_first(rtt);
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        if self.pacing_rate.is_none()
            && let Some(rtt) = ack.rtt
        {
            self.pace_first(rtt);
        }
        self.delivered = ack.delivered.get();
        let sample = Sample::of(ack, self.held_back);
        self.update_bandwidth(ack, sample);
        self.update_aggregation(ack, sample);
        self.update_cycle(ack, sample);
        self.check_full(sample);
        self.check_drain(ack);
        self.update_min_rtt(ack, sample);
        self.pace(self.pacing_gain());
        self.set_cwnd(ack);
    }

    fn on_loss(&mut self, _loss: &Loss) {
        self.save_cwnd();
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.lost = self.lost.saturating_add(segment.size.get());
    }

    fn on_rto(&mut self, rto: &Rto) {
        self.save_cwnd();
        self.phase = Phase::Loss;
        self.full_bandwidth = 0;
        // It ends a round.
        self.round_start = true;
        self.look_for_a_policer(rto.now, true, false);
        self.cwnd = self.mss;
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.full_bandwidth = 0;
        self.full_count = 0;
        self.policer = Policer::default();
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.min_rtt_at = handover.now;
        self.path_since = Some(handover.now);
        self.policer = Policer::default();
        if handover.rtt.is_some() {
            self.min_rtt = handover.rtt;
        }
        if let Some(rate) = handover.rate {
            self.bandwidth = WindowedMax::new(self.rounds, rate.bits_per_s());
            self.pace(self.pacing_gain());
        }
    }

    fn on_restart(&mut self, restart: &Restart) {
        if !restart.app_limited {
            return;
        }
        self.idle_restart = true;
        self.aggregation.restart(restart.now);
        match self.mode {
            Mode::ProbeBw => self.pace(UNIT),
            Mode::ProbeRtt => self.check_probe_rtt_done(restart.now),
            Mode::Startup | Mode::Drain => {}
        }
    }

    fn is_in_slow_start(&self) -> bool {
        self.mode == Mode::Startup
    }

    fn window(&self) -> Bytes {
        Bytes::new(self.cwnd)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.pacing_rate
    }

    fn governs_recovery(&self) -> bool {
        true
    }
}
