//! Tests of the phases, each from its entry to its end.

use super::*;
use crate::{SlowStart, cubic::Cubic, reno::Reno, testing::ack};

const MSS: u64 = 1000;
const RTT_MS: u64 = 600;

fn segments(bytes: u64) -> Bytes {
    Bytes::new(bytes * MSS)
}

fn saved(window: u64, rtt_ms: u64) -> Jump {
    Jump::Saved(Saved { window: segments(window), rtt: Duration::from_ms(rtt_ms) })
}

fn reno(jump: Jump) -> Resume<Reno> {
    Resume::new(Reno::new(Bytes::new(MSS), SlowStart::Classic, true), jump)
}

fn window<C: Segmented>(resume: &Resume<C>) -> u64 {
    resume.window().get() / MSS
}

/// `count` acknowledgements of a segment each; after the first `flight` less one are in flight, and
/// so on.
fn acks<C: Segmented>(resume: &mut Resume<C>, now_ms: u64, count: u64, mut flight: u64) {
    for _ in 0..count {
        flight -= 1;
        resume.on_ack(&Ack {
            now: Instant::from_ns(now_ms * 1_000_000),
            rtt: Some(Duration::from_ms(RTT_MS)),
            in_flight: segments(flight),
            ..ack(0, MSS)
        });
    }
}

fn lose<C: Segmented>(resume: &mut Resume<C>, lost: u64) {
    let in_flight = resume.window();
    for _ in 0..lost {
        resume.on_lost_segment(&LostSegment { size: Bytes::new(MSS), ..LostSegment::default() });
    }
    resume.on_loss(&Loss { now: Instant::START, lost: segments(lost), in_flight });
}

/// Through Reconnaissance and the jump to 500 segments, all of them sent, nineteen sent before.
fn jumped<C: Segmented>(resume: &mut Resume<C>) {
    acks(resume, RTT_MS, 9, 10);
    assert_eq!(window(resume), 19, "Reconnaissance is slow start");
    acks(resume, RTT_MS, 1, 20);
    assert_eq!(window(resume), 500);
    let rate = Rate::of(segments(500), Duration::from_ms(RTT_MS));
    assert_eq!(resume.pacing_rate(), Some(rate), "spread over a round trip");
}

#[test]
fn a_jump_that_arrives_is_where_slow_start_goes_on() {
    let mut resume = reno(saved(1000, 600));
    jumped(&mut resume);
    // A round trip later everything is out; what was sent before comes back first.
    acks(&mut resume, 2 * RTT_MS, 19, 500);
    assert!(matches!(resume.phase, Phase::Validating { .. }), "{:?}", resume.phase);
    assert_eq!(window(&resume), 518, "it grows by what arrives, less the one that ended the phase");
    acks(&mut resume, 2 * RTT_MS, 481, 518);
    assert_eq!(resume.phase, Phase::Normal);
    assert_eq!(window(&resume), 999);
}

#[test]
fn another_path_is_told_by_its_round_trip_time() {
    for (saved_ms, jumps) in [(59, false), (61, true), (1199, true), (1201, false)] {
        let mut resume = reno(saved(1000, saved_ms));
        acks(&mut resume, RTT_MS, 10, 10);
        assert_eq!(window(&resume) == 500, jumps, "saved at {saved_ms} ms: {}", window(&resume));
    }
    let mut resume = reno(saved(1000, 600));
    lose(&mut resume, 1);
    acks(&mut resume, RTT_MS, 10, 10);
    assert!(window(&resume) <= 10, "a loss in the first window");
}

#[test]
fn a_jump_that_was_not_used_is_taken_back() {
    let mut resume = reno(saved(1000, 600));
    jumped(&mut resume);
    // Nothing more was sent; a round trip later the nineteen come back.
    acks(&mut resume, 2 * RTT_MS, 1, 19);
    assert_eq!(resume.phase, Phase::Normal);
    assert_eq!(window(&resume), 19);
}

