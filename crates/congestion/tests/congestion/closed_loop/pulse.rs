//! The controller that measures a link by pulses.

use super::path::{Link, MSS, Path};
use midhop_congestion::pulse::Pulsed;
use midhop_units::{Bytes, Duration, Rate};

const RATE: Rate = Rate::from_mbit_per_s(20);

fn path(rate: Rate, rtt_ms: u64) -> Path<Pulsed> {
    Path::one(Link::new(rate, Duration::from_ms(rtt_ms)), Pulsed::new(Bytes::new(MSS), 10))
}

/// The capacity that the only flow knows, as a part of the link's rate.
fn known(path: &Path<Pulsed>) -> f64 {
    let capacity = path.flows[0].control.capacity().expect("a round-trip time is known");
    capacity.bits_per_s() as f64 / path.link.rate.bits_per_s() as f64
}

#[test]
fn a_capacity_is_found_within_a_few_round_trips() {
    for (mbit, rtt_ms, rounds) in
        [(1, 600, 3), (20, 600, 4), (140, 600, 5), (20, 50, 4), (200, 50, 5)]
    {
        let mut path = path(Rate::from_mbit_per_s(mbit), rtt_ms);
        path.run(Duration::from_ms(rounds * rtt_ms));
        let part = known(&path);
        assert!((0.9..1.1).contains(&part), "{mbit} Mbit/s, {rtt_ms} ms: {part}");
        let share = path.share(Duration::from_ms(20 * rtt_ms));
        assert!(share > 0.97, "{mbit} Mbit/s, {rtt_ms} ms: {share}");
    }
}

#[test]
fn the_queue_is_that_of_a_pulse() {
    let mut path = path(RATE, 600);
    path.run(Duration::from_s(10));
    path.queue();
    path.run(Duration::from_s(20));
    let most = path.queue();
    assert!(most < 0.3, "at most {most} products");
}

#[test]
fn steps_are_followed_within_a_few_round_trips() {
    let rtt = Duration::from_ms(564);
    let mut path = path(RATE, 564);
    path.run(Duration::from_s(12));
    for mbit in [8, 14, 5, 30] {
        path.hand_over(Rate::from_mbit_per_s(mbit), rtt, None);
        path.run(rtt * 5);
        let part = known(&path);
        assert!((0.9..1.1).contains(&part), "{mbit} Mbit/s: {part}");
        let share = path.share(Duration::from_s(8));
        assert!(share > 0.97, "{mbit} Mbit/s: {share}");
    }
}

#[test]
fn a_radio_s_losses_change_nothing() {
    for loss in [100, 500] {
        let mut path = path(RATE, 600);
        path.link.loss = loss;
        path.run(Duration::from_s(15));
        let share = path.share(Duration::from_s(30));
        let carried = 1.0 - loss as f64 / 10_000.0;
        assert!(share > 0.96 * carried, "{loss} of 10,000 lost: {share}");
    }
}

/// The controller takes the longer path for a queue until a pulse shows that the link could deliver more.
#[test]
fn a_path_that_grows_longer_keeps_its_rate() {
    for (before, after) in [(40, 60), (60, 40), (560, 600)] {
        let mut path = path(RATE, before);
        path.run(Duration::from_s(10));
        let rtt = Duration::from_ms(after);
        path.hand_over(RATE, rtt, None);
        path.run(rtt * 8);
        let share = path.share(Duration::from_s(10));
        assert!(share > 0.97, "{before} to {after} ms: {share}");
        let base = path.flows[0].control.base_rtt().expect("measured");
        assert!(base < rtt + rtt / 8, "{before} to {after} ms: {base}");
    }
}

#[test]
fn a_queue_too_short_for_a_pulse_gets_weaker_ones() {
    let mut path = path(RATE, 600);
    path.link.queue = Bytes::new(path.link.bdp() / 10);
    path.run(Duration::from_s(20));
    let before = path.link.dropped;
    let share = path.share(Duration::from_s(30));
    let sent = RATE.bytes_in(Duration::from_s(30)).get() / MSS;
    let dropped = (path.link.dropped - before) as f64 / sent as f64;
    assert!(share > 0.95 && dropped < 0.12, "{share}, dropped {dropped}");
}

#[test]
fn what_was_known_is_used_after_a_silence() {
    let mut path = path(RATE, 600);
    path.run(Duration::from_s(10));
    path.flows[0].backlog = Some(0);
    path.run(Duration::from_s(5));
    path.flows[0].backlog = Some(2_000_000);
    let before = path.flows[0].delivered;
    path.run(Duration::from_ms(600 + 900));
    let delivered = path.flows[0].delivered - before;
    assert!(delivered > 1_900_000, "{delivered} bytes");
}

#[test]
fn two_of_them_share_a_link() {
    let mut path = path(RATE, 50);
    path.run(Duration::from_s(5));
    path.join(Pulsed::new(Bytes::new(MSS), 10));
    path.run(Duration::from_s(20));
    let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
    let share = path.share(Duration::from_s(30));
    let parts: Vec<f64> = path
        .flows
        .iter()
        .zip(before)
        .map(|(flow, before)| (flow.delivered - before) as f64)
        .collect();
    let jain = (parts[0] + parts[1]).powi(2) / (2.0 * (parts[0].powi(2) + parts[1].powi(2)));
    assert!(share > 0.95 && jain > 0.9, "{share}, {parts:?}");
}

#[test]
fn the_same_events_give_the_same_run() {
    let run = || {
        let mut path = path(RATE, 50);
        path.link.loss = 100;
        let mut seen = Vec::new();
        path.watch(Duration::from_s(4), |path| seen.push(path.flows[0].control.capacity()));
        seen
    };
    assert_eq!(run(), run());
}
