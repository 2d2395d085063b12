//! Initial Spreading: the initial window leaves evenly over the first round trip.
//!
//! Source: R. Sallantin, C. Baudoin, E. Chaput, F. Arnal, E. Dubois, A.-L. Beylot, "Initial Spreading:
//! a fast Start-Up TCP mechanism", IEEE LCN 2013. A burst of ten segments into a buffer of fewer loses
//! some, and what is lost in the first round costs a slow start; spread, the same ten arrive one by one,
//! and their acknowledgements come back as evenly. Slow start is as ever from the first of them on.

use crate::{
    Ack, CongestionControl, Established, Handover, Loss, LostSegment, QueueReport, Restart, Rto,
    Spurious, segments::Segmented,
};
use midhop_units::{Bytes, Duration, Rate};

/// A controller whose first window is spread.
#[derive(Debug)]
pub(crate) struct Spread<C> {
    controller: C,
    /// The handshake's round-trip time, until the first acknowledgement.
    over: Option<Duration>,
}

impl<C: Segmented> Spread<C> {
    pub fn new(controller: C) -> Self {
        Self { controller, over: None }
    }
}

impl<C: Segmented> CongestionControl for Spread<C> {
    fn on_established(&mut self, established: &Established) {
        self.controller.on_established(established);
        self.over = established.rtt.filter(|rtt| !rtt.is_zero());
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.over = None;
        self.controller.on_ack(ack);
    }

    fn on_loss(&mut self, loss: &Loss) {
        self.over = None;
        self.controller.on_loss(loss);
    }

    fn on_rto(&mut self, rto: &Rto) {
        self.over = None;
        self.controller.on_rto(rto);
    }

    fn on_spurious(&mut self, spurious: &Spurious) {
        self.controller.on_spurious(spurious);
    }

    fn on_handover(&mut self, handover: &Handover) {
        self.controller.on_handover(handover);
    }

    fn on_share(&mut self, share: Rate) {
        self.controller.on_share(share);
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.controller.on_lost_segment(segment);
    }

    fn on_restart(&mut self, restart: &Restart) {
        self.controller.on_restart(restart);
    }

    fn on_queue(&mut self, report: &QueueReport) {
        self.controller.on_queue(report);
    }

    fn is_in_slow_start(&self) -> bool {
        self.controller.is_in_slow_start()
    }

    fn slow_start_threshold(&self) -> Option<Bytes> {
        self.controller.slow_start_threshold()
    }

    fn window(&self) -> Bytes {
        self.controller.window()
    }

    fn governs_recovery(&self) -> bool {
        self.controller.governs_recovery()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        match self.over {
            Some(rtt) => Some(Rate::of(self.controller.window(), rtt)),
            None => self.controller.pacing_rate(),
        }
    }

    fn spreads(&self) -> bool {
        self.over.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SlowStart, reno::Reno, testing::ack};
    use midhop_units::Instant;

    #[test]
    fn ten_segments_leave_a_tenth_of_the_round_apart_until_the_first_is_acknowledged() {
        let mss = Bytes::new(1448);
        let mut spread = Spread::new(Reno::new(mss, SlowStart::Classic, true));
        assert_eq!(spread.pacing_rate(), None);
        let rtt = Some(Duration::from_ms(600));
        spread.on_established(&Established { now: Instant::START, rtt });
        let rate = spread.pacing_rate().expect("the round trip is known");
        let gap = rate.time_for(mss);
        assert!((gap.as_ms_f64() - 60.0).abs() < 0.01, "{gap}");
        assert!(spread.spreads());
        spread.on_ack(&Ack { rtt, ..ack(1, 1448) });
        assert_eq!(spread.window(), Bytes::new(11 * 1448));
        let rate = spread.pacing_rate().expect("as ever");
        assert_eq!(rate, Rate::of(Bytes::new(2 * 11 * 1448), Duration::from_ms(600)));
        assert!(!spread.spreads());
    }
}
