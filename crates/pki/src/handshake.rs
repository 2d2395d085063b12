//! Verifies the certificates of one handshake, and keeps the result for the report of its failure.

use crate::identity::CertificateNames;
use crate::trouble::TroubleKind;
use rustls::{
    DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use std::sync::{Arc, OnceLock};

/// The results of one handshake.
#[derive(Debug, Default)]
pub struct TlsHandshake {
    /// The peer's certificate, if it was refused, and why. Accepted: none.
    verdict: OnceLock<Option<(TroubleKind, CertificateDer<'static>)>>,
    /// The name that a client requested, where it is not ours.
    asked: OnceLock<String>,
}

impl TlsHandshake {
    /// The peer's certificate that this end refused, and why.
    pub fn refused(&self) -> Option<&(TroubleKind, CertificateDer<'static>)> {
        self.verdict.get()?.as_ref()
    }

    /// Whether this end accepted the peer's certificate.
    pub fn has_accepted(&self) -> bool {
        matches!(self.verdict.get(), Some(None))
    }

    /// The name that a client requested, where it is not ours.
    pub fn asked(&self) -> Option<&str> {
        self.asked.get().map(String::as_str)
    }

    /// Keeps the outcome of a verification.
    fn note<T>(
        &self,
        shown: &CertificateDer<'_>,
        outcome: Result<T, rustls::Error>,
    ) -> Result<T, rustls::Error> {
        let verdict = outcome.as_ref().err();
        let verdict = verdict.map(|error| (TroubleKind::of(error), shown.clone().into_owned()));
        // A handshake has one certificate of the peer.
        let _ = self.verdict.set(verdict);
        outcome
    }
}

/// Shows the certificate only to a peer that requests a name in it.
#[derive(Debug)]
pub struct ByName {
    /// Our own certificate.
    pub own: Arc<CertifiedKey>,
    /// The record of a name that is not ours.
    pub handshake: Arc<TlsHandshake>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        if CertificateNames::of(self.own.end_entity_cert().ok()?)?.bear(name) {
            return Some(self.own.clone());
        }
        let _ = self.handshake.asked.set(name.to_owned());
        None
    }
}

/// Admits peers whose certificate the authority has signed under one of these names.
#[derive(Debug)]
pub struct KnownClients {
    /// Verifies everything but the name.
    pub by_authority: Arc<dyn ClientCertVerifier>,
    /// The names of the peers.
    pub names: Arc<[ServerName<'static>]>,
    /// The record of the outcome.
    pub handshake: Arc<TlsHandshake>,
}

impl ClientCertVerifier for KnownClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A known peer needs no hint, and a stranger gets none.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.by_authority.verify_client_cert(end_entity, intermediates, now);
        let verified = verified.and_then(|verified| {
            let shown = CertificateNames::of(end_entity);
            if shown.is_some_and(|shown| self.names.iter().any(|name| shown.has(name))) {
                return Ok(verified);
            }
            Err(rustls::CertificateError::ApplicationVerificationFailure.into())
        });
        self.handshake.note(end_entity, verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Accepts the peer that this end connects to, by the authority and by its name.
#[derive(Debug)]
pub struct ExpectedServer {
    /// Verifies everything.
    pub by_authority: Arc<dyn ServerCertVerifier>,
    /// The record of the outcome.
    pub handshake: Arc<TlsHandshake>,
}

impl ServerCertVerifier for ExpectedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let by_authority = &self.by_authority;
        let verified = by_authority.verify_server_cert(end_entity, intermediates, name, ocsp, now);
        self.handshake.note(end_entity, verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}
