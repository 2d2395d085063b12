//! DVegas in our reading: Vegas between two proxies, with reports of the terminal's queue.
//!
//! Source: the abstract of H. Wu, Q. Peng, V. Leung on a decoupled Vegas for satellite networks (IEEE
//! PIMRC 2004). It states that flow control is separate from the recovery of losses, that the state of the
//! terminal's MAC queue is fed back to the sending proxy at once, and that only this feedback reduces
//! the window. We found no published equations: **the law below is ours**, and results
//! with it are results of this reading.
//!
//! - A loss leaves the window as it is: without feedback it is attributed to the channel. A congestion mark is
//!   feedback, and halves it.
//! - Once per round the segments in the terminal's queue, of any sender, decide as Vegas' estimate would: fewer
//!   than α let the window grow by one, more than β shrink it by one, slow start ends above γ.
//! - A queue elsewhere is not reported: the part of Vegas' RTT estimate beyond the terminal's
//!   report counts by the same α and β, and is all that counts without reports.
//! - A queue beyond `limit` is drained at once, once per round: the window shrinks by all above β.
//! - When the terminal's allocation changes, the window is at most the data that it carries in the shortest RTT,
//!   plus β.
//! - A timeout shows that nothing arrives at all: slow start from one segment, up to half the window.

use crate::common::Common;
use crate::description::{Description, FirstSlowStart, InKernel, Parameters};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, Phase, QueueReport, Rto,
    Spurious, reno,
    segments::{INITIAL_WINDOW, SegmentWindow, Segmented, saturated, us},
    vegas,
};
use midhop_units::{Bytes, Rate};

/// Fewer RTT samples in a round prove nothing about a queue elsewhere.
const SAMPLES_MIN: u32 = 3;

/// How many segments may wait.
///
/// Unit: segments. Range: alpha ≤ beta ≤ limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DVegasThresholds {
    /// Vegas' α, β and γ.
    #[cfg_attr(feature = "serde", serde(rename = "thresholds"))]
    pub vegas: vegas::VegasThresholds,
    /// Above this the terminal's queue is drained at once.
    pub limit: u32,
}

impl Parameters for DVegasThresholds {
    fn usual(_: Option<Rate>) -> Option<Self> {
        Some(Self::default())
    }
}

impl Default for DVegasThresholds {
    fn default() -> Self {
        Self { vegas: vegas::VegasThresholds::default(), limit: 16 }
    }
}

/// The decision of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Slow start continues.
    SlowStart,
    /// Slow start is over, or the queue is too long: this window from now on. Unit: segments.
    Cut(u32),
    /// One segment more.
    Grow,
    /// One segment less.
    Shrink,
    /// The window stays.
    Hold,
}

/// The end of a round: `local` segments wait at the terminal, `elsewhere` in other queues by Vegas'
/// estimate.
pub fn decide(
    cwnd: u32,
    slow_start: bool,
    thresholds: DVegasThresholds,
    local: u32,
    elsewhere: u32,
) -> Decision {
    let vegas::VegasThresholds { alpha, beta, gamma } = thresholds.vegas;
    let waiting = local.max(elsewhere);
    if local > thresholds.limit {
        Decision::Cut(cwnd.saturating_sub(local - beta.min(local)).max(reno::WINDOW_MIN))
    } else if slow_start && waiting > gamma {
        Decision::Cut(cwnd.saturating_sub(waiting).max(reno::WINDOW_MIN))
    } else if slow_start {
        Decision::SlowStart
    } else if waiting > beta {
        Decision::Shrink
    } else if waiting < alpha {
        Decision::Grow
    } else {
        Decision::Hold
    }
}

/// Our reading of DVegas as a controller.
#[derive(Debug, Clone)]
pub struct DVegas {
    thresholds: DVegasThresholds,
    window: SegmentWindow,
    base_us: u32,
    rtt_min_us: u32,
    samples: u32,
    round: Option<u64>,
    /// The terminal's last report. Unit: segments.
    local: Option<u32>,
    allocation: Option<Rate>,
}

impl DVegas {
    /// A new connection with segments of `mss`.
    pub fn new(mss: Bytes, thresholds: DVegasThresholds) -> Self {
        Self {
            thresholds,
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            base_us: u32::MAX,
            rtt_min_us: u32::MAX,
            samples: 0,
            round: None,
            local: None,
            allocation: None,
        }
    }

    fn begin_round(&mut self, round: Option<u64>) {
        self.round = round;
        self.rtt_min_us = u32::MAX;
        self.samples = 0;
    }

