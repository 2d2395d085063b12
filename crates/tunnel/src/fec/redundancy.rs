//! Decides how many repairs a sender makes, from its receiver's reports.

use super::WINDOW_MAX;
use super::wire::Report;
use midhop_units::{Duration, Instant};

/// The averages cover about so many datagrams.
const MEMORY: f64 = 10_000.0;
/// A smaller loss rate is not repaired: a repair would cost more than it saves.
const LOSS_MIN: f64 = 2e-4;
/// Repairs beyond the mean loss, in standard deviations: within a stream, and at its end, where a repair delays
/// nothing that somebody waits for. ALGORITHMS has 3 for both.
const SPREADS: f64 = 3.0;
const SPREADS_AT_END: f64 = 3.0;
/// So long after the last sign of congestion the leg counts as uncongested.
const CONGESTION_MEMORY: Duration = Duration::from_s(10);
/// After so many reports in a row that contradict the last accepted one, that one was false.
const DOUBTS_MAX: u8 = 4;

/// The known losses on the path to the peer.
#[derive(Debug)]
pub(super) struct Redundancy {
    despite_congestion: bool,
    overhead_max: f64,
    /// The last accepted report of the peer.
    last: Report,
    /// Reports in a row that contradict it.
    doubts: u8,
    judged: f64,
    lost: f64,
    runs: f64,
    congested_until: Option<Instant>,
}

impl Redundancy {
    pub fn new(overhead_max: f64, despite_congestion: bool) -> Self {
        Self {
            despite_congestion,
            overhead_max,
            last: Report::default(),
            doubts: 0,
            judged: 0.0,
            lost: 0.0,
            runs: 0.0,
            congested_until: None,
        }
    }

    /// Changes the bounds on repairs.
    pub fn bound(&mut self, overhead_max: f64, despite_congestion: bool) {
        (self.overhead_max, self.despite_congestion) = (overhead_max, despite_congestion);
    }

    pub fn on_report(&mut self, now: Instant, report: &Report) {
        let judged = report.judged.wrapping_sub(self.last.judged);
        let lost = report.lost.wrapping_sub(self.last.lost);
        let runs = report.runs.wrapping_sub(self.last.runs);
        // An old report, or a false one. If several follow, the last accepted one was false.
        if judged > u32::MAX / 2 || lost > judged || runs > lost {
            self.doubts += 1;
            if self.doubts == DOUBTS_MAX {
                (self.last, self.doubts) = (*report, 0);
            }
            return;
        }
        self.doubts = 0;
        let marked = report.marked.wrapping_sub(self.last.marked);
        if (1..u32::MAX / 2).contains(&marked) {
            self.on_congestion(now);
        }
        self.last = *report;
        // No report counts more than the memory.
        let weight = (MEMORY / f64::from(judged)).min(1.0);
        let kept = 1.0 - (f64::from(judged) / MEMORY).min(1.0);
        self.judged = self.judged * kept + f64::from(judged) * weight;
        self.lost = self.lost * kept + f64::from(lost) * weight;
        self.runs = self.runs * kept + f64::from(runs) * weight;
    }

    pub fn on_congestion(&mut self, now: Instant) {
        self.congested_until = Some(now + CONGESTION_MEMORY);
    }

    /// The last accepted report of the peer.
    pub fn reported(&self) -> Report {
        self.last
    }

    /// The fraction of datagrams that is lost.
    pub fn loss(&self) -> f64 {
        // One loss alone may be chance, unless many datagrams were judged: count at least a thousand.
        if self.judged < 1.0 { 0.0 } else { self.lost / self.judged.max(1000.0) }
    }

    /// The mean number of datagrams lost in a row.
    pub fn burst(&self) -> f64 {
        if self.runs < 1.0 { 1.0 } else { (self.lost / self.runs).max(1.0) }
    }

    /// Whether repairs are made at all.
    pub fn is_on(&self, now: Instant) -> bool {
        let congested = self.congested_until.is_some_and(|until| now < until);
        (self.despite_congestion || !congested) && self.loss() >= LOSS_MIN
    }

    /// Repairs for each datagram of a stream, if a repair covers so many.
    pub fn ratio(&self, window: usize) -> f64 {
        let window = window.clamp(1, WINDOW_MAX) as f64;
        (self.needed(window, SPREADS) / window).min(self.overhead_max)
    }

