//! The modem beside a proxy, by whose reports a tunnel goes: DLEP without its messages, which take no time on a
//! connection of one hop.

use midhop_experiment::modem::ModemReports;
use midhop_pep::config::ModemPlan;
use midhop_pep::modem::{LOOK_EVERY, ReliedRate};
use midhop_units::{Instant, Rate};

/// What a tunnel relies upon of its modem's reports.
#[derive(Debug)]
pub(crate) struct Modem {
    reports: ModemReports,
    relied: ReliedRate,
    /// What counted last.
    rate: Option<Rate>,
    due: Instant,
}

impl Modem {
    /// A modem that makes these `reports`, of which as much counts as `plan` has.
    pub fn new(reports: ModemReports, plan: ModemPlan) -> Self {
        Self { reports, relied: ReliedRate::new(plan), rate: None, due: Instant::START }
    }

    /// When to look at it next.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// What counts from `now` on, if that is something else than before.
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
