//! This daemon's identity, and how it identifies its peers.
//!
//! Both ends of a tunnel show a certificate of one private authority. That alone is not enough: a peer is identified
//! by the name in its certificate. A peer whose name is not configured is a stranger.
//!
//! Invariant: a stranger learns nothing. A peer that does not request this daemon by its name receives an alert,
//! without a certificate and without the authority's name. A peer that shows no certificate of this authority does
//! not complete the handshake.

use crate::handshake::{ByName, ExpectedServer, KnownClients, TlsHandshake};
use crate::key_file::{self, HINT_EXPOSED, KeyFileError};
use crate::revoked::Revoked;
use crate::trouble;
use ::ring::hmac;
use midhop_pep::config::{Credentials, PeerPlan};
use midhop_tunnel::{http2, http3};
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use rustls::{
    RootCertStore,
    client::{Resumption, WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why there is no identity. Each message includes its reason, so that no source is reported in addition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        reason: io::Error,
    },
    /// A private key is not secret.
    #[error("{file}: {reason}")]
    Key {
        /// The file.
        file: PathBuf,
        /// Who can use it.
        reason: KeyFileError,
    },
    /// A file does not contain what it should.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: pem::Error,
    },
    /// A file holds no certificate.
    #[error("{file}: there is no certificate in it")]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A file contains no readable certificate revocation list.
    #[error("{file}: this is not a certificate revocation list")]
    NoList {
        /// The file.
        file: PathBuf,
    },
    /// The contents of the files do not match, or TLS does not accept them.
    #[error("certificate, key and authority cannot be used together: {0}")]
    Tls(rustls::Error),
    /// The authority cannot verify any peer.
    #[error("peers cannot be verified by the authority: {0}")]
    Verifier(rustls::server::VerifierBuilderError),
    /// TLS lacks what QUIC requires.
    #[error("TLS cannot protect QUIC: {0}")]
    Quic(NoInitialCipherSuite),
}

impl IdentityError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable { reason, .. } if reason.kind() == io::ErrorKind::PermissionDenied => {
                "give the file to the user that midhopd runs as; the shipped unit's is called midhopd, \
                 and systemd makes it unless there is one: `useradd --system midhopd`"
            }
            Self::Unreadable { .. } => {
                "`midhopd pki init` makes an authority, `midhopd pki issue` a certificate and its key"
            }
            Self::NoList { .. } => {
                "tunnel.revoked takes PEM files, as `openssl ca -gencrl` makes them"
            }
            Self::Key { .. } => HINT_EXPOSED,
            _ => "`midhopd pki show FILE` prints a certificate's contents",
        }
    }

    pub(crate) fn of_file(file: &Path) -> impl Fn(pem::Error) -> Self {
        move |error| match error {
            pem::Error::Io(reason) => Self::Unreadable { file: file.to_owned(), reason },
            reason => Self::File { file: file.to_owned(), reason },
        }
    }
}

impl From<rustls::Error> for IdentityError {
    fn from(reason: rustls::Error) -> Self {
        Self::Tls(reason)
    }
}

impl From<rustls::server::VerifierBuilderError> for IdentityError {
    fn from(reason: rustls::server::VerifierBuilderError) -> Self {
        Self::Verifier(reason)
    }
}

impl From<NoInitialCipherSuite> for IdentityError {
    fn from(reason: NoInitialCipherSuite) -> Self {
        Self::Quic(reason)
    }
}

/// The configuration of both roles of TLS.
#[derive(Clone)]
pub struct Identity {
    /// The secret that successive processes with the same key share: see [`Identity::secret`].
    secret: [u8; 32],
    /// The problem of our own certificate, where it can be loaded but has one.
    pub doubt: Option<Doubt>,
    /// Unit: seconds since 1970. The end of our own certificate, and of the first of its authority's to end.
    pub until: [Option<i64>; 2],
    /// Certificates that were revoked before their end.
    revoked: Arc<Revoked>,
    /// Our own certificate in one line.
    pub own: String,
    provider: Arc<CryptoProvider>,
    certified: Arc<CertifiedKey>,
    /// Verifies peers that connect, and the names that they may have.
    clients: Arc<dyn ClientCertVerifier>,
    names: Arc<[ServerName<'static>]>,
    /// Verifies peers that this daemon connects to.
    servers: Arc<dyn ServerCertVerifier>,
}

/// A certificate that peers do not accept, or will not accept for long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// It has expired.
    #[error("{file} has expired: it was valid until {until}; no peer accepts it")]
    Expired {
        /// The file.
        file: PathBuf,
        /// The end of its validity.
        until: String,
    },
    /// It is not valid yet.
    #[error("{file} is not valid before {from}; no peer accepts it, or this host's clock is wrong")]
    Early {
        /// The file.
        file: PathBuf,
        /// The start of its validity.
        from: String,
    },
    /// It expires soon.
    #[error("{file} expires soon: it is valid until {until}")]
    Ending {
        /// The file.
        file: PathBuf,
        /// The end of its validity.
        until: String,
    },
}

