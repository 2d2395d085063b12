//! A flow of known rate.

use super::path::{Link, Path};
use midhop_congestion::{
    CongestionControl, Handover, Rto,
    known_rate::{Hinted, KnownRate, KnownRateBounds, KnownRateSettings, Leg},
};
use midhop_units::{Bytes, Duration, Instant, Rate};

const RATE: Rate = Rate::from_mbit_per_s(20);

fn flow(leg: &Leg) -> KnownRate {
    // The path of these tests carries no headers.
    let settings =
        KnownRateSettings { overhead: Bytes::ZERO, ..KnownRateSettings::new(leg.clone()) };
    KnownRate::new(Bytes::new(1448), 10, settings)
}

fn path(configured: Rate, rtt_ms: u64) -> Path<KnownRate> {
    Path::one(Link::new(RATE, Duration::from_ms(rtt_ms)), flow(&Leg::new(configured)))
}

#[test]
fn it_fills_the_leg_from_the_first_round_trip_on_without_a_queue() {
    for rtt_ms in [50, 600] {
        let mut path = path(RATE, rtt_ms);
        path.run(Duration::from_ms(rtt_ms));
        let share = path.share(Duration::from_s(5));
        assert!(share > 0.995, "{rtt_ms} ms: {share}");
        assert!(path.link.queue_max < Bytes::new(3 * 1448), "{}", path.link.queue_max);
    }
}

#[test]
fn losses_cost_what_they_destroy_and_nothing_more() {
    for (loss, rtt_ms) in [(100, 50), (500, 50), (100, 600), (500, 600)] {
        let mut path = path(RATE, rtt_ms);
        path.link.loss = loss;
        path.run(Duration::from_s(2));
        let share = path.share(Duration::from_s(20));
        let left = 1.0 - loss as f64 / 10_000.0;
        assert!(share > 0.98 * left, "{loss} of 10,000 at {rtt_ms} ms: {share}");
        assert_eq!(path.flows[0].control.ceiling(), None);
    }
}

#[test]
fn flows_of_a_leg_share_it_and_queue_nothing() {
    let leg = Leg::new(RATE);
    let mut path = Path::new(Link::new(RATE, Duration::from_ms(300)));
    for _ in 0..4 {
        path.join(flow(&leg));
    }
    // One of them has a tenth of the rate to send.
    path.flows[0].backlog = Some(0);
    for _ in 0..100 {
        path.flows[0].backlog = path.flows[0].backlog.map(|left| left + 25_000);
        path.run(Duration::from_ms(100));
    }
    path.queue();
    let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
    for _ in 0..100 {
        path.flows[0].backlog = path.flows[0].backlog.map(|left| left + 25_000);
        path.run(Duration::from_ms(100));
    }
    let parts: Vec<f64> = path
        .flows
        .iter()
        .zip(before)
        .map(|(flow, before)| (flow.delivered - before) as f64 / 25_000_000.0)
        .collect();
    assert!((0.09..0.11).contains(&parts[0]), "{parts:?}");
    assert!(parts.iter().sum::<f64>() > 0.95, "{parts:?}");
    for part in &parts[2..] {
        assert!((part / parts[1] - 1.0).abs() < 0.02, "{parts:?}");
    }
    assert!(path.link.queue_max < Bytes::new(20 * 1448), "{}", path.link.queue_max);
    drop(path);
    assert_eq!(leg.active(), 0);
}

#[test]
fn a_page_after_a_silence_is_sent_at_the_legs_rate_at_once() {
    let mut path = path(RATE, 600);
    path.flows[0].backlog = Some(20_000);
    path.run(Duration::from_s(5));
    for _ in 0..3 {
        let before = path.flows[0].delivered;
        path.flows[0].backlog = Some(2_000_000);
        // 0.8 s to send it and a round trip, no more.
        path.run(Duration::from_ms(1420));
        assert!(path.flows[0].delivered - before > 1_990_000, "{}", path.flows[0].delivered);
        path.run(Duration::from_s(5));
    }
}

#[test]
fn a_leg_that_carries_less_than_was_configured_is_not_drowned() {
    for (configured, queue) in [(30, 4.0), (40, 4.0), (40, 0.05)] {
        let mut path = path(Rate::from_mbit_per_s(configured), 100);
        path.link.queue = Bytes::new((path.link.bdp() as f64 * queue) as u64);
        path.run(Duration::from_s(10));
        let (dropped, delivered) = (path.link.dropped, path.flows[0].delivered);
        path.queue();
        let share = path.share(Duration::from_s(30));
        let queue_ms = path.queue() * 100.0;
        let dropped = (path.link.dropped - dropped) as f64 * 1448.0;
        let lost = dropped / (dropped + (path.flows[0].delivered - delivered) as f64);
        assert!(share > 0.85, "configured {configured}, queue {queue}: {share}");
        // The bound is 100 ms; it is seen a round trip late.
        assert!(queue_ms < 220.0, "configured {configured}, queue {queue}: {queue_ms} ms");
        assert!(lost < 0.15, "configured {configured}, queue {queue}: {lost} lost");
    }
}

