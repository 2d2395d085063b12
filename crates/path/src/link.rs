//! One direction of a link at work.

use crate::acm::Acm;
use crate::capacity::{Capacity, PACKET_MAX};
use crate::channel::Channel;
use crate::counters::{Cause, Counters};
use crate::flight::Flight;
use crate::plan::DirectionPlan;
use crate::queue::{Queue, Waiting};
use crate::reconfiguration::Reconfiguration;
use crate::sender::Sender;
use midhop_units::{Bytes, Instant, Seed};

/// The last moment of any run: after it comes only [`Instant::NEVER`].
const LAST: Instant = Instant::from_ns(u64::MAX - 1);

/// Which way packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Towards the link's first node, the user's side.
    Down,
    /// Towards the link's second node.
    Up,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Down, Self::Up];

    /// The name in scenarios and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

/// A packet that has come out of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<P> {
    /// The packet.
    pub packet: P,
    /// Its size as it was handed in.
    pub size: Bytes,
    /// When it was due. Whoever hands it on later than this is late.
    pub due: Instant,
}

/// One direction of a link, sans-IO. `P` is whatever stands for a packet: its bytes, or a handle.
///
/// After every [`Link::handle_input`] and [`Link::handle_timeout`] the caller drains
/// [`Link::poll_output`] and then asks [`Link::poll_timeout`] when to come again. Coming late changes
/// nothing but the lateness: the link does in their order the things that were due, each at its time.
///
/// Time must not go backwards; where it does, the latest time seen is taken.
#[derive(Debug, Clone)]
pub struct Link<P> {
    queue: Queue<P>,
    sender: Sender<P>,
    channel: Channel,
    flight: Flight<P>,
    counters: Counters,
    now: Instant,
}

impl<P: Clone> Link<P> {
    /// A link that begins at `start`: its traces and outages count from there.
    ///
    /// `seed` is the link's own, the same for both directions: each direction draws from streams of
    /// its own, but reconfigurations hit both together.
    ///
    /// # Panics
    /// Here or later, when `plan` is one that [`crate::DirectionSpec::resolve`] would not have given.
    pub fn new(plan: &DirectionPlan, direction: Direction, seed: Seed, start: Instant) -> Self {
        let own_seed = seed.derive(direction.name());
        let acm = plan.acm.as_ref().map(|plan| Acm::new(plan, start));
        let reconfiguration = plan
            .reconfiguration
            .as_ref()
            .map(|plan| Reconfiguration::new(plan, start, seed, own_seed));
        let capacity = Capacity::new(plan, start, acm.clone(), reconfiguration.clone());
        Self {
            queue: Queue::new(plan.queue, &plan.aqm, start, own_seed),
            sender: Sender::new(capacity),
            channel: Channel::new(plan, start, acm, reconfiguration.clone(), own_seed),
            flight: Flight::new(plan, start, reconfiguration, own_seed),
            counters: Counters::default(),
            now: start,
        }
    }

    /// Takes a packet of `size` bytes that reaches the link at `now`. One larger than 1 GiB counts as
    /// 1 GiB.
    pub fn handle_input(&mut self, now: Instant, size: Bytes, packet: P) {
        let size = size.min(PACKET_MAX);
        self.handle_timeout(now);
        self.counters.packets_in += 1;
        self.counters.bytes_in += size;
        self.sender.arrive(self.now, size);
        let waiting = Waiting { packet, size, since: self.now };
        if self.sender.is_idle() {
            self.sender.begin(self.now, waiting, Bytes::ZERO);
            self.handle_timeout(now);
            return;
        }
        match self.queue.enter(waiting) {
            Ok(()) => {
                let counters = &mut self.counters;
                counters.queue_bytes_max = counters.queue_bytes_max.max(self.queue.bytes());
                let packets = self.queue.len() as u64;
                counters.queue_packets_max = counters.queue_packets_max.max(packets);
            }
            Err(cause) => self.counters.drop(cause),
        }
    }

    /// Does everything that was due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now.min(LAST));
        while self.sender.wake() <= self.now {
            let Some(sent) = self.sender.step(self.queue.bytes()) else { continue };
            self.counters.packets_sent += 1;
            self.counters.bytes_sent += sent.size;
            let fortune = self.flight.draw();
            match self.channel.loses(sent.began, sent.finished, sent.size) {
                Some(cause) => self.counters.drop(cause),
                None => {
                    let twice = self.flight.depart(sent.finished, sent.size, sent.packet, fortune);
                    self.counters.duplicates += u64::from(twice);
                }
            }
            let counters = &mut self.counters;
            let next = self.queue.take(sent.finished, |_| counters.drop(Cause::Aqm));
            if let Some(next) = next {
                self.sender.begin(sent.finished, next, self.queue.bytes());
            }
        }
    }

    /// The next packet that has come out by `now`.
    pub fn poll_output(&mut self, now: Instant) -> Option<Arrival<P>> {
        let arrived = self.flight.arrive(now.min(LAST))?;
        self.counters.packets_out += 1;
        self.counters.bytes_out += arrived.size;
        Some(Arrival { packet: arrived.packet, size: arrived.size, due: arrived.due })
    }

    /// When the link must be called next; `None` while nothing is inside that could move.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = self.sender.wake().min(self.flight.next_due());
        (next != Instant::NEVER).then_some(next)
    }

    /// What became of the packets so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What waits now.
    pub fn queue_bytes(&self) -> Bytes {
        self.queue.bytes()
    }

    /// Packets that went in and have neither come out nor been dropped, duplicates included.
    pub fn packets_inside(&self) -> u64 {
        (self.queue.len() + self.flight.len()) as u64 + u64::from(!self.sender.is_idle())
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When a packet has been lost from the books, a limit is passed, or order is broken.
    pub fn check_invariants(&self) {
        let counters = &self.counters;
        assert_eq!(
            counters.packets_in + counters.duplicates,
            counters.packets_out + counters.dropped_in_all() + self.packets_inside(),
            "packets in and made, packets out, dropped and inside"
        );
        assert!(!self.sender.is_idle() || self.queue.len() == 0, "idle while packets wait");
        assert!(self.sender.wake() > self.now, "something due was not done");
        self.queue.check_invariants();
        self.sender.check_invariants();
        self.flight.check_invariants();
    }
}
