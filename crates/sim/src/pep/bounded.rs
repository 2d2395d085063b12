//! A congestion control under a bound on its rate, as `SO_MAX_PACING_RATE` puts on a socket.

use midhop_congestion::{
    Ack, CongestionControl, Established, Handover, Loss, LostSegment, QueueReport, Restart, Rto,
    Spurious, xcp,
};
use midhop_units::{Bytes, Rate};

/// A controller and the fastest that it may send; none: as it likes.
#[derive(Debug)]
pub(super) struct Bounded {
    pub inner: Box<dyn CongestionControl>,
    pub most: Option<Rate>,
}

impl CongestionControl for Bounded {
    fn on_established(&mut self, established: &Established) {
        self.inner.on_established(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.inner.on_ack(ack);
    }

    fn on_loss(&mut self, loss: &Loss) {
        self.inner.on_loss(loss);
    }

    fn on_rto(&mut self, rto: &Rto) {
        self.inner.on_rto(rto);
    }

    fn on_spurious(&mut self, spurious: &Spurious) {
        self.inner.on_spurious(spurious);
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.inner.on_handover(handover);
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.inner.on_lost_segment(segment);
    }

    fn on_restart(&mut self, restart: &Restart) {
        self.inner.on_restart(restart);
    }

    fn on_share(&mut self, share: Rate) {
        self.most = Some(share);
        self.inner.on_share(share);
    }

    fn on_queue(&mut self, report: &QueueReport) {
        self.inner.on_queue(report);
    }

    fn on_xcp_feedback(&mut self, feedback_q16: i64) {
        self.inner.on_xcp_feedback(feedback_q16);
    }

    fn xcp_header(&self) -> Option<xcp::Header> {
        self.inner.xcp_header()
    }

    fn window(&self) -> Bytes {
        self.inner.window()
    }

    fn is_in_slow_start(&self) -> bool {
        self.inner.is_in_slow_start()
    }

    fn slow_start_threshold(&self) -> Option<Bytes> {
        self.inner.slow_start_threshold()
    }

    fn governs_recovery(&self) -> bool {
        self.inner.governs_recovery()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        match (self.inner.pacing_rate(), self.most) {
            (Some(rate), Some(most)) => Some(rate.min(most)),
            (rate, most) => rate.or(most),
        }
    }

    fn spreads(&self) -> bool {
        self.inner.spreads()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_congestion::{Algorithm, Settings, build};
    use midhop_units::{Duration, Instant};

    #[test]
    fn the_bound_holds_and_only_the_bound() {
        let inner = build(Algorithm::Cubic, &Settings::default()).expect("cubic");
        let mut bounded = Bounded { inner, most: None };
        assert_eq!(bounded.pacing_rate(), None);
        let rtt = Some(Duration::from_ms(100));
        bounded.on_established(&Established { now: Instant::START, rtt });
        let free = bounded.pacing_rate().expect("a round trip is known");
        bounded.on_share(Rate::from_bits_per_s(1000));
        assert_eq!(bounded.pacing_rate(), Some(Rate::from_bits_per_s(1000)));
        bounded.on_share(Rate::from_mbit_per_s(1000));
        assert_eq!(bounded.pacing_rate(), Some(free));
    }
}
