//! The states of a flow, and when it changes from one to the next.
//!
//! Source: draft-ietf-ccwg-bbr-06 §5.3.

use super::{BbrV3, INFINITE, PROBE_RTT_TIME};
use crate::{Ack, bbr::Sample};
use midhop_units::{Duration, Instant, Rate};

/// Reno's rounds between two losses on the paths where BBR should coexist with it.
const RENO_ROUNDS_MAX: u64 = 63;
const DRAIN_ROUNDS_MAX: u64 = 3;

/// The state of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Doubling the rate each round.
    Startup,
    /// Emptying the queue that the start left.
    Drain,
    /// After a probe: leaving room.
    ProbeBwDown,
    /// Sending at the delivery rate.
    ProbeBwCruise,
    /// Filling the path before a probe.
    ProbeBwRefill,
    /// Sending more, to measure whether more is delivered.
    ProbeBwUp,
    /// Half the product in flight, to measure the path without a queue.
    ProbeRtt,
}

impl State {
    /// The pacing gain. Unit: percent of the measured rate.
    pub const fn pacing_gain_percent(self) -> u64 {
        match self {
            Self::Startup => 277,
            Self::Drain => 50,
            Self::ProbeBwDown => 90,
            Self::ProbeBwCruise | Self::ProbeBwRefill | Self::ProbeRtt => 100,
            Self::ProbeBwUp => 125,
        }
    }

    /// The limit in flight. Unit: percent of the product of rate and round-trip time.
    pub const fn cwnd_gain_percent(self) -> u64 {
        match self {
            Self::ProbeBwUp => 225,
            Self::ProbeRtt => 50,
            _ => 200,
        }
    }

    pub(super) const fn is_probe_bw(self) -> bool {
        matches!(
            self,
            Self::ProbeBwDown | Self::ProbeBwCruise | Self::ProbeBwRefill | Self::ProbeBwUp
        )
    }

    /// IsProbingBW().
    pub(super) const fn is_accelerating(self) -> bool {
        matches!(self, Self::Startup | Self::ProbeBwRefill | Self::ProbeBwUp)
    }
}

/// The phase of a probe by its acknowledgements: they lag behind the states by a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckPhase {
    Init,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

impl BbrV3 {
    pub(super) fn check_startup(&mut self, sample: &Sample) {
        if self.state != State::Startup {
            return;
        }
        if !self.full.reached && self.is_start_too_lossy(sample) {
            self.undo.state = Some(State::Startup);
            self.full.reached = true;
            self.inflight_longterm = self.bdp(self.bw).max(self.signals.inflight_latest);
        }
        if self.full.reached {
            self.state = State::Drain;
            self.drain_round = self.rounds;
        }
    }

    pub(super) fn check_drain(&mut self, ack: &Ack) {
        if self.state == State::Drain
            && (ack.in_flight.get() <= self.inflight(self.bw, 100)
                || self.rounds > self.drain_round + DRAIN_ROUNDS_MAX)
        {
            self.start_down(ack.now);
        }
    }

    pub(super) fn start_down(&mut self, now: Instant) {
        self.reset_congestion_signals();
        self.up_acked_per_inc = INFINITE;
        self.rounds_since_up = self.draws.below(2);
        self.probe_wait = Duration::from_s(2) + Duration::from_ns(self.draws.below(1_000_000_000));
        self.cycle_at = now;
        self.ack_phase = AckPhase::Stopping;
        self.start_round();
        self.state = State::ProbeBwDown;
    }

    pub(super) fn start_refill(&mut self) {
        self.reset_shortterm();
        self.up_rounds = 0;
        self.up_acked = 0;
        self.prev_probe_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = State::ProbeBwRefill;
    }

    fn start_up(&mut self, sample: &Sample) {
        self.ack_phase = AckPhase::Starting;
        self.start_round();
        self.full.reset(sample.rate.unwrap_or(Rate::ZERO));
        self.state = State::ProbeBwUp;
        self.raise_slope();
    }

    pub(super) fn update_cycle(&mut self, ack: &Ack, sample: &Sample) {
        if !self.full.reached || self.adapt_long_term(ack, sample) {
            return;
        }
        let in_flight = ack.in_flight.get();
        match self.state {
            State::ProbeBwDown => {
                if self.is_time_to_probe(ack.now) {
                    self.start_refill();
                } else if in_flight <= self.inflight_with_headroom()
                    && in_flight <= self.inflight(self.max_bw(), 100)
                {
                    self.state = State::ProbeBwCruise;
                }
            }
            State::ProbeBwCruise => {
                if self.is_time_to_probe(ack.now) {
                    self.start_refill();
                }
            }
            State::ProbeBwRefill => {
                if self.round_start {
                    self.probe_sample = true;
                    self.start_up(sample);
                }
            }
            State::ProbeBwUp => {
                if self.is_time_to_go_down(ack, sample) {
                    self.prev_probe_too_high = false;
                    self.start_down(ack.now);
                }
            }
            State::Startup | State::Drain | State::ProbeRtt => {}
        }
    }

