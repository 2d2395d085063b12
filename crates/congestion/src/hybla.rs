//! Hybla, counted per acknowledged segment: as in its paper (`hybla`), and ours (`hybla-plus`).
//!
//! Source: C. Caini, R. Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks",
//! International Journal of Satellite Communications and Networking 22, 2004. With ρ = max(RTT/RTT0, 1)
//! every acknowledged segment adds 2^ρ − 1 in slow start and ρ²/W in congestion avoidance, so that W/RTT
//! grows as it would for a flow whose round-trip time is RTT0.
//!
//! `hybla` differs where the paper relies on other mechanisms: it gets no bandwidth estimate for its first
//! threshold, and is paced only where the transport paces. Both take ρ from the smallest RTT of a window of time:
//! an RTT that includes a queue would make the flow grow faster the longer the queue is.
//!
//! `hybla-plus` adds: slow start multiplies the window by no more than a bound per round and ends when RTTs show a
//! queue (thresholds of RFC 9406 §4.2), at the capacity that the path has shown. Losses as rare as a radio's own do
//! not halve the window but cut it to that capacity, and data that arrives meanwhile counts. A known
//! rate of the path bounds the window.

mod law;

pub use law::{
    Carried, MinRtt, ONE_Q10, QUEUE_SAMPLES, RTT_NONE, Window, bdp, carried, fit, gain_q10, kept,
    pacing_q10, power_of_two_q16, queue_seen, retreat, rho_q10, tolerated,
};

use crate::common::Common;
use crate::description::{Description, FirstSlowStart, Pacing, Parameters};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, LostSegment, Phase, Rto,
    SlowStart, Spurious, reno,
    segments::{INITIAL_WINDOW, NO_THRESHOLD, SegmentWindow, Segmented, saturated, us},
    slow_start::Start,
};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// The reference round-trip time of the paper.
const RTT0: Duration = Duration::from_ms(25);
/// Unit: segments. The limit of today's window scaling.
const WINDOW_MAX: u32 = 65_535;
const MIN_RTT_WINDOW: Duration = Duration::from_s(60);

/// Settings of a [`Hybla`]. The serialised form omits what no scenario can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct HyblaSettings {
    /// The round-trip time of the flow it imitates.
    pub rtt0: Duration,
    /// How many times the window may grow per round in slow start, with ten binary places.
    pub growth_max_q10: u32,
    /// The window's upper bound. Unit: segments.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub window_max: u32,
    /// The rate of the path where it is known: slow start ends at its bandwidth-delay product.
    pub rate: Option<Rate>,
    /// With a known rate, the window's bound in bandwidth-delay products, with ten binary places.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub window_bdp_max_q10: u32,
    /// Whether the known rate is this flow's own share of the path: the flow then starts at it, paced, and
    /// keeps to it until more is lost than the tolerance explains.
    pub start_at_rate: bool,
    /// How long the smallest RTT is valid before a larger one may replace it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub min_rtt_window: Duration,
    /// The share of segments that may be lost without the window being halved, with sixteen binary
    /// places. Zero: the paper's halving at every loss.
    pub loss_tolerance_q16: u32,
}

impl HyblaSettings {
    /// The paper's: every loss halves, and only the threshold bounds slow start.
    pub const fn published(rtt0: Duration) -> Self {
        Self {
            rtt0,
            growth_max_q10: u32::MAX,
            window_max: WINDOW_MAX,
            rate: None,
            window_bdp_max_q10: 0,
            start_at_rate: false,
            min_rtt_window: MIN_RTT_WINDOW,
            loss_tolerance_q16: 0,
        }
    }
}

impl Default for HyblaSettings {
    fn default() -> Self {
        Self {
            rtt0: RTT0,
            growth_max_q10: 4 * ONE_Q10,
            window_max: WINDOW_MAX,
            rate: None,
            window_bdp_max_q10: 3 * ONE_Q10 / 2,
            start_at_rate: false,
            min_rtt_window: MIN_RTT_WINDOW,
            loss_tolerance_q16: 1311,
        }
    }
}

impl Parameters for HyblaSettings {
    fn usual(rate: Option<Rate>) -> Option<Self> {
        Some(Self { rate, ..Self::default() })
    }
}

/// The flow that Hybla imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReferenceFlow {
    /// Its round-trip time. Default: 25 ms.
    pub rtt0: Duration,
}

