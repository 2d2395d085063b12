//! One direction of a link.

use crate::acm::Acm;
use crate::capacity::{Capacity, PACKET_MAX};
use crate::channel::Channel;
use crate::counters::{Cause, Counters};
use crate::direction::Direction;
use crate::flight::Flight;
use crate::plan::DirectionPlan;
use crate::queue::{Queue, Waiting};
use crate::reconfiguration::Reconfiguration;
use crate::sender::Sender;
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};
use std::collections::VecDeque;

/// The last moment of any run: after it comes only [`Instant::NEVER`].
const LAST: Instant = Instant::from_ns(u64::MAX - 1);

/// A packet that has left the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<P> {
    /// The packet.
    pub packet: P,
    /// Its size at entry.
    pub size: Bytes,
    /// When it was due. A caller that forwards it later than this is late.
    pub due: Instant,
}

/// A packet that will never leave the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped<P> {
    /// The packet.
    pub packet: P,
    /// Its size at entry.
    pub size: Bytes,
    /// The cause.
    pub cause: Cause,
}

/// One direction of a link, sans-IO. `P` represents a packet: its bytes, or a handle.
///
/// After every [`Link::handle_input`] and [`Link::handle_timeout`], the caller drains
/// [`Link::poll_output`] and then asks [`Link::poll_timeout`] for the time of the next call. A late
/// call changes only the lateness: the link processes everything that was due in order, each at its
/// own time.
///
/// Time must not go backwards. If it does, the latest time so far is used.
#[derive(Debug, Clone)]
pub struct Link<P> {
    queue: Queue<P>,
    sender: Sender<P>,
    channel: Channel,
    flight: Flight<P>,
    counters: Counters,
    now: Instant,
    /// Dropped packets that the caller has not taken yet; `None` where they are not kept.
    dropped: Option<VecDeque<Dropped<P>>>,
    mark: fn(&mut P) -> bool,
    delay_min: Duration,
}

