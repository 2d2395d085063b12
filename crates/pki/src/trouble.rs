//! Why a peer and this daemon do not connect, as the log, the console and the counters report it.
//!
//! Invariant: a report contains no secret. Text from a certificate is bounded and contains no control characters.

use crate::identity::CertificateNames;
use ::ring::digest;
use midhop_pep::config::PeerPlan;
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError};
use serde::Serialize;
use std::fmt::Write;
use std::net::SocketAddr;
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Unit: characters. The rest of a longer text is removed.
const TEXT_CHARS: usize = 120;
/// Names of a certificate, and known peers, that are listed.
const NAMES_MAX: usize = 8;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// The certificate is of the authority, but no peer has its name.
    UnknownName,
    /// The certificate is of another authority.
    Authority,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    Early,
    /// It is revoked.
    Revoked,
    /// It is not for the name that was asked for.
    WrongName,
    /// There is none.
    Missing,
    /// It is damaged, or not for this purpose.
    Invalid,
    /// The peer does not respond, or the connection failed for another reason.
    Unreachable,
}

impl TroubleKind {
    /// Those that an end which accepts tunnels counts.
    pub const REFUSALS: [Self; 8] = [
        Self::UnknownName,
        Self::Authority,
        Self::Expired,
        Self::Early,
        Self::Revoked,
        Self::WrongName,
        Self::Missing,
        Self::Invalid,
    ];

    /// Its name in counters and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownName => "unknown-name",
            Self::Authority => "authority",
            Self::Expired => "expired",
            Self::Early => "not-yet-valid",
            Self::Revoked => "revoked",
            Self::WrongName => "wrong-name",
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::Unreachable => "unreachable",
        }
    }

    /// The outcome of a verification.
    pub fn of(error: &rustls::Error) -> Self {
        let rustls::Error::InvalidCertificate(error) = error else { return Self::Invalid };
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::Early
            }
            CertificateError::Revoked => Self::Revoked,
            // Another authority may have the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Authority,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            CertificateError::ApplicationVerificationFailure => Self::UnknownName,
            _ => Self::Invalid,
        }
    }

    /// What a peer reports of our certificate by its alert. None: the alert concerns something else.
    ///
    /// Source: RFC 8446 §6.2.
    fn of_alert(alert: AlertDescription) -> Option<Self> {
        Some(match alert {
            AlertDescription::CertificateExpired => Self::Expired,
            AlertDescription::CertificateRevoked => Self::Revoked,
            AlertDescription::UnknownCA | AlertDescription::DecryptError => Self::Authority,
            AlertDescription::AccessDenied => Self::UnknownName,
            AlertDescription::CertificateRequired => Self::Missing,
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown => Self::Invalid,
            _ => return None,
        })
    }

    /// What is wrong with a peer's certificate.
    const fn of_peer(self) -> &'static str {
        match self {
            Self::UnknownName => "no peer that is configured here has its name",
            Self::Authority => "it is not of the authority in tunnel.authority",
            Self::Expired => "it has expired",
            Self::Early => "it is not valid yet",
            Self::Revoked => "it is revoked",
            Self::WrongName => "it is not for the name in peers.NAME.name",
            Self::Missing => "there is none",
            Self::Invalid | Self::Unreachable => "it is damaged, or not made for this purpose",
        }
    }

    /// What a peer finds wrong with our certificate.
    const fn of_own(self) -> &'static str {
        match self {
            Self::UnknownName => "none of its peers has our name",
            Self::Authority => "it is not of the far end's authority",
            Self::Expired | Self::Early => {
                "it has expired, or is not valid yet by the far end's clock"
            }
            Self::Revoked => "it is revoked there",
            Self::Missing => "the far end got none",
            Self::WrongName | Self::Invalid | Self::Unreachable => "the far end cannot use it",
        }
    }
}

