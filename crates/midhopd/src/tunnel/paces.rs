//! One pace for all carriers of one tunnel.
//!
//! QUIC and TCP to one peer go by the same link, and each by itself would send at all of its rate. Here they
//! divide it: one that uses its part wants more, and gets as much as the others leave; one that does not keeps
//! twice what it sends.
//!
//! Invariant: the parts of a tunnel's carriers together are never more than its rate: nobody's grows before
//! another's has shrunk. Only the least that anybody may say comes on top of it, until the next look.

use midhop_congestion::rate_share::Demands;
use midhop_units::{Bytes, Duration, Rate};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::time::Instant;

/// The least that a carrier may send. Unit: parts of the rate.
const LEAST: u64 = 32;
/// Who sends more of its part than this wants all that it can get. Unit: percent.
const GREEDY_PERCENT: u64 = 75;
/// Over less than this nothing is measured.
const LOOK_LEAST: Duration = Duration::from_ms(50);

/// The carriers of all tunnels, by their peer and where it is: whoever bears one name at one address has one link,
/// whichever workers they are on.
#[derive(Debug, Default)]
pub struct Paces(Mutex<BTreeMap<Key, Carriers>>);

type Key = (String, IpAddr);

/// One carrier's part in the pace of its tunnel; given up as it is dropped.
#[derive(Debug)]
pub struct PacePart {
    paces: Arc<Paces>,
    key: Key,
    number: u64,
    rate: Rate,
    /// Unit: bytes. What had been sent at the last look.
    sent: u64,
    at: Instant,
}

impl Paces {
    /// A carrier to `peer` at `address`, whose link carries `rate`.
    pub fn join(self: &Arc<Self>, peer: &str, address: IpAddr, rate: Rate) -> PacePart {
        let key = (peer.to_owned(), address);
        let number = self.lock().entry(key.clone()).or_default().join();
        PacePart { paces: self.clone(), key, number, rate, sent: 0, at: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Carriers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PacePart {
    /// What it may send from now on, which has `sent` so much in all, headers included. None: it is the only one.
    pub fn look(&mut self, sent: Bytes) -> Option<Rate> {
        let mut all = self.paces.lock();
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

impl Drop for PacePart {
    fn drop(&mut self) {
        let mut all = self.paces.lock();
        if let Some(carriers) = all.get_mut(&self.key) {
            carriers.by_number.remove(&self.number);
            if carriers.by_number.is_empty() {
                all.remove(&self.key);
            }
        }
    }
}

/// Those of one tunnel.
#[derive(Debug, Default)]
struct Carriers {
    joined: u64,
    by_number: BTreeMap<u64, Carrier>,
}

/// Unit of all: bits per second.
#[derive(Debug, Clone, Copy, Default)]
struct Carrier {
    /// What it may send.
    part: u64,
    /// What it wants; none: all it can get.
    wants: Option<u64>,
}

impl Carriers {
    fn join(&mut self) -> u64 {
        self.joined += 1;
        self.by_number.insert(self.joined, Carrier { part: 0, wants: Some(0) });
        self.joined
    }

    /// The part of one, which was measured to send so much of it.
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
        // Whoever has just come is let in when another looks; something it may say at once.
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

    /// Carriers that each have so much to say look in turns; their parts then, in Mbit/s.
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
        let paces = Arc::<Paces>::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        let mut first = paces.join("ground", address, RATE);
        assert_eq!(first.look(Bytes::ZERO), None);
        let second = paces.join("ground", address, RATE);
        assert!(first.look(Bytes::ZERO).is_some_and(|part| part < RATE));
        // Somebody else of that name is elsewhere.
        let mut other = paces.join("ground", IpAddr::from([192, 0, 2, 2]), RATE);
        assert_eq!(other.look(Bytes::ZERO), None);
        drop(second);
        assert_eq!(first.look(Bytes::ZERO), None);
        drop((first, other));
        assert!(paces.lock().is_empty());
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
