//! Hybla's law as integer functions, identical to `programs/laws/hybla.h` in midhop-bpf bit for bit.
//!
//! Numbers named `_q10`, `_q16`, `_q20` carry that many binary places.

use crate::{reno, segments::saturated};

/// One with ten binary places.
pub const ONE_Q10: u32 = 1 << 10;
const ONE_Q20: u64 = 1 << 20;
/// ρ stays below 64 (1.6 s against 25 ms), so that its square with twenty places fits 32 bits.
const RHO_MAX_Q10: u32 = 64 * ONE_Q10 - 1;
/// One acknowledgement is counted segment by segment up to this many, beyond it in this many shares.
const STEPS_MAX: u32 = 32;
/// No acknowledgement covers more: a window of 1 GiB.
const ACKED_MAX: u32 = 1 << 20;
/// The smallest of this many RTT samples in a row shows whether there is a queue (RFC 9406 §4.2).
pub const QUEUE_SAMPLES: u32 = 8;
/// For how many round trips the path's capacity is remembered.
const CARRIED_ROUNDS: u32 = 10;
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

/// The state that the law updates.
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
        // A window already above its bound (the bound came later) stays, it is not cut.
        if cwnd > u64::from(self.cwnd_max) {
            cwnd = u64::from(self.cwnd_max.max(self.cwnd));
            fraction = 0;
        }
        self.cwnd = saturated(cwnd);
        self.fraction_q20 = saturated(fraction);
    }
}

/// Segments of `mss` bytes in flight at `rate` bytes per second over `rtt_us`, rounded up.
pub fn bdp(rate: u64, rtt_us: u32, mss: u32) -> u32 {
    let bytes = rate.min(u64::from(u32::MAX)) * u64::from(rtt_us) / 1_000_000;
    saturated(bytes.div_ceil(u64::from(mss.max(1))))
}

/// Pacing in windows per round trip: twice in slow start; later as much above one as lets the window
/// grow by the law.
pub fn pacing_q10(cwnd: u32, ssthresh: u32, rho_q10: u32) -> u32 {
    if cwnd < ssthresh {
        return 2 * ONE_Q10;
    }
    let rho2_q10 = (u64::from(rho_q10) * u64::from(rho_q10)) >> 10;
    let growth_q10 = saturated(rho2_q10 / u64::from(cwnd.max(1))).min(ONE_Q10);
    (ONE_Q10 + ONE_Q10 / 5 + growth_q10).min(2 * ONE_Q10)
}

/// Segments that a path carries in `rtt_us` if it has delivered `delivered` in `interval_us`.
pub fn carried(delivered: u32, interval_us: u32, rtt_us: u32) -> u32 {
    saturated(u64::from(delivered) * u64::from(rtt_us) / u64::from(interval_us.max(1)))
}

/// The largest value over the current and the previous five round trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// Unit: segments.
    pub current: u32,
    /// Unit: segments.
    pub previous: u32,
    /// The round in which `current` began, on a circle of 32 bits.
    pub started_round: u32,
}

impl Carried {
    /// Adds a value and returns the largest.
    pub fn update(&mut self, segments: u32, round: u32) -> u32 {
        if round.wrapping_sub(self.started_round) >= CARRIED_ROUNDS / 2 {
            *self = Self { current: 0, previous: self.current, started_round: round };
        }
        self.current = self.current.max(segments);
        self.current.max(self.previous)
    }
}

/// The window cut to the path's capacity: between half and all of it.
pub fn kept(cwnd: u32, carried: u32) -> u32 {
    cwnd.min(carried).max(reno::halve(cwnd))
}

/// The window of a flow with a known share of the path, `bdp` segments per round trip: at least that
/// while the share is in use, and never more than `bound`.
pub fn fit(cwnd: u32, bdp: u32, bound: u32, believed: bool) -> u32 {
    if believed { cwnd.max(bdp).min(bound) } else { cwnd.min(bound) }
}

/// The window of such a flow after more losses than a radio's: half, and since the window came
/// from a configured rate, no more than the capacity that the path has shown (RFC 9959's safe retreat).
pub fn retreat(cwnd: u32, carried: u32) -> u32 {
    let half = reno::halve(cwnd);
    if carried == 0 { half } else { half.min(carried).max(reno::WINDOW_MIN) }
}

/// Whether `lost` among `segments` is no more than chance and the tolerance explain.
pub fn tolerated(lost: u32, segments: u32, tolerance_q16: u32) -> bool {
    u64::from(lost) <= 1 + ((u64::from(segments) * u64::from(tolerance_q16)) >> 16)
}

/// Whether samples whose smallest RTT is `smallest_us` show a queue over `base_us` (RFC 9406 §4.2).
pub fn queue_seen(base_us: u32, smallest_us: u32) -> bool {
    smallest_us
        .checked_sub(base_us)
        .is_some_and(|queued| queued >= (base_us >> 3).clamp(4000, 16_000))
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

    /// Adds a sample and returns the smallest of the last half to whole window. A window of zero
    /// never forgets.
    pub fn update(&mut self, rtt_us: u32, now_ms: u32, window_ms: u32) -> u32 {
        if window_ms > 0 && now_ms.wrapping_sub(self.started_ms) >= (window_ms >> 1).max(1) {
            *self = Self { current_us: RTT_NONE, previous_us: self.current_us, started_ms: now_ms };
        }
        self.current_us = self.current_us.min(rtt_us);
        self.current_us.min(self.previous_us)
    }
}
