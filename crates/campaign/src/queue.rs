//! The queue of a batch: workers take runs, the costliest first.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls `work` for each index of `costs`, at most `at_once` at a time and the costliest first,
/// until all are done or `stop` is set. The results are in the order of `costs`, none for those
/// that never began.
///
/// Each call begins and ends in one thread: processes that it starts may end with their thread.
pub(crate) fn each<K: Send>(
    costs: &[u64],
    at_once: usize,
    stop: &AtomicBool,
    work: impl Fn(usize) -> K + Sync,
) -> Vec<Option<K>> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(costs[place]));
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<K>>> = costs.iter().map(|_| Mutex::new(None)).collect();
    let worker = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(&place) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let value = work(place);
            *results[place].lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..at_once.clamp(1, costs.len().max(1)) {
            scope.spawn(worker);
        }
        worker();
    });
    results.into_iter().map(|it| it.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_costliest_begins_first_and_results_keep_their_places() {
        let begun = Mutex::new(Vec::new());
        let results = each(&[1, 9, 5], 1, &AtomicBool::new(false), |place| {
            begun.lock().expect("no worker panics").push(place);
            place * 10
        });
        assert_eq!(results, [Some(0), Some(10), Some(20)]);
        assert_eq!(begun.into_inner().expect("no worker panics"), [1, 2, 0]);
    }

    #[test]
    fn what_is_stopped_never_begins() {
        let stop = AtomicBool::new(false);
        let work = |place| {
            stop.store(true, Ordering::Relaxed);
            place
        };
        assert_eq!(each(&[1, 2], 1, &stop, work), [None, Some(1)]);
    }
}
