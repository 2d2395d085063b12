//! Westwood+: after a loss the window becomes the measured capacity of the path.
//!
//! Source: S. Mascolo et al., "TCP Westwood: bandwidth estimation for enhanced transport over wireless
//! links", MobiCom 2001, with Westwood+'s one sample per RTT; filter and accounting as in Linux
//! (net/ipv4/tcp_westwood.c). Differs: time is counted in milliseconds, not jiffies, and the filter has eight binary
//! places, so that its rounding does not depend on how a kernel was built. In whole bytes per jiffy each of its
//! stages stays up to seven of them below, 7 % of 0.8 Mbit/s where a jiffy is a millisecond.
//! `programs/laws/westwood.h` in midhop-bpf computes the same.

use crate::common::Common;
use crate::description::Description;
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, Phase, Rto, SlowStart,
    Spurious, reno,
    segments::{INITIAL_WINDOW, SegmentWindow, Segmented, saturated},
    slow_start::Start,
};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// A sample spans at least this. Unit: ms.
const SPAN_MIN_MS: u32 = 50;
/// The RTT assumed before the first measurement. Unit: ms.
const RTT_INITIAL_MS: u32 = 20_000;

/// Binary places of the filter.
const PLACES: u32 = 8;

/// A sample of `bytes` that arrived within `span_ms`, in the filter's unit. Unit: bytes per 256 ms.
pub fn sampled(bytes: u64, span_ms: u32) -> u32 {
    saturated(bytes.saturating_mul(1 << PLACES) / u64::from(span_ms.max(1)))
}

/// Two low-pass stages over the delivered rate. Unit: bytes per 256 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filter {
    /// After one stage.
    pub once: u32,
    /// After both: the estimate.
    pub twice: u32,
}

impl Filter {
    /// Takes a sample; the first one seeds both stages.
    pub fn update(&mut self, sample: u32) {
        let low_pass = |old: u32, new: u32| saturated((7 * u64::from(old) + u64::from(new)) >> 3);
        if *self == Self::default() {
            *self = Self { once: sample, twice: sample };
        } else {
            self.once = low_pass(self.once, sample);
            self.twice = low_pass(self.twice, self.once);
        }
    }

    /// The window that fills the path without a queue. Unit: segments.
    pub fn window(self, rtt_min_ms: u32, mss: u32) -> u32 {
        let bytes = (u64::from(self.twice) * u64::from(rtt_min_ms)) >> PLACES;
        saturated(bytes / u64::from(mss.max(1))).max(reno::WINDOW_MIN)
    }
}

/// Whether a sample of `span_ms` is long enough to close.
pub fn sample_due(span_ms: u32, rtt_ms: u32) -> bool {
    rtt_ms > 0 && span_ms > rtt_ms.max(SPAN_MIN_MS)
}

/// What the cumulative acknowledgement has covered, and what duplicates have reported before it.
///
/// For transports that see only cumulative acknowledgements; [`Ack::acked`] counts selective ones too
/// and needs no such accounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The cumulative acknowledgement, on a circle of 32 bits.
    pub una: u32,
    /// Bytes counted for duplicate acknowledgements and not yet covered.
    pub accounted: u32,
}

impl Count {
    /// Bytes that an acknowledgement up to `una` shows to have arrived.
    pub fn delivered(&mut self, una: u32, mss: u32) -> u32 {
        let mut delivered = una.wrapping_sub(self.una);
        if delivered == 0 {
            self.accounted = self.accounted.wrapping_add(mss);
            delivered = mss;
        } else if delivered > mss {
            if self.accounted >= delivered {
                self.accounted -= delivered;
                delivered = mss;
            } else {
                delivered -= self.accounted;
                self.accounted = 0;
            }
        }
        self.una = una;
        delivered
    }
}

/// Westwood+ as a controller: a slow start × Reno's avoidance × the estimate after a loss.
#[derive(Debug, Clone)]
pub struct Westwood {
    window: SegmentWindow,
    filter: Filter,
    sample_bytes: u64,
    sample_started: Option<Instant>,
    rtt_ms: u32,
    rtt_min_ms: Option<u32>,
    phase: Phase,
    start: Start,
}

impl Westwood {
    /// A new connection with segments of `mss`, over a transport that paces or does not.
    pub fn new(mss: Bytes, slow_start: SlowStart, paced: bool) -> Self {
        Self {
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            start: Start::new(slow_start, paced),
            filter: Filter::default(),
            sample_bytes: 0,
            sample_started: None,
            rtt_ms: RTT_INITIAL_MS,
            rtt_min_ms: None,
            phase: Phase::Open,
        }
    }

    fn estimate(&self) -> u32 {
        self.filter.window(self.rtt_min_ms.unwrap_or(self.rtt_ms), self.window.mss())
    }

