//! The model of the path: rates, volumes, round trips, and the effect of losses on them.
//!
//! Source: draft-ietf-ccwg-bbr-06 §5.5 and §5.3.1.2.

use super::{
    BETA_PERCENT, BbrV3, EXTRA_ACKED_ROUNDS, FULL_ROUNDS, INFINITE, LOSS_THRESHOLD_PERCENT,
    MIN_RTT_WINDOW, NO_RATE_BOUND, PROBE_RTT_INTERVAL, START_GAPS, State, percent,
};
use crate::{
    Ack,
    bbr::{Sample, scaled},
};
use midhop_units::{Instant, Rate};

/// Congestion signals of the current round trip.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signals {
    pub lost: bool,
    /// Discontiguous ranges that were lost.
    pub gaps: u32,
    pub marked: u64,
    pub round_start: bool,
    pub round_end: u64,
    pub bw_latest: Rate,
    pub inflight_latest: u64,
}

/// The state to restore when losses turn out to be spurious.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Undo {
    /// Whether it was saved for losses that are not repaired yet.
    pub armed: bool,
    pub state: Option<State>,
    pub bw_shortterm: Rate,
    pub inflight_shortterm: u64,
    pub inflight_longterm: u64,
}

/// Whether the path is full: three rounds without growth by a quarter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Full {
    pub bw: Rate,
    pub count: u32,
    pub now: bool,
    pub reached: bool,
}

impl Full {
    /// Starts the search again, from `bw`.
    pub fn reset(&mut self, bw: Rate) {
        *self = Self { bw, reached: self.reached, ..Self::default() };
    }
}

impl BbrV3 {
    pub(super) fn start_round(&mut self) {
        self.round_end = self.delivered;
    }

    pub(super) fn update_latest_signals(&mut self, sample: &Sample) {
        let signals = &mut self.signals;
        signals.bw_latest = signals.bw_latest.max(sample.rate.unwrap_or(Rate::ZERO));
        signals.inflight_latest = signals.inflight_latest.max(sample.delivered);
        signals.round_start = sample.prior_delivered >= signals.round_end;
        if signals.round_start {
            signals.round_end = self.delivered;
        }
    }

    pub(super) fn advance_latest_signals(&mut self, sample: &Sample) {
        if self.signals.round_start {
            self.signals.bw_latest = sample.rate.unwrap_or(Rate::ZERO);
            self.signals.inflight_latest = sample.delivered;
            self.signals.gaps = 0;
            self.signals.marked = 0;
        }
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.signals.lost = false;
        self.signals.bw_latest = Rate::ZERO;
        self.signals.inflight_latest = 0;
    }

    pub(super) fn update_congestion_signals(&mut self, sample: &Sample) {
        self.update_max_bw(sample);
        if !self.signals.round_start {
            return;
        }
        if self.signals.lost && !self.state.is_accelerating() {
            if self.bw_shortterm == NO_RATE_BOUND {
                self.bw_shortterm = self.max_bw();
            }
            if self.inflight_shortterm == INFINITE {
                self.inflight_shortterm = self.cwnd;
            }
            let bw = scaled(self.bw_shortterm, BETA_PERCENT, 100);
            self.bw_shortterm = bw.max(self.signals.bw_latest);
            let inflight = percent(self.inflight_shortterm, BETA_PERCENT);
            self.inflight_shortterm = inflight.max(self.signals.inflight_latest);
        }
        self.signals.lost = false;
    }

    fn update_max_bw(&mut self, sample: &Sample) {
        self.round_start = sample.prior_delivered >= self.round_end;
        if self.round_start {
            self.start_round();
            self.rounds += 1;
            self.rounds_since_up += 1;
        }
        if let Some(rate) = sample.rate
            && (rate >= self.max_bw() || !sample.app_limited)
        {
            self.max_bw[0] = self.max_bw[0].max(rate);
        }
    }

    /// A probing cycle is over: its largest rate becomes the last one's.
    pub(super) fn advance_max_bw(&mut self) {
        if self.max_bw[0] > Rate::ZERO {
            self.max_bw = [Rate::ZERO, self.max_bw[0]];
        }
    }

    pub(super) fn reset_shortterm(&mut self) {
        self.bw_shortterm = NO_RATE_BOUND;
        self.inflight_shortterm = INFINITE;
    }

