//! The demands of one leg's flows, counted in a few atomic numbers because the flows may be on several threads.

use super::{Demand, floor, payload};
use midhop_congestion::rate_share::Demands;
use midhop_units::{Duration, Rate};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The demands of one leg's flows and what they may have. Unit of all rates: bits per second.
#[derive(Debug, Default)]
pub struct Pool {
    payload: AtomicU64,
    floor: AtomicU64,
    greedy: AtomicU64,
    limited: AtomicU64,
    limited_rate: AtomicU64,
}

impl Pool {
    /// Changes the leg's rate, headers included, and its round-trip time.
    pub fn set_rate(&self, rate: Rate, rtt: Option<Duration>) {
        self.payload.store(payload(rate).bits_per_s(), Relaxed);
        self.floor.store(floor(rate, rtt).bits_per_s(), Relaxed);
    }

    /// The number of flows that have more to send than they may.
    pub fn senders(&self) -> u64 {
        self.demands().count()
    }

    /// What each of them may send at most, if it demands as much as it can get.
    pub fn share(&self) -> Rate {
        self.share_for(Demand::Greedy)
    }

    fn demands(&self) -> Demands {
        Demands {
            greedy: self.greedy.load(Relaxed),
            limited: self.limited.load(Relaxed),
            limited_rate: Rate::from_bits_per_s(self.limited_rate.load(Relaxed)),
        }
    }

    fn share_among(&self, demands: Demands, demand: Demand) -> Rate {
        let of = |number: &AtomicU64| Rate::from_bits_per_s(number.load(Relaxed));
        demand.share(&demands, of(&self.payload), of(&self.floor))
    }

    /// What a counted flow may send.
    pub(super) fn share_for(&self, demand: Demand) -> Rate {
        self.share_among(self.demands(), demand)
    }

    /// What one more flow might send.
    pub(super) fn prospect(&self) -> Rate {
        self.share_among(self.demands().with_greedy(1), Demand::Greedy)
    }

    pub(super) fn enter(&self, demand: Demand) {
        match demand {
            Demand::Greedy => {
                self.greedy.fetch_add(1, Relaxed);
            }
            Demand::Limited(rate) => {
                self.limited.fetch_add(1, Relaxed);
                self.limited_rate.fetch_add(rate.bits_per_s(), Relaxed);
            }
        }
    }

    pub(super) fn leave(&self, demand: Demand) {
        match demand {
            Demand::Greedy => {
                self.greedy.fetch_sub(1, Relaxed);
            }
            Demand::Limited(rate) => {
                self.limited.fetch_sub(1, Relaxed);
                self.limited_rate.fetch_sub(rate.bits_per_s(), Relaxed);
            }
        }
    }
}
