//! The one clock of the meter: `CLOCK_MONOTONIC`, and a name for it.
//!
//! Two processes on one machine read the same clock, also from different network namespaces; two
//! machines do not. Each end announces the name of its clock, and moments of the far end are
//! placed exactly when the names agree, else relative to something that both ends saw.

use midhop_units::Instant;
use nix::time::{ClockId, clock_gettime};
use std::fs;
use xxhash_rust::xxh3::xxh3_64;

/// The current moment. Origin: the machine's start.
///
/// The kernel never refuses this clock. If it did, every moment would be the clock's start, and all
/// goodputs would show it.
pub fn now() -> Instant {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Instant::START, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let ns = u64::try_from(time.tv_nsec()).unwrap_or(0);
        Instant::from_ns(seconds.saturating_mul(1_000_000_000).saturating_add(ns))
    })
}

/// A name that two processes share if and only if they read the same clock: this boot of this
/// kernel, and the time namespace. None when either cannot be read; then no clock is shared.
pub(super) fn name() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/time")
        .map_or_else(|_| String::new(), |link| link.to_string_lossy().into_owned());
    // Hashed: a server need not reveal the boot's identifier to strangers.
    Some(format!("{:016x}", xxh3_64(format!("{boot}/{namespace}").as_bytes())))
}

/// The moment on tokio's clock that stands for `moment`.
pub(super) fn on_tokio(moment: Instant) -> tokio::time::Instant {
    let here = now();
    let base = tokio::time::Instant::now();
    if moment >= here {
        let ahead = std::time::Duration::from(moment.saturating_since(here));
        // A time that the timer cannot represent means "never": one year is long enough.
        base.checked_add(ahead)
            .unwrap_or_else(|| base + std::time::Duration::from_secs(365 * 86_400))
    } else {
        base
    }
}
