//! One flow of a session: what waits to be sent, and what has arrived.
//!
//! Streams are read as they arrive and put in order here, because quinn closes the whole connection over a stream
//! with too many gaps. When a stream holds as much as may wait behind a gap, only bytes that fill the gap are read,
//! and QUIC's credit runs out. A peer that uses our credit is read even while nobody takes its data: that credit
//! bounds it, and a peer that exceeds it is refused.

use crate::cause::Cause;
use crate::credit::{CreditBook, StreamCredit};
use crate::http3::{Code, Frame, FrameReader};
use crate::payload::{Payload, PayloadError, PayloadReader};
use crate::reassembly::Reassembly;
use bytes::{Buf, Bytes};
use midhop_pep::scheduler::{FlowSchedule, SendPool};
use midhop_units::Instant;
use quinn_proto::{Chunk, Connection, ReadError, ReadableError, StreamId, VarInt, WriteError};

/// The priority of streams that are not urgent; the control stream and each new stream have 0.
const PRIORITY_BULK: i32 = -1;
/// The most pieces of a flow in one call.
const PIECES: usize = 64;

/// Why a flow was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlowFault {
    /// The peer reset it.
    #[error("the peer reset the stream: {0}")]
    Reset(Code),
    /// The peer violated the protocol; the code gives the reason.
    #[error("the peer violated the protocol: {0}")]
    Wrong(Code),
    /// The peer did not connect.
    #[error("the peer did not connect: {}", .0.error())]
    Denied(Cause),
    /// Its stream ended, but not the flow.
    #[error("the stream was cut off before the flow's end")]
    Cut,
}

impl From<PayloadError> for FlowFault {
    fn from(_: PayloadError) -> Self {
        Self::Wrong(Code::MESSAGE_ERROR)
    }
}

/// Bytes taken of a flow.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Its next bytes.
    pub pieces: Vec<Bytes>,
    /// Whether they are the last ones.
    pub ended: bool,
}

/// A flow's stream.
#[derive(Debug)]
pub(super) struct FlowStream {
    pub schedule: FlowSchedule,
    pub payload: Payload,
    /// Bytes that wait to be sent: the head of a frame, and its payload.
    pub waiting: [Bytes; 2],
    /// Unit: bytes. What was sent.
    sent: u64,
    /// Whether this end has ended its half.
    pub ended: bool,
    pub incoming: Incoming,
}

impl FlowStream {
    pub fn new(now: Instant, incoming: Incoming) -> Self {
        Self {
            schedule: FlowSchedule::new(now),
            payload: Payload::default(),
            waiting: [Bytes::new(), Bytes::new()],
            sent: 0,
            ended: false,
            incoming,
        }
    }

    /// Sets how the flow's bytes are carried in both directions. Call it before the first of them.
    pub fn carry_in(&mut self, payload: Payload) {
        self.payload = payload;
        self.incoming.flow = PayloadReader::new(payload);
        self.incoming.payload = payload;
    }

    /// Unit: bytes. What was written so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Unit: bytes. How much waits to be sent.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }
}

/// The sending half of a flow: its stream, and the send window that it shares with the connection's other streams.
#[derive(Debug)]
pub(super) struct SendHalf<'a> {
    pub id: StreamId,
    pub connection: &'a mut Connection,
    pub credit: &'a mut CreditBook<StreamId>,
    /// Unit: bytes. QUIC's send window.
    pub pool: u64,
    pub chunks: &'a mut [Bytes; 2],
    pub sent: &'a mut u64,
}

