//! Descriptors that have other numbers since they have been sent to this process.

use super::{NO_SOCKET, Register, at, both, pair, streams};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

/// The number of a socket that is not open any more.
const CLOSED: RawFd = -2;

impl Register {
    /// Enters the present numbers of descriptors, by those before. Those without one are not open
    /// any more. To be called while no data plane uses the register.
    pub fn renumber(&self, numbers: &HashMap<RawFd, RawFd>) {
        let now = |before: RawFd| match before {
            NO_SOCKET => Some(NO_SOCKET),
            before => numbers.get(&before).copied(),
        };
        let openings = usize::from(self.doors > 0);
        for region in 0..self.regions + openings {
            for (place, _) in self.records(region) {
                renumber_flow(self.place(region, place), now);
            }
        }
        self.note_doors(&self.doors().into_iter().filter_map(now).collect::<Vec<_>>());
    }
}

fn renumber_flow(words: &[AtomicU64], now: impl Fn(RawFd) -> Option<RawFd>) {
    let renumber = |at: usize, numbered: fn([Option<RawFd>; 2]) -> u64| {
        let (first, second) = both(words[at].load(Relaxed));
        words[at].store(numbered([now(first), now(second)]), Release);
    };
    renumber(at::SOCKETS, |numbers| {
        let [first, second] = numbers.map(|number| number.unwrap_or(CLOSED));
        pair(first, second)
    });
    // A flow through a tunnel has something else there.
    if words[at::LIVE].load(Relaxed) == streams::LIVE {
        return;
    }
    for at in at::PIPES {
        renumber(at, |numbers| match numbers {
            [Some(source), Some(sink)] => pair(source, sink),
            _ => 0,
        });
    }
}
