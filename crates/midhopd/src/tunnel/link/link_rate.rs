//! The rate that a tunnel takes its link for: what the modem reports, else what is configured. Says so where the link
//! contradicts it.

use midhop_tunnel::control::Pace;
use midhop_units::Rate;

/// What one tunnel knows of the rate of its link.
#[derive(Debug)]
pub struct LinkRate {
    /// What its plan has, which an open tunnel keeps.
    configured: Option<Rate>,
    reported: Option<Rate>,
    is_wrong: bool,
}

impl LinkRate {
    /// A tunnel that begins with the configured rate.
    pub fn new(configured: Option<Rate>) -> Self {
        Self { configured, reported: None, is_wrong: false }
    }

    /// What was reported last, and still counts.
    pub fn reported(&self) -> Option<Rate> {
        self.reported
    }

    /// Has the controller go by what is reported now, and by what is configured once nothing is any more. Saying the same
    /// again changes nothing, but for a controller that was made for another path since, which knows only what is
    /// configured.
    pub fn take(&mut self, reported: Option<Rate>, pace: &Pace) {
        let had = std::mem::replace(&mut self.reported, reported);
        if let Some(rate) = reported.or(self.configured.filter(|_| had.is_some())) {
            pace.reported(rate);
        }
    }

    /// Logs where the link begins to contradict the rate, and where that ends.
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
                "the link to a peer carries another rate than it is taken for: it is measured from now on"
            ),
            None => tracing::info!(peer, %rate, "the link to a peer carries its rate again"),
        }
    }
}
