//! The flows that are being opened: their far sides are open, and their clients are not served yet.
//!
//! Any worker may accept the client, so these flows are not in a worker's region, but in one that
//! all workers share.

use super::{NO_SOCKET, Record, Register, at, pair, write};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The region of these flows.
#[derive(Debug)]
pub struct Openings {
    register: Register,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Places that were used before and are free now.
    places: Vec<usize>,
    /// Number of places that were ever used.
    used: usize,
}

impl Openings {
    /// The region of a register, with the flows that the previous process has left there. They stay
    /// until they are [forgotten](Self::forget).
    pub fn of(register: &Register) -> (Arc<Self>, Vec<(usize, Record)>) {
        let left = register.openings();
        let used = left.last().map_or(0, |(place, _)| place + 1);
        let taken: BTreeSet<usize> = left.iter().map(|(place, _)| *place).collect();
        let places = (0..used).filter(|place| !taken.contains(place)).collect();
        let free = Mutex::new(Free { places, used });
        let this = Arc::new(Self { register: register.clone(), free });
        this.note_used(used);
        // A flow that is relayed already is not opened any more, even if its process had no time to
        // remove it here.
        let regions = (0..register.regions).flat_map(|region| register.records(region));
        let flows: BTreeSet<_> =
            regions.map(|(_, flow)| (flow.sockets[1], flow.cookies[1])).collect();
        let (left, begun): (Vec<_>, _) =
            left.into_iter().partition(|(_, it)| !flows.contains(&(it.sockets[1], it.cookies[1])));
        this.forget(begun.into_iter().map(|(place, _)| place));
        (this, left)
    }

    /// Enters a flow whose far side is open. None if there is no place: then the flow ends with
    /// this process.
    pub fn enter(self: &Arc<Self>, record: &Record) -> Option<OpeningEntry> {
        let place = {
            let mut free = self.free();
            match free.places.pop() {
                Some(place) => place,
                None if free.used < self.places() => {
                    free.used += 1;
                    self.note_used(free.used);
                    free.used - 1
                }
                None => return None,
            }
        };
        write(self.register.place(self.register.regions, place), record);
        Some(OpeningEntry { openings: self.clone(), place })
    }

    /// Frees the places of flows that were left.
    pub fn forget(&self, places: impl IntoIterator<Item = usize>) {
        for place in places {
            self.words(place)[at::LIVE].store(0, Release);
            self.free().places.push(place);
        }
    }

    /// None if the register's format has no such places.
    fn places(&self) -> usize {
        if self.register.doors == 0 { 0 } else { self.register.places }
    }

    fn note_used(&self, used: usize) {
        if self.places() > 0 {
            self.register.head(self.register.regions)[0].store(used as u64, Release);
        }
    }

    fn words(&self, place: usize) -> &[AtomicU64] {
        self.register.place(self.register.regions, place)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of a flow that is being opened; dropping it removes the flow.
#[derive(Debug)]
pub struct OpeningEntry {
    openings: Arc<Openings>,
    place: usize,
}

impl OpeningEntry {
    /// Records its client, which was accepted.
    pub fn note_client(&self, client: RawFd, cookie: u64) {
        let words = self.openings.words(self.place);
        let [_, server] = super::both(words[at::SOCKETS].load(Relaxed)).into();
        words[at::COOKIES[0]].store(cookie, Relaxed);
        words[at::SOCKETS].store(pair(client, server), Release);
    }
}

impl Drop for OpeningEntry {
    fn drop(&mut self) {
        self.openings.forget([self.place]);
    }
}

impl Record {
    /// Whether its client was accepted.
    pub fn has_client(&self) -> bool {
        self.sockets[0] != NO_SOCKET
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Region, tests::record};
    use super::*;
    use std::io;

    fn opening(number: i32) -> Record {
        let record = record(number);
        Record { sockets: [NO_SOCKET, number + 1], pipes: [None, None], ..record }
    }

    #[test]
    fn what_is_being_opened_is_found_until_it_is_a_flow() -> io::Result<()> {
        let register = Register::new(2, 3)?;
        let (openings, left) = Openings::of(&register);
        assert!(left.is_empty());
        let entries: Vec<_> =
            (0..3).filter_map(|n| openings.enter(&opening(10 * (n + 1)))).collect();
        assert_eq!(entries.len(), 3);
        assert!(openings.enter(&opening(90)).is_none(), "there is no fourth place");
        entries[1].note_client(55, 66);
        assert_eq!(register.descriptors(), BTreeSet::from([11, 55, 21, 31]));
        assert_eq!(register.flows(), 0, "none of them is relayed");
        // The first flow is relayed, and the process dies before it removes the entry here.
        let (region, _) = Region::of(&register, 1);
        let flow = region.enter(&Record { sockets: [10, 11], ..record(10) });
        std::mem::forget((flow, region, entries));
        let (openings, left) = Openings::of(&register);
        let found: Vec<_> = left.iter().map(|(_, record)| record.clone()).collect();
        let accepted = Record { sockets: [55, 21], cookies: [66, 77], ..opening(20) };
        assert_eq!(found, [accepted, opening(30)]);
        assert!(found[0].has_client() && !found[1].has_client());
        let again = openings.enter(&opening(40)).expect("the place of the one that is relayed");
        assert!(openings.enter(&opening(50)).is_none(), "the others are left still");
        openings.forget(left.into_iter().map(|(place, _)| place));
        drop(again);
        assert_eq!(register.descriptors(), BTreeSet::from([10, 11, 12, 13]));
        Ok(())
    }
}
