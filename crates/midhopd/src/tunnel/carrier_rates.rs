//! One rate for all carriers of a tunnel.
//!
//! QUIC and TCP to one peer share a link, and each alone would send at the full rate. Here they divide the rate. A
//! carrier that uses its part may have more, up to what the others leave. A carrier that does not use its part keeps
//! twice what it sends.
//!
//! Invariant: the parts of a tunnel's carriers together never exceed its rate: no part grows before another has
//! shrunk. Only the minimum that each carrier may send is added to the rate, until the next look.

use midhop_congestion::rate_share::Demands;
use midhop_units::{Bytes, Duration, Rate};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::time::Instant;

/// The minimum that a carrier may send, as a fraction: one of this many parts of the rate.
const LEAST: u64 = 32;
/// A carrier that sends more of its part than this wants all that it can get. Unit: percent.
const GREEDY_PERCENT: u64 = 75;
/// Minimum time over which a rate is measured.
const LOOK_LEAST: Duration = Duration::from_ms(50);

/// The carriers of all tunnels, by peer name and address: the same name at the same address means the same link, on
/// all workers.
#[derive(Debug, Default)]
pub struct CarrierRates(Mutex<BTreeMap<Key, Carriers>>);

type Key = (String, IpAddr);

/// One carrier's part in the rate of its tunnel. Dropping it gives the part up.
#[derive(Debug)]
pub struct CarrierRate {
    rates: Arc<CarrierRates>,
    key: Key,
    number: u64,
    rate: Rate,
    /// Unit: bytes. Bytes sent up to the last look.
    sent: u64,
    at: Instant,
}

impl CarrierRates {
    /// Adds a carrier to `peer` at `address`, whose link carries `rate`.
    pub fn join(self: &Arc<Self>, peer: &str, address: IpAddr, rate: Rate) -> CarrierRate {
        let key = (peer.to_owned(), address);
        let number = self.lock().entry(key.clone()).or_default().join();
        CarrierRate { rates: self.clone(), key, number, rate, sent: 0, at: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Carriers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CarrierRate {
    /// Returns the rate from now on of a carrier that has `sent` so many bytes in all, headers included. None: it is
    /// the only carrier.
    pub fn look(&mut self, sent: Bytes) -> Option<Rate> {
        let mut all = self.rates.lock();
        let carriers = all.get_mut(&self.key)?;
        let passed = Duration::from(self.at.elapsed());
        let measured = (passed >= LOOK_LEAST).then(|| {
            let fresh = sent.get().saturating_sub(self.sent);
            (self.sent, self.at) = (sent.get(), Instant::now());
            Rate::of(Bytes::new(fresh), passed)
        });
        let part = carriers.look(self.number, self.rate, measured);
        (carriers.by_number.len() > 1).then_some(part)
    }
}

impl Drop for CarrierRate {
    fn drop(&mut self) {
        let mut all = self.rates.lock();
        if let Some(carriers) = all.get_mut(&self.key) {
            carriers.by_number.remove(&self.number);
            if carriers.by_number.is_empty() {
                all.remove(&self.key);
            }
        }
    }
}

/// The carriers of one tunnel.
#[derive(Debug, Default)]
struct Carriers {
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

impl Carriers {
    fn join(&mut self) -> u64 {
        self.joined += 1;
        self.by_number.insert(self.joined, Carrier { part: 0, wants: Some(0) });
        self.joined
    }

    /// Computes the part of one carrier from the rate that was measured.
    fn look(&mut self, number: u64, rate: Rate, measured: Option<Rate>) -> Rate {
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
        let mut carriers = Carriers::default();
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

    #[test]
    fn who_goes_leaves_its_part() {
        let rates = Arc::<CarrierRates>::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        let mut first = rates.join("ground", address, RATE);
        assert_eq!(first.look(Bytes::ZERO), None);
        let second = rates.join("ground", address, RATE);
        assert!(first.look(Bytes::ZERO).is_some_and(|part| part < RATE));
        // Another peer of that name has another address.
        let mut other = rates.join("ground", IpAddr::from([192, 0, 2, 2]), RATE);
        assert_eq!(other.look(Bytes::ZERO), None);
        drop(second);
        assert_eq!(first.look(Bytes::ZERO), None);
        drop((first, other));
        assert!(rates.lock().is_empty());
    }

    proptest! {
        #[test]
        fn together_they_never_have_more(
            looks in proptest::collection::vec((0_usize..4, 0_u64..40_000_000), 1..200),
        ) {
            let mut carriers = Carriers::default();
            let numbers: Vec<u64> = (0..4).map(|_| carriers.join()).collect();
            for (who, measured) in looks {
                carriers.look(numbers[who], RATE, Some(Rate::from_bits_per_s(measured)));
                let sum: u64 = carriers.by_number.values().map(|it| it.part).sum();
                prop_assert!(sum <= RATE.bits_per_s());
            }
        }
    }
}
