//! A constellation that assigns satellites anew at fixed times: delay and rate step, the link breaks.

use crate::resolve::{ResolveError, check_number, check_positive_time, check_time};
use midhop_units::{Duration, Loss};
use serde::{Deserialize, Serialize};

/// Periodic reconfiguration as written; each key may be left out.
///
/// What is drawn for a slot depends on the link's seed and the slot alone. Delay and interruption are
/// the same for both directions of a link that have the same settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconfigurationSpec {
    /// The length of a slot. Default 15 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// When the first boundary comes. Default after one slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Duration>,
    /// Each slot adds a delay between zero and this, uniform. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_delay_max: Option<Duration>,
    /// Each slot multiplies the rate by a lognormal factor of median 1 and this sigma. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_sigma: Option<f64>,
    /// The factor is no less than this. Default 0.25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_factor_min: Option<f64>,
    /// The factor is no more than this. Default 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_factor_max: Option<f64>,
    /// The shortest interruption at a boundary. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruption_min: Option<Duration>,
    /// The longest interruption at a boundary. Default the shortest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruption_max: Option<Duration>,
    /// How many interruptions lose what is sent; the others hold it, which shows as a delay spike.
    /// Default 50 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lossy_share: Option<Loss>,
}

/// Periodic reconfiguration, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconfigurationPlan {
    /// The length of a slot.
    pub every: Duration,
    /// When the first boundary comes.
    pub first: Duration,
    /// Each slot adds a delay between zero and this, uniform.
    pub added_delay_max: Duration,
    /// Sigma of the lognormal factor on the rate.
    pub rate_sigma: f64,
    /// The factor is no less than this.
    pub rate_factor_min: f64,
    /// The factor is no more than this.
    pub rate_factor_max: f64,
    /// The shortest interruption at a boundary.
    pub interruption_min: Duration,
    /// The longest interruption at a boundary.
    pub interruption_max: Duration,
    /// How many interruptions lose what is sent; the others hold it.
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
        check_positive_time("reconfiguration.every", plan.every)?;
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
    /// The largest factor that a slot may put on the rate.
    pub fn rate_factor_highest(&self) -> f64 {
        if self.rate_sigma > 0.0 { self.rate_factor_max } else { 1.0 }
    }
}
