//! The sender's timers: retransmission timeout, tail loss probe, window probe.
//!
//! Source: RFC 6298 §5, RFC 8985 §7 (TLP), RFC 9293 §3.8.6.1 (zero-window probing), RFC 5682 (F-RTO).

use midhop_congestion::Rto;
use midhop_units::{Bytes, Duration, Instant};

use super::{Forced, Mode, Probe, Sender, Timer, answer::losses, rack::Surroundings, rto::INITIAL};
use crate::settings::{LossDetection, Settings};

/// The peer has not responded for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GivenUp;

impl Sender {
    /// Restarts the timer: new data was acknowledged, or the first segment has left.
    pub(super) fn arm(&mut self, now: Instant, settings: &Settings) {
        if self.board.is_empty() {
            self.timer = Timer::Off;
            self.reorder_at = Instant::NEVER;
            return;
        }
        self.timer = Timer::Retransmission(now + self.backed_off(settings));
        self.arm_probe(now, settings);
    }

    /// A tail loss probe instead, where one is due before the timeout.
    pub(super) fn arm_probe(&mut self, now: Instant, settings: &Settings) {
        let calm = self.recovery.mode == Mode::Open
            && self.board.sacked_segments() == 0
            && self.probe.is_none()
            && self.probe_allowed
            && self.sack
            && settings.loss_detection == LossDetection::Rack
            && self.rtt.backoff == 0;
        if calm && !self.board.is_empty() {
            self.timer = Timer::Probe(now + self.probe_timeout().min(self.backed_off(settings)));
        }
    }

    /// RFC 8985 §7.2.
    fn probe_timeout(&self) -> Duration {
        let Some(smoothed) = self.rtt.smoothed else { return INITIAL };
        // The last segment alone may wait for the peer's delayed acknowledgement.
        let alone = self.board.len() == 1;
        smoothed * 2 + if alone { Duration::from_ms(200) } else { Duration::from_ms(2) }
    }

    /// The peer's window holds back all data and nothing is in flight.
    pub(super) fn guard_window(&mut self, now: Instant, settings: &Settings) {
        if self.board.is_empty() && !matches!(self.timer, Timer::Persist(_)) {
            self.timer = Timer::Persist(now + self.backed_off(settings));
        }
    }

    /// The window has opened, or the probe is no longer needed.
    pub(super) fn unguard_window(&mut self) {
        if matches!(self.timer, Timer::Persist(_)) {
            self.timer = Timer::Off;
            self.rtt.backoff = 0;
            self.expiries = 0;
        }
    }

    /// # Errors
    /// The peer has not responded for too long.
    pub fn on_timeout(&mut self, now: Instant, settings: &Settings) -> Result<(), GivenUp> {
        if self.reorder_at <= now {
            self.reorder_at = Instant::NEVER;
            self.detect(now, settings);
            let open = self.recovery.mode != Mode::Recovery;
            self.begin_if_lost(now, settings);
            if open && self.recovery.mode == Mode::Recovery {
                // No acknowledgement triggers the first retransmission, so the timer does.
                self.reduce(1, false);
            }
        }
        let answer = match self.timer {
            Timer::Retransmission(at) if at <= now => self.on_retransmission(now, settings),
            Timer::Probe(at) if at <= now => {
                self.counters.probes += 1;
                let retransmission =
                    self.nxt == self.stream.end_with_fin() || self.edge <= self.nxt;
                self.probe = Some(Probe { end: self.nxt, retransmission });
                self.probe_allowed = false;
                self.forced = Some(Forced::Tail);
                self.timer = Timer::Retransmission(now + self.backed_off(settings));
                Ok(())
            }
            Timer::Persist(at) if at <= now => self.on_persist(now, settings),
            _ => Ok(()),
        };
        self.note_phase(now);
        answer
    }

    fn on_persist(&mut self, now: Instant, settings: &Settings) -> Result<(), GivenUp> {
        // A peer that responds with a closed window lives (RFC 9293 §3.8.6.1): responses reset the count.
        if self.expiries >= settings.retries {
            return Err(GivenUp);
        }
        self.expiries += 1;
        self.forced = Some(Forced::Window);
        self.rtt.backoff += 1;
        self.timer = Timer::Persist(now + self.backed_off(settings));
        Ok(())
    }

    fn on_retransmission(&mut self, now: Instant, settings: &Settings) -> Result<(), GivenUp> {
        if self.board.is_empty() {
            self.timer = Timer::Off;
            return Ok(());
        }
        if self.expiries >= settings.retries {
            return Err(GivenUp);
        }
        self.counters.timeouts += 1;
        let in_flight = Bytes::new(self.pipe());
        // The receiver has dropped data that it had reported (RFC 2018 §8).
        if self.board.first().is_some_and(|sent| sent.state == super::sent::SegmentState::Sacked) {
            self.board.renege();
        }
        let first = self.recovery.mode != Mode::Loss || self.expiries == 0;
        let point = self.nxt;
        self.board.lose_all(&mut losses(now, &mut self.control, &mut self.sampler));
        self.recovery.duplicates = 0;
        if first {
            self.recovery.undo.arm(self.board.resent_segments());
            self.recovery.frto = settings.undo;
            self.control.on_rto(&Rto { now, in_flight });
        }
        self.recovery.begin(Mode::Loss, point, 1, 1, false);
        self.probe = None;
        self.reorder_at = Instant::NEVER;
        self.expiries += 1;
        self.rtt.backoff += 1;
        self.forced = Some(Forced::Head);
        self.timer = Timer::Retransmission(now + self.backed_off(settings));
        Ok(())
    }

    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings {
            rtt_min: self.rtt.minimum(),
            smoothed: self.rtt.smoothed,
            in_recovery: matches!(self.recovery.mode, Mode::Recovery | Mode::Loss),
        }
    }
}
