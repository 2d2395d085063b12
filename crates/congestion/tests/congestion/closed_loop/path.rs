//! Flows over one link, in virtual time: a sender that does what the contract requires of a transport, a
//! bottleneck with a queue, and a receiver that acknowledges each segment selectively.
//!
//! Lost segments are sent anew as new data, so that delivered data is goodput. A segment is lost when
//! three segments sent later have arrived; the link keeps the order. A recovery ends when everything that was
//! sent before it has arrived, or the data sent in place of its losses has.

use super::driven::Driven;
use midhop_congestion::{
    Ack, Established, Handover, Loss, LostSegment, Phase, RateSample, Restart, Rto,
};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::VecDeque;

pub const MSS: u64 = 1448;
const REORDERING: u64 = 3;

/// The bottleneck, and the path before and after it.
#[derive(Debug, Clone)]
pub struct Link {
    pub rate: Rate,
    /// Round-trip time without a queue.
    pub rtt: Duration,
    pub queue: Bytes,
    /// Of 10,000 segments.
    pub loss: u64,
    /// Every nth segment is lost.
    pub loss_every: Option<u64>,
    carried: u64,
    /// A queue longer than this marks instead of dropping.
    pub mark_above: Option<Bytes>,
    /// The rate of a policer before the queue, and the size of its bucket.
    pub policer: Option<(Rate, Bytes)>,
    /// When the policer's bucket would be full again.
    full_again: Instant,
    /// The receiver's host has no processor for the second time at the beginning of every first one.
    pub stalls: Option<(Duration, Duration)>,
    /// The sender's host has none in the same way. It makes up for [`LATE_MAX`] each time.
    pub late: Option<(Duration, Duration)>,
    random: u64,
    busy_until: Instant,
    pub queue_max: Bytes,
    pub dropped: u64,
}

impl Link {
    pub fn new(rate: Rate, rtt: Duration) -> Self {
        let bdp = rate.bytes_in(rtt);
        Self {
            rate,
            rtt,
            queue: Bytes::new(2 * bdp.get()),
            loss: 0,
            loss_every: None,
            carried: 0,
            mark_above: None,
            policer: None,
            full_again: Instant::START,
            stalls: None,
            late: None,
            random: 0x2545_f491_4f6c_dd1d,
            busy_until: Instant::START,
            queue_max: Bytes::ZERO,
            dropped: 0,
        }
    }

    pub fn bdp(&self) -> u64 {
        self.rate.bytes_in(self.rtt).get()
    }

    pub fn queued(&self, now: Instant) -> Bytes {
        self.rate.bytes_in(self.busy_until.saturating_since(now))
    }

