//! Before the lossy path: the cache of recent segments, from which the peer requests.
//!
//! Nothing here knows what has arrived, since acknowledgements are not read. The oldest segments make room for new
//! ones: the shelf must reach back for as long as a request takes to arrive.
//!
//! Invariant: the segments on the shelf stay within its size.

use crate::Carried;
use crate::judge::{Queue, Radio, may_be_congestion};
use crate::sequence::{first, position};
use midhop_tcp::Segment;
use midhop_units::Instant;
use std::collections::{BTreeMap, VecDeque};

/// Entries of the row whose segments are gone, before these entries are removed.
const STALE_MAX: usize = 1024;

#[derive(Debug)]
struct Shelved<P> {
    packet: P,
    end: u64,
    /// When it was sent on.
    passed: Instant,
    /// Whether its transit time can still be measured: of a segment that passed twice, either may have arrived.
    timed: bool,
    /// How often it was requested.
    wanted: u32,
    /// Its place in the row.
    number: u64,
}

/// The cached segments of one direction of a flow.
#[derive(Debug)]
struct Stream<P> {
    /// The end of the data that has passed.
    highest: u64,
    segments: BTreeMap<u64, Shelved<P>>,
    active: Instant,
    /// The queue on the lossy path, where that is judged.
    queue: Queue,
}

/// The answer to a request of the peer.
#[derive(Debug)]
pub(super) struct Answer<P> {
    /// The segments that hold any of the span.
    pub resend: Vec<P>,
    /// Where they lie.
    pub resent: Vec<Span>,
    /// Parts that never passed.
    pub missing: Vec<Span>,
    /// Parts that the source must retransmit: a queue may have dropped them, or they were retransmitted before.
    pub left: Vec<Span>,
}

/// From one sequence number to before another.
pub(super) type Span = (u32, u32);

impl<P> Default for Answer<P> {
    fn default() -> Self {
        Self { resend: Vec::new(), resent: Vec::new(), missing: Vec::new(), left: Vec::new() }
    }
}

/// The recent segments of all flows.
#[derive(Debug)]
pub(super) struct Shelf<P: Carried> {
    /// Unit: bytes, as [`Carried::room`] counts them.
    limit: u64,
    bytes: u64,
    streams: BTreeMap<P::Way, Stream<P>>,
    /// What was put here, the oldest first. A segment that is gone since still has its entry.
    row: VecDeque<(u64, P::Way, u64)>,
    number: u64,
    segments: usize,
    /// How many segments were evicted.
    pub evicted: u64,
}

impl<P: Carried> Shelf<P> {
    /// A shelf for `limit` bytes of packets.
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

    /// The number of flows with segments.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// The size of its packets. Unit: bytes, as [`Carried::room`] counts them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it knows a flow.
    pub fn knows(&self, key: P::Way) -> bool {
        self.streams.contains_key(&key)
    }

