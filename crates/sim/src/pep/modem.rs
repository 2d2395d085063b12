//! The modem beside a proxy, whose reports set a tunnel's rate: DLEP without its messages, which
//! take no time over one hop.

use midhop_experiment::modem::ModemReports;
use midhop_pep::config::ModemPlan;
use midhop_pep::modem::{LOOK_EVERY, ReliedRate};
use midhop_units::{Instant, Rate};

/// The reported rate that a tunnel relies on.
#[derive(Debug)]
pub(crate) struct Modem {
    reports: ModemReports,
    relied: ReliedRate,
    /// The last rate that was returned.
    rate: Option<Rate>,
    due: Instant,
}

impl Modem {
    /// A modem that makes these `reports`. `plan` decides how much of a reported rate counts.
    pub fn new(reports: ModemReports, plan: ModemPlan) -> Self {
        Self { reports, relied: ReliedRate::new(plan), rate: None, due: Instant::START }
    }

    /// When to call [`Modem::look`] next.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The rate to use from `now` on, if it has changed.
    pub fn look(&mut self, now: Instant) -> Option<Rate> {
        if now < self.due {
            return None;
        }
        let (reported, changes) = self.reports.at(now);
        let rate = self.relied.take(now, reported);
        self.due = changes.min(now + LOOK_EVERY);
        (self.rate.replace(rate) != Some(rate)).then_some(rate)
    }
}