    /// When a segment's acknowledgement arrives, and whether it was marked; `None` if the segment is lost.
    fn carry(&mut self, now: Instant, size: u64) -> Option<(Instant, bool)> {
        if let Some((rate, bucket)) = self.policer {
            let full_again = self.full_again.max(now) + rate.time_for(Bytes::new(size));
            if rate.bytes_in(full_again.saturating_since(now)) > bucket {
                self.dropped += 1;
                return None;
            }
            self.full_again = full_again;
        }
        let queued = self.queued(now);
        if queued.get() + size > self.queue.get() {
            self.dropped += 1;
            return None;
        }
        self.queue_max = self.queue_max.max(queued);
        self.busy_until = self.busy_until.max(now) + self.rate.time_for(Bytes::new(size));
        self.carried += 1;
        if self.loss_every.is_some_and(|every| self.carried.is_multiple_of(every)) {
            return None;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if self.random % 10_000 < self.loss {
            return None;
        }
        let marked = self.mark_above.is_some_and(|above| queued > above);
        let arrives = self.busy_until + self.rtt;
        let stalled = self.stalls.map_or(Duration::ZERO, |(every, of)| {
            of.saturating_sub(Duration::from_ns(arrives.as_ns() % every.as_ns()))
        });
        Some((arrives + stalled, marked))
    }
}

/// How much unused time a tunnel's sender makes up for (`midhop_tunnel::pacer::LATE_MAX`).
pub const LATE_MAX: Duration = Duration::from_ms(50);

/// The first moment from `at` on at which a host runs that has no processor for the second time at the beginning of
/// every first one.
fn after_stall(at: Instant, (every, of): (Duration, Duration)) -> Instant {
    at + of.saturating_sub(Duration::from_ns(at.as_ns() % every.as_ns()))
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    number: u64,
    sent: Instant,
    arrives: Option<(Instant, bool)>,
    delivered: u64,
    delivered_time: Instant,
    first_send_time: Instant,
    app_limited: bool,
    tx_in_flight: u64,
    lost: u64,
    done: bool,
}

/// One connection with endless data, or as much as [`Flow::backlog`] holds.
#[derive(Debug)]
pub struct Flow<C> {
    pub control: C,
    segments: VecDeque<Segment>,
    acks: VecDeque<u64>,
    next: u64,
    in_flight: u64,
    pub delivered: u64,
    lost: u64,
    delivered_time: Instant,
    first_send_time: Instant,
    app_limited: u64,
    cwnd_limited: bool,
    round: u64,
    round_end: u64,
    next_send: Instant,
    phase: Phase,
    recovery_end: u64,
    repaired_by: u64,
    last_lost: u64,
    timer_start: Instant,
    min_rtt: Duration,
    pub rtt: Duration,
    /// The data that the application has left to send; `None`: endless.
    pub backlog: Option<u64>,
}

impl<C: Driven> Flow<C> {
    pub fn new(control: C, now: Instant, rtt: Duration) -> Self {
        let mut control = control;
        control.on_established(&Established { now, rtt: Some(rtt) });
        Self {
            control,
            segments: VecDeque::new(),
            acks: VecDeque::new(),
            next: 0,
            in_flight: 0,
            delivered: 0,
            lost: 0,
            delivered_time: now,
            first_send_time: now,
            app_limited: 0,
            cwnd_limited: false,
            round: 0,
            round_end: 0,
            next_send: now,
            phase: Phase::Open,
            recovery_end: 0,
            repaired_by: 0,
            last_lost: u64::MAX - 1,
            timer_start: now,
            min_rtt: Duration::MAX,
            rtt,
            backlog: None,
        }
    }

    fn may_send(&self) -> bool {
        self.in_flight + MSS <= self.control.window().get()
            && self.backlog.is_none_or(|backlog| backlog >= MSS)
    }

    fn next_event(&self, now: Instant, late: Option<(Duration, Duration)>) -> Instant {
        let ack = self.acks.front().and_then(|&number| self.segment(number).arrives);
        let mut event = ack.map_or(Instant::NEVER, |(at, _)| at);
        if self.may_send() {
            event = event
                .min(late.map_or(self.next_send, |it| after_stall(self.next_send.max(now), it)));
        }
        if self.in_flight > 0 {
            event = event.min(self.timeout());
        }
        event
    }

    fn timeout(&self) -> Instant {
        self.timer_start + Duration::from_ms(1000) + self.rtt * 2
    }

    fn segment(&self, number: u64) -> &Segment {
        &self.segments[(number - self.segments[0].number) as usize]
    }

    fn step(&mut self, now: Instant, link: &mut Link) {
        while let Some(&number) = self.acks.front()
            && self.segment(number).arrives.is_some_and(|(at, _)| at <= now)
        {
            self.acks.pop_front();
            self.acknowledge(now, number);
        }
        if self.in_flight > 0 && self.timeout() <= now {
            self.time_out(now);
        }
        let runs = link.late.is_none_or(|late| after_stall(now, late) == now);
        while runs && self.may_send() && self.next_send <= now {
            if link.late.is_some() && now.saturating_since(self.next_send) > LATE_MAX {
                self.next_send = now - LATE_MAX;
            }
            self.send(now, link);
        }
        if self.backlog.is_some_and(|backlog| backlog < MSS)
            && self.in_flight + MSS <= self.control.window().get()
        {
            self.app_limited = (self.delivered + self.in_flight).max(1);
        }
        self.cwnd_limited |= self.in_flight + 2 * MSS > self.control.window().get();
    }

