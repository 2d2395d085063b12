//! When packets leave a link: rate, delay, order, outages.

use crate::drive::{Driven, at_ms, ms, plan};
use midhop_path::Cause;
use midhop_units::{Duration, Instant};

/// Packets sent at once into a link with room for all of them.
fn burst(text: &str, count: u64, bytes: u64) -> Driven {
    let mut driven = Driven::new(&plan(&format!("queue = \"1 GB\"\n{text}")), 1);
    for _ in 0..count {
        driven.send(bytes);
    }
    driven.run_dry();
    driven
}

#[test]
fn n_packets_take_n_times_size_over_rate() {
    // Rates at which no packet time is a whole number of ns: rounding each packet up would add up
    // to thousands of ns.
    for (rate, bits_per_s) in [
        ("20 Mbit/s", 20_000_000u128),
        ("7777777 bit/s", 7_777_777),
        ("999.999 Gbit/s", 999_999_000_000),
    ] {
        for bytes in [40, 1499, 1500] {
            let count = 2_000;
            let driven = burst(&format!("rate = \"{rate}\""), count, bytes);
            for (number, due) in driven.came {
                let work = u128::from((number + 1) * bytes) * 8 * 1_000_000_000;
                let exact = work.div_ceil(bits_per_s);
                assert_eq!(u128::from(due.as_ns()), exact, "{rate}, {bytes} B, packet {number}");
            }
        }
    }
}

#[test]
fn an_unlimited_link_only_delays() {
    let driven = burst("delay = \"10 ms\"", 100, 1500);
    assert!(driven.came.iter().all(|(_, due)| *due == at_ms(10)));
    assert_eq!(driven.came.len(), 100);
}

#[test]
fn delay_counts_from_the_last_bit() {
    let driven = burst("rate = \"12 Mbit/s\"\ndelay = \"300 ms\"", 2, 1500);
    assert_eq!(driven.came, [(0, at_ms(301)), (1, at_ms(302))]);
}

#[test]
fn a_rate_step_changes_the_packet_that_is_being_sent() {
    // 1500 B at 1.2 Mbit/s would take 10 ms. After 4 ms, the rest, 60 %, is sent ten times as fast.
    let text = "rate = { trace = [[\"0 s\", \"1.2 Mbit/s\"], [\"4 ms\", \"12 Mbit/s\"], \
                [\"100 ms\", \"0 bit/s\"], [\"200 ms\", \"12 Mbit/s\"]] }";
    let mut driven = burst(text, 2, 1500);
    assert_eq!(driven.came, [(0, Instant::from_ns(4_600_000)), (1, Instant::from_ns(5_600_000))]);
    // At rate zero the packet stops in the middle and continues afterwards.
    driven.run_until(Instant::from_ns(99_500_000));
    driven.send(1500);
    driven.run_dry();
    assert_eq!(driven.came[2], (2, Instant::from_ns(200_500_000)));
}

#[test]
fn a_repeated_trace_gives_its_mean_rate() {
    let text = "rate = { trace = [[\"0 s\", \"10 Mbit/s\"], [\"10 ms\", \"2 Mbit/s\"]], \
                repeat = \"40 ms\" }";
    // (10 × 10 + 30 × 2) / 40 = 4 Mbit/s: 2000 packets of 1000 B take 4 s exactly.
    let driven = burst(text, 2000, 1000);
    assert_eq!(driven.came.last(), Some(&(1999, at_ms(4000))));
}

#[test]
fn a_new_way_is_overtaking_the_old_one_where_the_delay_falls_far() {
    let text = |overtaking: &str| {
        format!(
            "delay = {{ trace = [[\"0 s\", \"50 ms\"], [\"10 ms\", \"49 ms\"], \
             [\"20 ms\", \"20 ms\"]] }}\n{overtaking}"
        )
    };
    let came = |overtaking: &str| -> Vec<(u64, u64)> {
        let mut driven = Driven::new(&plan(&text(overtaking)), 1);
        driven.send_every(ms(5), 7, 100);
        driven.came.iter().map(|(number, due)| (*number, due.as_ns() / 1_000_000)).collect()
    };
    let in_order = vec![(0, 50), (1, 55), (2, 59), (3, 64), (4, 64), (5, 64), (6, 64)];
    assert_eq!(came(""), in_order);
    // Packets 4 to 6 are sent at 20 to 30 ms on the short path and arrive before 0 to 3.
    let overtaken = vec![(4, 40), (5, 45), (0, 50), (6, 50), (1, 55), (2, 59), (3, 64)];
    assert_eq!(came("overtaking = \"5 ms\""), overtaken);
    assert_eq!(came("overtaking = \"30 ms\""), in_order, "the fall is of 29 ms only");
}

