//! How the carriers of a tunnel divide the rate of their link.
//!
//! A carrier that uses its part may have more, up to what the others leave. A carrier that does not use its part keeps
//! twice what it sends.
//!
//! Differs from the flows of a leg ([`Member`](super::Member)): a part grows only after another has shrunk, otherwise
//! both together would fill the link's queue until the other one looks.
//!
//! Invariant: the parts of a tunnel's carriers together never exceed its rate. Only the minimum that each carrier may send is
//! added to the rate, until the next look.

use midhop_congestion::rate_share::Demands;
use midhop_units::Rate;
use std::collections::BTreeMap;

/// The minimum that a carrier may send, as a fraction: one of this many parts of the rate.
const LEAST: u64 = 32;
/// A carrier that sends more of its part than this wants all that it can get. Unit: percent.
const GREEDY_PERCENT: u64 = 75;

/// The carriers of one tunnel.
#[derive(Debug, Default)]
pub struct CarrierParts {
    joined: u64,
    by_number: BTreeMap<u64, Carrier>,
}

/// The unit of all fields is bits per second.
#[derive(Debug, Clone, Copy, Default)]
struct Carrier {
    /// The rate that it may send at.
    part: u64,
    /// The rate that it wants. None: all it can get.
    wants: Option<u64>,
}

impl CarrierParts {
    /// Adds a carrier. Returns its number.
    pub fn join(&mut self) -> u64 {
        self.joined += 1;
        self.by_number.insert(self.joined, Carrier { part: 0, wants: Some(0) });
        self.joined
    }

    /// How many carriers there are.
    pub fn count(&self) -> usize {
        self.by_number.len()
    }

    /// Removes a carrier.
    pub fn leave(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    /// Computes the part of a carrier in `rate`; `measured` is what it has sent at since its last look, if long enough.
    pub fn look(&mut self, number: u64, rate: Rate, measured: Option<Rate>) -> Rate {
        let rate = rate.bits_per_s();
        let least = rate / LEAST;
        if let Some(own) = self.by_number.get_mut(&number)
            && let Some(measured) = measured.map(Rate::bits_per_s)
        {
            let is_greedy = measured >= own.part.max(least) / 100 * GREEDY_PERCENT;
            own.wants = (!is_greedy).then_some(measured.saturating_mul(2));
        }
        let wanted = |carrier: &Carrier| carrier.wants.map(|wants| wants.max(least));
        let greedy = self.by_number.values().filter(|it| it.wants.is_none()).count() as u64;
        let limited_rate = self.by_number.values().filter_map(wanted).sum();
        let demands = Demands {
            greedy,
            limited: self.by_number.len() as u64 - greedy,
            limited_rate: Rate::from_bits_per_s(limited_rate),
        };
        let left = demands.greedy_part(Rate::from_bits_per_s(rate)).bits_per_s();
        let others: u64 = self
            .by_number
            .iter()
            .filter(|(other, _)| **other != number)
            .map(|(_, it)| it.part)
            .sum();
        let alone = self.by_number.len() == 1;
        let Some(own) = self.by_number.get_mut(&number) else { return Rate::from_bits_per_s(rate) };
        let fair =
            if alone { rate } else { own.wants.map_or(left, |wants| wants.max(least).min(left)) };
        own.part = fair.min(rate.saturating_sub(others));
        // A new carrier gets its part when another one is evaluated. Until then it may send the
        // minimum.
        Rate::from_bits_per_s(own.part.max(least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate::from_mbit_per_s(20);

    fn mbit(rate: f64) -> Rate {
        Rate::from_bits_per_s((rate * 1e6) as u64)
    }

    /// Carriers with these demands look in turns. Returns their parts afterwards, in Mbit/s.
    fn parts_after(looks: u32, demands: &[f64]) -> Vec<f64> {
        let mut carriers = CarrierParts::default();
        let numbers: Vec<u64> = demands.iter().map(|_| carriers.join()).collect();
        let mut parts = vec![Rate::ZERO; demands.len()];
        for _ in 0..looks {
            for ((number, demand), part) in numbers.iter().zip(demands).zip(&mut parts) {
                *part = carriers.look(*number, RATE, Some((*part).min(mbit(*demand))));
            }
        }
        parts.iter().map(|part| part.mbit_per_s()).collect()
    }

    #[test]
    fn one_alone_has_all_of_it() {
        assert_eq!(parts_after(1, &[0.0]), [20.0]);
        assert_eq!(parts_after(9, &[50.0]), [20.0]);
    }

    #[test]
    fn two_that_want_all_have_halves() {
        assert_eq!(parts_after(6, &[50.0, 50.0]), [10.0, 10.0]);
    }

    #[test]
    fn one_that_wants_little_leaves_the_rest() {
        for looks in 8..16 {
            assert_eq!(parts_after(looks, &[2.0, 50.0]), [4.0, 16.0], "{looks}");
            let idle = parts_after(looks, &[0.0, 50.0]);
            assert!(idle[1] > 19.0, "{idle:?}");
        }
    }

    proptest! {
        #[test]
        fn together_they_never_have_more(
            looks in proptest::collection::vec((0_usize..4, 0_u64..40_000_000), 1..200),
        ) {
            let mut carriers = CarrierParts::default();
            let numbers: Vec<u64> = (0..4).map(|_| carriers.join()).collect();
            for (who, measured) in looks {
                carriers.look(numbers[who], RATE, Some(Rate::from_bits_per_s(measured)));
                let sum: u64 = carriers.by_number.values().map(|it| it.part).sum();
                prop_assert!(sum <= RATE.bits_per_s());
            }
        }
    }
}