impl Default for ReferenceFlow {
    fn default() -> Self {
        Self { rtt0: RTT0 }
    }
}

impl Parameters for ReferenceFlow {
    fn usual(_: Option<Rate>) -> Option<Self> {
        Some(Self::default())
    }
}

/// Hybla as its paper has it.
pub(crate) struct Published;

/// A recovery whose losses are tolerable so far.
#[derive(Debug, Clone, Copy)]
struct Tolerating {
    /// The window when it began. Unit: segments.
    window: u32,
    lost: Bytes,
    delivered: Bytes,
}

/// Hybla as a controller: its slow start × its avoidance × the capacity of the path, or half.
#[derive(Debug, Clone)]
pub struct Hybla {
    settings: HyblaSettings,
    window: SegmentWindow,
    cwnd_max: u32,
    fraction_q20: u32,
    rho_q10: u32,
    gain_q10: u32,
    min_rtt: MinRtt,
    rtt_us: u32,
    carried: Carried,
    carried_max: u32,
    samples: u32,
    samples_min_us: u32,
    tolerating: Option<Tolerating>,
    /// With a known rate, its segments per round trip; else 0.
    bdp: u32,
    /// Whether the path has carried less than the known rate.
    doubted: bool,
    /// The end of slow start, in place of Hybla's own queue detection.
    start: Option<Start>,
}

impl Hybla {
    /// A new connection with segments of `mss`.
    pub fn new(mss: Bytes, settings: HyblaSettings) -> Self {
        Self {
            settings,
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            cwnd_max: settings.window_max,
            fraction_q20: 0,
            rho_q10: ONE_Q10,
            gain_q10: ONE_Q10,
            min_rtt: MinRtt::new(0),
            rtt_us: RTT_NONE,
            carried: Carried::default(),
            carried_max: 0,
            samples: 0,
            samples_min_us: RTT_NONE,
            tolerating: None,
            bdp: 0,
            doubted: false,
            start: None,
        }
    }

    /// The same with another end of slow start than its own queue detection; its growth stays
    /// Hybla's, over a transport that paces or does not.
    pub fn with_slow_start(self, slow_start: SlowStart, paced: bool) -> Self {
        Self { start: Some(Start::new(slow_start, paced)), ..self }
    }

    /// Whether the window follows the known rate.
    fn guided(&self) -> bool {
        self.settings.start_at_rate && self.bdp > 0 && !self.doubted
    }

    /// The window after more losses than a radio's.
    fn fallen(&mut self, window: u32) -> u32 {
        let guided = self.guided();
        self.doubted = true;
        if guided { retreat(window, self.carried_max) } else { reno::halve(window) }
    }

    /// Updates what depends on the path's RTT: ρ, and with a known rate the bounds.
    fn take_rtt(&mut self, rtt_us: u32) {
        let first = self.rtt_us == RTT_NONE;
        self.rtt_us = rtt_us;
        self.rho_q10 = rho_q10(rtt_us, us(self.settings.rtt0));
        self.gain_q10 = gain_q10(self.rho_q10, self.settings.growth_max_q10);
        self.cwnd_max = self.settings.window_max;
        if let Some(rate) = self.settings.rate {
            let bdp = bdp(rate.bits_per_s() / 8, rtt_us, self.window.mss()).max(INITIAL_WINDOW);
            let bound = (u64::from(bdp) * u64::from(self.settings.window_bdp_max_q10)) >> 10;
            self.cwnd_max = saturated(bound).min(self.settings.window_max).max(bdp);
            self.bdp = bdp;
            if self.guided() {
                self.window.cwnd = fit(self.window.cwnd, bdp, self.cwnd_max, true);
            }
            // Only the first slow start: later thresholds come from losses.
            if self.window.ssthresh >= NO_THRESHOLD {
                self.window.ssthresh = bdp;
            }
        }
        if first {
            // The paper starts with ρ segments.
            self.window.cwnd = self.window.cwnd.max((self.rho_q10 >> 10).min(self.cwnd_max));
        }
    }

