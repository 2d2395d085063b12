//! Tests of single steps; the closed loop is in the crate's `tests/congestion/closed_loop`.

use super::*;
use crate::RateSample;

const MSS: u64 = 1000;

fn bbr() -> BbrV3 {
    BbrV3::new(Bytes::new(MSS), BbrSettings::default())
}

/// A controller in steady state: 8 Mbit/s over 100 ms, a product of 100 segments.
fn steady(state: State) -> BbrV3 {
    let mut bbr = bbr();
    bbr.on_established(&Established { now: Instant::START, rtt: Some(Duration::from_ms(100)) });
    bbr.max_bw = [Rate::from_mbit_per_s(8), Rate::ZERO];
    bbr.bw = bbr.max_bw();
    bbr.full.reached = true;
    bbr.state = state;
    bbr.cwnd = 200 * MSS;
    bbr.delivered = 1_000_000;
    bbr
}

fn lost(tx_in_flight: u64, lost: u64) -> LostSegment {
    LostSegment {
        size: Bytes::new(MSS),
        tx_in_flight: Bytes::new(tx_in_flight * MSS),
        lost: Bytes::new(lost * MSS),
        ..LostSegment::default()
    }
}

#[test]
fn gains_are_the_drafts() {
    let gains = |state: State| (state.pacing_gain_percent(), state.cwnd_gain_percent());
    assert_eq!(gains(State::Startup), (277, 200));
    assert_eq!(gains(State::Drain), (50, 200));
    assert_eq!(gains(State::ProbeBwDown), (90, 200));
    assert_eq!(gains(State::ProbeBwCruise), (100, 200));
    assert_eq!(gains(State::ProbeBwRefill), (100, 200));
    assert_eq!(gains(State::ProbeBwUp), (125, 225));
    assert_eq!(gains(State::ProbeRtt), (100, 50));
}

#[test]
fn the_start_is_paced_at_the_gain_times_the_window_per_round_trip() {
    let mut bbr = bbr();
    assert_eq!(bbr.pacing_rate(), None);
    bbr.on_established(&Established { now: Instant::START, rtt: Some(Duration::from_ms(100)) });
    // Ten segments in 100 ms are 0.8 Mbit/s.
    assert_eq!(bbr.pacing_rate(), Some(Rate::from_bits_per_s(2_216_000)));
}

#[test]
fn the_volume_at_a_loss_lies_within_the_segment_that_crossed_the_threshold() {
    // Nothing lost before the 100th of 100: two hundredths of 99 segments more.
    assert_eq!(inflight_at_loss(100_000, 1000, 1000), 99_000 + 1980 * 100 / 98);
    // As much was lost before as is allowed: nothing of the segment fits.
    assert_eq!(inflight_at_loss(51_000, 2000, 1000), 50_000);
    // More than that was lost already: the data in flight before it, no less.
    assert_eq!(inflight_at_loss(51_000, 20_000, 1000), 50_000);
}

#[test]
fn two_losses_in_a_hundred_end_a_probe_and_bound_what_is_in_flight_once() {
    let mut bbr = steady(State::ProbeBwUp);
    bbr.probe_sample = true;
    bbr.on_lost_segment(&lost(120, 2));
    assert_eq!((bbr.state, bbr.inflight_longterm()), (State::ProbeBwUp, None));
    bbr.on_lost_segment(&lost(120, 3));
    let bound = Bytes::new(119 * MSS + 380 * 100 / 98);
    assert_eq!((bbr.state, bbr.inflight_longterm()), (State::ProbeBwDown, Some(bound)));
    bbr.on_lost_segment(&lost(50, 30));
    assert_eq!(bbr.inflight_longterm(), Some(bound), "a probe is answered once");
}

#[test]
fn a_probe_that_lost_everything_leaves_seven_tenths_of_the_product() {
    let mut bbr = steady(State::ProbeBwUp);
    bbr.probe_sample = true;
    bbr.on_lost_segment(&lost(10, 5));
    assert_eq!(bbr.inflight_longterm(), Some(Bytes::new(70 * MSS)));
    let mut silent = steady(State::ProbeBwUp);
    silent.probe_sample = true;
    silent.on_lost_segment(&LostSegment { is_app_limited: true, ..lost(10, 5) });
    assert_eq!(silent.inflight_longterm(), None, "little was in flight for lack of data");
}

