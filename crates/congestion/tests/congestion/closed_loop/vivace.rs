//! PCC Vivace.

use super::path::{Link, Path};
use midhop_congestion::{
    Handover,
    vivace::{Stage, Vivace},
};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};

const RATE: Rate = Rate::from_mbit_per_s(20);

fn vivace(seed: u64) -> Vivace {
    Vivace::new(Bytes::new(1448), 10, Seed(seed))
}

fn path(rtt_ms: u64) -> Path<Vivace> {
    Path::one(Link::new(RATE, Duration::from_ms(rtt_ms)), vivace(1))
}

#[test]
fn it_doubles_then_probes_then_moves_and_settles_near_the_links_rate() {
    for rtt_ms in [20, 50, 150, 300] {
        let mut path = path(rtt_ms);
        let mut stages = Vec::new();
        path.watch(Duration::from_ms(100 * rtt_ms), |path| {
            let stage = path.flows[0].control.stage();
            if stages.last() != Some(&stage) {
                stages.push(stage);
            }
        });
        assert_eq!(stages[..2], [Stage::Starting, Stage::Probing], "{rtt_ms} ms");
        assert!(stages.contains(&Stage::Moving), "{rtt_ms} ms: {stages:?}");
        let share = path.share(Duration::from_ms(100 * rtt_ms));
        assert!(share > 0.93, "{rtt_ms} ms: {share}");
    }
}

#[test]
fn it_empties_the_queue_it_made() {
    let mut path = path(50);
    path.run(Duration::from_s(20));
    path.queue();
    path.run(Duration::from_s(10));
    let queue = path.queue();
    assert!(queue < 0.5, "{queue} products");
}

#[test]
fn losses_that_the_utility_bears_leave_most_of_the_rate() {
    let share = |loss| {
        let mut path = path(50);
        path.link.loss = loss;
        path.run(Duration::from_s(20));
        path.share(Duration::from_s(40))
    };
    assert!(share(50) > 0.9);
    assert!(share(100) > 0.8);
    // A flow of 20 Mbit/s tolerates a loss of 5.9 %.
    assert!(share(1500) < 0.3);
}

#[test]
fn two_flows_share_the_link() {
    let mut path = path(50);
    path.run(Duration::from_s(5));
    path.join(vivace(2));
    path.run(Duration::from_s(60));
    let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
    let share = path.share(Duration::from_s(60));
    let parts: Vec<f64> =
        path.flows.iter().zip(before).map(|(f, b)| (f.delivered - b) as f64).collect();
    assert!(share > 0.93, "{share}");
    let ratio = parts[0] / parts[1];
    assert!((0.67..1.5).contains(&ratio), "{parts:?}");
}

#[test]
fn a_jump_of_the_round_trip_time_is_not_taken_for_a_queue() {
    let mut path = path(50);
    path.run(Duration::from_s(20));
    let before = path.flows[0].control.rate().expect("known");
    path.hand_over(RATE, Duration::from_ms(80), None);
    path.run(Duration::from_s(1));
    let after = path.flows[0].control.rate().expect("known");
    assert!(after.bits_per_s() * 10 > before.bits_per_s() * 9, "{before}, then {after}");
}

#[test]
fn a_handover_that_announces_its_rate_is_believed() {
    let mut path = path(50);
    path.run(Duration::from_s(10));
    let (rate, rtt) = (Rate::from_mbit_per_s(60), Duration::from_ms(50));
    let hint = Handover { now: Instant::START, rtt: Some(rtt), rate: Some(rate) };
    path.hand_over(rate, rtt, Some(hint));
    let share = path.share(Duration::from_s(2));
    assert!(share > 0.85, "{share}");
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let run = |seed| {
        let mut path = Path::one(Link::new(RATE, Duration::from_ms(50)), vivace(seed));
        let mut rates = Vec::new();
        path.watch(Duration::from_s(4), |path| rates.push(path.flows[0].control.rate()));
        rates
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_geostationary_path_is_filled_in_the_rounds_that_probing_takes() {
    let mut path = path(600);
    let (mut filled, mut moving) = (None, false);
    path.watch(Duration::from_ms(60 * 600), |path| {
        let vivace = &path.flows[0].control;
        moving |= vivace.stage() == Stage::Moving;
        if moving
            && vivace.rate().is_some_and(|rate| rate.bits_per_s() * 10 >= RATE.bits_per_s() * 9)
        {
            filled = filled.or(Some(path.now.as_ns() / 600_000_000));
        }
    });
    // Ten doublings, of which three are recognised too late; four intervals and their results, through the queue that
    // those doublings made; and steps of 5, 10, 15, 15 and 25 %, two rounds each.
    let filled = filled.expect("it is filled");
    assert!((20..30).contains(&filled), "after {filled} rounds");
    let share = path.share(Duration::from_s(20));
    assert!(share > 0.93, "{share}");
}