    /// Slow start ends where a queue begins, at the capacity that the path has shown.
    fn look_for_a_queue(&mut self, rtt_us: u32) {
        self.samples_min_us = self.samples_min_us.min(rtt_us);
        self.samples += 1;
        if self.samples < QUEUE_SAMPLES {
            return;
        }
        if queue_seen(self.rtt_us, self.samples_min_us) {
            self.window.cwnd = kept(self.window.cwnd, self.carried_max);
            self.window.ssthresh = self.window.cwnd;
        }
        self.samples = 0;
        self.samples_min_us = RTT_NONE;
    }

    fn take_smallest(&mut self, rtt_us: u32, now: Instant) {
        let window_ms = saturated(self.settings.min_rtt_window.as_ns() / 1_000_000);
        let smallest_us = self.min_rtt.update(rtt_us, ms(now), window_ms);
        if smallest_us != self.rtt_us {
            self.take_rtt(smallest_us);
        }
    }

    fn measure(&mut self, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.window.sample(rtt);
            self.take_smallest(us(rtt), ack.now);
            let looking = ack.phase == Phase::Open && self.window.in_slow_start();
            if looking && self.start.is_none() {
                self.look_for_a_queue(us(rtt));
            }
        }
        if let Some(rate) = ack.delivery_rate.filter(|_| self.rtt_us != RTT_NONE) {
            let segments = bdp(rate.bits_per_s() / 8, self.rtt_us, self.window.mss());
            self.carried_max = self.carried.update(segments, ack.round as u32);
        }
    }

    /// Counts `segments` into a window: the congestion window, or its goal in a tolerated
    /// recovery, for which slow start is over.
    fn grow(&mut self, ssthresh: u32, gain_q10: u32, segments: u32) {
        let mut window = Window {
            cwnd: self.window.cwnd,
            ssthresh,
            cwnd_max: self.cwnd_max,
            fraction_q20: self.fraction_q20,
            rho_q10: self.rho_q10,
            gain_q10,
        };
        window.grow(segments);
        self.window.cwnd = window.cwnd;
        self.fraction_q20 = window.fraction_q20;
    }

    /// Nothing is being repaired: slow start or avoidance.
    fn open(&mut self, ack: &Ack, segments: u32) {
        let (mut gain_q10, mut counted) = (self.gain_q10, segments);
        if let Some(start) = &mut self.start {
            match start.pace(&mut self.window, ack) {
                Some((divisor, segments_max)) => {
                    gain_q10 /= divisor;
                    counted = segments.min(segments_max);
                }
                None if start.drain(&mut self.window, segments) => return,
                None => {}
            }
        }
        if !ack.app_limited {
            self.grow(self.window.ssthresh, gain_q10, counted);
        }
    }

    /// A recovery continues. On a path that loses one segment in a hundred almost every round trip
    /// has a loss, so arriving data counts while the losses are tolerable.
    fn recover(&mut self, ack: &Ack, segments: u32) {
        let Some(tolerating) = &mut self.tolerating else { return };
        tolerating.delivered = tolerating.delivered.saturating_add(ack.acked);
        let mss = u64::from(self.window.mss());
        let judged = u64::from(tolerating.window) + tolerating.delivered.get() / mss;
        let lost = saturated(tolerating.lost.get().div_ceil(mss));
        if !tolerated(lost, saturated(judged), self.settings.loss_tolerance_q16) {
            let window = tolerating.window;
            let fallen = self.fallen(window);
            self.tolerating = None;
            self.window.cwnd = fallen;
            self.window.ssthresh = fallen;
        } else if !ack.app_limited {
            self.grow(0, self.gain_q10, segments);
            self.window.ssthresh = self.window.cwnd;
        }
    }
}

/// A time on the law's circle of milliseconds.
fn ms(now: Instant) -> u32 {
    (now.as_ns() / 1_000_000) as u32
}

impl Hybla {
    pub(crate) const DESCRIPTION: Description = Description {
        name: "hybla-plus",
        pacing: Pacing::Usually,
        slow_start: FirstSlowStart::OwnUnlessChosen,
        keys: &["rate", "rtt0", "growth_max", "loss_tolerance", "start_at_rate"],
        ..Description::WINDOW
    };

    pub(crate) fn controller(common: &Common<'_>, own: &HyblaSettings) -> Controller {
        let hybla = Self::new(common.mss, *own);
        let hybla = match common.slow_start {
            Some(slow_start) => hybla.with_slow_start(slow_start, common.paced),
            None => hybla,
        };
        Controller::windowed(hybla, common)
    }
}

