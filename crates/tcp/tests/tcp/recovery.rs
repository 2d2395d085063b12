//! Recoveries with a known course: which segments are retransmitted, when, and how the window changes.

use crate::pair::{Fixed, Pair, Path, PlainReno, losing};
use midhop_tcp::{DelayedAck, LossDetection, Settings};
use midhop_units::{Bytes, Duration, Instant, Rate};

const MSS: u64 = 1448;

fn ms(ms: u64) -> Duration {
    Duration::from_ms(ms)
}

fn at(ms: u64) -> Instant {
    Instant::START + Duration::from_ms(ms)
}

/// Each segment is acknowledged, and the first duplicates release no new data.
fn strict() -> Settings {
    Settings {
        delayed_ack: DelayedAck::NONE,
        limited_transmit: false,
        nagle: false,
        ..Settings::default()
    }
}

#[test]
fn newreno_repairs_one_hole_per_round_trip() {
    let settings = Settings { sack: false, prr: false, ..strict() };
    let control = PlainReno::with_threshold(&settings, 20, 20);
    let mut pair = Pair::with(&settings, control, Path { delay: ms(100), ..Path::default() });
    pair.touch = losing(&[1, 5, 9]);
    pair.to_write = [400 * MSS, 0];
    pair.run_to(at(4000));
    let again: Vec<_> =
        repeated(&pair).iter().map(|&(at, offset)| (at, offset / MSS + 1)).collect();
    // SYN 0..200, data at 200, duplicates at 400, then a hole each 200 ms.
    assert_eq!(again, [(at(400), 1), (at(600), 5), (at(800), 9)]);
    assert_eq!(pair.ends[0].counters().timeouts, 0);
    assert_eq!(pair.ends[0].counters().recoveries, 1);
    let mut pair = Pair::with(
        &settings,
        PlainReno::with_threshold(&settings, 20, 20),
        Path { delay: ms(100), ..Path::default() },
    );
    pair.touch = losing(&[1, 5, 9]);
    pair.to_write = [400 * MSS, 0];
    pair.run_to(at(999));
    // At 1000 ms the third repair is acknowledged; the window is half of what it was.
    assert_eq!(pair.ends[0].window(), Bytes::new(10 * MSS));
}

/// RFC 5681 without RFC 6582: the first hole's repair ends the recovery, the next hole halves again.
#[test]
fn reno_halves_the_window_for_each_hole() {
    let course = |newreno| {
        let settings = Settings { sack: false, newreno, prr: false, ..strict() };
        let control = PlainReno::with_threshold(&settings, 20, 20);
        let mut pair = Pair::with(&settings, control, Path { delay: ms(100), ..Path::default() });
        pair.touch = losing(&[1, 5]);
        pair.to_write = [400 * MSS, 0];
        pair.run_to(at(799));
        let counters = pair.ends[0].counters();
        assert_eq!(counters.timeouts, 0);
        let again: Vec<u64> = repeated(&pair).iter().map(|&(_, offset)| offset / MSS + 1).collect();
        assert_eq!(again, [1, 5]);
        (counters.recoveries, pair.ends[0].window())
    };
    assert_eq!(course(true), (1, Bytes::new(10 * MSS)));
    assert_eq!(course(false), (2, Bytes::new(5 * MSS)));
}

