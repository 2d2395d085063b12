//! Tests of the curve against its closed form, and of the controller.

use super::*;
use crate::testing::ack;

const MSS: u64 = 1000;

fn real(q20: u64) -> f64 {
    q20 as f64 / ONE_Q20 as f64
}

#[test]
fn the_curve_is_the_closed_form_within_half_a_segment() {
    type Points = &'static [(u64, f64)];
    let vectors: [(u64, f64, Points); 3] = [
        (100, 4.2172, &[(0, 70.0), (1, 86.68), (2, 95.64), (4, 100.0), (6, 102.27), (10, 177.35)]),
        (1000, 9.0856, &[(0, 700.0), (4, 947.39), (10, 1000.31), (20, 1520.07)]),
        (7000, 17.3801, &[(0, 4900.0), (10, 6839.21), (20, 7007.19)]),
    ];
    for (maximum, period, points) in vectors {
        let period_q16 = period_q16((maximum - maximum * 7 / 10) << 20);
        let seconds = period_q16 as f64 / 65_536.0;
        assert!((seconds - period).abs() < 1e-4, "K of {maximum}: {seconds}");
        for &(t, expected) in points {
            let got = real(curve_q20(Duration::from_s(t), period_q16, maximum << 20));
            assert!((got - expected).abs() < 0.02, "W({t}) of {maximum}: {got}, not {expected}");
        }
    }
}

#[test]
fn the_curve_stays_in_bounds_at_the_ends_of_its_range() {
    assert_eq!(curve_q20(Duration::ZERO, u64::MAX, 100 << 20), 0);
    assert!(curve_q20(Duration::MAX, 0, u64::MAX) == u64::MAX);
    assert!(period_q16(u64::MAX) > 0);
    for root in [0_u64, 1, 2, 1000, (1 << 42) - 1] {
        let cube = u128::from(root).pow(3);
        assert_eq!(cube_root_q16(cube), root);
        assert_eq!(cube_root_q16(cube + 3 * u128::from(root)), root);
    }
}

/// A controller in avoidance, its window cut to 0.7 of `maximum`.
fn cut(maximum: u32) -> Cubic {
    let mut cubic = Cubic::new(Bytes::new(MSS), SlowStart::Classic, false);
    cubic.window.cwnd = maximum;
    cubic.on_loss(&Loss { now: Instant::START, lost: Bytes::ZERO, in_flight: Bytes::ZERO });
    cubic
}

/// Acknowledges windows back to back over `rtt_ms` until `until_ms`; returns the window.
fn run(cubic: &mut Cubic, rtt_ms: u64, until_ms: u64) -> f64 {
    let rtt = Duration::from_ms(rtt_ms);
    let mut now = Instant::START;
    let mut round = 0;
    while now < Instant::from_ns(until_ms * 1_000_000) {
        let window = u64::from(cubic.window.cwnd);
        for n in 0..window {
            let at = now + Duration::from_ns(rtt.as_ns() * n / window);
            cubic.on_ack(&Ack {
                now: at,
                rtt: Some(rtt),
                in_flight: Bytes::new(window * MSS),
                ..ack(round, MSS)
            });
        }
        now = now + rtt;
        round += 1;
    }
    real(cubic.window_q20())
}

#[test]
fn the_window_follows_the_curve() {
    for (maximum, rtt_ms, at_ms, expected) in
        [(1000, 100, 4000, 947.39), (1000, 100, 20_000, 1520.07), (7000, 600, 10_200, 6853.4)]
    {
        let got = run(&mut cut(maximum), rtt_ms, at_ms);
        // The target is one RTT ahead.
        assert!((got / expected - 1.0).abs() < 0.02, "{maximum} at {at_ms}: {got}");
    }
}

