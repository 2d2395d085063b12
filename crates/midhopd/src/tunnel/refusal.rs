//! Reports handshakes that failed, at the end that a peer connects to.

use super::handshake::Handshake;
use super::identity::Identity;
use super::trouble::{self, PeerTrouble, TroubleKind};
use crate::worker::Worker;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Between two warnings about one peer, or about strangers: they may try as often as they like.
const PAUSE: Duration = Duration::from_secs(10);

/// Counts a failed handshake and, where a certificate or a name is the reason, warns of it.
pub fn report(
    worker: &Worker,
    identity: &Identity,
    handshake: &Handshake,
    from: SocketAddr,
    error: &dyn Display,
) {
    let plan = worker.plan();
    if let Some((kind, shown)) = handshake.refused() {
        let (certificate, known) = (trouble::describe(shown), trouble::known(&plan.peers));
        let peer = trouble::named(shown, &plan.peers);
        let trouble = PeerTrouble::of_peer(*kind, from, &certificate, &known);
        return warn(worker, peer, &trouble);
    }
    if let Some(asked) = handshake.asked() {
        return warn(worker, None, &PeerTrouble::not_ours(from, asked, &identity.own));
    }
    let kind = if handshake.has_accepted() { TroubleKind::Invalid } else { TroubleKind::Missing };
    let known = trouble::known(&plan.peers);
    worker.ledger.book_refusal(None, &PeerTrouble::of_peer(kind, from, "", &known));
    // Scans are no reason to wake anybody.
    tracing::info!(%from, %error, "a handshake failed: no certificate was shown, or not proven");
}

fn warn(worker: &Worker, peer: Option<&str>, trouble: &PeerTrouble) {
    worker.ledger.book_refusal(peer, trouble);
    let Some(unreported) = worker.tunnels.warnings.due(peer.unwrap_or_default()) else { return };
    let PeerTrouble { message, hint, address, .. } = trouble;
    tracing::warn!(peer, from = %address, hint, unreported, "{message}");
}

/// When something was last warned of.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<BTreeMap<String, (Instant, u64)>>);

impl Warnings {
    /// Whether to warn about `whom` now, and how many warnings were omitted before this one.
    fn due(&self, whom: &str) -> Option<u64> {
        let now = Instant::now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Known peers and "" only: a configuration bounds them.
        match last.get_mut(whom) {
            Some((at, omitted)) if now - *at < PAUSE => {
                *omitted += 1;
                None
            }
            Some(entry) => Some(std::mem::replace(entry, (now, 0)).1),
            None => {
                last.insert(whom.to_owned(), (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_is_not_repeated_at_will() {
        let warnings = Warnings::default();
        assert_eq!(
            (warnings.due("near"), warnings.due("near"), warnings.due("")),
            (Some(0), None, Some(0))
        );
        tokio::time::advance(PAUSE).await;
        assert_eq!((warnings.due("near"), warnings.due("near")), (Some(1), None));
    }
}