#[test]
fn a_retreat_keeps_half_of_what_arrived_until_the_jump_has_ended() {
    let mut resume = reno(saved(1000, 600));
    jumped(&mut resume);
    acks(&mut resume, 2 * RTT_MS, 19, 500);
    acks(&mut resume, 2 * RTT_MS, 81, 481);
    // PipeSize is 19 before the jump and 81 of it.
    assert!(!resume.governs_recovery());
    lose(&mut resume, 100);
    assert!(resume.governs_recovery(), "no proportional reduction");
    assert_eq!(window(&resume), 50);
    acks(&mut resume, 2 * RTT_MS, 298, 300);
    assert_eq!(window(&resume), 50, "no growth");
    lose(&mut resume, 1);
    assert_eq!(window(&resume), 50, "nor a second reduction");
    assert!(matches!(resume.phase, Phase::Retreat { .. }), "{:?}", resume.phase);
    acks(&mut resume, 2 * RTT_MS, 1, 1);
    assert_eq!(resume.phase, Phase::Normal, "all 500 have ended");
}

#[test]
fn the_threshold_after_a_retreat_is_the_algorithms_part_of_what_arrived() {
    let cubic = Cubic::new(Bytes::new(MSS), SlowStart::Classic, true);
    assert_eq!(after_a_retreat(reno(saved(1000, 600))), (50, 200));
    assert_eq!(after_a_retreat(Resume::new(cubic, saved(1000, 600))), (50, 280));
}

/// Window and threshold once 381 segments of the jump and the nineteen before it have arrived.
fn after_a_retreat<C: Segmented>(mut resume: Resume<C>) -> (u64, u32) {
    jumped(&mut resume);
    acks(&mut resume, 2 * RTT_MS, 19, 500);
    acks(&mut resume, 2 * RTT_MS, 81, 481);
    lose(&mut resume, 100);
    acks(&mut resume, 2 * RTT_MS, 300, 300);
    assert_eq!(resume.phase, Phase::Normal);
    (window(&resume), resume.controller.segments().ssthresh)
}

#[test]
fn a_timeout_ends_it() {
    let mut resume = reno(saved(1000, 600));
    jumped(&mut resume);
    resume.on_rto(&Rto { now: Instant::START, in_flight: segments(500) });
    assert_eq!((window(&resume), resume.phase), (1, Phase::Normal));
    assert_eq!(resume.controller.segments().ssthresh, 9, "half of the nineteen before the jump");
}

#[test]
fn a_known_rate_is_jumped_to_at_once() {
    let rate = Rate::from_mbit_per_s(20);
    let known = |window_max: u64| Jump::Known { rate, window_max: segments(window_max) };
    let established = Established { now: Instant::START, rtt: Some(Duration::from_ms(RTT_MS)) };
    let mut resume = reno(known(10_000));
    assert_eq!(window(&resume), 10);
    resume.on_established(&established);
    assert_eq!(window(&resume), 1500);
    assert_eq!(resume.pacing_rate(), Some(rate));
    acks(&mut resume, RTT_MS, 1, 1500);
    assert!(matches!(resume.phase, Phase::Validating { .. }));
    lose(&mut resume, 700);
    assert_eq!(window(&resume), 2, "a segment has arrived");
    acks(&mut resume, RTT_MS, 799, 799);
    assert_eq!((window(&resume), resume.phase), (2, Phase::Normal));
    assert_eq!(resume.controller.segments().ssthresh, 400);
    let mut resume = reno(known(300));
    resume.on_established(&established);
    assert_eq!(window(&resume), 300);
}

#[test]
fn an_observer_saves_the_best_round_and_the_shortest() {
    let mut observer = Observer::default();
    assert_eq!(observer.saved(), None);
    for (round, acked, rtt_ms) in
        [(0, 10, 620), (1, 20, 600), (1, 20, 640), (2, 15, 610), (3, 1, 600)]
    {
        let rtt = Some(Duration::from_ms(rtt_ms));
        observer.on_ack(&Ack { rtt, ..ack(round, acked * MSS) });
    }
    let saved = Saved { window: segments(40), rtt: Duration::from_ms(600) };
    assert_eq!(observer.saved(), Some(saved));
}
