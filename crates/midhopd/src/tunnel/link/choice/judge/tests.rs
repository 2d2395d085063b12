//! The judge's advice for given measurements.

use super::*;

const LOOK: Duration = Duration::from_s(1);
/// The direction towards this end: a download's.
const IN: usize = 1;

fn mbit(rate: f64) -> Rate {
    Rate::from_bits_per_s((rate * 1e6) as u64)
}

fn judge() -> Judge {
    Judge::new([Some(mbit(20.0)); 2], Some(Duration::from_ms(100)))
}

/// One second in which the peer sends at these rates over the two carriers, in Mbit/s.
fn second(quic: f64, tcp: f64, tried: bool) -> Seen {
    let bytes = |rate| mbit(rate).bytes_in(LOOK);
    let mut seen = Seen { passed: LOOK, tried, ..Seen::default() };
    seen.quic[IN] = QuicProgress { bytes: bytes(quic), backlogged: true };
    seen.tcp[IN] = bytes(tcp);
    seen
}

/// The number of such seconds after which there is advice, and the advice; none: there is none
/// within `most`.
fn advised(judge: &mut Judge, seen: &Seen, most: u32) -> Option<(u32, Advice)> {
    (1..=most).find_map(|at| Some((at, judge.look(seen)?)))
}

#[test]
fn a_policed_tunnel_goes_to_tcp_and_returns_when_the_policer_is_gone() {
    let mut judge = judge();
    let slow = second(2.0, 0.0, false);
    assert_eq!(advised(&mut judge, &slow, 100), Some((10, Advice::TryTcp)));
    // No flow arrives for a while.
    assert_eq!(advised(&mut judge, &slow, 300), None);
    let tried = second(2.0, 16.0, true);
    assert_eq!(advised(&mut judge, &tried, 100), Some((5, Advice::GoToTcp)));
    assert_eq!(advised(&mut judge, &second(2.0, 17.0, false), 100), Some((10, Advice::TryQuic)));
    assert_eq!(advised(&mut judge, &second(2.0, 17.0, true), 100), Some((20, Advice::ForgetQuic)));
    // At growing intervals.
    assert_eq!(advised(&mut judge, &second(2.0, 17.0, false), 100), Some((20, Advice::TryQuic)));
    // Each carrier has half of the rate.
    let returned = advised(&mut judge, &second(10.0, 9.0, true), 100);
    assert!(matches!(returned, Some((1..=5, Advice::ReturnToQuic))), "{returned:?}");
    assert_eq!(advised(&mut judge, &second(18.0, 0.0, false), 1000), None);
}

#[test]
fn a_tunnel_that_is_full_or_has_little_to_send_is_not_suspected() {
    let mut judge = judge();
    assert_eq!(advised(&mut judge, &second(11.0, 0.0, false), 1000), None);
    let mut little = second(0.5, 0.0, false);
    little.quic[IN].backlogged = false;
    assert_eq!(advised(&mut judge, &little, 1000), None);
    // Nine slow seconds, then a second with little to send.
    for _ in 0..20 {
        assert_eq!(advised(&mut judge, &second(1.0, 0.0, false), 9), None);
        assert_eq!(judge.look(&little), None);
    }
}

/// A busy host carries little, and the path is not the cause.
#[test]
fn what_this_host_delayed_is_no_reason_for_suspicion() {
    let mut judge = judge();
    let waiting = |part: u64| Duration::from_ms(10 * part);
    let busy = Seen { delayed: waiting(60), ..second(5.0, 0.0, false) };
    assert_eq!(advised(&mut judge, &busy, 1000), None);
    // The measurements do not show what the path would carry.
    let starved = Seen { delayed: waiting(90), ..second(0.1, 0.0, false) };
    assert_eq!(advised(&mut judge, &starved, 1000), None);
    // A policer is detected on a busy host as well.
    let policed = Seen { delayed: waiting(60), ..second(2.0, 0.0, false) };
    assert!(matches!(advised(&mut judge, &policed, 10), Some((_, Advice::TryTcp))));
    // In the trial as well, QUIC counts with the rate without delays: 10 Mbit/s, of which it
    // carries 4.
    let tried = Seen { delayed: waiting(60), ..second(4.0, 12.0, true) };
    assert_eq!(advised(&mut judge, &tried, 100), Some((20, Advice::ForgetTcp)));
}

#[test]
fn without_a_rate_only_what_was_carried_before_is_expected() {
    let mut judge = Judge::new([None; 2], None);
    assert_eq!(advised(&mut judge, &second(2.0, 0.0, false), 1000), None);
    assert_eq!(advised(&mut judge, &second(16.0, 0.0, false), 1000), None);
    // A better measurement counts until it is older than the span.
    let advice = advised(&mut judge, &second(2.0, 0.0, false), 100);
    assert!(matches!(advice, Some((1..=10, Advice::TryTcp))), "{advice:?}");
}

