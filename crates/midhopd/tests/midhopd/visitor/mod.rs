//! A client of a daemon's tunnel socket that is not a daemon: a QUIC client of the test.
use crate::ends::{Authority, PORT};
use crate::stage::{Family, PATIENCE};
use bytes::Bytes;
use midhop_testbed::namespace::Namespace;
use midhop_tunnel::connect::{Form, Request, Response};
use midhop_tunnel::http3::{Field, Frame, FrameReader, Settings, StreamKind, field, frame};
use midhop_tunnel::payload::Payload;
use midhop_tunnel::varint;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// A client.
pub struct Visitor {
    pub runtime: Runtime,
    endpoint: quinn::Endpoint,
}

/// The result of a visit.
#[derive(Debug)]
pub struct Seen {
    /// The certificate of the daemon.
    pub certificate: Option<Vec<u8>>,
    /// Whether the daemon sent anything of HTTP/3, or a response.
    pub received: bool,
    /// How the connection ended; none: it did not.
    pub ended: Option<quinn::ConnectionError>,
    /// Dropping these would cancel the request, which the daemon may not have counted yet.
    _kept: Option<(quinn::Connection, quinn::SendStream, quinn::RecvStream)>,
}

impl Visitor {
    /// A client in `namespace`.
    pub fn new(namespace: &Namespace) -> Self {
        let bind = || UdpSocket::bind("0.0.0.0:0");
        let socket = namespace.run(bind).expect("entering").expect("a socket");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("an event loop");
        let endpoint = runtime.block_on(async {
            let config = quinn::EndpointConfig::default();
            quinn::Endpoint::new(config, None, socket, Arc::new(quinn::TokioRuntime))
        });
        Self { runtime, endpoint: endpoint.expect("an endpoint") }
    }

    /// Starts a handshake.
    pub fn knock(&self, name: &str, shown: Option<&Shown>) -> (quinn::Connecting, Certificates) {
        let (config, certificates) = config(shown);
        let address = SocketAddr::new(Family::V4.server(), PORT);
        let _entered = self.runtime.enter();
        let connecting = self.endpoint.connect_with(config, address, name);
        (connecting.expect("a handshake begins"), certificates)
    }

    /// Connects, requests a flow at once, and waits for whatever is sent first.
    pub fn visit(&self, name: &str, shown: Option<&Shown>, request: &Request) -> Seen {
        let (connecting, certificates) = self.knock(name, shown);
        let (received, ended, kept) = self.runtime.block_on(async {
            let connection = match timeout(PATIENCE, connecting).await.expect("a handshake ends") {
                Ok(connection) => connection,
                Err(error) => return (false, Some(error), None),
            };
            // For the client the handshake is complete: what it sends may leave together with its
            // certificate.
            if let Ok((mut send, receive)) = connection.open_bi().await {
                let _ = send.write_all(&request.encode(Form::Classic)).await;
                let listened = timeout(PATIENCE, connection.accept_uni());
                match listened.await.expect("something happens") {
                    Ok(mut stream) => {
                        let first = stream.read_chunk(64, true).await;
                        let (received, ended) =
                            (matches!(first, Ok(Some(_))), connection.close_reason());
                        (received, ended, Some((connection, send, receive)))
                    }
                    Err(error) => (false, Some(error), None),
                }
            } else {
                (false, connection.close_reason(), None)
            }
        });
        let certificate = certificates.lock().expect("no panic").first().cloned();
        Seen { certificate, received, ended, _kept: kept }
    }

    /// Connects, closes, and connects again. Returns whether it may then send early data.
    pub fn may_speak_early(&self, name: &str, shown: &Shown) -> bool {
        let (config, _) = config_with(Some(shown), true);
        let address = SocketAddr::new(Family::V4.server(), PORT);
        let connect = || {
            let _entered = self.runtime.enter();
            self.endpoint.connect_with(config.clone(), address, name).expect("a handshake begins")
        };
        let first = connect();
        self.runtime.block_on(async {
            let connection = timeout(PATIENCE, first).await.expect("in time").expect("a peer");
            // What is sent to a peer arrives after the session ticket.
            let mut control = connection.accept_uni().await.expect("a stream");
            assert!(matches!(control.read_chunk(64, true).await, Ok(Some(_))));
            connection.close(quinn::VarInt::from_u32(0x100), b"");
        });
        connect().into_0rtt().is_ok()
    }

    /// Connects as a peer, and requests a flow. Returns the response and the stream.
    pub fn ask(&self, name: &str, shown: &Shown, request: &Request) -> (Response, Flow) {
        let (answer, flow) = self.ask_with(name, shown, &request.fields(Form::Classic));
        let answer = Response::decode(&answer, Payload::Raw).expect("a response");
        (answer.expect("a final one"), flow)
    }

    /// The same with any fields. Returns those of the response.
    pub fn ask_with(&self, name: &str, shown: &Shown, asked: &[Field]) -> (Vec<Field>, Flow) {
        self.ask_with_data(name, shown, asked, b"")
    }

    /// The same, with early data of the flow.
    pub fn ask_with_data(
        &self,
        name: &str,
        shown: &Shown,
        asked: &[Field],
        first: &[u8],
    ) -> (Vec<Field>, Flow) {
        let (connecting, _) = self.knock(name, Some(shown));
        self.runtime.block_on(async {
            let connection = connecting.await.expect("a peer gets in");
            Flow::ask(connection, asked, first).await
        })
    }
}

