//! One rate for all carriers of a tunnel.
//!
//! QUIC and TCP to one peer share a link, and each alone would send at the full rate. They divide the rate by the law of
//! [`CarrierParts`]; the carriers of all workers have one such division for each peer and address.

use midhop_pep::rate_share::CarrierParts;
use midhop_units::{Bytes, Duration, Rate};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::time::Instant;

/// Minimum time over which a rate is measured.
const LOOK_LEAST: Duration = Duration::from_ms(50);

/// The carriers of all tunnels, by peer name and address: the same name at the same address means the same link, on
/// all workers.
#[derive(Debug, Default)]
pub struct CarrierRates(Mutex<BTreeMap<Key, CarrierParts>>);

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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, CarrierParts>> {
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
        (carriers.count() > 1).then_some(part)
    }
}

impl Drop for CarrierRate {
    fn drop(&mut self) {
        let mut all = self.rates.lock();
        if let Some(carriers) = all.get_mut(&self.key) {
            carriers.leave(self.number);
            if carriers.count() == 0 {
                all.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::from_mbit_per_s(20);

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
}
