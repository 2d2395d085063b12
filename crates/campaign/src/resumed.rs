//! The results of plans that an earlier campaign has finished.

use crate::store::Store;
use midhop_experiment::Plan;
use midhop_experiment::record::Record;

/// Plans, and their existing results.
#[derive(Debug)]
pub struct Resumed<'p, K> {
    pub(crate) plans: &'p [Plan],
    /// In the order of the plans.
    pub(crate) results: Vec<Option<K>>,
}

impl<'p, K> Resumed<'p, K> {
    /// The results of `plans` in `store`, each made by `read` from its record; none without a
    /// store.
    pub fn of(
        plans: &'p [Plan],
        store: Option<&dyn Store>,
        read: impl Fn(&Plan, Record) -> K,
    ) -> Self {
        let finished = |plan| Some(read(plan, store?.finished(plan)?));
        Self { plans, results: plans.iter().map(finished).collect() }
    }

    /// The same with known results: a result, or none, for each of `plans`.
    pub fn with(plans: &'p [Plan], mut results: Vec<Option<K>>) -> Self {
        results.resize_with(plans.len(), || None);
        Self { plans, results }
    }

    /// The existing results, in the order of the plans, where nothing more is run.
    pub fn into_results(self) -> Vec<Option<K>> {
        self.results
    }

    /// The plans without a result, in order.
    pub fn left(&self) -> Vec<&'p Plan> {
        self.places().into_iter().map(|place| &self.plans[place]).collect()
    }

    /// The number of existing results.
    pub fn there(&self) -> usize {
        self.results.iter().flatten().count()
    }

    /// The indices of the plans without a result.
    pub(crate) fn places(&self) -> Vec<usize> {
        (0..self.plans.len()).filter(|place| self.results[*place].is_none()).collect()
    }
}
