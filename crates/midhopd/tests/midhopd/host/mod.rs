//! A proxy over HTTP/3 that responds when a test says so, and as the test says.
use crate::ends::Authority;
use crate::stage::PATIENCE;
use bytes::Bytes;
use midhop_testbed::namespace::Namespace;
use midhop_tunnel::http3::{ALPN, Field, Frame, FrameReader, Settings, StreamKind, field, frame};
use midhop_tunnel::varint;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// A proxy that accepts one tunnel.
pub struct Host {
    runtime: Runtime,
    endpoint: quinn::Endpoint,
}

/// The connection of a near end.
pub struct Guest<'a> {
    runtime: &'a Runtime,
    pub connection: quinn::Connection,
    /// It ends with the connection.
    _control: quinn::SendStream,
}

/// A flow that the near end has requested.
pub struct Asked<'a> {
    runtime: &'a Runtime,
    pub fields: Vec<Field>,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    reader: FrameReader,
    pending: Bytes,
}

impl Host {
    /// Creates a proxy at `address` with the certificate that an authority has issued to `name`.
    pub fn new(
        namespace: &Namespace,
        address: &str,
        authority: &Authority,
        name: &str,
        settings: Settings,
    ) -> (Self, Vec<u8>) {
        let address: SocketAddr = address.parse().expect("an address");
        let bind = || UdpSocket::bind(address);
        let socket = namespace.run(bind).expect("entering").expect("a socket");
        let config = shows(authority, name, ALPN);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("an event loop");
        let endpoint = runtime.block_on(async {
            let own = quinn::EndpointConfig::default();
            quinn::Endpoint::new(own, Some(config), socket, Arc::new(quinn::TokioRuntime))
        });
        let mut opening = Vec::new();
        varint::write(StreamKind::CONTROL, &mut opening);
        opening.extend(settings.encode());
        (Self { runtime, endpoint: endpoint.expect("an endpoint") }, opening)
    }

    /// Waits for the tunnel, and sends `opening` on its control stream.
    pub fn welcome(&self, opening: &[u8]) -> Guest<'_> {
        let come = async {
            let incoming = self.endpoint.accept().await.expect("somebody");
            let connection = incoming.await.expect("a peer");
            let mut control = connection.open_uni().await.expect("a stream");
            control.write_all(opening).await.expect("settings");
            Guest { runtime: &self.runtime, connection, _control: control }
        };
        self.runtime.block_on(in_time(come))
    }
}

/// The configuration of a QUIC server with the certificate that an authority has issued to `name`.
pub fn shows(authority: &Authority, name: &str, protocol: &[u8]) -> quinn::ServerConfig {
    let stem = authority.path().join(name);
    let chain = CertificateDer::pem_file_iter(stem.with_extension("pem")).expect("a file");
    let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
    let key = PrivateKeyDer::from_pem_file(stem.with_extension("key")).expect("a key");
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_no_client_auth();
    let mut tls = tls.with_single_cert(chain, key).expect("a certificate and its key");
    tls.alpn_protocols = vec![protocol.to_vec()];
    let tls = QuicServerConfig::try_from(tls).expect("a suite for QUIC");
    quinn::ServerConfig::with_crypto(Arc::new(tls))
}

impl Guest<'_> {
    /// Waits for the next request.
    pub fn asked(&self) -> Asked<'_> {
        let come = async {
            let (send, receive) = self.connection.accept_bi().await.expect("a stream");
            let (reader, pending) = (FrameReader::default(), Bytes::new());
            let runtime = self.runtime;
            let mut asked = Asked { runtime, fields: Vec::new(), send, receive, reader, pending };
            match asked.frame().await {
                Some(Frame::Headers(section)) => {
                    asked.fields = field::decode(&section).expect("fields");
                }
                other => panic!("{other:?}"),
            }
            asked
        };
        self.runtime.block_on(in_time(come))
    }
}

impl Asked<'_> {
    /// The next frame; none: the stream has ended.
    async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.reader.read(&mut self.pending).expect("a frame") {
                return Some(frame);
            }
            self.pending = self.receive.read_chunk(4096, true).await.expect("no reset")?.bytes;
        }
    }

    /// Waits for this many bytes of the flow, or for its end, whichever is first.
    pub fn receive_data(&mut self, count: usize) -> Vec<u8> {
        let runtime = self.runtime;
        let come = async {
            let mut received = Vec::new();
            while received.len() < count {
                match self.frame().await {
                    Some(Frame::Data(bytes)) => received.extend_from_slice(&bytes),
                    Some(other) => panic!("{other:?}"),
                    None => break,
                }
            }
            received
        };
        runtime.block_on(in_time(come))
    }

    /// Waits until the near end resets the request.
    pub fn receive_reset(&mut self) {
        let come = self.runtime.block_on(in_time(self.receive.received_reset()));
        assert!(matches!(come, Ok(Some(_))), "{come:?}");
    }

    /// Sends a response.
    pub fn answer(&mut self, pairs: &[(&'static str, &'static str)]) {
        let fields: Vec<_> = pairs.iter().map(|(name, value)| Field::new(*name, *value)).collect();
        self.send_frame(frame::HEADERS, &field::encode(&fields));
    }

    /// Sends bytes of the flow.
    pub fn send_data(&mut self, bytes: &[u8]) {
        self.send_frame(frame::DATA, bytes);
    }

    fn send_frame(&mut self, kind: u64, payload: &[u8]) {
        let mut out = Vec::new();
        frame::write(kind, payload, &mut out);
        self.runtime.block_on(self.send.write_all(&out)).expect("somebody listens");
    }

    /// Ends the response.
    pub fn end(&mut self) {
        self.send.finish().expect("no reset");
    }

    /// Denies the request: sends the response, ends it, and stops the rest of the request.
    pub fn deny(&mut self, pairs: &[(&'static str, &'static str)]) {
        self.answer(pairs);
        self.end();
        let _ = self.receive.stop(quinn::VarInt::from_u32(0x100));
    }
}

async fn in_time<T>(come: impl Future<Output = T>) -> T {
    timeout(PATIENCE, come).await.expect("in time")
}
