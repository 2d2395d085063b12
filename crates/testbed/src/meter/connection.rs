//! One TCP connection of the meter: payload out, payload in, frames between, every byte hashed.
//!
//! Payload lives in one buffer per thread, never in one per connection. A sender generates its
//! bytes again when the kernel took only some of them. A receiver needs them no more once it has
//! hashed them. So thousands of connections cost next to no memory.

use super::clock;
use super::error::FlowError;
use super::message::{Amount, End};
use super::payload::Payload;
use super::wire::{self, ControlFrame, Decoder, WireItem};
use midhop_units::Instant;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::TcpStream;
use xxhash_rust::xxh3::Xxh3;

/// Payload moved by one system call at most. Unit: bytes.
const CHUNK: usize = 256 << 10;
/// Shortest data frame of a transfer that is limited in time, which bounds how late it can stop.
const FRAME_MIN: u64 = 16 << 10;
/// Most bytes that are buffered from the peer while sending.
const PENDING_MAX: usize = 16 << 10;
/// Full reads or writes after which other connections of the thread get their turn.
const TURN: u32 = 4;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Bytes counted and hashed in one direction, all requests of the connection together.
pub(super) struct Tally {
    /// How many.
    pub(super) bytes: u64,
    hash: Box<Xxh3>,
}

impl Tally {
    fn new() -> Self {
        Self { bytes: 0, hash: Box::new(Xxh3::new()) }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
    }

    /// XXH3-128 of the bytes so far, hexadecimal.
    pub(super) fn hash(&self) -> String {
        format!("{:032x}", self.hash.digest128())
    }
}

/// A connection, from either end.
pub(super) struct Connection {
    stream: Arc<TcpStream>,
    decoder: Decoder,
    /// Bytes that were read but not yet decoded. Those before `looked` are used up.
    pending: Vec<u8>,
    looked: usize,
    /// Whether the peer will send no more.
    ended: bool,
    /// Frames that were decoded before anybody asked for them.
    inbox: VecDeque<ControlFrame>,
    /// Whether the peer may refuse while this end sends: true where the peer is a server.
    refusable: bool,
    /// Control bytes that go out ahead of the next payload.
    ahead: Vec<u8>,
    /// Payload that left here.
    pub(super) sent: Tally,
    /// Payload that arrived here.
    pub(super) received: Tally,
}

impl Connection {
    /// The client's end of a connection over `stream`.
    pub(super) fn of_client(stream: TcpStream) -> Self {
        Self::new(stream, wire::CONTROL_MAX_CLIENT, true)
    }

    /// The server's end of a connection over `stream`.
    pub(super) fn of_server(stream: TcpStream) -> Self {
        Self::new(stream, wire::CONTROL_MAX_SERVER, false)
    }

    fn new(stream: TcpStream, control_max: u64, refusable: bool) -> Self {
        Self {
            stream: Arc::new(stream),
            decoder: Decoder::new(control_max),
            inbox: VecDeque::new(),
            refusable,
            pending: Vec::new(),
            looked: 0,
            ended: false,
            ahead: Vec::new(),
            sent: Tally::new(),
            received: Tally::new(),
        }
    }

