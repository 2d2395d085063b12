//! Hybla by its paper, counted per acknowledged segment, with a bounded slow start.
//!
//! Source: C. Caini, R. Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks",
//! International Journal of Satellite Communications and Networking 22, 2004. With ρ = max(RTT/RTT0, 1)
//! every acknowledged segment adds 2^ρ − 1 in slow start and ρ²/W in congestion avoidance, so that W/RTT
//! grows as it would for a flow whose round-trip time is RTT0.
//!
//! Differs: ρ comes from the smallest RTT of a window of time, because an RTT that includes a queue
//! would make the flow grow faster the longer the queue is; slow start multiplies the window by no
//! more than a bound per round and ends when a round's RTTs show a queue (thresholds of RFC 9406 §4.2).
//!
//! Numbers named `_q10`, `_q16`, `_q20` carry that many binary places. The integer law is that of
//! `programs/laws/hybla.h` in midhop-bpf, bit for bit.

use crate::{
    Ack, CongestionControl, Handover, Loss, Phase, Rto, Spurious, reno,
    segments::{INITIAL_WINDOW, NO_THRESHOLD, SegmentWindow, saturated, us},
};
use midhop_units::{Bytes, Duration, Rate};

/// One with ten binary places.
pub const ONE_Q10: u32 = 1 << 10;
const ONE_Q20: u64 = 1 << 20;
/// ρ stays below 64 (1.6 s against 25 ms), so that its square with twenty places fits 32 bits.
const RHO_MAX_Q10: u32 = 64 * ONE_Q10 - 1;
/// One acknowledgement is counted segment by segment up to this many, in this many shares beyond.
const STEPS_MAX: u32 = 32;
/// No acknowledgement covers more: a window of 1 GiB.
const ACKED_MAX: u32 = 1 << 20;
/// A round needs this many RTT samples before its minimum says anything (RFC 9406 §4.2).
const ROUND_SAMPLES_MIN: u32 = 8;
/// No RTT has been measured.
pub const RTT_NONE: u32 = u32::MAX;

/// ρ = max(RTT/RTT0, 1).
pub fn rho_q10(rtt_us: u32, rtt0_us: u32) -> u32 {
    let rho = (u64::from(rtt_us) << 10) / u64::from(rtt0_us.max(1));
    saturated(rho).clamp(ONE_Q10, RHO_MAX_Q10)
}

/// 2^x for 0 ≤ x < 16, within 2·10⁻⁴: the fraction by a cubic that is exact at both ends.
pub fn power_of_two_q16(x_q10: u32) -> u32 {
    let f = u64::from(x_q10 & (ONE_Q10 - 1)) << 6;
    let power = 65_536 + ((f * (45_584 + ((f * (14_822 + ((f * 5_130) >> 16))) >> 16))) >> 16);
    let whole = x_q10 >> 10;
    if whole > 15 { u32::MAX } else { saturated(power << whole) }
}

/// What one acknowledged segment adds in slow start: 2^ρ − 1, bounded so that a window of
/// acknowledgements multiplies the window by `growth_max_q10` at most, and never below Reno's 1.
pub fn gain_q10(rho_q10: u32, growth_max_q10: u32) -> u32 {
    (power_of_two_q16(rho_q10) >> 6).min(growth_max_q10).max(2 * ONE_Q10) - ONE_Q10
}

/// What the law grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Unit: segments.
    pub cwnd: u32,
    /// Unit: segments. Below it the window is in slow start.
    pub ssthresh: u32,
    /// Unit: segments. The window does not grow beyond.
    pub cwnd_max: u32,
    /// The part of a segment the window has grown beyond `cwnd`.
    pub fraction_q20: u32,
    /// [`rho_q10`].
    pub rho_q10: u32,
    /// [`gain_q10`].
    pub gain_q10: u32,
}

