//! BBR: paces at the rate the path delivers, and keeps little more in flight than the path holds.
//!
//! [`v1`] is what Linux ships as `bbr`; [`v3`] is the algorithm of the working group's draft. Both need
//! [`crate::Ack::sample`]; an acknowledgement without one does not change their model of the path.
//!
//! Both handle a [`crate::Handover`], which their sources do not define: they discard what was measured on the
//! old path, and take the event's values for the new one.

mod filter;
mod policer;
pub mod v1;
pub mod v3;

pub use filter::WindowedMax;

use crate::Ack;
use crate::common::Common;
use midhop_units::{Instant, Rate, Seed};

/// Settings of both versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BbrSettings {
    /// The window before anything is acknowledged. Unit: segments. Range: ≥ 1.
    pub initial_window: u32,
    /// Decides at which point of its cycle a flow begins, and how long it waits between probes.
    pub seed: Seed,
    /// Whether the receiver acknowledges selectively. Only the draft uses it.
    pub selective_acks: bool,
}

impl BbrSettings {
    fn of(common: &Common<'_>) -> Self {
        Self { initial_window: common.initial_window, seed: common.seed, ..Self::default() }
    }
}

impl Default for BbrSettings {
    fn default() -> Self {
        Self {
            initial_window: crate::segments::INITIAL_WINDOW,
            seed: Seed::default(),
            selective_acks: true,
        }
    }
}

/// `rate` × `numerator` / `denominator`, rounded down.
fn scaled(rate: Rate, numerator: u64, denominator: u64) -> Rate {
    let bits = u128::from(rate.bits_per_s()) * u128::from(numerator) / u128::from(denominator);
    Rate::from_bits_per_s(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// A rate sample as both versions read it.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// `None` where the interval was too short to be valid.
    rate: Option<Rate>,
    delivered: u64,
    prior_delivered: u64,
    prior_in_flight: u64,
    tx_in_flight: u64,
    lost: u64,
    app_limited: bool,
    sent: Instant,
}

impl Sample {
    fn of(ack: &Ack, held_back: HeldBack) -> Option<Self> {
        let sample = ack.sample?;
        let prior_delivered = sample.prior_delivered.get();
        Some(Self {
            rate: ack.delivery_rate.filter(|rate| *rate > Rate::ZERO),
            delivered: sample.delivered.get(),
            prior_delivered,
            prior_in_flight: sample.prior_in_flight.get(),
            tx_in_flight: sample.tx_in_flight.get(),
            lost: sample.lost.get(),
            app_limited: sample.is_app_limited || held_back.covers(prior_delivered),
            sent: sample.sent,
        })
    }
}

/// Data sent while PROBE_RTT limited the sender: its samples do not measure the path.
///
/// Does the same as a transport's MarkConnectionAppLimited(), without the transport.
#[derive(Debug, Clone, Copy, Default)]
struct HeldBack {
    from: u64,
    until: u64,
}

impl HeldBack {
    fn mark(&mut self, delivered: u64, in_flight: u64) {
        if delivered > self.until {
            self.from = delivered;
        }
        self.until = delivered.saturating_add(in_flight).max(1);
    }

    fn covers(self, prior_delivered: u64) -> bool {
        self.until > 0 && (self.from..=self.until).contains(&prior_delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_data_sent_while_held_back_are_marked() {
        let mut held = HeldBack::default();
        assert!(!held.covers(0), "nothing was ever held back");
        held.mark(1000, 400);
        held.mark(1200, 200);
        let covered: Vec<u64> =
            [999, 1000, 1400, 1401].into_iter().filter(|&at| held.covers(at)).collect();
        assert_eq!(covered, [1000, 1400]);
        held.mark(9000, 100);
        assert!(!held.covers(1400) && held.covers(9100));
    }
}
