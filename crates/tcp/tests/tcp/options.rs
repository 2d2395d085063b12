//! What ends agree on and what each may leave out: acknowledgements held back, windows beyond 64 KiB,
//! timestamps, ECN, limited transmit, pacing, and how the timer backs off.

use crate::pair::{self, Fixed, Pair, Path, PlainReno, losing};
use midhop_congestion::Controller;
use midhop_tcp::{DelayedAck, Ecn, Endpoint, Flags, LossDetection, RtoRule, Settings};
use midhop_units::{Bytes, Duration, Instant, Rate};

const MSS: u64 = 1448;

fn path(ms: u64) -> Path {
    Path { delay: Duration::from_ms(ms), ..Path::default() }
}

fn at(ms: u64) -> Instant {
    Instant::START + Duration::from_ms(ms)
}

/// A window that the SYN can offer whole, so that no later update counts among the acknowledgements.
const WINDOW: Bytes = Bytes::new(65_000);

fn fixed(segments: u64) -> Controller {
    Controller::new(Fixed(Bytes::new(segments * MSS), None))
}

/// Two ends that differ; the first opens and has the congestion control.
fn two(ours: &Settings, theirs: &Settings, control: Controller) -> Pair {
    let client = Endpoint::connect(ours.clone(), control, 0xffff_f000);
    let server = Endpoint::listen(theirs.clone(), PlainReno::control(theirs, 10), 77);
    let mut pair = Pair::new(client, server, path(50), 1);
    pair.keep_seen = true;
    pair
}

/// RFC 3042: the first two duplicates let new data out, the third begins the recovery.
#[test]
fn limited_transmit_answers_two_duplicates_with_new_data() {
    for sack in [true, false] {
        for limited_transmit in [true, false] {
            let settings = Settings {
                sack,
                limited_transmit,
                delayed_ack: DelayedAck::NONE,
                loss_detection: LossDetection::DupThresh,
                receive_buffer: WINDOW,
                ..Settings::default()
            };
            let mut pair = Pair::with(&settings, fixed(4), path(50));
            pair.touch = losing(&[1]);
            pair.to_write = [100 * MSS, 0];
            // The handshake ends at 100 ms, four segments leave, and three duplicates come at 200 ms.
            pair.run_to(at(200));
            let sent: Vec<u64> = pair.data(0).iter().map(|(_, offset, _)| offset / MSS).collect();
            assert_eq!(sent[..4], [0, 1, 2, 3]);
            if limited_transmit {
                assert_eq!(sent[4..7], [4, 5, 0], "sack {sack}: {sent:?}");
            } else {
                assert_eq!(sent[4], 0, "sack {sack}: {sent:?}");
            }
        }
    }
}

/// RFC 9293 §3.8.6.3, and stretch acknowledgements beyond it.
#[test]
fn acknowledgements_wait_for_company_but_not_for_long() {
    let answers = |segments: u32| {
        let delayed_ack = DelayedAck { segments, timeout: Duration::from_ms(40), quick: 0 };
        let settings = Settings { delayed_ack, receive_buffer: WINDOW, ..Settings::default() };
        let mut pair = Pair::with(&settings, fixed(8), path(50));
        pair.to_write = [8 * MSS, 0];
        pair.run_to(at(300));
        let acks = pair.seen.iter().filter(|seen| seen.from == 1 && seen.segment.is_pure_ack());
        acks.map(|seen| seen.at).collect::<Vec<_>>()
    };
    assert_eq!(answers(1), [at(150); 8]);
    assert_eq!(answers(2), [at(150); 4]);
    assert_eq!(answers(3), [at(150), at(150), at(190)]);
    assert_eq!(answers(8), [at(150)]);
    assert_eq!(answers(20), [at(190)]);
}

/// RFC 3465: what counts is what is acknowledged, not how many acknowledgements there are.
#[test]
fn a_stretch_acknowledgement_opens_the_window_by_all_that_it_covers() {
    let delayed_ack = DelayedAck { segments: 8, timeout: Duration::from_ms(40), quick: 0 };
    let settings = Settings { delayed_ack, receive_buffer: WINDOW, ..Settings::default() };
    let mut pair = Pair::with(&settings, PlainReno::control(&settings, 8), path(50));
    pair.to_write = [1000 * MSS, 0];
    pair.run_to(at(200));
    let acks = pair.seen.iter().filter(|seen| seen.from == 1 && seen.segment.is_pure_ack());
    assert_eq!(acks.count(), 1);
    assert_eq!(pair.ends[0].window(), Bytes::new(16 * MSS));
}

/// RFC 7323 §2: both ends must support scaling, else the window has 16 bits.
#[test]
fn a_window_beyond_64_kib_needs_both_to_scale() {
    for [ours, theirs] in [[true, true], [true, false], [false, true], [false, false]] {
        let settings = |window_scaling| Settings { window_scaling, ..Settings::default() };
        let mut pair = two(&settings(ours), &settings(theirs), fixed(200));
        pair.to_write = [1_000_000, 0];
        let mut most = 0;
        while pair.read[1] < 1_000_000 {
            pair.run_to(pair.now + Duration::from_ms(10));
            most = most.max(pair.ends[0].in_flight().get());
        }
        let scales = ours && theirs;
        assert_eq!(most > 65_535, scales, "{ours} {theirs}: {most}");
        let offers = |side: usize| {
            let mut syns = pair.seen.iter().filter(|seen| seen.from == side);
            syns.next().expect("a SYN").segment.syn.window_scale.is_some()
        };
        assert_eq!((offers(0), offers(1)), (ours, scales));
    }
}

