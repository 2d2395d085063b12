//! The reports of modems on their links in a run: the drawn rates, at the moments at which they
//! change.
//!
//! A modem is at each end of a link, and knows the rate at which that end sends. It does not know
//! the link's losses. It does not report outages: its last report stays valid.
//!
//! Decision 0063.

use crate::plan::Plan;
use midhop_path::{Drawn, Stretch};
use midhop_units::{Instant, Rate};

/// The reports of one modem over time.
#[derive(Debug, Clone)]
pub struct ModemReports {
    drawn: Drawn,
    stretch: Stretch,
    rate: Rate,
}

impl ModemReports {
    /// The reported rate at `now`, which never goes back, and when it may change.
    pub fn at(&mut self, now: Instant) -> (Rate, Instant) {
        while self.stretch.end <= now {
            self.stretch = self.drawn.advance();
        }
        self.rate = self.stretch.rate.filter(|rate| *rate > Rate::ZERO).unwrap_or(self.rate);
        (self.rate, self.stretch.end)
    }
}

impl Plan {
    /// The reports of the modem at the end of `link` at `node` in this run; none where there is no
    /// such link, or it has no rate.
    pub fn modem_reports(&self, node: &str, link: &str) -> Option<ModemReports> {
        let planned = self.link(link)?;
        let direction = planned.outwards(node)?;
        let rate = planned.direction(direction).rate_max()?;
        let mut drawn = self.drawn(planned, direction);
        let stretch = drawn.advance();
        Some(ModemReports { drawn, stretch, rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;
    use midhop_units::Duration;

    const PAIR: &str = r#"
    title = "a pair"
    duration = "30 s"
    [nodes]
    client = {}
    terminal = { pep = "near" }
    gateway = { pep = "far" }
    [links.lan]
    between = ["client", "terminal"]
    [links.satellite]
    between = ["terminal", "gateway"]
    up = { rate = "5 Mbit/s", outages = [{ start = "3 s", length = "1 s" }] }
    down = { rate = { trace = [["0 s", "20 Mbit/s"], ["2 s", "8 Mbit/s"], ["9 s", "12 Mbit/s"]] } }
    [peps.near]
    peers.far = { node = "gateway", modem = {} }
    rules = [{ tunnel = "far" }]
    [peps.far]
    peers.user = { node = "terminal", modem = {} }
    [transfers.file]
    from = "gateway"
    to = "client"
    bytes = "1 MB"
    "#;

    #[test]
    fn each_end_reports_what_it_sends_at_and_a_break_changes_nothing() {
        let plans = Scenario::parse("pair.toml", PAIR).and_then(|scenario| scenario.plans());
        let plan = plans.expect("plans").swap_remove(0);
        let at = |node, seconds: &[u64]| -> Vec<(u64, Option<u64>)> {
            let mut reports = plan.modem_reports(node, "satellite").expect("a modem");
            let times = seconds.iter().map(|s| Instant::START + Duration::from_s(*s));
            times
                .map(|now| {
                    let (rate, changes) = reports.at(now);
                    let next = changes.saturating_since(Instant::START);
                    let next = (changes != Instant::NEVER).then_some(next.as_ns() / 1_000_000_000);
                    (rate.bits_per_s() / 1_000_000, next)
                })
                .collect()
        };
        assert_eq!(
            at("gateway", &[0, 1, 2, 9, 70]),
            [(20, Some(2)), (20, Some(2)), (8, Some(9)), (12, None), (12, None)]
        );
        assert_eq!(
            at("terminal", &[0, 3, 4, 5]).iter().map(|(rate, _)| *rate).collect::<Vec<_>>(),
            [5; 4]
        );
        assert!(plan.modem_reports("client", "satellite").is_none());
        assert!(plan.modem_reports("client", "lan").is_none(), "it has no rate");
    }
}