#[test]
fn a_handover_changes_rate_and_round_trip_time_at_once() {
    let mut path = path(RATE, 100);
    path.run(Duration::from_s(2));
    for (mbit, rtt_ms) in [(60, 300), (5, 50)] {
        let (rate, rtt) = (Rate::from_mbit_per_s(mbit), Duration::from_ms(rtt_ms));
        let hint = Handover { now: Instant::START, rtt: Some(rtt), rate: Some(rate) };
        path.hand_over(rate, rtt, Some(hint));
        path.run(Duration::from_ms(2 * rtt_ms + 1000));
        let share = path.share(Duration::from_s(2));
        assert!(share > 0.98, "{mbit} Mbit/s: {share}");
    }
}

#[test]
fn a_longer_path_whose_delay_nobody_reports_is_not_taken_for_a_queue() {
    let mut path = path(RATE, 40);
    path.run(Duration::from_s(2));
    let hint = Handover { now: Instant::START, rtt: None, rate: None };
    path.hand_over(RATE, Duration::from_ms(250), Some(hint));
    path.run(Duration::from_s(1));
    let share = path.share(Duration::from_s(3));
    assert!(share > 0.98, "{share}");
    assert_eq!(path.flows[0].control.ceiling(), None);
}

#[test]
fn a_leg_that_dies_for_a_while_is_tried_with_little_and_filled_again() {
    let mut path = path(RATE, 100);
    path.run(Duration::from_s(2));
    path.link.loss = 10_000;
    path.run(Duration::from_s(10));
    assert_eq!(path.flows[0].control.window().get(), 4 * 1448);
    path.link.loss = 0;
    path.run(Duration::from_s(3));
    let share = path.share(Duration::from_s(3));
    assert!(share > 0.98, "{share}");
}

#[test]
fn an_open_loop_sends_its_rate_whatever_becomes_of_it() {
    for (configured, loss, queue) in [(20, 3000, 1.0), (30, 0, 0.2)] {
        let leg = Leg::new(Rate::from_mbit_per_s(configured));
        let settings = KnownRateSettings {
            overhead: Bytes::ZERO,
            bounds: KnownRateBounds { open_loop: true, ..KnownRateBounds::default() },
            ..KnownRateSettings::new(leg)
        };
        let mut flow = KnownRate::new(Bytes::new(1448), 10, settings);
        flow.on_rto(&Rto { now: Instant::START, in_flight: Bytes::ZERO });
        assert_eq!(flow.window(), Bytes::new(1 << 30), "before anything is measured");
        let mut path = Path::one(Link::new(RATE, Duration::from_ms(300)), flow);
        path.link.loss = loss;
        path.link.queue = Bytes::new((path.link.bdp() as f64 * queue) as u64);
        path.run(Duration::from_s(5));
        let dropped = path.link.dropped;
        path.queue();
        let share = path.share(Duration::from_s(10));
        let lost = (path.link.dropped - dropped) as f64 * 1448.0 * 8.0 / 10.0 / 1e6;
        let left = 1.0 - loss as f64 / 10_000.0;
        assert!(
            share > 0.97 * left,
            "{configured} Mbit/s configured, {loss} of 10,000 lost: {share}"
        );
        // Ten of the thirty Mbit/s meet a full queue for as long as the flow sends.
        assert!(configured == 20 || (9.0..11.0).contains(&lost), "{lost} Mbit/s lost");
        assert_eq!(path.flows[0].control.ceiling(), None);
    }
}

/// A flow that gets `configured` as a hint.
fn hinted(configured: Rate, rtt_ms: u64) -> Path<Hinted> {
    let settings =
        KnownRateSettings { overhead: Bytes::ZERO, ..KnownRateSettings::new(Leg::new(configured)) };
    let flow = Hinted::new(Bytes::new(1448), 10, settings);
    Path::one(Link::new(RATE, Duration::from_ms(rtt_ms)), flow)
}

#[test]
fn a_hint_that_is_true_costs_nothing() {
    for (loss, rtt_ms, queue) in [(0, 50, 1.0), (0, 600, 1.0), (500, 600, 1.0), (0, 600, 0.05)] {
        let mut path = hinted(RATE, rtt_ms);
        path.link.loss = loss;
        path.link.queue = Bytes::new((path.link.bdp() as f64 * queue) as u64);
        path.run(Duration::from_s(2));
        let share = path.share(Duration::from_s(60));
        let left = 1.0 - loss as f64 / 10_000.0;
        assert!(share > 0.98 * left, "{loss} of 10,000 at {rtt_ms} ms, queue {queue}: {share}");
        assert_eq!(path.flows[0].control.carried(), None, "{loss}, {rtt_ms} ms, queue {queue}");
    }
}

