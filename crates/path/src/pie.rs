//! PIE: drops arrivals with a probability that controls the waiting time towards its target.

use crate::stream::Stream;
use midhop_units::{Bytes, Duration, Instant, Seed};
use serde::{Deserialize, Serialize};

/// PIE's times.
///
/// Source: RFC 8033 §4 and §5 (15 ms, 15 ms, 150 ms).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PiePlan {
    /// The target waiting time.
    pub target: Duration,
    /// How often the probability is updated.
    pub update: Duration,
    /// The duration of a burst that is not dropped.
    pub burst: Duration,
}

impl Default for PiePlan {
    fn default() -> Self {
        Self {
            target: Duration::from_ms(15),
            update: Duration::from_ms(15),
            burst: Duration::from_ms(150),
        }
    }
}

/// Two full packets: from a queue this short nothing is dropped.
const SPARED: Bytes = Bytes::new(2 * 1500);
/// Above this waiting time the probability rises faster (Linux `net/sched/sch_pie.c`).
const ALARMING: Duration = Duration::from_ms(250);
/// More updates than this are never made at once.
const ROUNDS_MAX: u64 = 100_000;
/// Above this probability, ECN-capable packets are dropped too (§5.1).
const MARKED_MAX: f64 = 0.1;
/// Below this probability nothing is dropped.
const NEGLIGIBLE: f64 = 1e-9;

/// The state of PIE: it examines each packet that is about to enter the queue.
///
/// Source: RFC 8033 §4, §5.4 (drops spread evenly) and §5.5 (bounded steps). Differs: the waiting
/// time is read from the packet at the head, much as Linux reads it from timestamps, instead of
/// being estimated from the departure rate; it is always active. ECN-capable packets are marked
/// instead of dropped up to a probability of a tenth (§5.1).
#[derive(Debug, Clone)]
pub(crate) struct Pie {
    plan: PiePlan,
    stream: Stream,
    probability: f64,
    wait_before: Duration,
    burst_left: Duration,
    /// Probability summed since the last drop: spreads drops evenly (§5.4).
    summed: f64,
    next_update: Instant,
}

impl Pie {
    pub(crate) fn new(plan: PiePlan, start: Instant, seed: Seed) -> Self {
        Self {
            plan,
            stream: Stream::new(seed, "pie"),
            probability: 0.0,
            wait_before: Duration::ZERO,
            burst_left: plan.burst,
            summed: 0.0,
            next_update: start + plan.update,
        }
    }

    /// Performs the updates that were due until `now`. To be called before the queue changes, with
    /// the time since which its head has waited.
    pub(crate) fn catch_up(&mut self, now: Instant, head_since: Option<Instant>) {
        while now >= self.next_update {
            let wait =
                head_since.map_or(Duration::ZERO, |since| self.next_update.saturating_since(since));
            let rounds = (now - self.next_update).as_ns() / self.plan.update.as_ns();
            // While idle, nothing changes until a packet waits. After a long time with the same
            // head, the probability is at its bound. So only the last updates that were due are
            // performed.
            let skipped =
                if self.at_rest(wait) { rounds } else { rounds.saturating_sub(ROUNDS_MAX) };
            self.next_update = self.next_update + self.plan.update * skipped;
            let wait =
                head_since.map_or(Duration::ZERO, |since| self.next_update.saturating_since(since));
            self.update(wait);
            self.next_update = self.next_update + self.plan.update;
        }
    }

    /// Whether a refused packet may be marked and enter instead.
    pub(crate) fn may_mark(&self) -> bool {
        self.probability <= MARKED_MAX
    }

    /// Whether a packet that is about to enter is refused.
    pub(crate) fn refuses(&mut self, queued: Bytes) -> bool {
        let draw = self.stream.uniform();
        if !self.burst_left.is_zero() {
            return false;
        }
        let calm = self.wait_before < self.plan.target / 2 && self.probability < 0.2;
        if calm || queued <= SPARED {
            return false;
        }
        self.summed = if self.probability == 0.0 { 0.0 } else { self.summed + self.probability };
        if self.summed < 0.85 {
            return false;
        }
        let refused = self.summed >= 8.5 || draw < self.probability;
        if refused {
            self.summed = 0.0;
        }
        refused
    }

