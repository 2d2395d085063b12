//! Random draws of a controller, all decided by its seed.

use midhop_units::Seed;

/// A stream of numbers.
///
/// Source: SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct Draws(u64);

impl Draws {
    pub fn new(seed: Seed) -> Self {
        Self(seed.0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of 0, 1, … `count` − 1; zero where there is no choice.
    pub fn below(&mut self, count: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(count);
        (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_the_seed_only_and_reach_every_value() {
        let draw = |seed| {
            let mut draws = Draws::new(Seed(seed));
            (0..700).map(|_| draws.below(7)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for value in 0..7 {
            let count = draw(1).iter().filter(|&&drawn| drawn == value).count();
            assert!((60..140).contains(&count), "{value} was drawn {count} times of 700");
        }
        assert_eq!(Draws::new(Seed(1)).below(0), 0);
    }
}