impl SendHalf<'_> {
    /// Writes some of the chunks, up to the peer's credit. Without `chunks` it only checks for room.
    fn write_chunks(&mut self, chunks: bool) -> Result<Option<usize>, FlowFault> {
        let number = VarInt::from(self.id).into_inner();
        let Some(room) = self.credit.room(number, *self.sent, || self.id) else { return Ok(None) };
        let mut room = if chunks { usize::try_from(room).unwrap_or(usize::MAX) } else { 0 };
        let mut parts = [const { Bytes::new() }; 2];
        let mut count = 0;
        for chunk in self.chunks.iter().filter(|chunk| chunks && !chunk.is_empty()) {
            parts[count] = chunk.slice(..chunk.len().min(room));
            room -= parts[count].len();
            count += 1;
        }
        let written = match self.connection.send_stream(self.id).write_chunks(&mut parts[..count]) {
            Ok(written) => written.bytes,
            Err(WriteError::Blocked) => return Ok(None),
            Err(WriteError::Stopped(code)) => {
                return Err(FlowFault::Reset(Code(code.into_inner())));
            }
            Err(WriteError::ClosedStream) => return Err(FlowFault::Wrong(Code::INTERNAL_ERROR)),
        };
        *self.sent += written as u64;
        let mut left = written;
        for chunk in &mut *self.chunks {
            let part = left.min(chunk.len());
            chunk.advance(part);
            left -= part;
        }
        Ok(Some(written))
    }

    /// Lets `write` use a pool of another size. Nobody else writes meanwhile.
    fn with_pool<T>(&mut self, pool: u64, write: impl FnOnce(&mut Self) -> T) -> T {
        self.connection.set_send_window(pool);
        let written = write(self);
        self.connection.set_send_window(self.pool);
        written
    }
}

impl SendPool for SendHalf<'_> {
    type Error = FlowFault;

    fn write(&mut self) -> Result<Option<usize>, FlowFault> {
        self.write_chunks(true)
    }

    fn write_beside(&mut self) -> Result<Option<usize>, FlowFault> {
        // A second pool of the same size.
        self.with_pool(self.pool.saturating_mul(2), |half| half.write_chunks(true))
    }

    fn has_credit(&mut self) -> bool {
        // Urgent flows may have filled a second pool as well: that is no lack of credit.
        !matches!(self.with_pool(u64::MAX, |half| half.write_chunks(false)), Ok(None))
    }

    fn set_urgent(&mut self, urgent: bool) {
        // A closed stream sends nothing, so an error does not matter.
        let priority = if urgent { 0 } else { PRIORITY_BULK };
        let _ = self.connection.send_stream(self.id).set_priority(priority);
    }
}

impl FlowStream {
    /// The sending half.
    pub fn half<'a>(
        &'a mut self,
        id: StreamId,
        connection: &'a mut Connection,
        credit: &'a mut CreditBook<StreamId>,
        pool: u64,
    ) -> (&'a mut FlowSchedule, SendHalf<'a>) {
        let Self { schedule, waiting, sent, .. } = self;
        (schedule, SendHalf { id, connection, credit, pool, chunks: waiting, sent })
    }
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Incoming {
    id: StreamId,
    payload: Payload,
    frames: FrameReader,
    /// Bytes received out of order.
    arrived: Reassembly,
    /// Unit: bytes. How much of it is counted in the total of all streams.
    counted: u64,
    /// Unit: bytes. How much of it may wait behind a gap if the peer does not heed credit.
    held_max: u64,
    /// Bytes received in order, not split into frames yet.
    piece: Bytes,
    /// Bytes of the flow that were received and not taken.
    data: Bytes,
    flow: PayloadReader,
    /// Whether all of it was received.
    complete: bool,
    /// Whether no more of it will be read.
    pub ended: bool,
    pub credit: StreamCredit,
    /// The message that precedes the flow's bytes and has not arrived yet.
    pub awaits: Option<Awaited>,
    /// Since when received bytes have been waiting for a reader; none: nothing waits.
    pub untaken: Option<Instant>,
}

/// The first message of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    Request,
    Answer,
}

impl Incoming {
    pub fn new(id: StreamId, awaits: Awaited, held_max: u64, book: &CreditBook<StreamId>) -> Self {
        Self {
            id,
            payload: Payload::default(),
            frames: FrameReader::default(),
            arrived: Reassembly::new(midhop_units::Bytes::MAX),
            counted: 0,
            held_max,
            piece: Bytes::new(),
            data: Bytes::new(),
            flow: PayloadReader::default(),
            complete: false,
            ended: false,
            credit: StreamCredit::new(book, VarInt::from(id).into_inner()),
            awaits: Some(awaits),
            untaken: None,
        }
    }

    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Unit: bytes. How much was received and not taken.
    pub fn held(&self) -> u64 {
        self.arrived.held().get() + (self.piece.len() + self.data.len()) as u64
    }