    fn at_rest(&self, wait: Duration) -> bool {
        wait.is_zero()
            && self.wait_before.is_zero()
            && self.probability == 0.0
            && self.burst_left == self.plan.burst
    }

    fn update(&mut self, wait: Duration) {
        let (now_s, before_s) = (wait.as_s_f64(), self.wait_before.as_s_f64());
        let target_s = self.plan.target.as_s_f64();
        let mut step = 0.125 * (now_s - target_s) + 1.25 * (now_s - before_s);
        step /= damping(self.probability);
        if self.probability >= 0.1 {
            step = step.min(0.02);
        }
        if wait > ALARMING {
            step += 0.02;
        }
        self.probability += step;
        if wait.is_zero() && self.wait_before.is_zero() {
            self.probability *= 0.98;
        }
        self.probability = self.probability.clamp(0.0, 1.0);
        if self.probability < NEGLIGIBLE {
            self.probability = 0.0;
        }
        self.burst_left = self.burst_left.saturating_sub(self.plan.update);
        let half = self.plan.target / 2;
        if self.probability == 0.0 && wait < half && self.wait_before < half {
            self.burst_left = self.plan.burst;
        }
        self.wait_before = wait;
    }
}

/// The factor by which a step is reduced while the probability is small (§4.2).
fn damping(probability: f64) -> f64 {
    const STEPS: [(f64, f64); 6] =
        [(1e-6, 2048.0), (1e-5, 512.0), (1e-4, 128.0), (1e-3, 32.0), (1e-2, 8.0), (1e-1, 2.0)];
    STEPS.iter().find(|(below, _)| probability < *below).map_or(1.0, |(_, divisor)| *divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_ms(ms)
    }

    fn pie() -> Pie {
        Pie::new(PiePlan::default(), Instant::START, Seed(1))
    }

    #[test]
    fn the_probability_follows_the_control_law() {
        let mut pie = pie();
        pie.probability = 0.05;
        pie.wait_before = ms(20);
        pie.update(ms(30));
        // 1/8 × (30 − 15) ms + 5/4 × (30 − 20) ms, halved because the probability is below 10 %.
        let expected = 0.05 + (0.125 * 0.015 + 1.25 * 0.010) / 2.0;
        assert!((pie.probability - expected).abs() < 1e-12, "{}", pie.probability);
    }

    #[test]
    fn steps_are_bounded_and_alarm_adds_to_them() {
        let mut pie = pie();
        pie.probability = 0.2;
        pie.update(ms(200));
        assert!((pie.probability - 0.22).abs() < 1e-12, "{}", pie.probability);
        pie.update(ms(300));
        assert!((pie.probability - 0.26).abs() < 1e-12, "{}", pie.probability);
    }

    #[test]
    fn an_empty_queue_forgets() {
        let mut pie = pie();
        pie.probability = 0.5;
        pie.catch_up(Instant::START + Duration::from_s(20), None);
        assert_eq!(pie.probability, 0.0);
        assert_eq!(pie.burst_left, ms(150));
    }

    #[test]
    fn a_burst_passes_and_then_the_share_is_right() {
        let mut pie = pie();
        pie.probability = 0.3;
        pie.wait_before = ms(60);
        let long = Bytes::new(100_000);
        assert!((0..100).all(|_| !pie.refuses(long)), "refused within the burst allowance");
        pie.burst_left = Duration::ZERO;
        let refused = (0..100_000).filter(|_| pie.refuses(long)).count();
        // Drops are spread: after each, the sum must reach 0.85 (two packets pass) before the next.
        let expected = 100_000.0 / (2.0 + 1.0 / 0.3);
        assert!((refused as f64 / expected - 1.0).abs() < 0.03, "{refused}, {expected}");
        assert!((0..100).all(|_| !pie.refuses(SPARED)), "refused with a short queue");
    }

    #[test]
    fn a_leap_over_hours_ends_where_single_updates_do() {
        let mut leap = pie();
        let since = Instant::START + Duration::from_s(1);
        leap.catch_up(since + Duration::from_s(7200), Some(since));
        assert_eq!(leap.probability, 1.0);
        assert!(leap.next_update > since + Duration::from_s(7200));
    }
}