impl Window {
    /// Counts `acked` segments into the window.
    pub fn grow(&mut self, acked: u32) {
        let mut acked = acked.min(ACKED_MAX);
        let mut cwnd = u64::from(self.cwnd.max(1));
        let mut fraction = u64::from(self.fraction_q20);
        let ssthresh = u64::from(self.ssthresh);
        if cwnd < ssthresh && acked > 0 {
            let gain_q10 = u64::from(self.gain_q10.max(1));
            let segments = ((ssthresh - cwnd) << 10).div_ceil(gain_q10);
            if segments <= u64::from(acked) {
                cwnd = ssthresh;
                fraction = 0;
                acked -= saturated(segments);
            } else {
                fraction += (u64::from(acked) * gain_q10) << 10;
                cwnd = (cwnd + (fraction >> 20)).min(ssthresh);
                fraction &= ONE_Q20 - 1;
                acked = 0;
            }
        }
        let steps = acked.min(STEPS_MAX);
        let rho = u64::from(self.rho_q10.min(RHO_MAX_Q10));
        let step = rho * rho * u64::from(acked) / u64::from(steps.max(1));
        for _ in 0..steps {
            fraction += step / cwnd;
            cwnd += fraction >> 20;
            fraction &= ONE_Q20 - 1;
        }
        // A window above its bound already (the bound came later) is held, not cut.
        if cwnd > u64::from(self.cwnd_max) {
            cwnd = u64::from(self.cwnd_max.max(self.cwnd));
            fraction = 0;
        }
        self.cwnd = saturated(cwnd);
        self.fraction_q20 = saturated(fraction);
    }
}

/// Segments of `mss` bytes on their way at `rate` bytes per second over `rtt_us`, rounded up.
pub fn bdp(rate: u64, rtt_us: u32, mss: u32) -> u32 {
    let bytes = rate.min(u64::from(u32::MAX)) * u64::from(rtt_us) / 1_000_000;
    saturated(bytes.div_ceil(u64::from(mss.max(1))))
}

/// Whether a round whose smallest RTT is `round_us` shows a queue over `base_us` (RFC 9406 §4.2).
pub fn queue_seen(base_us: u32, round_us: u32) -> bool {
    round_us.checked_sub(base_us).is_some_and(|queued| queued >= (base_us >> 3).clamp(4000, 16_000))
}

/// The smallest RTT over the current and the previous half of a window of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinRtt {
    /// Unit: µs. [`RTT_NONE`] without a sample.
    pub current_us: u32,
    /// Unit: µs. [`RTT_NONE`] without a sample.
    pub previous_us: u32,
    /// When the current half began. Unit: ms, on a circle of 32 bits.
    pub started_ms: u32,
}

impl MinRtt {
    /// Nothing measured yet.
    pub const fn new(now_ms: u32) -> Self {
        Self { current_us: RTT_NONE, previous_us: RTT_NONE, started_ms: now_ms }
    }

    /// Takes a sample and returns the smallest of the last half to whole window. A window of zero
    /// never forgets.
    pub fn update(&mut self, rtt_us: u32, now_ms: u32, window_ms: u32) -> u32 {
        if window_ms > 0 && now_ms.wrapping_sub(self.started_ms) >= (window_ms >> 1).max(1) {
            *self = Self { current_us: RTT_NONE, previous_us: self.current_us, started_ms: now_ms };
        }
        self.current_us = self.current_us.min(rtt_us);
        self.current_us.min(self.previous_us)
    }
}

/// How a [`Hybla`] behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The round-trip time of the flow it imitates.
    pub rtt0: Duration,
    /// How many times the window may grow per round in slow start, with ten binary places.
    pub growth_max_q10: u32,
    /// The window's upper bound. Unit: segments.
    pub window_max: u32,
    /// The rate of the path where it is known: slow start ends at its bandwidth-delay product.
    pub rate: Option<Rate>,
    /// With a known rate, the window's bound in bandwidth-delay products, with ten binary places.
    pub window_bdp_max_q10: u32,
    /// How long the smallest RTT counts before a larger one may replace it.
    pub min_rtt_window: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rtt0: Duration::from_ms(25),
            growth_max_q10: 4 * ONE_Q10,
            window_max: 65_535,
            rate: None,
            window_bdp_max_q10: 2 * ONE_Q10,
            min_rtt_window: Duration::from_s(60),
        }
    }
}

/// Hybla as a controller: its slow start × its avoidance × Reno's halving.
#[derive(Debug, Clone)]
pub struct Hybla {
    settings: Settings,
    window: SegmentWindow,
    cwnd_max: u32,
    fraction_q20: u32,
    rho_q10: u32,
    gain_q10: u32,
    min_rtt: MinRtt,
    rtt_us: u32,
    round: u64,
    round_min_us: u32,
    round_samples: u32,
}

