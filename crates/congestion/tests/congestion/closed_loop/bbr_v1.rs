//! BBR version 1.

use super::path::{Link, Path};
use midhop_congestion::{
    Handover,
    bbr::{
        BbrSettings,
        v1::{BbrV1, Mode},
    },
};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};

const RATE: Rate = Rate::from_mbit_per_s(20);

fn bbr(seed: u64) -> BbrV1 {
    BbrV1::new(Bytes::new(1448), BbrSettings { seed: Seed(seed), ..BbrSettings::default() })
}

fn path(rtt_ms: u64) -> Path<BbrV1> {
    Path::one(Link::new(RATE, Duration::from_ms(rtt_ms)), bbr(1))
}

#[test]
fn it_starts_drains_probes_and_looks_for_the_round_trip_time_after_ten_seconds() {
    let mut path = path(50);
    let walk = path.walk(Duration::from_s(12), BbrV1::mode);
    let names: Vec<Mode> = walk.iter().map(|&(mode, _)| mode).collect();
    let expected = [Mode::Startup, Mode::Drain, Mode::ProbeBw, Mode::ProbeRtt, Mode::ProbeBw];
    assert_eq!(names, expected, "{walk:?}");
    // 125 kB per round trip from 14 kB: four doublings. Then three rounds without growth, in which the queue makes the
    // round trip three times as long.
    assert!((4 * 50 + 3 * 100..4 * 50 + 5 * 150).contains(&walk[1].1), "{walk:?}");
    // The first round trips see no queue: ten seconds from then.
    assert!((10_000..10_200).contains(&walk[3].1), "{walk:?}");
    assert!((200..420).contains(&(walk[4].1 - walk[3].1)), "{walk:?}");
}

#[test]
fn it_finds_nine_tenths_of_the_rate_within_its_doublings_and_three_rounds() {
    for rtt_ms in [50, 300, 600] {
        let mut path = path(rtt_ms);
        let (reached, doublings) = path.reaches_nine_tenths(BbrV1::bandwidth);
        assert!(reached <= (doublings + 3) * rtt_ms, "{rtt_ms} ms: {doublings}, {reached} ms");
    }
}

#[test]
fn it_fills_the_link_and_drains_its_queue() {
    for rtt_ms in [20, 50, 150, 300] {
        let mut path = path(rtt_ms);
        path.link.queue = Bytes::new(3 * path.link.bdp());
        path.run(Duration::from_ms(24 * rtt_ms + 500));
        assert_eq!(path.link.dropped, 0, "{rtt_ms} ms: a start needs a queue of two products");
        path.queue();
        let share = path.share(Duration::from_s(2));
        assert!(share > 0.95, "{rtt_ms} ms: {share}");
        let queue = path.queue();
        assert!(queue < 1.1, "{rtt_ms} ms: a queue of {queue} products");
    }
}

#[test]
fn the_probe_of_the_round_trip_time_costs_a_geostationary_path_a_tenth() {
    let mut path = path(600);
    path.run(Duration::from_s(10));
    let share = path.share(Duration::from_s(30));
    assert!((0.85..0.95).contains(&share), "{share}");
}

#[test]
fn losses_of_one_and_five_in_a_hundred_cost_little_more_than_themselves() {
    for (loss, least) in [(100, 0.88), (500, 0.80)] {
        let mut path = path(100);
        path.link.loss = loss;
        path.run(Duration::from_s(3));
        let share = path.share(Duration::from_s(20));
        assert!(share > least, "{loss} of 10,000: {share}");
    }
}

#[test]
fn a_start_to_the_second_flow_leaves_both_a_fair_part() {
    let mut path = path(50);
    path.run(Duration::from_s(3));
    path.join(bbr(2));
    path.run(Duration::from_s(30));
    let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
    let share = path.share(Duration::from_s(20));
    let parts: Vec<f64> =
        path.flows.iter().zip(before).map(|(f, b)| (f.delivered - b) as f64).collect();
    assert!(share > 0.93, "{share}");
    let ratio = parts[0] / parts[1];
    assert!((0.5..2.0).contains(&ratio), "{parts:?}");
}