    /// Unit: bytes. How much was received in order and not delivered. What waits behind it is counted separately.
    pub fn unread(&self) -> usize {
        self.piece.len() + self.data.len()
    }

    /// The next header fields, packed; none: they have not arrived.
    pub fn headers(
        &mut self,
        connection: &mut Connection,
        book: &mut CreditBook<StreamId>,
    ) -> Result<Option<Vec<u8>>, FlowFault> {
        match self.frame(connection, book)? {
            Some(Some(Frame::Headers(section))) => Ok(Some(section)),
            Some(Some(_)) => Err(FlowFault::Wrong(Code::FRAME_UNEXPECTED)),
            Some(None) => Err(FlowFault::Wrong(Code::REQUEST_INCOMPLETE)),
            None => Ok(None),
        }
    }

    /// Takes the available bytes of the flow. What was taken before has been passed on, so grants the peer that
    /// credit.
    pub fn take(
        &mut self,
        connection: &mut Connection,
        book: &mut CreditBook<StreamId>,
    ) -> Result<Taken, FlowFault> {
        self.untaken = None;
        let mut taken = Taken::default();
        if self.data.is_empty() {
            self.grant(book);
        }
        while taken.pieces.len() < PIECES {
            match self.bytes(connection, book)? {
                Some(Some(bytes)) => taken.pieces.push(bytes),
                Some(None) => {
                    taken.ended = true;
                    break;
                }
                None => break,
            }
        }
        Ok(taken)
    }

    /// Reads on for the stream's end, after the flow's end: until then the peer may still reset it. Returns whether
    /// it has arrived.
    pub fn end(
        &mut self,
        connection: &mut Connection,
        book: &mut CreditBook<StreamId>,
    ) -> Result<bool, FlowFault> {
        loop {
            // Skips capsules of other types; no others may follow.
            self.flow.read(&mut self.data)?;
            self.grant(book);
            match self.frame(connection, book)? {
                Some(Some(Frame::Data(data))) => self.data = data,
                Some(Some(_)) => return Err(FlowFault::Wrong(Code::FRAME_UNEXPECTED)),
                Some(None) => return Ok(self.flow.close().map(|_| true)?),
                None => return Ok(false),
            }
        }
    }

    /// The bytes that were delivered have been passed on: grants the peer as much again.
    pub fn grant(&mut self, book: &mut CreditBook<StreamId>) {
        let position = self.arrived.position().saturating_sub(self.piece.len() as u64);
        if !self.credit.pass_on_quietly(position) {
            self.credit.pass_on(book, position);
        }
    }

    /// Nobody takes what was received: reads it out of QUIC within the bounds, so that QUIC's window is free for
    /// others.
    pub fn draw(
        &mut self,
        connection: &mut Connection,
        book: &mut CreditBook<StreamId>,
    ) -> Result<(), FlowFault> {
        self.credit.stand_still(book);
        while !self.complete && self.may_draw(book) {
            let Some((offset, bytes)) = self.read(connection)? else { break };
            let count = bytes.len() as u64;
            self.arrived.insert(offset, bytes);
            self.recount(book);
            self.credit.draw(book, count);
        }
        Ok(())
    }

    fn may_draw(&self, book: &CreditBook<StreamId>) -> bool {
        self.credit.may_draw(book, self.arrived.cost().get()) && !book.is_crowded()
    }

