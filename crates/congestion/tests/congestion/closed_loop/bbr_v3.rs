//! BBR version 3.

use super::path::{Link, Path};
use midhop_congestion::{
    Handover,
    bbr::{
        BbrSettings,
        v3::{BbrV3, State},
    },
};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};

const RATE: Rate = Rate::from_mbit_per_s(20);

fn bbr(seed: u64) -> BbrV3 {
    BbrV3::new(Bytes::new(1448), BbrSettings { seed: Seed(seed), ..BbrSettings::default() })
}

fn path(rtt_ms: u64) -> Path<BbrV3> {
    Path::one(Link::new(RATE, Duration::from_ms(rtt_ms)), bbr(1))
}

#[test]
fn it_starts_drains_and_goes_round_its_states_until_it_looks_for_the_round_trip_time() {
    use State::{Drain, ProbeBwCruise, ProbeBwDown, ProbeBwRefill, ProbeBwUp, ProbeRtt, Startup};
    let mut path = path(50);
    let walk = path.walk(Duration::from_s(12), BbrV3::state);
    let names: Vec<State> = walk.iter().map(|&(state, _)| state).collect();
    // A path that is drained passes DOWN within one acknowledgement.
    assert_eq!(names[..3], [Startup, Drain, ProbeBwCruise], "{walk:?}");
    for pair in names[2..].windows(2) {
        let allowed: &[State] = match pair[0] {
            ProbeBwDown => &[ProbeBwCruise, ProbeBwRefill, ProbeRtt],
            ProbeBwCruise => &[ProbeBwRefill, ProbeRtt],
            ProbeBwRefill => &[ProbeBwUp, ProbeRtt],
            ProbeBwUp => &[ProbeBwDown, ProbeRtt],
            ProbeRtt => &[ProbeBwCruise],
            Startup | Drain => &[],
        };
        assert!(allowed.contains(&pair[1]), "{pair:?}: {walk:?}");
    }
    // 125 kB per round trip from 14 kB: four doublings. Then three rounds without growth, in which the queue makes the
    // round trip twice as long.
    assert!((4 * 50 + 3 * 75..4 * 50 + 5 * 100).contains(&walk[1].1), "{walk:?}");
    let began = |wanted| walk.iter().filter(move |(state, _)| *state == wanted).map(|&(_, at)| at);
    let first = began(ProbeRtt).next().expect("a probe of the round-trip time");
    assert!((5000..5400).contains(&first), "{walk:?}");
    let ups: Vec<u64> = began(ProbeBwUp).collect();
    assert_eq!(ups.len(), 2, "{walk:?}");
    // Two to three seconds from DOWN, which restarts after a probe of the round-trip time.
    for (up, since) in [(ups[0], walk[2].1), (ups[1], first)] {
        assert!((2000..3400).contains(&(up - since)), "{walk:?}");
    }
}

#[test]
fn it_finds_nine_tenths_of_the_rate_within_its_doublings_and_three_rounds() {
    for rtt_ms in [50, 300, 600] {
        let mut path = path(rtt_ms);
        let (reached, doublings) = path.reaches_nine_tenths(BbrV3::max_bw);
        assert!(reached <= (doublings + 3) * rtt_ms, "{rtt_ms} ms: {doublings}, {reached} ms");
    }
}

#[test]
fn it_fills_the_link_and_drains_its_queue() {
    for rtt_ms in [20, 50, 150, 300, 600] {
        let mut path = path(rtt_ms);
        path.run(Duration::from_ms(24 * rtt_ms + 500));
        assert_eq!(path.link.dropped, 0, "{rtt_ms} ms: a start needs a queue of one product");
        path.queue();
        let share = path.share(Duration::from_s(10));
        assert!(share > if rtt_ms > 300 { 0.89 } else { 0.93 }, "{rtt_ms} ms: {share}");
        let queue = path.queue();
        assert!(queue < 1.0, "{rtt_ms} ms: a queue of {queue} products");
        let min_rtt = path.flows[0].control.min_rtt().expect("known");
        assert!(min_rtt < Duration::from_ms(rtt_ms + 3), "{rtt_ms} ms: {min_rtt}");
    }
}