#[test]
fn order_is_kept_where_the_delay_shrinks() {
    let text = "delay = { trace = [[\"0 s\", \"50 ms\"], [\"10 ms\", \"20 ms\"]] }";
    let mut driven = Driven::new(&plan(text), 1);
    driven.send_every(ms(5), 10, 100);
    let due: Vec<_> = driven.came.iter().map(|(_, due)| due.as_ns() / 1_000_000).collect();
    assert_eq!(due, [50, 55, 55, 55, 55, 55, 55, 55, 60, 65]);
    assert!(driven.came.is_sorted());
}

#[test]
fn a_held_outage_delays_and_a_lossy_one_loses() {
    let outage = |hold: bool| {
        let text = format!(
            "rate = \"12 Mbit/s\"\n\
             outages = [{{ start = \"10 ms\", length = \"20 ms\", every = \"50 ms\", hold = {hold} }}]"
        );
        let mut driven = Driven::new(&plan(&text), 1);
        driven.send_every(ms(1), 100, 1500);
        driven
    };
    let held = outage(true);
    assert_eq!(held.came.len(), 100);
    assert!(held.came.contains(&(10, at_ms(31))));
    assert!(
        held.came
            .iter()
            .all(|(_, due)| !(10_000_001..30_000_000).contains(&(due.as_ns() % 50_000_000)))
    );
    let lossy = outage(false);
    assert_eq!(lossy.link.counters().dropped(Cause::Outage), 40);
    assert_eq!(lossy.came.len(), 60);
}

#[test]
fn jitter_keeps_order_and_reordering_breaks_it() {
    let text = "delay = \"20 ms\"\njitter = \"10 ms\"";
    let mut driven = Driven::new(&plan(text), 1);
    driven.send_every(ms(1), 5000, 100);
    assert!(driven.came.is_sorted());
    let mean: f64 =
        driven.came.iter().map(|(number, due)| (*due - at_ms(*number)).as_ms_f64()).sum::<f64>()
            / 5000.0;
    // With the order kept, the mean delay is closer to the maximum than the mean of the uniform
    // distribution.
    assert!(mean > 25.0 && mean < 30.0, "{mean}");

    let text = "delay = \"20 ms\"\nreorder = { probability = \"10 %\", by = \"5 ms\" }";
    let mut driven = Driven::new(&plan(text), 1);
    driven.send_every(ms(1), 5000, 100);
    let late = driven.came.iter().filter(|(number, due)| *due - at_ms(*number) == ms(25)).count();
    let on_time =
        driven.came.iter().filter(|(number, due)| *due - at_ms(*number) == ms(20)).count();
    assert_eq!(late + on_time, 5000);
    assert!((400..600).contains(&late), "{late}");
    assert!(!driven.came.is_sorted_by_key(|(number, _)| *number));
    assert!(driven.came.is_sorted_by_key(|(_, due)| *due));
}

#[test]
fn duplicates_arrive_together_and_are_booked() {
    let mut driven = Driven::new(&plan("delay = \"5 ms\"\nduplicate = \"20 %\""), 1);
    driven.send_every(ms(1), 5000, 100);
    let duplicates = driven.came.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!((900..1100).contains(&duplicates), "{duplicates}");
    let counters = driven.link.counters();
    assert_eq!(counters.duplicates, duplicates as u64);
    assert_eq!(counters.packets_out, 5000 + duplicates as u64);
}

#[test]
fn who_comes_late_finds_everything_as_it_was_due() {
    let text = "rate = \"10 Mbit/s\"\ndelay = \"30 ms\"\nloss = 0.1\njitter = \"2 ms\"";
    let mut prompt = Driven::new(&plan(text), 1);
    let mut late = Driven::new(&plan(text), 1);
    for round in 0..200 {
        for driven in [&mut prompt, &mut late] {
            driven.send(1500);
            driven.send(700);
        }
        prompt.run_until(at_ms(3 * round + 3));
        // The other link is not called in between: it learns the time only with the next packet.
        late.now = at_ms(3 * round + 3);
    }
    prompt.run_dry();
    late.wake_late(at_ms(10_000));
    assert_eq!(prompt.came, late.came);
}

#[test]
fn time_that_goes_backwards_is_taken_as_standing_still() {
    let mut driven = Driven::new(&plan("rate = \"12 Mbit/s\""), 1);
    driven.run_until(at_ms(100));
    driven.now = at_ms(50);
    driven.send(1500);
    driven.now = at_ms(100);
    driven.run_dry();
    assert_eq!(driven.came, [(0, at_ms(101))]);
    assert_eq!(Duration::ZERO, at_ms(101).saturating_since(driven.now));
}
