//! A controller with the interface that quinn-proto calls.

use super::core::{Acked, Core, Lost};
use super::pace::{Pace, lock};
use midhop_units::Duration;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerMetrics};
use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A window for which quinn does not pace: with more than 32 bits it sends everything at once.
const UNPACED_WINDOW: u64 = u64::MAX / 4;
/// Datagrams that quinn makes before it checks the window again: one batch of segmentation offload.
const BATCH: u64 = 10;

/// One path's controller.
///
/// A connection whose peer only changes its port keeps its controller (RFC 9000 §9.4): a clone is
/// another handle of the same.
pub struct Steered {
    core: Arc<Mutex<Core>>,
    pace: Pace,
}

impl Steered {
    pub(super) fn new(core: Core, pace: Pace) -> Self {
        core.publish(&pace);
        let core = Arc::new(Mutex::new(core));
        pace.belongs_to(&core);
        Self { core, pace }
    }

    fn update(&self, change: impl FnOnce(&mut Core)) {
        let mut core = lock(&self.core);
        change(&mut core);
        core.publish(&self.pace);
    }
}

impl Controller for Steered {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.update(|core| core.on_sent(now, bytes));
    }

    fn on_ack(
        &mut self,
        _now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let smoothed = rtt.get();
        lock(&self.core).on_acked(&Acked { sent, bytes, app_limited, smoothed });
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        let waited = {
            let made = lock(&self.core).newest_made();
            made.map_or(Duration::ZERO, |(made, done_q16)| self.pace.waited(made, done_q16))
        };
        self.update(|core| core.on_end_of_acks(now, in_flight, app_limited, waited));
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let persistent = is_persistent_congestion;
        // A congestion mark is a loss of zero bytes.
        if lost_bytes > 0 {
            self.pace.loses();
        }
        self.update(|core| {
            core.on_lost(now, &Lost { newest_sent: sent, bytes: lost_bytes, persistent })
        });
    }

    /// Keeps the segment size: algorithms count in segments, and the new MTU differs by a fifth at most.
    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.pace.carries(new_mtu);
    }

    fn window(&self) -> u64 {
        let core = lock(&self.core);
        // With room for a whole batch quinn must not pace. With less room it counts exactly, and its pacer, a
        // quarter faster than the window, delays ten datagrams at most.
        if core.has_room_for(BATCH) { UNPACED_WINDOW } else { core.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.pace.window().get();
        metrics.pacing_rate = self.pace.rate().map(|rate| rate.bits_per_s());
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { core: Arc::clone(&self.core), pace: self.pace.clone() })
    }

    fn initial_window(&self) -> u64 {
        lock(&self.core).window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
