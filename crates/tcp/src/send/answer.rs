//! Processes an acknowledgement: what has arrived, what is lost, which repairs are outstanding.
//!
//! Source: RFC 6675 §5, RFC 6582 §3.2, RFC 8985 §6–7, RFC 5682 §2–3, RFC 3522, RFC 3708.

use midhop_congestion::{Ack, Controller, Loss, LostSegment, RateSample, Spurious};
use midhop_units::{Bytes, Duration, Instant};

use super::{
    Forced, Found, Mode, Sampler, Sender,
    recovery::Pipe,
    sent::{Delivery, Sent},
};
use crate::{ranges::Span, settings::Settings};

/// An acknowledgement, in positions of the sequence space. It acknowledges only sent data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acknowledgment<'a> {
    pub una: u64,
    /// SACK blocks above `una`, ascending.
    pub blocks: &'a [Span],
    /// The receiver had something twice (RFC 2883).
    pub duplicate: Option<Span>,
    /// The right edge of the window.
    pub edge: u64,
    /// The timestamp it echoes, and how long ago that was.
    pub echo: Option<(u32, Duration)>,
    /// ECN echo.
    pub marked: bool,
    /// Whether it carries data.
    pub carries_data: bool,
}

impl Sender {
    /// Processes an acknowledgement.
    pub fn on_ack(&mut self, now: Instant, ack: &Acknowledgment<'_>, settings: &Settings) {
        if self.is_no_news(ack) {
            self.expiries = 0;
            self.rack.on_reached(self.una, None);
            self.note_phase(now);
            return;
        }
        let before = Before {
            una: self.una,
            outstanding: self.board.len(),
            sacked: self.board.sacked_segments(),
            in_flight: self.pipe(),
        };
        let window_changed = self.take_window(ack);
        let mut delivery = Delivery::default();
        self.deliver(ack, &mut delivery);
        let advanced = self.una > before.una;
        let duplicate = !advanced
            && !ack.carries_data
            && !window_changed
            && before.outstanding > 0
            && delivery.bytes == 0;
        // Data that duplicates have reported before, and this covers.
        let mut counted = Counted::default();
        if !self.sack {
            counted = self.count_duplicates(duplicate, advanced, &delivery);
        }
        if let Some(span) = ack.duplicate {
            self.counters.duplicates += 1;
            self.recovery.undo.on_duplicate();
            if span.end <= self.nxt {
                self.rack.on_duplicate(self.una, self.nxt);
            }
        }
        if advanced || delivery.bytes > 0 {
            self.expiries = 0;
        }
        self.widen_restart(delivery.bytes);
        let rtt = self.measure(now, ack, &delivery);
        let newest = delivery.newest.map(|sent| (sent.sent_at, sent.rate()));
        let sample = if delivery.bytes > 0 {
            self.sampler.on_delivery(now, delivery.bytes, newest, self.rtt.minimum())
        } else {
            None
        };
        self.answer_probe(now, ack, duplicate);

        let found_before = self.found.bytes;
        self.note_arrivals(now, ack, &delivery);
        if !self.board.is_empty() {
            self.detect(now, settings);
        }
        let newly_lost = self.found.bytes - found_before;
        let begun_before = self.counters.recoveries;
        self.follow_repairs(now, ack, settings, &delivery, advanced);
        self.begin_if_lost(now, settings);
        if ack.marked {
            self.begin_reduction(now, settings);
        }
        if let Some(prr) = &mut self.recovery.prr
            && begun_before != self.counters.recoveries
        {
            // RecoverFS (RFC 9937 §6): data outstanding and not yet selectively acknowledged.
            let outstanding = u32::try_from(before.outstanding).unwrap_or(u32::MAX);
            prr.from = outstanding.saturating_sub(before.sacked).max(1);
        }
        let arrived = self.report_duplicates(duplicate);
        if delivery.bytes > 0 || arrived > 0 {
            let reported = u64::from(counted.reported) * u64::from(self.mss);
            self.control.on_ack(&Ack {
                now,
                acked: Bytes::new(delivery.bytes.saturating_sub(reported) + arrived),
                lost: Bytes::new(newly_lost),
                rtt,
                delivery_rate: sample.and_then(|sample| sample.rate),
                in_flight: Bytes::new(self.pipe()),
                round: self.sampler.round,
                app_limited: !self.is_window_limited(),
                phase: self.recovery.phase(),
                delivered: Bytes::new(self.sampler.delivered),
                cwnd_limited: self.usage.limited,
                marked: Bytes::new(if ack.marked { delivery.bytes } else { 0 }),
                sample: sample.map(|sample| RateSample {
                    delivered: Bytes::new(sample.delivered),
                    prior_delivered: Bytes::new(sample.snapshot.delivered),
                    interval: sample.interval,
                    is_app_limited: sample.snapshot.app_limited,
                    tx_in_flight: Bytes::new(sample.snapshot.in_flight.into()),
                    lost: Bytes::new(self.sampler.lost - sample.snapshot.lost),
                    prior_in_flight: Bytes::new(before.in_flight),
                    sent: sample.sent,
                    departed: sample.sent,
                }),
            });
        }
        let delivered = if self.sack {
            delivery.segments
        } else {
            // RFC 9937 §5, DeliveredData: without the data that the duplicates stood for.
            (delivery.segments - counted.segments).max(u32::from(duplicate))
        };
        self.reduce(delivered, advanced && newly_lost == 0);
        if advanced {
            self.rtt.backoff = 0;
            self.arm(now, settings);
            if self.board.is_empty() && self.nxt == self.stream.end() {
                self.board.release();
            }
        } else if delivery.bytes > 0 && self.board.sacked_segments() > 0 {
            self.arm(now, settings);
        }
        self.note_phase(now);
    }

