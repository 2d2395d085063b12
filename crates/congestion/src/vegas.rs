//! Vegas: keeps a few segments in the bottleneck's queue, measured by the delay that they add.
//!
//! Source: L. Brakmo, L. Peterson, "TCP Vegas: end to end congestion avoidance on a global Internet",
//! IEEE JSAC 13(8), 1995, decided once per round trip as in Linux (net/ipv4/tcp_vegas.c), which doubles
//! every round in slow start where the paper doubles every other. `programs/laws/vegas.h` in midhop-bpf
//! computes the same.

use crate::common::Common;
use crate::description::{Description, FirstSlowStart, Parameters};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, Phase, Rto, Spurious, reno,
    segments::{INITIAL_WINDOW, SegmentWindow, Segmented, saturated, us},
};
use midhop_units::{Bytes, Rate};

/// Fewer RTT samples in a round prove nothing; then Reno decides.
const SAMPLES_MIN: u32 = 3;

/// How many segments may wait in the queue.
///
/// Unit: segments. Range: alpha ≤ beta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VegasThresholds {
    /// Below this the window grows.
    pub alpha: u32,
    /// Above this it shrinks.
    pub beta: u32,
    /// Above this slow start ends.
    pub gamma: u32,
}

impl Parameters for VegasThresholds {
    fn usual(_: Option<Rate>) -> Option<Self> {
        Some(Self::default())
    }
}

impl Default for VegasThresholds {
    fn default() -> Self {
        Self { alpha: 2, beta: 4, gamma: 1 }
    }
}

/// The decision of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VegasWindow {
    /// Unit: segments.
    pub cwnd: u32,
    /// Unit: segments.
    pub ssthresh: u32,
    /// Whether slow start continues and its growth applies.
    pub slow_start: bool,
}

/// Our segments that wait in a queue. `rtt_us` is at least `base_us`.
pub fn queued(cwnd: u32, base_us: u32, rtt_us: u32) -> u32 {
    let waiting = u64::from(rtt_us.wrapping_sub(base_us));
    saturated(u64::from(cwnd) * waiting / u64::from(base_us.max(1)))
}

/// The end of a round whose smallest RTT was `rtt_us`, over a path of `base_us`.
pub fn decide(
    cwnd: u32,
    ssthresh: u32,
    thresholds: VegasThresholds,
    base_us: u32,
    rtt_us: u32,
) -> VegasWindow {
    let queued = queued(cwnd, base_us, rtt_us);
    let mut decision = VegasWindow { cwnd, ssthresh, slow_start: false };
    if cwnd < ssthresh && queued > thresholds.gamma {
        let target = saturated(u64::from(cwnd) * u64::from(base_us) / u64::from(rtt_us.max(1)));
        decision.cwnd = cwnd.min(target.wrapping_add(1));
        decision.ssthresh = ssthresh.min(decision.cwnd);
    } else if cwnd < ssthresh {
        decision.slow_start = true;
    } else if queued > thresholds.beta {
        decision.cwnd = cwnd.wrapping_sub(1);
        decision.ssthresh = ssthresh.min(decision.cwnd);
    } else if queued < thresholds.alpha {
        decision.cwnd = cwnd.wrapping_add(1);
    }
    decision.cwnd = decision.cwnd.max(reno::WINDOW_MIN);
    decision
}

/// Outside recovery the threshold follows the window at three quarters.
pub fn threshold(cwnd: u32, ssthresh: u32) -> u32 {
    ssthresh.max((cwnd >> 1).wrapping_add(cwnd >> 2))
}

/// Vegas as a controller: Reno's slow start with an exit of its own × its avoidance × Reno's halving.
#[derive(Debug, Clone)]
pub struct Vegas {
    thresholds: VegasThresholds,
    window: SegmentWindow,
    base_us: u32,
    rtt_min_us: u32,
    samples: u32,
    /// The round being measured; `None` until the first acknowledgement after a recovery.
    round: Option<u64>,
}

impl Vegas {
    /// A new connection with segments of `mss`.
    pub fn new(mss: Bytes, thresholds: VegasThresholds) -> Self {
        Self {
            thresholds,
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            base_us: u32::MAX,
            rtt_min_us: u32::MAX,
            samples: 0,
            round: None,
        }
    }

    fn begin_round(&mut self, round: Option<u64>) {
        self.round = round;
        self.rtt_min_us = u32::MAX;
        self.samples = 0;
    }

    fn grow_as_reno(&mut self, segments: u32) {
        let SegmentWindow { cwnd, count, ssthresh, .. } = self.window;
        (self.window.cwnd, self.window.count) = reno::grow(cwnd, count, ssthresh, segments);
    }

    fn slow_start(&mut self, segments: u32) {
        self.window.cwnd = reno::slow_start(self.window.cwnd, self.window.ssthresh, segments).0;
    }

