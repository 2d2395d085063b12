//! The rates of the links to peers that modems report.
//!
//! A report is valid for the time that it states. So a modem whose script has died does not hold a
//! tunnel to an old rate.

use midhop_units::Rate;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::time::Instant;

/// The last report for each peer; shared by all threads.
#[derive(Debug, Default)]
pub struct ReportedRates(RwLock<BTreeMap<String, Report>>);

#[derive(Debug, Clone, Copy)]
struct Report {
    rate: Rate,
    until: Instant,
}

impl ReportedRates {
    /// Records that the link to `peer` carries `rate` away from here. This is valid for `valid`, or
    /// until the next report.
    pub fn put(&self, peer: &str, rate: Rate, valid: Duration) {
        let report = Report { rate, until: Instant::now() + valid };
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(peer.to_owned(), report);
    }

    /// The rate that is reported now; none if there is no valid report.
    pub fn of(&self, peer: &str) -> Option<Rate> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let report = all.get(peer).filter(|report| report.until > Instant::now())?;
        Some(report.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_report_counts_for_its_time_or_until_the_next_one() {
        let reported = ReportedRates::default();
        assert_eq!(reported.of("far"), None);
        let rate = Rate::from_mbit_per_s;
        reported.put("far", rate(5), Duration::from_secs(10));
        assert_eq!((reported.of("far"), reported.of("near")), (Some(rate(5)), None));
        tokio::time::advance(Duration::from_secs(9)).await;
        reported.put("far", rate(6), Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(reported.of("far"), Some(rate(6)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(reported.of("far"), None);
    }
}