/// Advice to the end that refuses a peer.
const fn advice_on_peer(kind: TroubleKind) -> &'static str {
    match kind {
        TroubleKind::UnknownName => {
            "if it is a peer of yours, give it a table [peers.NAME] and reload; `name` where the certificate's name is another"
        }
        TroubleKind::Authority => {
            "both ends need certificates of one authority: compare the issuers by `midhopd pki show FILE`"
        }
        TroubleKind::Expired => {
            "issue the peer a new certificate by `midhopd pki issue`, and have it reload"
        }
        TroubleKind::Early => "one of the two clocks is wrong, or the certificate is for later",
        TroubleKind::Revoked => {
            "if this is not meant, take it off the list in tunnel.revoked and reload"
        }
        TroubleKind::WrongName => {
            "set peers.NAME.name to a name in the far end's certificate, and reload"
        }
        TroubleKind::Missing | TroubleKind::Invalid | TroubleKind::Unreachable => {
            "a midhopd always shows one: this may be another program, or a scan"
        }
    }
}

/// Advice to the end whose certificate is refused.
const fn advice_on_own(kind: TroubleKind) -> &'static str {
    match kind {
        TroubleKind::UnknownName => {
            "add [peers.NAME] with this name to the far end's configuration and reload it"
        }
        TroubleKind::Authority => {
            "both ends need certificates of one authority: compare the issuers by `midhopd pki show FILE`"
        }
        TroubleKind::Expired | TroubleKind::Early => {
            "issue a new one by `midhopd pki issue` and reload, or set the clocks of both ends"
        }
        TroubleKind::Revoked => "issue a new one by `midhopd pki issue` and reload",
        TroubleKind::WrongName
        | TroubleKind::Missing
        | TroubleKind::Invalid
        | TroubleKind::Unreachable => {
            "its log has the reason: `midhopd peers` there shows it as well"
        }
    }
}

/// One failure between a peer and this daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerTrouble {
    /// The kind of failure: see [`TroubleKind::name`].
    pub reason: &'static str,
    /// Whose certificate it concerns: `peer` or `own`; none: no certificate.
    pub certificate: Option<&'static str>,
    /// What happened.
    pub message: String,
    /// The remedy.
    pub hint: Option<&'static str>,
    /// The other end's address.
    pub address: SocketAddr,
    /// When. Unit: seconds since 1970.
    pub at_unix_s: i64,
}

impl std::fmt::Display for PeerTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PeerTrouble {}

impl PeerTrouble {
    fn new(kind: TroubleKind, address: SocketAddr, message: String) -> Self {
        let at_unix_s = OffsetDateTime::now_utc().unix_timestamp();
        let reason = kind.name();
        Self { reason, certificate: None, message, hint: None, address, at_unix_s }
    }

    /// A connection to a peer failed, and no certificate is the reason.
    pub fn unreachable(address: SocketAddr, why: &dyn std::fmt::Display) -> Self {
        Self::new(TroubleKind::Unreachable, address, bounded(&why.to_string()))
    }

    /// This end refuses a certificate.
    pub fn of_peer(kind: TroubleKind, address: SocketAddr, shown: &str, known: &str) -> Self {
        let why = kind.of_peer();
        let mut message = format!("the peer's certificate is refused: {why}");
        if !shown.is_empty() {
            let _ = write!(message, "; the certificate: {shown}");
        }
        let _ = write!(message, "; known peers: {known}");
        let hint = Some(advice_on_peer(kind));
        Self { certificate: Some("peer"), hint, ..Self::new(kind, address, message) }
    }

    /// A peer asked for a name that is not ours.
    pub fn not_ours(address: SocketAddr, asked: &str, own: &str) -> Self {
        let kind = TroubleKind::WrongName;
        let asked = bounded(asked);
        let message =
            format!("a peer requests \"{asked}\"; our certificate is for another name: {own}");
        let hint = Some("peers.NAME.name at the other end must be a name in our certificate");
        Self { certificate: Some("own"), hint, ..Self::new(kind, address, message) }
    }

    /// The far end, which has shown its certificate, refuses ours.
    pub fn refused(alert: AlertDescription, address: SocketAddr, own: &str) -> Option<Self> {
        let kind = TroubleKind::of_alert(alert)?;
        let why = kind.of_own();
        let message = format!("the far end refuses our certificate: {why}; the certificate: {own}");
        let hint = Some(advice_on_own(kind));
        Some(Self { certificate: Some("own"), hint, ..Self::new(kind, address, message) })
    }

