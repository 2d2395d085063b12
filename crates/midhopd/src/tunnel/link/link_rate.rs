//! The rate that a tunnel assumes for its link: the modem's reported one, else the configured one.
//! Logs when the link contradicts it.

use midhop_tunnel::control::Pace;
use midhop_units::Rate;

/// What one tunnel knows of the rate of its link.
#[derive(Debug)]
pub struct LinkRate {
    /// The plan's rate, which an open tunnel keeps.
    configured: Option<Rate>,
    reported: Option<Rate>,
    is_wrong: bool,
}

impl LinkRate {
    /// Creates it for a tunnel with this configured rate.
    pub fn new(configured: Option<Rate>) -> Self {
        Self { configured, reported: None, is_wrong: false }
    }

    /// The last report, while it is valid.
    pub fn reported(&self) -> Option<Rate> {
        self.reported
    }

    /// Passes the reported rate to the controller, or the configured one when no report is valid
    /// any more. The same rate again changes nothing, with one exception: a controller that was
    /// made for another path in the meantime only knows the configured rate.
    pub fn take(&mut self, reported: Option<Rate>, pace: &Pace) {
        let had = std::mem::replace(&mut self.reported, reported);
        if let Some(rate) = reported.or(self.configured.filter(|_| had.is_some())) {
            pace.reported(rate);
        }
    }

    /// Logs when the link begins to contradict the rate, and when it agrees again.
    pub fn look(&mut self, peer: &str, pace: &Pace) {
        let Some(rate) = self.reported.or(self.configured) else { return };
        let carried = pace.carried();
        if std::mem::replace(&mut self.is_wrong, carried.is_some()) == carried.is_some() {
            return;
        }
        match carried {
            Some(carried) => tracing::warn!(
                peer,
                %rate,
                %carried,
                hint = "set peers.NAME.rate to what the link carries away from this host",
                "the rate of the link to a peer differs from the configured or reported one: it is measured from now on"
            ),
            None => {
                tracing::info!(peer, %rate, "the link to a peer has its configured or reported rate again");
            }
        }
    }
}
