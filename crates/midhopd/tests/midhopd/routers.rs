//! The daemon on routers as people have them: with it, every connection has the same outcome as
//! without it, but is split, or assisted if a rule requires it.
//!
//! `make routers` tries every set-up and prints a table. The tests here try some of them.

use crate::matrix::{cases, judge};

/// Set-ups that differ most from each other, few enough for `make test`.
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
    // They wait more than they compute, and the duration of handshakes is not checked.
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