#[test]
fn tcp_that_carries_no_more_is_forgotten_and_tried_ever_less_often() {
    let mut judge = judge();
    // A faded or shared link: each carrier gets its share of it.
    let slow = second(6.0, 0.0, false);
    let mut before = 0;
    for _ in 0..4 {
        let (waited, advice) = advised(&mut judge, &slow, 10_000).expect("a suspicion");
        assert_eq!(advice, Advice::TryTcp);
        assert!(waited > before, "{waited} s after {before} s");
        before = waited;
        let trial = advised(&mut judge, &second(3.0, 5.0, true), 100);
        assert_eq!(trial, Some((20, Advice::ForgetTcp)));
    }
    assert!(before >= 240, "{before}");
}

#[test]
fn a_burst_over_tcp_is_no_proof() {
    let mut judge = judge();
    assert!(advised(&mut judge, &second(2.0, 0.0, false), 100).is_some());
    for at in 0..19 {
        let tcp = if at == 3 { 12.0 } else { 0.1 };
        assert_eq!(judge.look(&second(2.0, tcp, true)), None, "{at}");
    }
    assert_eq!(judge.look(&second(2.0, 0.1, true)), Some(Advice::ForgetTcp));
}

#[test]
fn a_suspicion_that_nobody_came_to_try_lapses_without_a_pause() {
    let mut judge = judge();
    let slow = second(2.0, 0.0, false);
    assert_eq!(advised(&mut judge, &slow, 100), Some((10, Advice::TryTcp)));
    let mut rest = second(0.0, 0.0, false);
    rest.quic[IN].backlogged = false;
    assert_eq!(advised(&mut judge, &rest, 100), Some((10, Advice::ForgetTcp)));
    assert_eq!(advised(&mut judge, &slow, 100), Some((10, Advice::TryTcp)));
}

#[test]
fn what_cannot_be_had_is_tried_later() {
    let mut judge = judge();
    let slow = second(2.0, 0.0, false);
    assert_eq!(advised(&mut judge, &slow, 100), Some((10, Advice::TryTcp)));
    judge.fail();
    assert_eq!(advised(&mut judge, &slow, 1000), Some((60, Advice::TryTcp)));
    assert_eq!(advised(&mut judge, &second(2.0, 16.0, true), 100), Some((5, Advice::GoToTcp)));
    let gone = second(0.0, 17.0, false);
    assert_eq!(advised(&mut judge, &gone, 100), Some((10, Advice::TryQuic)));
    judge.fail();
    assert_eq!(advised(&mut judge, &gone, 100), Some((20, Advice::TryQuic)));
}

#[test]
fn a_policer_that_is_loosened_a_little_is_no_reason_to_return() {
    let mut judge = judge();
    assert!(advised(&mut judge, &second(2.0, 0.0, false), 100).is_some());
    assert!(advised(&mut judge, &second(2.0, 16.0, true), 100).is_some());
    // Twice as much, and far from what TCP carries.
    let seconds = [second(4.0, 15.0, false), second(4.0, 15.0, true)];
    assert_eq!(advised(&mut judge, &seconds[0], 100), Some((10, Advice::TryQuic)));
    assert_eq!(advised(&mut judge, &seconds[1], 100), Some((20, Advice::ForgetQuic)));
}

/// Going back and forth becomes less frequent each time.
#[test]
fn who_goes_soon_after_a_return_stays_for_longer() {
    let mut judge = judge();
    let mut stayed = Vec::new();
    for _ in 0..4 {
        assert!(advised(&mut judge, &second(2.0, 0.0, false), 100).is_some());
        let (_, gone) = advised(&mut judge, &second(2.0, 16.0, true), 100).expect("TCP is better");
        assert_eq!(gone, Advice::GoToTcp);
        stayed.push(advised(&mut judge, &second(2.0, 16.0, false), 1000).expect("a try").0);
        let back = advised(&mut judge, &second(16.0, 1.0, true), 100);
        assert!(matches!(back, Some((_, Advice::ReturnToQuic))), "{back:?}");
    }
    assert_eq!(stayed, [10, 20, 40, 80]);
}

#[test]
fn each_direction_is_judged_by_itself() {
    let mut judge = judge();
    let turn = |mut seen: Seen| {
        seen.quic.swap(0, 1);
        seen.tcp.swap(0, 1);
        seen
    };
    assert_eq!(
        advised(&mut judge, &turn(second(2.0, 0.0, false)), 100),
        Some((10, Advice::TryTcp))
    );
    // High throughput in the other direction proves nothing for this one.
    assert_eq!(advised(&mut judge, &second(2.0, 16.0, true), 10), None);
    assert!(advised(&mut judge, &turn(second(2.0, 16.0, true)), 9).is_some());
}
