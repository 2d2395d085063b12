//! Hybla as Linux computes it, integer for integer.
//!
//! Source: net/ipv4/tcp_hybla.c of Linux 6.12. It differs from the paper, and this module keeps the
//! differences: one growth step per acknowledgement, whatever it covers; ρ from the smallest smoothed
//! RTT, never raised again; an initial window of ρ, even one segment; 2^ρ cut at ρ = 16; in
//! slow start no bound but the threshold.
//!
//! `rho_3ls` has 3 binary places, `rho2_7ls` 7, cents are 1/128 segments. `programs/laws/hybla_linux.h`
//! in midhop-bpf computes the same.

use crate::common::Common;
use crate::description::{Description, InKernel, Pacing};
use crate::hybla::ReferenceFlow;
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, Phase, Rto, Spurious, reno,
    segments::{SegmentWindow, saturated, us},
};
use midhop_units::{Bytes, Duration, Rate};

/// The window's upper bound. Unit: segments.
pub const WINDOW_MAX: u32 = 65_535;
const EXPONENT_MAX: u32 = 16;
/// 128 · 2^(k/8), rounded down, for the eighths of ρ.
const FRACTIONS: [u32; 8] = [128, 139, 152, 165, 181, 197, 215, 234];

/// ρ and its square as in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rho {
    /// ρ with three binary places, at least 8.
    pub rho_3ls: u32,
    /// ρ rounded down.
    pub rho: u32,
    /// ρ² with seven binary places.
    pub rho2_7ls: u32,
}

impl Rho {
    /// From eight times the smoothed RTT in microseconds.
    pub fn new(srtt_8us: u32, rtt0_us: u32) -> Self {
        let rho_3ls = (srtt_8us / rtt0_us.max(1)).max(8);
        Self { rho_3ls, rho: rho_3ls >> 3, rho2_7ls: rho_3ls.wrapping_mul(rho_3ls) << 1 }
    }

    /// What an acknowledgement adds in slow start. Unit: 1/128 segments.
    pub fn slow_start_increment(self) -> u32 {
        let fraction = FRACTIONS[(self.rho_3ls & 7) as usize];
        ((1 << self.rho.min(EXPONENT_MAX)) * fraction) - 128
    }

    /// What an acknowledgement adds in congestion avoidance. Unit: 1/128 segments.
    pub fn avoidance_increment(self, cwnd: u32) -> u32 {
        self.rho2_7ls / cwnd.max(1)
    }
}

/// The state that the law updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinuxWindow {
    /// Unit: segments.
    pub cwnd: u32,
    /// Acknowledgements since the window last grew by less than a segment each.
    pub cwnd_cnt: u32,
    /// Unit: segments.
    pub ssthresh: u32,
    /// The part of a segment the window has grown beyond `cwnd`. Unit: 1/128 segments.
    pub cents: u32,
}

impl LinuxWindow {
    /// One acknowledgement while nothing is missing.
    pub fn grow(&mut self, rho: Rho) {
        let slow_start = self.cwnd < self.ssthresh;
        let increment = if slow_start {
            rho.slow_start_increment()
        } else {
            rho.avoidance_increment(self.cwnd)
        };
        if !slow_start && increment < 128 {
            self.cwnd_cnt = self.cwnd_cnt.wrapping_add(1);
        }
        let odd = increment % 128;
        self.cwnd = self.cwnd.wrapping_add(increment >> 7);
        self.cents = self.cents.wrapping_add(odd);
        if self.cents >= 128 {
            self.cwnd = self.cwnd.wrapping_add(1);
            self.cents -= 128;
            self.cwnd_cnt = 0;
        }
        // Where the integer division gave zero: Reno's one per window.
        if increment == 0 && self.cwnd_cnt >= self.cwnd {
            self.cwnd = self.cwnd.wrapping_add(1);
            self.cwnd_cnt = 0;
        }
        if slow_start {
            self.cwnd = self.cwnd.min(self.ssthresh);
        }
        self.cwnd = self.cwnd.min(WINDOW_MAX);
    }
}

/// Linux' Hybla as a controller.
#[derive(Debug, Clone)]
pub struct HyblaLinux {
    rtt0_us: u32,
    window: SegmentWindow,
    rho: Rho,
    srtt_min_8us: u32,
    cents: u32,
    begun: bool,
}

impl HyblaLinux {
    /// A connection whose handshake measured `rtt`, with segments of `mss`, imitating a flow of `rtt0`.
    pub fn new(mss: Bytes, rtt0: Duration, rtt: Duration) -> Self {
        let mut hybla = Self::before_the_first_rtt(mss, rtt0);
        hybla.begin(rtt);
        hybla
    }

