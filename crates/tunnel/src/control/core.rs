//! Translates quinn's reports into the events of a congestion controller.

use super::flights::{Flights, Snapshot};
use super::pace::{Pace, Progress};
use midhop_congestion::{
    Ack, Controller, Established, Handover, Loss, LostSegment, Phase, RateSample, Restart, Rto,
};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// A flight no larger than this may be an acknowledgement alone, which is never acknowledged; quinn does not report
/// which. It does not count as in flight. Unit: bytes.
const LIGHT_MAX: u64 = 400;
/// The least window (RFC 9002 §7.2). Unit: segments.
const WINDOW_MIN: u64 = 2;
/// A window counts as used up when less is left than quinn takes in one batch. Unit: segments.
const LIMITED_WITHIN: u64 = 10;
/// Round-trip times over which a standing queue is averaged.
const QUEUEING_MEMORY: u64 = 16;

/// An acknowledged packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acked {
    pub sent: std::time::Instant,
    pub bytes: u64,
    pub app_limited: bool,
    /// QUIC's smoothed round-trip time before this acknowledgement.
    pub smoothed: std::time::Duration,
}

/// Packets are lost; with zero bytes, a packet was marked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub newest_sent: std::time::Instant,
    pub bytes: u64,
    pub persistent: bool,
}

/// What the packets of one acknowledgement have in common.
#[derive(Debug, Default)]
struct Batch {
    bytes: u64,
    newest: Option<(Instant, Option<Snapshot>)>,
    /// The part of the newest one's flight that is no longer in flight. Unit: 1/65536.
    done_q16: u64,
    app_limited: bool,
    rtt: Option<Duration>,
}

/// QUIC's smoothing of round-trip times (RFC 9002 §5.3), undone.
///
/// quinn subtracts the peer's delay from a sample before it smooths it, and does not report that delay. Algorithms
/// that end slow start when the round-trip time grows must not see the delay, because this end requests it on
/// purpose. So the sample is computed from the change of the average. The average shows an acknowledgement only
/// when the next one arrives.
#[derive(Debug, Default)]
struct Smoothed {
    before: Option<Duration>,
    /// Samples that went into the average since it was last read: none or one.
    sampled: bool,
    any: bool,
}

impl Smoothed {
    /// The average is now `smoothed`. Returns the sample that changed it, if there was one.
    fn undo(&mut self, smoothed: Duration) -> Option<Duration> {
        let before = self.before.replace(smoothed);
        if !std::mem::take(&mut self.sampled) {
            return None;
        }
        // The first sample sets the average.
        let first = !std::mem::replace(&mut self.any, true);
        let sample = if first { smoothed } else { (smoothed * 8).saturating_sub(before? * 7) };
        Some(sample.max(Duration::from_ns(1)))
    }
}

/// How far the window was used in this round.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    limited: bool,
    most: u64,
}

/// An algorithm, and the state from which its events are made.
#[derive(Debug)]
pub(super) struct Core {
    control: Controller,
    /// Zero of the algorithm's clock.
    epoch: std::time::Instant,
    segment: u64,
    flights: Flights,
    batch: Batch,
    in_flight: u64,
    /// Sent in flights too small to be counted, since quinn last reported what is in flight.
    light: u64,
    newest_acked: Option<Instant>,
    /// The smallest round-trip time, the peer's delay included.
    rtt_min: Option<Duration>,
    /// By how much recent round-trip times exceed it.
    queueing: Duration,
    smoothed: Smoothed,
    phase: Phase,
    recovery_started: Option<Instant>,
    /// Lost; reported with the next acknowledgement.
    lost_since: u64,
    usage: Usage,
    reduced: bool,
    /// Acknowledgements received, and those of them that found the connection with nothing more to send.
    acks: (u64, u64),
}

impl Core {
    pub fn new(control: Controller, segment: u64, epoch: std::time::Instant) -> Self {
        Self {
            control,
            epoch,
            segment: segment.max(1),
            flights: Flights::default(),
            batch: Batch::default(),
            in_flight: 0,
            light: 0,
            newest_acked: None,
            rtt_min: None,
            queueing: Duration::ZERO,
            smoothed: Smoothed::default(),
            phase: Phase::Open,
            recovery_started: None,
            lost_since: 0,
            usage: Usage::default(),
            reduced: false,
            acks: (0, 0),
        }
    }

    /// What was delivered and acknowledged so far.
    pub fn progress(&self) -> Progress {
        let (acks, idle) = self.acks;
        Progress { delivered: Bytes::new(self.flights.delivered), acks, idle }
    }

