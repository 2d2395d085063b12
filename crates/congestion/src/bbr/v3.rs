//! BBR version 3, as the working group's draft describes it.
//!
//! Source: draft-ietf-ccwg-bbr-06, July 2026; the names of its sections and variables are kept where
//! they are clear enough. The states are in `state`, the model of the path in `model`.
//!
//! Differs:
//! - The filter of the bandwidth has two slots, this cycle's and the last one's, and a cycle without
//!   a sample does not push out the last one (§5.5.6 asks for two slots, no more).
//! - The state to restore is saved at the first loss of a recovery. The draft saves it anew when
//!   the recovery begins and at the first loss after a state has changed, which discards that losses
//!   ended a probe (§5.5.11.1).
//! - Where more was lost before a segment than a probe may lose, the data in flight before it is the
//!   volume at the loss; the draft's formula would continue to less (§5.5.10.2).
//! - A sample too short to have a rate does not count towards a full pipe.
//! - A start that loses too much ends also by the acknowledgement that ends the recovery. The draft asks for a round trip
//!   in recovery when that round trip is over (§5.3.1.3), and in QUIC a recovery lasts for just one (RFC 9002 §7.3.2).
//! - Congestion marks, whose meaning the draft leaves open (§3.7), count as losses: a round with
//!   marks lowers the short-term bounds, and more than [`LOSS_THRESHOLD_PERCENT`] of them end a probe
//!   or the start.

mod model;
mod state;

pub use state::State;

use super::{BbrSettings, HeldBack, Sample, WindowedMax, scaled};
use crate::common::Common;
use crate::description::Description;
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, LostSegment, Phase, Restart,
    Rto, Spurious, random::Draws,
};
use midhop_units::{Bytes, Duration, Instant, Rate};
use model::{Full, Signals, Undo};
use state::AckPhase;

/// The largest share of a round trip's data that a probe may lose.
pub const LOSS_THRESHOLD_PERCENT: u64 = 2;
/// The part of a short-term bound that remains after a round with losses.
const BETA_PERCENT: u64 = 70;
/// The part below the long-term bound that stays free while cruising.
const HEADROOM_PERCENT: u64 = 15;
/// Unit: segments.
const WINDOW_MIN: u64 = 4;
const MARGIN_PERCENT: u64 = 1;
const MIN_RTT_WINDOW: Duration = Duration::from_s(10);
const PROBE_RTT_INTERVAL: Duration = Duration::from_s(5);
const PROBE_RTT_TIME: Duration = Duration::from_ms(200);
const PROBE_RTT_CWND_PERCENT: u64 = 50;
const EXTRA_ACKED_ROUNDS: u64 = 10;
const FULL_ROUNDS: u32 = 3;
/// Gaps in a round that end the start.
const START_GAPS: u32 = 6;
const QUANTUM_MAX: u64 = 64 * 1024;
/// No bound. Unit: bytes.
const INFINITE: u64 = u64::MAX;
const NO_RATE_BOUND: Rate = Rate::from_bits_per_s(u64::MAX);

/// BBR version 3 as a controller.
#[derive(Debug, Clone)]
pub struct BbrV3 {
    mss: u64,
    initial_window: u64,
    selective_acks: bool,
    draws: Draws,
    state: State,
    phase: Phase,
    /// Whether a fast recovery lasts, or has lasted until this acknowledgement.
    in_recovery: bool,
    cwnd: u64,
    prior_cwnd: u64,
    pacing_rate: Option<Rate>,
    delivered: u64,
    rounds: u64,
    round_start: bool,
    round_end: u64,
    /// The largest rate of this cycle and of the last one.
    max_bw: [Rate; 2],
    bw_shortterm: Rate,
    bw: Rate,
    inflight_shortterm: u64,
    inflight_longterm: u64,
    signals: Signals,
    undo: Undo,
    full: Full,
    extra_acked_since: Instant,
    extra_acked_delivered: u64,
    extra_acked: WindowedMax,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    probe_rtt_min: Option<Duration>,
    probe_rtt_min_at: Instant,
    probe_rtt_expired: bool,
    probe_rtt_done: Option<Instant>,
    probe_rtt_round_done: bool,
    idle_restart: bool,
    drain_round: u64,
    ack_phase: AckPhase,
    probe_sample: bool,
    prev_probe_too_high: bool,
    prev_probe_precautionary: bool,
    up_acked: u64,
    up_acked_per_inc: u64,
    up_rounds: u32,
    rounds_since_up: u64,
    cycle_at: Instant,
    probe_wait: Duration,
    held_back: HeldBack,
    /// Only data sent since then measures the path's delay, until some has arrived.
    path_since: Option<Instant>,
}