    /// A connection before the end of its handshake: the first RTT sample counts as the handshake's.
    pub fn before_the_first_rtt(mss: Bytes, rtt0: Duration) -> Self {
        let rtt0_us = us(rtt0);
        let rho = Rho::new(0, rtt0_us);
        let window = SegmentWindow::new(mss, rho.rho);
        Self { rtt0_us, window, rho, srtt_min_8us: 0, cents: 0, begun: false }
    }

    /// A connection whose host remembers the end of the last slow start. Unit: segments.
    #[must_use]
    pub fn with_threshold(mut self, threshold: u32) -> Self {
        self.window.ssthresh = threshold;
        self
    }

    fn begin(&mut self, rtt: Duration) {
        self.begun = true;
        self.srtt_min_8us = us(rtt).saturating_mul(8);
        self.rho = Rho::new(self.srtt_min_8us, self.rtt0_us);
        self.window.cwnd = self.rho.rho;
        self.window.sample(rtt);
    }
}

impl HyblaLinux {
    pub(crate) const DESCRIPTION: Description = Description {
        name: "hybla-linux",
        kernel: InKernel::Program,
        pacing: Pacing::Chosen,
        initial_window: false,
        keys: &["rtt0"],
        ..Description::OWN_RULE
    };

    pub(crate) fn controller(common: &Common<'_>, imitated: &ReferenceFlow) -> Controller {
        let hybla = Self::before_the_first_rtt(common.mss, imitated.rtt0);
        Controller::new(match common.threshold {
            Some(threshold) => hybla.with_threshold(threshold),
            None => hybla,
        })
    }
}

impl CongestionControl for HyblaLinux {
    fn on_established(&mut self, established: &Established) {
        if let Some(rtt) = established.rtt {
            self.begin(rtt);
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        match ack.rtt {
            Some(rtt) if !self.begun => self.begin(rtt),
            Some(rtt) => self.window.sample(rtt),
            None => {}
        }
        let srtt_8us = self.window.srtt().map_or(0, |srtt| saturated(srtt.as_ns() / 125));
        if srtt_8us < self.srtt_min_8us {
            self.rho = Rho::new(srtt_8us, self.rtt0_us);
            self.srtt_min_8us = srtt_8us;
        }
        let segments = self.window.segments(ack.acked);
        if ack.phase == Phase::Open {
            self.window.settle();
        }
        if ack.app_limited {
            return;
        }
        match ack.phase {
            Phase::Open => {
                let mut window = LinuxWindow {
                    cwnd: self.window.cwnd,
                    cwnd_cnt: self.window.count,
                    ssthresh: self.window.ssthresh,
                    cents: self.cents,
                };
                window.grow(self.rho);
                self.window.cwnd = window.cwnd;
                self.window.count = window.cwnd_cnt;
                self.cents = window.cents;
            }
            Phase::Loss => {
                let SegmentWindow { cwnd, count, ssthresh, .. } = self.window;
                (self.window.cwnd, self.window.count) = reno::grow(cwnd, count, ssthresh, segments);
            }
            Phase::Recovery => {}
        }
    }

    fn on_loss(&mut self, _loss: &Loss) {
        let half = reno::halve(self.window.cwnd);
        self.window.reduce(half, half);
    }

    fn on_rto(&mut self, _rto: &Rto) {
        self.window.reduce(1, reno::halve(self.window.cwnd));
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
    }

    /// The kernel's Hybla ignores handovers.
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
    use midhop_units::Instant;

    const MSS: Bytes = Bytes::new(1448);

    #[test]
    fn at_600_ms_one_acknowledgement_opens_the_whole_window() {
        let rtt = Duration::from_ms(600);
        let mut hybla = HyblaLinux::new(MSS, Duration::from_ms(25), rtt);
        assert_eq!(hybla.window(), Bytes::new(24 * 1448));
        let ack = Ack {
            now: Instant::START,
            acked: Bytes::new(10 * 1448),
            lost: Bytes::ZERO,
            rtt: Some(rtt),
            delivery_rate: None,
            in_flight: Bytes::ZERO,
            round: 1,
            app_limited: false,
            phase: Phase::Open,
            ..Ack::default()
        };
        hybla.on_ack(&ack);
        assert_eq!(hybla.window(), Bytes::new(65_535 * 1448));
        hybla.on_loss(&Loss { now: Instant::START, lost: MSS, in_flight: MSS });
        assert_eq!(hybla.window(), Bytes::new(32_767 * 1448));
        // Ten segments or one: each acknowledgement counts the same. 73728 / 32767 = 2 cents.
        for n in 1..=64 {
            hybla.on_ack(&ack);
            let expected = 32_767 + n / 64;
            assert_eq!(hybla.window(), Bytes::new(expected * 1448), "after {n}");
        }
    }

    #[test]
    fn a_connection_shorter_than_rtt0_starts_with_one_segment() {
        let hybla = HyblaLinux::new(MSS, Duration::from_ms(25), Duration::from_ms(10));
        assert_eq!(hybla.window(), MSS);
    }
}
