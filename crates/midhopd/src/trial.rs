//! The data plane as `midhopd doctor` tries it.

use crate::data_plane::DataPlane;
use midhop_doctor::Trial;
use midhop_pep::config::Plan;

/// Starts it by a plan, in the present network namespace.
///
/// # Errors
/// Why there is none.
pub fn start(plan: Plan) -> Result<Box<dyn Trial>, String> {
    match DataPlane::start(plan) {
        Ok(data_plane) => Ok(Box::new(data_plane)),
        Err(error) => Err(error.to_string()),
    }
}

impl Trial for DataPlane {
    fn taken(&self) -> u64 {
        self.ledgers().iter().map(|ledger| ledger.flows.value()).sum()
    }
}