    /// The socket, which others may sample while the connection works.
    pub(super) fn socket(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    /// The ports of this end and of the other.
    pub(super) fn ports(&self) -> (u16, u16) {
        let port = |address: io::Result<SocketAddr>| address.map_or(0, |address| address.port());
        (port(self.stream.local_addr()), port(self.stream.peer_addr()))
    }

    /// Puts bytes in front of what is sent next.
    pub(super) fn queue_raw(&mut self, bytes: &[u8]) {
        self.ahead.extend_from_slice(bytes);
    }

    /// Puts a frame in front of what is sent next.
    pub(super) fn queue(&mut self, frame: &ControlFrame) {
        frame.encode(&mut self.ahead);
    }

    /// Sends everything queued.
    pub(super) async fn flush(&mut self) -> Result<(), FlowError> {
        let mut written = 0;
        while written < self.ahead.len() {
            self.stream.writable().await.map_err(FlowError::Send)?;
            match self.stream.try_write(&self.ahead[written..]) {
                Ok(taken) => written += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(FlowError::Send(error)),
            }
        }
        self.ahead.clear();
        Ok(())
    }

    /// Sends `amount` of `payload`, which continues where the last request of this connection
    /// ended, and then the [`End`]. `sent` is called for every write.
    pub(super) async fn send(
        &mut self,
        payload: Payload,
        amount: Amount,
        mut sent: impl FnMut(u64),
    ) -> Result<(), FlowError> {
        match amount {
            Amount::Bytes(bytes) => self.send_frame(payload, bytes, &mut sent).await?,
            Amount::TimeNs(ns) => {
                let begin = clock::now();
                let mut length = FRAME_MIN;
                let mut frame_begin = begin;
                while frame_begin.saturating_since(begin).as_ns() < ns {
                    self.send_frame(payload, length, &mut sent).await?;
                    let now = clock::now();
                    // Long frames where they are sent at once, short ones where they would delay
                    // the end.
                    let quick = now.saturating_since(frame_begin).as_ns() < 1_000_000;
                    length = if quick { length * 2 } else { length / 2 };
                    length = length.clamp(FRAME_MIN, CHUNK as u64);
                    frame_begin = now;
                }
            }
        }
        self.queue(&ControlFrame::End(End { bytes: self.sent.bytes, hash: self.sent.hash() }));
        self.flush().await
    }

    async fn send_frame(
        &mut self,
        payload: Payload,
        length: u64,
        sent: &mut impl FnMut(u64),
    ) -> Result<(), FlowError> {
        wire::encode_data_header(length, &mut self.ahead);
        let mut left = length;
        let mut chunk = CHUNK;
        let mut turn = 0;
        while left > 0 || !self.ahead.is_empty() {
            let interest = if self.listening() {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::WRITABLE
            };
            let ready = self.stream.ready(interest).await.map_err(FlowError::Send)?;
            if ready.is_readable() && self.listening() {
                self.listen()?;
                self.heed_refusal()?;
            }
            if !ready.is_writable() {
                continue;
            }
            match self.write_some(payload, left, chunk) {
                Ok((taken, offered)) => {
                    left -= taken;
                    sent(taken);
                    // Bytes that the kernel does not take are generated again: offer only what it
                    // is likely to take.
                    if offered == chunk as u64 {
                        chunk = if taken == offered {
                            chunk * 2
                        } else {
                            taken as usize + FRAME_MIN as usize
                        };
                        chunk = chunk.clamp(FRAME_MIN as usize, CHUNK);
                    }
                    turn += 1;
                    if turn % TURN == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // A peer that refuses sends a refusal before it closes.
                    if self.listening() && self.listen().is_ok() {
                        self.heed_refusal()?;
                    }
                    return Err(FlowError::Send(error));
                }
            }
        }
        Ok(())
    }

    /// One write: first what is queued, then payload. Gives the payload taken and the payload
    /// offered.
    fn write_some(&mut self, payload: Payload, left: u64, chunk: usize) -> io::Result<(u64, u64)> {
        BUFFER.with_borrow_mut(|buffer| {
            let ahead = self.ahead.len().min(buffer.len());
            buffer[..ahead].copy_from_slice(&self.ahead[..ahead]);
            let room = chunk.min(buffer.len() - ahead);
            let offered = usize::try_from(left).unwrap_or(usize::MAX).min(room);
            payload.fill(self.sent.bytes, &mut buffer[ahead..ahead + offered]);
            let taken = self.stream.try_write(&buffer[..ahead + offered])?;
            let taken_ahead = taken.min(ahead);
            self.ahead.drain(..taken_ahead);
            self.sent.add(&buffer[ahead..ahead + (taken - taken_ahead)]);
            Ok(((taken - taken_ahead) as u64, offered as u64))
        })
    }

    fn listening(&self) -> bool {
        !self.ended && self.pending.len() - self.looked < PENDING_MAX
    }

    /// Buffers what the peer sends while this end sends, without decoding it.
    fn listen(&mut self) -> Result<(), FlowError> {
        let mut bytes = [0; 2048];
        match self.stream.try_read(&mut bytes) {
            Ok(0) => self.ended = true,
            Ok(length) => self.pending.extend_from_slice(&bytes[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(FlowError::Receive(error)),
        }
        Ok(())
    }

    /// Looks for a refusal in what the peer sent while this end was sending.
    fn heed_refusal(&mut self) -> Result<(), FlowError> {
        while self.refusable {
            match self.pending_frame()? {
                None => break,
                Some(ControlFrame::Refuse(refusal)) => return Err(FlowError::Refused(refusal)),
                Some(frame) => self.inbox.push_back(frame),
            }
        }
        Ok(())
    }

    /// Whether the peer sends exactly `expected` next. If so, consumes it.
    pub(super) async fn receives(&mut self, expected: &[u8]) -> Result<bool, FlowError> {
        loop {
            let there = &self.pending[self.looked..];
            let compared = there.len().min(expected.len());
            if there[..compared] != expected[..compared]
                || (self.ended && compared < expected.len())
            {
                return Ok(false);
            }
            if compared == expected.len() {
                self.looked += compared;
                return Ok(true);
            }
            self.stream.readable().await.map_err(FlowError::Receive)?;
            self.listen()?;
        }
    }

    /// The next frame, which must not be payload; none at the peer's end.
    pub(super) async fn frame(&mut self) -> Result<Option<ControlFrame>, FlowError> {
        loop {
            if let Some(frame) = self.inbox.pop_front() {
                return Ok(Some(frame));
            }
            if let Some(frame) = self.pending_frame()? {
                return Ok(Some(frame));
            }
            if self.ended {
                return if self.decoder.between_frames() { Ok(None) } else { Err(FlowError::Cut) };
            }
            self.stream.readable().await.map_err(FlowError::Receive)?;
            self.listen()?;
        }
    }

    /// The next frame among the bytes that have been read.
    fn pending_frame(&mut self) -> Result<Option<ControlFrame>, FlowError> {
        let mut input = &self.pending[self.looked..];
        let item = self.decoder.next(&mut input)?;
        self.looked = self.pending.len() - input.len();
        match item {
            Some(WireItem::Frame(frame)) => Ok(Some(frame)),
            Some(WireItem::Payload(_)) => Err(FlowError::Unexpected { what: "payload" }),
            None => {
                self.pending.clear();
                self.looked = 0;
                Ok(None)
            }
        }
    }

    /// Receives payload until the sender's [`End`], and compares what was sent with what arrived.
    ///
    /// `arrived` is called for every read: when, and how much payload there was in it. Other frames in
    /// front of or between payload go to `control`.
    pub(super) async fn receive(
        &mut self,
        mut arrived: impl FnMut(Instant, u64),
        mut control: impl FnMut(ControlFrame) -> Result<(), FlowError>,
    ) -> Result<End, FlowError> {
        if self.looked < self.pending.len() {
            let pending = std::mem::take(&mut self.pending);
            let looked = std::mem::take(&mut self.looked);
            let end = self.take(&pending[looked..], &mut arrived, &mut control)?;
            if let Some(end) = end {
                return self.check(end);
            }
        }
        let mut turn = 0;
        loop {
            self.stream.readable().await.map_err(FlowError::Receive)?;
            let end = BUFFER.with_borrow_mut(|buffer| match self.stream.try_read(buffer) {
                Ok(0) => Err(FlowError::Truncated { received: self.received.bytes }),
                Ok(length) => self.take(&buffer[..length], &mut arrived, &mut control),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(FlowError::Receive(error)),
            })?;
            if let Some(end) = end {
                return self.check(end);
            }
            turn += 1;
            if turn % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Decodes bytes as they arrive. Bytes behind an [`End`] are kept for the next request.
    fn take(
        &mut self,
        mut input: &[u8],
        arrived: &mut impl FnMut(Instant, u64),
        control: &mut impl FnMut(ControlFrame) -> Result<(), FlowError>,
    ) -> Result<Option<End>, FlowError> {
        let now = clock::now();
        let mut payload = 0;
        let mut end = None;
        while end.is_none() {
            match self.decoder.next(&mut input)? {
                None => break,
                Some(WireItem::Payload(bytes)) => {
                    self.received.add(bytes);
                    payload += bytes.len() as u64;
                }
                Some(WireItem::Frame(ControlFrame::End(message))) => end = Some(message),
                Some(WireItem::Frame(frame)) => control(frame)?,
            }
        }
        if payload > 0 {
            arrived(now, payload);
        }
        self.pending.extend_from_slice(input);
        Ok(end)
    }

    fn check(&self, end: End) -> Result<End, FlowError> {
        let received = self.received.bytes;
        if end.bytes != received {
            return Err(FlowError::Count { sent: end.bytes, received });
        }
        let hash = self.received.hash();
        if end.hash != hash {
            return Err(FlowError::Hash { sent: end.hash, received: hash });
        }
        Ok(end)
    }
}

/// Makes the close of `stream` a reset.
pub(super) fn abort(stream: &TcpStream) {
    // Where the option cannot be set, the connection closes slowly; nothing else differs.
    let _ = socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
}
