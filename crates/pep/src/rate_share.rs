//! How the flows that send into a leg of known rate divide it.
//!
//! A flow that has more to send than it may is greedy, and gets an equal part of what the others leave. A flow is
//! limited if for a while it took less than half of its part, because its far end or the path allows no more. Only
//! twice what it took is reserved for it, so that it can still grow. [`midhop_congestion::rate_share`] has the law
//! by which the rest is divided.
//!
//! A [`Pool`] counts the demands of a leg's flows. A [`Member`] is a flow's part in it, and measures what the flow
//! takes.
//!
//! Invariant: the shares of greedy flows and the demands of limited ones together never exceed what the leg
//! carries, except for the [`floor`]. The same holds for the shares of flows that are all limited.
//!
//! Decision 0011.

mod carriers;
mod member;
mod pool;

pub use carriers::CarrierParts;
pub use member::Member;
pub use pool::Pool;

use midhop_congestion::rate_share::Demands;
use midhop_units::{Bytes, Duration, Rate};

/// What a flow may send at once without any knowledge of the path: RFC 6928's ten segments.
const START: Bytes = Bytes::new(15_000);
/// The round-trip time of a leg if none is configured.
const RTT_UNKNOWN: Duration = Duration::from_ms(100);

/// How much of its leg a flow demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// As much as it can get.
    Greedy,
    /// At most this rate.
    Limited(Rate),
}

impl Demand {
    /// The demand of a flow that sent at `measured` while it had more to send and was allowed `share`.
    pub fn of(measured: Rate, share: Rate) -> Self {
        let twice = Rate::from_bits_per_s(measured.bits_per_s().saturating_mul(2));
        if twice < share { Self::Limited(twice) } else { Self::Greedy }
    }

    /// What a flow may send of `payload` beside the counted ones, never less than `least`. A greedy flow gets its
    /// part of what limited flows leave. A limited flow gets what it demands, and room to grow up to an equal part.
    pub fn share(self, counted: &Demands, payload: Rate, least: Rate) -> Rate {
        let greedy = counted.greedy_part(payload);
        match self {
            Self::Greedy => greedy.max(least),
            Self::Limited(rate) => rate.max(counted.equal_part(payload)).min(greedy).max(least),
        }
    }
}

/// The part of a leg's rate that carries the flows' own data: all but a twentieth, which headers and the
/// acknowledgements of the other direction take.
pub fn payload(rate: Rate) -> Rate {
    Rate::from_bits_per_s(rate.bits_per_s() - rate.bits_per_s() / 20)
}

/// The least that a flow may send: one initial window per round trip. If these windows alone fill the leg,
/// congestion control divides it.
pub fn floor(rate: Rate, rtt: Option<Duration>) -> Rate {
    Rate::of(START, rtt.unwrap_or(RTT_UNKNOWN)).min(payload(rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mbit(rate: u64) -> Rate {
        Rate::from_mbit_per_s(rate)
    }

    #[test]
    fn greedy_flows_share_what_limited_ones_leave() {
        let demands = |greedy, limited, rate| Demands { greedy, limited, limited_rate: mbit(rate) };
        let share = |demands: Demands| Demand::Greedy.share(&demands, mbit(20), Rate::ZERO);
        assert_eq!(share(demands(0, 0, 0)), mbit(20), "the first flow's prospect");
        assert_eq!(share(demands(1, 0, 0)), mbit(20));
        assert_eq!(share(demands(4, 0, 0)), mbit(5));
        assert_eq!(share(demands(4, 1, 4)), mbit(4));
        // Old demands count at most an equal part each.
        assert_eq!(share(demands(1, 1, 30)), mbit(10));
        assert_eq!(Demand::Greedy.share(&demands(40, 0, 0), mbit(20), mbit(1)), mbit(1));
    }

    #[test]
    fn limited_flows_may_come_up_to_an_equal_part() {
        let share = |greedy, limited, together, wanted| {
            let demands = Demands { greedy, limited, limited_rate: mbit(together) };
            Demand::Limited(mbit(wanted)).share(&demands, mbit(20), Rate::ZERO)
        };
        assert_eq!(share(0, 4, 8, 2), mbit(5), "four that start slowly do not get the leg each");
        assert_eq!(share(1, 1, 2, 2), mbit(10));
        assert_eq!(share(0, 1, 2, 2), mbit(20));
        assert_eq!(share(3, 1, 7, 7), mbit(5), "what is wanted of another time is no right");
    }

    #[test]
    fn who_takes_less_than_half_of_its_share_is_limited() {
        assert_eq!(Demand::of(mbit(5), mbit(10)), Demand::Greedy);
        assert_eq!(Demand::of(mbit(4), mbit(10)), Demand::Limited(mbit(8)));
        assert_eq!(Demand::of(Rate::ZERO, mbit(10)), Demand::Limited(Rate::ZERO));
    }

    #[test]
    fn the_floor_is_a_start_per_round_trip_within_the_leg() {
        let at = |rate, ms| floor(mbit(rate), Some(Duration::from_ms(ms)));
        assert_eq!(at(20, 600), Rate::from_bits_per_s(200_000));
        assert_eq!(at(1, 10), payload(mbit(1)));
        assert_eq!(floor(mbit(20), None), Rate::from_bits_per_s(1_200_000));
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_there_is(
            rate in 1u64..1 << 40,
            greedy in 0u64..1 << 20,
            limited in proptest::collection::vec(0u64..1 << 40, 0..20),
        ) {
            // A flow became limited against a share of that time, which was at most an equal part of the present
            // one.
            let number = limited.len() as u64;
            let equal = rate / (greedy + number).max(1);
            let limited_rate = limited.iter().map(|rate| rate % (equal + 1)).sum();
            let limited_rate = Rate::from_bits_per_s(limited_rate);
            let demands = Demands { greedy, limited: number, limited_rate };
            let share = |demand: Demand| demand.share(&demands, Rate::from_bits_per_s(rate), Rate::ZERO);
            let each = share(Demand::Greedy).bits_per_s();
            prop_assert!(each * greedy + limited_rate.bits_per_s() <= rate);
            prop_assert!(each >= equal);
            let limited = share(Demand::Limited(Rate::ZERO)).bits_per_s();
            prop_assert!(greedy > 0 || limited * number <= rate);
        }
    }
}
