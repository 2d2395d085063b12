//! Eager tasks: each has begun before it is spawned.

use std::future::Future;
use std::task::{Context, Waker};
use tokio::task::spawn_local;

/// Begins a task at once, in the turn of its spawner, and continues it in turns of its own.
///
/// So the bytes that a client sent before its flow was opened leave in one packet with the request
/// for the flow.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    let mut task = Box::pin(task);
    // A spawned task has its first turn whether anything wakes it or not.
    let mut nobody = Context::from_waker(Waker::noop());
    if task.as_mut().poll(&mut nobody).is_pending() {
        spawn_local(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use tokio::sync::Notify;
    use tokio::task::LocalSet;

    #[tokio::test]
    async fn a_task_begins_at_once_and_goes_on_when_it_is_woken() {
        let (steps, bell) = (Rc::new(Cell::new(0)), Rc::new(Notify::new()));
        let (its_steps, its_bell) = (steps.clone(), bell.clone());
        LocalSet::new()
            .run_until(async move {
                spawn(async move {
                    its_steps.set(1);
                    its_bell.notified().await;
                    its_steps.set(2);
                    its_bell.notify_one();
                });
                assert_eq!(steps.get(), 1, "it waits for its turn");
                bell.notify_one();
                while steps.get() < 2 {
                    tokio::task::yield_now().await;
                }
                bell.notified().await;
            })
            .await;
    }
}
