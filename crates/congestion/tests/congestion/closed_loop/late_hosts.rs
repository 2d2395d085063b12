//! Senders whose host has no processor again and again.
//!
//! A tunnel's sender makes up for [`LATE_MAX`] of what it missed. The rest is lost, and a controller that measures the
//! path by what it sends measures less than the path has. BBR version 1 loses more each time, down to an eighth of the
//! rate at 40 of 60 ms and a round trip of 40 ms, and to a sixth at 100 of 200 ms and 600 ms.

use super::driven::Driven;
use super::path::{LATE_MAX, Link, MSS, Path};
use midhop_congestion::bbr::{BbrSettings, v3::BbrV3};
use midhop_congestion::pulse::Pulsed;
use midhop_units::{Bytes, Duration, Rate};

/// Without a processor for the second time at the beginning of every first one. Unit: milliseconds.
const LATE: [(u64, u64); 4] = [(100, 50), (100, 35), (200, 100), (60, 40)];

/// A controller keeps this part of what its host leaves it, and finds the path again afterwards.
fn keeps_its_rate<C: Driven>(name: &str, make: impl Fn() -> C) {
    for rtt in [40, 600] {
        for (every, of) in LATE {
            let link = Link::new(Rate::from_mbit_per_s(20), Duration::from_ms(rtt));
            let mut path = Path::one(link, make());
            path.run(Duration::from_s(20));
            path.link.late = Some((Duration::from_ms(every), Duration::from_ms(of)));
            path.run(Duration::from_s(30));
            let share = path.share(Duration::from_s(60));
            let lost = Duration::from_ms(of).saturating_sub(LATE_MAX);
            let left = 1.0 - lost.as_ns() as f64 / Duration::from_ms(every).as_ns() as f64;
            let what = format!("{name}, {rtt} ms, {of} of {every} ms: {share} of {left}");
            assert!(share > 0.65 * left, "{what}");
            path.link.late = None;
            let after = path.share(Duration::from_s(10));
            assert!(after > 0.85, "{what}, then {after}");
        }
    }
}

#[test]
fn pulses_keep_most_of_what_a_busy_host_leaves_them() {
    keeps_its_rate("pulse", || Pulsed::new(Bytes::new(MSS), 10));
}

#[test]
fn bbr_keeps_most_of_what_a_busy_host_leaves_it() {
    keeps_its_rate("BBRv3", || BbrV3::new(Bytes::new(MSS), BbrSettings::default()));
}
