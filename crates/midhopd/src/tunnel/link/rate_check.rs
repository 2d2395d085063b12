//! Reports where a peer's link does not carry the rate that is configured for it.

use midhop_units::Rate;

/// What was last reported of one tunnel.
#[derive(Debug, Default)]
pub struct RateCheck {
    is_wrong: bool,
}

impl RateCheck {
    /// Logs a change: `carried` is what the link carries instead of `configured`.
    pub fn look(&mut self, peer: &str, configured: Option<Rate>, carried: Option<Rate>) {
        let Some(configured) = configured else { return };
        if std::mem::replace(&mut self.is_wrong, carried.is_some()) == carried.is_some() {
            return;
        }
        match carried {
            Some(carried) => tracing::warn!(
                peer,
                %configured,
                %carried,
                hint = "set peers.NAME.rate to what the link carries away from this host",
                "the link to a peer does not carry the rate that is configured: it is measured from now on"
            ),
            None => tracing::info!(
                peer,
                %configured,
                "the link to a peer carries the rate that is configured"
            ),
        }
    }
}
