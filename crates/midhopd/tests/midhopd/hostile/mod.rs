//! A hostile peer: it has a certificate, speaks QUIC, and never sends some of the bytes that it
//! claims to have sent.
//!
//! Its QUIC is quinn's. Bytes are removed from a packet's frames just before the packet is
//! encrypted, and padding takes their place. The packet is acknowledged, so the bytes are not sent
//! again.
use crate::ends::PORT;
use crate::stage::{Family, PATIENCE};
use crate::visitor::{Shown, tls};
use bytes::BytesMut;
use futures_util::future::poll_immediate;
use midhop_testbed::namespace::Namespace;
use midhop_tunnel::connect::{Form, Request};
use midhop_tunnel::http3::{Settings, StreamKind, frame};
use midhop_tunnel::{credit, varint};
use quinn::crypto::rustls::QuicClientConfig;
use quinn_proto::ConnectError;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};
use std::any::Any;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// The bytes that are never sent: stream and offset.
type Withheld = Arc<Mutex<Vec<(u64, u64)>>>;

/// A hostile peer.
pub struct Hostile {
    pub runtime: Runtime,
    pub connection: quinn::Connection,
    withheld: Withheld,
    /// It ends with the connection.
    _control: quinn::SendStream,
    _credit: Option<quinn::SendStream>,
    _endpoint: quinn::Endpoint,
}

/// One of its flows.
pub struct Flow {
    pub send: quinn::SendStream,
    pub receive: quinn::RecvStream,
    /// Unit: bytes. Sent on the stream so far.
    pub sent: u64,
}

impl Hostile {
    /// Connects to the far end with the certificate in `shown`. If `heeds`, it announces that it
    /// heeds credit.
    pub fn enter(namespace: &Namespace, family: Family, shown: &Shown, heeds: bool) -> Self {
        Self::enter_with(namespace, family, shown, heeds, quinn::TransportConfig::default())
    }

    /// The same, with QUIC set up as a test wants it.
    pub fn enter_with(
        namespace: &Namespace,
        family: Family,
        shown: &Shown,
        heeds: bool,
        transport: quinn::TransportConfig,
    ) -> Self {
        let any = match family {
            Family::V4 => IpAddr::from([0; 4]),
            Family::V6 => IpAddr::from([0_u16; 8]),
        };
        let bind = || UdpSocket::bind((any, 0));
        let socket = namespace.run(bind).expect("entering").expect("a socket");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("an event loop");
        let withheld = Withheld::default();
        let inner = QuicClientConfig::try_from(tls(Some(shown), b"h3").0).expect("a suite");
        let crypto = Crypto { inner: Arc::new(inner), withheld: withheld.clone() };
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        let address = SocketAddr::new(family.server(), PORT);
        let (endpoint, connection, control, credit) = runtime.block_on(async {
            let own = quinn::EndpointConfig::default();
            let endpoint = quinn::Endpoint::new(own, None, socket, Arc::new(quinn::TokioRuntime));
            let endpoint = endpoint.expect("an endpoint");
            let connecting = endpoint.connect_with(config, address, "far").expect("a handshake");
            let connection = timeout(PATIENCE, connecting).await.expect("in time").expect("a peer");
            let mut control = connection.open_uni().await.expect("a stream");
            let stream_credit = if heeds { 1 << 20 } else { 0 };
            let mut settings = Vec::new();
            varint::write(StreamKind::CONTROL, &mut settings);
            settings.extend(Settings { stream_credit, ..Settings::own() }.encode());
            control.write_all(&settings).await.expect("settings");
            let credit = if heeds {
                let mut stream = connection.open_uni().await.expect("a stream");
                let mut kind = Vec::new();
                varint::write(credit::STREAM, &mut kind);
                stream.write_all(&kind).await.expect("a type");
                Some(stream)
            } else {
                None
            };
            (endpoint, connection, control, credit)
        });
        Self {
            runtime,
            connection,
            withheld,
            _control: control,
            _credit: credit,
            _endpoint: endpoint,
        }
    }

    /// Requests a flow and sends some of it at once. It does not wait.
    pub fn begin(&self, request: &Request, first: &[u8]) -> Flow {
        self.runtime.block_on(async {
            let (mut send, receive) = self.connection.open_bi().await.expect("a stream");
            let mut frames = request.encode(Form::Classic);
            frame::write(frame::DATA, first, &mut frames);
            send.write_all(&frames).await.expect("a request");
            Flow { send, receive, sent: frames.len() as u64 }
        })
    }