    fn take_rtt(&mut self, rtt_us: u32) {
        // Never zero, since it is a divisor.
        let rtt_us = rtt_us.saturating_add(1);
        self.base_us = self.base_us.min(rtt_us);
        self.rtt_min_us = self.rtt_min_us.min(rtt_us);
        self.samples += 1;
    }

    fn end_round(&mut self, segments: u32) {
        let cwnd = self.window.cwnd;
        let local = self.local.unwrap_or(0);
        let elsewhere = if self.samples < SAMPLES_MIN {
            0
        } else {
            vegas::queued(cwnd, self.base_us, self.rtt_min_us).saturating_sub(local)
        };
        let slow_start = self.window.in_slow_start();
        match decide(cwnd, slow_start, self.thresholds, local, elsewhere) {
            Decision::SlowStart => self.slow_start(segments),
            Decision::Cut(window) => self.set(window),
            Decision::Shrink => self.set(cwnd.saturating_sub(1).max(reno::WINDOW_MIN)),
            Decision::Grow => self.window.cwnd = cwnd.saturating_add(1),
            Decision::Hold => {}
        }
    }

    fn set(&mut self, window: u32) {
        self.window.cwnd = window;
        self.window.ssthresh = self.window.ssthresh.min(window);
    }

    fn slow_start(&mut self, segments: u32) {
        let SegmentWindow { cwnd, ssthresh, .. } = self.window;
        self.window.cwnd = reno::slow_start(cwnd, ssthresh, segments).0;
    }

    /// The data that the terminal may send in the shortest RTT, plus its allowed queue.
    fn bound_by(&mut self, allocation: Rate) {
        if self.base_us == u32::MAX {
            return;
        }
        let bytes_per_s = allocation.bits_per_s() / 8;
        let carried = u128::from(bytes_per_s) * u128::from(self.base_us) / 1_000_000;
        let carried = u64::try_from(carried).unwrap_or(u64::MAX) / u64::from(self.window.mss());
        let most = saturated(carried).saturating_add(self.thresholds.vegas.beta);
        if self.window.cwnd > most {
            self.set(most.max(reno::WINDOW_MIN));
        }
    }
}

impl DVegas {
    pub(crate) const DESCRIPTION: Description = Description {
        name: "dvegas",
        kernel: InKernel::Never,
        slow_start: FirstSlowStart::Own,
        keys: &["alpha", "beta", "gamma", "limit", "queue_feedback"],
        ..Description::WINDOW
    };

    pub(crate) fn controller(common: &Common<'_>, thresholds: &DVegasThresholds) -> Controller {
        Controller::windowed(Self::new(common.mss, *thresholds), common)
    }
}

impl Segmented for DVegas {
    fn segments(&mut self) -> &mut SegmentWindow {
        &mut self.window
    }
}

