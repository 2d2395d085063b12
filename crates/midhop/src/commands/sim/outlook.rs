//! Estimates how long runs in virtual time take: their weight, at the speed of this machine.

use anyhow::Context;
use midhop_experiment::{Plan, Scenario};
use midhop_sim::{Options, run};
use midhop_workbench::weight;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A file over a lossy link: the time that this machine takes for it shows its speed.
const TRIAL: &str = r#"title = "a trial of this machine"
duration = "20 s"
[nodes]
a = {}
b = {}
[links.l]
between = ["a", "b"]
rate = "20 Mbit/s"
delay = "20 ms"
loss = "0.1 %"
[transfers.file]
from = "b"
to = "a"
bytes = "5 MB"
"#;

/// The cost of a run per weight, relative to the trial: the mean of the studies' 4,985 runs, which
/// have proxies, cross traffic and samples over time. Runs of a single study may cost half or twice
/// as much.
const DEARER: f64 = 1.9;

/// How often the trial is run: the fastest one counts, which was disturbed least.
const TRIALS: u32 = 5;

/// An estimate of how long `plans` take, `jobs` at a time; none where the trial fails.
pub fn outlook(plans: &[&Plan], jobs: usize) -> Option<Duration> {
    static PACE: OnceLock<Option<f64>> = OnceLock::new();
    let pace = (*PACE.get_or_init(|| pace().ok()))?;
    let weights = || plans.iter().map(|plan| weight(plan) as f64);
    let shared = weights().sum::<f64>() / jobs.clamp(1, plans.len().max(1)) as f64;
    let longest = weights().fold(0.0, f64::max);
    Duration::try_from_secs_f64(shared.max(longest) * pace * DEARER).ok()
}

/// The time of this machine for one unit of weight. Unit: seconds.
fn pace() -> anyhow::Result<f64> {
    let scenario = Scenario::parse("trial.toml", TRIAL)?;
    let plans = scenario.plans()?;
    let plan = plans.first().context("a scenario has a plan")?;
    let mut least = Duration::MAX;
    for _ in 0..TRIALS {
        let began = Instant::now();
        run(plan, &Options::default())?;
        least = least.min(began.elapsed());
    }
    Ok(least.as_secs_f64() / weight(plan) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_runs_take_longer_and_more_at_a_time_less() {
        let plans = Scenario::parse("trial.toml", TRIAL).and_then(|it| it.plans()).expect("plans");
        let of = |count: usize, jobs| outlook(&vec![&plans[0]; count], jobs).expect("it runs");
        assert!(of(1, 1) > Duration::ZERO);
        // One run cannot be divided.
        assert_eq!(of(1, 8), of(1, 1));
        let rounded = |time: Duration| (time.as_secs_f64() / of(1, 1).as_secs_f64()).round();
        assert_eq!([of(8, 1), of(8, 4), of(8, 64)].map(rounded), [8.0, 2.0, 1.0]);
        assert_eq!(of(0, 2), Duration::ZERO);
    }
}
