//! Estimates over synthetic arrivals.

use super::super::synthetic::Synthetic;
use super::*;
use midhop_units::{Duration, Rate};
use proptest::prelude::*;

fn judged(link: &mut Synthetic, rate: u64, time: Duration) -> Arrived {
    let (train, arrivals) = link.carry(Rate::from_bits_per_s(rate), time);
    Arrived::of(&arrivals, train.packets, 0)
}

fn near(value: f64, expected: f64, part: f64) {
    assert!((value / expected - 1.0).abs() < part, "{value} is not about {expected}");
}

#[test]
fn a_queue_shows_the_links_rate() {
    let arrived = judged(&mut Synthetic::new(|_| 5e6), 6_000_000, Duration::from_s(4));
    let tail = arrived.tail.expect("judged");
    near(tail.rate_bit_per_s, 5e6, 0.001);
    near(tail.sent_bit_per_s, 6e6, 0.01);
    near(tail.stretch, 1.2, 0.01);
    let windows = tail.windows_bit_per_s.expect("enough packets");
    assert!(windows.iter().all(|rate| (rate / 5e6 - 1.0).abs() < 0.01), "{windows:?}");
}

#[test]
fn a_policer_shows_its_rate_by_what_it_lets_through() {
    let mut link = Synthetic { queue: 2e4, ..Synthetic::new(|_| 5e6) };
    let tail = judged(&mut link, 6_000_000, Duration::from_s(4)).tail.expect("judged");
    near(tail.rate_bit_per_s, 5e6, 0.02);
    near(tail.delivered, 5.0 / 6.0, 0.02);
}

#[test]
fn a_token_buckets_burst_is_ignored() {
    let mut link = Synthetic { bucket: 1.5e6, ..Synthetic::new(|_| 5e6) };
    let tail = judged(&mut link, 6_500_000, Duration::from_s(4)).tail.expect("judged");
    near(tail.rate_bit_per_s, 5e6, 0.01);
}

#[test]
fn a_rate_that_varies_shows_in_its_windows() {
    let square = |at: f64| if ((at * 2.0) as u64).is_multiple_of(2) { 8e6 } else { 4e6 };
    let mut link = Synthetic { queue: 1e5, ..Synthetic::new(square) };
    let tail = judged(&mut link, 10_000_000, Duration::from_s(8)).tail.expect("judged");
    let [low, _, high] = tail.windows_bit_per_s.expect("enough packets");
    near(low, 4e6, 0.1);
    near(high, 8e6, 0.1);
}

#[test]
fn a_slow_sender_is_not_taken_for_a_slow_link() {
    let mut link = Synthetic { sender_max: 3e6, ..Synthetic::new(|_| 5e6) };
    let tail = judged(&mut link, 8_000_000, Duration::from_s(2)).tail.expect("judged");
    near(tail.sent_bit_per_s, 3e6, 0.01);
    near(tail.stretch, 1.0, 0.01);
}

#[test]
fn losses_are_counted_in_their_bursts() {
    let arrival = |number: u32| TrainArrival {
        number,
        sent_ns: u64::from(number) * 10,
        at_ns: u64::from(number) * 10 + 5,
    };
    let came = [1, 2, 5, 4, 4, 8, 99];
    let arrived = Arrived::of(&came.map(arrival), 10, 2);
    // 0, then 3, then 6 and 7, then 9.
    assert_eq!((arrived.packets, arrived.lost, arrived.loss_bursts), (5, 5, 4));
    assert_eq!((arrived.reordered, arrived.duplicates, arrived.overflowed), (1, 1, 2));
    assert_eq!(arrived.loss_burst_mean(), Some(1.25));
    let none = Arrived::of(&[], 10, 0);
    assert_eq!((none.packets, none.lost, none.loss_bursts, none.tail), (0, 10, 1, None));
    assert_eq!(Arrived::of(&[], 0, 0), Arrived::default());
}

#[test]
fn an_interval_is_wilsons() {
    // Newcombe 1998, table I: 81 of 263 and 0 of 20 by method 3.
    for (lost, sent, expected) in
        [(81, 263, [0.2553, 0.3662]), (15, 148, [0.0624, 0.1605]), (0, 20, [0.0, 0.1611])]
    {
        let interval = loss_interval(lost, sent, None);
        for (value, expected) in interval.into_iter().zip(expected) {
            assert!((value - expected).abs() < 5e-5, "{lost} of {sent}: {interval:?}");
        }
    }
    assert_eq!(loss_interval(0, 0, None), [0.0, 1.0]);
    let (alone, bursts) = (loss_interval(30, 3000, Some(1.0)), loss_interval(30, 3000, Some(5.0)));
    assert!(bursts[0] < alone[0] && bursts[1] > alone[1], "{bursts:?} is no wider than {alone:?}");
}

#[test]
fn intervals_contain_the_truth_as_often_as_promised() {
    // A Gilbert channel: a burst of 4 begins at 1 in 300 packets.
    let truth = {
        let (begin, end) = (1.0 / 300.0, 1.0 / 4.0);
        begin / (begin + end)
    };
    let held = (0..400).filter(|&seed| {
        let mut link = Synthetic { loss: (1.0 / 300.0, 4.0), seed, ..Synthetic::new(|_| 100e6) };
        let arrived = judged(&mut link, 10_000_000, Duration::from_s(4));
        let sent = arrived.packets + arrived.lost;
        let [low, high] = loss_interval(arrived.lost, sent, arrived.loss_burst_mean());
        low <= truth && truth <= high
    });
    let held = held.count();
    assert!(held >= 360, "{held} of 400 intervals of 95 % held the truth");
}

proptest! {
    #[test]
    fn a_saturated_link_is_found_though_it_loses(
        factor in 1.1f64..3.0,
        begins in 0.0f64..0.005,
        burst in 1.0f64..3.0,
        bucket in 0.0f64..5e5,
        queue in 1e4f64..1e7,
        seed: u64,
    ) {
        let link = Synthetic { bucket, queue, loss: (begins, burst), seed, ..Synthetic::new(|_| 4e6) };
        let arrived = judged(&mut link.clone(), (4e6 * factor) as u64, Duration::from_s(5));
        let tail = arrived.tail.expect("judged");
        let delivered = 1.0 - begins / (begins + 1.0 / burst);
        let rate = tail.rate_bit_per_s / delivered;
        prop_assert!((rate / 4e6 - 1.0).abs() < 0.05, "{rate} of 4e6");
    }

    #[test]
    fn no_arrivals_panic(
        numbers in proptest::collection::vec((0u32..40, 0u64..1000, 0u64..1000), 0..60),
        sent in 0u32..30,
    ) {
        let arrivals: Vec<TrainArrival> = numbers
            .into_iter()
            .map(|(number, sent_ns, at_ns)| TrainArrival { number, sent_ns, at_ns })
            .collect();
        let arrived = Arrived::of(&arrivals, sent, 0);
        prop_assert_eq!(arrived.packets + arrived.lost, u64::from(sent));
    }
}