    /// Whether an acknowledgement reports nothing new to a sender that has nothing outstanding and
    /// repairs nothing. This is every segment that the receiver of a download gets.
    fn is_no_news(&self, ack: &Acknowledgment<'_>) -> bool {
        self.board.is_empty()
            && ack.una == self.una
            && ack.edge == self.edge
            && ack.blocks.is_empty()
            && ack.duplicate.is_none()
            && !ack.marked
            && self.recovery.is_at_rest()
            && self.restart.is_none()
            && self.probe.is_none()
    }

    /// Takes the peer's window; returns whether it changed.
    fn take_window(&mut self, ack: &Acknowledgment<'_>) -> bool {
        let changed = ack.edge != self.edge;
        if ack.una >= self.una {
            let opened = ack.edge > self.edge;
            // A peer may shrink its window; data already sent stays sent.
            self.edge = ack.edge;
            self.edge_max = self.edge_max.max(ack.edge);
            self.window_max = self.window_max.max(ack.edge.saturating_sub(ack.una));
            if opened && self.edge > self.nxt {
                self.unguard_window();
            }
        }
        // Any response to a window probe shows that the peer lives.
        if self.board.is_empty() {
            self.expiries = 0;
        }
        changed
    }

    fn deliver(&mut self, ack: &Acknowledgment<'_>, delivery: &mut Delivery) {
        if ack.una > self.una {
            self.board.acknowledge(ack.una, delivery);
            self.una = ack.una;
        }
        if self.sack {
            for block in ack.blocks {
                self.board.select(*block, delivery);
            }
        }
    }