impl<P: Clone> Link<P> {
    /// A link that begins at `start`: its traces and outages count from there.
    ///
    /// `seed` is the link's own, the same for both directions: each direction draws from streams of
    /// its own, but reconfigurations affect both at the same times.
    ///
    /// # Panics
    /// Here or in a later call, when [`crate::DirectionSpec::resolve`] would not have returned
    /// `plan`.
    pub fn new(plan: &DirectionPlan, direction: Direction, seed: Seed, start: Instant) -> Self {
        let own_seed = direction.seed(seed);
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
            dropped: None,
            mark: |_| false,
            delay_min: plan.delay_min(),
        }
    }

    /// The same link, but it keeps the packets that it drops until [`Link::poll_dropped`] takes them.
    #[must_use]
    pub fn keeping_dropped(mut self) -> Self {
        self.dropped = Some(VecDeque::new());
        self
    }

    /// The same link, whose AQM marks packets instead of dropping them (RFC 3168) where `mark` can:
    /// it returns whether the packet is ECN-capable, and if so marks it.
    #[must_use]
    pub fn marking(mut self, mark: fn(&mut P) -> bool) -> Self {
        self.mark = mark;
        self
    }

    /// Accepts a packet of `size` bytes that reaches the link at `now`. A packet larger than 1 GiB
    /// counts as 1 GiB.
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
        let (mark, marks) = (self.mark, &mut self.counters.marks);
        match self.queue.enter(waiting, |packet| counted(mark, marks, packet)) {
            Ok(()) => {
                let counters = &mut self.counters;
                counters.queue_bytes_max = counters.queue_bytes_max.max(self.queue.bytes());
                let packets = self.queue.len() as u64;
                counters.queue_packets_max = counters.queue_packets_max.max(packets);
            }
            Err((waiting, cause)) => {
                drop_packet(&mut self.counters, &mut self.dropped, waiting, cause);
            }
        }
    }

    /// Accepts a packet that reaches the link at `now` in the place of a waiting one, which is
    /// dropped as [`Cause::Superseded`]. `choose` examines the waiting packets from the youngest
    /// on, at most 1024. For each it returns `Some(true)` to replace it, `Some(false)` to replace
    /// none, or `None` to go on with the one before it.
    ///
    /// # Errors
    /// Returns the packet when none is replaced: it is then one for [`Link::handle_input`].
    pub fn supersede(
        &mut self,
        now: Instant,
        size: Bytes,
        packet: P,
        choose: impl FnMut(&P) -> Option<bool>,
    ) -> Result<(), P> {
        let size = size.min(PACKET_MAX);
        self.handle_timeout(now);
        let gone = self.queue.replace(packet, size, choose)?;
        self.counters.packets_in += 1;
        self.counters.bytes_in += size;
        // A terminal requests capacity for what waits: the share of the replaced packet was
        // requested when that arrived.
        self.sender.arrive(self.now, size.saturating_sub(gone.size));
        let queued = self.queue.bytes();
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(queued);
        drop_packet(&mut self.counters, &mut self.dropped, gone, Cause::Superseded);
        Ok(())
    }

    /// Processes everything that was due by `now`.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now.min(LAST));
        if self.sender.wake() <= self.now {
            self.catch_up();
        }
    }

    /// Processes everything that was due by the current time. A function of its own, since mostly
    /// nothing is due.
    #[inline(never)]
    fn catch_up(&mut self) {
        while self.sender.wake() <= self.now {
            let Some(sent) = self.sender.step(self.queue.bytes()) else { continue };
            self.counters.packets_sent += 1;
            self.counters.bytes_sent += sent.size;
            let fortune = self.flight.draw();
            match self.channel.loses(sent.began, sent.finished, sent.size) {
                Some(cause) => {
                    let lost = Waiting { packet: sent.packet, size: sent.size, since: sent.began };
                    drop_packet(&mut self.counters, &mut self.dropped, lost, cause);
                }
                None => {
                    let twice = self.flight.depart(sent.finished, sent.size, sent.packet, fortune);
                    self.counters.duplicates += u64::from(twice);
                }
            }
            let (mark, mut marks) = (self.mark, self.counters.marks);
            let (counters, dropped) = (&mut self.counters, &mut self.dropped);
            let next = self.queue.take(
                sent.finished,
                |packet| counted(mark, &mut marks, packet),
                |waiting| drop_packet(counters, dropped, waiting, Cause::Aqm),
            );
            self.counters.marks = marks;
            if let Some(next) = next {
                self.sender.begin(sent.finished, next, self.queue.bytes());
            }
        }
    }

    /// The next packet that has left the link by `now`.
    pub fn poll_output(&mut self, now: Instant) -> Option<Arrival<P>> {
        let arrived = self.flight.arrive(now.min(LAST))?;
        self.counters.packets_out += 1;
        self.counters.bytes_out += arrived.size;
        Some(Arrival { packet: arrived.packet, size: arrived.size, due: arrived.due })
    }

    /// Whether [`Link::poll_dropped`] returns a packet.
    pub fn has_dropped(&self) -> bool {
        self.dropped.as_ref().is_some_and(|dropped| !dropped.is_empty())
    }

    /// The next dropped packet, in the order of the drops; none unless the link is
    /// [`Link::keeping_dropped`].
    pub fn poll_dropped(&mut self) -> Option<Dropped<P>> {
        self.dropped.as_mut()?.pop_front()
    }

    /// A moment before which no packet leaves the link unless more enter: the arrival of the first
    /// packet in flight, or the earliest arrival of the one that is being sent. `None` while no
    /// packet inside can move.
    ///
    /// For a caller that does not need the moments in between, at which packets only change their
    /// places inside. Calling then instead of at [`Link::poll_timeout`] changes no output.
    pub fn poll_output_time(&self) -> Option<Instant> {
        let next = self.flight.next_due().min(self.sender.wake() + self.delay_min);
        (next != Instant::NEVER).then_some(next)
    }

    /// When the link must be called next; `None` while no packet inside can move.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = self.sender.wake().min(self.flight.next_due());
        (next != Instant::NEVER).then_some(next)
    }

    /// The counts of packets so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its rate at the current time, without grants on demand; none without a limit.
    pub fn carrier_rate(&mut self) -> Option<Rate> {
        self.sender.carrier_rate(self.now)
    }

    /// The current queue.
    pub fn queue_bytes(&self) -> Bytes {
        self.queue.bytes()
    }

    /// Packets that have entered and have neither left nor been dropped, duplicates included.
    pub fn packets_inside(&self) -> u64 {
        (self.queue.len() + self.flight.len()) as u64 + u64::from(!self.sender.is_idle())
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When a packet is not counted, a limit is exceeded, or packets are out of order.
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

/// Marks a packet if possible, and counts it.
fn counted<P>(mark: fn(&mut P) -> bool, marks: &mut u64, packet: &mut P) -> bool {
    let marked = mark(packet);
    *marks += u64::from(marked);
    marked
}

/// Counts a drop, and keeps the packet where the caller takes them.
fn drop_packet<P>(
    counters: &mut Counters,
    dropped: &mut Option<VecDeque<Dropped<P>>>,
    waiting: Waiting<P>,
    cause: Cause,
) {
    counters.drop(cause);
    if let Some(kept) = dropped {
        kept.push_back(Dropped { packet: waiting.packet, size: waiting.size, cause });
    }
}
