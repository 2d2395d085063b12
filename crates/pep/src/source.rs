//! How far a flow's source is, which window it needs, and in which of four conditions the flow is.
//!
//! A proxy before the satellite divides a flow's path. A source far from the proxy fills only one window per round
//! trip of the first part of the path, whatever the proxies do behind that. With a window of 18.8 KB it fills half
//! of 10 Mbit/s at 30 ms, and 12 % at 125 ms. So the window offered must be at least the product of the satellite's
//! rate and the source's round trip, and an operator must see which condition holds.
//!
//! Source: the study of far proxies of 2024 (see `studies/far-proxy`), which defines the conditions A to D.

use midhop_units::{Bytes, Duration, Rate};
use serde::Serialize;

/// The condition of a flow: whether its source is near the proxy, and whether the satellite leg is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// Condition A.
    NearIdle,
    /// Condition B.
    NearCongested,
    /// Condition C.
    FarIdle,
    /// Condition D.
    FarCongested,
}

impl Condition {
    /// All of them, in the order of the study.
    pub const ALL: [Self; 4] =
        [Self::NearIdle, Self::NearCongested, Self::FarIdle, Self::FarCongested];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NearIdle => "near-idle",
            Self::NearCongested => "near-congested",
            Self::FarIdle => "far-idle",
            Self::FarCongested => "far-congested",
        }
    }

    /// The condition of a flow whose source is a round trip of `source` away.
    pub fn of(source: Duration, satellite: &Satellite) -> Self {
        match (is_far(source, satellite.rtt), satellite.is_congested()) {
            (false, false) => Self::NearIdle,
            (false, true) => Self::NearCongested,
            (true, false) => Self::FarIdle,
            (true, true) => Self::FarCongested,
        }
    }
}

/// A source is far if its round trip exceeds this part of the satellite's: the study's 30 ms at 540 ms.
const FAR_PART: u64 = 18;
/// A source nearer than this is never far, however short the satellite's round trip.
const FAR_LEAST: Duration = Duration::from_ms(10);
/// A leg is congested if the queue takes more than this part of a round trip.
const QUEUE_PART: u64 = 8;
/// The least such queue, for short round trips: jitter is no queue.
const QUEUE_LEAST: Duration = Duration::from_ms(10);

/// The state of a satellite leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Satellite {
    /// Its round-trip time without queues.
    pub rtt: Duration,
    /// By how much the present round-trip time exceeds it.
    pub queue: Duration,
    /// The rate that it carries, if known.
    pub rate: Option<Rate>,
    /// The rate that it recently carried of all other flows.
    pub others: Rate,
}

impl Satellite {
    /// Whether other flows leave less than half of it, or what is sent waits in a queue.
    pub fn is_congested(&self) -> bool {
        let bound = Duration::from_ns(self.rtt.as_ns() / QUEUE_PART).max(QUEUE_LEAST);
        let half = |rate: Rate| self.others.bits_per_s() > rate.bits_per_s() / 2;
        self.queue > bound || self.rate.is_some_and(half)
    }
}

/// Whether a source is far from the proxy, given the satellite's round trip.
pub fn is_far(source: Duration, satellite: Duration) -> bool {
    source > Duration::from_ns(satellite.as_ns() / FAR_PART).max(FAR_LEAST)
}

/// The window to offer to a source: two products of the satellite's rate and the source's round trip, because one
/// would be used up as soon as a packet is lost. At least `least`, and at most an eighth of what all flows may
/// hold.
///
/// Unit: bytes.
pub fn window(rate: Rate, source: Duration, least: Bytes, memory: Bytes) -> Bytes {
    rate.bytes_in(source).scale(2.0).max(least).min(Bytes::new(memory.get() / 8))
}

/// The fraction of a provisioned rate that is effective.
///
/// Unit: 1. Range: ≥ 0. Source: the study's EPB ratio.
pub fn bandwidth_ratio(effective: Rate, provisioned: Rate) -> f64 {
    effective.bits_per_s() as f64 / provisioned.bits_per_s().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_ms(ms)
    }

    fn mbit(rate: u64) -> Rate {
        Rate::from_mbit_per_s(rate)
    }

    fn satellite(queue: u64, others: u64) -> Satellite {
        Satellite { rtt: ms(540), queue: ms(queue), rate: Some(mbit(10)), others: mbit(others) }
    }

    #[test]
    fn the_study_s_conditions_are_distinguished() {
        for (source, queue, others, condition) in [
            (1, 0, 0, Condition::NearIdle),
            (30, 0, 0, Condition::NearIdle),
            (31, 0, 0, Condition::FarIdle),
            (125, 60, 5, Condition::FarIdle),
            (1, 0, 6, Condition::NearCongested),
            (1, 70, 0, Condition::NearCongested),
            (200, 0, 9, Condition::FarCongested),
            (200, 300, 0, Condition::FarCongested),
        ] {
            let found = Condition::of(ms(source), &satellite(queue, others));
            assert_eq!(found, condition, "{source} ms, queue {queue} ms, {others} Mbit/s");
        }
        let unknown = Satellite { rate: None, ..satellite(0, 9) };
        assert!(!unknown.is_congested(), "its rate is unknown");
        assert!(!is_far(ms(9), ms(40)) && is_far(ms(11), ms(40)));
    }

    /// The window of the study's proxy explains its figures; ours offers enough for all of the study's sources.
    #[test]
    fn a_fixed_window_gives_the_study_s_ratios_and_ours_a_whole_satellite() {
        let ratio = |window: Bytes, source| {
            let carried = Rate::of(window, ms(source));
            bandwidth_ratio(carried.min(mbit(10)), mbit(10))
        };
        let fixed = Bytes::new(18_750);
        assert!((ratio(fixed, 30) - 0.5).abs() < 0.001, "the boundary");
        assert!((ratio(fixed, 125) - 0.12).abs() < 0.001, "condition C");
        assert!((ratio(Bytes::new(65_536), 540) - 0.097).abs() < 0.001, "the example of 64 KiB");
        for source in [1, 30, 125, 200, 250, 540] {
            let window = window(mbit(10), ms(source), Bytes::new(1), Bytes::new(1 << 30));
            assert!(ratio(window, source) >= 1.0, "{source} ms");
        }
    }

    #[test]
    fn a_window_has_a_floor_and_a_bound() {
        let least = Bytes::new(256 << 10);
        assert_eq!(window(mbit(10), ms(1), least, Bytes::new(1 << 30)), least);
        assert_eq!(window(mbit(1000), ms(500), least, Bytes::new(8 << 20)), Bytes::new(1 << 20));
    }
}