    /// The next bytes of the flow; inner none: the flow has ended; outer none: no bytes have arrived yet.
    fn bytes(
        &mut self,
        connection: &mut Connection,
        book: &mut CreditBook<StreamId>,
    ) -> Result<Option<Option<Bytes>>, FlowFault> {
        loop {
            if let Some(bytes) = self.flow.read(&mut self.data)? {
                return Ok(Some(Some(bytes)));
            }
            if self.flow.has_ended() {
                return Ok(Some(None));
            }
            match self.frame(connection, book)? {
                Some(Some(Frame::Data(data))) => self.data = data,
                // Only data may follow on an open flow, not even more header fields.
                Some(Some(_)) => return Err(FlowFault::Wrong(Code::FRAME_UNEXPECTED)),
                // The stream ended before the flow.
                Some(None) if !self.flow.close()? => return Err(FlowFault::Cut),
                Some(None) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next frame; inner none: the stream has ended; outer none: no frame has arrived yet.
    pub fn frame(
        &mut self,
        connection: &mut Connection,
        book: &mut CreditBook<StreamId>,
    ) -> Result<Option<Option<Frame>>, FlowFault> {
        loop {
            if let Some(frame) = self.frames.read(&mut self.piece).map_err(FlowFault::Wrong)? {
                return Ok(Some(Some(frame)));
            }
            if let Some(piece) = self.arrived.pop() {
                self.credit.settle(book, self.arrived.held().get());
                self.recount(book);
                self.piece = piece;
                continue;
            }
            if self.complete && !self.ended {
                // A stream that ends within a frame was truncated.
                if !self.frames.is_between_frames() {
                    return Err(FlowFault::Wrong(Code::FRAME_ERROR));
                }
                self.ended = true;
            }
            if self.ended {
                return Ok(Some(None));
            }
            if self.is_full(book)
                && self.first(connection).is_some_and(|at| at > self.arrived.position())
            {
                return Ok(None);
            }
            let Some((offset, bytes)) = self.read(connection)? else { return Ok(None) };
            match self.arrived.pass(offset, bytes) {
                Some(piece) => self.piece = piece,
                None => self.recount(book),
            }
        }
    }

    /// Whether as much waits as may, of this stream or of all: then only bytes that fill the first gap may be read.
    fn is_full(&self, book: &CreditBook<StreamId>) -> bool {
        let cost = self.arrived.cost().get();
        !self.credit.is_enforced() && cost >= self.held_max || book.is_crowded()
    }

    /// Updates this stream's part in the total of all streams.
    fn recount(&mut self, book: &mut CreditBook<StreamId>) {
        let now = self.arrived.cost().get();
        book.recount(std::mem::replace(&mut self.counted, now), now);
    }

    /// The stream is gone: releases what waited of it and what was promised to it.
    pub fn leave(&mut self, book: &mut CreditBook<StreamId>) {
        book.recount(std::mem::take(&mut self.counted), 0);
        self.credit.leave(book);
    }

    /// The offset of the first bytes that QUIC has. Reads nothing, so QUIC's credit is not renewed.
    fn first(&self, connection: &mut Connection) -> Option<u64> {
        let mut receiving = connection.recv_stream(self.id);
        let mut chunks = receiving.read(false).ok()?;
        let first = chunks.next(0).ok().flatten().map(|chunk| chunk.offset);
        let _ = chunks.finalize();
        first
    }

    /// Reads the next chunk that has arrived, with its offset; none: none has arrived. At the end of the stream the
    /// chunk is empty, and the stream is complete.
    fn read(&mut self, connection: &mut Connection) -> Result<Option<(u64, Bytes)>, FlowFault> {
        let mut receiving = connection.recv_stream(self.id);
        let read = match receiving.read(false) {
            Ok(mut chunks) => {
                let next = chunks.next(usize::MAX);
                let _ = chunks.finalize();
                next
            }
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Err(FlowFault::Wrong(Code::INTERNAL_ERROR));
            }
        };
        let chunk = match read {
            Ok(chunk) => chunk,
            Err(ReadError::Blocked) => return Ok(None),
            Err(ReadError::Reset(code)) => {
                self.ended = true;
                return Err(FlowFault::Reset(Code(code.into_inner())));
            }
        };
        let Some(Chunk { offset, bytes, .. }) = chunk else {
            self.complete = true;
            return Ok(Some((0, Bytes::new())));
        };
        if !self.credit.may_come(offset.saturating_add(bytes.len() as u64)) {
            return Err(FlowFault::Wrong(Code::GENERAL_PROTOCOL_ERROR));
        }
        Ok(Some((offset, bytes)))
    }
}
