//! A handshake without secrets for quinn-proto, for simulations: each run is the same, and none spends time on
//! encryption. Sizes are those of AES-GCM, and the handshake has as many flights as TLS 1.3. The packet number
//! authenticates a packet, because a late one could be taken for another.
//!
//! Only with the feature `plaintext`, which no daemon enables.

use bytes::{Buf, BytesMut};
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};
use std::any::Any;
use std::sync::Arc;

/// Stands for the certificates: the size of a server's first flight beyond its parameters.
const CERTIFICATE: usize = 1500;
const TAG: usize = 16;

/// Both sides' configuration.
#[derive(Debug, Clone, Copy)]
pub struct Plaintext;

struct Key;

impl PacketKey for Key {
    fn encrypt(&self, packet: u64, buf: &mut [u8], _header_len: usize) {
        if let Some(tag) = buf.last_chunk_mut() {
            *tag = u128::from(packet).to_be_bytes();
        }
    }

    fn decrypt(&self, packet: u64, _: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let len = payload.len().checked_sub(TAG).ok_or(CryptoError)?;
        let tag = payload.split_off(len);
        if tag.as_ref() == u128::from(packet).to_be_bytes() { Ok(()) } else { Err(CryptoError) }
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

impl HeaderKey for Key {
    fn decrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn encrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        TAG
    }
}

fn keys() -> Keys {
    Keys { header: KeyPair { local: Box::new(Key), remote: Box::new(Key) }, packet: packet_keys() }
}

fn packet_keys() -> KeyPair<Box<dyn PacketKey>> {
    KeyPair { local: Box::new(Key), remote: Box::new(Key) }
}

impl ClientConfig for Plaintext {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        _server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(Box::new(Handshake::new(Side::Client, params)))
    }
}

impl ServerConfig for Plaintext {
    fn initial_keys(&self, _: u32, _: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(keys())
    }

    fn retry_tag(&self, _: u32, _: &ConnectionId, _: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        Box::new(Handshake::new(Side::Server, params))
    }
}

/// A client sends its parameters. A server sends a hello, its parameters and a certificate. The client then sends
/// its last message.
struct Handshake {
    side: Side,
    own: Vec<u8>,
    peer: Option<TransportParameters>,
    received: Vec<u8>,
    /// Messages read and written so far.
    read: u8,
    written: u8,
}

impl Handshake {
    fn new(side: Side, params: &TransportParameters) -> Self {
        let mut own = Vec::new();
        params.write(&mut own);
        Self { side, own, peer: None, received: Vec::new(), read: 0, written: 0 }
    }

    /// The next complete message, which has its length in two bytes in front.
    fn message(&mut self) -> Option<Vec<u8>> {
        let mut received = self.received.as_slice();
        let len = usize::from(received.try_get_u16().ok()?);
        let message = received.get(..len)?.to_vec();
        self.received.drain(..2 + len);
        Some(message)
    }
}

fn write(buf: &mut Vec<u8>, message: &[u8]) {
    buf.extend((message.len() as u16).to_be_bytes());
    buf.extend(message);
}

impl Session for Handshake {
    fn initial_keys(&self, _dst_cid: &ConnectionId, _side: Side) -> Keys {
        keys()
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        match self.side {
            Side::Client => self.written < 2,
            Side::Server => self.read < 2,
        }
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.received.extend(buf);
        while let Some(message) = self.message() {
            self.read += 1;
            let with_parameters = match self.side {
                Side::Client => 2,
                Side::Server => 1,
            };
            if self.read == with_parameters {
                let parameters = TransportParameters::read(self.side, &mut message.as_slice());
                self.peer = Some(parameters.map_err(TransportError::from)?);
            }
        }
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.peer)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        match (self.side, self.written, self.read) {
            (Side::Client, 0, _) => {
                write(buf, &self.own);
                self.written = 1;
                None
            }
            // The server's hello gives the handshake keys, once; the other messages give all later keys.
            (Side::Client, 1, 1..) if !self.own.is_empty() => {
                self.own.clear();
                Some(keys())
            }
            (Side::Client, 1, 3..) => {
                write(buf, b"finished");
                self.written = 2;
                Some(keys())
            }
            (Side::Server, 0, 1..) => {
                write(buf, b"hello");
                self.written = 1;
                Some(keys())
            }
            (Side::Server, 1, _) => {
                write(buf, &self.own);
                write(buf, &[0; CERTIFICATE]);
                self.written = 2;
                Some(keys())
            }
            _ => None,
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(packet_keys())
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        output.fill(0);
        Ok(())
    }
}