    /// Repairs for the last `count` datagrams of a burst, after which nothing follows.
    pub fn at_end(&self, count: usize) -> usize {
        let needed = self.needed(count.min(WINDOW_MAX) as f64, SPREADS_AT_END);
        // Rounds up to at least one: a single datagram needs a repair of its own.
        needed.ceil().max(1.0) as usize
    }

    /// Mean of the losses among `count` datagrams, plus `spreads` deviations. Losses come in runs of geometric
    /// length.
    fn needed(&self, count: f64, spreads: f64) -> f64 {
        let (loss, burst) = (self.loss().min(0.5), self.burst());
        let variance = count * loss * (1.0 - loss) * (2.0 * burst - 1.0);
        count * loss + spreads * variance.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(judged: u32, lost: u32, runs: u32) -> Redundancy {
        let mut redundancy = Redundancy::new(0.12, false);
        redundancy.on_report(Instant::START, &Report { judged, lost, runs, ..Report::default() });
        redundancy
    }

    #[test]
    fn it_follows_loss_and_bursts() {
        let one = after(5000, 50, 50);
        assert!((one.loss() - 0.01).abs() < 1e-9 && one.burst() == 1.0);
        assert!((0.035..0.038).contains(&one.ratio(128)), "{}", one.ratio(128));
        assert_eq!((one.at_end(1), one.at_end(7), one.at_end(70)), (1, 1, 4));
        let bursts = after(5000, 100, 10);
        assert_eq!((bursts.burst(), bursts.ratio(128)), (10.0, 0.12));
        assert!(bursts.at_end(7) > one.at_end(7));
        assert!(after(5000, 250, 250).ratio(128) > 2.5 * one.ratio(128));
    }

    #[test]
    fn it_is_off_without_loss_and_goes_off_when_losses_end() {
        assert!(!Redundancy::new(0.12, false).is_on(Instant::START));
        assert!(!after(5000, 0, 0).is_on(Instant::START));
        // One loss among a few datagrams is chance.
        assert!(after(20, 1, 1).loss() < 0.0011);
        let mut redundancy = after(1000, 10, 10);
        assert!(redundancy.is_on(Instant::START));
        for judged in (1000..80_000).step_by(500) {
            let report = Report { judged, lost: 10, runs: 10, ..Report::default() };
            redundancy.on_report(Instant::START, &report);
        }
        assert!(!redundancy.is_on(Instant::START), "{}", redundancy.loss());
    }

    #[test]
    fn reports_that_are_old_or_false_change_nothing() {
        let mut redundancy = after(5000, 50, 50);
        for (judged, lost, runs) in [(4000, 40, 40), (5001, 60, 60), (6000, 60, 70)] {
            let report = Report { judged, lost, runs, ..Report::default() };
            redundancy.on_report(Instant::START, &report);
        }
        assert_eq!(redundancy.reported().judged, 5000);
    }

    /// Found by fuzzing: after one false report no later report counted.
    #[test]
    fn a_false_report_is_got_over() {
        let mut redundancy = after(5000, 50, 50);
        let nonsense = Report { judged: 2_000_000_000, lost: 300, runs: 30, ..Report::default() };
        redundancy.on_report(Instant::START, &nonsense);
        for judged in (5000..60_000).step_by(500) {
            let lost = judged / 100;
            let report = Report { judged, lost, runs: lost, ..Report::default() };
            redundancy.on_report(Instant::START, &report);
        }
        assert!((redundancy.loss() - 0.01).abs() < 0.001, "{}", redundancy.loss());
        assert_eq!(redundancy.reported().judged, 59_500);
    }

    #[test]
    fn congestion_ends_it_unless_it_is_configured() {
        let marked = Report { judged: 5100, lost: 51, runs: 51, marked: 1, ..Report::default() };
        for (despite, on) in [(false, false), (true, true)] {
            let mut redundancy = after(5000, 50, 50);
            redundancy.despite_congestion = despite;
            redundancy.on_report(Instant::START, &marked);
            assert_eq!(redundancy.is_on(Instant::START + Duration::from_s(9)), on);
            assert!(redundancy.is_on(Instant::START + Duration::from_s(10)));
        }
    }
}
