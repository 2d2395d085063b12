//! A constellation that reassigns satellites at fixed times: delay and rate change in steps, and
//! the link is interrupted.

use crate::resolve::{DELAY_MAX, ResolveError, check_number, check_time, check_time_in};
use crate::stream::Stream;
use midhop_units::{Duration, Instant, Loss, Seed};
use serde::{Deserialize, Serialize};

/// Periodic reconfiguration as written; each key may be left out.
///
/// The values drawn for a slot depend only on the link's seed and the slot. Delay and interruption
/// are the same for both directions of a link that have the same settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReconfigurationSpec {
    /// The length of a slot. Default 15 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// The time of the first boundary. Default: after one slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Duration>,
    /// Each slot adds a delay that is uniform between zero and this. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_delay_max: Option<Duration>,
    /// Each slot multiplies the rate by a lognormal factor with median 1 and this sigma. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_sigma: Option<f64>,
    /// The minimum of the factor. Default 0.25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_factor_min: Option<f64>,
    /// The maximum of the factor. Default 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_factor_max: Option<f64>,
    /// The shortest interruption at a boundary. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruption_min: Option<Duration>,
    /// The longest interruption at a boundary. Default the shortest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruption_max: Option<Duration>,
    /// The share of interruptions that lose the packets sent. The others hold packets, which shows
    /// as a delay spike. Default 50 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lossy_share: Option<Loss>,
}

/// Periodic reconfiguration, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconfigurationPlan {
    /// The length of a slot.
    pub every: Duration,
    /// The time of the first boundary.
    pub first: Duration,
    /// Each slot adds a delay that is uniform between zero and this.
    pub added_delay_max: Duration,
    /// Sigma of the lognormal factor on the rate.
    pub rate_sigma: f64,
    /// The minimum of the factor.
    pub rate_factor_min: f64,
    /// The maximum of the factor.
    pub rate_factor_max: f64,
    /// The shortest interruption at a boundary.
    pub interruption_min: Duration,
    /// The longest interruption at a boundary.
    pub interruption_max: Duration,
    /// The share of interruptions that lose the packets sent; the others hold them.
    pub lossy_share: Loss,
}

impl ReconfigurationSpec {
    pub(crate) fn resolve(&self) -> Result<ReconfigurationPlan, ResolveError> {
        let every = self.every.unwrap_or(Duration::from_s(15));
        let interruption_min = self.interruption_min.unwrap_or(Duration::ZERO);
        let plan = ReconfigurationPlan {
            every,
            first: self.first.unwrap_or(every),
            added_delay_max: self.added_delay_max.unwrap_or(Duration::ZERO),
            rate_sigma: self.rate_sigma.unwrap_or(0.0),
            rate_factor_min: self.rate_factor_min.unwrap_or(0.25),
            rate_factor_max: self.rate_factor_max.unwrap_or(2.0),
            interruption_min,
            interruption_max: self.interruption_max.unwrap_or(interruption_min),
            lossy_share: self.lossy_share.unwrap_or(Loss::new(0.5).unwrap_or(Loss::NONE)),
        };
        let slots = Duration::from_ms(100)..=DELAY_MAX;
        check_time_in("reconfiguration.every", plan.every, slots)?;
        check_time("reconfiguration.added_delay_max", plan.added_delay_max)?;
        check_number("reconfiguration.rate_sigma", plan.rate_sigma, 0.0..=3.0)?;
        check_number("reconfiguration.rate_factor_min", plan.rate_factor_min, 0.01..=1.0)?;
        check_number("reconfiguration.rate_factor_max", plan.rate_factor_max, 1.0..=100.0)?;
        let refused =
            |key, value: Duration, hint: String| Err(ResolveError::out_of_range(key, value, hint));
        if plan.first > plan.every {
            let hint = format!("must be at most one slot, {every}");
            return refused("reconfiguration.first", plan.first, hint);
        }
        if plan.interruption_max < plan.interruption_min {
            let hint = format!("must be at least interruption_min, {interruption_min}");
            return refused("reconfiguration.interruption_max", plan.interruption_max, hint);
        }
        if plan.interruption_max >= plan.every {
            let hint = format!("must be shorter than a slot, {every}");
            return refused("reconfiguration.interruption_max", plan.interruption_max, hint);
        }
        Ok(plan)
    }
}

impl ReconfigurationPlan {
    /// The largest rate factor of a slot.
    pub fn rate_factor_highest(&self) -> f64 {
        if self.rate_sigma > 0.0 { self.rate_factor_max } else { 1.0 }
    }
}

/// What holds between two boundaries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slot {
    /// When it begins.
    pub(crate) begin: Instant,
    /// When the next begins.
    pub(crate) end: Instant,
    /// The interruption at its beginning lasts until here.
    pub(crate) interrupted_until: Instant,
    /// Whether the interruption loses what is sent rather than holding it.
    pub(crate) lossy: bool,
    /// Added to the propagation delay.
    pub(crate) added_delay: Duration,
    /// Multiplies the rate.
    pub(crate) rate_factor: f64,
}