/// The first acknowledgement of a round trip at whose beginning a recovery began, with seven gaps since: 14 of 200
/// segments.
fn end_of_a_lossy_round(phase: Phase) -> State {
    let mut bbr = steady(State::Startup);
    bbr.full.reached = false;
    bbr.phase = Phase::Recovery;
    bbr.signals = Signals { lost: true, gaps: 7, round_end: 900_000, ..Signals::default() };
    bbr.on_ack(&Ack {
        now: Instant::START + Duration::from_s(1),
        acked: Bytes::new(MSS),
        phase,
        in_flight: Bytes::new(200 * MSS),
        delivered: Bytes::new(1_001_000),
        sample: Some(RateSample {
            delivered: Bytes::new(100 * MSS),
            prior_delivered: Bytes::new(901_000),
            interval: Duration::from_ms(100),
            tx_in_flight: Bytes::new(200 * MSS),
            lost: Bytes::new(14 * MSS),
            ..RateSample::default()
        }),
        ..Ack::default()
    });
    bbr.state
}

#[test]
fn a_start_ends_by_losses_whether_or_not_their_recovery_ends_with_the_round() {
    assert_eq!(end_of_a_lossy_round(Phase::Recovery), State::Drain);
    assert_eq!(end_of_a_lossy_round(Phase::Open), State::Drain);
}

#[test]
fn losses_that_were_none_bring_back_bounds_and_probe() {
    let mut bbr = steady(State::ProbeBwUp);
    bbr.probe_sample = true;
    bbr.inflight_longterm = 150 * MSS;
    for nth in 1..=9 {
        bbr.on_lost_segment(&lost(120, nth));
    }
    assert_eq!(bbr.state(), State::ProbeBwDown);
    assert!(bbr.inflight_longterm < 150 * MSS);
    bbr.on_loss(&Loss { now: Instant::START, lost: Bytes::ZERO, in_flight: Bytes::ZERO });
    bbr.on_spurious(&Spurious { now: Instant::START });
    assert_eq!(bbr.state(), State::ProbeBwRefill);
    assert_eq!(bbr.inflight_longterm, 150 * MSS);
    assert_eq!(bbr.window(), Bytes::new(200 * MSS));
}

#[test]
fn a_timeout_leaves_one_segment_and_its_end_the_window_before() {
    let mut bbr = steady(State::ProbeBwCruise);
    bbr.on_rto(&Rto { now: Instant::START, in_flight: Bytes::new(100 * MSS) });
    assert_eq!(bbr.window(), Bytes::new(MSS));
    let acked = Bytes::new(MSS);
    bbr.on_ack(&Ack { acked, phase: Phase::Loss, ..Ack::default() });
    assert_eq!(bbr.window(), Bytes::new(4 * MSS));
    bbr.on_ack(&Ack { acked, phase: Phase::Open, ..Ack::default() });
    assert_eq!(bbr.window(), Bytes::new(200 * MSS));
}

#[test]
fn without_selective_acknowledgements_any_loss_is_too_much() {
    let settings = BbrSettings { selective_acks: false, ..BbrSettings::default() };
    let unselective = BbrV3::new(Bytes::new(MSS), settings);
    assert!(unselective.is_too_high(1, 1_000_000));
    assert!(!bbr().is_too_high(1, 1_000_000));
    assert!(!bbr().is_too_high(20_000, 1_000_000) && bbr().is_too_high(20_001, 1_000_000));
}

#[test]
fn the_wait_between_probes_is_two_to_three_seconds() {
    let mut bbr = steady(State::ProbeBwUp);
    let mut rounds = [0; 2];
    for _ in 0..200 {
        bbr.start_down(Instant::START);
        let wait = bbr.probe_wait;
        assert!((Duration::from_s(2)..Duration::from_s(3)).contains(&wait), "{wait}");
        rounds[bbr.rounds_since_up as usize] += 1;
    }
    assert!(rounds.iter().all(|&count| count > 70), "{rounds:?}");
}
