//! Loss models: their statistics compared with theory.

use super::*;

fn loss(probability: f64) -> Loss {
    Loss::new(probability).expect("a probability")
}

fn spec(text: &str) -> LossPlan {
    let spec: LossSpecs =
        toml::from_str::<std::collections::BTreeMap<String, LossSpecs>>(&format!("loss = {text}"))
            .expect(text)
            .remove("loss")
            .expect(text);
    spec.0[0].resolve().expect(text).expect(text)
}

/// The share of lost packets and the mean length of a run of losses, for packets sent every `gap`.
fn measure(plan: &LossPlan, seed: u64, packets: u64, gap: Duration) -> (f64, f64) {
    let mut process = LossProcess::new(plan, Instant::START, Seed(seed));
    let (mut lost, mut bursts, mut before) = (0u64, 0u64, false);
    for index in 0..packets {
        let now = Instant::START + gap * index;
        let lose = process.loses(now);
        lost += u64::from(lose);
        bursts += u64::from(lose && !before);
        before = lose;
    }
    (lost as f64 / packets as f64, lost as f64 / bursts.max(1) as f64)
}

fn assert_within(value: f64, expected: f64, share: f64, what: &str) {
    assert!((value / expected - 1.0).abs() < share, "{what}: {value} instead of {expected}");
}

#[test]
fn means_agree_with_the_vectors() {
    for (p, r, good, bad, mean) in [
        (0.001, 0.1, 0.0, 1.0, 0.0099010),
        (0.0005, 0.5, 0.0, 1.0, 0.000999),
        (0.002, 0.05, 1e-4, 0.5, 0.0193269),
    ] {
        let plan = LossPlan::GilbertElliottByPackets {
            good_to_bad: loss(p),
            bad_to_good: loss(r),
            loss_good: loss(good),
            loss_bad: loss(bad),
        };
        assert_within(plan.mean().probability(), mean, 1e-4, "mean");
    }
}

#[test]
fn chains_by_packets_lose_as_reckoned() {
    for (text, mean, burst) in [
        ("{ good_to_bad = 0.001, bad_to_good = 0.1 }", 0.00990, 10.0),
        ("{ good_to_bad = 0.0005, bad_to_good = 0.5 }", 0.0010, 2.0),
        ("{ mean = 0.01, burst = \"5 packets\" }", 0.01, 5.0),
    ] {
        let (lost, run) = measure(&spec(text), 3, 4_000_000, Duration::ZERO);
        assert_within(lost, mean, 0.05, text);
        assert_within(run, burst, 0.05, text);
    }
    let text = "{ good_to_bad = 0.002, bad_to_good = 0.05, loss_good = 1e-4, loss_bad = 0.5 }";
    let (lost, _) = measure(&spec(text), 3, 3_000_000, Duration::ZERO);
    assert_within(lost, 0.01933, 0.05, text);
}

#[test]
fn single_losses_are_independent() {
    let (lost, run) = measure(&spec("0.02"), 3, 1_000_000, Duration::ZERO);
    assert_within(lost, 0.02, 0.05, "loss");
    assert_within(run, 1.0 / 0.98, 0.01, "run");
}

#[test]
fn chains_by_time_last_as_long_whatever_the_load() {
    let plan = spec("{ mean = 0.01, burst = \"20 ms\" }");
    let LossPlan::GilbertElliottByTime { good, bad, .. } = plan else { panic!("{plan:?}") };
    assert_eq!((good, bad), (Duration::from_ms(1980), Duration::from_ms(20)));
    let day = Duration::from_s(6_000);
    for gap in [Duration::from_ms(1), Duration::from_ms(4)] {
        let packets = day.as_ns() / gap.as_ns();
        let (lost, run) = measure(&plan, 3, packets, gap);
        assert_within(lost, 0.01, 0.05, "loss");
        // A stay of exponential length, sampled every `gap`, is seen 1 / (1 − exp(−gap / mean))
        // times, if it is seen at all.
        let seen = 1.0 / -f64::exp_m1(-gap.as_ms_f64() / 20.0);
        assert_within(run, seen, 0.05, "packets in a burst");
    }
}

#[test]
fn bursts_by_time_come_at_the_same_times_under_any_load() {
    let plan = spec("{ good = \"500 ms\", bad = \"50 ms\" }");
    let lost = |gap_ms: u64| -> Vec<u64> {
        let mut process = LossProcess::new(&plan, Instant::START, Seed(9));
        (0..60_000 / gap_ms)
            .map(|index| index * gap_ms)
            .filter(|ms| process.loses(Instant::START + Duration::from_ms(*ms)))
            .collect()
    };
    let often = lost(1);
    let seldom = lost(10);
    assert!(!seldom.is_empty());
    let expected: Vec<_> = often.into_iter().filter(|ms| ms % 10 == 0).collect();
    assert_eq!(seldom, expected);
}