#[test]
fn a_silence_forgets_nothing_and_needs_no_probe() {
    let mut path = path(50);
    path.flows[0].backlog = Some(4_000_000);
    path.run(Duration::from_s(15));
    let bandwidth = path.flows[0].control.bandwidth();
    assert!(bandwidth > Rate::from_mbit_per_s(19), "{bandwidth}");
    path.flows[0].backlog = Some(2_000_000);
    let walk = path.walk(Duration::from_s(1), BbrV1::mode);
    assert!(walk.iter().all(|&(mode, _)| mode == Mode::ProbeBw), "{walk:?}");
    assert_eq!(path.flows[0].backlog, Some(2_000_000 % 1448));
}

#[test]
fn a_longer_path_is_learnt_from_a_hint_at_once() {
    let reached = |hint: bool| {
        let mut path = path(40);
        path.run(Duration::from_s(2));
        let rtt = Duration::from_ms(120);
        let handover = Handover { now: Instant::START, rtt: Some(rtt), rate: Some(RATE) };
        path.hand_over(RATE, rtt, hint.then_some(handover));
        path.share(Duration::from_s(3))
    };
    let (hinted, unhinted) = (reached(true), reached(false));
    assert!(hinted > 0.9 && unhinted < 0.8 * hinted, "hinted {hinted}, unhinted {unhinted}");
}

#[test]
fn a_path_that_dies_for_a_while_is_filled_again() {
    let mut path = path(50);
    path.run(Duration::from_s(3));
    path.link.loss = 10_000;
    path.run(Duration::from_s(4));
    path.link.loss = 0;
    path.run(Duration::from_s(4));
    // A probe of the round-trip time may fall into it.
    let share = path.share(Duration::from_s(9));
    assert!(share > 0.92, "{share}");
}

#[test]
fn the_seed_decides_where_a_cycle_begins_and_the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut path = Path::one(Link::new(RATE, Duration::from_ms(50)), bbr(seed));
        let mut trace = Vec::new();
        path.watch(Duration::from_s(2), |path| {
            trace.push((path.now, path.flows[0].control.pacing_gain()));
        });
        trace
    };
    assert_eq!(run(1), run(1));
    let first_gain = |seed| run(seed).into_iter().rev().find(|&(_, gain)| gain < 200).map(|t| t.0);
    let distinct: std::collections::BTreeSet<_> = (0..20).map(first_gain).collect();
    assert!(distinct.len() > 3, "{distinct:?}");
}

#[test]
fn a_policer_is_found_and_kept_to() {
    let policed = Rate::from_mbit_per_s(5);
    let mut path = path(50);
    // The policer lets a quarter of the link's rate through, and a second of that at once.
    path.link.policer = Some((policed, policed.bytes_in(Duration::from_s(1))));
    let mut found = None;
    path.watch(Duration::from_s(20), |path| {
        found = found.or(path.flows[0].control.policed());
    });
    let found = found.expect("a policer");
    assert!(
        found.bits_per_s().abs_diff(policed.bits_per_s()) < policed.bits_per_s() / 8,
        "{found}"
    );
    // The policer's rate is used for some 48 of sixty rounds: little is lost, and little capacity is unused.
    let before = path.link.dropped;
    let share = 4.0 * path.share(Duration::from_s(20));
    let dropped = (path.link.dropped - before) as f64 * 1448.0
        / policed.bytes_in(Duration::from_s(20)).get() as f64;
    assert!(share > 0.8 && dropped < 0.3, "{share} of the rate, {dropped} of it dropped");
}

#[test]
fn a_channels_losses_are_not_taken_for_a_policer() {
    let mut path = path(100);
    path.link.loss = 1000;
    let mut found = false;
    path.watch(Duration::from_s(20), |path| found |= path.flows[0].control.policed().is_some());
    assert!(!found);
}
