//! The level of many verdicts together.
//!
//! Of a hundred intervals at 95 %, five miss the true value by chance, and may decide a claim
//! wrongly. So verdicts use a higher level: such that on average at most one in twenty of the
//! decided ones is decided by chance. Source: Y. Benjamini, Y. Hochberg, "Controlling the False
//! Discovery Rate", Journal of the Royal Statistical Society B 57, 1995.

use crate::claim::Verdict;

/// Smaller chances are not distinguished.
const CHANCE_MIN: f64 = 1e-9;
/// Bisection steps for a chance's exponent: precise to one part in a thousand.
const STEPS: u32 = 16;

/// The level of verdicts of which a share of `1 − level` may be decided by chance; `verdicts` give
/// each one at any level. One that is open at all levels has not run, and is no test.
pub(crate) fn level(level: f64, verdicts: &[Box<dyn Fn(f64) -> Verdict + '_>]) -> f64 {
    let share = 1.0 - level;
    let tests = verdicts.iter().filter(|verdict| verdict(0.0) != Verdict::Open);
    let mut chances: Vec<f64> = tests.map(|verdict| chance(verdict, share)).collect();
    chances.sort_by(f64::total_cmp);
    let part = share / chances.len().max(1) as f64;
    let ranked = (1_u32..).map(f64::from).zip(&chances);
    let decided = ranked.filter(|(rank, chance)| **chance <= rank * part).last();
    1.0 - decided.map_or(part, |(rank, _)| rank * part)
}

/// The smallest error probability at which a verdict stands; 1 where it does not at `share`.
fn chance(verdict: impl Fn(f64) -> Verdict, share: f64) -> f64 {
    let stands = |chance: f64| verdict(1.0 - chance) != Verdict::Open;
    if !stands(share) {
        return 1.0;
    }
    if stands(CHANCE_MIN) {
        return CHANCE_MIN;
    }
    let (mut stood, mut fell) = (share, CHANCE_MIN);
    for _ in 0..STEPS {
        let between = (stood * fell).sqrt();
        if stands(between) { stood = between } else { fell = between }
    }
    stood
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests(chances: &[f64]) -> Vec<Box<dyn Fn(f64) -> Verdict>> {
        let one = |chance: f64| -> Box<dyn Fn(f64) -> Verdict> {
            Box::new(
                move |level| {
                    if 1.0 - level >= chance { Verdict::Holds } else { Verdict::Open }
                },
            )
        };
        chances.iter().map(|chance| one(*chance)).collect()
    }

    #[test]
    fn the_papers_example_rejects_four_of_fifteen() {
        let chances = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let raised = level(0.95, &tests(&chances));
        assert!((raised - (1.0 - 0.05 * 4.0 / 15.0)).abs() < 1e-9, "{raised}");
        let decided = tests(&chances).iter().filter(|it| it(raised) == Verdict::Holds).count();
        assert_eq!(decided, 4);
    }

    #[test]
    fn a_single_test_and_tests_without_chance_keep_their_level() {
        assert!((level(0.95, &tests(&[0.04])) - 0.95).abs() < 1e-9);
        assert!((level(0.95, &tests(&[0.0, 0.0, 0.0])) - 0.95).abs() < 1e-9);
        assert!((level(0.95, &[]) - 0.95).abs() < 1e-9);
        // A claim without runs is no test.
        let nothing: Box<dyn Fn(f64) -> Verdict> = Box::new(|_| Verdict::Open);
        let mut with = tests(&[0.04]);
        with.push(nothing);
        assert!((level(0.95, &with) - 0.95).abs() < 1e-9);
    }

    #[test]
    fn one_among_many_has_to_be_sure() {
        let mut chances = vec![0.04];
        chances.extend([0.9; 19]);
        assert!((level(0.95, &tests(&chances)) - (1.0 - 0.05 / 20.0)).abs() < 1e-9);
    }
}
