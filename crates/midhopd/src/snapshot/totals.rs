//! The values of a sample of the page's history.

use super::Source;
use crate::ledger::Ledger;
use midhop_status::history::{LEGS_MAX, Totals};
use midhop_units::Bytes;
use std::time::Instant;

impl Source {
    /// Measures the flows' speeds, and adds up what a sample needs.
    pub fn totals(&self) -> Totals {
        let plan = self.plan.borrow().clone();
        let at = Instant::now();
        self.ledgers.iter().for_each(|ledger| ledger.observe());
        let mut legs = self.legs(&plan);
        // Legs with flows come before legs that are only configured.
        while legs.len() > LEGS_MAX {
            let idle = legs.iter().rev().find(|(_, leg)| leg.connections == 0);
            let last = idle.or(legs.iter().next_back()).map(|(name, _)| name.clone());
            last.and_then(|name| legs.remove(&name));
        }
        for (name, load) in self.loads() {
            if let Some(leg) = legs.get_mut(&name) {
                leg.queued_bytes = load.queued;
            }
        }
        let sum = |count: fn(&Ledger) -> u64| -> u64 {
            self.ledgers.iter().map(|ledger| count(ledger)).sum()
        };
        Totals {
            at,
            up: Bytes::new(sum(|ledger| ledger.bytes_up.value())),
            down: Bytes::new(sum(|ledger| ledger.bytes_down.value())),
            flows: self.admission.flows(),
            held_syns: sum(|ledger| ledger.held.value()),
            buffered: Bytes::new(self.budget.held()),
            legs,
        }
    }
}
