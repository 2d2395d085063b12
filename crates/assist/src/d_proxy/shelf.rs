//! Before the lossy way: what has lately passed, to be asked for again.
//!
//! Nothing here knows what has arrived, since acknowledgements are not read. What is oldest makes room
//! for what is new: the shelf has to reach back for as long as a request takes to come.
//!
//! Invariant: what lies on the shelf stays within its size.

use crate::Carried;
use crate::sequence::{first, position};
use midhop_tcp::Segment;
use midhop_units::Instant;
use std::collections::{BTreeMap, VecDeque};

/// Places in the row that may have lost their segments, before they are cleared away.
const STALE_MAX: usize = 1024;

#[derive(Debug)]
struct Shelved<P> {
    packet: P,
    end: u64,
    /// Its place in the row.
    number: u64,
}

/// What has passed of one direction of a flow.
#[derive(Debug)]
struct Stream<P> {
    /// Where what has passed ends.
    highest: u64,
    segments: BTreeMap<u64, Shelved<P>>,
    active: Instant,
}

/// The segments that have lately passed, of all flows.
#[derive(Debug)]
pub(super) struct Shelf<P: Carried> {
    /// Unit: bytes of packets.
    limit: u64,
    bytes: u64,
    streams: BTreeMap<P::Way, Stream<P>>,
    /// What was put here, the oldest first; what is gone since still has its place.
    row: VecDeque<(u64, P::Way, u64)>,
    number: u64,
    segments: usize,
    /// How many segments had to make room.
    pub evicted: u64,
}

impl<P: Carried> Shelf<P> {
    /// A shelf for so many bytes of packets.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            bytes: 0,
            streams: BTreeMap::new(),
            row: VecDeque::new(),
            number: 0,
            segments: 0,
            evicted: 0,
        }
    }

    /// How many flows it has something of.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether it knows a flow.
    pub fn knows(&self, key: P::Way) -> bool {
        self.streams.contains_key(&key)
    }

    /// Keeps a segment that passes; whether there is room for it at all.
    pub fn put(&mut self, now: Instant, key: P::Way, packet: P, segment: &Segment) -> bool {
        let size = u64::from(packet.size());
        if size > self.limit {
            return false;
        }
        let stream = self.streams.entry(key).or_insert_with(|| Stream {
            highest: first(segment.sequence),
            segments: BTreeMap::new(),
            active: now,
        });
        let start = position(segment.sequence, stream.highest);
        let end = start + u64::from(segment.sequence_length());
        stream.highest = stream.highest.max(end);
        stream.active = now;
        self.number += 1;
        let shelved = Shelved { packet, end, number: self.number };
        match stream.segments.insert(start, shelved) {
            Some(before) => self.bytes -= u64::from(before.packet.size()),
            None => self.segments += 1,
        }
        self.bytes += size;
        self.row.push_back((self.number, key, start));
        while self.bytes > self.limit {
            self.evict();
        }
        if self.row.len() > 2 * self.segments + STALE_MAX {
            let streams = &self.streams;
            self.row.retain(|entry| is_there::<P>(streams, entry));
        }
        true
    }

    /// Takes a segment away again: it has not passed after all. Whether it was there.
    pub fn take_back(&mut self, key: P::Way, segment: &Segment) -> bool {
        let Some(stream) = self.streams.get_mut(&key) else { return false };
        let start = position(segment.sequence, stream.highest);
        let Some(shelved) = stream.segments.remove(&start) else { return false };
        self.bytes -= u64::from(shelved.packet.size());
        self.segments -= 1;
        true
    }

    /// The segments that hold any of what lies between two sequence numbers, and what none holds.
    pub fn find(&self, key: P::Way, from: u32, to: u32) -> (Vec<P>, Vec<(u32, u32)>) {
        let Some(stream) = self.streams.get(&key) else { return (Vec::new(), vec![(from, to)]) };
        let from = position(from, stream.highest);
        let to = position(to, stream.highest);
        let (mut found, mut missing, mut at) = (Vec::new(), Vec::new(), from);
        let before = stream.segments.range(..from).next_back();
        let inside = stream.segments.range(from..to.max(from));
        for (&start, shelved) in before.into_iter().chain(inside) {
            if shelved.end <= at {
                continue;
            }
            if start > at {
                missing.push((at as u32, start as u32));
            }
            found.push(shelved.packet.clone());
            at = shelved.end;
        }
        if at < to {
            missing.push((at as u32, to as u32));
        }
        (found, missing)
    }

    /// Clears away a flow.
    pub fn forget(&mut self, key: P::Way) {
        if let Some(stream) = self.streams.remove(&key) {
            self.segments -= stream.segments.len();
            self.bytes -=
                stream.segments.values().map(|it| u64::from(it.packet.size())).sum::<u64>();
        }
    }

    /// Clears away the flows of which nothing has passed since `then`.
    pub fn forget_idle(&mut self, then: Instant) -> u64 {
        let idle = self.streams.iter().filter(|(_, stream)| stream.active <= then);
        let idle: Vec<P::Way> = idle.map(|(key, _)| *key).collect();
        idle.iter().for_each(|key| self.forget(*key));
        idle.len() as u64
    }

    fn evict(&mut self) {
        let Some(entry) = self.row.pop_front() else { return };
        if !is_there::<P>(&self.streams, &entry) {
            return;
        }
        let (_, key, start) = entry;
        let shelved = self.streams.get_mut(&key).and_then(|it| it.segments.remove(&start));
        if let Some(shelved) = shelved {
            self.bytes -= u64::from(shelved.packet.size());
            self.segments -= 1;
            self.evicted += 1;
        }
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When something does not.
    pub fn check_invariants(&self) {
        let all = self.streams.values().flat_map(|stream| stream.segments.values());
        let (segments, bytes) =
            all.fold((0, 0), |(n, sum), it| (n + 1, sum + u64::from(it.packet.size())));
        assert_eq!((self.segments, self.bytes), (segments, bytes));
        assert!(self.bytes <= self.limit);
        assert!(self.row.len() <= 2 * self.segments + STALE_MAX);
        let there = self.row.iter().filter(|entry| is_there::<P>(&self.streams, entry)).count();
        assert_eq!(there, self.segments, "each segment has its place in the row");
    }
}

fn is_there<P: Carried>(
    streams: &BTreeMap<P::Way, Stream<P>>,
    (number, key, start): &(u64, P::Way, u64),
) -> bool {
    let shelved = streams.get(key).and_then(|stream| stream.segments.get(start));
    shelved.is_some_and(|shelved| shelved.number == *number)
}
