//! How the clients of assisted flows see them whose addresses were translated on this host.
//!
//! A packet that leaves has the addresses by which its far end knows the flow; an answer, translated back, those by which
//! the client does. Not every kernel hands over what connection tracking knows of a packet.
//!
//! Bound: as many flows as [`FLOWS_MAX`]; what has not been asked for in a while makes room.

use crate::flow::Ends;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Flows that are known at once.
const FLOWS_MAX: usize = 65_536;
/// As long as the firewall keeps a flow of which nothing passes.
const IDLE: Duration = Duration::from_secs(300);

/// Of all workers.
#[derive(Debug, Default)]
pub struct Translated {
    any: AtomicBool,
    flows: Mutex<HashMap<Ends, (Ends, Instant)>>,
}

impl Translated {
    /// A flow leaves as `leaving`, and its client sees it as `client`.
    pub fn note(&self, leaving: Ends, client: Ends, now: Instant) {
        let mut flows = self.flows();
        if leaving == client {
            flows.remove(&leaving);
            return;
        }
        if flows.len() >= FLOWS_MAX {
            flows.retain(|_, (_, used)| now.duration_since(*used) < IDLE);
        }
        if flows.len() < FLOWS_MAX {
            flows.insert(leaving, (client, now));
            self.any.store(true, Relaxed);
        }
    }

    /// How the client sees a flow of which a packet leaves as `leaving`; none where it was not translated.
    pub fn of(&self, leaving: &Ends, now: Instant) -> Option<Ends> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let mut flows = self.flows();
        let (client, used) = flows.get_mut(leaving)?;
        *used = now;
        Some(*client)
    }

    fn flows(&self) -> MutexGuard<'_, HashMap<Ends, (Ends, Instant)>> {
        // Plain entries: as good as ever after a panic elsewhere.
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(port: u16) -> Ends {
        let client = ([10, 0, port.to_be_bytes()[0], port.to_be_bytes()[1]], port).into();
        Ends { client, server: ([10, 1, 0, 1], 80).into() }
    }

    #[test]
    fn what_is_not_translated_is_not_kept_and_room_is_bounded() {
        let (translated, now) = (Translated::default(), Instant::now());
        translated.note(ends(1), ends(1), now);
        assert_eq!(translated.of(&ends(1), now), None);
        for port in 0..=u16::MAX {
            translated.note(ends(port), ends(port ^ 1), now);
        }
        assert_eq!(translated.flows().len(), FLOWS_MAX);
        let more = Ends { client: ends(1).server, ..ends(1) };
        translated.note(more, ends(7), now);
        assert_eq!(translated.of(&more, now), None, "there is no room");
        // One is used again, the others give way.
        let later = now + IDLE;
        assert_eq!(translated.of(&ends(4), later - Duration::from_secs(1)), Some(ends(5)));
        translated.note(more, ends(7), later);
        assert_eq!((translated.of(&more, later), translated.flows().len()), (Some(ends(7)), 2));
    }
}