    /// The far end has no certificate for the name that we ask for.
    pub fn not_theirs(address: SocketAddr, asked: &str) -> Self {
        let kind = TroubleKind::WrongName;
        let message = format!("the far end has no certificate for \"{asked}\", which we request");
        let hint = Some("set peers.NAME.name to a name in the far end's certificate, and reload");
        Self { certificate: Some("peer"), hint, ..Self::new(kind, address, message) }
    }
}

/// Describes a certificate in one line: subject, names, validity, issuer, fingerprint.
pub fn describe(certificate: &CertificateDer<'_>) -> String {
    let fingerprint = fingerprint(certificate);
    let Ok((_, read)) = X509Certificate::from_der(certificate) else {
        return format!("it cannot be read; SHA-256 {fingerprint}");
    };
    let names = read.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|extension| &extension.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(bounded(name)),
        _ => None,
    });
    format!(
        "subject {}, names {}, valid from {} until {}, issuer {}, SHA-256 {fingerprint}",
        bounded(&read.subject().to_string()),
        listed(names),
        read.validity().not_before,
        read.validity().not_after,
        bounded(&read.issuer().to_string()),
    )
}

/// The SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` prints it.
pub fn fingerprint(certificate: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, certificate);
    let bytes: Vec<_> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    bytes.join(":")
}

/// The known peers, with the name that each one's certificate must have.
pub fn known(peers: &[PeerPlan]) -> String {
    listed(peers.iter().map(|peer| match peer.name == peer.identity {
        true => bounded(&peer.name),
        false => format!("{} (as {})", bounded(&peer.name), bounded(&peer.identity)),
    }))
}

/// The peer whose name a certificate has, whether or not it is valid.
pub fn named<'a>(certificate: &CertificateDer<'_>, peers: &'a [PeerPlan]) -> Option<&'a str> {
    let names = CertificateNames::of(certificate)?;
    let peer = peers.iter().find(|peer| names.bear(&peer.identity))?;
    Some(&peer.name)
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<_> = names.take(NAMES_MAX + 1).collect();
    if names.len() > NAMES_MAX {
        names[NAMES_MAX] = "…".to_owned();
    }
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

/// Others' text, of bounded length and without control characters.
fn bounded(text: &str) -> String {
    let is_plain = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut bounded: String =
        text.chars().take(TEXT_CHARS).map(|c| if is_plain(c) { c } else { '?' }).collect();
    if text.chars().nth(TEXT_CHARS).is_some() {
        bounded.push('…');
    }
    bounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_s_text_is_bounded_and_harmless() {
        let name = format!("a\n\u{1b}[2J\u{202e}{}", "b".repeat(500));
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let shown = describe(certificate.der());
        assert!(!shown.chars().any(char::is_control) && !shown.contains('\u{202e}'), "{shown}");
        assert!(shown.chars().count() < 600 && shown.contains('…'), "{shown}");
        assert!(shown.contains(&fingerprint(certificate.der())), "{shown}");
        assert!(describe(&CertificateDer::from(vec![7; 30])).contains("cannot be read"));
    }

    #[test]
    fn every_alert_on_a_certificate_has_its_meaning() {
        let address = SocketAddr::from(([192, 0, 2, 1], 443));
        for (alert, reason) in [
            (AlertDescription::CertificateExpired, "expired"),
            (AlertDescription::CertificateRevoked, "revoked"),
            (AlertDescription::UnknownCA, "authority"),
            (AlertDescription::DecryptError, "authority"),
            (AlertDescription::AccessDenied, "unknown-name"),
            (AlertDescription::CertificateRequired, "missing"),
            (AlertDescription::BadCertificate, "invalid"),
        ] {
            let trouble = PeerTrouble::refused(alert, address, "ours").expect("a refusal");
            assert_eq!((trouble.reason, trouble.certificate), (reason, Some("own")), "{alert:?}");
        }
        assert!(
            PeerTrouble::refused(AlertDescription::NoApplicationProtocol, address, "").is_none()
        );
    }
}
