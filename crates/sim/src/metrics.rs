//! What hosts remember of a way when a connection over it has ended: where its slow start ended.
//!
//! Source: Linux, net/ipv4/tcp_metrics.c (`tcp_update_metrics`, `tcp_init_metrics`) with `tcp_no_ssthresh_metrics_save`
//! off. Differs: nothing is forgotten, and a window is rounded to segments of the connection that ended.

use crate::packet::NodeId;
use midhop_tcp::Endpoint;
use std::collections::BTreeMap;

/// From whose address to whose.
pub(crate) type Way = [NodeId; 2];

/// The thresholds that one host, or all hosts of a network, remember. Unit: segments.
#[derive(Debug, Default)]
pub(crate) struct Thresholds(BTreeMap<Way, u32>);

impl Thresholds {
    /// What a connection over `way` begins with, if anything is remembered.
    pub fn of(&self, way: Way) -> Option<u32> {
        self.0.get(&way).copied()
    }

    /// A connection over `way` has come to its end as it should.
    pub fn note(&mut self, way: Way, endpoint: &Endpoint) {
        let mss = endpoint.segment_payload().get().max(1);
        let segments = |bytes: u64| u32::try_from(bytes / mss).unwrap_or(u32::MAX);
        let half = segments(endpoint.window().get()) / 2;
        let known = self.0.get_mut(&way);
        match (endpoint.slow_start_threshold(), known) {
            // The first slow start did not end.
            (None, Some(known)) => *known = half.max(*known),
            (None, None) => {}
            (Some((threshold, true)), _) => {
                self.0.insert(way, half.max(segments(threshold.get())));
            }
            // It ended, and another is under way: the window says nothing.
            (Some((threshold, false)), Some(known)) => {
                *known = segments(threshold.get()).max(*known);
            }
            (Some((_, false)), None) => {}
        }
    }
}