    /// Caches a segment that passes. Returns whether it can fit at all.
    pub fn put(&mut self, now: Instant, key: P::Way, packet: P, segment: &Segment) -> bool {
        let size = packet.room();
        if size > self.limit {
            return false;
        }
        let stream = self.streams.entry(key).or_insert_with(|| Stream {
            highest: first(segment.sequence),
            segments: BTreeMap::new(),
            active: now,
            queue: Queue::default(),
        });
        let start = position(segment.sequence, stream.highest);
        let end = start + u64::from(segment.sequence_length());
        stream.highest = stream.highest.max(end);
        stream.active = now;
        self.number += 1;
        let timed = !stream.segments.contains_key(&start);
        let shelved = Shelved { packet, end, passed: now, timed, wanted: 0, number: self.number };
        match stream.segments.insert(start, shelved) {
            Some(before) => self.bytes -= before.packet.room(),
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

    /// Removes a segment, because it has not passed after all. Returns whether it was there.
    pub fn take_back(&mut self, key: P::Way, segment: &Segment) -> bool {
        let Some(stream) = self.streams.get_mut(&key) else { return false };
        let start = position(segment.sequence, stream.highest);
        let Some(shelved) = stream.segments.remove(&start) else { return false };
        self.bytes -= shelved.packet.room();
        self.segments -= 1;
        true
    }

    /// The segment that begins at `from` has arrived: its transit time shows how much waits on the path.
    pub fn on_arrival(&mut self, now: Instant, key: P::Way, from: u32, radio: &mut Radio) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let at = position(from, stream.highest);
        let known = stream.segments.get_mut(&at).filter(|it| it.timed && it.wanted == 0);
        if let Some(arrived) = known {
            arrived.timed = false;
            radio.on_arrival(now, stream.queue.sample(now, arrived.passed, true));
        }
    }

    /// Answers a request for the lost data of a span. Each segment is retransmitted up to `limit` times. With a
    /// `radio` the queue on the path is judged, and only segments that it has not dropped are retransmitted.
    pub fn find(
        &mut self,
        now: Instant,
        key: P::Way,
        (from, to): Span,
        limit: u32,
        mut radio: Option<&mut Radio>,
    ) -> Answer<P> {
        let mut answer = Answer::default();
        let Some(stream) = self.streams.get_mut(&key) else {
            answer.missing.push((from, to));
            return answer;
        };
        let from = position(from, stream.highest);
        let to = position(to, stream.highest);
        let first = stream.segments.range(..from).next_back().map_or(from, |(start, _)| *start);
        let mut at = from;
        for (&start, shelved) in stream.segments.range_mut(first..to.max(from)) {
            if shelved.end <= at {
                continue;
            }
            if start > at {
                join(&mut answer.missing, (at as u32, start as u32));
            }
            let span = (start.max(at) as u32, shelved.end as u32);
            at = shelved.end;
            shelved.wanted += 1;
            let refused = radio.as_deref_mut().is_some_and(|radio| {
                let waits = stream.queue.at(shelved.passed);
                if shelved.wanted == 1 {
                    radio.on_loss(now, waits);
                }
                may_be_congestion(waits, radio)
            });
            if refused || shelved.wanted > limit {
                join(&mut answer.left, span);
            } else {
                answer.resend.push(shelved.packet.clone());
                join(&mut answer.resent, span);
            }
        }
        if at < to {
            join(&mut answer.missing, (at as u32, to as u32));
        }
        answer
    }

    /// Removes a flow.
    pub fn forget(&mut self, key: P::Way) {
        if let Some(stream) = self.streams.remove(&key) {
            self.segments -= stream.segments.len();
            self.bytes -= stream.segments.values().map(|it| it.packet.room()).sum::<u64>();
        }
    }

    /// Removes the flows of which nothing has passed since `then`.
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
            self.bytes -= shelved.packet.room();
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
        let (segments, bytes) = all.fold((0, 0), |(n, sum), it| (n + 1, sum + it.packet.room()));
        assert_eq!((self.segments, self.bytes), (segments, bytes));
        assert!(self.bytes <= self.limit);
        assert!(self.row.len() <= 2 * self.segments + STALE_MAX);
        let there = self.row.iter().filter(|entry| is_there::<P>(&self.streams, entry)).count();
        assert_eq!(there, self.segments, "each segment has its place in the row");
    }
}

/// Adds a span to others that lie before it.
fn join(spans: &mut Vec<Span>, (from, to): Span) {
    match spans.last_mut() {
        Some(last) if last.1 == from => last.1 = to,
        _ => spans.push((from, to)),
    }
}

fn is_there<P: Carried>(
    streams: &BTreeMap<P::Way, Stream<P>>,
    (number, key, start): &(u64, P::Way, u64),
) -> bool {
    let shelved = streams.get(key).and_then(|stream| stream.segments.get(start));
    shelved.is_some_and(|shelved| shelved.number == *number)
}