    /// Without selective acknowledgements each duplicate reports one segment that has arrived. Returns
    /// the part of this delivery that duplicates had reported.
    fn count_duplicates(
        &mut self,
        duplicate: bool,
        advanced: bool,
        delivery: &Delivery,
    ) -> Counted {
        let recovery = &mut self.recovery;
        if duplicate {
            let most = self.board.segments_in_flight().saturating_sub(1);
            recovery.duplicates = (recovery.duplicates + 1).min(most);
        }
        if !advanced {
            return Counted::default();
        }
        // One of the covered segments was the missing one; the others had been counted.
        let covered = delivery.segments.saturating_sub(1);
        let counted = Counted {
            segments: covered.min(recovery.duplicates),
            reported: covered.min(recovery.duplicates_reported),
        };
        if self.una >= recovery.point {
            (recovery.duplicates, recovery.duplicates_reported) = (0, 0);
        } else {
            let left = recovery.duplicates.saturating_sub(covered);
            recovery.duplicates = left.min(self.board.segments_in_flight());
            recovery.duplicates_reported -= counted.reported;
        }
        counted
    }

    /// The delivery to report to the congestion control for duplicates. Unit: bytes.
    ///
    /// Only during a recovery, in which no window grows. If it were reported when the hole is filled, the window
    /// would grow by a whole flight at the end of the recovery. Duplicates that lead to no
    /// recovery are never reported: the data that they stood for counts when it is acknowledged.
    fn report_duplicates(&mut self, duplicate: bool) -> u64 {
        let recovery = &mut self.recovery;
        if self.sack || !duplicate || recovery.mode != Mode::Recovery {
            return 0;
        }
        let more = recovery.duplicates.saturating_sub(recovery.duplicates_reported);
        recovery.duplicates_reported += more;
        u64::from(more) * u64::from(self.mss)
    }

    /// Measures the round-trip time; returns the sample for the congestion control.
    fn measure(
        &mut self,
        now: Instant,
        ack: &Acknowledgment<'_>,
        delivery: &Delivery,
    ) -> Option<Duration> {
        // Karn: a segment that was retransmitted gives no sample, but its timestamp does.
        let measured = delivery.originals.filter(|_| !delivery.retransmitted).or(delivery.selected);
        let (first, last) = match measured {
            Some((first, last)) => (now.saturating_since(first), now.saturating_since(last)),
            None => {
                let (_, age) = ack.echo.filter(|_| delivery.retransmitted)?;
                (age, age)
            }
        };
        self.rtt.sample(now, first);
        self.probe_allowed = true;
        Some(last.max(Duration::from_ns(1)))
    }

    fn note_arrivals(&mut self, now: Instant, ack: &Acknowledgment<'_>, delivery: &Delivery) {
        if let Some(newest) = &delivery.newest {
            let rtt = now.saturating_since(newest.sent_at);
            // Either the original or the retransmission has arrived (RFC 8985 §6.2, step 2).
            let ambiguous =
                newest.retransmitted && self.rtt.minimum().is_some_and(|minimum| rtt < minimum);
            self.rack.on_delivered(now, newest, ambiguous);
        }
        let highest = ack.blocks.iter().map(|block| block.end).max();
        self.rack.on_reached(highest.unwrap_or(0).max(self.una), delivery.original_start);
    }

    /// Finds lost segments, and takes them out of the data in flight.
    pub(super) fn detect(&mut self, now: Instant, settings: &Settings) {
        let with = self.surroundings();
        let by_duplicates = settings.fast_retransmit
            && self.recovery.mode == Mode::Open
            && self.recovery.duplicates >= 3
            && (self.una > self.recovery.point || !settings.newreno);
        let mut report = losses(now, &mut self.control, &mut self.sampler);
        let found = if !self.sack {
            // RFC 6582: the first segment is lost at the third duplicate, if data beyond the last recovery
            // is acknowledged: earlier duplicates may respond to needless retransmissions.
            if by_duplicates { self.board.lose(0, &mut report) } else { Found::default() }
        } else if settings.loss_detection.is_rack() {
            let (found, again) = self.rack.detect(now, &mut self.board, with, &mut report);
            self.reorder_at = again;
            found
        } else {
            // RFC 6675 §4, IsLost: three ranges, or more than two segments, acknowledged above.
            let below = self.board.below_sacked(2 * u64::from(self.mss), 3);
            let from = self.recovery.judged.max(self.una);
            self.recovery.judged = below.unwrap_or(0).max(from);
            self.board.lose_first_sent(from, self.recovery.judged, &mut report)
        };
        self.found.add(found);
    }