/// RFC 7323 §3 and §5: once agreed, every segment carries timestamps, and a segment that is older than the last one
/// in order is discarded (PAWS).
#[test]
fn timestamps_are_on_every_segment_and_old_ones_are_refused() {
    for timestamps in [true, false] {
        let settings = Settings { timestamps, ..Settings::default() };
        let mut pair = two(&settings, &Settings::default(), PlainReno::control(&settings, 10));
        let mut numbered = 0;
        pair.touch = Box::new(move |side, segment| {
            numbered += u32::from(side == 0 && segment.length > 0);
            if let Some(stamps) = &mut segment.timestamps
                && side == 0
                && numbered == 20
            {
                // As if the segment had been in transit for longer than any connection lasts.
                stamps.value = stamps.value.wrapping_sub(1 << 30);
                numbered += 1;
            }
            false
        });
        pair.transfer([200_000, 0]);
        let agreed = pair.seen.iter().skip(1).all(|seen| {
            seen.segment.flags.contains(Flags::RST)
                || seen.segment.timestamps.is_some() == timestamps
        });
        assert!(agreed, "timestamps {timestamps}");
        let counters = pair.ends[0].counters();
        assert_eq!(counters.retransmissions > 0, timestamps, "{counters:?}");
    }
}

/// RFC 3168 §6.1.1: both ends must request it.
#[test]
fn ecn_needs_both() {
    for [ours, theirs] in [[true, true], [true, false], [false, true]] {
        let settings = |ecn| Settings { ecn, ..Settings::default() };
        let mut pair = two(&settings(ours), &settings(theirs), fixed(10));
        pair.transfer([100_000, 0]);
        let capable = pair.seen.iter().any(|seen| seen.segment.ecn == Ecn::Capable);
        assert_eq!(capable, ours && theirs, "{ours} {theirs}");
        let wrong = |seen: &&pair::Seen| {
            seen.segment.ecn != Ecn::NotCapable
                && (seen.segment.length == 0 || seen.segment.flags.contains(Flags::SYN))
        };
        assert_eq!(pair.seen.iter().find(wrong), None, "neither SYN nor pure ACK is capable");
    }
}

#[test]
fn a_paced_sender_keeps_to_its_rate() {
    let lasts = |pacing| {
        let settings = Settings { pacing, receive_buffer: WINDOW, ..Settings::default() };
        // A packet of 1500 bytes each millisecond.
        let rate = Some(Rate::from_mbit_per_s(12));
        let mut pair =
            Pair::with(&settings, Controller::new(Fixed(Bytes::new(40 * MSS), rate)), path(50));
        pair.to_write = [40 * MSS, 0];
        pair.run_to(at(400));
        let data = pair.data(0);
        assert_eq!(data.len(), 40);
        data[39].0 - data[0].0
    };
    assert_eq!(lasts(false), Duration::ZERO);
    let paced = lasts(true);
    assert!(paced >= Duration::from_ms(25) && paced <= Duration::from_ms(39), "{paced}");
}

/// RFC 6298 §5.5.
#[test]
fn the_timer_doubles_each_time_that_nobody_answers() {
    let settings = Settings {
        rto: RtoRule::Rfc6298,
        loss_detection: LossDetection::DupThresh,
        ..Settings::default()
    };
    let mut pair = Pair::with(&settings, fixed(1), path(50));
    pair.touch = Box::new(|side, segment| side == 0 && segment.length > 0);
    pair.to_write = [MSS, 0];
    pair.run_to(at(20_000));
    let sent: Vec<Instant> = pair.data(0).iter().map(|(sent, ..)| *sent).collect();
    assert_eq!(sent, [at(100), at(1100), at(3100), at(7100), at(15_100)]);
    assert_eq!(pair.ends[0].counters().timeouts, 4);
    assert_eq!(pair.ends[0].phase().map(midhop_tcp::SenderPhase::name), Some("loss"));
}

/// The first of four segments is lost. Three duplicates report it, and where only the timer repairs they are ignored.
#[test]
fn where_nothing_but_the_timer_repairs_duplicates_mean_nothing() {
    let sent = |fast_retransmit| {
        let settings = Settings {
            sack: false,
            fast_retransmit,
            limited_transmit: false,
            undo: false,
            rto: RtoRule::Fixed(Duration::from_ms(700)),
            receive_buffer: WINDOW,
            delayed_ack: DelayedAck::NONE,
            ..Settings::default()
        };
        let mut pair = Pair::with(&settings, fixed(4), path(50));
        pair.touch = losing(&[1]);
        pair.to_write = [4 * MSS, 0];
        pair.run_to(at(2000));
        let data = pair.data(0);
        let again = data.iter().map(|(sent, offset, _)| (*sent, offset / MSS)).skip(4);
        (again.collect::<Vec<_>>(), pair.ends[0].counters().retransmissions)
    };
    // The handshake ends at 100 ms, the duplicates come at 200 ms.
    assert_eq!(sent(true).0.first(), Some(&(at(200), 0)));
    let (again, retransmissions) = sent(false);
    assert_eq!(again.first(), Some(&(at(800), 0)), "700 ms after it had left");
    assert_eq!(retransmissions, 4, "all that was outstanding, though three of it had arrived");
}
