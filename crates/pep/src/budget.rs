//! Bounds what all flows of a proxy may hold together.
//!
//! Invariant: no flow is ever reset because the budget is used up. A direction that holds nothing may always move a
//! little, so every flow makes progress, however slowly.

use midhop_units::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How soon a direction that waits for the budget checks again.
pub const LOOK_AGAIN: Duration = Duration::from_ms(10);

/// The bytes that flows hold, as last counted, and the most that they may.
#[derive(Debug)]
pub struct Budget {
    held: AtomicU64,
    /// The bytes that may arrive in addition, because open windows allow it.
    promised: AtomicU64,
    most: AtomicU64,
    window_least: AtomicU64,
}

impl Budget {
    /// A budget of `most` bytes.
    pub fn new(most: u64) -> Self {
        let [held, promised, window_least] = <[AtomicU64; 3]>::default();
        Self { held, promised, most: AtomicU64::new(most), window_least }
    }

    /// Changes the limit. What is held stays.
    pub fn set_limit(&self, most: u64) {
        self.most.store(most, Relaxed);
    }

    /// Unit: bytes. Changes what every receive buffer may have, however little is left.
    pub fn set_window_least(&self, bytes: u64) {
        self.window_least.store(bytes, Relaxed);
    }

    /// Unit: bytes. What every receive buffer may have, however little is left: 0 at first.
    pub fn window_least(&self) -> u64 {
        self.window_least.load(Relaxed)
    }

    /// Unit: bytes. What may arrive beyond what is held and beyond the least of each window: see
    /// [`ReceiveWindow`](crate::receive_window::ReceiveWindow).
    pub fn promised(&self) -> u64 {
        self.promised.load(Relaxed)
    }

    /// Unit: bytes. How much flows hold.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Unit: bytes. How much they may hold.
    pub fn limit(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Whether more may be read.
    pub fn has_room(&self) -> bool {
        self.held() < self.limit()
    }

    /// Whether a direction may read no more for now: flows hold all that they may, and some of its written bytes
    /// are still in flight, so that it will be checked again.
    pub fn must_wait(&self, on_its_way: impl FnOnce() -> bool) -> bool {
        !self.has_room() && on_its_way()
    }

    /// Whether there is enough room to read bulk data.
    pub fn has_plenty(&self) -> bool {
        self.held() < self.limit() / 4 * 3
    }

    /// Replaces what a [`BudgetPart`] counted before by what it counts now. Only parts count. Dropping a part
    /// returns what it has counted, however its owner ended.
    fn recount(&self, before: u64, now: u64) {
        replace(&self.held, before, now);
    }

    /// Replaces what a window promised before by what it promises now.
    pub(crate) fn promise_anew(&self, before: u64, now: u64) {
        replace(&self.promised, before, now);
    }
}

/// Replaces one addend of a sum.
fn replace(sum: &AtomicU64, before: u64, now: u64) {
    if now > before {
        sum.fetch_add(now - before, Relaxed);
    } else if now < before {
        sum.fetch_sub(before - now, Relaxed);
    }
}

/// What one owner holds, such as a direction of a flow, or a whole tunnel. Dropping it returns the bytes to the
/// budget.
#[derive(Debug)]
pub struct BudgetPart {
    budget: Arc<Budget>,
    held: u64,
}

impl BudgetPart {
    /// A part that holds nothing yet.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: 0 }
    }

    /// Sets how many bytes the part holds.
    pub fn set(&mut self, held: u64) {
        if held != self.held {
            self.budget.recount(self.held, held);
            self.held = held;
        }
    }

    /// Unit: bytes. How many bytes the part holds.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The budget of this part.
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