#[test]
fn a_hint_that_is_wrong_is_measured_within_ten_seconds() {
    for (configured, rtt_ms, queue) in [
        (40, 50, 1.0),
        (40, 600, 1.0),
        (40, 600, 0.1),
        (30, 100, 4.0),
        (10, 50, 1.0),
        (10, 600, 1.0),
        (10, 600, 0.1),
        (5, 100, 1.0),
    ] {
        let case = format!("{configured} Mbit/s configured, {rtt_ms} ms, queue {queue}");
        let mut path = hinted(Rate::from_mbit_per_s(configured), rtt_ms);
        path.link.queue = Bytes::new((path.link.bdp() as f64 * queue) as u64);
        path.run(Duration::from_s(10));
        let share = path.share(Duration::from_s(30));
        assert!(share > 0.92, "{case}: {share}");
        let carried = path.flows[0].control.carried().expect("a measured rate").mbit_per_s();
        assert!((18.0..22.0).contains(&carried), "{case}: {carried} Mbit/s");
    }
}

/// A host without a processor acknowledges what has arrived meanwhile at once when it has one again.
#[test]
fn hosts_that_are_late_are_not_taken_for_a_faster_link() {
    for every in 20..60 {
        let of = every / 2;
        let mut path = hinted(RATE, 40);
        path.link.stalls = Some((Duration::from_ms(every), Duration::from_ms(of)));
        path.run(Duration::from_s(30));
        let carried = path.flows[0].control.carried();
        assert_eq!(carried, None, "{of} of {every} ms");
    }
    // If the path carries more, that is found all the same.
    let mut path = hinted(Rate::from_mbit_per_s(10), 100);
    path.link.stalls = Some((Duration::from_ms(25), Duration::from_ms(12)));
    path.run(Duration::from_s(20));
    let share = path.share(Duration::from_s(20));
    assert!(share > 0.85, "{share}");
}

#[test]
fn a_hint_that_is_true_in_fair_weather_is_believed_again() {
    let mut path = hinted(RATE, 100);
    path.run(Duration::from_s(5));
    path.hand_over(Rate::from_mbit_per_s(8), Duration::from_ms(100), None);
    path.run(Duration::from_s(10));
    let share = path.share(Duration::from_s(10));
    assert!(share > 0.92, "in rain: {share}");
    assert!(path.flows[0].control.carried().is_some());
    path.hand_over(RATE, Duration::from_ms(100), None);
    path.run(Duration::from_s(20));
    let share = path.share(Duration::from_s(10));
    assert!(share > 0.98, "after it: {share}");
    assert_eq!(path.flows[0].control.carried(), None);
}

#[test]
fn flows_of_one_leg_do_not_find_more_at_each_other_s_cost() {
    let leg = Leg::new(RATE);
    let mut path = Path::new(Link::new(RATE, Duration::from_ms(100)));
    for _ in 0..4 {
        let settings =
            KnownRateSettings { overhead: Bytes::ZERO, ..KnownRateSettings::new(leg.clone()) };
        path.join(Hinted::new(Bytes::new(1448), 10, settings));
    }
    path.run(Duration::from_s(60));
    assert!(path.flows.iter().all(|flow| flow.control.carried().is_none()));
    assert!(path.link.queue_max < Bytes::new(40 * 1448), "{}", path.link.queue_max);
}

#[test]
fn a_rate_that_is_reported_is_sent_at_once() {
    let mut path = hinted(RATE, 600);
    path.run(Duration::from_s(5));
    for mbit in [10, 5, 15, 20] {
        let rate = Rate::from_mbit_per_s(mbit);
        path.hand_over(rate, Duration::from_ms(600), None);
        path.flows[0].control.on_rate(rate);
        path.run(Duration::from_ms(1300));
        let share = path.share(Duration::from_s(10));
        assert!(share > 0.96, "{mbit} Mbit/s: {share}");
        assert_eq!(path.flows[0].control.carried(), None, "{mbit} Mbit/s is what it carries");
    }
    // A modem that keeps reporting a wrong rate.
    path.hand_over(Rate::from_mbit_per_s(8), Duration::from_ms(600), None);
    for _ in 0..20 {
        path.flows[0].control.on_rate(RATE);
        path.run(Duration::from_s(1));
    }
    let share = path.share(Duration::from_s(10));
    assert!(share > 0.9 && path.flows[0].control.carried().is_some(), "{share}");
}
