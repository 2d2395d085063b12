//! A leg of known capacity, divided among the flows that send over it.

use crate::rate_share::Demands;
use midhop_units::Rate;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// A leg's capacity, shared by all flows whose controllers hold this handle or a clone of it.
///
/// A flow that has more data than its allowance gets an equal part of the rate that the others leave. A flow that
/// sends less claims the rate that it uses, up to an equal part, but has the whole rate while it is alone. An idle
/// flow claims nothing.
///
/// Invariant: the allowances of all flows at any moment add up to no more than the rate.
#[derive(Debug, Clone)]
pub struct Leg(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Unit: bits per second, as all rates here.
    rate: AtomicU64,
    /// Flows that would send more.
    busy: AtomicU64,
    /// Flows that send less than their allowance.
    modest: AtomicU64,
    /// The sum of the claims of the latter.
    claimed: AtomicU64,
}

impl Leg {
    /// A leg of `rate`: at its IP layer, headers included.
    pub fn new(rate: Rate) -> Self {
        Self(Arc::new(Shared {
            rate: AtomicU64::new(rate.bits_per_s()),
            busy: AtomicU64::new(0),
            modest: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
        }))
    }

    /// The leg's rate.
    pub fn rate(&self) -> Rate {
        Rate::from_bits_per_s(self.0.rate.load(Relaxed))
    }

    /// Sets another rate, as reported by the modem or an allocation. Every flow paces by it
    /// from its next segment on.
    pub fn set_rate(&self, rate: Rate) {
        self.0.rate.store(rate.bits_per_s(), Relaxed);
    }

    /// How many flows are sending.
    pub fn active(&self) -> u64 {
        self.demands().count()
    }

    fn demands(&self) -> Demands {
        Demands {
            greedy: self.0.busy.load(Relaxed),
            limited: self.0.modest.load(Relaxed),
            limited_rate: Rate::from_bits_per_s(self.0.claimed.load(Relaxed)),
        }
    }

    /// An equal part of the rate.
    fn equal(&self) -> Rate {
        self.demands().equal_part(self.rate())
    }
}

/// Two handles are equal where they are of the same leg.
impl PartialEq for Leg {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Leg {}

/// The demand of a flow on its leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Nothing,
    Modest(u64),
    Busy,
}

/// One flow's place on a leg; releases its claim when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    leg: Leg,
    claim: Claim,
}

impl Place {
    pub fn new(leg: Leg) -> Self {
        Self { leg, claim: Claim::Nothing }
    }

    pub fn leg(&self) -> &Leg {
        &self.leg
    }

    /// The flow has more data than its allowance.
    pub fn be_busy(&mut self) {
        self.take(Claim::Busy);
    }

    /// The flow has had more data than its allowance, if it sent at all.
    pub fn stay_busy(&mut self) {
        if self.claim != Claim::Nothing {
            self.be_busy();
        }
    }

    /// The flow ran out of data: it has used `used` of `allowed` in a round. If it uses
    /// less than four fifths, it claims what it uses and a quarter more, so that it has room to grow. If it
    /// uses nine tenths, it would use more.
    pub fn use_of(&mut self, used: Rate, allowed: Rate) {
        let (used, allowed) = (used.bits_per_s(), allowed.bits_per_s());
        let fills = |tenths: u128| u128::from(used) * 10 >= u128::from(allowed) * tenths;
        match self.claim {
            Claim::Nothing => return,
            Claim::Busy if fills(8) => return,
            Claim::Modest(_) if fills(9) => return self.be_busy(),
            Claim::Busy | Claim::Modest(_) => {}
        }
        let equal = self.leg.equal().bits_per_s();
        let wanted = used.saturating_add(used / 4);
        self.take(if wanted >= equal { Claim::Busy } else { Claim::Modest(wanted.max(equal / 4)) });
    }

    /// The flow is idle.
    pub fn be_silent(&mut self) {
        self.take(Claim::Nothing);
    }

    /// The flow's allowance.
    pub fn share(&self) -> Rate {
        match self.claim {
            Claim::Nothing => self.leg.demands().with_greedy(1).greedy_part(self.leg.rate()),
            // While it is alone, nobody else would use the rest.
            Claim::Modest(_) if self.leg.active() == 1 => self.leg.rate(),
            Claim::Modest(claimed) => Rate::from_bits_per_s(claimed).min(self.leg.equal()),
            Claim::Busy => self.leg.demands().greedy_part(self.leg.rate()),
        }
    }

