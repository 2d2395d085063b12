//! The common parts of windows counted in segments: the window itself, its earlier state, and its pacing.

use crate::{Ack, CongestionControl, Established, Phase};
use midhop_units::{Bytes, Duration, Rate};

/// RFC 6928's initial window.
pub(crate) const INITIAL_WINDOW: u32 = 10;
/// No threshold yet: slow start continues until something ends it.
pub(crate) const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// A controller whose window is a [`SegmentWindow`], so that an opening can set it.
pub(crate) trait Segmented: CongestionControl {
    fn segments(&mut self) -> &mut SegmentWindow;
}

/// A congestion window in segments with its slow-start threshold.
#[derive(Debug, Clone)]
pub(crate) struct SegmentWindow {
    /// Unit: segments. Range: ≥ 1.
    pub cwnd: u32,
    /// Unit: segments.
    pub ssthresh: u32,
    /// Segments towards the next, where a law counts them so.
    pub count: u32,
    mss: Bytes,
    /// Bytes acknowledged that are not a whole segment yet.
    partial: u64,
    /// Segments acknowledged that slow start has not counted yet because it counts every nth.
    uncounted: u32,
    before: Option<(u32, u32)>,
    srtt: Option<Duration>,
}

impl SegmentWindow {
    pub fn new(mss: Bytes, cwnd: u32) -> Self {
        Self {
            cwnd,
            ssthresh: NO_THRESHOLD,
            count: 0,
            mss: mss.max(Bytes::new(1)),
            partial: 0,
            uncounted: 0,
            before: None,
            srtt: None,
        }
    }

    pub fn mss(&self) -> u32 {
        saturated(self.mss.get())
    }

    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Where slow start ended, or `None` before its first end.
    pub fn threshold(&self) -> Option<Bytes> {
        let known = (self.ssthresh < NO_THRESHOLD).then_some(self.ssthresh)?;
        Some(Bytes::new(u64::from(known).saturating_mul(self.mss.get())))
    }

    /// Whole segments in `acked`; the rest is kept for the next call.
    pub fn segments(&mut self, acked: Bytes) -> u32 {
        let bytes = self.partial.saturating_add(acked.get());
        self.partial = bytes % self.mss.get();
        saturated(bytes / self.mss.get())
    }

    /// `segments` / `divisor`; the rest is kept for the next call.
    pub fn divide(&mut self, segments: u32, divisor: u32) -> u32 {
        let segments = segments.saturating_add(self.uncounted);
        self.uncounted = segments % divisor.max(1);
        segments / divisor.max(1)
    }

    /// The handshake's round-trip time is the first.
    pub fn establish(&mut self, established: &Established) {
        if let Some(rtt) = established.rtt {
            self.sample(rtt);
        }
    }

    /// Processes an acknowledgement's measurements, and whether the last reduction still can be undone.
    pub fn measure(&mut self, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.sample(rtt);
        }
        if ack.phase == Phase::Open {
            self.settle();
        }
    }

    /// Smooths an RTT sample as RFC 6298 does.
    pub fn sample(&mut self, rtt: Duration) {
        self.srtt = Some(match self.srtt {
            None => rtt,
            Some(srtt) => Duration::from_ns((srtt.as_ns() / 8 * 7).saturating_add(rtt.as_ns() / 8)),
        });
    }

    pub fn srtt(&self) -> Option<Duration> {
        self.srtt
    }

    /// Sets `ssthresh` for a loss and `cwnd` as the window, and remembers the old values.
    pub fn reduce(&mut self, cwnd: u32, ssthresh: u32) {
        self.before.get_or_insert((self.cwnd, self.ssthresh));
        self.cwnd = cwnd;
        self.ssthresh = ssthresh;
        self.count = 0;
    }

    /// The remembered values are no longer valid once the recovery has ended.
    pub fn settle(&mut self) {
        self.before = None;
    }

    /// Undoes the last reduction, unless the window has outgrown it.
    pub fn restore(&mut self) {
        if let Some((cwnd, ssthresh)) = self.before.take() {
            self.cwnd = self.cwnd.max(cwnd);
            self.ssthresh = self.ssthresh.max(ssthresh);
        }
    }

    pub fn bytes(&self) -> Bytes {
        Bytes::new(u64::from(self.cwnd).saturating_mul(self.mss.get()))
    }

    /// Linux' pacing: twice the window per SRTT while slow start is far from its end, else 1.2 times.
    pub fn pacing_rate(&self) -> Option<Rate> {
        let srtt = self.srtt.filter(|srtt| !srtt.is_zero())?;
        let percent = if self.cwnd < self.ssthresh / 2 { 200 } else { 120 };
        Some(Rate::of(Bytes::new(self.bytes().get().saturating_mul(percent) / 100), srtt))
    }
}

/// The value in 32 bits, or the largest possible.
pub(crate) fn saturated(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// A span in whole microseconds.
pub(crate) fn us(span: Duration) -> u32 {
    saturated(span.as_ns() / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_segments_without_loss() {
        let mut window = SegmentWindow::new(Bytes::new(1448), 10);
        let counted: u32 = (0..1448).map(|_| window.segments(Bytes::new(3))).sum();
        assert_eq!(counted, 3);
        assert_eq!(window.segments(Bytes::new(2896)), 2);
    }

    #[test]
    fn a_quarter_of_the_segments_is_counted_without_loss() {
        let mut window = SegmentWindow::new(Bytes::new(1448), 10);
        assert_eq!((0..10).map(|_| window.divide(3, 4)).sum::<u32>(), 7);
        assert_eq!(window.divide(5, 1), 7);
    }

    #[test]
    fn the_smoothed_rtt_follows_rfc_6298() {
        let mut window = SegmentWindow::new(Bytes::new(1448), 10);
        for (sample, smoothed) in [(600, 600.0), (600, 600.0), (800, 625.0)] {
            window.sample(Duration::from_ms(sample));
            assert_eq!(window.srtt().map(Duration::as_ms_f64), Some(smoothed));
        }
    }

    #[test]
    fn a_reduction_is_undone_once() {
        let mut window = SegmentWindow::new(Bytes::new(1448), 100);
        window.reduce(50, 50);
        window.reduce(1, 25);
        window.restore();
        assert_eq!((window.cwnd, window.ssthresh), (100, NO_THRESHOLD));
        window.reduce(50, 50);
        window.settle();
        window.restore();
        assert_eq!((window.cwnd, window.ssthresh), (50, 50));
    }

    #[test]
    fn pacing_is_twice_the_window_early_and_a_fifth_over_it_late() {
        let mut window = SegmentWindow::new(Bytes::new(1000), 10);
        assert_eq!(window.pacing_rate(), None);
        window.sample(Duration::from_ms(100));
        assert_eq!(window.pacing_rate(), Some(Rate::from_bits_per_s(1_600_000)));
        window.ssthresh = 10;
        assert_eq!(window.pacing_rate(), Some(Rate::from_bits_per_s(960_000)));
    }
}
