//! The rate that a tunnel takes its link for: what the modem reports, else what is configured. Says so where the link
//! contradicts it.

use midhop_tunnel::control::Pace;
use midhop_units::Rate;

/// What one tunnel knows of the rate of its link.
#[derive(Debug)]
pub struct LinkRate {
    /// What its controller goes by; none where no rate is configured.
    taken: Option<Rate>,
    is_wrong: bool,
}

impl LinkRate {
    /// A tunnel that has begun with the configured rate.
    pub fn new(configured: Option<Rate>) -> Self {
        Self { taken: configured, is_wrong: false }
    }

    /// Has the controller go by what is reported now, or configured where nothing is. Saying the same again changes
    /// nothing, but for a controller that was made for another path since, which knows only what is configured.
    pub fn take(&mut self, configured: Option<Rate>, reported: Option<Rate>, pace: &Pace) {
        let (Some(taken), Some(rate)) = (&mut self.taken, reported.or(configured)) else { return };
        *taken = rate;
        pace.reported(rate);
    }

    /// Logs where the link begins to contradict the rate, and where that ends.
    pub fn look(&mut self, peer: &str, pace: &Pace) {
        let (Some(rate), carried) = (self.taken, pace.carried()) else { return };
        if std::mem::replace(&mut self.is_wrong, carried.is_some()) == carried.is_some() {
            return;
        }
        match carried {
            Some(carried) => tracing::warn!(
                peer,
                %rate,
                %carried,
                hint = "set peers.NAME.rate to what the link carries away from this host",
                "the link to a peer does not carry the rate that is configured: it is measured from now on"
            ),
            None => tracing::info!(peer, %rate, "the link to a peer carries its rate again"),
        }
    }
}
