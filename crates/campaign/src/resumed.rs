//! What an earlier campaign has finished of some plans.

use crate::store::Store;
use midhop_experiment::Plan;
use midhop_experiment::record::Record;

/// Plans, and what there is already of their results.
#[derive(Debug)]
pub struct Resumed<'p, K> {
    pub(crate) plans: &'p [Plan],
    /// In the order of the plans.
    pub(crate) results: Vec<Option<K>>,
}

impl<'p, K> Resumed<'p, K> {
    /// Of `plans` what `store` has finished, each made by `read` of its record; nothing without a store.
    pub fn of(
        plans: &'p [Plan],
        store: Option<&dyn Store>,
        read: impl Fn(&Plan, Record) -> K,
    ) -> Self {
        let finished = |plan| Some(read(plan, store?.finished(plan)?));
        Self { plans, results: plans.iter().map(finished).collect() }
    }

    /// The same where what is there of `plans` is known: a result, or none, for each of them.
    pub fn with(plans: &'p [Plan], mut results: Vec<Option<K>>) -> Self {
        results.resize_with(plans.len(), || None);
        Self { plans, results }
    }

    /// What is there, in the order of the plans, where nothing more is run.
    pub fn into_results(self) -> Vec<Option<K>> {
        self.results
    }

    /// The plans that are to be run, in their order.
    pub fn left(&self) -> Vec<&'p Plan> {
        self.places().into_iter().map(|place| &self.plans[place]).collect()
    }

    /// How many are there already.
    pub fn there(&self) -> usize {
        self.results.iter().flatten().count()
    }

    /// Where what is left stands among all.
    pub(crate) fn places(&self) -> Vec<usize> {
        (0..self.plans.len()).filter(|place| self.results[*place].is_none()).collect()
    }
}
