//! One stage's random numbers.
//!
//! Each stage of a link has a stream of its own and draws from it once for every packet that is
//! sent, whatever happens to that packet elsewhere. So enabling one stage leaves the draws of all
//! others unchanged.

use midhop_units::{Duration, Loss, Seed};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1, StandardNormal};
use rand_pcg::Pcg64;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Stream(Pcg64);

impl Stream {
    /// The stream of the stage called `name`.
    pub(crate) fn new(seed: Seed, name: &str) -> Self {
        Self(Pcg64::seed_from_u64(seed.derive(name).0))
    }

    /// Whether an event of this probability happens now.
    pub(crate) fn strikes(&mut self, probability: Loss) -> bool {
        self.uniform() < probability.probability()
    }

    /// Uniform from 0 to 1, 1 excluded.
    pub(crate) fn uniform(&mut self) -> f64 {
        // The upper 53 bits: as many as a double holds.
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform between two times.
    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least.saturating_add(most.saturating_sub(least).scale(self.uniform()))
    }

    /// Exponential with this mean.
    pub(crate) fn exponential(&mut self, mean: Duration) -> Duration {
        let factor: f64 = Exp1.sample(&mut self.0);
        mean.scale(factor)
    }

    /// Normal with mean 0 and deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        StandardNormal.sample(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right() {
        let mut stream = Stream::new(Seed(7), "moments");
        let draws = 200_000;
        let mean = |sum: f64| sum / f64::from(draws);
        let uniform = mean((0..draws).map(|_| stream.uniform()).sum());
        assert!((uniform - 0.5).abs() < 0.003, "{uniform}");
        let exponential =
            mean((0..draws).map(|_| stream.exponential(Duration::from_ms(20)).as_ms_f64()).sum());
        assert!((exponential - 20.0).abs() < 0.2, "{exponential}");
        let square = mean((0..draws).map(|_| stream.normal().powi(2)).sum());
        assert!((square - 1.0).abs() < 0.02, "{square}");
    }

    #[test]
    fn certainty_and_impossibility_hold() {
        let mut stream = Stream::new(Seed(7), "certain");
        for _ in 0..10_000 {
            assert!(stream.strikes(Loss::ALL));
            assert!(!stream.strikes(Loss::NONE));
        }
    }
}
