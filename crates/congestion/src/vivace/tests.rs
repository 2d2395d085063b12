//! Tests of the rate's law.

use super::*;

fn vivace() -> Vivace {
    let mut vivace = Vivace::new(Bytes::new(1000), 10, Seed(1));
    vivace.take_rtt(Duration::from_ms(100));
    vivace
}

/// The rates that steps along a gradient of `micros` per Mbit/s lead to. Unit: kbit/s.
fn steps(mut rate: Rate, up: bool, micros: u128, count: usize) -> Vec<u64> {
    let mut vivace = vivace();
    let mut step = Step { up, count: 0, bounded: 0, from: (rate, 0) };
    (0..count)
        .map(|_| {
            vivace.go(Step { from: (rate, 0), ..step }, micros);
            rate = vivace.rate.expect("known");
            step = vivace.step.expect("a step");
            rate.bits_per_s() / 1000
        })
        .collect()
}

#[test]
fn confidence_grows_the_step_and_the_boundary_follows_what_is_wanted() {
    // At 0.7 per Mbit/s the wanted steps are 0.7, 1.4, 2.1, 3.5 and 4.9 Mbit/s. The boundary of 5 % holds
    // the first; that of 15 % holds not the second, but the third; and that of 25 % holds the fourth.
    let rate = Rate::from_mbit_per_s(10);
    assert_eq!(steps(rate, true, 700_000, 5), [10_500, 11_900, 13_685, 17_106, 22_006]);
    // Wanted are 3, 6, 9 and 15 Mbit/s: 5 % hold the second only, and 15 % none.
    let rate = Rate::from_mbit_per_s(100);
    assert_eq!(steps(rate, true, 3_000_000, 4), [103_000, 108_150, 117_150, 132_150]);
    assert_eq!(steps(Rate::from_mbit_per_s(10), false, 700_000, 3), [9_500, 8_100, 6_885]);
}

#[test]
fn the_least_step_is_a_hundredth() {
    assert_eq!(steps(Rate::from_mbit_per_s(100), true, 1000, 2), [101_000, 102_010]);
}

#[test]
fn a_boundary_that_is_not_met_falls_to_the_least_that_is_not() {
    let mut vivace = vivace();
    let from = (Rate::from_mbit_per_s(100), 0);
    for (wanted_percent, falls_to) in [(1, 0), (5, 0), (6, 1), (15, 1), (16, 2), (36, 4), (46, 4)] {
        // Of boundaries 5 %, 15 %, 25 %, 35 % and 45 %.
        vivace.go(Step { up: true, count: 0, bounded: 3, from }, wanted_percent * 1_000_000);
        let step = vivace.step.expect("a step");
        assert_eq!(step.bounded, falls_to, "{wanted_percent} %");
    }
}

#[test]
fn the_start_outlives_a_first_interval_that_teaches_nothing() {
    let rate = Rate::from_mbit_per_s(1);
    let mut vivace = vivace();
    vivace.started(rate, None);
    assert_eq!(vivace.stage(), Stage::Starting);
    vivace.started(scaled(rate, 200), Some(5));
    vivace.started(scaled(rate, 400), None);
    assert_eq!((vivace.stage(), vivace.rate()), (Stage::Probing, Some(scaled(rate, 200))));
    let mut short_of_data = self::vivace();
    short_of_data.started(rate, None);
    short_of_data.started(scaled(rate, 200), None);
    assert_eq!(short_of_data.stage(), Stage::Probing);
}
