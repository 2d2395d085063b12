//! The lanes of one socket, and which of them has something to do when.
//!
//! Invariant: what a datagram or a wake-up costs does not depend on how many lanes there are, but for the depth of
//! a tree: a lane is visited when its datagrams come or go, when its time has come, or when the kernel had no room
//! for it, and at no other time.

use super::lane::Lane;
use midhop_units::Instant;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
};

/// The lanes, by the addresses of their peers.
#[derive(Debug, Default)]
pub struct Lanes {
    by_peer: BTreeMap<SocketAddr, Entry>,
    /// When something may leave, the soonest first: one for each lane on which something waits for its time.
    due: BTreeSet<(Instant, SocketAddr)>,
    /// Those for which the kernel had no room, in their turns. One may have gone, or have been let go of, since.
    blocked: VecDeque<SocketAddr>,
    owners: u64,
}

#[derive(Debug)]
struct Entry {
    owner: u64,
    lane: Lane,
    /// What of it is in `due`.
    due: Option<Instant>,
    /// Whether it is in `blocked`.
    is_blocked: bool,
}

/// What one look at the lanes has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flushed {
    /// When something may leave next; none: nothing waits for its time.
    pub wake: Option<Instant>,
    /// Whether something waits for the kernel to have room.
    pub is_blocked: bool,
}

impl Lanes {
    /// Whether there is a lane to `peer`.
    pub fn has(&self, peer: SocketAddr) -> bool {
        self.by_peer.contains_key(&peer)
    }

    /// Whose the lane to `peer` is.
    pub fn owner(&self, peer: SocketAddr) -> Option<u64> {
        self.by_peer.get(&peer).map(|entry| entry.owner)
    }

    /// The lane to `peer`, as it is.
    pub fn see(&self, peer: SocketAddr) -> Option<&Lane> {
        self.by_peer.get(&peer).map(|entry| &entry.lane)
    }

    /// Does something with the lane to `peer`, and notes when that has something to do next. Also gives
    /// whether that is sooner than it was.
    pub fn with<R>(
        &mut self,
        peer: SocketAddr,
        act: impl FnOnce(&mut Lane) -> R,
    ) -> Option<(R, bool)> {
        let entry = self.by_peer.get_mut(&peer)?;
        let acted = act(&mut entry.lane);
        let is_blocked = entry.lane.is_blocked();
        let due = if is_blocked { None } else { entry.lane.wake() };
        let before = std::mem::replace(&mut entry.due, due);
        let is_newly_blocked = is_blocked && !std::mem::replace(&mut entry.is_blocked, is_blocked);
        if before != due {
            before.map(|at| self.due.remove(&(at, peer)));
            due.map(|at| self.due.insert((at, peer)));
        }
        if is_newly_blocked {
            self.blocked.push_back(peer);
        }
        let is_sooner = due.is_some_and(|due| before.is_none_or(|before| due < before));
        Some((acted, is_sooner || is_newly_blocked))
    }

    /// Makes `lane` that to `peer`, or has who owns it now take the one that is there over, and gives that
    /// owner's number.
    pub fn put(&mut self, peer: SocketAddr, lane: impl FnOnce() -> Lane) -> u64 {
        self.owners += 1;
        let owner = self.owners;
        let new = || Entry { owner, lane: lane(), due: None, is_blocked: false };
        self.by_peer.entry(peer).or_insert_with(new).owner = owner;
        // What waits on one that has moved waits on.
        self.with(peer, |_| ());
        owner
    }

    /// Gives up the lane to `peer`, if it is `owner`'s.
    pub fn remove(&mut self, peer: SocketAddr, owner: u64) -> Option<Lane> {
        if self.owner(peer) != Some(owner) {
            return None;
        }
        let entry = self.by_peer.remove(&peer)?;
        entry.due.map(|at| self.due.remove(&(at, peer)));
        Some(entry.lane)
    }