    fn is_time_to_probe(&self, now: Instant) -> bool {
        let reno_rounds = (self.target_inflight() / self.mss).min(RENO_ROUNDS_MAX);
        now > self.cycle_at + self.probe_wait || self.rounds_since_up >= reno_rounds
    }

    fn is_time_to_go_down(&mut self, ack: &Ack, sample: &Sample) -> bool {
        if self.prev_probe_too_high && ack.in_flight.get() >= self.inflight_longterm {
            self.prev_probe_precautionary = true;
            return true;
        }
        if ack.cwnd_limited && self.cwnd >= self.inflight_longterm {
            // The limit is the bound, not the path.
            self.full.reset(sample.rate.unwrap_or(Rate::ZERO));
            return false;
        }
        self.full.now
    }

    /// Follows the acknowledgements of a probe, and moves the long-term bound.
    ///
    /// Returns whether the state has changed.
    fn adapt_long_term(&mut self, ack: &Ack, sample: &Sample) -> bool {
        if self.ack_phase == AckPhase::Starting && self.round_start {
            self.ack_phase = AckPhase::Feedback;
        }
        if self.ack_phase == AckPhase::Stopping && self.round_start {
            self.probe_sample = false;
            self.ack_phase = AckPhase::Init;
            if self.state.is_probe_bw() {
                if !sample.app_limited {
                    self.advance_max_bw();
                }
                // The careful probe succeeded: the next one may persist.
                if self.prev_probe_precautionary && !self.prev_probe_too_high {
                    self.start_refill();
                    return true;
                }
            }
        }
        if self.is_too_high(self.signals.marked, sample.tx_in_flight) {
            if self.probe_sample {
                self.handle_too_high(ack.now, sample.tx_in_flight, sample.app_limited);
                return true;
            }
        } else if !self.is_too_high(sample.lost, sample.tx_in_flight)
            && self.inflight_longterm != INFINITE
        {
            self.inflight_longterm = self.inflight_longterm.max(sample.tx_in_flight);
            if self.state == State::ProbeBwUp {
                self.raise_long_term(ack);
            }
        }
        false
    }

    fn raise_slope(&mut self) {
        let growth = 1_u64 << self.up_rounds;
        self.up_rounds = (self.up_rounds + 1).min(30);
        self.up_acked_per_inc = (self.cwnd / growth).max(self.mss);
    }

    fn raise_long_term(&mut self, ack: &Ack) {
        if !ack.cwnd_limited || self.cwnd < self.inflight_longterm {
            return;
        }
        self.up_acked = self.up_acked.saturating_add(ack.acked.get());
        let increments = self.up_acked / self.up_acked_per_inc;
        self.up_acked -= increments * self.up_acked_per_inc;
        self.inflight_longterm =
            self.inflight_longterm.saturating_add(increments.saturating_mul(self.mss));
        if self.round_start {
            self.raise_slope();
        }
    }

    pub(super) fn check_probe_rtt(&mut self, ack: &Ack, sample: &Sample) {
        if self.state != State::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.state = State::ProbeRtt;
            self.save_cwnd();
            self.probe_rtt_done = None;
            self.ack_phase = AckPhase::Stopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            self.probe_rtt(ack);
        }
        if sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    fn probe_rtt(&mut self, ack: &Ack) {
        let in_flight = ack.in_flight.get();
        self.held_back.mark(self.delivered, in_flight);
        if self.probe_rtt_done.is_some() {
            self.probe_rtt_round_done |= self.round_start;
            if self.probe_rtt_round_done {
                self.check_probe_rtt_done(ack.now);
            }
        } else if in_flight <= self.probe_rtt_cwnd() {
            self.probe_rtt_done = Some(ack.now + PROBE_RTT_TIME);
            self.probe_rtt_round_done = false;
            self.start_round();
        }
    }

    pub(super) fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt_done.is_none_or(|done| now <= done) {
            return;
        }
        self.probe_rtt_min_at = now;
        self.restore_cwnd();
        self.reset_shortterm();
        if self.full.reached {
            self.start_down(now);
            self.state = State::ProbeBwCruise;
        } else {
            self.state = State::Startup;
        }
    }
}