    /// Closes the running sample when it is long enough, and adds to it.
    fn measure(&mut self, ack: &Ack) {
        let started = *self.sample_started.get_or_insert(ack.now);
        let span_ms = ms(ack.now.saturating_since(started));
        if sample_due(span_ms, self.rtt_ms) {
            self.filter.update(sampled(self.sample_bytes, span_ms));
            self.sample_bytes = 0;
            self.sample_started = Some(ack.now);
        }
        self.sample_bytes = self.sample_bytes.saturating_add(ack.acked.get());
        if let Some(rtt) = ack.rtt {
            self.rtt_ms = saturated(rtt.as_ns().div_ceil(1_000_000));
        }
        self.rtt_min_ms =
            Some(self.rtt_min_ms.map_or(self.rtt_ms, |smallest| smallest.min(self.rtt_ms)));
    }
}

fn ms(span: Duration) -> u32 {
    saturated(span.as_ns() / 1_000_000)
}

impl Westwood {
    pub(crate) const DESCRIPTION: Description =
        Description { name: "westwood", ..Description::WINDOW };

    pub(crate) fn controller(common: &Common<'_>) -> Controller {
        Controller::windowed(
            Self::new(common.mss, common.slow_start_by(&Self::DESCRIPTION), common.paced),
            common,
        )
    }
}

impl Segmented for Westwood {
    fn segments(&mut self) -> &mut SegmentWindow {
        &mut self.window
    }
}

impl CongestionControl for Westwood {
    fn on_established(&mut self, established: &Established) {
        self.window.establish(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.window.sample(rtt);
        }
        self.measure(ack);
        if self.phase == Phase::Recovery && ack.phase == Phase::Open {
            let estimate = self.estimate();
            self.window.cwnd = estimate;
            self.window.ssthresh = estimate;
        }
        self.phase = ack.phase;
        let segments = self.window.segments(ack.acked);
        if ack.phase == Phase::Open {
            self.window.settle();
        }
        if ack.phase == Phase::Recovery {
            return;
        }
        let left = self.start.grow(&mut self.window, ack, segments);
        if let Some(left) = left.filter(|_| !ack.app_limited) {
            let SegmentWindow { cwnd, count, .. } = self.window;
            (self.window.cwnd, self.window.count) = reno::avoid(cwnd, count, left);
        }
    }

    fn on_loss(&mut self, _loss: &Loss) {
        let half = reno::halve(self.window.cwnd);
        self.window.reduce(half, half);
        self.start.on_loss();
        self.phase = Phase::Recovery;
    }

    fn on_rto(&mut self, _rto: &Rto) {
        self.window.reduce(1, self.estimate());
        // After a timeout the path may be a longer one.
        self.rtt_min_ms = None;
        self.start.on_rto();
        self.phase = Phase::Loss;
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
        self.phase = Phase::Open;
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.rtt_min_ms = handover.rtt.map(ms);
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

    const MSS: u64 = 1000;

    /// One segment each millisecond over a path of 100 ms: 1000 bytes per ms, 100 segments in flight.
    fn steady(westwood: &mut Westwood, from_ms: u64, acks: u64, phase: Phase) {
        for n in from_ms..from_ms + acks {
            westwood.on_ack(&Ack {
                now: Instant::from_ns(n * 1_000_000),
                acked: Bytes::new(MSS),
                lost: Bytes::ZERO,
                rtt: Some(Duration::from_ms(100)),
                delivery_rate: None,
                in_flight: Bytes::new(100 * MSS),
                round: n / 100,
                app_limited: false,
                phase,
                ..Ack::default()
            });
        }
    }

    #[test]
    fn a_loss_cuts_to_what_the_path_carries() {
        let mut westwood = Westwood::new(Bytes::new(MSS), SlowStart::Classic, false);
        steady(&mut westwood, 0, 1000, Phase::Open);
        assert!(westwood.window().get() > 900 * MSS);
        let loss =
            Loss { now: Instant::START, lost: Bytes::new(MSS), in_flight: westwood.window() };
        westwood.on_loss(&loss);
        steady(&mut westwood, 1000, 100, Phase::Recovery);
        steady(&mut westwood, 1100, 1, Phase::Open);
        let segments = westwood.window().get() / MSS;
        assert!((99..=101).contains(&segments), "{segments}");
    }

    #[test]
    fn a_timeout_keeps_the_estimate_as_threshold() {
        let mut westwood = Westwood::new(Bytes::new(MSS), SlowStart::Classic, false);
        steady(&mut westwood, 0, 1000, Phase::Open);
        westwood.on_rto(&Rto { now: Instant::START, in_flight: Bytes::ZERO });
        assert_eq!(westwood.window(), Bytes::new(MSS));
        steady(&mut westwood, 1000, 120, Phase::Loss);
        let segments = westwood.window().get() / MSS;
        assert!((99..=102).contains(&segments), "{segments}");
    }

    #[test]
    fn a_segment_reported_twice_is_counted_once() {
        let mut count = Count { una: 1000, accounted: 0 };
        assert_eq!(count.delivered(1000, 100), 100);
        assert_eq!(count.delivered(1000, 100), 100);
        assert_eq!(count.delivered(1300, 100), 100);
        assert_eq!(count, Count { una: 1300, accounted: 0 });
    }
}
