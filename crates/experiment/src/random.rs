//! Random numbers of what is simulated, and of cross traffic in the laboratory. Each part has a
//! stream of its own, so that adding one does not change the others.
//!
//! Powers and exponentials come from `libm`, which computes the same on every machine.

use midhop_units::{Bytes, Duration, Seed};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1, StandardNormal};
use rand_pcg::Pcg64;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random(Pcg64);

impl Random {
    /// The stream of the part called `name`.
    pub fn new(seed: Seed, name: &str) -> Self {
        Self(Pcg64::seed_from_u64(seed.derive(name).0))
    }

    /// 32 uniform bits.
    pub fn word(&mut self) -> u32 {
        (self.0.next_u64() >> 32) as u32
    }

    /// Uniform from 0 to 1, 0 excluded.
    fn uniform(&mut self) -> f64 {
        1.0 - (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        Exp1.sample(&mut self.0)
    }

    /// Pareto with mean 1: the smallest value is `(shape - 1) / shape`.
    pub fn pareto(&mut self, shape: f64) -> f64 {
        (shape - 1.0) / shape * libm::pow(self.uniform(), -1.0 / shape)
    }

    /// Mean 1: Pareto with a shape, otherwise exponential.
    pub fn spread(&mut self, shape: Option<f64>) -> f64 {
        match shape {
            Some(shape) => self.pareto(shape),
            None => self.exponential(),
        }
    }

    /// A random time with this mean.
    pub fn time(&mut self, mean: Duration, shape: Option<f64>) -> Duration {
        mean.scale(self.spread(shape))
    }

    /// A random size with this mean, at least one byte and at most 2^50.
    pub fn size(&mut self, mean: Bytes, shape: Option<f64>) -> u64 {
        mean.scale(self.spread(shape)).get().clamp(1, 1 << 50)
    }

    /// Lognormal: the exponential of a normal variable. Drawn again until it lies between the bounds.
    pub fn lognormal(&mut self, mean: f64, deviation: f64, least: f64, most: f64) -> f64 {
        loop {
            let normal: f64 = StandardNormal.sample(&mut self.0);
            let value = libm::exp(mean + deviation * normal);
            if (least..=most).contains(&value) {
                return value;
            }
        }
    }

    /// Pareto with the smallest value `scale`, truncated at `most`.
    pub fn pareto_cut(&mut self, shape: f64, scale: f64, most: f64) -> f64 {
        (scale * libm::pow(self.uniform(), -1.0 / shape)).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_right() {
        let mut random = Random::new(Seed(3), "means");
        let draws = 400_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Random) -> f64| {
            (0..draws).map(|_| draw(&mut random)).sum::<f64>() / f64::from(draws)
        };
        assert!((mean(&mut |random| random.spread(None)) - 1.0).abs() < 0.01);
        // With a shape of 2.5 the variance is finite, so that the mean converges.
        assert!((mean(&mut |random| random.spread(Some(2.5))) - 1.0).abs() < 0.01);
    }
}
