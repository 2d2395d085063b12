//! Explains why a tunnel to a peer cannot be opened: whose certificate was refused, and why.

use super::keeper::LinkKeeper;
use midhop_pki::handshake::TlsHandshake;
use midhop_pki::identity::Identity;
use midhop_pki::trouble;
use midhop_pki::trouble::PeerTrouble;
use midhop_tunnel::quic::ConnectionError;
use rustls::AlertDescription;
use std::io;

/// Codes of QUIC that are TLS's alerts (RFC 9001 §4.8).
const CRYPTO_ERRORS: std::ops::Range<u64> = 0x100..0x200;

/// The alert by which a peer ended a connection.
pub(super) fn alert_of(lost: &ConnectionError) -> Option<AlertDescription> {
    let ConnectionError::ConnectionClosed(close) = lost else { return None };
    let code = u64::from(close.error_code);
    let is_alert = CRYPTO_ERRORS.contains(&code);
    is_alert.then(|| u8::try_from(code - CRYPTO_ERRORS.start).ok()).flatten().map(Into::into)
}

/// The alert by which a peer ended TLS over TCP.
pub(super) fn alert_in(error: &io::Error) -> Option<AlertDescription> {
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}

/// The failure that kept a tunnel from opening, if it concerns a certificate.
pub(super) fn trouble_in(error: &io::Error) -> Option<&PeerTrouble> {
    error.get_ref()?.downcast_ref()
}

/// One attempt, as far as its failure can be explained.
#[derive(Clone, Copy)]
pub(super) struct OpeningAttempt<'a> {
    pub keeper: &'a LinkKeeper,
    pub identity: &'a Identity,
    pub handshake: &'a TlsHandshake,
}

impl OpeningAttempt<'_> {
    /// The error, or the certificate's failure in its place.
    pub(super) fn explain(self, error: io::Error, alert: Option<AlertDescription>) -> io::Error {
        match self.trouble(alert) {
            Some(trouble) => io::Error::new(io::ErrorKind::PermissionDenied, trouble),
            None => error,
        }
    }

    fn trouble(self, alert: Option<AlertDescription>) -> Option<PeerTrouble> {
        let LinkKeeper { peer, address, .. } = self.keeper;
        if let Some((kind, shown)) = self.handshake.refused() {
            let known = trouble::known(std::slice::from_ref(peer));
            let shown = trouble::describe(shown);
            return Some(PeerTrouble::of_peer(*kind, *address, &shown, &known));
        }
        let alert = alert?;
        if self.handshake.has_accepted() {
            return PeerTrouble::refused(alert, *address, &self.identity.own);
        }
        // A server that has no certificate for the name responds with one of these.
        matches!(
            alert,
            AlertDescription::AccessDenied
                | AlertDescription::UnrecognisedName
                | AlertDescription::HandshakeFailure
        )
        .then(|| PeerTrouble::not_theirs(*address, &peer.identity))
    }
}