/// How long before its end a certificate ought to be replaced.
const SOON: time::Duration = time::Duration::days(14);

/// Checks the validity period of a certificate.
fn doubt(file: &Path, certificate: &CertificateDer<'_>) -> Option<Doubt> {
    // A certificate that cannot be read was refused before.
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let validity = certificate.validity();
    let now = time::OffsetDateTime::now_utc();
    let (from, until) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
    let file = file.to_owned();
    if now > until {
        return Some(Doubt::Expired { file, until: validity.not_after.to_string() });
    }
    if now < from {
        return Some(Doubt::Early { file, from: validity.not_before.to_string() });
    }
    // A short-lived certificate is replaced as a matter of course.
    let soon = SOON.min((until - from) / 3);
    (until - now < soon).then(|| Doubt::Ending { file, until: validity.not_after.to_string() })
}

impl Identity {
    /// Reads the files of `credentials`, and admits `peers`.
    ///
    /// # Errors
    /// When a file cannot be read or does not hold what it should.
    pub fn load(credentials: &Credentials, peers: &[PeerPlan]) -> Result<Self, IdentityError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&credentials.certificate)?;
        let key = private_key(&credentials.key)?;
        let mut roots = RootCertStore::empty();
        let authorities = certificates(&credentials.authority)?;
        let until = [end_of(&chain), end_of(&authorities)];
        for authority in authorities {
            roots.add(authority)?;
        }
        let roots = Arc::new(roots);
        let secret = secret_of(&key);
        let doubt = chain.first().and_then(|own| doubt(&credentials.certificate, own));
        let own = chain.first().map(trouble::describe).unwrap_or_default();
        let certified = Arc::new(CertifiedKey::from_der(chain, key, &provider)?);
        let names = peers.iter().filter_map(|peer| name_of(&peer.identity)).collect();
        let revoked = Arc::new(Revoked::read(&credentials.revoked)?);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .with_crls(revoked.lists())
            // An authority without a list revokes nothing.
            .allow_unknown_revocation_status()
            .build()?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .with_crls(revoked.lists())
            .allow_unknown_revocation_status()
            .build()?;
        let identity = Self {
            secret,
            doubt,
            until,
            revoked,
            own,
            provider,
            certified,
            clients,
            names,
            servers,
        };
        // A handshake's missing parts are detected now.
        identity.quic_server()?;
        identity.quic_client()?;
        Ok(identity)
    }

    /// For a peer that connects to this daemon, with the record of its handshake.
    ///
    /// # Errors
    /// When TLS lacks what is needed; not once an identity was loaded.
    pub fn quic_server(&self) -> Result<(Arc<QuicServerConfig>, Arc<TlsHandshake>), IdentityError> {
        let (config, handshake) = self.server(http3::ALPN)?;
        Ok((Arc::new(config.try_into()?), handshake))
    }

    /// For a peer to which this daemon connects, with the record of the handshake.
    ///
    /// # Errors
    /// As [`Self::quic_server`].
    pub fn quic_client(&self) -> Result<(Arc<QuicClientConfig>, Arc<TlsHandshake>), IdentityError> {
        let (config, handshake) = self.client(http3::ALPN)?;
        Ok((Arc::new(config.try_into()?), handshake))
    }

    /// The same for a peer that connects over TCP.
    ///
    /// # Errors
    /// As [`Self::quic_server`].
    pub fn tcp_server(
        &self,
    ) -> Result<(Arc<rustls::ServerConfig>, Arc<TlsHandshake>), IdentityError> {
        self.server(http2::ALPN).map(|(config, handshake)| (Arc::new(config), handshake))
    }

    /// The same for a peer that this daemon connects to over TCP.
    ///
    /// # Errors
    /// As [`Self::quic_server`].
    pub fn tcp_client(
        &self,
    ) -> Result<(Arc<rustls::ClientConfig>, Arc<TlsHandshake>), IdentityError> {
        self.client(http2::ALPN).map(|(config, handshake)| (Arc::new(config), handshake))
    }

    fn server(
        &self,
        alpn: &[u8],
    ) -> Result<(rustls::ServerConfig, Arc<TlsHandshake>), IdentityError> {
        let handshake = Arc::<TlsHandshake>::default();
        let by_authority = self.clients.clone();
        let (names, own) = (self.names.clone(), self.certified.clone());
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(KnownClients {
                by_authority,
                names,
                handshake: handshake.clone(),
            }))
            .with_cert_resolver(Arc::new(ByName { own, handshake: handshake.clone() }));
        config.alpn_protocols = vec![alpn.to_vec()];
        // No bytes of a flow may be in early data, which can be replayed.
        config.max_early_data_size = 0;
        // A peer that reconnects shows its certificate again, which may have expired meanwhile.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok((config, handshake))
    }

    fn client(
        &self,
        alpn: &[u8],
    ) -> Result<(rustls::ClientConfig, Arc<TlsHandshake>), IdentityError> {
        let handshake = Arc::<TlsHandshake>::default();
        let by_authority = self.servers.clone();
        let verifier = ExpectedServer { by_authority, handshake: handshake.clone() };
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(self.certified.clone())));
        config.alpn_protocols = vec![alpn.to_vec()];
        // No session is resumed by a ticket: the peer's identity would not be verified a second time.
        config.resumption = Resumption::disabled();
        Ok((config, handshake))
    }
}