/// Linux begins the next recovery at the moment when one ends, if a segment that was found lost is still outstanding,
/// retransmitted or not: `tcp_time_to_recover` in net/ipv4/tcp_input.c looks at `lost_out`.
#[test]
fn a_recovery_that_ends_before_all_repairs_have_come_is_followed_by_another() {
    let settings = strict();
    let control = PlainReno::with_threshold(&settings, 20, 20);
    let mut pair = Pair::with(&settings, control, Path { delay: ms(100), ..Path::default() });
    // Loses the first segment and its retransmission, and the first segment beyond those that were outstanding when the
    // recovery began.
    let mut sent = std::collections::BTreeMap::<u64, u32>::new();
    pair.touch = Box::new(move |side, segment| {
        if side != 0 || segment.length == 0 {
            return false;
        }
        let number = segment.offset / MSS + 1;
        let times = sent.entry(number).or_default();
        *times += 1;
        matches!((number, *times), (1, 1 | 2) | (21, 1))
    });
    pair.to_write = [400 * MSS, 0];
    // Both are found lost and retransmitted at 600 ms. The acknowledgement of the first ends the recovery at 800 ms.
    pair.run_to(at(799));
    assert_eq!(pair.ends[0].counters().recoveries, 1);
    assert_eq!(pair.ends[0].acknowledged(), 0);
    pair.run_to(at(810));
    assert!(pair.ends[0].acknowledged() > 21 * MSS, "both repairs have come");
    assert_eq!(pair.ends[0].counters().recoveries, 2);
    assert_eq!(pair.ends[0].counters().timeouts, 0);
}

/// Duplicates report arrived data during the recovery, in which no window grows. The acknowledgement that ends the
/// recovery covers all of it, and must not let the window grow for it once more.
#[test]
fn the_end_of_a_recovery_is_no_flight_of_growth() {
    for (sack, prr) in [(false, false), (false, true), (true, false), (true, true)] {
        let settings = Settings { sack, prr, ..strict() };
        let control = PlainReno::with_threshold(&settings, 20, 20);
        let mut pair = Pair::with(&settings, control, Path { delay: ms(100), ..Path::default() });
        pair.touch = losing(&[1]);
        pair.to_write = [400 * MSS, 0];
        pair.run_to(at(599));
        assert_eq!(pair.ends[0].acknowledged(), 0);
        // The retransmission is acknowledged, and with it the flight of twenty.
        pair.run_to(at(600));
        assert!(pair.ends[0].acknowledged() >= 20 * MSS);
        assert_eq!(pair.ends[0].counters().recoveries, 1);
        let window = pair.ends[0].window();
        // One round trip of a window of ten may have begun to count.
        assert!(window <= Bytes::new(11 * MSS), "sack {sack}, prr {prr}: {window:?}");
    }
}

/// What the client has retransmitted.
fn repeated(pair: &Pair) -> Vec<(Instant, u64)> {
    let mut reached = None;
    let mut again = Vec::new();
    for (at, offset, _) in pair.data(0) {
        if reached.is_some_and(|reached| offset <= reached) {
            again.push((at, offset));
        } else {
            reached = Some(offset);
        }
    }
    again
}

#[test]
fn sack_repairs_all_holes_in_one_round_trip() {
    for loss_detection in [LossDetection::Rack, LossDetection::DupThresh] {
        let settings = Settings { loss_detection, ..strict() };
        let control = PlainReno::with_threshold(&settings, 20, 20);
        let mut pair = Pair::with(&settings, control, Path { delay: ms(100), ..Path::default() });
        pair.touch = losing(&[1, 5, 9]);
        pair.to_write = [400 * MSS, 0];
        pair.run_to(at(4000));
        let again: Vec<_> = repeated(&pair).iter().map(|&(_, offset)| offset / MSS + 1).collect();
        assert_eq!(again, [1, 5, 9], "{loss_detection:?}");
        assert!(repeated(&pair).iter().all(|&(when, _)| when == at(400)), "{loss_detection:?}");
        assert_eq!(pair.ends[0].counters().timeouts, 0);
    }
}

/// How many segments each acknowledgement lets out, from the third on that reports a loss.
fn prr_course(window_after: u32) -> Vec<usize> {
    let settings = strict();
    let control =
        midhop_congestion::Controller::new(Halving { mss: MSS, window: 20, after: window_after });
    let path = Path { delay: ms(100), rate: Some(Rate::from_mbit_per_s(12)), ..Path::default() };
    let mut pair = Pair::with(&settings, control, path);
    pair.touch = losing(&[1]);
    pair.to_write = [400 * MSS, 0];
    pair.run_to(at(500));
    let data = pair.data(0);
    let acks = pair.arrivals[0].iter().skip(1).skip(2).take(17);
    acks.map(|arrival| data.iter().filter(|(sent, ..)| sent == arrival).count()).collect()
}