#[test]
fn on_a_short_path_it_grows_as_reno_would_after_the_same_cut() {
    // 100 segments over 10 ms: K is 4.2 s; Reno-friendly growth of 9/17 per round is past W_max
    // after 57 rounds, and one per round from there.
    let got = run(&mut cut(100), 10, 1000);
    let expected = 70.0 + 57.0 * 9.0 / 17.0 + 43.0;
    assert!((got - expected).abs() < 3.0, "{got}, not {expected}");
}

#[test]
fn a_second_loss_below_the_maximum_makes_room() {
    let mut cubic = cut(1000);
    cubic.on_ack(&ack(0, 0));
    cubic.on_loss(&Loss { now: Instant::START, lost: Bytes::ZERO, in_flight: Bytes::ZERO });
    assert_eq!(cubic.window.cwnd, 490);
    assert_eq!(real(cubic.memory.maximum_q20), 595.0);
}

#[test]
fn after_a_timeout_the_curve_begins_at_the_threshold() {
    let mut cubic = cut(1000);
    cubic.on_ack(&ack(0, 0));
    cubic.on_rto(&Rto { now: Instant::START, in_flight: Bytes::ZERO });
    assert_eq!((cubic.window.cwnd, cubic.window.ssthresh), (1, 490));
    cubic.on_ack(&Ack { phase: Phase::Loss, ..ack(1, 500 * MSS) });
    let epoch = cubic.memory.epoch.expect("avoidance");
    assert_eq!((epoch.period_q16, epoch.origin_q20), (0, 490 << 20));
    assert_eq!(cubic.memory.maximum_q20, 0, "a loss now is no reason to make room");
}

#[test]
fn a_spurious_loss_leaves_no_trace() {
    let mut cubic = cut(1000);
    run(&mut cubic, 100, 3000);
    let (window, memory) = (cubic.window_q20(), cubic.memory);
    cubic.on_loss(&Loss { now: Instant::START, lost: Bytes::ZERO, in_flight: Bytes::ZERO });
    cubic.on_rto(&Rto { now: Instant::START, in_flight: Bytes::ZERO });
    cubic.on_spurious(&Spurious { now: Instant::START });
    assert_eq!(cubic.window_q20(), window);
    assert_eq!(cubic.memory.maximum_q20, memory.maximum_q20);
    assert!(cubic.memory.epoch.is_some());
}

#[test]
fn time_without_data_does_not_count() {
    let mut busy = cut(1000);
    let mut paused = busy.clone();
    let at = |s: u64| Instant::from_ns(s * 1_000_000_000);
    let rtt = Some(Duration::from_ms(100));
    for cubic in [&mut busy, &mut paused] {
        cubic.on_ack(&Ack { rtt, in_flight: Bytes::new(MSS), ..ack(0, MSS) });
    }
    // One becomes idle with nothing in flight, the other is application-limited, for ten minutes.
    busy.on_ack(&Ack { now: at(1), rtt, ..ack(1, MSS) });
    busy.on_restart(&Restart { now: at(600), app_limited: true });
    busy.on_ack(&Ack { now: at(601), rtt, ..ack(2, MSS) });
    paused.on_ack(&Ack { now: at(1), rtt, in_flight: Bytes::new(MSS), ..ack(1, MSS) });
    paused.on_ack(&Ack { now: at(601), rtt, app_limited: true, ..ack(2, MSS) });
    let age = |cubic: &Cubic| {
        let epoch = cubic.memory.epoch.expect("avoidance");
        at(601).saturating_since(epoch.began).as_ms_f64()
    };
    assert_eq!(age(&busy), 2000.0);
    assert_eq!(age(&paused), 1000.0);
}

#[test]
fn before_the_first_loss_a_round_adds_a_twentieth() {
    let mut cubic = Cubic::new(Bytes::new(MSS), SlowStart::HyStart, true);
    cubic.window.cwnd = 100;
    cubic.window.ssthresh = 100;
    let got = run(&mut cubic, 600, 1200);
    assert!((109.0..111.0).contains(&got), "{got}");
}
