//! Starts over a geostationary path of 20 Mbit/s and 600 ms, 1036 segments of 1448 bytes: how fast
//! each fills it, and what it loses.

use super::path::{Link, MSS, Path};
use midhop_congestion::{
    Controller, Law, Opening, Settings, SlowStart, build,
    opening::{Jump, Record, Saved},
};
use midhop_units::{Bytes, Duration, Rate};

const RATE: Rate = Rate::from_mbit_per_s(20);
const RTT: Duration = Duration::from_ms(600);

fn settings(law: Law, slow_start: SlowStart, opening: Opening) -> Settings {
    Settings { slow_start: Some(slow_start), opening, paced: true, ..Settings::of(law) }
}

/// What a connection delivers in its first `seconds`, as a share of what the link could, and the
/// segments that its queue of `products` bandwidth-delay products drops.
fn start(settings: &Settings, products: f64, seconds: u64) -> (f64, u64) {
    let mut link = Link::new(RATE, RTT);
    link.queue = Bytes::new((products * link.bdp() as f64) as u64);
    let control = build(settings).expect("CUBIC");
    let mut path: Path<Controller> = Path::one(link, control);
    let share = path.share(Duration::from_s(seconds));
    (share, path.link.dropped)
}

#[test]
fn classic_slow_start_overshoots_by_what_the_queue_does_not_hold() {
    let (_, dropped) = start(&settings(Law::Cubic, SlowStart::Classic, Opening::Burst), 1.0, 10);
    assert!(dropped > 500, "{dropped}");
}

#[test]
fn a_rise_in_rtt_ends_slow_start_before_the_queue_is_full() {
    let (share, dropped) =
        start(&settings(Law::Cubic, SlowStart::HyStart, Opening::Burst), 2.0, 10);
    assert_eq!(dropped, 0);
    assert!(share > 0.3, "{share}");
    // Five rounds of a quarter more each triple the window after the rise was seen: more than two
    // products in the queue, but less than doubling would.
    let (_, doubled) = start(&settings(Law::Cubic, SlowStart::Classic, Opening::Burst), 2.0, 10);
    let (share, dropped) =
        start(&settings(Law::Cubic, SlowStart::HyStartPlusPlus, Opening::Burst), 2.0, 10);
    assert!(dropped < doubled, "{dropped} of {doubled}");
    assert!(share > 0.3, "{share}");
}

#[test]
fn search_fills_the_path_and_drains_a_long_queue() {
    let (share, dropped) = start(&settings(Law::Cubic, SlowStart::Search, Opening::Burst), 8.0, 20);
    assert_eq!(dropped, 0);
    assert!(share > 0.6, "{share}");
}

#[test]
fn a_known_rate_is_used_from_the_first_round_trip_on_and_loses_nothing() {
    let jump = Jump::Known { rate: RATE, window_max: Bytes::new(1 << 30) };
    let jumping = settings(Law::Cubic, SlowStart::HyStartPlusPlus, Opening::Jump(jump));
    let (share, dropped) = start(&jumping, 1.0, 6);
    // The first acknowledgement arrives after 0.6 s of six.
    assert!(share > 0.88, "{share}");
    assert_eq!(dropped, 0);
}

#[test]
fn a_jump_to_what_is_not_there_retreats_and_recovers() {
    let jump = Jump::Known { rate: Rate::from_mbit_per_s(80), window_max: Bytes::new(1 << 30) };
    let jumping = settings(Law::Cubic, SlowStart::HyStartPlusPlus, Opening::Jump(jump));
    let (share, dropped) = start(&jumping, 0.5, 30);
    assert!(dropped > 500, "{dropped}");
    assert!(share > 0.5, "{share}");
}

#[test]
fn careful_resume_takes_half_the_time_of_slow_start() {
    let window = RATE.bytes_in(RTT);
    let record = Record::new(Saved { window, rtt: RTT });
    let saved = Opening::Jump(Jump::Saved { record, window_max: Bytes::MAX });
    let (resumed, dropped) = start(&settings(Law::Cubic, SlowStart::HyStart, saved), 2.0, 4);
    let (without, _) = start(&settings(Law::Cubic, SlowStart::HyStart, Opening::Burst), 2.0, 4);
    assert!(resumed > 2.0 * without, "{resumed} to {without}");
    assert_eq!(dropped, 0);
}