impl BbrV3 {
    /// A new connection with segments of `mss`.
    pub fn new(mss: Bytes, settings: BbrSettings) -> Self {
        let mss = mss.get().max(1);
        let initial_window = u64::from(settings.initial_window).saturating_mul(mss);
        Self {
            mss,
            initial_window,
            selective_acks: settings.selective_acks,
            draws: Draws::new(settings.seed),
            state: State::Startup,
            phase: Phase::Open,
            in_recovery: false,
            cwnd: initial_window,
            prior_cwnd: 0,
            pacing_rate: None,
            delivered: 0,
            rounds: 0,
            round_start: false,
            round_end: 0,
            max_bw: [Rate::ZERO; 2],
            bw_shortterm: NO_RATE_BOUND,
            bw: Rate::ZERO,
            inflight_shortterm: INFINITE,
            inflight_longterm: INFINITE,
            signals: Signals::default(),
            undo: Undo::default(),
            full: Full::default(),
            extra_acked_since: Instant::START,
            extra_acked_delivered: 0,
            extra_acked: WindowedMax::default(),
            min_rtt: None,
            min_rtt_at: Instant::START,
            probe_rtt_min: None,
            probe_rtt_min_at: Instant::START,
            probe_rtt_expired: false,
            probe_rtt_done: None,
            probe_rtt_round_done: false,
            idle_restart: false,
            drain_round: 0,
            ack_phase: AckPhase::Init,
            probe_sample: false,
            prev_probe_too_high: false,
            prev_probe_precautionary: false,
            up_acked: 0,
            up_acked_per_inc: INFINITE,
            up_rounds: 0,
            rounds_since_up: 0,
            cycle_at: Instant::START,
            probe_wait: Duration::ZERO,
            held_back: HeldBack::default(),
            path_since: None,
        }
    }

    /// The flow's state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The largest rate of this probing cycle and the one before: BBR.max_bw.
    pub fn max_bw(&self) -> Rate {
        self.max_bw[0].max(self.max_bw[1])
    }

    /// The estimated current rate of the path: BBR.bw.
    pub fn bw(&self) -> Rate {
        self.bw
    }