impl Published {
    pub(crate) const DESCRIPTION: Description =
        Description { name: "hybla", keys: &["rtt0"], ..Description::WINDOW };

    pub(crate) fn controller(common: &Common<'_>, imitated: &ReferenceFlow) -> Controller {
        let hybla = Hybla::new(common.mss, HyblaSettings::published(imitated.rtt0));
        let slow_start = common.slow_start_by(&Self::DESCRIPTION);
        Controller::windowed(hybla.with_slow_start(slow_start, common.paced), common)
    }
}

impl Segmented for Hybla {
    fn segments(&mut self) -> &mut SegmentWindow {
        &mut self.window
    }
}

impl CongestionControl for Hybla {
    fn on_established(&mut self, established: &Established) {
        self.window.establish(established);
        if let Some(rtt) = established.rtt {
            self.take_smallest(us(rtt), established.now);
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.measure(ack);
        let segments = self.window.segments(ack.acked);
        match ack.phase {
            Phase::Recovery => self.recover(ack, segments),
            Phase::Open | Phase::Loss => {
                if ack.phase == Phase::Open {
                    self.window.settle();
                    self.tolerating = None;
                }
                self.open(ack, segments);
                // A window that has grown back proves that the path carries it.
                self.doubted &= self.window.cwnd < self.bdp;
            }
        }
    }

    fn on_loss(&mut self, loss: &Loss) {
        let window = self.window.cwnd;
        // A mark is not a channel error.
        let tolerant = self.settings.loss_tolerance_q16 > 0 && loss.lost > Bytes::ZERO;
        let goal = match tolerant {
            true if self.guided() => {
                fit(kept(window, self.carried_max), self.bdp, self.cwnd_max, true)
            }
            true => kept(window, self.carried_max),
            false => self.fallen(window),
        };
        self.tolerating =
            tolerant.then_some(Tolerating { window, lost: loss.lost, delivered: Bytes::ZERO });
        self.window.reduce(goal, goal);
        if let Some(start) = &mut self.start {
            start.on_loss();
        }
        self.fraction_q20 = 0;
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        if let Some(tolerating) = &mut self.tolerating {
            tolerating.lost = tolerating.lost.saturating_add(segment.size);
        }
    }

    fn on_rto(&mut self, rto: &Rto) {
        let fallen = self.fallen(self.window.cwnd);
        self.window.reduce(1, fallen);
        self.fraction_q20 = 0;
        self.tolerating = None;
        if let Some(start) = &mut self.start {
            start.on_rto();
        }
        // After a timeout the path may have changed: the next samples decide anew.
        self.min_rtt = MinRtt::new(ms(rto.now));
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
        self.tolerating = None;
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.min_rtt = MinRtt::new(ms(handover.now));
        self.carried = Carried::default();
        if handover.rate.is_some() {
            self.settings.rate = handover.rate;
        }
        if let Some(rtt) = handover.rtt {
            self.take_rtt(us(rtt));
        }
    }

    fn on_share(&mut self, share: Rate) {
        if !self.settings.start_at_rate || self.settings.rate == Some(share) {
            return;
        }
        self.settings.rate = Some(share);
        if self.rtt_us != RTT_NONE {
            self.take_rtt(self.rtt_us);
            self.window.cwnd = fit(self.window.cwnd, self.bdp, self.cwnd_max, !self.doubted);
            if !self.doubted {
                self.window.ssthresh = self.window.cwnd;
            }
        }
    }

    fn is_in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    fn slow_start_threshold(&self) -> Option<Bytes> {
        self.window.threshold()
    }

    fn governs_recovery(&self) -> bool {
        self.tolerating.is_some()
    }

    fn window(&self) -> Bytes {
        self.window.bytes()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        let srtt = self.window.srtt().filter(|srtt| !srtt.is_zero())?;
        let gain = pacing_q10(self.window.cwnd, self.window.ssthresh, self.rho_q10);
        let bytes = (u128::from(self.window.bytes().get()) * u128::from(gain)) >> 10;
        let pace = Rate::of(Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX)), srtt);
        let share = self.settings.rate.filter(|_| self.settings.start_at_rate);
        Some(share.map_or(pace, |share| pace.min(share)))
    }
}

#[cfg(test)]
mod tests;
