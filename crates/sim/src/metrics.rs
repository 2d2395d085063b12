//! The slow-start thresholds that hosts remember of a route after a connection over it has ended.
//!
//! Source: Linux, net/ipv4/tcp_metrics.c (`tcp_update_metrics`, `tcp_init_metrics`) with `tcp_no_ssthresh_metrics_save`
//! off. Differs: entries never expire, and a window is rounded to segments of the connection that ended.

use crate::packet::NodeId;
use midhop_tcp::Endpoint;
use std::collections::BTreeMap;

/// Source and destination address.
pub(crate) type Way = [NodeId; 2];

/// The thresholds that one host, or all hosts of a network, remember. Unit: segments.
#[derive(Debug, Default)]
pub(crate) struct Thresholds(BTreeMap<Way, u32>);

impl Thresholds {
    /// The threshold for a new connection over `way`, if one is remembered.
    pub fn of(&self, way: Way) -> Option<u32> {
        self.0.get(&way).copied()
    }

    /// A connection over `way` has ended in order.
    pub fn note(&mut self, way: Way, endpoint: &Endpoint) {
        let mss = endpoint.segment_payload().get().max(1);
        let segments = |bytes: u64| u32::try_from(bytes / mss).unwrap_or(u32::MAX);
        let half = segments(endpoint.window().get()) / 2;
        let threshold = endpoint.slow_start_threshold();
        let threshold = threshold.map(|(at, reached)| (segments(at.get()), reached));
        if let Some(threshold) = updated(self.of(way), half, threshold) {
            self.0.insert(way, threshold);
        }
    }
}

/// The new threshold after a connection with `half` of its window left, where `known` was remembered before.
/// `threshold`: where its slow start ended, if it did, and whether the window has reached that again.
fn updated(known: Option<u32>, half: u32, threshold: Option<(u32, bool)>) -> Option<u32> {
    match threshold {
        Some((threshold, true)) => Some(threshold.max(half)),
        // Another slow start is running: its window shows nothing.
        Some((threshold, false)) => known.map(|known| known.max(threshold)),
        // The first slow start did not end.
        None => known.map(|known| known.max(half)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_remembered_as_in_linux() {
        for (known, half, threshold, then) in [
            (None, 40, None, None),
            (Some(30), 40, None, Some(40)),
            (Some(50), 40, None, Some(50)),
            // A kernel that ended with a window of 77 and a threshold of 55 kept 55, as `ip tcp_metrics` prints it.
            (None, 38, Some((55, true)), Some(55)),
            (Some(90), 60, Some((55, true)), Some(60)),
            (None, 5, Some((55, false)), None),
            (Some(40), 5, Some((55, false)), Some(55)),
            (Some(60), 5, Some((55, false)), Some(60)),
        ] {
            assert_eq!(updated(known, half, threshold), then, "{known:?} {half} {threshold:?}");
        }
    }
}