    fn end_round(&mut self, segments: u32) {
        if self.samples < SAMPLES_MIN {
            self.grow_as_reno(segments);
            return;
        }
        let decision = decide(
            self.window.cwnd,
            self.window.ssthresh,
            self.thresholds,
            self.base_us,
            self.rtt_min_us,
        );
        self.window.cwnd = decision.cwnd;
        self.window.ssthresh = decision.ssthresh;
        if decision.slow_start {
            self.slow_start(segments);
        }
        self.window.ssthresh = threshold(self.window.cwnd, self.window.ssthresh);
    }
}

impl Vegas {
    pub(crate) const DESCRIPTION: Description = Description {
        name: "vegas",
        slow_start: FirstSlowStart::Own,
        keys: &["alpha", "beta", "gamma"],
        ..Description::WINDOW
    };

    pub(crate) fn controller(common: &Common<'_>, thresholds: &VegasThresholds) -> Controller {
        Controller::windowed(Self::new(common.mss, *thresholds), common)
    }
}

impl Segmented for Vegas {
    fn segments(&mut self) -> &mut SegmentWindow {
        &mut self.window
    }
}

impl CongestionControl for Vegas {
    fn on_established(&mut self, established: &Established) {
        // Not for the base: a handshake's segments take less time on a slow link than data will.
        self.window.establish(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.window.sample(rtt);
            // Never zero, since it is a divisor.
            let rtt_us = us(rtt).saturating_add(1);
            self.base_us = self.base_us.min(rtt_us);
            self.rtt_min_us = self.rtt_min_us.min(rtt_us);
            self.samples += 1;
        }
        let segments = self.window.segments(ack.acked);
        match ack.phase {
            Phase::Recovery => return,
            Phase::Loss => {
                if !ack.app_limited {
                    self.grow_as_reno(segments);
                }
                return;
            }
            Phase::Open => self.window.settle(),
        }
        match self.round {
            Some(round) if round == ack.round => {
                if self.window.in_slow_start() && !ack.app_limited {
                    self.slow_start(segments);
                }
            }
            Some(_) => {
                if !ack.app_limited {
                    self.end_round(segments);
                }
                self.begin_round(Some(ack.round));
            }
            None => self.begin_round(Some(ack.round)),
        }
    }

    fn on_loss(&mut self, _loss: &Loss) {
        let half = reno::halve(self.window.cwnd);
        self.window.reduce(half, half);
        self.begin_round(None);
    }

    fn on_rto(&mut self, _rto: &Rto) {
        self.window.reduce(1, reno::halve(self.window.cwnd));
        self.begin_round(None);
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
    }

    fn on_handover(&mut self, handover: &Handover) {
        // On a longer path the old base would count the distance as a queue.
        self.base_us = handover.rtt.map_or(u32::MAX, |rtt| us(rtt).saturating_add(1));
        self.begin_round(None);
    }

    fn is_in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    fn slow_start_threshold(&self) -> Option<Bytes> {
        self.window.threshold()
    }

    fn window(&self) -> Bytes {
        self.window.bytes()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.window.pacing_rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_units::{Duration, Instant};

    fn round(vegas: &mut Vegas, number: u64, rtt_ms: u64) -> u64 {
        for _ in 0..vegas.window().get() / 1000 {
            vegas.on_ack(&Ack {
                now: Instant::START,
                acked: Bytes::new(1000),
                lost: Bytes::ZERO,
                rtt: Some(Duration::from_ms(rtt_ms)),
                delivery_rate: None,
                in_flight: Bytes::ZERO,
                round: number,
                app_limited: false,
                phase: Phase::Open,
                ..Ack::default()
            });
        }
        vegas.window().get() / 1000
    }

    #[test]
    fn slow_start_ends_where_a_queue_begins_and_the_window_is_held_there() {
        let mut vegas = Vegas::new(Bytes::new(1000), VegasThresholds::default());
        let first = round(&mut vegas, 0, 600);
        assert_eq!(first, 19, "the first acknowledgement only opens the round");
        let second = round(&mut vegas, 1, 600);
        assert_eq!(second, 38);
        let third = round(&mut vegas, 2, 660);
        assert_eq!(third, 76, "the queue is seen when the round is over");
        let held = round(&mut vegas, 3, 660);
        assert_eq!(held, 77 * 600_001 / 660_001 + 1 - 1, "76 · 600/660 + 1, rounded down");
        let shrunk = round(&mut vegas, 4, 660);
        assert_eq!(shrunk, held - 1, "seven segments wait, four may");
    }

    #[test]
    fn a_handover_forgets_the_shorter_path() {
        let mut vegas = Vegas::new(Bytes::new(1000), VegasThresholds::default());
        vegas.on_loss(&Loss { now: Instant::START, lost: Bytes::ZERO, in_flight: Bytes::ZERO });
        let before = round(&mut vegas, 0, 25);
        vegas.on_handover(&Handover { now: Instant::START, rtt: None, rate: None });
        let mut after = 0;
        for number in 1..5 {
            after = round(&mut vegas, number, 55);
        }
        assert!(after > before, "{after} after, {before} before");
    }
}