impl Hybla {
    /// A new connection with segments of `mss`.
    pub fn new(mss: Bytes, settings: Settings) -> Self {
        Self {
            settings,
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            cwnd_max: settings.window_max,
            fraction_q20: 0,
            rho_q10: ONE_Q10,
            gain_q10: ONE_Q10,
            min_rtt: MinRtt::new(0),
            rtt_us: RTT_NONE,
            round: 0,
            round_min_us: RTT_NONE,
            round_samples: 0,
        }
    }

    /// What a change of the path's RTT changes: ρ, and with a known rate the bounds.
    fn take_rtt(&mut self, rtt_us: u32) {
        let first = self.rtt_us == RTT_NONE;
        self.rtt_us = rtt_us;
        self.rho_q10 = rho_q10(rtt_us, us(self.settings.rtt0));
        self.gain_q10 = gain_q10(self.rho_q10, self.settings.growth_max_q10);
        self.cwnd_max = self.settings.window_max;
        if let Some(rate) = self.settings.rate {
            let bdp = bdp(rate.bits_per_s() / 8, rtt_us, self.window.mss()).max(INITIAL_WINDOW);
            let bound = (u64::from(bdp) * u64::from(self.settings.window_bdp_max_q10)) >> 10;
            self.cwnd_max = saturated(bound).min(self.settings.window_max).max(bdp);
            // Only the first slow start: later thresholds come from losses.
            if self.window.ssthresh >= NO_THRESHOLD {
                self.window.ssthresh = bdp;
            }
        }
        if first {
            // The paper starts with ρ segments.
            self.window.cwnd = self.window.cwnd.max((self.rho_q10 >> 10).min(self.cwnd_max));
        }
    }

    fn end_slow_start_at_a_queue(&mut self, round: u64, rtt_us: u32) {
        if !self.window.in_slow_start() {
            return;
        }
        if round != self.round {
            self.round = round;
            self.round_min_us = RTT_NONE;
            self.round_samples = 0;
        }
        self.round_min_us = self.round_min_us.min(rtt_us);
        self.round_samples += 1;
        if self.round_samples >= ROUND_SAMPLES_MIN && queue_seen(self.rtt_us, self.round_min_us) {
            self.window.ssthresh = self.window.cwnd;
        }
    }
}

impl CongestionControl for Hybla {
    fn on_ack(&mut self, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.window.sample(rtt);
            let now_ms = (ack.now.as_ns() / 1_000_000) as u32;
            let window_ms = saturated(self.settings.min_rtt_window.as_ns() / 1_000_000);
            let smallest_us = self.min_rtt.update(us(rtt), now_ms, window_ms);
            if smallest_us != self.rtt_us {
                self.take_rtt(smallest_us);
            }
            self.end_slow_start_at_a_queue(ack.round, us(rtt));
        }
        let segments = self.window.segments(ack.acked);
        if ack.phase == Phase::Open {
            self.window.settle();
        }
        if ack.app_limited || ack.phase == Phase::Recovery {
            return;
        }
        let mut window = Window {
            cwnd: self.window.cwnd,
            ssthresh: self.window.ssthresh,
            cwnd_max: self.cwnd_max,
            fraction_q20: self.fraction_q20,
            rho_q10: self.rho_q10,
            gain_q10: self.gain_q10,
        };
        window.grow(segments);
        self.window.cwnd = window.cwnd;
        self.fraction_q20 = window.fraction_q20;
    }

    fn on_loss(&mut self, _loss: &Loss) {
        let half = reno::halve(self.window.cwnd);
        self.window.reduce(half, half);
        self.fraction_q20 = 0;
    }

    fn on_rto(&mut self, rto: &Rto) {
        self.window.reduce(1, reno::halve(self.window.cwnd));
        self.fraction_q20 = 0;
        // After a timeout the path may be another one: the next samples decide afresh.
        self.min_rtt = MinRtt::new((rto.now.as_ns() / 1_000_000) as u32);
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.min_rtt = MinRtt::new((handover.now.as_ns() / 1_000_000) as u32);
        if handover.rate.is_some() {
            self.settings.rate = handover.rate;
        }
        if let Some(rtt) = handover.rtt {
            self.take_rtt(us(rtt));
        }
    }

    fn window(&self) -> Bytes {
        self.window.bytes()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.window.pacing_rate()
    }
}

#[cfg(test)]
mod tests;
