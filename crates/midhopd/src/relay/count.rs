//! Counts what one direction holds, often enough for a budget and seldom enough to cost nothing.

use midhop_pep::budget::{Budget, BudgetPart, LOOK_AGAIN};
use midhop_pep::relay::Direction;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// A direction that read less than this since it was last counted is not counted again, unless it
/// waits.
const STEP_BYTES: u64 = 256 << 10;
/// Interval at which a direction is counted again if it held something when it was last counted.
const LOOK: Duration = Duration::from_millis(250);

/// Whether a direction holds anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// It holds something, or waits.
    Some,
    /// It holds nothing, and is idle.
    Nothing,
}

/// What a direction holds, as last counted. Dropping it gives that back.
#[derive(Debug, Default)]
pub struct HeldBytes {
    /// In the receive queue, between the sockets and in the send queue; none before it is first counted.
    held: Option<BudgetPart>,
    /// Unit: bytes. What the direction had read when it was last counted.
    read: u64,
    look: Option<Pin<Box<Sleep>>>,
}

impl HeldBytes {
    /// Gives back what was counted, and stops the timer.
    pub fn clear(&mut self) {
        (self.held, self.look) = (None, None);
    }

    /// Counts what `direction` holds, if that is due, and returns the result. `staged` bytes wait
    /// between the two ends; `queued` returns what the ends themselves hold.
    pub fn follow(
        &mut self,
        cx: &mut Context<'_>,
        staged: usize,
        direction: &Direction,
        budget: &Arc<Budget>,
        queued: impl FnOnce() -> usize,
    ) -> Option<Counted> {
        let (moved, waits) = (direction.moved(), direction.waits());
        let due = self.look.as_mut().is_some_and(|look| look.as_mut().poll(cx).is_ready());
        let counted = self.held.as_ref().map_or(0, BudgetPart::held);
        let begins = counted == 0 && (staged > 0 || waits);
        // The bytes read are the measure, because the kernel opens the window by them.
        let read = moved + staged as u64;
        if !due && !begins && read.saturating_sub(self.read) < STEP_BYTES {
            return None;
        }
        let held = (queued() + staged) as u64;
        self.held.get_or_insert_with(|| BudgetPart::new(budget.clone())).set(held);
        self.read = read;
        if held == 0 && !waits {
            self.look = None;
            return Some(Counted::Nothing);
        }
        let pause = if waits { LOOK_AGAIN.into() } else { LOOK };
        let look = match &mut self.look {
            Some(look) => {
                look.as_mut().reset(Instant::now() + pause);
                look
            }
            None => self.look.insert(Box::pin(sleep(pause))),
        };
        // Polled once, to register the waker. If the timer has expired already, the flow is woken
        // at once.
        if look.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Some(Counted::Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::relay::{Step, Turn};
    use std::task::Waker;

    fn step(direction: &mut Direction, budget: &Budget) -> Step {
        direction.step(false, Turn::new(1), || budget.must_wait(|| true))
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_waited_and_holds_nothing_is_looked_at_no_more() {
        let budget = Arc::new(Budget::new(10));
        let mut cx = Context::from_waker(Waker::noop());
        let (mut count, mut direction) = (HeldBytes::default(), Direction::default());
        count.follow(&mut cx, 12, &direction, &budget, || 0);
        assert_eq!(step(&mut direction, &budget), Step::Wait { begins: true });
        count.follow(&mut cx, 12, &direction, &budget, || 0);
        // It has passed on everything that it had.
        direction.count(12);
        tokio::time::advance(LOOK).await;
        count.follow(&mut cx, 0, &direction, &budget, || 0);
        assert!(budget.has_room() && step(&mut direction, &budget) == Step::Read);
        tokio::time::advance(LOOK).await;
        count.follow(&mut cx, 0, &direction, &budget, || 0);
        assert!(count.look.is_none(), "a timer goes on for nothing");
    }

    #[test]
    fn what_was_counted_is_given_back_however_a_flow_ends() {
        let budget = Arc::new(Budget::new(10));
        let mut cx = Context::from_waker(Waker::noop());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let _entered = runtime.as_ref().expect("a runtime").enter();
        let mut count = HeldBytes::default();
        count.follow(&mut cx, 12, &Direction::default(), &budget, || 5);
        assert_eq!(budget.held(), 17);
        drop(count);
        assert_eq!(budget.held(), 0);
    }
}
