//! XCP's sender: the routers set the window.
//!
//! Source: Katabi et al. 2002, §3.2. A loss halves the window as TCP's does; with
//! [`XcpSettings::keep_on_loss`] it does not, as P-XCP proposes for paths that lose segments without
//! congestion (K. Zhou, K. Yeung, V. Li, "P-XCP: a transport layer protocol for satellite IP networks",
//! IEEE GLOBECOM 2004, of which we know the abstract; its scaling of the routers' aggregate is not
//! here).

use super::{DEMAND_MAX_Q16, Header};
use crate::common::Common;
use crate::description::{Description, Pacing, Parameters};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, Phase, Rto, Spurious,
    segments::{INITIAL_WINDOW, SegmentWindow, saturated},
};
use midhop_units::{Bytes, Duration, Rate};

const ONE_Q16: i128 = 1 << 16;
/// No window is larger: a terabyte.
const WINDOW_MAX_Q16: i128 = 1 << 56;

/// Settings of an [`Xcp`] sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct XcpSettings {
    /// The requested rate. Default: none, as much as possible.
    #[cfg_attr(feature = "serde", serde(rename = "rate"))]
    pub demand: Option<Rate>,
    /// Whether a loss leaves the window as it is (P-XCP). Default: no.
    pub keep_on_loss: bool,
}

impl Parameters for XcpSettings {
    fn usual(_: Option<Rate>) -> Option<Self> {
        Some(Self::default())
    }
}

/// XCP's sender as a controller.
#[derive(Debug, Clone)]
pub struct Xcp {
    settings: XcpSettings,
    /// Its RTT, and the past that a spurious timeout restores; its window is `bytes_q16` in segments.
    window: SegmentWindow,
    bytes_q16: i128,
    pending_q16: i64,
}

impl Xcp {
    /// A new connection with segments of `mss` that begins with `initial_window` segments.
    pub fn new(mss: Bytes, initial_window: u32, settings: XcpSettings) -> Self {
        let mut xcp = Self {
            settings,
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            bytes_q16: 0,
            pending_q16: 0,
        };
        xcp.window.cwnd = initial_window;
        xcp.take_segments();
        xcp
    }

    fn mss_q16(&self) -> i128 {
        i128::from(self.window.mss()) * ONE_Q16
    }

    /// The window is that of `self.window`.
    fn take_segments(&mut self) {
        self.bytes_q16 = i128::from(self.window.cwnd) * self.mss_q16();
    }

    /// The window is `self.bytes_q16`.
    fn set(&mut self, bytes_q16: i128) {
        self.bytes_q16 = bytes_q16.clamp(self.mss_q16(), WINDOW_MAX_Q16);
        let segments = self.bytes_q16 / self.mss_q16();
        self.window.cwnd = saturated(u64::try_from(segments).unwrap_or(u64::MAX));
    }

    /// The request of one segment: its share of the growth up to the wanted rate.
    fn demand_q16(&self, rtt: Duration) -> i64 {
        let Some(rate) = self.settings.demand else { return DEMAND_MAX_Q16 };
        let wanted_q16 = i128::from(rate.bytes_in(rtt).get()) * ONE_Q16;
        let missing_q16 = (wanted_q16 - self.bytes_q16).clamp(-WINDOW_MAX_Q16, WINDOW_MAX_Q16);
        let share_q16 = missing_q16 * self.mss_q16() / self.bytes_q16.max(1);
        i64::try_from(share_q16).map_or(DEMAND_MAX_Q16, |share| share.min(DEMAND_MAX_Q16))
    }
}

impl Xcp {
    pub(crate) const DESCRIPTION: Description = Description {
        name: "xcp",
        pacing: Pacing::Chosen,
        keys: &["rate", "keep_on_loss"],
        ..Description::OWN_RULE
    };

    pub(crate) fn controller(common: &Common<'_>, own: &XcpSettings) -> Controller {
        Controller::new(Self::new(common.mss, common.initial_window, *own))
    }
}

