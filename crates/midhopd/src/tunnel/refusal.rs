//! Reports handshakes that failed, at the end that a peer connects to.

use crate::worker::Worker;
use midhop_pki::handshake::TlsHandshake;
use midhop_pki::identity::Identity;
use midhop_pki::trouble;
use midhop_pki::trouble::{PeerTrouble, TroubleKind};
use std::fmt::Display;
use std::net::SocketAddr;

/// Counts a failed handshake and, where a certificate or a name is the reason, warns of it.
pub fn report(
    worker: &Worker,
    identity: &Identity,
    handshake: &TlsHandshake,
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
    // A scan is no reason for a warning.
    tracing::info!(%from, %error, "a handshake failed: the peer sent no certificate, or did not prove that it has the key");
}

fn warn(worker: &Worker, peer: Option<&str>, trouble: &PeerTrouble) {
    worker.ledger.book_refusal(peer, trouble);
    let Some(unreported) = worker.tunnels.warnings.due(peer.unwrap_or_default()) else { return };
    let PeerTrouble { message, hint, address, .. } = trouble;
    tracing::warn!(peer, from = %address, hint, unreported, "{message}");
}
