//! The daemon on routers as people have them: with it, every connection fares as it does without, but
//! is split, or assisted where a rule requires it.
//!
//! `make routers` tries every set-up and prints a table; the tests here try some, and the odd packets.

use crate::matrix::{cases, judge};

/// Set-ups that differ most from each other: what `make test` has time for.
const SOME: [&str; 6] = [
    "home-router",
    "invalid-dropped-everywhere",
    "iptables-nft",
    "uplink-by-interface",
    "strict-reverse-path-with-marks",
    "openwrt-fw4",
];

#[test]
fn some_routers_are_as_without_it() {
    let some: Vec<_> = cases::all().into_iter().filter(|case| SOME.contains(&case.name)).collect();
    // They wait more than they compute, and nobody looks at how long a handshake took.
    judge::run(&some, 4);
}

/// All set-ups, or the first `MIDHOP_ROUTERS` of them.
#[test]
#[ignore = "takes minutes: make routers"]
fn all_routers_are_as_without_it() {
    let wanted = std::env::var("MIDHOP_ROUTERS").ok().and_then(|text| text.parse().ok());
    let mut cases = cases::all();
    cases.truncate(wanted.unwrap_or(usize::MAX));
    judge::run(&cases, 2);
}