/// A window that a loss sets to a given value.
#[derive(Debug)]
struct Halving {
    mss: u64,
    window: u32,
    after: u32,
}

impl midhop_congestion::CongestionControl for Halving {
    fn on_ack(&mut self, _: &midhop_congestion::Ack) {}

    fn on_loss(&mut self, _: &midhop_congestion::Loss) {
        self.window = self.after;
    }

    fn on_rto(&mut self, _: &midhop_congestion::Rto) {}
    fn on_spurious(&mut self, _: &midhop_congestion::Spurious) {}
    fn on_handover(&mut self, _: &midhop_congestion::Handover) {}

    fn window(&self) -> Bytes {
        Bytes::new(u64::from(self.window) * self.mss)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        None
    }
}

#[test]
fn prr_spends_a_reduction_over_the_round_trip() {
    // The courses of RFC 9937's law: twenty in flight, the first lost, recovery at the third.
    assert_eq!(prr_course(10), [1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1]);
    assert_eq!(prr_course(14), [1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn rack_finds_a_retransmission_that_is_lost() {
    let settings = strict();
    let control = midhop_congestion::Controller::new(Fixed(Bytes::new(1000 * MSS), None));
    let mut pair = Pair::with(&settings, control, Path { delay: ms(50), ..Path::default() });
    let mut times = 0;
    pair.touch = Box::new(move |side, segment| {
        let fifth = side == 0 && segment.length > 0 && segment.offset == 4 * MSS;
        times += u32::from(fifth);
        fifth && times <= 2
    });
    pair.run_to(at(100));
    // One segment each millisecond.
    for nth in 0..500 {
        pair.to_write[0] += MSS;
        pair.run_to(at(101 + nth));
    }
    let fifth: Vec<_> =
        pair.data(0).into_iter().filter(|&(_, offset, _)| offset == 4 * MSS).collect();
    let counters = pair.ends[0].counters();
    assert_eq!(fifth.len(), 3, "{counters:?}");
    assert_eq!((counters.timeouts, counters.probes), (0, 0));
    // The first retransmission leaves at the third segment after the lost one. The second leaves when a segment sent
    // after the first retransmission was acknowledged.
    let [first, second, third] = [0, 1, 2].map(|nth: usize| fifth[nth].0);
    let (once, twice) = (second.saturating_since(first), third.saturating_since(second));
    assert!((ms(102)..=ms(104)).contains(&once), "{once:?}");
    assert!((ms(100)..=ms(102)).contains(&twice), "{twice:?}");
}

/// The echoed timestamp stays that of the last segment before the hole, whatever arrives behind it.
#[test]
fn rack_finds_a_lost_retransmission_by_those_that_left_after_it() {
    let settings = strict();
    let control = midhop_congestion::Controller::new(Fixed(Bytes::new(1000 * MSS), None));
    let mut pair = Pair::with(&settings, control, Path { delay: ms(50), ..Path::default() });
    let mut times = [0; 60];
    pair.touch = Box::new(move |side, segment| {
        let nth = (segment.offset / MSS) as usize;
        if side != 0 || segment.length == 0 || !(10..40).contains(&nth) {
            return false;
        }
        times[nth] += 1;
        times[nth] == 1 || (nth == 10 && times[nth] == 2)
    });
    pair.run_to(at(100));
    pair.to_write[0] = 60 * MSS;
    pair.run_to(at(2000));
    let tenth: Vec<_> =
        pair.data(0).into_iter().filter(|&(_, offset, _)| offset == 10 * MSS).collect();
    let counters = pair.ends[0].counters();
    assert_eq!((tenth.len(), counters.timeouts, counters.probes), (3, 0, 0), "{counters:?}");
    let again = tenth[2].0.saturating_since(tenth[1].0);
    // A segment that left after it was acknowledged, plus a reordering window of at most a quarter of a round trip.
    assert!((ms(100)..=ms(127)).contains(&again), "{again:?}");
}

/// When the client sends its tail again: `segments` segments, of which the last is lost.
fn probe_after(segments: u64, one_way_ms: u64) -> (Duration, u64) {
    let settings = Settings { delayed_ack: DelayedAck::NONE, ..Settings::default() };
    let control = midhop_congestion::Controller::new(Fixed(Bytes::new(1000 * MSS), None));
    let path = Path { delay: ms(one_way_ms), ..Path::default() };
    let mut pair = Pair::with(&settings, control, path);
    pair.run_to(at(2 * one_way_ms));
    pair.touch = Box::new(|side, segment| side == 0 && segment.length > 0);
    pair.to_write[0] = segments * MSS;
    pair.run_to(pair.now + ms(8 * one_way_ms + 500));
    let data = pair.data(0);
    let again = repeated(&pair);
    let (left, probed) = (data[0].0, again[0]);
    assert_eq!(probed.1, (segments - 1) * MSS, "the last one is the probe");
    (probed.0.saturating_since(left), pair.ends[0].counters().probes.into())
}

#[test]
fn a_tail_loss_probe_leaves_after_two_round_trips() {
    // 2·SRTT, and Linux' 2 ms of slack; with a single segment 200 ms for a delayed acknowledgement.
    assert_eq!(probe_after(5, 300), (ms(1202), 1));
    assert_eq!(probe_after(1, 300), (ms(1400), 1));
    assert_eq!(probe_after(5, 25), (ms(102), 1));
    // Never later than the timeout, which is 50 + 200 ms here.
    assert_eq!(probe_after(1, 25), (ms(250), 1));
}

#[test]
fn a_lost_tail_is_repaired_by_its_probe() {
    let settings = Settings { delayed_ack: DelayedAck::NONE, ..Settings::default() };
    let control = PlainReno::control(&settings, 10);
    let mut pair = Pair::with(&settings, control, Path { delay: ms(100), ..Path::default() });
    pair.touch = losing(&[10]);
    pair.transfer([10 * MSS, 0]);
    let counters = pair.ends[0].counters();
    assert_eq!((counters.probes, counters.timeouts), (1, 0), "{counters:?}");
}

#[test]
fn a_timeout_that_was_early_is_undone() {
    // Delay steps from 40 to 1000 ms: the timer fires, then the originals' acknowledgements come.
    for timestamps in [false, true] {
        let settings = Settings {
            timestamps,
            loss_detection: LossDetection::RackWithoutProbe,
            ..Settings::default()
        };
        let control = PlainReno::control(&settings, 10);
        let mut pair = Pair::with(&settings, control, Path { delay: ms(20), ..Path::default() });
        pair.to_write[0] = 10_000 * MSS;
        pair.run_to(at(200));
        let before = pair.ends[0].window();
        pair.path.delay = ms(500);
        assert!(pair.run(at(2500), |pair| pair.ends[0].counters().undone > 0));
        let counters = pair.ends[0].counters();
        assert!(counters.timeouts >= 1, "{counters:?}");
        assert!(pair.ends[0].window() >= before, "{:?} of {before:?}", pair.ends[0].window());
        assert_eq!(counters.retransmissions, u64::from(counters.timeouts), "{counters:?}");
    }
}

#[test]
fn a_timeout_that_was_due_is_not_undone() {
    for sack in [true, false] {
        let settings = Settings {
            sack,
            loss_detection: LossDetection::RackWithoutProbe,
            ..Settings::default()
        };
        let control = PlainReno::control(&settings, 10);
        let mut pair = Pair::with(&settings, control, Path { delay: ms(20), ..Path::default() });
        // A whole flight is lost, and the segments that follow it.
        pair.touch = losing(&[
            21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42,
            43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64,
        ]);
        pair.transfer([200 * MSS, 0]);
        let counters = pair.ends[0].counters();
        assert!(counters.timeouts >= 1, "{counters:?}");
        assert_eq!(counters.undone, 0, "sack {sack}: {counters:?}");
    }
}

#[test]
fn reordering_alone_is_found_out() {
    let settings = Settings::default();
    let control = midhop_congestion::Controller::new(Fixed(Bytes::new(100 * MSS), None));
    let path = Path {
        delay: ms(100),
        jitter: ms(10),
        rate: Some(Rate::from_mbit_per_s(20)),
        ..Path::default()
    };
    let mut pair = Pair::with(&settings, control, path);
    pair.transfer([5000 * MSS, 0]);
    let counters = pair.ends[0].counters();
    // Once it has seen the path reorder, it waits a quarter of a round trip.
    assert!(counters.retransmissions < 50, "{counters:?}");
    assert!(counters.undone >= 1, "{counters:?}");
}

#[test]
fn an_answer_to_an_earlier_recoverys_repair_undoes_nothing() {
    // Losses are closer than a round trip: each recovery begins while retransmissions of segments beyond the last
    // recovery's point are in flight. Nothing is reordered, so nothing is spurious.
    let settings = strict();
    let control = midhop_congestion::Controller::new(Fixed(Bytes::new(400 * MSS), None));
    let path = Path { delay: ms(100), rate: Some(Rate::from_mbit_per_s(50)), ..Path::default() };
    let mut pair = Pair::with(&settings, control, path);
    let lost: Vec<u64> = (1..3900).filter(|number| number * number % 101 == 5).collect();
    let lost: &'static [u64] = lost.leak();
    pair.touch = losing(lost);
    pair.to_write = [4000 * MSS, 0];
    pair.run_to(at(20_000));
    let counters = pair.ends[0].counters();
    assert_eq!(pair.ends[0].acknowledged(), 4000 * MSS);
    assert!(counters.recoveries > 2, "{counters:?}");
    assert_eq!(counters.retransmissions, lost.len() as u64);
    assert_eq!((counters.undone, counters.timeouts), (0, 0));
}

/// A retransmission that leaves late in the round trip is acknowledged only after the timer that the last new
/// acknowledgement has set would have fired. So the timer is set anew for the retransmission.
#[test]
fn a_repair_has_its_own_time_to_be_answered() {
    for sack in [false, true] {
        let settings = Settings { sack, ..strict() };
        let control = PlainReno::with_threshold(&settings, 20, 20);
        let mut pair = Pair::with(&settings, control, Path { delay: ms(300), ..Path::default() });
        pair.run_to(at(600));
        // Round trips of 600 ms, until the timeout is little more than that and 200 ms.
        for round in 0..30 {
            pair.to_write[0] = MSS;
            pair.run_to(at(1200 + round * 600));
        }
        let start = pair.now.saturating_since(Instant::START).as_ns() / 1_000_000;
        pair.touch = losing(&[32]);
        // One segment, and 300 ms later ten, of which the first is lost.
        pair.to_write[0] = MSS;
        pair.run_to(at(start + 300));
        pair.to_write[0] = 10 * MSS;
        pair.run_to(at(start + 5000));
        let again = repeated(&pair);
        let counters = pair.ends[0].counters();
        assert_eq!(again, [(at(start + 900), 31 * MSS)], "sack {sack}: {counters:?}");
        assert_eq!((counters.timeouts, counters.recoveries), (0, 1), "sack {sack}");
        assert_eq!(pair.ends[0].acknowledged(), 41 * MSS);
    }
}

/// RFC 6582 §3.2, step 2: duplicates of an acknowledgement that covers no more than what was sent before the timeout
/// respond to needless retransmissions.
#[test]
fn duplicates_after_a_timeout_are_no_loss() {
    // Nothing is lost. The delay steps, and the data in flight is retransmitted after the timeout.
    let settings = Settings { sack: false, undo: false, ..strict() };
    let control = PlainReno::control(&settings, 10);
    let mut pair = Pair::with(&settings, control, Path { delay: ms(20), ..Path::default() });
    pair.to_write[0] = 10_000 * MSS;
    pair.run_to(at(200));
    pair.path.delay = ms(500);
    pair.run_to(at(4000));
    let counters = pair.ends[0].counters();
    assert!(counters.timeouts >= 1 && counters.retransmissions > 10, "{counters:?}");
    assert_eq!(counters.recoveries, 0, "{counters:?}");
}