    pub(super) fn update_extra_acked(&mut self, ack: &Ack) {
        let mut expected = self.bw.bytes_in(ack.now.saturating_since(self.extra_acked_since)).get();
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_since = ack.now;
            expected = 0;
        }
        self.extra_acked_delivered = self.extra_acked_delivered.saturating_add(ack.acked.get());
        let extra = self.extra_acked_delivered.saturating_sub(expected).min(self.cwnd);
        let window = if self.full.reached { EXTRA_ACKED_ROUNDS } else { 1 };
        self.extra_acked.update(window, self.rounds, extra);
    }

    pub(super) fn check_full(&mut self, sample: &Sample) {
        let Some(rate) = sample.rate else { return };
        if self.full.now || !self.round_start || sample.app_limited {
            return;
        }
        if u128::from(rate.bits_per_s()) * 4 >= u128::from(self.full.bw.bits_per_s()) * 5 {
            self.full.reset(rate);
            return;
        }
        self.full.count += 1;
        self.full.now = self.full.count >= FULL_ROUNDS;
        self.full.reached |= self.full.now;
    }

    /// Whether losses or marks of the round end the start: §5.3.1.3.
    pub(super) fn is_start_too_lossy(&self, sample: &Sample) -> bool {
        let marked = self.signals.marked;
        let too_marked = exceeds_threshold(marked, self.signals.inflight_latest);
        let too_lossy = self.in_recovery
            && self.signals.gaps >= START_GAPS
            && self.is_too_high(sample.lost, sample.tx_in_flight);
        let unselective = !self.selective_acks && self.in_recovery && sample.lost > 0;
        unselective || (self.signals.round_start && (too_lossy || too_marked))
    }

    pub(super) fn update_min_rtt(&mut self, ack: &Ack, sample: &Sample) {
        let since = |then: Instant| ack.now.saturating_since(then);
        self.probe_rtt_expired = since(self.probe_rtt_min_at) > PROBE_RTT_INTERVAL;
        let Some(rtt) = ack.rtt else { return };
        let renewed = match self.path_since {
            // The value of the old path.
            Some(path_since) if sample.sent < path_since => return,
            renewed => renewed.is_some(),
        };
        self.path_since = None;
        if renewed || self.probe_rtt_expired || self.probe_rtt_min.is_none_or(|min| rtt < min) {
            self.probe_rtt_min = Some(rtt);
            self.probe_rtt_min_at = ack.now;
        }
        let expired = since(self.min_rtt_at) > MIN_RTT_WINDOW;
        let lower = self.min_rtt.is_none_or(|min| self.probe_rtt_min.is_some_and(|new| new < min));
        if renewed || expired || lower {
            self.min_rtt = self.probe_rtt_min;
            self.min_rtt_at = self.probe_rtt_min_at;
        }
    }

    /// The first loss of a round begins the round that is judged by it; the first loss of a recovery saves
    /// the state to restore.
    pub(super) fn note_loss(&mut self) {
        if !self.signals.lost {
            self.signals.round_end = self.delivered;
        }
        self.signals.lost = true;
        if !self.undo.armed {
            self.save_cwnd();
            self.undo = Undo {
                armed: true,
                state: None,
                bw_shortterm: self.bw_shortterm,
                inflight_shortterm: self.inflight_shortterm,
                inflight_longterm: self.inflight_longterm,
            };
        }
    }

    pub(super) fn note_marks(&mut self, marked: u64) {
        if marked > 0 {
            self.note_loss();
            self.signals.marked = self.signals.marked.saturating_add(marked);
        }
    }

    /// Whether so much was lost since a segment was sent that too much was in flight then.
    pub(super) fn is_too_high(&self, lost: u64, tx_in_flight: u64) -> bool {
        exceeds_threshold(lost, tx_in_flight) || (lost > 0 && !self.selective_acks)
    }

    /// Responds to losses of a probe, once per probe.
    pub(super) fn handle_too_high(&mut self, now: Instant, inflight: u64, app_limited: bool) {
        self.prev_probe_too_high = true;
        self.probe_sample = false;
        if !app_limited {
            self.inflight_longterm = percent(self.target_inflight(), BETA_PERCENT).max(inflight);
        }
        if self.state == State::ProbeBwUp {
            self.undo.state = Some(State::ProbeBwUp);
            self.start_down(now);
        }
    }

    /// The losses were spurious: bounds are restored, and the probe that they ended continues.
    pub(super) fn undo_losses(&mut self) {
        self.signals.lost = false;
        self.full.reset(Rate::ZERO);
        self.bw_shortterm = self.bw_shortterm.max(self.undo.bw_shortterm);
        self.inflight_shortterm = self.inflight_shortterm.max(self.undo.inflight_shortterm);
        self.inflight_longterm = self.inflight_longterm.max(self.undo.inflight_longterm);
        match self.undo.state.take() {
            Some(State::Startup) if self.state != State::Startup => {
                self.full.reached = false;
                if self.state != State::ProbeRtt {
                    self.state = State::Startup;
                }
            }
            Some(State::ProbeBwUp) if !matches!(self.state, State::ProbeBwUp | State::ProbeRtt) => {
                self.start_refill();
            }
            _ => {}
        }
    }
}

fn exceeds_threshold(lost: u64, of: u64) -> bool {
    u128::from(lost) * 100 > u128::from(of) * u128::from(LOSS_THRESHOLD_PERCENT)
}