    pub fn publish(&self, pace: &Pace) {
        pace.publish(&self.control, self.segment);
        pace.queues(self.queueing);
    }

    /// How much may be in flight. Unit: bytes.
    pub fn window(&self) -> u64 {
        self.control.window().get().max(WINDOW_MIN * self.segment)
    }

    /// What is in flight. Unit: bytes.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether so many datagrams may leave before the window is checked again.
    pub fn has_room_for(&self, datagrams: u64) -> bool {
        // Datagrams may be larger than segments, by less than a quarter.
        let wanted = datagrams * self.segment * 5 / 4;
        self.in_flight.saturating_add(self.light).saturating_add(wanted) <= self.window()
    }

    pub fn share(&mut self, rate: Rate) {
        self.control.on_share(rate);
    }

    pub fn reported(&mut self, rate: Rate) {
        self.control.on_rate(rate);
    }

    pub fn hand_over(
        &mut self,
        now: std::time::Instant,
        rtt: Option<Duration>,
        rate: Option<Rate>,
    ) {
        let now = self.time(now);
        self.rtt_min = rtt;
        self.queueing = Duration::ZERO;
        self.control.on_handover(&Handover { now, rtt, rate });
    }

    /// Continues with another algorithm, which is informed of what is known of the path.
    pub fn turn(&mut self, now: std::time::Instant, control: Controller, segment: u64) {
        self.control = control;
        self.segment = segment.max(1);
        self.reduced = false;
        if let Some(rtt) = self.rtt_min {
            self.control.on_established(&Established { now: self.time(now), rtt: Some(rtt) });
        }
    }

    pub fn on_sent(&mut self, now: std::time::Instant, bytes: u64) {
        if bytes <= LIGHT_MAX {
            self.light = self.light.saturating_add(bytes);
            return;
        }
        let now = self.time(now);
        self.flights.on_sent(now, self.in_flight, bytes);
        if self.in_flight == 0 {
            self.control.on_restart(&Restart { now, app_limited: true });
        }
        self.in_flight = self.in_flight.saturating_add(bytes);
        self.usage.most = self.usage.most.max(self.in_flight);
        let nearly = self.in_flight.saturating_add(LIMITED_WITHIN * self.segment);
        self.usage.limited |= nearly > self.window();
    }

    /// Handles one packet of an acknowledgement. [`on_end_of_acks`](Self::on_end_of_acks) follows.
    pub fn on_acked(&mut self, acked: &Acked) {
        let sent = self.time(acked.sent);
        let snapshot = self.flights.on_acked(sent, acked.bytes);
        let batch = &mut self.batch;
        if batch.newest.is_none() {
            batch.rtt = self.smoothed.undo(acked.smoothed.into());
        }
        batch.bytes = batch.bytes.saturating_add(acked.bytes);
        batch.app_limited |= acked.app_limited;
        if batch.newest.is_none_or(|(newest, _)| sent >= newest) {
            batch.newest = Some((sent, snapshot.map(|(snapshot, _)| snapshot)));
            batch.done_q16 = snapshot.map_or(0, |(_, done_q16)| done_q16);
        }
    }

    /// When QUIC made the newest of the packets acknowledged since the last [`on_end_of_acks`](Self::on_end_of_acks),
    /// and which part of the batch made at that time is no longer in flight. Unit: 1/65536.
    pub fn newest_made(&self) -> Option<(std::time::Instant, u64)> {
        let (newest, _) = self.batch.newest?;
        Some((self.epoch + newest.saturating_since(Instant::START).into(), self.batch.done_q16))
    }