    fn take(&mut self, claim: Claim) {
        let shared = &self.leg.0;
        match self.claim {
            Claim::Nothing => {}
            Claim::Busy => drop(shared.busy.fetch_sub(1, Relaxed)),
            Claim::Modest(claimed) => {
                shared.modest.fetch_sub(1, Relaxed);
                shared.claimed.fetch_sub(claimed, Relaxed);
            }
        }
        match claim {
            Claim::Nothing => {}
            Claim::Busy => drop(shared.busy.fetch_add(1, Relaxed)),
            Claim::Modest(claimed) => {
                shared.modest.fetch_add(1, Relaxed);
                shared.claimed.fetch_add(claimed, Relaxed);
            }
        }
        self.claim = claim;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.be_silent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draws;
    use midhop_units::Seed;

    fn mbit(rate: Rate) -> u64 {
        rate.bits_per_s() / 1_000_000
    }

    #[test]
    fn busy_flows_share_what_modest_ones_leave() {
        let leg = Leg::new(Rate::from_mbit_per_s(100));
        let mut places: Vec<Place> = (0..4).map(|_| Place::new(leg.clone())).collect();
        assert_eq!(mbit(places[0].share()), 100, "the first may have it all");
        places.iter_mut().for_each(Place::be_busy);
        assert_eq!(mbit(places[3].share()), 25);
        let (used, allowed) = (Rate::from_mbit_per_s(8), places[0].share());
        places[0].use_of(used, allowed);
        assert_eq!((mbit(places[0].share()), mbit(places[1].share())), (10, 30));
        places[0].use_of(Rate::from_mbit_per_s(1), Rate::from_mbit_per_s(10));
        assert_eq!(mbit(places[0].share()), 6, "a quarter of an equal part is kept to grow into");
        places[0].use_of(Rate::from_mbit_per_s(6), Rate::from_mbit_per_s(6));
        assert_eq!(mbit(places[0].share()), 25, "what fills its claim would use more");
        places[0].be_silent();
        assert_eq!(mbit(places[1].share()), 33);
        places.truncate(2);
        assert_eq!((leg.active(), mbit(places[1].share())), (1, 100));
        leg.set_rate(Rate::from_mbit_per_s(40));
        assert_eq!(mbit(places[1].share()), 40);
    }

    /// A distant source takes several round trips to find its allowance.
    #[test]
    fn whoever_is_alone_gives_nothing_up() {
        let leg = Leg::new(Rate::from_mbit_per_s(10));
        let (mut alone, mut other) = (Place::new(leg.clone()), Place::new(leg.clone()));
        alone.be_busy();
        alone.use_of(Rate::from_mbit_per_s(1), alone.share());
        assert_eq!(mbit(alone.share()), 10);
        other.be_busy();
        assert_eq!((mbit(alone.share()), mbit(other.share())), (2, 7));
        other.be_silent();
        assert_eq!(mbit(alone.share()), 10);
    }

    #[test]
    fn whatever_flows_claim_they_never_exceed_the_rate_together() {
        let mut draws = Draws::new(Seed(7));
        let leg = Leg::new(Rate::from_mbit_per_s(100));
        let mut places: Vec<Place> = Vec::new();
        for step in 0..20_000 {
            match draws.below(8) {
                0 if places.len() < 20 => places.push(Place::new(leg.clone())),
                1 if places.len() > 1 => drop(places.swap_remove(draws.below(2) as usize)),
                2 => leg.set_rate(Rate::from_mbit_per_s(1 + draws.below(200))),
                draw if !places.is_empty() => {
                    let place = draws.below(places.len() as u64) as usize;
                    match draw {
                        3 => places[place].be_silent(),
                        4 | 5 => places[place].be_busy(),
                        _ => {
                            let allowed = places[place].share();
                            places[place].use_of(Rate::from_mbit_per_s(draws.below(120)), allowed);
                        }
                    }
                }
                _ => {}
            }
            let active = places.iter().filter(|place| place.claim != Claim::Nothing);
            let sum: u64 = active.clone().map(|place| place.share().bits_per_s()).sum();
            assert!(sum <= leg.rate().bits_per_s(), "step {step}: {sum} of {}", leg.rate());
            assert_eq!(leg.active(), active.count() as u64);
        }
    }
}
