//! What a tunnel relies upon of what its modem reports.

use crate::config::ModemPlan;
use midhop_dlep::Steady;
use midhop_units::{Duration, Instant, Rate};

/// How often at least what a modem reports is looked at.
pub const LOOK_EVERY: Duration = Duration::from_ms(250);
/// A higher rate counts when it has lasted for so long.
const LASTS: Duration = Duration::from_s(1);

/// The rate that a tunnel relies upon: within its bounds, a lower one at once, a higher one when it has lasted.
#[derive(Debug, Clone)]
pub struct ReliedRate {
    plan: ModemPlan,
    steady: Steady,
}

impl ReliedRate {
    /// Before anything is reported.
    pub fn new(plan: ModemPlan) -> Self {
        Self { plan, steady: Steady::new(LASTS) }
    }

    /// What counts where the modem reports `rate` now. To be called each [`LOOK_EVERY`], and where a report arrives.
    pub fn take(&mut self, now: Instant, rate: Rate) -> Rate {
        self.steady.take(now, self.plan.bounded(rate))
    }
}
