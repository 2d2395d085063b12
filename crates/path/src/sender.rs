//! The sender: sends one packet after the other into the channel, each for the time that its bits
//! take.

use crate::capacity::{Capacity, work};
use crate::queue::Waiting;
use midhop_units::{Bytes, Duration, Instant, Rate};

/// A packet that has been sent into the channel.
#[derive(Debug)]
pub(crate) struct Sent<P> {
    pub(crate) packet: P,
    pub(crate) size: Bytes,
    /// When its first bit was sent.
    pub(crate) began: Instant,
    /// When its last bit was sent.
    pub(crate) finished: Instant,
}

/// The packet that is being sent.
#[derive(Debug, Clone)]
struct Sending<P> {
    packet: P,
    size: Bytes,
    began: Instant,
    /// Work left at `since`.
    left: u64,
    since: Instant,
    /// The rate since then; `None` without limit.
    rate: Option<u64>,
    /// When it is finished, or when the rate may change.
    wake: Instant,
    /// Which of the two `wake` is.
    finishes: bool,
}

/// The sender.
///
/// Invariant: over any time in which it is busy, it does no more work than the rate allows. It does
/// less only by the rounding of the last packet's end to a whole nanosecond.
#[derive(Debug, Clone)]
pub(crate) struct Sender<P> {
    capacity: Capacity,
    sending: Option<Sending<P>>,
    /// Work that was still possible in the nanosecond in which the last packet was finished.
    spare: u64,
    spare_at: Instant,
}

impl<P> Sender<P> {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self { capacity, sending: None, spare: 0, spare_at: Instant::START }
    }

    /// The rate of the carrier at `now`.
    pub(crate) fn carrier_rate(&mut self, now: Instant) -> Option<Rate> {
        self.capacity.carrier_rate(now)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sending.is_none()
    }

    /// When something happens next; [`Instant::NEVER`] while idle, or while no packet can ever
    /// move.
    pub(crate) fn wake(&self) -> Instant {
        self.sending.as_ref().map_or(Instant::NEVER, |sending| sending.wake)
    }

    /// Counts a packet that arrives at the link, whether it waits or is sent at once.
    pub(crate) fn arrive(&mut self, now: Instant, size: Bytes) {
        let idle = self.is_idle();
        self.capacity.arrive(now, size, idle);
    }

    /// Begins to send a packet while `queued` bytes wait behind it.
    ///
    /// # Panics
    /// When a packet is being sent.
    pub(crate) fn begin(&mut self, now: Instant, waiting: Waiting<P>, queued: Bytes) {
        assert!(self.is_idle(), "one packet at a time");
        let spare = if self.spare_at == now { self.spare } else { 0 };
        let work = work(waiting.size);
        self.spare = spare.saturating_sub(work);
        let sending = Sending {
            packet: waiting.packet,
            size: waiting.size,
            began: now,
            left: work.saturating_sub(spare),
            since: now,
            rate: None,
            wake: now,
            finishes: false,
        };
        self.sending = Some(sending);
        self.plan_ahead(now, queued);
    }

    /// Processes what is due at [`Sender::wake`]: returns the packet that is finished then, or
    /// continues at the new rate. `queued` bytes wait behind the packet.
    pub(crate) fn step(&mut self, queued: Bytes) -> Option<Sent<P>> {
        let sending = self.sending.as_mut()?;
        let now = sending.wake;
        let elapsed = (now - sending.since).as_ns();
        let could = sending.rate.map_or(sending.left, |rate| rate.saturating_mul(elapsed));
        self.capacity.spend(could);
        if sending.finishes {
            // The rest of this nanosecond is used for the next packet, even when the rate changes.
            self.spare = if elapsed > 0 { could - sending.left } else { self.spare };
            self.spare_at = now;
            let Sending { packet, size, began, .. } = self.sending.take()?;
            return Some(Sent { packet, size, began, finished: now });
        }
        sending.left = sending.left.saturating_sub(could);
        sending.since = now;
        self.plan_ahead(now, queued);
        None
    }

    fn plan_ahead(&mut self, now: Instant, queued: Bytes) {
        let Some(sending) = &mut self.sending else { return };
        let left = sending.left;
        let segment = self.capacity.at(now, || left.saturating_add(work(queued)));
        sending.rate = segment.rate;
        let finished = match segment.rate {
            _ if left == 0 => now,
            None => now,
            Some(0) => Instant::NEVER,
            Some(rate) => now + Duration::from_ns(left.div_ceil(rate)),
        };
        sending.finishes = finished <= segment.until && finished != Instant::NEVER;
        sending.wake = finished.min(segment.until);
    }

    /// # Panics
    /// When the time of a packet that is not finished does not advance.
    pub(crate) fn check_invariants(&self) {
        if let Some(sending) = &self.sending {
            assert!(sending.finishes || sending.wake > sending.since, "a step that takes no time");
            assert!(sending.left <= work(sending.size), "more left than there was");
        }
    }
}
