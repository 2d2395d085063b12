//! One endpoint with its one connection, its departures and what it serves.

use super::Datagram;
use super::bare::Bare;
use bytes::{Bytes, BytesMut};
use midhop_congestion::{Algorithm, Settings};
use midhop_tunnel::control::Pace;
use midhop_tunnel::fec::{self, Shim};
use midhop_tunnel::reassembly::Reassembly;
use midhop_tunnel::{LegSettings, transport};
use midhop_units::Instant;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, ConnectionStats, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, ServerConfig, StreamEvent, StreamId,
};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// What is handed to a stream at once.
static ZEROS: [u8; 65_536] = [0; 65_536];

const BATCH: usize = 10;

pub struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    connected: bool,
    pub pace: Pace,
    pub shim: Shim<()>,
    /// Whether losses are to be repaired below QUIC.
    fec: bool,
    buffer: Vec<u8>,
    peer: SocketAddr,
    /// What is still to be sent on each stream.
    serving: BTreeMap<StreamId, u64>,
    /// Streams on which something came.
    readable: Vec<StreamId>,
    receiving: BTreeMap<StreamId, Reassembly>,
    /// The most that ever waited behind a gap.
    pub held_max: u64,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl End {
    pub fn server(leg: &LegSettings, algorithm: Algorithm, settings: Settings) -> Self {
        let steering = leg.steering(algorithm, settings).expect("a steering");
        let pace = steering.pace();
        let mut config = ServerConfig::with_crypto(Arc::new(Bare));
        config.transport_config(Arc::new(transport(leg, steering)));
        Self::new(leg, Some(config), pace, address(1))
    }

    pub fn client(
        leg: &LegSettings,
        algorithm: Algorithm,
        settings: Settings,
        now: std::time::Instant,
    ) -> Self {
        let steering = leg.steering(algorithm, settings).expect("a steering");
        let pace = steering.pace();
        let mut config = ClientConfig::new(Arc::new(Bare));
        config.transport_config(Arc::new(transport(leg, steering)));
        let mut end = Self::new(leg, None, pace, address(2));
        let made = end.endpoint.connect(now, config, address(2), "peer").expect("a connection");
        end.connection = Some(made);
        end
    }

    fn new(leg: &LegSettings, config: Option<ServerConfig>, pace: Pace, peer: SocketAddr) -> Self {
        let mut own = EndpointConfig::default();
        own.grease_quic_bit(false);
        let endpoint = Endpoint::new(Arc::new(own), config.map(Arc::new), true, Some([7; 32]));
        Self {
            endpoint,
            connection: None,
            connected: false,
            shim: Shim::new(leg.fec(), pace.clone(), Instant::START),
            fec: leg.repaired,
            pace,
            buffer: Vec::new(),
            peer,
            serving: BTreeMap::new(),
            readable: Vec::new(),
            receiving: BTreeMap::new(),
            held_max: 0,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn stats(&self) -> ConnectionStats {
        self.connection.as_ref().expect("a connection").1.stats()
    }

    /// Opens a stream and writes the size that is wished for.
    pub fn ask(&mut self, size: u64) -> u64 {
        let (_, connection) = self.connection.as_mut().expect("a connection");
        let stream = connection.streams().open(Dir::Bi).expect("a stream");
        let mut sending = connection.send_stream(stream);
        assert_eq!(sending.write(&size.to_be_bytes()), Ok(8));
        sending.finish().expect("an open stream");
        stream.index()
    }

    pub fn receive(&mut self, now: Instant, at: std::time::Instant, datagram: Datagram) {
        self.shim.handle_input(now, datagram, (), false);
        while let Some((datagram, ())) = self.shim.poll_delivery() {
            self.deliver(at, &datagram);
        }
    }

    fn deliver(&mut self, at: std::time::Instant, datagram: &Datagram) {
        let data = BytesMut::from(datagram.as_ref());
        let (peer, buffer) = (self.peer, &mut self.buffer);
        buffer.clear();
        match self.endpoint.handle(at, peer, None, None, data, buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.connection.as_mut().expect("a connection").1.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, at, buffer, None);
                self.connection = Some(accepted.unwrap_or_else(|_| panic!("a peer is refused")));
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// Does what is due, and hands over the datagrams that leave, with their size on the link.
    pub fn drive(
        &mut self,
        now: Instant,
        at: std::time::Instant,
        mut leave: impl FnMut(midhop_units::Bytes, Datagram),
    ) {
        let overhead = self.pace.overhead();
        loop {
            self.serve(at);
            let made = self.transmit(now, at);
            let mut left = false;
            while let Some((datagram, ())) = self.shim.poll_output(now) {
                leave(midhop_units::Bytes::new(datagram.len() as u64) + overhead, datagram);
                left = true;
            }
            if !made && !left {
                break;
            }
        }
    }

    /// Answers requests and goes on writing.
    fn serve(&mut self, at: std::time::Instant) {
        let Some((handle, connection)) = &mut self.connection else { return };
        if connection.poll_timeout().is_some_and(|due| due <= at) {
            connection.handle_timeout(at);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => {
                    self.connected = true;
                    if self.fec {
                        self.shim.agree(fec::WINDOW_MAX);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.readable.push(id),
                Event::Stream(StreamEvent::Opened { .. }) => {
                    while let Some(id) = connection.streams().accept(Dir::Bi) {
                        self.readable.push(id);
                    }
                }
                Event::ConnectionLost { reason } => panic!("lost the connection: {reason}"),
                _ => {}
            }
        }
        if connection.side() == quinn_proto::Side::Server {
            for id in self.readable.drain(..) {
                let mut receiving = connection.recv_stream(id);
                let Ok(mut chunks) = receiving.read(true) else { continue };
                if let Ok(Some(chunk)) = chunks.next(8) {
                    let size = chunk.bytes.as_ref().try_into().expect("eight bytes at once");
                    self.serving.insert(id, u64::from_be_bytes(size));
                }
                let _ = chunks.finalize();
            }
        }
        self.serving.retain(|id, left| {
            let mut sending = connection.send_stream(*id);
            while *left > 0 {
                let size = (*left).min(ZEROS.len() as u64) as usize;
                match sending.write_chunks(&mut [Bytes::from_static(&ZEROS[..size])]) {
                    Ok(written) => *left -= written.bytes as u64,
                    Err(_) => return true,
                }
            }
            sending.finish().expect("an open stream");
            false
        });
    }

    fn transmit(&mut self, now: Instant, at: std::time::Instant) -> bool {
        let Some((_, connection)) = &mut self.connection else { return false };
        let mut made = false;
        // As the daemon's lanes have it.
        let at_once = self.pace.rate().map_or(BATCH as u64, |rate| {
            rate.bytes_in(midhop_tunnel::departures::QUEUE_TIME).get() / 1500
        });
        let at_once = (at_once as usize).clamp(1, BATCH);
        while !self.shim.is_full() {
            self.buffer.clear();
            let Some(transmit) = connection.poll_transmit(at, at_once, &mut self.buffer) else {
                break;
            };
            made = true;
            let segment = transmit.segment_size.unwrap_or(transmit.size);
            for datagram in self.buffer[..transmit.size].chunks(segment.max(1)) {
                self.shim.push(now, Bytes::copy_from_slice(datagram), ());
            }
        }
        made
    }

    /// What the application reads: stream, bytes, and whether it was the end.
    pub fn read(&mut self) -> Vec<(u64, u64, bool)> {
        let Some((_, connection)) = &mut self.connection else { return Vec::new() };
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => {
                    self.connected = true;
                    if self.fec {
                        self.shim.agree(fec::WINDOW_MAX);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.readable.push(id),
                Event::ConnectionLost { reason } => panic!("lost the connection: {reason}"),
                _ => {}
            }
        }
        let mut read = Vec::new();
        for id in self.readable.drain(..) {
            let mut receiving = connection.recv_stream(id);
            let Ok(mut chunks) = receiving.read(false) else { continue };
            let stream = self
                .receiving
                .entry(id)
                .or_insert_with(|| Reassembly::new(midhop_units::Bytes::new(1 << 30)));
            let mut finished = false;
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => stream.insert(chunk.offset, chunk.bytes),
                    Ok(None) => {
                        finished = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            let _ = chunks.finalize();
            let bytes = std::iter::from_fn(|| stream.pop()).map(|bytes| bytes.len() as u64).sum();
            self.held_max = self.held_max.max(stream.held().get());
            read.push((id.index(), bytes, finished));
        }
        read
    }

    pub fn wake(&mut self, base: std::time::Instant) -> Option<Instant> {
        let timer = self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        let timer = timer.map(|at| Instant::START + at.saturating_duration_since(base).into());
        timer.into_iter().chain(self.shim.poll_timeout()).min()
    }
}