    /// Requests a flow, announces payload without an end, and waits for the first bytes of the
    /// response.
    pub fn ask(&self, request: &Request) -> Flow {
        self.runtime.block_on(async {
            let (mut send, mut receive) = self.connection.open_bi().await.expect("a stream");
            let mut frames = request.encode(Form::Classic);
            frame::write_head(frame::DATA, 1 << 40, &mut frames);
            send.write_all(&frames).await.expect("a request");
            let answer = timeout(PATIENCE, receive.read_chunk(64, true)).await.expect("in time");
            assert!(matches!(answer, Ok(Some(_))), "{answer:?}");
            Flow { send, receive, sent: frames.len() as u64 }
        })
    }

    /// Never sends the next byte of a flow.
    pub fn withhold_next(&self, flow: &Flow) {
        let stream = quinn::VarInt::from(flow.send.id()).into_inner();
        self.withheld.lock().expect("no panic").push((stream, flow.sent));
    }

    /// Whether all bytes that were to be withheld have been withheld.
    pub fn has_withheld(&self) -> bool {
        self.withheld.lock().expect("no panic").is_empty()
    }

    /// Sends as much as is accepted now. Returns how much that was; none: the stream is broken.
    pub fn send_some(&self, flow: &mut Flow, bytes: &[u8]) -> Option<usize> {
        let written = self.runtime.block_on(async { poll_immediate(flow.send.write(bytes)).await });
        match written {
            None => Some(0),
            Some(Ok(count)) => {
                flow.sent += count as u64;
                Some(count)
            }
            Some(Err(_)) => None,
        }
    }

    /// Waits for the connection's end.
    pub fn ended(&self) -> quinn::ConnectionError {
        self.runtime
            .block_on(async { timeout(PATIENCE, self.connection.closed()).await })
            .expect("in time")
    }
}

/// Creates TLS sessions that withhold bytes.
struct Crypto {
    inner: Arc<QuicClientConfig>,
    withheld: Withheld,
}

impl ClientConfig for Crypto {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let inner = self.inner.clone().start_session(version, server_name, params)?;
        Ok(Box::new(Withholding { inner, withheld: self.withheld.clone() }))
    }
}

struct Withholding {
    inner: Box<dyn Session>,
    withheld: Withheld,
}

impl Withholding {
    fn wrap(&self, key: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        Box::new(Key { inner: key, withheld: self.withheld.clone() })
    }
}

impl Session for Withholding {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let Keys { header, packet } = self.inner.write_handshake(buf)?;
        let packet = KeyPair { local: self.wrap(packet.local), remote: packet.remote };
        Some(Keys { header, packet })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let next = self.inner.next_1rtt_keys()?;
        Some(KeyPair { local: self.wrap(next.local), remote: next.remote })
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

struct Key {
    inner: Box<dyn PacketKey>,
    withheld: Withheld,
}

impl PacketKey for Key {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let end = buf.len() - self.inner.tag_len();
        // Only packets with short headers are changed: streams are only sent in these.
        if buf[0] & 0x80 == 0 {
            let mut withheld = self.withheld.lock().expect("no panic");
            withheld.retain(|(stream, offset)| {
                let payload = &mut buf[header_len..end];
                match frame_of(payload, *stream, *offset) {
                    Some(place) => {
                        // PADDING.
                        payload[place].fill(0);
                        false
                    }
                    None => true,
                }
            });
        }
        self.inner.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.inner.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}

/// The position of the frame in a packet's payload that carries a byte of a stream (RFC 9000 §19).
fn frame_of(payload: &[u8], stream: u64, offset: u64) -> Option<std::ops::Range<usize>> {
    let mut at = 0;
    while at < payload.len() {
        let begin = at;
        let mut number = || -> Option<u64> {
            let (value, length) = varint::read(&payload[at..])?;
            at += length;
            Some(value)
        };
        let kind = number()?;
        let numbers = match kind {
            0x00 | 0x01 | 0x1e | 0x1f => 0,
            0x02 | 0x03 => {
                let (_largest, _delay, ranges) = (number()?, number()?, number()?);
                1 + 2 * ranges + if kind == 0x03 { 3 } else { 0 }
            }
            0x04 => 3,
            0x05 | 0x11 | 0x15 => 2,
            0x08..=0x0f => {
                let own = number()?;
                let start = if kind & 0x04 != 0 { number()? } else { 0 };
                let length = if kind & 0x02 != 0 { Some(number()?) } else { None };
                let length = length.map_or(payload.len() - at, |length| length as usize);
                at += length;
                if own == stream && (start..start + length as u64).contains(&offset) {
                    return Some(begin..at);
                }
                0
            }
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => 1,
            0x18 => {
                number()?;
                number()?;
                at += 1 + usize::from(payload[at]) + 16;
                0
            }
            0x1a | 0x1b => {
                at += 8;
                0
            }
            // A connection's close is the last frame of a packet.
            0x1c | 0x1d => return None,
            0xaf => 4,
            other => panic!("a frame that nobody expected: {other:#x}"),
        };
        for _ in 0..numbers {
            let (_, length) = varint::read(&payload[at..])?;
            at += length;
        }
    }
    None
}