#[test]
fn a_spread_window_meets_no_queue() {
    // A segment takes 46 ms. Usually ten segments leave 30 ms apart; with spreading, 60.
    let dropped = |opening| {
        let mut link = Link::new(Rate::from_bits_per_s(250_000), RTT);
        link.queue = Bytes::new(3 * MSS);
        let control = build(&settings(Law::Reno, SlowStart::Classic, opening));
        let mut path = Path::one(link, control.expect("Reno"));
        path.run(RTT);
        path.link.dropped
    };
    assert_eq!(dropped(Opening::Spread), 0);
    assert!(dropped(Opening::Burst) > 0);
}

/// The data in flight when SEARCH ends, with a queue that holds everything, in products of rate and round-trip time.
/// Time is in units of the path's round trip. Doubling reaches the bottleneck's rate at time 0. From time 1 on
/// acknowledgements come at that rate only.
fn in_flight_when_search_ends() -> f64 {
    let sent =
        |at: f64| if at < 1.0 { 2_f64.powf(at) } else { 2.0 + 2.0_f64.ln() * 2.0 * (at - 1.0) };
    let delivered = |at: f64| sent(at) / 2.0;
    // Both in units of 1 / ln 2; data that arrives now was sent when as much had been sent.
    let sent_when = |count: f64| match count < 2.0 {
        true => count.log2(),
        false => 1.0 + (count - 2.0) / (2.0 * 2.0_f64.ln()),
    };
    let steps = (10..1000).map(|step| f64::from(step) / 100.0);
    let ends = steps.into_iter().find(|&at| {
        let then = sent_when(delivered(at));
        let sent_then = sent(then) - sent(then - 3.5);
        let delivered_now = delivered(at) - delivered(at - 3.5);
        sent_then - delivered_now >= 0.26 * sent_then
    });
    let at = ends.expect("it ends");
    (sent(at) - delivered(at)) / 2.0_f64.ln()
}

#[test]
fn search_ends_where_its_arithmetic_expects_and_needs_a_queue_for_it() {
    let ends = in_flight_when_search_ends();
    assert!((5.2..5.5).contains(&ends), "{ends} products in flight");
    for rtt_ms in [50, 250, 600] {
        let rtt = Duration::from_ms(rtt_ms);
        let run = |slow_start, products: f64| {
            let mut link = Link::new(RATE, rtt);
            link.queue = Bytes::new((products * link.bdp() as f64) as u64);
            let settings = settings(Law::Reno, slow_start, Opening::Burst);
            let control = build(&settings).expect("Reno");
            let mut path: Path<Controller> = Path::one(link, control);
            path.run(rtt * 30);
            let (queue, dropped) = (path.queue(), path.link.dropped);
            // The queue that is left once the drain is over.
            path.run(rtt * 2);
            (queue, dropped, path.queue())
        };
        let (queue, dropped, left) = run(SlowStart::Search, 8.0);
        // The end is checked at the edges of bins, and a bin is 0.35 round trips, in which as much data arrives.
        assert!((-0.1..0.5).contains(&(queue - (ends - 1.0))), "{rtt_ms} ms: {queue}, {ends}");
        assert!(dropped == 0 && left < 0.4, "{rtt_ms} ms: {dropped} dropped, {left} left");
        // With a queue of one product the loss comes first, as in classic slow start.
        let shallow = |slow_start| run(slow_start, 1.0).1;
        assert_eq!(shallow(SlowStart::Search), shallow(SlowStart::Classic), "{rtt_ms} ms");
        // HyStart++ sees the rise itself, but not in the round in which it begins, and grows by a quarter
        // for five rounds more: 1.25⁵ times two to four products.
        let (longer, ..) = run(SlowStart::HyStartPlusPlus, 16.0);
        assert!((5.1..11.3).contains(&longer), "{rtt_ms} ms: {longer}");
        // That is slower than doubling, and loses no more where there is less room.
        let (slower, doubling) = (shallow(SlowStart::HyStartPlusPlus), shallow(SlowStart::Classic));
        assert!(slower <= doubling, "{rtt_ms} ms: {slower} to {doubling}");
    }
}
