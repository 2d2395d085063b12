//! The departures of datagrams: at a constant rate, always or in bursts.
//!
//! The sender's clock runs only during a burst, and a datagram leaves every `packet / rate` of it.
//! So the long-run rate is exactly `rate × on / (on + off)`, however short the bursts are, and a
//! constant rate is a burst that never ends. Bursts and pauses with a Pareto law of infinite
//! variance add up to self-similar traffic.
//!
//! Source: W. Willinger, M. Taqqu, R. Sherman, D. Wilson, "Self-similarity through high-variability",
//! IEEE/ACM Transactions on Networking 5(1), 1997.

use super::{Load, TrafficPlan};
use crate::random::Random;
use midhop_units::{Bytes, Duration, Rate, Seed};

/// When a source sends.
#[derive(Debug, Clone, Copy)]
struct Bursts {
    on: Duration,
    off: Duration,
    shape: Option<f64>,
}

/// The moments at which the datagrams of one table of traffic leave, after the run's start, in
/// order. Ends when the traffic stops.
#[derive(Debug)]
pub struct Departures {
    rate: Rate,
    packet: Bytes,
    bursts: Option<Bursts>,
    random: Random,
    /// The current burst: its begin and its end.
    burst: (Duration, Duration),
    /// Time on before this burst.
    on_before: Duration,
    passed: u64,
    stop: Duration,
}

impl Departures {
    /// The departures of `plan` in a run of `seed`; none for kinds without datagrams.
    pub fn of(plan: &TrafficPlan, seed: Seed) -> Option<Self> {
        let (rate, packet, bursts) = match &plan.load {
            Load::Constant { rate, packet } => (*rate, *packet, None),
            Load::OnOff { rate, packet, on, off, shape } => {
                (*rate, *packet, Some(Bursts { on: *on, off: *off, shape: *shape }))
            }
            Load::Bulk { .. } | Load::Web { .. } | Load::Arrivals { .. } => return None,
        };
        let mut departures = Self {
            rate,
            packet,
            bursts,
            random: plan.random(seed),
            burst: (plan.start, plan.start),
            on_before: Duration::ZERO,
            passed: 0,
            stop: plan.stop,
        };
        departures.begin_burst(plan.start);
        Some(departures)
    }

    fn begin_burst(&mut self, at: Duration) {
        let lasts = self.bursts.map(|bursts| self.random.time(bursts.on, bursts.shape));
        let end = lasts.map_or(Duration::from_ns(u64::MAX), |lasts| at.saturating_add(lasts));
        self.burst = (at, end);
    }

    /// When the next datagram is due in the current burst, if that lasts so long.
    fn due(&self) -> Duration {
        let bits = u128::from(self.passed) * u128::from(self.packet.get()) * 8;
        let on = bits * 1_000_000_000 / u128::from(self.rate.bits_per_s().max(1));
        let on = Duration::from_ns(u64::try_from(on).unwrap_or(u64::MAX));
        self.burst.0.saturating_add(on.saturating_sub(self.on_before))
    }
}

impl Iterator for Departures {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        while self.burst.0 < self.stop {
            let due = self.due();
            if due < self.burst.1 {
                self.passed += 1;
                return Some(due).filter(|due| *due < self.stop);
            }
            // The pause after the burst.
            let bursts = self.bursts?;
            self.on_before += self.burst.1.saturating_sub(self.burst.0);
            let pause = self.random.time(bursts.off, bursts.shape);
            self.begin_burst(self.burst.1.saturating_add(pause));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Family;

    fn plan(load: Load) -> TrafficPlan {
        TrafficPlan {
            name: "noise".to_owned(),
            from: "a".to_owned(),
            to: "b".to_owned(),
            start: Duration::from_s(1),
            stop: Duration::from_s(101),
            family: Family::Ipv4,
            port: 9000,
            route: Vec::new(),
            load,
            tuning: None,
        }
    }

    #[test]
    fn a_constant_rate_is_met_to_the_packet() {
        let (rate, packet) = (Rate::from_bits_per_s(1_200_000), Bytes::new(1500));
        let plan = plan(Load::Constant { rate, packet });
        let due: Vec<_> = Departures::of(&plan, Seed(1)).expect("datagrams").collect();
        assert_eq!(due.len(), 10_000);
        assert_eq!(due[..2], [Duration::from_s(1), Duration::from_ms(1_010)]);
        assert!(due.iter().all(|due| *due < plan.stop));
    }

    #[test]
    fn bursts_have_their_share_and_each_seed_its_own() {
        let (rate, packet) = (Rate::from_bits_per_s(1_200_000), Bytes::new(1500));
        let (on, off) = (Duration::from_ms(20), Duration::from_ms(60));
        let plan = plan(Load::OnOff { rate, packet, on, off, shape: None });
        let due = |seed| Departures::of(&plan, Seed(seed)).expect("datagrams").collect::<Vec<_>>();
        let (one, other) = (due(1), due(2));
        assert!((2_200..2_800).contains(&one.len()), "{}", one.len());
        assert!(one != other && one == due(1));
        assert!(one.is_sorted());
    }
}
