//! How much the flows of a connection may have written and the peer not acknowledged.
//!
//! Bytes written beyond the controller's window wait here: they are accepted from their sender and not delivered. So
//! on a path without losses the pool is that window and a quarter more, so that there is always something to send. A
//! loss blocks all bytes that were sent behind it, because QUIC frees acknowledged bytes only from the first one on.
//! Then the pool grows to several windows, one for each time that a datagram may be lost in a row, and stays so for
//! some round trips.
//!
//! A controller that searches for its window gets the largest pool: it would find less if it ran out of data meanwhile.
//!
//! Decision 0053.

use midhop_units::{Bytes, Duration, Instant};

/// What waits unsent on a path without losses, as a part of what may be in flight.
const WAITING_PARTS: u64 = 4;
/// The least that may wait unsent: a few datagrams.
const WAITING_LEAST: Bytes = Bytes::new(16 << 10);
/// Windows that may be unacknowledged on a path with losses.
const LOSSY_WINDOWS: u64 = 6;
/// The least pool on a path with losses: a window that still grows is small beside the bytes that wait behind a loss.
const LOSSY_LEAST: u64 = 256 << 10;
/// After a loss, a path counts as lossy for so many round trips.
const LOSSY_ROUNDS: u64 = 32;

/// What is known of a path now.
#[derive(Debug, Clone, Copy)]
pub struct PathState {
    /// What may be in flight, according to the controller.
    pub window: Bytes,
    /// The losses found so far.
    pub losses: u64,
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// Whether the controller has found that it does not know the path's rate.
    pub is_contradicted: bool,
}

/// The send pool of a connection.
#[derive(Debug)]
pub struct PoolLaw {
    most: Bytes,
    /// Whether the controller knows its window.
    follows: bool,
    losses: u64,
    lossy_until: Instant,
}

impl PoolLaw {
    /// A pool that is never larger than `most`.
    pub fn new(most: Bytes) -> Self {
        Self { most, follows: false, losses: 0, lossy_until: Instant::START }
    }

    /// Whether it follows the controller from now on, because that knows its window.
    pub fn set_follows(&mut self, follows: bool) {
        self.follows = follows;
    }

    /// Changes the largest size.
    pub fn set_most(&mut self, most: Bytes) {
        self.most = most;
    }

    /// The size of the pool now.
    pub fn size(&mut self, now: Instant, path: PathState) -> Bytes {
        if !self.follows || path.is_contradicted || path.window == Bytes::ZERO {
            return self.most;
        }
        if path.losses > self.losses {
            self.losses = path.losses;
            self.lossy_until = now + path.rtt * LOSSY_ROUNDS;
        }
        let window = path.window.get();
        let least = window.saturating_add((window / WAITING_PARTS).max(WAITING_LEAST.get()));
        let size = if now < self.lossy_until {
            window.saturating_mul(LOSSY_WINDOWS).max(LOSSY_LEAST).max(least)
        } else {
            least
        };
        Bytes::new(size).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: Bytes = Bytes::new(60 << 20);

    fn law() -> PoolLaw {
        PoolLaw { follows: true, ..PoolLaw::new(MOST) }
    }

    fn path(window: u64, losses: u64) -> PathState {
        let rtt = Duration::from_ms(600);
        PathState { window: Bytes::new(window), losses, rtt, is_contradicted: false }
    }

    #[test]
    fn a_loss_opens_the_pool_for_some_round_trips() {
        let mut pool = law();
        let at = |s| Instant::START + Duration::from_s(s);
        assert_eq!(pool.size(at(1), path(8_000_000, 0)), Bytes::new(10_000_000));
        assert_eq!(pool.size(at(2), path(8_000_000, 1)), Bytes::new(48_000_000));
        assert_eq!(pool.size(at(21), path(8_000_000, 1)), Bytes::new(48_000_000));
        assert_eq!(pool.size(at(22), path(8_000_000, 1)), Bytes::new(10_000_000));
    }

    #[test]
    fn a_controller_that_searches_is_left_the_most() {
        let mut pool = PoolLaw::new(MOST);
        assert_eq!(pool.size(Instant::START, path(8_000_000, 0)), MOST);
        // Bytes written into a large window, which nobody reads, would fill a small window and block all others.
        let searches = PathState { is_contradicted: true, ..path(8_000_000, 0) };
        assert_eq!(law().size(Instant::START, searches), MOST);
    }

    proptest! {
        #[test]
        fn there_is_always_something_to_send_and_never_more_than_the_most(
            steps in prop::collection::vec((0u64..10_000, 1u64..(1 << 27), 0u64..2), 1..50),
        ) {
            let mut pool = law();
            let (mut now, mut losses) = (Instant::START, 0);
            for (ms, window, lost) in steps {
                now = now + Duration::from_ms(ms);
                losses += lost;
                let size = pool.size(now, path(window, losses));
                prop_assert!(size <= MOST);
                prop_assert!(size == MOST || size.get() >= window + (16 << 10));
                // Without a loss it is at most a quarter more, or a few datagrams.
                let quiet = losses == 0;
                prop_assert!(!quiet || size.get() <= window + (window / 4).max(16 << 10));
            }
        }
    }
}