    /// The measured round-trip time without queues: BBR.min_rtt.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt
    }

    /// The most data in flight that does not lose too much, where a probe has found it:
    /// BBR.inflight_longterm.
    pub fn inflight_longterm(&self) -> Option<Bytes> {
        (self.inflight_longterm != INFINITE).then(|| Bytes::new(self.inflight_longterm))
    }

    fn set_pacing_rate(&mut self, gain_percent: u64) {
        let rate = scaled(self.bw, gain_percent * (100 - MARGIN_PERCENT), 10_000);
        if rate > Rate::ZERO
            && (self.full.reached || self.pacing_rate.is_none_or(|pacing| rate > pacing))
        {
            self.pacing_rate = Some(rate);
        }
    }

    /// The first rate: the window per round-trip time, at the gain of the start.
    fn pace_first(&mut self, rtt: Duration) {
        let rate = Rate::of(Bytes::new(self.initial_window), rtt.max(Duration::from_us(1)));
        self.pacing_rate = Some(scaled(rate, State::Startup.pacing_gain_percent(), 100));
    }

    /// A millisecond's data, within the limits of one batch: C.send_quantum.
    fn quantum(&self) -> u64 {
        let rate = self.pacing_rate.unwrap_or(Rate::ZERO);
        rate.bytes_in(Duration::from_ms(1)).get().min(QUANTUM_MAX).max(2 * self.mss)
    }

    fn bdp(&self, bw: Rate) -> u64 {
        self.min_rtt.map_or(self.initial_window, |min_rtt| bw.bytes_in(min_rtt).get())
    }

    fn bdp_multiple(&self, bw: Rate, gain_percent: u64) -> u64 {
        if self.min_rtt.is_none() {
            return self.initial_window;
        }
        percent(self.bdp(bw), gain_percent)
    }

    /// `bytes` with the allowance for batches at both ends, and always enough for a steady flow of
    /// acknowledgements: QuantizationBudget().
    fn budget(&self, bytes: u64) -> u64 {
        let bytes = bytes.max(3 * self.quantum()).max(WINDOW_MIN * self.mss);
        if self.state == State::ProbeBwUp { bytes.saturating_add(2 * self.mss) } else { bytes }
    }

    fn inflight(&self, bw: Rate, gain_percent: u64) -> u64 {
        self.budget(self.bdp_multiple(bw, gain_percent))
    }

    /// The target for the data in flight: the product, unless congestion has cut the window.
    fn target_inflight(&self) -> u64 {
        self.bdp(self.bw).min(self.cwnd)
    }

    /// The long-term bound less room for others.
    fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_longterm == INFINITE {
            return INFINITE;
        }
        let headroom = percent(self.inflight_longterm, HEADROOM_PERCENT).max(self.mss);
        self.inflight_longterm.saturating_sub(headroom).max(WINDOW_MIN * self.mss)
    }

    fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp_multiple(self.bw, PROBE_RTT_CWND_PERCENT).max(WINDOW_MIN * self.mss)
    }

    fn set_cwnd(&mut self, acked: u64) {
        let wanted = self.bdp_multiple(self.bw, self.state.cwnd_gain_percent());
        let max_inflight = self.budget(wanted.saturating_add(self.extra_acked.max()));
        let grown = self.cwnd.saturating_add(acked);
        if self.full.reached {
            self.cwnd = grown.min(max_inflight);
        } else if self.cwnd < max_inflight || self.delivered < self.initial_window {
            self.cwnd = grown;
        }
        self.cwnd = self.cwnd.max(WINDOW_MIN * self.mss);
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd());
        }
        let cap = match self.state {
            State::Startup | State::Drain => INFINITE,
            State::ProbeBwDown | State::ProbeBwRefill | State::ProbeBwUp => self.inflight_longterm,
            State::ProbeBwCruise | State::ProbeRtt => self.inflight_with_headroom(),
        };
        let cap = cap.min(self.inflight_shortterm).max(WINDOW_MIN * self.mss);
        self.cwnd = self.cwnd.min(cap);
    }

    /// Saves the window to restore. Called before the phase changes.
    fn save_cwnd(&mut self) {
        self.prior_cwnd = if self.phase == Phase::Open && self.state != State::ProbeRtt {
            self.cwnd
        } else {
            self.prior_cwnd.max(self.cwnd)
        };
    }

    fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }
}

