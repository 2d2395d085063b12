//! The rate that a tunnel relies upon, from what its modem reports.

use crate::config::ModemPlan;
use midhop_dlep::Steady;
use midhop_units::{Duration, Instant, Rate};

/// The longest time between two checks of what a modem reports.
pub const LOOK_EVERY: Duration = Duration::from_ms(250);
/// A higher rate counts when it has lasted for so long.
const LASTS: Duration = Duration::from_s(1);

/// The rate that a tunnel relies upon, within its bounds. A lower rate counts at once, a higher one when it has lasted.
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

    /// The rate that counts while the modem reports `rate`. To be called every [`LOOK_EVERY`], and when a report
    /// arrives.
    pub fn take(&mut self, now: Instant, rate: Rate) -> Rate {
        self.steady.take(now, self.plan.bounded(rate))
    }
}
