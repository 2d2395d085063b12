//! What all flows of a proxy together may hold.
//!
//! Invariant: no flow is ever reset for want of budget. A direction that holds nothing may always
//! move a little, so every flow goes on, however slowly.

use midhop_units::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How soon a direction that waits for the budget looks again.
pub const LOOK_AGAIN: Duration = Duration::from_ms(10);

/// The bytes that flows hold, as last counted, and the most that they may.
#[derive(Debug)]
pub struct Budget {
    held: AtomicU64,
    most: AtomicU64,
}

impl Budget {
    /// A budget of `most` bytes.
    pub fn new(most: u64) -> Self {
        Self { held: AtomicU64::new(0), most: AtomicU64::new(most) }
    }

    /// Changes the limit. What is held stays.
    pub fn set_limit(&self, most: u64) {
        self.most.store(most, Relaxed);
    }

    /// Unit: bytes. What flows hold.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Unit: bytes. What they may hold.
    pub fn limit(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Whether more may be read.
    pub fn has_room(&self) -> bool {
        self.held() < self.limit()
    }

    /// Whether a direction may read no more for now: flows hold all that they may, and of what it wrote some is still on
    /// its way, so that it will be looked at again.
    pub fn must_wait(&self, on_its_way: impl FnOnce() -> bool) -> bool {
        !self.has_room() && on_its_way()
    }

    /// Whether there is so much room that bulk may be read.
    pub fn has_plenty(&self) -> bool {
        self.held() < self.limit() / 4 * 3
    }

    /// Replaces what a [`BudgetPart`] counted before by what it counts now. Nothing else counts: what a part has
    /// counted is given back when the part is dropped, however its owner ended.
    fn recount(&self, before: u64, now: u64) {
        if now >= before {
            self.held.fetch_add(now - before, Relaxed);
        } else {
            self.held.fetch_sub(before - now, Relaxed);
        }
    }
}

/// What one owner holds, such as a direction of a flow, or a whole tunnel; given back when this is dropped.
#[derive(Debug)]
pub struct BudgetPart {
    budget: Arc<Budget>,
    held: u64,
}

impl BudgetPart {
    /// A part of nothing yet.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: 0 }
    }

    /// Is so many bytes from now on.
    pub fn set(&mut self, held: u64) {
        if held != self.held {
            self.budget.recount(self.held, held);
            self.held = held;
        }
    }

    /// Unit: bytes. What it is now.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// What it is a part of.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for BudgetPart {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_had_again() {
        let budget = Budget::new(10);
        budget.recount(0, 12);
        assert!(!budget.has_room());
        budget.recount(12, 3);
        assert!(budget.has_room());
        assert_eq!(budget.held(), 3);
    }

    #[test]
    fn a_part_is_given_back_with_what_holds_it() {
        let budget = Arc::new(Budget::new(10));
        let mut part = BudgetPart::new(budget.clone());
        part.set(12);
        assert!(!budget.has_room());
        part.set(4);
        assert_eq!(budget.held(), 4);
        drop(part);
        assert_eq!(budget.held(), 0);
    }
}