/// So many hundredths of `bytes`, rounded down.
fn percent(bytes: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

impl BbrV3 {
    pub(crate) const DESCRIPTION: Description =
        Description { name: "bbr3", draws: true, ..Description::OWN_RULE };

    pub(crate) fn controller(common: &Common<'_>) -> Controller {
        Controller::new(Self::new(common.mss, BbrSettings::of(common)))
    }
}

impl CongestionControl for BbrV3 {
    fn on_established(&mut self, established: &Established) {
        self.min_rtt_at = established.now;
        self.probe_rtt_min_at = established.now;
        self.extra_acked_since = established.now;
        if let Some(rtt) = established.rtt {
            self.min_rtt = Some(rtt);
            self.probe_rtt_min = Some(rtt);
            self.pace_first(rtt);
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        if self.pacing_rate.is_none()
            && let Some(rtt) = ack.rtt
        {
            self.pace_first(rtt);
        }
        self.delivered = ack.delivered.get();
        let before = std::mem::replace(&mut self.phase, ack.phase);
        if ack.phase == Phase::Open && before != Phase::Open {
            self.restore_cwnd();
        }
        self.in_recovery = [before, ack.phase].contains(&Phase::Recovery);
        self.undo.armed &= ack.phase != Phase::Open;
        if let Some(sample) = Sample::of(ack, self.held_back) {
            self.note_marks(ack.marked.get());
            self.update_latest_signals(&sample);
            self.update_congestion_signals(&sample);
            self.update_extra_acked(ack);
            self.check_full(&sample);
            self.check_startup(&sample);
            self.check_drain(ack);
            self.update_cycle(ack, &sample);
            self.update_min_rtt(ack, &sample);
            self.check_probe_rtt(ack, &sample);
            self.advance_latest_signals(&sample);
            self.bw = self.max_bw().min(self.bw_shortterm);
        }
        self.set_pacing_rate(self.state.pacing_gain_percent());
        self.set_cwnd(ack.acked.get());
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.note_loss();
        self.signals.gaps += u32::from(!segment.contiguous);
        let (tx_in_flight, lost) = (segment.tx_in_flight.get(), segment.lost.get());
        if self.probe_sample && self.is_too_high(lost, tx_in_flight) {
            let at_loss = inflight_at_loss(tx_in_flight, lost, segment.size.get());
            self.handle_too_high(segment.now, at_loss, segment.is_app_limited);
        }
    }

    fn on_loss(&mut self, _loss: &Loss) {
        self.save_cwnd();
    }

    fn on_rto(&mut self, _rto: &Rto) {
        self.note_loss();
        self.save_cwnd();
        self.phase = Phase::Loss;
        self.cwnd = self.mss;
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.restore_cwnd();
        self.undo_losses();
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.path_since = Some(handover.now);
        self.min_rtt_at = handover.now;
        self.probe_rtt_min_at = handover.now;
        if handover.rtt.is_some() {
            self.min_rtt = handover.rtt;
            self.probe_rtt_min = handover.rtt;
        }
        if let Some(rate) = handover.rate {
            self.max_bw = [rate, Rate::ZERO];
        }
        self.inflight_longterm = INFINITE;
        self.prev_probe_too_high = false;
        self.reset_shortterm();
        self.bw = self.max_bw();
        if self.state.is_probe_bw() {
            self.start_refill();
        }
        self.set_pacing_rate(self.state.pacing_gain_percent());
    }

    fn on_restart(&mut self, restart: &Restart) {
        if !restart.app_limited {
            return;
        }
        self.idle_restart = true;
        self.extra_acked_since = restart.now;
        if self.state.is_probe_bw() {
            self.set_pacing_rate(100);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(restart.now);
        }
    }

    fn is_in_slow_start(&self) -> bool {
        self.state == State::Startup
    }

    fn window(&self) -> Bytes {
        Bytes::new(self.cwnd)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.pacing_rate
    }

    fn governs_recovery(&self) -> bool {
        true
    }
}

/// The data in flight when losses passed the threshold, at a point within the lost segment:
/// InflightAtLoss().
fn inflight_at_loss(tx_in_flight: u64, lost: u64, size: u64) -> u64 {
    let inflight_prev = tx_in_flight.saturating_sub(size);
    let lost_prev = lost.saturating_sub(size);
    let allowed = percent(inflight_prev, LOSS_THRESHOLD_PERCENT);
    let prefix = allowed.saturating_sub(lost_prev) * 100 / (100 - LOSS_THRESHOLD_PERCENT);
    inflight_prev.saturating_add(prefix)
}

#[cfg(test)]
mod tests;