    fn send(&mut self, now: Instant, link: &mut Link) {
        if self.in_flight == 0 {
            self.control.on_restart(&Restart { now, app_limited: self.app_limited > 0 });
            self.first_send_time = now;
            self.delivered_time = now;
            self.timer_start = now;
        }
        self.in_flight += MSS;
        if let Some(backlog) = &mut self.backlog {
            *backlog -= MSS;
        }
        let arrives = link.carry(now, MSS);
        self.segments.push_back(Segment {
            number: self.next,
            sent: now,
            arrives,
            delivered: self.delivered,
            delivered_time: self.delivered_time,
            first_send_time: self.first_send_time,
            app_limited: self.app_limited > 0,
            tx_in_flight: self.in_flight,
            lost: self.lost,
            done: false,
        });
        if arrives.is_some() {
            self.acks.push_back(self.next);
        }
        self.next += 1;
        let gap = self.control.pacing_rate().map_or(Duration::ZERO, |rate| {
            assert!(rate > Rate::ZERO, "a rate of nothing never sends");
            rate.time_for(Bytes::new(MSS))
        });
        let due = if link.late.is_some() { self.next_send } else { self.next_send.max(now) };
        self.next_send = due + gap;
    }

    fn acknowledge(&mut self, now: Instant, number: u64) {
        let prior_in_flight = self.in_flight;
        let first = self.segments[0].number;
        let index = (number - first) as usize;
        self.segments[index].done = true;
        let segment = self.segments[index];
        self.timer_start = now;
        self.in_flight -= MSS;
        self.delivered += MSS;
        self.delivered_time = now;
        self.first_send_time = segment.sent;
        if self.app_limited > 0 && self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let rtt = now - segment.sent;
        self.min_rtt = self.min_rtt.min(rtt);
        self.rtt = Duration::from_ns(self.rtt.as_ns() / 8 * 7 + rtt.as_ns() / 8);
        let lost_before = self.lost;
        for earlier in 0..index {
            if number - self.segments[earlier].number >= REORDERING {
                self.lose(now, earlier);
            }
        }
        while self.segments.front().is_some_and(|segment| segment.done) {
            self.segments.pop_front();
        }
        if self.phase != Phase::Open && number >= self.recovery_end.max(self.repaired_by) {
            self.phase = Phase::Open;
        }
        let lost = self.lost - lost_before;
        if lost > 0 && self.phase == Phase::Open {
            self.phase = Phase::Recovery;
            self.recovery_end = self.next;
            let (lost, in_flight) = (Bytes::new(lost), Bytes::new(prior_in_flight));
            self.control.on_loss(&Loss { now, lost, in_flight });
        }
        let round_starts = segment.delivered >= self.round_end;
        if round_starts {
            self.round += 1;
            self.round_end = self.delivered;
        }
        let send_elapsed = segment.sent - segment.first_send_time;
        let interval = send_elapsed.max(now - segment.delivered_time);
        let delivered = Bytes::new(self.delivered - segment.delivered);
        let marked = segment.arrives.is_some_and(|(_, marked)| marked);
        self.control.on_ack(&Ack {
            now,
            acked: Bytes::new(MSS),
            lost: Bytes::new(lost),
            rtt: Some(rtt),
            delivery_rate: (interval >= self.min_rtt).then(|| Rate::of(delivered, interval)),
            in_flight: Bytes::new(self.in_flight),
            round: self.round,
            app_limited: self.app_limited > 0,
            phase: self.phase,
            delivered: Bytes::new(self.delivered),
            cwnd_limited: self.cwnd_limited,
            marked: Bytes::new(if marked { MSS } else { 0 }),
            sample: Some(RateSample {
                delivered,
                prior_delivered: Bytes::new(segment.delivered),
                interval,
                is_app_limited: segment.app_limited,
                tx_in_flight: Bytes::new(segment.tx_in_flight),
                lost: Bytes::new(self.lost - segment.lost),
                prior_in_flight: Bytes::new(prior_in_flight),
                sent: segment.sent,
                departed: segment.sent,
            }),
        });
        if round_starts {
            self.cwnd_limited = false;
        }
    }

    fn lose(&mut self, now: Instant, index: usize) {
        let segment = &mut self.segments[index];
        if segment.done {
            return;
        }
        segment.done = true;
        let segment = *segment;
        self.lost += MSS;
        self.in_flight -= MSS;
        if let Some(backlog) = &mut self.backlog {
            *backlog += MSS;
        }
        self.control.on_lost_segment(&LostSegment {
            now,
            size: Bytes::new(MSS),
            sent: segment.sent,
            tx_in_flight: Bytes::new(segment.tx_in_flight),
            lost: Bytes::new(self.lost - segment.lost),
            is_app_limited: segment.app_limited,
            contiguous: segment.number == self.last_lost.wrapping_add(1),
        });
        self.last_lost = segment.number;
        if self.phase == Phase::Open || segment.number < self.recovery_end {
            self.repaired_by = self.next;
        }
    }

