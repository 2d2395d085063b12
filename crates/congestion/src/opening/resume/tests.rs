//! Tests of the phases, each from its entry to its end.

use super::*;
use crate::controller::Windowed;
use crate::opening::{ActiveOpening, Opening};
use crate::{Rto, SlowStart, cubic::Cubic, reno::Reno, testing::ack};

const MSS: u64 = 1000;
const RTT_MS: u64 = 600;

fn segments(bytes: u64) -> Bytes {
    Bytes::new(bytes * MSS)
}

fn record(window: u64, rtt_ms: u64) -> Record {
    Record::new(Saved { window: segments(window), rtt: Duration::from_ms(rtt_ms) })
}

fn saved(window: u64, rtt_ms: u64) -> Jump {
    Jump::Saved { record: record(window, rtt_ms), window_max: Bytes::MAX }
}

fn reno(jump: Jump) -> Windowed {
    resuming(Reno::new(Bytes::new(MSS), SlowStart::Classic, true), jump)
}

fn resuming(law: impl Segmented + 'static, jump: Jump) -> Windowed {
    let opening = ActiveOpening::new(&Opening::Jump(jump), law.window());
    Windowed { law: Box::new(law), opening, floor: None }
}

fn phase(resuming: &Windowed) -> Phase {
    let ActiveOpening::Jump(resume) = &resuming.opening else { unreachable!("it jumps") };
    resume.phase
}

fn window(resuming: &Windowed) -> u64 {
    resuming.law.window().get() / MSS
}