    /// Continues a recovery.
    fn follow_repairs(
        &mut self,
        now: Instant,
        ack: &Acknowledgment<'_>,
        settings: &Settings,
        delivery: &Delivery,
        advanced: bool,
    ) {
        let echo = ack.echo.map(|(value, _)| value);
        // A retransmission is acknowledged, and by its timestamp the original (RFC 3522).
        let early = delivery.retransmitted && self.recovery.undo.is_answered_early(echo);
        if settings.undo && (early || self.recovery.undo.all_duplicates()) {
            return self.undo(now);
        }
        match self.recovery.mode {
            Mode::Open => {}
            // Data beyond must be acknowledged: the CWR flag informs the receiver of the reduction.
            Mode::Reduced if self.una > self.recovery.point => self.recovery.end(),
            Mode::Recovery if self.una >= self.recovery.point => {
                if ack.duplicate.is_none() {
                    self.rack.on_recovered();
                }
                self.recovery.end();
            }
            Mode::Recovery if !self.sack && advanced && !settings.newreno => {
                self.recovery.duplicates = 0;
                self.recovery.end();
            }
            Mode::Recovery if !self.sack && advanced => {
                // A partial acknowledgement: the next hole (RFC 6582 §3.2).
                let mut report = losses(now, &mut self.control, &mut self.sampler);
                let found = self.board.lose(0, &mut report);
                self.found.add(found);
            }
            Mode::Loss => {
                if self.recovery.frto && self.is_spurious(delivery, advanced) {
                    return self.undo(now);
                }
                if self.una >= self.recovery.point {
                    self.recovery.end();
                }
            }
            Mode::Reduced | Mode::Recovery => {}
        }
    }

    /// F-RTO (RFC 5682): whether an original has arrived that the timeout had declared lost, and what to do
    /// to find out.
    fn is_spurious(&mut self, delivery: &Delivery, advanced: bool) -> bool {
        self.recovery.prefer_new = false;
        let original = delivery.original_start.is_some_and(|start| start < self.recovery.point);
        // Without selective acknowledgements a retransmission may have filled a gap before received data.
        if original && (self.sack || !delivery.retransmitted) {
            return true;
        }
        if self.nxt > self.recovery.point {
            // New data was sent, and this acknowledgement is not for an original.
            self.recovery.frto = advanced && delivery.selected.is_none();
        } else if advanced && self.una < self.recovery.point {
            self.recovery.point = self.nxt;
            let new = self.stream.end() > self.nxt && self.edge > self.nxt;
            (self.recovery.prefer_new, self.recovery.frto) = (new, new);
        }
        false
    }

    /// The last reduction was spurious.
    fn undo(&mut self, now: Instant) {
        self.counters.undone += 1;
        self.recovery.undo.disarm();
        self.board.forgive();
        self.rack.forget();
        self.found = Found::default();
        self.recovery.end();
        self.control.on_spurious(&Spurious { now });
    }

