//! What a modem reports of a link, or of all of its links.

use crate::Item;
use midhop_units::Rate;

/// What is known of one link. What a later message does not repeat stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metrics {
    /// The rate that it has away from the modem. Zero says nothing, by a modem that cannot tell.
    pub current_rate_transmit: Option<Rate>,
}

impl Metrics {
    /// Takes what a message has of them.
    pub fn update(&mut self, items: &[Item]) {
        for item in items {
            if let Item::CurrentRateTransmit(rate) = item {
                self.current_rate_transmit = Some(*rate).filter(|rate| *rate > Rate::ZERO);
            }
        }
    }
}