/// The slots of one direction. Each is drawn from the seeds and its number alone, so that any stage
/// may look at any time and sees the same.
#[derive(Debug, Clone)]
pub(crate) struct Reconfiguration {
    plan: ReconfigurationPlan,
    start: Instant,
    /// Shared by both directions of the link: satellites change for both at once.
    link_seed: Seed,
    /// The direction's own.
    seed: Seed,
    current: Slot,
}

impl Reconfiguration {
    pub(crate) fn new(
        plan: &ReconfigurationPlan,
        start: Instant,
        link_seed: Seed,
        seed: Seed,
    ) -> Self {
        let mut own = Self {
            plan: plan.clone(),
            start,
            link_seed,
            seed,
            current: Slot {
                begin: start,
                end: start,
                interrupted_until: start,
                lossy: false,
                added_delay: Duration::ZERO,
                rate_factor: 1.0,
            },
        };
        own.current = own.draw(0);
        own
    }

    /// The slot at `now`.
    pub(crate) fn at(&mut self, now: Instant) -> Slot {
        if now >= self.current.end || now < self.current.begin {
            let elapsed = now.saturating_since(self.start);
            let index = match elapsed.as_ns().checked_sub(self.plan.first.as_ns()) {
                None => 0,
                Some(since_first) => 1 + since_first / self.plan.every.as_ns(),
            };
            self.current = self.draw(index);
        }
        self.current
    }

    fn draw(&self, index: u64) -> Slot {
        let plan = &self.plan;
        let numbered = |seed: Seed| Seed(seed.0.wrapping_add(index)).derive("slot");
        let mut shared = Stream::new(numbered(self.link_seed), "shared");
        let mut own = Stream::new(numbered(self.seed), "own");
        let added_delay = shared.between(Duration::ZERO, plan.added_delay_max);
        let interruption = shared.between(plan.interruption_min, plan.interruption_max);
        let lossy = shared.strikes(plan.lossy_share);
        let rate_factor = f64::exp(plan.rate_sigma * own.normal())
            .clamp(plan.rate_factor_min, plan.rate_factor_max);
        // The run begins inside a slot: its first boundary is the first interruption.
        let (begin, interruption) = match index.checked_sub(1) {
            None => (self.start, Duration::ZERO),
            Some(before) => {
                let since_first = Duration::from_ns(plan.every.as_ns().saturating_mul(before));
                (self.start + plan.first + since_first, interruption)
            }
        };
        let end = match index {
            0 => self.start + plan.first,
            _ => begin + plan.every,
        };
        Slot {
            begin,
            end,
            interrupted_until: begin + interruption,
            lossy,
            added_delay,
            rate_factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starlink() -> ReconfigurationPlan {
        let preset = crate::presets::find("starlink").expect("a preset");
        let plan = preset.down.resolve(Duration::from_ms(50)).expect("a plan");
        plan.reconfiguration.expect("reconfiguration")
    }

    #[test]
    fn slots_are_drawn_from_the_published_ranges() {
        let mut slots = Reconfiguration::new(&starlink(), Instant::START, Seed(1), Seed(2));
        assert_eq!(slots.at(Instant::START).interrupted_until, Instant::START);
        let (mut factors, mut lossy, count) = (Vec::new(), 0, 4000);
        for index in 0..count {
            let begin = Instant::START + Duration::from_s(12 + 15 * index);
            let slot = slots.at(begin + Duration::from_s(7));
            assert_eq!((slot.begin, slot.end), (begin, begin + Duration::from_s(15)));
            let interruption = (slot.interrupted_until - slot.begin).as_ms_f64();
            assert!((20.0..=150.0).contains(&interruption), "{interruption}");
            assert!(slot.added_delay <= Duration::from_ms(15));
            factors.push(slot.rate_factor);
            lossy += u32::from(slot.lossy);
        }
        factors.sort_by(f64::total_cmp);
        let median = factors[factors.len() / 2];
        assert!((median - 1.0).abs() < 0.02, "{median}");
        let share = f64::from(lossy) / count as f64;
        assert!((share - 0.5).abs() < 0.03, "{share}");
    }

    #[test]
    fn both_directions_break_together_and_any_order_sees_the_same() {
        let plan = starlink();
        let mut down = Reconfiguration::new(&plan, Instant::START, Seed(1), Seed(2));
        let mut up = Reconfiguration::new(&plan, Instant::START, Seed(1), Seed(3));
        let times: Vec<_> = (0..40).map(|s| Instant::START + Duration::from_s(s * 5)).collect();
        let seen: Vec<_> = times.iter().map(|time| down.at(*time)).collect();
        for (time, slot) in times.iter().zip(&seen).rev() {
            let other = up.at(*time);
            assert_eq!(other.interrupted_until, slot.interrupted_until);
            assert_eq!(other.added_delay, slot.added_delay);
            assert_ne!(other.rate_factor, slot.rate_factor);
            assert_eq!(down.at(*time), *slot);
        }
    }
}