    /// Begins a recovery if a segment was found lost. If a recovery has ended and a segment found lost is still
    /// outstanding, retransmitted or not, the next begins at once: as in Linux, whose
    /// `tcp_time_to_recover` looks at `lost_out`.
    pub(super) fn begin_if_lost(&mut self, now: Instant, settings: &Settings) {
        let found = std::mem::take(&mut self.found);
        let is_missing = found.bytes > 0 || (self.sack && self.board.missed_segments() > 0);
        if !is_missing || matches!(self.recovery.mode, Mode::Recovery | Mode::Loss) {
            return;
        }
        self.counters.recoveries += 1;
        let outstanding = u32::try_from(self.board.len()).unwrap_or(u32::MAX);
        self.recovery.undo.arm(self.board.resent_segments());
        if self.recovery.mode != Mode::Reduced {
            let missed = u64::from(self.board.missed_segments()) * u64::from(self.mss);
            self.control.on_loss(&Loss {
                now,
                lost: Bytes::new(found.bytes.max(missed)),
                in_flight: Bytes::new(found.in_flight_at_send.unwrap_or_else(|| self.pipe())),
            });
            self.reduced = settings.ecn;
        }
        let to = self.segments(self.control.window().get());
        self.recovery.begin(Mode::Recovery, self.nxt, outstanding, to, settings.prr);
        if !settings.prr && !self.control.governs_recovery() {
            // RFC 5681 §3.2, step 3: the first retransmission ignores the window; a proportional
            // reduction lets one out by itself.
            self.forced = Some(Forced::Head);
        }
    }

    /// The path has marked congestion: once per window.
    fn begin_reduction(&mut self, now: Instant, settings: &Settings) {
        if self.recovery.mode != Mode::Open || self.una < self.recovery.point {
            return;
        }
        self.counters.marked_rounds += 1;
        let in_flight = Bytes::new(self.pipe());
        self.control.on_loss(&Loss { now, lost: Bytes::ZERO, in_flight });
        let outstanding = u32::try_from(self.board.len()).unwrap_or(u32::MAX);
        let to = self.segments(self.control.window().get());
        self.recovery.begin(Mode::Reduced, self.nxt, outstanding.max(1), to, settings.prr);
        self.reduced = true;
    }

    /// RFC 8985 §7.4: whether the probe has repaired a loss.
    fn answer_probe(&mut self, now: Instant, ack: &Acknowledgment<'_>, duplicate: bool) {
        let Some(probe) = self.probe.filter(|probe| self.una >= probe.end) else { return };
        if !probe.retransmission || ack.duplicate.is_some() {
            self.probe = None;
        } else if self.una > probe.end {
            self.probe = None;
            let in_flight = Bytes::new(self.pipe());
            let lost = Bytes::new(u64::from(self.mss));
            self.control.on_loss(&Loss { now, lost, in_flight });
            self.counters.recoveries += 1;
        } else if duplicate {
            self.probe = None;
        }
    }

    fn segments(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / u64::from(self.mss.max(1))).unwrap_or(u32::MAX).max(1)
    }

    /// Continues the reduction, if one is in progress.
    pub(super) fn reduce(&mut self, delivered: u32, safe: bool) {
        if self.recovery.prr.is_none() {
            return;
        }
        let pipe = Pipe { segments: self.pipe_segments(), bytes: self.pipe(), mss: self.mss };
        let goal = self.segments(self.control.window().get());
        self.recovery.on_ack(delivered, pipe, safe, self.control.governs_recovery(), goal);
    }
}

/// Reports each segment found lost to the congestion control.
pub(super) fn losses(
    now: Instant,
    control: &mut Controller,
    sampler: &mut Sampler,
) -> impl FnMut(&Sent) {
    move |sent| {
        let size = u64::from(sent.length);
        let rate = sent.rate();
        sampler.lost += size;
        control.on_lost_segment(&LostSegment {
            now,
            size: Bytes::new(size),
            sent: sent.sent_at,
            tx_in_flight: Bytes::new(rate.in_flight.into()),
            lost: Bytes::new(sampler.lost - rate.lost),
            is_app_limited: rate.app_limited,
            contiguous: sampler.lost_end == sent.start,
        });
        sampler.lost_end = sent.end();
    }
}

/// The part of a delivery that duplicates had reported before. Unit: segments.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// Taken out of the data in flight.
    segments: u32,
    /// Reported to the congestion control.
    reported: u32,
}

/// The state before the acknowledgement.
struct Before {
    una: u64,
    outstanding: usize,
    sacked: u32,
    in_flight: u64,
}
