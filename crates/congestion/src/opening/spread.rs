//! Initial Spreading: the initial window leaves evenly over the first round trip.
//!
//! Source: R. Sallantin, C. Baudoin, E. Chaput, F. Arnal, E. Dubois, A.-L. Beylot, "Initial Spreading:
//! a fast Start-Up TCP mechanism", IEEE LCN 2013. A burst of ten segments into a buffer of fewer loses
//! some, and a loss in the first round costs a slow start. Spread, the same ten arrive one by one,
//! and their acknowledgements return as evenly. Slow start is unchanged from the first of them on.

use crate::Established;
use midhop_units::{Bytes, Duration, Rate};

/// The first window, spread.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    /// The handshake's round-trip time, until the first acknowledgement or loss.
    over: Option<Duration>,
}

impl Spread {
    pub fn begin(&mut self, established: &Established) {
        self.over = established.rtt.filter(|rtt| !rtt.is_zero());
    }

    pub fn end(&mut self) {
        self.over = None;
    }

    pub fn is_on(&self) -> bool {
        self.over.is_some()
    }

    /// The pacing rate for `window`; `None` once spreading is over.
    pub fn pacing_rate(&self, window: Bytes) -> Option<Rate> {
        self.over.map(|rtt| Rate::of(window, rtt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ack, Law, Opening, Settings, build, testing::ack};
    use midhop_units::Instant;

    #[test]
    fn ten_segments_leave_a_tenth_of_the_round_apart_until_the_first_is_acknowledged() {
        let settings =
            Settings { opening: Opening::Spread, paced: true, ..Settings::of(Law::Reno) };
        let mut spread = build(&settings).expect("a controller");
        assert_eq!(spread.pacing_rate(), None);
        let rtt = Some(Duration::from_ms(600));
        spread.on_established(&Established { now: Instant::START, rtt });
        let rate = spread.pacing_rate().expect("the round trip is known");
        let gap = rate.time_for(settings.mss);
        assert!((gap.as_ms_f64() - 60.0).abs() < 0.01, "{gap}");
        assert!(spread.spreads());
        spread.on_ack(&Ack { rtt, ..ack(1, 1448) });
        assert_eq!(spread.window(), Bytes::new(11 * 1448));
        let rate = spread.pacing_rate().expect("as ever");
        assert_eq!(rate, Rate::of(Bytes::new(2 * 11 * 1448), Duration::from_ms(600)));
        assert!(!spread.spreads());
    }
}
