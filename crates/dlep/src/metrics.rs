//! The metrics of a link, or of all links, as a modem reports them.

use crate::Item;
use midhop_units::Rate;

/// The known metrics of one link. Values that a later message does not repeat stay valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metrics {
    /// The rate of the link away from the modem. Zero means that the modem does not know it.
    pub current_rate_transmit: Option<Rate>,
}

impl Metrics {
    /// Updates them from the items of a message.
    pub fn update(&mut self, items: &[Item]) {
        for item in items {
            if let Item::CurrentRateTransmit(rate) = item {
                self.current_rate_transmit = Some(*rate).filter(|rate| *rate > Rate::ZERO);
            }
        }
    }
}
