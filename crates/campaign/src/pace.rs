//! How many runs are parallel, and how long they take.
//!
//! In real time, there are as many as the machine can carry without being late. The cost of a run
//! is the work of its emulator: each link that a transfer crosses handles each of its packets. An
//! otherwise idle core carries some 500 Mbit/s. The kernels and the proxies of the run need the
//! rest, and a run in parallel with others must not be late.

use midhop_experiment::Plan;
use std::collections::BTreeSet;
use std::time::Duration;

/// The load for one processor. Unit: Mbit/s, summed over all links on the paths.
const CARRIED_MBIT_PER_S: f64 = 100.0;
/// An upper bound, however little each run needs: every run starts and ends daemons and meters.
const AT_ONCE_PER_PROCESSOR: usize = 3;
/// The cost of the two ends of a tunnel, which encrypt their traffic. Unit: links.
const TUNNEL_LINKS: usize = 2;

/// Runs, of which `at_once` are parallel.
#[derive(Debug)]
pub struct Batch {
    /// The number of parallel runs.
    pub at_once: usize,
    /// The runs, by their indices in the original list.
    pub places: Vec<usize>,
}

impl Batch {
    /// All of `plans`, `at_once` of them in parallel.
    pub fn whole(plans: &[&Plan], at_once: usize) -> Self {
        Self { at_once, places: (0..plans.len()).collect() }
    }
}

/// The number of parallel runs like `plan` on so many processors.
pub fn at_once(plan: &Plan, processors: usize) -> usize {
    let is_tunnelled = plan.nodes.iter().any(|node| node.tunnels.is_some());
    let tunnel = if is_tunnelled { TUNNEL_LINKS } else { 0 };
    // In most scenarios, all transfers share the slowest link.
    let limits = plan.transfers.iter().filter_map(|it| it.limit.as_ref());
    let rate = limits.map(|it| it.goodput_peak.mbit_per_s()).fold(0.0, f64::max);
    let crossed = plan.transfers.iter().flat_map(|it| &it.route).map(|it| &it.link);
    let links = crossed.collect::<BTreeSet<_>>().len() + tunnel;
    let carried = rate * links as f64;
    let room = CARRIED_MBIT_PER_S * processors as f64 / carried.max(1.0);
    (room as usize).clamp(1, AT_ONCE_PER_PROCESSOR * processors)
}

/// `plans` in batches, the one with most parallel runs first; a single batch where `jobs` are
/// given.
pub fn batches(plans: &[&Plan], jobs: Option<usize>, processors: usize) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (place, plan) in plans.iter().enumerate() {
        let at_once = jobs.unwrap_or_else(|| at_once(plan, processors));
        match batches.iter_mut().find(|batch| batch.at_once == at_once) {
            Some(batch) => batch.places.push(place),
            None => batches.push(Batch { at_once, places: vec![place] }),
        }
    }
    batches.sort_by_key(|batch| std::cmp::Reverse(batch.at_once));
    batches
}

/// An estimate of how long a run takes in real time, with all its preparations.
pub fn expected(plan: &Plan) -> Duration {
    Duration::from(plan.expected_time()) + Duration::from(plan.expected_preparation())
}

/// An estimate of how long `plans` take in `batches`, in real time.
pub fn time(plans: &[&Plan], batches: &[Batch]) -> Duration {
    let of = |batch: &Batch| {
        let expected = batch.places.iter().map(|place| expected(plans[*place]));
        let sum: Duration = expected.clone().sum();
        let shared = sum / u32::try_from(batch.at_once).unwrap_or(u32::MAX).max(1);
        shared.max(expected.max().unwrap_or_default())
    };
    batches.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;

    fn plans(rates: &str) -> Vec<Plan> {
        let text = format!(
            "title = \"t\"\nduration = \"20 s\"\n[nodes]\na = {{}}\nb = {{}}\n\
             [links.link]\nbetween = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\ndelay = \"10 ms\"\n\
             [transfers.file]\nfrom = \"b\"\nto = \"a\"\nbytes = \"200 kB\"\n\
             [vary]\n\"links.link.rate\" = [{rates}]\n"
        );
        let scenario = Scenario::parse("one.toml", &text).expect("a scenario");
        scenario.plans().expect("plans")
    }

    #[test]
    fn slow_links_run_beside_each_other_and_fast_ones_alone() {
        let plans = plans("\"1 Mbit/s\", \"500 Mbit/s\", \"2 Mbit/s\", \"60 Mbit/s\"");
        let plans: Vec<&Plan> = plans.iter().collect();
        let batches = batches(&plans, None, 2);
        let found: Vec<_> = batches.iter().map(|it| (it.at_once, it.places.clone())).collect();
        assert_eq!(found, [(6, vec![0, 2]), (3, vec![3]), (1, vec![1])]);
        let asked = super::batches(&plans, Some(4), 2);
        assert_eq!(asked.len(), 1);
        assert_eq!((asked[0].at_once, asked[0].places.len()), (4, 4));
    }
}