/// `count` acknowledgements of a segment each; after the first `flight` less one are in flight, and
/// so on.
fn acks(resume: &mut Windowed, now_ms: u64, count: u64, mut flight: u64) {
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

fn lose(resume: &mut Windowed, lost: u64) {
    let in_flight = resume.law.window();
    for _ in 0..lost {
        resume.on_lost_segment(&LostSegment { size: Bytes::new(MSS), ..LostSegment::default() });
    }
    resume.on_loss(&Loss { now: Instant::START, lost: segments(lost), in_flight });
}

/// Through Reconnaissance and the jump to 500 segments, all of them sent, nineteen sent before.
fn jumped(resume: &mut Windowed) {
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
    // A round trip later everything has been sent; data sent before is acknowledged first.
    acks(&mut resume, 2 * RTT_MS, 19, 500);
    assert!(matches!(phase(&resume), Phase::Validating { .. }), "{:?}", phase(&resume));
    assert_eq!(window(&resume), 518, "it grows by what arrives, less the one that ended the phase");
    acks(&mut resume, 2 * RTT_MS, 481, 518);
    assert_eq!(phase(&resume), Phase::Normal);
    assert_eq!(window(&resume), 999);
}

#[test]
fn another_path_is_known_by_its_round_trip_time() {
    // More than half of the saved round trip, and up to ten times as long.
    for (saved_ms, jumps) in [(59, false), (60, true), (1199, true), (1200, false)] {
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
    // Nothing more was sent; a round trip later the nineteen are acknowledged.
    acks(&mut resume, 2 * RTT_MS, 1, 19);
    assert_eq!(phase(&resume), Phase::Normal);
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
    assert!(matches!(phase(&resume), Phase::Retreat { .. }), "{:?}", phase(&resume));
    acks(&mut resume, 2 * RTT_MS, 1, 1);
    assert_eq!(phase(&resume), Phase::Normal, "all 500 have ended");
}

#[test]
fn the_threshold_after_a_retreat_is_the_algorithms_part_of_what_arrived() {
    let cubic = Cubic::new(Bytes::new(MSS), SlowStart::Classic, true);
    assert_eq!(after_a_retreat(reno(saved(1000, 600))), (50, 200));
    assert_eq!(after_a_retreat(resuming(cubic, saved(1000, 600))), (50, 280));
}

/// Window and threshold once 381 segments of the jump and the nineteen before it have arrived.
fn after_a_retreat(mut resume: Windowed) -> (u64, u32) {
    jumped(&mut resume);
    acks(&mut resume, 2 * RTT_MS, 19, 500);
    acks(&mut resume, 2 * RTT_MS, 81, 481);
    lose(&mut resume, 100);
    acks(&mut resume, 2 * RTT_MS, 300, 300);
    assert_eq!(phase(&resume), Phase::Normal);
    (window(&resume), resume.law.segments().ssthresh)
}

#[test]
fn a_timeout_ends_it() {
    let mut resume = reno(saved(1000, 600));
    jumped(&mut resume);
    resume.on_rto(&Rto { now: Instant::START, in_flight: segments(500) });
    assert_eq!((window(&resume), phase(&resume)), (1, Phase::Normal));
    assert_eq!(resume.law.segments().ssthresh, 9, "half of the nineteen before the jump");
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
    assert!(matches!(phase(&resume), Phase::Validating { .. }));
    lose(&mut resume, 700);
    assert_eq!(window(&resume), 2, "a segment has arrived");
    acks(&mut resume, RTT_MS, 799, 799);
    assert_eq!((window(&resume), phase(&resume)), (2, Phase::Normal));
    assert_eq!(resume.law.segments().ssthresh, 400);
    let mut resume = reno(known(300));
    resume.on_established(&established);
    assert_eq!(window(&resume), 300);
}

#[test]
fn an_observer_saves_the_best_round_and_the_shortest() {
    let mut observer = Observer::default();
    assert_eq!(observer.saved(), None);
    for (round, acked, rtt_ms) in
        [(0, 10, 620), (1, 20, 600), (1, 20, 640), (2, 15, 610), (3, 100, 1800), (4, 1, 600)]
    {
        let rtt = Some(Duration::from_ms(rtt_ms));
        observer.on_ack(&Ack { rtt, ..ack(round, acked * MSS) });
    }
    let saved = Saved { window: segments(40), rtt: Duration::from_ms(600) };
    assert_eq!(observer.saved(), Some(saved));
}

/// Up to the jump of the RFC's examples ("Notes on the Careful Resume Phases"): an initial window of
/// ten, 29 packets in flight when the path is confirmed, 300 saved.
fn example() -> Windowed {
    let mut resume = reno(saved(300, 600));
    resume.law.segments().cwnd = 20;
    acks(&mut resume, RTT_MS, 9, 38);
    assert_eq!(window(&resume), 29);
    acks(&mut resume, RTT_MS, 1, 30);
    assert_eq!(window(&resume), 150);
    assert!(matches!(phase(&resume), Phase::Unvalidated { leap: Leap { pipe, .. }, .. }
        if pipe == 29 * MSS));
    resume
}

#[test]
fn the_example_without_loss_validates_all_150_packets() {
    let mut resume = example();
    acks(&mut resume, 2 * RTT_MS, 29, 150);
    assert!(matches!(phase(&resume), Phase::Validating { .. }), "{:?}", phase(&resume));
    acks(&mut resume, 2 * RTT_MS, 120, 121);
    assert!(matches!(phase(&resume), Phase::Validating { leap, .. } if leap.pipe == 149 * MSS));
    acks(&mut resume, 2 * RTT_MS, 1, 150);
    assert_eq!(phase(&resume), Phase::Normal);
    assert_eq!(resume.law.segments().ssthresh, crate::segments::NO_THRESHOLD);
}

#[test]
fn the_example_of_a_rate_limited_sender_falls_back_to_the_50_packets_it_has_in_flight() {
    let mut resume = example();
    acks(&mut resume, RTT_MS + 500, 29, 79);
    assert!(matches!(phase(&resume), Phase::Unvalidated { .. }), "{:?}", phase(&resume));
    // The first unvalidated packet arrives.
    acks(&mut resume, RTT_MS + 500, 1, 50);
    assert!(matches!(phase(&resume), Phase::Validating { leap, .. } if leap.pipe == 30 * MSS));
    assert_eq!(window(&resume), 50);
}

#[test]
fn the_example_with_a_loss_goes_back_to_half_of_66_packets() {
    let mut resume = example();
    acks(&mut resume, 2 * RTT_MS, 29, 150);
    acks(&mut resume, 2 * RTT_MS, 34, 121);
    assert!(matches!(phase(&resume), Phase::Validating { leap, .. } if leap.pipe == 63 * MSS));
    // Packet 64 is found missing when three after it have arrived.
    acks(&mut resume, 2 * RTT_MS, 3, 87);
    lose(&mut resume, 1);
    assert!(matches!(phase(&resume), Phase::Retreat { leap, .. } if leap.pipe == 66 * MSS));
    assert_eq!(window(&resume), 33);
    acks(&mut resume, 2 * RTT_MS, 82, 83);
    assert_eq!(window(&resume), 33);
    acks(&mut resume, 2 * RTT_MS, 1, 34);
    assert_eq!(phase(&resume), Phase::Normal);
    // 29 and 120 of 121 have arrived; Reno's half of it.
    assert_eq!((window(&resume), resume.law.segments().ssthresh), (33, 74));
}

#[test]
fn the_shortest_round_trip_confirms_the_path_and_the_present_one_paces() {
    // Saved at 1100 ms: 600 is more than half of it, but the handshake took 500.
    for (handshake_ms, jumps) in [(500, false), (560, true)] {
        let mut resume = reno(saved(1000, 1100));
        let rtt = Some(Duration::from_ms(handshake_ms));
        resume.on_established(&Established { now: Instant::START, rtt });
        acks(&mut resume, RTT_MS, 10, 10);
        assert_eq!(window(&resume) == 500, jumps, "{handshake_ms} ms");
        let paced = Rate::of(segments(500), Duration::from_ms(RTT_MS));
        assert_eq!(resume.pacing_rate() == Some(paced), jumps);
    }
}

#[test]
fn a_path_that_changes_under_a_jump_is_retreated_from() {
    let mut resume = reno(saved(1000, 600));
    jumped(&mut resume);
    resume.on_handover(&Handover { now: Instant::START, rtt: None, rate: None });
    assert!(matches!(phase(&resume), Phase::Retreat { .. }), "{:?}", phase(&resume));
    assert_eq!(window(&resume), 9, "half of the nineteen that were in flight");
    acks(&mut resume, 2 * RTT_MS, 500, 500);
    assert_eq!(phase(&resume), Phase::Normal);
    assert_eq!((window(&resume), resume.law.segments().ssthresh), (9, 250));
}

#[test]
fn a_record_is_for_one_connection_at_a_time_and_for_none_after_a_retreat() {
    let record = record(1000, 600);
    let new = || reno(Jump::Saved { record: record.clone(), window_max: segments(400) });
    let resumes = |resume: &mut Windowed| {
        acks(resume, RTT_MS, 10, 20);
        window(resume) == 400
    };
    let mut first = new();
    assert!(resumes(&mut first), "to the largest jump");
    assert!(!resumes(&mut new()), "another has it");
    drop(first);
    let mut second = new();
    assert!(resumes(&mut second), "it was given back");
    acks(&mut second, 2 * RTT_MS, 400, 400);
    assert_eq!(phase(&second), Phase::Normal);
    let mut third = new();
    assert!(resumes(&mut third), "the second has validated what it sent");
    lose(&mut third, 1);
    drop(third);
    assert!(!resumes(&mut new()), "it has failed");
    assert_eq!(record.saved(), None);
}

#[test]
fn an_algorithm_that_keeps_its_window_at_losses_still_gets_a_threshold() {
    let thresholds = crate::dvegas::DVegasThresholds::default();
    let mut dvegas = crate::dvegas::DVegas::new(Bytes::new(MSS), thresholds);
    dvegas.segments().cwnd = 10;
    let mut resume = resuming(dvegas, saved(1000, 600));
    acks(&mut resume, RTT_MS, 10, 10);
    assert_eq!(window(&resume), 500);
    acks(&mut resume, 2 * RTT_MS, 100, 500);
    lose(&mut resume, 200);
    acks(&mut resume, 2 * RTT_MS, 200, 200);
    assert_eq!(phase(&resume), Phase::Normal);
    assert!(resume.law.segments().ssthresh <= 150, "half of what arrived");
}