    /// Has each lane whose time has come flushed, and those for which the kernel had no room for as long as it
    /// has some.
    pub fn flush(&mut self, now: Instant, mut flush: impl FnMut(&mut Lane)) -> Flushed {
        // Once each: who has sent all that it may now comes again at its time.
        let mut ripe = Vec::new();
        while let Some((at, peer)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            if let Some(entry) = self.by_peer.get_mut(&peer) {
                entry.due = None;
                ripe.push(peer);
            }
        }
        for _ in 0..self.blocked.len() {
            let Some(peer) = self.blocked.pop_front() else { break };
            let Some(entry) = self.by_peer.get_mut(&peer).filter(|it| it.is_blocked) else {
                continue;
            };
            entry.is_blocked = false;
            let still = self.with(peer, |lane| {
                flush(lane);
                lane.is_blocked()
            });
            if still.is_some_and(|(still, _)| still) {
                // The kernel's room is one for all of them.
                break;
            }
        }
        for peer in ripe {
            self.with(peer, &mut flush);
        }
        let wake = self.due.first().map(|(at, _)| *at);
        Flushed { wake, is_blocked: !self.blocked.is_empty() }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_peer.is_empty() && self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_tunnel::control::Pace;
    use midhop_units::{Bytes, Duration, Rate};
    use quinn::udp::Transmit;
    use std::io;

    const LANES: u16 = 1000;

    fn peer(number: u16) -> SocketAddr {
        ([192, 0, 2, 1], 1000 + number).into()
    }

    fn lanes() -> Lanes {
        let mut lanes = Lanes::default();
        let pace = || Pace::of(Some(Rate::from_mbit_per_s(12)), Bytes::new(28));
        for number in 0..LANES {
            lanes.put(peer(number), || Lane::new(pace(), Instant::START));
        }
        lanes
    }

    /// So many datagrams of 1,472 bytes for one of them.
    fn push(lanes: &mut Lanes, number: u16, count: usize) -> bool {
        let contents = vec![0x40; count * 1472];
        let transmit = Transmit {
            destination: peer(number),
            ecn: None,
            contents: &contents,
            segment_size: Some(1472),
            src_ip: None,
        };
        lanes.with(peer(number), |lane| lane.push(Instant::START, &transmit)).expect("a lane").1
    }

    #[test]
    fn only_those_whose_time_has_come_are_visited() {
        let mut lanes = lanes();
        assert!(push(&mut lanes, 7, 3) && push(&mut lanes, 900, 1));
        let mut sent = Vec::new();
        let mut flush_at = |lanes: &mut Lanes, now: Instant| {
            let (mut visited, before) = (0, sent.len());
            let flushed = lanes.flush(now, |lane| {
                visited += 1;
                lane.flush(now, 1, |transmit| {
                    sent.push(transmit.destination);
                    Ok(())
                });
            });
            (flushed, visited, sent.len() - before)
        };
        let (flushed, visited, left) = flush_at(&mut lanes, Instant::START);
        assert_eq!((visited, left), (2, 2));
        // A datagram takes a millisecond at 12 Mbit/s.
        assert_eq!(flushed.wake, Some(Instant::START + Duration::from_ms(1)));
        let (flushed, visited, _) = flush_at(&mut lanes, Instant::START + Duration::from_us(999));
        assert_eq!((visited, flushed.is_blocked), (0, false));
        let (flushed, visited, left) = flush_at(&mut lanes, Instant::START + Duration::from_ms(9));
        assert_eq!((visited, left, flushed.wake), (1, 2, None), "what is left of one lane");
        assert_eq!(flush_at(&mut lanes, Instant::START + Duration::from_ms(99)).1, 0);
    }

    #[test]
    fn who_goes_or_moves_leaves_no_time_behind() {
        let mut lanes = lanes();
        push(&mut lanes, 3, 1);
        let owner = lanes.owner(peer(3)).expect("a lane");
        assert!(lanes.remove(peer(3), owner + 1).is_none(), "it is not its own");
        let lane = lanes.remove(peer(3), owner).expect("its own");
        assert!(lanes.due.is_empty());
        lanes.put(peer(LANES), || lane);
        assert_eq!(lanes.due.len(), 1, "what waits goes along");
        for number in 0..=LANES {
            if let Some(owner) = lanes.owner(peer(number)) {
                lanes.remove(peer(number), owner);
            }
        }
        assert!(lanes.is_empty());
    }

    #[test]
    fn where_the_kernel_has_no_room_one_asks_for_all_and_each_in_its_turn() {
        let mut lanes = lanes();
        for number in 0..10 {
            push(&mut lanes, number, 1);
        }
        let flush = |lanes: &mut Lanes, mut room: usize| {
            let mut tries = 0;
            let flushed = lanes.flush(Instant::START, |lane| {
                tries += 1;
                lane.flush(Instant::START, 1, |_| {
                    room = room.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
                    Ok(())
                });
            });
            (flushed.is_blocked, tries)
        };
        assert_eq!(flush(&mut lanes, 0), (true, 10));
        assert_eq!(flush(&mut lanes, 0), (true, 1));
        assert_eq!(flush(&mut lanes, 4), (true, 5));
        assert_eq!(flush(&mut lanes, 99), (false, 6));
        assert_eq!(flush(&mut lanes, 99), (false, 0));
    }
}
