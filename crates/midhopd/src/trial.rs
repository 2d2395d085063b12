//! The data plane that `midhopd doctor` tries.

use crate::data_plane::DataPlane;
use midhop_doctor::Trial;
use midhop_pep::config::Plan;

/// Starts the data plane of a plan, in the present network namespace.
///
/// # Errors
/// The reason why it does not start.
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