    fn time_out(&mut self, now: Instant) {
        let in_flight = Bytes::new(self.in_flight);
        for index in 0..self.segments.len() {
            self.lose(now, index);
        }
        self.segments.clear();
        self.acks.clear();
        self.phase = Phase::Loss;
        self.recovery_end = self.next;
        self.timer_start = now;
        self.control.on_rto(&Rto { now, in_flight });
    }
}

/// Flows and the link they share.
#[derive(Debug)]
pub struct Path<C> {
    pub now: Instant,
    pub link: Link,
    pub flows: Vec<Flow<C>>,
}

impl<C: Driven> Path<C> {
    pub fn new(link: Link) -> Self {
        Self { now: Instant::START, link, flows: Vec::new() }
    }

    pub fn one(link: Link, control: C) -> Self {
        let mut path = Self::new(link);
        path.join(control);
        path
    }

    pub fn join(&mut self, control: C) {
        self.flows.push(Flow::new(control, self.now, self.link.rtt));
    }

    /// Runs for `span`, and calls `look` after every event.
    pub fn watch(&mut self, span: Duration, mut look: impl FnMut(&Self)) {
        let end = self.now + span;
        loop {
            let next = self
                .flows
                .iter()
                .map(|flow| flow.next_event(self.now, self.link.late))
                .min()
                .unwrap_or(Instant::NEVER);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            for flow in &mut self.flows {
                flow.step(self.now, &mut self.link);
            }
            look(self);
        }
        self.now = end;
    }

    pub fn run(&mut self, span: Duration) {
        self.watch(span, |_| {});
    }

    /// The states of the first flow over `span`, in order, and when each began, in milliseconds.
    pub fn walk<S: PartialEq>(&mut self, span: Duration, doing: impl Fn(&C) -> S) -> Vec<(S, u64)> {
        let mut walk = vec![(doing(&self.flows[0].control), self.now.as_ns() / 1_000_000)];
        self.watch(span, |path| {
            let now = doing(&path.flows[0].control);
            if walk.last().is_some_and(|(last, _)| *last != now) {
                walk.push((now, path.now.as_ns() / 1_000_000));
            }
        });
        walk
    }

    /// When the first flow has found nine tenths of the link's rate, in milliseconds, and how often ten segments must
    /// double until they fill the path.
    pub fn reaches_nine_tenths(&mut self, found: impl Fn(&C) -> Rate) -> (u64, u64) {
        let mut reached = None;
        self.watch(self.link.rtt * 20, |path| {
            let rate = found(&path.flows[0].control);
            if rate.bits_per_s() * 10 >= path.link.rate.bits_per_s() * 9 {
                reached = reached.or(Some(path.now.as_ns() / 1_000_000));
            }
        });
        let doublings = (self.link.bdp() as f64 / 14_480.0).log2().ceil() as u64;
        (reached.expect("the rate is found"), doublings)
    }

    /// What share of the link's rate all flows together deliver over `span`.
    pub fn share(&mut self, span: Duration) -> f64 {
        let before: u64 = self.flows.iter().map(|flow| flow.delivered).sum();
        self.run(span);
        let after: u64 = self.flows.iter().map(|flow| flow.delivered).sum();
        (after - before) as f64 / self.link.rate.bytes_in(span).get() as f64
    }

    /// The largest queue since the last call, in products of the link's rate and round-trip
    /// time.
    pub fn queue(&mut self) -> f64 {
        let queue = std::mem::take(&mut self.link.queue_max);
        queue.get() as f64 / self.link.bdp() as f64
    }

    /// The path changes, and every flow receives `hint`, if there is one.
    pub fn hand_over(&mut self, rate: Rate, rtt: Duration, hint: Option<Handover>) {
        self.link.rate = rate;
        self.link.rtt = rtt;
        for flow in &mut self.flows {
            if let Some(hint) = hint {
                flow.control.on_handover(&Handover { now: self.now, ..hint });
            }
        }
    }
}