impl CongestionControl for DVegas {
    fn on_established(&mut self, established: &Established) {
        // Not for the base: a handshake's segments take less time on a slow link than data will.
        self.window.establish(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.window.measure(ack);
        if let Some(rtt) = ack.rtt {
            self.take_rtt(us(rtt));
        }
        let segments = self.window.segments(ack.acked);
        match self.round {
            Some(round) if round == ack.round => {
                if self.window.in_slow_start() && !ack.app_limited && ack.phase != Phase::Recovery {
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

    /// A loss of the channel: the transport repairs it, the window stays. But a mark comes from a queue.
    fn on_loss(&mut self, loss: &Loss) {
        if loss.lost == Bytes::ZERO {
            let half = reno::halve(self.window.cwnd);
            self.window.reduce(half, half);
            self.begin_round(None);
        }
    }

    fn on_rto(&mut self, _rto: &Rto) {
        self.window.reduce(1, reno::halve(self.window.cwnd));
        self.begin_round(None);
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.base_us = handover.rtt.map_or(u32::MAX, |rtt| us(rtt).saturating_add(1));
        self.local = None;
        self.begin_round(None);
    }

    fn on_queue(&mut self, report: &QueueReport) {
        let mss = u64::from(self.window.mss());
        self.local = Some(saturated(report.queued.get().div_ceil(mss)));
        if report.allocation.is_some() && report.allocation != self.allocation {
            self.allocation = report.allocation;
            report.allocation.into_iter().for_each(|allocation| self.bound_by(allocation));
        }
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
    use crate::testing::ack;
    use midhop_units::{Duration, Instant};

    const MSS: u64 = 1000;

    fn report(segments: u64, allocation: Option<Rate>) -> QueueReport {
        QueueReport { now: Instant::START, queued: Bytes::new(segments * MSS), allocation }
    }

    /// A round of the whole window at `rtt_ms`; returns the window after it.
    fn round(dvegas: &mut DVegas, number: u64, rtt_ms: u64) -> u64 {
        for _ in 0..dvegas.window().get() / MSS {
            dvegas.on_ack(&Ack { rtt: Some(Duration::from_ms(rtt_ms)), ..ack(number, MSS) });
        }
        dvegas.window().get() / MSS
    }

    fn in_avoidance(window: u32) -> DVegas {
        let mut dvegas = DVegas::new(Bytes::new(MSS), DVegasThresholds::default());
        dvegas.window.cwnd = window;
        dvegas.window.ssthresh = window;
        dvegas.begin_round(Some(0));
        dvegas
    }

    #[test]
    fn the_law_by_its_parts() {
        let decided = |slow_start, local, elsewhere| {
            decide(100, slow_start, DVegasThresholds::default(), local, elsewhere)
        };
        assert_eq!(decided(true, 1, 0), Decision::SlowStart);
        assert_eq!(decided(true, 2, 0), Decision::Cut(98));
        assert_eq!(decided(true, 0, 5), Decision::Cut(95));
        assert_eq!(decided(false, 1, 0), Decision::Grow);
        assert_eq!(decided(false, 2, 4), Decision::Hold);
        assert_eq!(decided(false, 5, 0), Decision::Shrink);
        assert_eq!(decided(false, 0, 5), Decision::Shrink);
        assert_eq!(decided(false, 16, 0), Decision::Shrink);
        assert_eq!(decided(false, 17, 0), Decision::Cut(87));
        assert_eq!(decided(true, 500, 0), Decision::Cut(2));
    }

    #[test]
    fn slow_start_ends_when_the_terminal_reports_a_queue() {
        let mut dvegas = DVegas::new(Bytes::new(MSS), DVegasThresholds::default());
        assert_eq!(round(&mut dvegas, 0, 600), 19);
        assert_eq!(round(&mut dvegas, 1, 600), 38);
        dvegas.on_queue(&report(12, None));
        // The round's first acknowledgement cuts the window; for the rest slow start is over.
        assert_eq!(round(&mut dvegas, 2, 600), 26);
        dvegas.on_queue(&report(3, None));
        assert_eq!(round(&mut dvegas, 3, 600), 26);
    }

    #[test]
    fn a_loss_changes_nothing_and_the_window_goes_on_by_the_queue() {
        let mut dvegas = in_avoidance(50);
        dvegas.on_queue(&report(0, None));
        dvegas.on_loss(&Loss {
            now: Instant::START,
            lost: Bytes::new(MSS),
            in_flight: Bytes::ZERO,
        });
        assert_eq!(dvegas.window(), Bytes::new(50 * MSS));
        dvegas.on_ack(&Ack { phase: Phase::Recovery, ..ack(1, MSS) });
        assert_eq!(dvegas.window(), Bytes::new(51 * MSS));
        let mark = Loss { now: Instant::START, lost: Bytes::ZERO, in_flight: Bytes::ZERO };
        let mut marked = dvegas.clone();
        marked.on_loss(&mark);
        assert_eq!(marked.window(), Bytes::new(25 * MSS));
        dvegas.on_rto(&Rto { now: Instant::START, in_flight: Bytes::ZERO });
        assert_eq!((dvegas.window.cwnd, dvegas.window.ssthresh), (1, 25));
    }

    #[test]
    fn a_queue_elsewhere_is_seen_in_the_round_trip_time() {
        let mut dvegas = in_avoidance(100);
        round(&mut dvegas, 0, 600);
        // 100 · 36/600 = 6 wait; two of them at the terminal leave four elsewhere, which is allowed.
        dvegas.on_queue(&report(2, None));
        round(&mut dvegas, 1, 636);
        let held = round(&mut dvegas, 2, 636);
        assert_eq!(round(&mut dvegas, 3, 636), held);
        dvegas.on_queue(&report(0, None));
        assert_eq!(round(&mut dvegas, 4, 636), held - 1, "without the terminal's two, six");
    }

    #[test]
    fn an_allocation_bounds_the_window() {
        let mut dvegas = in_avoidance(100);
        round(&mut dvegas, 0, 600);
        // 400 kbit/s over 600 ms: 30 segments, and four may wait.
        dvegas.on_queue(&report(0, Some(Rate::from_bits_per_s(400_000))));
        assert_eq!(dvegas.window(), Bytes::new(34 * MSS));
        dvegas.on_queue(&report(0, Some(Rate::from_bits_per_s(4_000_000))));
        assert_eq!(dvegas.window(), Bytes::new(34 * MSS), "growth is the rounds'");
    }
}