/// A peer's flow.
#[derive(Debug)]
pub struct Flow {
    pub connection: quinn::Connection,
    /// It ends with the connection.
    _control: quinn::SendStream,
    pub send: quinn::SendStream,
    receive: quinn::RecvStream,
    reader: FrameReader,
    /// Received bytes that were not parsed yet.
    pending: Bytes,
}

impl Flow {
    /// Requests the first flow of a connection, and sends some of it at once. Also returns the
    /// response.
    pub async fn ask(
        connection: quinn::Connection,
        asked: &[Field],
        first: &[u8],
    ) -> (Vec<Field>, Self) {
        let mut control = connection.open_uni().await.expect("a stream");
        let mut settings = Vec::new();
        varint::write(StreamKind::CONTROL, &mut settings);
        settings.extend(Settings::own().encode());
        control.write_all(&settings).await.expect("settings");
        let (mut send, receive) = connection.open_bi().await.expect("a stream");
        let mut request = Vec::new();
        frame::write(frame::HEADERS, &field::encode(asked), &mut request);
        if !first.is_empty() {
            frame::write(frame::DATA, first, &mut request);
        }
        send.write_all(&request).await.expect("a request");
        let reader = FrameReader::default();
        let pending = Bytes::new();
        let mut flow = Self { connection, _control: control, send, receive, reader, pending };
        let answer = match flow.frame().await.expect("an answer") {
            Some(Frame::Headers(section)) => field::decode(&section).expect("fields"),
            other => panic!("{other:?}"),
        };
        (answer, flow)
    }

    /// The next frame; none: the stream has ended.
    pub async fn frame(&mut self) -> Result<Option<Frame>, quinn::ReadError> {
        loop {
            if let Some(frame) = self.reader.read(&mut self.pending).expect("a frame") {
                return Ok(Some(frame));
            }
            match timeout(PATIENCE, self.receive.read_chunk(4096, true)).await.expect("in time")? {
                Some(chunk) => self.pending = chunk.bytes,
                None => return Ok(None),
            }
        }
    }
}

/// A certificate chain and its key.
#[derive(Debug)]
pub struct Shown {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Shown {
    /// The certificate that an authority has issued to `name`.
    pub fn of(authority: &Authority, name: &str) -> Self {
        Self::read(&authority.path().join(name))
    }

    fn read(stem: &Path) -> Self {
        let chain = CertificateDer::pem_file_iter(stem.with_extension("pem")).expect("a file");
        Self {
            chain: chain.collect::<Result<_, _>>().expect("certificates"),
            key: PrivateKeyDer::from_pem_file(stem.with_extension("key")).expect("a key"),
        }
    }
}

/// The certificates of servers.
pub type Certificates = Arc<Mutex<Vec<Vec<u8>>>>;

/// QUIC settings of a client that accepts every server, and the certificates of these servers.
pub fn config(shown: Option<&Shown>) -> (quinn::ClientConfig, Certificates) {
    config_with(shown, false)
}

fn config_with(shown: Option<&Shown>, early: bool) -> (quinn::ClientConfig, Certificates) {
    let (mut config, seen) = tls(shown, b"h3");
    config.enable_early_data = early;
    (quic(config), seen)
}

fn quic(config: rustls::ClientConfig) -> quinn::ClientConfig {
    let config = QuicClientConfig::try_from(config).expect("a suite for QUIC");
    quinn::ClientConfig::new(Arc::new(config))
}

/// Connects without a certificate, refuses the server's, and closes with `reason`.
pub fn leave_at_once(namespace: &Namespace, family: Family, reason: &'static str) {
    let any = SocketAddr::new(family.client(), 0);
    let socket = namespace.run(|| UdpSocket::bind(any)).expect("entering").expect("a socket");
    let (config, _) = tls_that(Some(reason), None, b"h3");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("an event loop").block_on(async {
        let own = quinn::EndpointConfig::default();
        let endpoint = quinn::Endpoint::new(own, None, socket, Arc::new(quinn::TokioRuntime));
        let endpoint = endpoint.expect("an endpoint");
        let address = SocketAddr::new(family.server(), PORT);
        let connecting = endpoint.connect_with(quic(config), address, "far");
        connecting.expect("a handshake begins").await.expect_err("it likes nobody");
        endpoint.wait_idle().await;
    });
}

/// TLS settings of a client that accepts every server, and the certificates of these servers.
pub fn tls(shown: Option<&Shown>, protocol: &[u8]) -> (rustls::ClientConfig, Certificates) {
    tls_that(None, shown, protocol)
}

/// The same, for a client that refuses every server if it has a reason.
fn tls_that(
    refuses: Option<&'static str>,
    shown: Option<&Shown>,
    protocol: &[u8],
) -> (rustls::ClientConfig, Certificates) {
    let provider = Arc::new(ring::default_provider());
    let whims = Arc::new(Whims { provider: provider.clone(), seen: Arc::default(), refuses });
    let seen = whims.seen.clone();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .dangerous()
        .with_custom_certificate_verifier(whims);
    let mut config = match shown {
        Some(Shown { chain, key }) => config
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .expect("a certificate and its key"),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    (config, seen)
}

/// Accepts every server or none, and stores the certificates that it gets.
#[derive(Debug)]
struct Whims {
    provider: Arc<CryptoProvider>,
    seen: Certificates,
    refuses: Option<&'static str>,
}

impl ServerCertVerifier for Whims {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.seen.lock().expect("no panic").push(end_entity.to_vec());
        match self.refuses {
            Some(reason) => Err(rustls::Error::General(reason.to_owned())),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
