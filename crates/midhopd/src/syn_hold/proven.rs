//! Sources that have completed a handshake lately. Nobody can do that with a spoofed address, so spoofed SYNs never
//! get the places that are reserved for these sources.
//!
//! Invariant: no more than `SOURCES` are remembered.

use super::entries::source;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a source is remembered after its last completed handshake.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Sources remembered. Beyond this number the oldest half is forgotten.
const SOURCES: usize = 1 << 16;

/// Shared by all workers.
#[derive(Debug, Default)]
pub struct Proven {
    sources: Mutex<HashMap<IpAddr, Instant>>,
}

impl Proven {
    /// Records that a client of this address has completed a handshake.
    pub fn note(&self, client: IpAddr, now: Instant) {
        let mut sources = self.lock();
        if sources.len() >= SOURCES && !sources.contains_key(&source(client)) {
            let mut times: Vec<_> = sources.values().copied().collect();
            let (_, middle, _) = times.select_nth_unstable(SOURCES / 2);
            let middle = *middle;
            sources.retain(|_, at| *at > middle);
        }
        sources.insert(source(client), now);
    }

    /// Whether a client of this address has completed one lately.
    pub fn has(&self, client: IpAddr, now: Instant) -> bool {
        let at = self.lock().get(&source(client)).copied();
        at.is_some_and(|at| now.duration_since(at) < REMEMBERED)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn sources_are_remembered_for_a_time_and_in_bounds() {
        let (proven, begin) = (Proven::default(), Instant::now());
        let at = |number: u64| begin + Duration::from_micros(number);
        let count = SOURCES as u64 + 10;
        for number in 0..count {
            let address = Ipv4Addr::from_bits(u32::try_from(number).expect("small"));
            proven.note(address.into(), at(number));
        }
        assert!(proven.lock().len() <= SOURCES);
        let last = Ipv4Addr::from_bits(u32::try_from(count - 1).expect("small"));
        assert!(proven.has(last.into(), at(count)), "the newest are not forgotten");
        assert!(!proven.has(Ipv4Addr::from_bits(0).into(), at(count)), "the oldest are");
        assert!(!proven.has(last.into(), at(count) + REMEMBERED));
        assert!(!proven.has([192, 0, 2, 1].into(), at(count)));
    }
}