    /// All packets of an acknowledgement were reported; the newest left `waited` after it was made.
    pub fn on_end_of_acks(
        &mut self,
        now: std::time::Instant,
        in_flight: u64,
        app_limited: bool,
        waited: Duration,
    ) {
        self.acks.0 += 1;
        self.acks.1 += u64::from(app_limited);
        let now = self.time(now);
        let batch = std::mem::take(&mut self.batch);
        let prior_in_flight = std::mem::replace(&mut self.in_flight, in_flight);
        self.light = 0;
        let Some((newest, snapshot)) = batch.newest else { return };
        let measured = self.measure(now, newest);
        self.smoothed.sampled = measured.is_some();
        let rtt = batch.rtt.or(measured);
        let sample = self.flights.on_delivered(now, batch.bytes, snapshot, self.rtt_min);
        if batch.app_limited || app_limited {
            self.flights.on_app_limited(in_flight);
        }
        // RFC 9002 §7.3.2: a packet sent during the recovery has been acknowledged.
        if self.recovery_started.is_none_or(|started| newest > started) {
            self.phase = Phase::Open;
        }
        self.control.on_ack(&Ack {
            now,
            acked: Bytes::new(batch.bytes),
            lost: Bytes::new(std::mem::take(&mut self.lost_since)),
            rtt,
            delivery_rate: sample.and_then(|sample| sample.rate),
            in_flight: Bytes::new(in_flight),
            round: self.flights.round,
            app_limited: !self.is_window_limited(),
            phase: self.phase,
            delivered: Bytes::new(self.flights.delivered),
            cwnd_limited: self.usage.limited,
            marked: Bytes::ZERO,
            sample: sample.map(|sample| RateSample {
                delivered: Bytes::new(sample.delivered),
                prior_delivered: Bytes::new(sample.snapshot.delivered),
                interval: sample.interval,
                is_app_limited: sample.snapshot.app_limited,
                tx_in_flight: Bytes::new(sample.snapshot.in_flight),
                lost: Bytes::new(self.flights.lost.saturating_sub(sample.snapshot.lost)),
                prior_in_flight: Bytes::new(prior_in_flight),
                sent: sample.snapshot.sent,
                departed: sample.snapshot.sent + waited,
            }),
        });
        if self.flights.round_started {
            self.usage = Usage { limited: false, most: in_flight };
        }
    }

    pub fn on_lost(&mut self, now: std::time::Instant, lost: &Lost) {
        let now = self.time(now);
        let newest_sent = self.time(lost.newest_sent);
        let prior_in_flight = self.in_flight;
        self.in_flight = self.in_flight.saturating_sub(lost.bytes);
        self.lost_since = self.lost_since.saturating_add(lost.bytes);
        let mut first: Option<Snapshot> = None;
        let mut last: Option<Snapshot> = None;
        let control = &mut self.control;
        self.flights.on_lost(newest_sent, lost.bytes, self.segment, |piece, lost_in_all| {
            let snapshot = piece.snapshot;
            control.on_lost_segment(&LostSegment {
                now,
                size: Bytes::new(piece.size),
                sent: snapshot.sent,
                tx_in_flight: Bytes::new(snapshot.in_flight),
                lost: Bytes::new(lost_in_all.saturating_sub(snapshot.lost)),
                is_app_limited: snapshot.app_limited,
                // Packets of one flight count as contiguous: quinn reports no more.
                contiguous: last == Some(snapshot),
            });
            first.get_or_insert(snapshot);
            last = Some(snapshot);
        });
        if lost.persistent {
            self.begin(Phase::Loss, now);
            self.control.on_rto(&Rto { now, in_flight: Bytes::new(prior_in_flight) });
        } else if self.recovery_started.is_none_or(|started| newest_sent > started) {
            self.begin(Phase::Recovery, now);
            let in_flight = first.map_or(prior_in_flight, |snapshot| snapshot.in_flight);
            self.control.on_loss(&Loss {
                now,
                lost: Bytes::new(lost.bytes),
                in_flight: Bytes::new(in_flight),
            });
        }
    }

    fn begin(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.recovery_started = Some(now);
        self.reduced = true;
    }

    /// The round-trip time, if the newest acknowledged packet is newer than all before. An older packet has waited
    /// for an acknowledgement that was lost.
    fn measure(&mut self, now: Instant, newest: Instant) -> Option<Duration> {
        if self.newest_acked.is_some_and(|known| newest <= known) {
            return None;
        }
        self.newest_acked = Some(newest);
        let rtt = now.saturating_since(newest).max(Duration::from_ns(1));
        if self.rtt_min.is_none() && self.flights.delivered == 0 {
            self.control.on_established(&Established { now, rtt: Some(rtt) });
        }
        let min = self.rtt_min.map_or(rtt, |min| min.min(rtt));
        self.rtt_min = Some(min);
        self.queueing = (self.queueing * (QUEUEING_MEMORY - 1) + (rtt - min)) / QUEUEING_MEMORY;
        Some(rtt)
    }

    /// Whether the window limits the sender; otherwise it must not grow. Before the first reduction it is enough
    /// that half of the window is used, as in Linux.
    fn is_window_limited(&self) -> bool {
        self.usage.limited || (!self.reduced && self.window() < 2 * self.usage.most)
    }

    fn time(&self, at: std::time::Instant) -> Instant {
        Instant::START + at.saturating_duration_since(self.epoch).into()
    }
}

#[cfg(test)]
mod tests;