#[test]
fn a_shallow_queue_is_found_and_kept_out_of() {
    let mut path = path(50);
    path.link.queue = Bytes::new(path.link.bdp() / 4);
    path.run(Duration::from_s(5));
    let before = path.link.dropped;
    let share = path.share(Duration::from_s(20));
    let dropped = (path.link.dropped - before) as f64 * 1448.0 / (20.0 * 2_500_000.0);
    assert!(share > 0.85, "{share}");
    assert!(dropped < 0.01, "{dropped} of the data was dropped");
    assert!(path.flows[0].control.inflight_longterm().is_some());
}

#[test]
fn losses_below_the_threshold_cost_little_and_losses_above_it_much() {
    let share = |loss| {
        let mut path = path(100);
        path.link.loss = loss;
        path.run(Duration::from_s(5));
        path.share(Duration::from_s(30))
    };
    let (rare, frequent) = (share(50), share(500));
    assert!(rare > 0.85, "{rare}");
    assert!(frequent < 0.6 * rare, "{frequent}");
}

#[test]
fn two_flows_share_the_link() {
    let mut path = path(50);
    path.run(Duration::from_s(3));
    path.join(bbr(2));
    path.run(Duration::from_s(30));
    let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
    let share = path.share(Duration::from_s(20));
    let parts: Vec<f64> =
        path.flows.iter().zip(before).map(|(f, b)| (f.delivered - b) as f64).collect();
    assert!(share > 0.9, "{share}");
    let ratio = parts[0] / parts[1];
    assert!((0.5..2.0).contains(&ratio), "{parts:?}");
}

#[test]
fn marks_keep_the_queue_short_without_a_loss() {
    let run = |mark_above| {
        let mut path = path(50);
        path.link.mark_above = mark_above;
        path.run(Duration::from_s(3));
        path.queue();
        let share = path.share(Duration::from_s(20));
        (share, path.queue(), path.link.dropped)
    };
    let (_, unmarked, _) = run(None);
    let (share, marked, dropped) = run(Some(Bytes::new(15_000)));
    assert_eq!(dropped, 0);
    assert!(share > 0.8, "{share}");
    assert!(marked < 0.7 * unmarked, "{marked} products marked, {unmarked} not");
}

#[test]
fn a_path_with_more_room_is_found_by_probing_and_at_once_by_a_hint() {
    let reached = |hint: Option<Rate>| {
        let mut path = path(50);
        path.run(Duration::from_s(3));
        let rate = Rate::from_mbit_per_s(60);
        let rtt = Duration::from_ms(50);
        path.hand_over(
            rate,
            rtt,
            hint.map(|rate| Handover { now: Instant::START, rtt: Some(rtt), rate: Some(rate) }),
        );
        let soon = path.share(Duration::from_s(1));
        path.run(Duration::from_s(11));
        (soon, path.share(Duration::from_s(4)))
    };
    let (hinted_soon, hinted) = reached(Some(Rate::from_mbit_per_s(60)));
    let (unhinted_soon, unhinted) = reached(None);
    assert!(hinted_soon > 0.85 && hinted > 0.9, "{hinted_soon}, then {hinted}");
    assert!(unhinted_soon < 0.6 && unhinted > 0.85, "{unhinted_soon}, then {unhinted}");
}

#[test]
fn a_path_that_dies_for_a_while_is_filled_again() {
    let mut path = path(50);
    path.run(Duration::from_s(3));
    path.link.loss = 10_000;
    path.run(Duration::from_s(4));
    path.link.loss = 0;
    path.run(Duration::from_s(6));
    let share = path.share(Duration::from_s(10));
    assert!(share > 0.9, "{share}");
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let run = |seed| {
        let mut path = Path::one(Link::new(RATE, Duration::from_ms(50)), bbr(seed));
        path.walk(Duration::from_s(6), BbrV3::state)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