impl CongestionControl for Xcp {
    fn on_established(&mut self, established: &Established) {
        self.window.establish(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.window.measure(ack);
        let pending_q16 = std::mem::take(&mut self.pending_q16);
        // A window that is not used does not grow, whatever capacity the routers could spare.
        let grows = pending_q16 > 0 && !ack.app_limited && ack.phase != Phase::Loss;
        if grows || pending_q16 < 0 {
            self.set(self.bytes_q16 + i128::from(pending_q16));
        }
    }

    fn on_loss(&mut self, loss: &Loss) {
        // A mark of a router without XCP is not a channel error.
        if !self.settings.keep_on_loss || loss.lost == Bytes::ZERO {
            let half = crate::reno::halve(self.window.cwnd);
            self.window.reduce(half, half);
            self.take_segments();
        }
    }

    fn on_rto(&mut self, _rto: &Rto) {
        self.window.reduce(1, crate::reno::halve(self.window.cwnd));
        self.take_segments();
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
        self.take_segments();
    }

    /// The routers of the new path will report its capacity.
    fn on_handover(&mut self, _handover: &Handover) {}

    fn on_xcp_feedback(&mut self, feedback_q16: i64) {
        self.pending_q16 = self.pending_q16.saturating_add(feedback_q16);
    }

    fn xcp_header(&self) -> Option<Header> {
        let window = self.window();
        Some(match self.window.srtt() {
            Some(rtt) => Header { window, rtt, feedback_q16: self.demand_q16(rtt) },
            None => Header { window, rtt: Duration::ZERO, feedback_q16: 0 },
        })
    }

    fn window(&self) -> Bytes {
        Bytes::new(u64::try_from(self.bytes_q16 / ONE_Q16).unwrap_or(u64::MAX))
    }

    /// A window per round trip, plus a fifth so that the window is the limit.
    fn pacing_rate(&self) -> Option<Rate> {
        let srtt = self.window.srtt().filter(|srtt| !srtt.is_zero())?;
        Some(Rate::of(Bytes::new(self.window().get().saturating_mul(6) / 5), srtt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ack;
    use midhop_units::Instant;

    const MSS: u64 = 1500;

    fn xcp(settings: XcpSettings) -> Xcp {
        let mut xcp = Xcp::new(Bytes::new(MSS), 75, settings);
        let rtt = Some(Duration::from_ms(600));
        xcp.on_established(&Established { now: Instant::START, rtt });
        xcp
    }

    fn window_after(xcp: &mut Xcp, feedback_bytes: i64, app_limited: bool) -> u64 {
        xcp.on_xcp_feedback(feedback_bytes << 16);
        xcp.on_ack(&Ack { app_limited, ..ack(1, MSS) });
        xcp.window().get()
    }

    #[test]
    fn the_window_is_what_the_routers_grant_but_never_less_than_a_segment() {
        let mut xcp = xcp(XcpSettings::default());
        assert_eq!(xcp.window(), Bytes::new(112_500));
        assert_eq!(window_after(&mut xcp, 200, false), 112_700);
        assert_eq!(window_after(&mut xcp, 200, true), 112_700, "unused, it does not grow");
        assert_eq!(window_after(&mut xcp, -700, true), 112_000);
        assert_eq!(window_after(&mut xcp, -1_000_000, false), MSS);
        // A third of a byte each adds up.
        for _ in 0..3000 {
            xcp.on_xcp_feedback((1 << 16) / 3);
            xcp.on_ack(&ack(1, MSS));
        }
        assert_eq!(xcp.window(), Bytes::new(MSS + 999));
    }

    #[test]
    fn a_header_carries_window_and_round_trip_and_asks_for_its_share() {
        let unknown = Xcp::new(Bytes::new(MSS), 10, XcpSettings::default()).xcp_header();
        let nothing = Header { window: Bytes::new(15_000), rtt: Duration::ZERO, feedback_q16: 0 };
        assert_eq!(unknown, Some(nothing));
        let header = xcp(XcpSettings::default()).xcp_header().expect("a header");
        assert_eq!(header.feedback_q16, DEMAND_MAX_Q16);
        // 3 Mbit/s over 600 ms are 225 kB, twice the window: each of the 75 segments asks for one.
        let demand = Some(Rate::from_mbit_per_s(3));
        let header = xcp(XcpSettings { demand, ..XcpSettings::default() }).xcp_header();
        assert_eq!(header.map(|header| header.feedback_q16), Some(1500 << 16));
    }

    #[test]
    fn a_loss_halves_or_is_the_channels() {
        let loss = Loss { now: Instant::START, lost: Bytes::new(MSS), in_flight: Bytes::ZERO };
        let mut plain = xcp(XcpSettings::default());
        plain.on_loss(&loss);
        assert_eq!(plain.window(), Bytes::new(37 * MSS));
        plain.on_spurious(&Spurious { now: Instant::START });
        assert_eq!(plain.window(), Bytes::new(75 * MSS));
        let mut keeping = xcp(XcpSettings { keep_on_loss: true, ..XcpSettings::default() });
        keeping.on_loss(&loss);
        assert_eq!(keeping.window(), Bytes::new(75 * MSS));
        keeping.on_loss(&Loss { lost: Bytes::ZERO, ..loss });
        assert_eq!(keeping.window(), Bytes::new(37 * MSS));
        keeping.on_rto(&Rto { now: Instant::START, in_flight: Bytes::ZERO });
        assert_eq!(keeping.window(), Bytes::new(MSS));
    }
}
