//! Finds the addresses that assisted flows have on the lossy link, where this host translates them.
//!
//! Agents get packets after all translation. In one direction a packet then has its addresses on
//! the link; in the other it has the translated ones. Not every kernel provides what connection
//! tracking knows of a packet.
//!
//! Bound: [`FLOWS_MAX`] flows. Entries that were not used for a while make room.

use crate::ends::Ends;
use midhop_assist::Way;
use midhop_assist::wire::Route;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most flows that are remembered.
const FLOWS_MAX: usize = 65_536;
/// Interval between two removals of old entries.
const PRUNING: Duration = Duration::from_secs(1);
/// As long as the firewall keeps an idle flow.
const IDLE: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
struct Flows {
    /// By packet addresses that are not those on the link: the addresses on the link.
    on_link: HashMap<Route, (Route, Instant)>,
    /// Time of the last removal, which visits each entry.
    pruned: Option<Instant>,
}

/// Shared by all workers.
#[derive(Debug, Default)]
pub struct Translated {
    any: AtomicBool,
    flows: Mutex<Flows>,
}

impl Translated {
    /// Records that a client's packets with `sent` leave as `leaving`. `comes_by_link`: the client is beyond the
    /// link.
    pub fn note(&self, sent: Ends, leaving: Ends, comes_by_link: bool, now: Instant) {
        let [sent, leaving] =
            [sent, leaving].map(|it| Route { source: it.client, destination: it.server });
        let (met, on_link) =
            if comes_by_link { (leaving, sent) } else { (sent.back(), leaving.back()) };
        let mut flows = self.flows();
        if met == on_link {
            flows.on_link.remove(&met);
            return;
        }
        let may_prune = flows.pruned.is_none_or(|last| now.duration_since(last) >= PRUNING);
        if flows.on_link.len() >= FLOWS_MAX && may_prune {
            flows.pruned = Some(now);
            flows.on_link.retain(|_, (_, used)| now.duration_since(*used) < IDLE);
        }
        if flows.on_link.len() < FLOWS_MAX {
            flows.on_link.insert(met, (on_link, now));
            self.any.store(true, Relaxed);
        }
    }

    /// Source and destination on the link of a packet that is seen here as `met`.
    pub fn on_link(&self, met: Route, now: Instant) -> Route {
        if !self.any.load(Relaxed) {
            return met;
        }
        match self.flows().on_link.get_mut(&met) {
            Some((on_link, used)) => {
                *used = now;
                *on_link
            }
            None => met,
        }
    }

    fn flows(&self) -> MutexGuard<'_, Flows> {
        // Plain entries are still valid after a panic elsewhere.
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(port: u16) -> Route {
        let source = ([10, 0, port.to_be_bytes()[0], port.to_be_bytes()[1]], port).into();
        Route { source, destination: ([10, 1, 0, 1], 80).into() }
    }

    fn ends(route: Route) -> Ends {
        Ends { client: route.source, server: route.destination }
    }

    #[test]
    fn both_directions_have_the_addresses_of_the_link() {
        let (sent, leaving) = (route(1), route(2));
        for (comes_by_link, on_link) in [(true, sent), (false, leaving)] {
            let (translated, now) = (Translated::default(), Instant::now());
            translated.note(ends(sent), ends(leaving), comes_by_link, now);
            // As they are behind all translation.
            assert_eq!(translated.on_link(leaving, now), on_link);
            assert_eq!(translated.on_link(sent.back(), now), on_link.back());
        }
    }

    #[test]
    fn what_is_not_translated_is_not_kept_and_room_is_bounded() {
        let (translated, now) = (Translated::default(), Instant::now());
        let note = |leaving, sent, now| translated.note(ends(sent), ends(leaving), true, now);
        note(route(1), route(1), now);
        assert!(translated.flows().on_link.is_empty());
        for port in 0..=u16::MAX {
            note(route(port), route(port ^ 1), now);
        }
        assert_eq!(translated.flows().on_link.len(), FLOWS_MAX);
        let more = route(1).back();
        note(more, route(7), now);
        assert_eq!(translated.on_link(more, now), more, "there is no room");
        // The entry that is used again stays, the others are removed.
        let later = now + IDLE;
        assert_eq!(translated.on_link(route(4), later - Duration::from_secs(1)), route(5));
        note(more, route(7), later);
        assert_eq!(
            (translated.on_link(more, later), translated.flows().on_link.len()),
            (route(7), 2)
        );
    }
}
