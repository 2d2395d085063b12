//! The same packets have the same fate, and one stage does not affect another.

use crate::drive::{Driven, ms, plan};
use midhop_path::{Cause, Direction, Link, presets};
use midhop_units::{Bytes, Duration, Instant, Seed};
use std::collections::BTreeSet;

const EVERYTHING: &str = "rate = { trace = [[\"0 s\", \"20 Mbit/s\"], [\"1 s\", \"8 Mbit/s\"]], repeat = \"2 s\" }
delay = { trace = [[\"0 s\", \"20 ms\"], [\"1 s\", \"40 ms\"]], repeat = \"3 s\" }
queue = \"100 kB\"
aqm = \"pie\"
loss = [0.01, { mean = 0.01, burst = \"3 packets\" }, { good = \"1 s\", bad = \"20 ms\" }]
bit_error_rate = 1e-7
outages = [{ start = \"500 ms\", length = \"30 ms\", every = \"2 s\" }]
jitter = { kind = \"normal\", mean = \"2 ms\", deviation = \"1 ms\" }
reorder = \"1 %\"
duplicate = 0.01
acm = { symbol_rate_baud = 5e6, es_n0_db = { trace = [[\"0 s\", 12], [\"2 s\", 3]], repeat = \"5 s\" } }
reconfiguration = { every = \"3 s\", added_delay_max = \"9 ms\", rate_sigma = 0.2, interruption_max = \"90 ms\" }";

fn fates(text: &str, seed: u64) -> String {
    let mut driven = Driven::new(&plan(text), seed);
    driven.send_every(Duration::from_us(700), 20_000, 1400);
    format!("{:?}\n{:?}", driven.came, driven.link.counters())
}

#[test]
fn same_seed_same_bytes() {
    let once = fates(EVERYTHING, 42);
    assert_eq!(once, fates(EVERYTHING, 42));
    assert_ne!(once, fates(EVERYTHING, 43));
}

/// The packets that left the link.
fn survivors(text: &str) -> BTreeSet<u64> {
    let mut driven = Driven::new(&plan(text), 5);
    driven.send_every(ms(2), 10_000, 1000);
    driven.came.into_iter().map(|(number, _)| number).collect()
}

#[test]
fn other_stages_leave_losses_alone() {
    let loss = "rate = \"20 Mbit/s\"\nloss = [0.02, { mean = 0.01, burst = \"5 packets\" }]";
    let alone = survivors(loss);
    assert!((9_500..9_900).contains(&alone.len()), "{}", alone.len());
    for other in ["jitter = \"3 ms\"", "reorder = 0.1", "duplicate = 0.1", "aqm = \"pie\""] {
        assert_eq!(survivors(&format!("{loss}\n{other}")), alone, "{other}");
    }
    // Further losses drop more packets, but every packet that was lost before is still lost.
    for other in ["bit_error_rate = 1e-6", "outages = [{ start = \"1 s\", length = \"1 s\" }]"] {
        let fewer = survivors(&format!("{loss}\n{other}"));
        assert!(fewer.len() < alone.len() && fewer.is_subset(&alone), "{other}");
    }
}

#[test]
fn losses_leave_the_delay_of_the_others_alone() {
    let jitter = "delay = \"20 ms\"\njitter = { kind = \"exponential\", mean = \"200 us\" }";
    let came = |text: &str| {
        let mut driven = Driven::new(&plan(text), 5);
        driven.send_every(ms(10), 5_000, 1000);
        driven.came
    };
    let all = came(jitter);
    let some = came(&format!("{jitter}\nloss = 0.2"));
    assert!(some.len() < 4_200);
    assert!(some.iter().all(|fate| all.binary_search(fate).is_ok()));
}

#[test]
fn directions_have_luck_of_their_own() {
    let plan = plan("loss = 0.5");
    let [down, up] = Direction::ALL.map(|direction| {
        let mut link = Link::new(&plan, direction, Seed(1), Instant::START);
        (0..100u32).for_each(|number| link.handle_input(Instant::START, Bytes::new(100), number));
        std::iter::from_fn(|| link.poll_output(Instant::START).map(|out| out.packet))
            .collect::<Vec<_>>()
    });
    assert_ne!(down, up);
}

#[test]
fn bit_errors_lose_large_packets_more_often() {
    for (bytes, expected) in [(128, 1.019e-2), (1024, 7.865e-2), (1500, 1.1308e-1)] {
        let mut driven = Driven::new(&plan("bit_error_rate = 1e-5"), 3);
        let count = 100_000;
        driven.send_every(Duration::from_us(1), count, bytes);
        let lost = driven.link.counters().dropped(Cause::BitErrors) as f64 / count as f64;
        assert!((lost / expected - 1.0).abs() < 0.07, "{bytes} B: {lost} instead of {expected}");
    }
}

#[test]
fn starlink_loses_about_as_much_as_was_measured() {
    let preset = presets::find("starlink").expect("a preset");
    let plan = preset.down.resolve(ms(50)).expect("a plan");
    let mut driven = Driven::new(&plan, 11);
    // 20 minutes at 2.4 Mbit/s: light load, for which 0.4 % was measured, with interruptions added.
    driven.send_every(ms(4), 300_000, 1200);
    let counters = *driven.link.counters();
    let lost = counters.dropped(Cause::Loss) as f64 / 300_000.0;
    assert!((0.0038..0.0060).contains(&lost), "{lost}");
    // 80 boundaries, every other one lossy, 85 ms each: 0.28 % of the time.
    let broken = counters.dropped(Cause::Outage) as f64 / 300_000.0;
    assert!((0.0018..0.0040).contains(&broken), "{broken}");
    let delays: Vec<_> = driven
        .came
        .iter()
        .map(|(number, due)| (*due - Instant::from_ns(number * 4_000_000)).as_ms_f64())
        .collect();
    let least = delays.iter().copied().fold(f64::MAX, f64::min);
    let most = delays.iter().copied().fold(0.0, f64::max);
    assert!((12.5..13.5).contains(&least), "{least}");
    assert!((100.0..180.0).contains(&most), "{most}");
}
