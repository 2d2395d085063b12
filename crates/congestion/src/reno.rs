//! Reno and its parts, which other algorithms use as well: slow start, congestion avoidance,
//! halving.
//!
//! Source: RFC 5681 §3.1 and RFC 3465; whole segments counted as Linux does (net/ipv4/tcp_cong.c).
//! Whether it is NewReno (RFC 6582) or repairs with selective acknowledgements (RFC 6675) is the
//! transport's choice: the window is the same. Differs from RFC 5681: the threshold is half the window, not
//! half of the data in flight; a window that is not used does not grow, so the two stay near.

use crate::common::Common;
use crate::description::{Description, InKernel};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, Phase, Rto, SlowStart,
    Spurious,
    segments::{INITIAL_WINDOW, SegmentWindow, Segmented},
    slow_start::Start,
};
use midhop_units::{Bytes, Rate};

/// The smallest window after a loss.
///
/// Unit: segments. Source: RFC 5681 §3.1, equation 4.
pub const WINDOW_MIN: u32 = 2;

/// Slow start: the window grows by what was acknowledged, up to the threshold.
///
/// Returns the new window and the segments left over for congestion avoidance.
pub fn slow_start(cwnd: u32, ssthresh: u32, acked: u32) -> (u32, u32) {
    let grown = cwnd.saturating_add(acked).min(ssthresh.max(cwnd));
    (grown, acked - (grown - cwnd))
}

/// Congestion avoidance: one segment per window of acknowledged segments.
///
/// `count` holds the acknowledged segments towards the next. Returns the new window and count.
pub fn avoid(cwnd: u32, count: u32, acked: u32) -> (u32, u32) {
    let (mut grown, mut count) = (cwnd, count);
    let per = cwnd.max(1);
    // After a reduction, the count of a larger window is worth one segment, no more.
    if count >= per {
        count = 0;
        grown = grown.saturating_add(1);
    }
    count = count.saturating_add(acked);
    grown = grown.saturating_add(count / per);
    (grown, count % per)
}

/// One acknowledgement: slow start, then avoidance with what is left. Returns window and count.
pub fn grow(cwnd: u32, count: u32, ssthresh: u32, acked: u32) -> (u32, u32) {
    let (cwnd, left) =
        if cwnd < ssthresh { slow_start(cwnd, ssthresh, acked) } else { (cwnd, acked) };
    if left == 0 { (cwnd, count) } else { avoid(cwnd, count, left) }
}

/// The threshold after a loss: half the window.
pub fn halve(cwnd: u32) -> u32 {
    (cwnd / 2).max(WINDOW_MIN)
}

/// Reno as a controller: a slow start × one segment per window × halving.
#[derive(Debug, Clone)]
pub struct Reno {
    window: SegmentWindow,
    start: Start,
}

impl Reno {
    /// A new connection with segments of `mss`, over a transport that paces or does not.
    pub fn new(mss: Bytes, slow_start: SlowStart, paced: bool) -> Self {
        Self {
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            start: Start::new(slow_start, paced),
        }
    }
}

impl Reno {
    pub(crate) const DESCRIPTION: Description =
        Description { name: "reno", kernel: InKernel::Native, ..Description::WINDOW };

    pub(crate) fn controller(common: &Common<'_>) -> Controller {
        Controller::windowed(
            Self::new(common.mss, common.slow_start_by(&Self::DESCRIPTION), common.paced),
            common,
        )
    }
}

impl Segmented for Reno {
    fn segments(&mut self) -> &mut SegmentWindow {
        &mut self.window
    }
}

impl CongestionControl for Reno {
    fn on_established(&mut self, established: &Established) {
        self.window.establish(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.window.measure(ack);
        let segments = self.window.segments(ack.acked);
        if ack.phase == Phase::Recovery {
            return;
        }
        let left = self.start.grow(&mut self.window, ack, segments);
        if let Some(left) = left.filter(|_| !ack.app_limited) {
            let SegmentWindow { cwnd, count, .. } = self.window;
            (self.window.cwnd, self.window.count) = avoid(cwnd, count, left);
        }
    }

    fn on_loss(&mut self, _loss: &Loss) {
        let half = halve(self.window.cwnd);
        self.window.reduce(half, half);
        self.start.on_loss();
    }

    fn on_rto(&mut self, _rto: &Rto) {
        self.window.reduce(1, halve(self.window.cwnd));
        self.start.on_rto();
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
    }

    /// Reno ignores handovers.
    fn on_handover(&mut self, _handover: &Handover) {}

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
    use midhop_units::Instant;

    const MSS: Bytes = Bytes::new(1000);

    fn segments(reno: &Reno) -> u64 {
        reno.window().get() / MSS.get()
    }

    #[test]
    fn a_connection_doubles_halves_and_climbs_by_one_per_round() {
        let mut reno = Reno::new(MSS, SlowStart::Classic, false);
        for round in 0..3 {
            for _ in 0..segments(&reno) {
                reno.on_ack(&ack(round, 1000));
            }
        }
        assert_eq!(segments(&reno), 80);
        reno.on_loss(&Loss { now: Instant::START, lost: MSS, in_flight: reno.window() });
        reno.on_ack(&Ack { phase: Phase::Recovery, ..ack(3, 10_000) });
        assert_eq!(segments(&reno), 40);
        for round in 4..9 {
            for _ in 0..segments(&reno) {
                reno.on_ack(&ack(round, 1000));
            }
        }
        assert_eq!(segments(&reno), 45);
    }

    #[test]
    fn a_timeout_starts_from_one_and_is_undone_where_it_was_none() {
        let mut reno = Reno::new(MSS, SlowStart::Classic, false);
        reno.on_rto(&Rto { now: Instant::START, in_flight: reno.window() });
        assert_eq!(segments(&reno), 1);
        for _ in 0..4 {
            reno.on_ack(&Ack { phase: Phase::Loss, ..ack(1, 1000) });
        }
        assert_eq!(segments(&reno), 5, "the threshold is half of ten");
        reno.on_spurious(&Spurious { now: Instant::START });
        assert_eq!(segments(&reno), 10);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = Reno::new(MSS, SlowStart::Classic, false);
        reno.on_ack(&Ack { app_limited: true, ..ack(0, 10_000) });
        assert_eq!(segments(&reno), 10);
        reno.on_loss(&Loss { now: Instant::START, lost: MSS, in_flight: MSS });
        reno.on_ack(&Ack { app_limited: true, ..ack(1, 50_000) });
        assert_eq!(segments(&reno), 5);
    }

    #[test]
    fn slow_start_doubles_and_stops_at_the_threshold() {
        assert_eq!(slow_start(10, 1000, 10), (20, 0));
        assert_eq!(slow_start(10, 15, 10), (15, 5));
        assert_eq!(slow_start(20, 15, 10), (20, 10));
        assert_eq!(grow(10, 0, 15, 10), (15, 5));
    }

    #[test]
    fn avoidance_adds_one_per_window() {
        let (mut cwnd, mut count) = (100, 0);
        for _ in 0..50 {
            (cwnd, count) = avoid(cwnd, count, 2);
        }
        assert_eq!((cwnd, count), (101, 0));
        assert_eq!(avoid(10, 25, 0), (11, 0));
        assert_eq!(halve(3), 2);
        assert_eq!(halve(100), 50);
    }
}