impl Identity {
    /// Derives a secret for the purpose `of`. It is the same as long as the key is the same: a restarted daemon can
    /// so inform its peers that it has lost the state of their connections.
    pub fn secret(&self, of: &str) -> [u8; 32] {
        digest(&self.secret, of.as_bytes())
    }

    /// Whether one of the certificates that a peer has shown is revoked.
    pub fn has_revoked(&self, chain: &[CertificateDer<'_>]) -> bool {
        chain.iter().any(|certificate| self.revoked.has(certificate))
    }
}

/// The end of the first of several certificates to end. Unit: seconds since 1970.
pub fn end_of(certificates: &[CertificateDer<'_>]) -> Option<i64> {
    let ends = certificates.iter().filter_map(|one| {
        let (_, read) = X509Certificate::from_der(one).ok()?;
        Some(read.validity().not_after.timestamp())
    });
    ends.min()
}

/// Reads the key from a file that nobody else can read.
fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    let pem = key_file::read(file).map_err(|error| match error {
        KeyFileError::Unreadable(reason) => {
            IdentityError::Unreadable { file: file.to_owned(), reason }
        }
        reason => IdentityError::Key { file: file.to_owned(), reason },
    })?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(IdentityError::of_file(file))
}

fn secret_of(key: &PrivateKeyDer<'_>) -> [u8; 32] {
    digest(key.secret_der(), b"midhopd")
}

fn digest(key: &[u8], of: &[u8]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut digest = [0; 32];
    digest.iter_mut().zip(hmac::sign(&key, of).as_ref()).for_each(|(to, from)| *to = *from);
    digest
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys must not be printed.
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A name in the form that TLS takes.
fn name_of(name: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).ok()
}

/// The names in a certificate, which is parsed once for any number of names.
pub struct CertificateNames<'a>(webpki::EndEntityCert<'a>);

impl<'a> CertificateNames<'a> {
    /// The names of a certificate. None where it cannot be read.
    pub fn of(certificate: &'a CertificateDer<'_>) -> Option<Self> {
        webpki::EndEntityCert::try_from(certificate).ok().map(Self)
    }

    /// Whether `name` is one of them.
    pub fn bear(&self, name: &str) -> bool {
        name_of(name).is_some_and(|name| self.has(&name))
    }

    /// The same for a name in the form that TLS takes.
    pub fn has(&self, name: &ServerName<'_>) -> bool {
        self.0.verify_is_valid_for_subject_name(name).is_ok()
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let failed = IdentityError::of_file(file);
    let found = CertificateDer::pem_file_iter(file).map_err(&failed)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(&failed)?;
    if found.is_empty() {
        return Err(IdentityError::Empty { file: file.to_owned() });
    }
    Ok(found)
}
