//! Starts over a geostationary path of 20 Mbit/s and 600 ms, 1036 segments of 1448 bytes: how fast
//! each fills it, and what it loses.

use crate::path::{Link, MSS, Path};
use midhop_congestion::{
    Algorithm, CongestionControl, Opening, Settings, SlowStart, build,
    opening::{Jump, Saved},
};
use midhop_units::{Bytes, Duration, Rate};

const RATE: Rate = Rate::from_mbit_per_s(20);
const RTT: Duration = Duration::from_ms(600);

fn settings(slow_start: SlowStart, opening: Opening) -> Settings {
    Settings { slow_start: Some(slow_start), opening, paced: true, ..Settings::default() }
}

/// What a connection delivers in its first `seconds`, as a share of what the link could, and the
/// segments that its queue of `products` bandwidth-delay products drops.
fn start(settings: &Settings, products: f64, seconds: u64) -> (f64, u64) {
    let mut link = Link::new(RATE, RTT);
    link.queue = Bytes::new((products * link.bdp() as f64) as u64);
    let control = build(Algorithm::Cubic, settings).expect("CUBIC");
    let mut path: Path<Box<dyn CongestionControl>> = Path::one(link, control);
    let share = path.share(Duration::from_s(seconds));
    (share, path.link.dropped)
}

#[test]
fn classic_slow_start_overshoots_by_what_the_queue_does_not_hold() {
    let (_, dropped) = start(&settings(SlowStart::Classic, Opening::Burst), 1.0, 10);
    assert!(dropped > 500, "{dropped}");
}

#[test]
fn a_rise_in_rtt_ends_slow_start_before_the_queue_is_full() {
    let (share, dropped) = start(&settings(SlowStart::HyStart, Opening::Burst), 2.0, 10);
    assert_eq!(dropped, 0);
    assert!(share > 0.3, "{share}");
    // Five rounds of a quarter more each triple the window after the rise was seen: more than two
    // products in the queue, but less than doubling would.
    let (_, doubled) = start(&settings(SlowStart::Classic, Opening::Burst), 2.0, 10);
    let (share, dropped) = start(&settings(SlowStart::HyStartPlusPlus, Opening::Burst), 2.0, 10);
    assert!(dropped < doubled, "{dropped} of {doubled}");
    assert!(share > 0.3, "{share}");
}

#[test]
fn search_fills_the_path_and_drains_a_long_queue() {
    let (share, dropped) = start(&settings(SlowStart::Search, Opening::Burst), 8.0, 20);
    assert_eq!(dropped, 0);
    assert!(share > 0.6, "{share}");
}

#[test]
fn a_known_rate_is_used_from_the_first_round_trip_on_and_loses_nothing() {
    let jump = Jump::Known { rate: RATE, window_max: Bytes::new(1 << 30) };
    let jumping = settings(SlowStart::HyStartPlusPlus, Opening::Jump(jump));
    let (share, dropped) = start(&jumping, 1.0, 6);
    // The first acknowledgement is back after 0.6 s of six.
    assert!(share > 0.88, "{share}");
    assert_eq!(dropped, 0);
}

#[test]
fn a_jump_to_what_is_not_there_retreats_and_recovers() {
    let jump = Jump::Known { rate: Rate::from_mbit_per_s(80), window_max: Bytes::new(1 << 30) };
    let jumping = settings(SlowStart::HyStartPlusPlus, Opening::Jump(jump));
    let (share, dropped) = start(&jumping, 0.5, 30);
    assert!(dropped > 500, "{dropped}");
    assert!(share > 0.5, "{share}");
}

#[test]
fn careful_resume_takes_half_the_time_of_slow_start() {
    let window = RATE.bytes_in(RTT);
    let saved = Opening::Jump(Jump::Saved(Saved { window, rtt: RTT }));
    let (resumed, dropped) = start(&settings(SlowStart::HyStart, saved), 2.0, 4);
    let (without, _) = start(&settings(SlowStart::HyStart, Opening::Burst), 2.0, 4);
    assert!(resumed > 2.0 * without, "{resumed} to {without}");
    assert_eq!(dropped, 0);
}

#[test]
fn a_spread_window_meets_no_queue() {
    // A segment takes 46 ms; as usual ten of them leave 30 ms apart, spread 60.
    let dropped = |opening| {
        let mut link = Link::new(Rate::from_bits_per_s(250_000), RTT);
        link.queue = Bytes::new(3 * MSS);
        let control = build(Algorithm::Reno, &settings(SlowStart::Classic, opening));
        let mut path = Path::one(link, control.expect("Reno"));
        path.run(RTT);
        path.link.dropped
    };
    assert_eq!(dropped(Opening::Spread), 0);
    assert!(dropped(Opening::Burst) > 0);
}
