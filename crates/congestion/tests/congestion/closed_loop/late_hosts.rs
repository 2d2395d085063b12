//! Senders whose host has no processor again and again.
//!
//! A tunnel's sender makes up for [`LATE_MAX`] of what it missed. The rest is lost, and a controller that measures the
//! path by what it sends measures less than the path has. BBR version 1 loses more each time, down to an eighth of the
//! rate at 40 of 60 ms and a round trip of 40 ms, and to a sixth at 100 of 200 ms and 600 ms, if 25 ms are made up for.
//! A pulse's queue, which stands after each sleep, looks like other flows to it for a part of the time.

use super::driven::Driven;
use super::path::{LATE_MAX, Link, MSS, Path};
use midhop_congestion::bbr::{BbrSettings, v3::BbrV3};
use midhop_congestion::pulse::Pulsed;
use midhop_units::{Bytes, Duration, Rate};

/// Without a processor for the second time at the beginning of every first one. Unit: milliseconds.
const LATE: [(u64, u64); 4] = [(100, 50), (100, 35), (200, 100), (60, 40)];

/// The part of the path's rate that a sender reaches whose window is so many times the product.
fn left(window: f64, rtt: f64, (every, of): (u64, u64)) -> f64 {
    let (every, of) = (every as f64, of as f64);
    let awake = every - of;
    let lost = (of - LATE_MAX.as_ns() as f64 / 1e6).max(0.0);
    // All is acknowledged while it sleeps for longer than a round trip. Then it sends a window, and no more for a
    // round trip.
    let clocked = if of < rtt { every } else { window * rtt + (awake - rtt).max(0.0) };
    (every - lost).min(clocked) / every
}

/// A controller whose window is so many times the product keeps more than `part` of what its host leaves it, and finds
/// the path again afterwards.
fn keeps_its_rate<C: Driven>(name: &str, window: f64, part: f64, make: impl Fn() -> C) {
    for rtt in [40, 600] {
        for late in LATE {
            let link = Link::new(Rate::from_mbit_per_s(20), Duration::from_ms(rtt));
            let mut path = Path::one(link, make());
            path.run(Duration::from_s(20));
            let (every, of) = late;
            path.link.late = Some((Duration::from_ms(every), Duration::from_ms(of)));
            path.run(Duration::from_s(30));
            let share = path.share(Duration::from_s(60));
            let left = left(window, rtt as f64, late);
            let what = format!("{name}, {rtt} ms, {of} of {every} ms: {share} of {left}");
            assert!(share > part * left, "{what}");
            path.link.late = None;
            let after = path.share(Duration::from_s(10));
            assert!(after > 0.85, "{what}, then {after}");
        }
    }
}

#[test]
fn pulses_keep_most_of_what_a_busy_host_leaves_them() {
    keeps_its_rate("pulse", 1.25, 0.6, || Pulsed::new(Bytes::new(MSS), 10));
}

#[test]
fn bbr_keeps_most_of_what_a_busy_host_leaves_it() {
    keeps_its_rate("BBRv3", 2.0, 0.85, || BbrV3::new(Bytes::new(MSS), BbrSettings::default()));
}
