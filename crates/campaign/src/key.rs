//! The identity of plans.

use crate::store::StoreError;
use midhop_experiment::Plan;
use std::fmt;
use xxhash_rust::xxh3::xxh3_128;

/// Identifies a plan, independently of its number in its sweep, the number of seeds of its cell,
/// and the names of its axes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub(crate) String);

impl Key {
    /// The key of a plan.
    ///
    /// # Errors
    /// When JSON cannot represent the plan.
    pub fn of(plan: &Plan) -> Result<Self, StoreError> {
        let plan = Plan { number: 0, seeds: 1, axes: Vec::new(), ..plan.clone() };
        let text = serde_json::to_vec(&plan)
            .map_err(|source| StoreError::Print { what: "a plan", source })?;
        Ok(Self(format!("{:032x}", xxh3_128(&text))))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
