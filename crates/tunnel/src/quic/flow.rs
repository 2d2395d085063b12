//! One flow of a session: what waits to be sent, and what has arrived.
//!
//! Streams are read as they arrive and put in order here, because quinn closes the whole connection over a stream with
//! too many gaps. When the most waits behind a gap, only what fills the gap is read, and QUIC's
//! credit runs out. A peer that uses our credit is read even while nobody takes its data: that
//! credit bounds it, and a peer that exceeds it is refused.

use crate::cause::Cause;
use crate::credit::{CreditBook, StreamCredit};
use crate::http3::{Code, Frame, FrameReader};
use crate::payload::{Payload, PayloadError, PayloadReader};
use crate::reassembly::Reassembly;
use bytes::{Buf, Bytes};
use midhop_pep::scheduler::{FlowSchedule, SendPool};
use midhop_units::Instant;
use quinn_proto::{Chunk, Connection, ReadError, ReadableError, StreamId, VarInt, WriteError};

/// The priority of what is not urgent; the control stream's and everybody's at first is 0.
const PRIORITY_BULK: i32 = -1;
/// Pieces of a flow that are taken at once.
const PIECES: usize = 64;

/// Why a flow broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlowFault {
    /// The peer ended it abruptly.
    #[error("the peer reset the stream: {0}")]
    Reset(Code),
    /// The peer broke a rule, which the code names.
    #[error("the peer broke a rule: {0}")]
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

/// What was taken of a flow.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Its next bytes.
    pub pieces: Vec<Bytes>,
    /// Whether those were the last.
    pub ended: bool,
}

/// A flow's stream.
#[derive(Debug)]
pub(super) struct FlowStream {
    pub schedule: FlowSchedule,
    pub payload: Payload,
    /// Frames that have not been taken yet: a head, and its payload.
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

    /// Says how the flow's bytes are carried, both ways; before any of them.
    pub fn carry_in(&mut self, payload: Payload) {
        self.payload = payload;
        self.incoming.flow = PayloadReader::new(payload);
        self.incoming.payload = payload;
    }

    /// Unit: bytes. What waits to be sent.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }
}

/// What a flow writes into: its stream, and the window that it shares with its connection's other streams.
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
    /// Writes some of the chunks, and no more than the peer lets be sent.
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

    /// As much again as the pool has. Nobody else writes meanwhile.
    fn beside<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> T {
        self.connection.set_send_window(self.pool.saturating_mul(2));
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
        self.beside(|half| half.write_chunks(true))
    }

    fn has_credit(&mut self) -> bool {
        !matches!(self.beside(|half| half.write_chunks(false)), Ok(None))
    }

    fn set_urgent(&mut self, urgent: bool) {
        // A stream that is closed already sends nothing.
        let priority = if urgent { 0 } else { PRIORITY_BULK };
        let _ = self.connection.send_stream(self.id).set_priority(priority);
    }
}

impl FlowStream {
    /// The half by which it is written.
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

/// What the other end sends.
#[derive(Debug)]
pub(super) struct Incoming {
    id: StreamId,
    payload: Payload,
    frames: FrameReader,
    /// What has come and is not in order.
    arrived: Reassembly,
    /// Unit: bytes. What of it is counted among that of all streams.
    counted: u64,
    /// Unit: bytes. What of it may wait behind a gap where no credit is heeded.
    held_max: u64,
    /// What has come in order and has not been taken apart.
    piece: Bytes,
    /// What of the flow has come and has not been taken.
    data: Bytes,
    flow: PayloadReader,
    /// Whether all of it has come.
    complete: bool,
    /// Whether nothing of it will be taken any more.
    pub ended: bool,
    pub credit: StreamCredit,
    /// What is still to come before its bytes do.
    pub awaits: Option<Awaited>,
    /// Since when something has come that nobody has taken; none: nothing has.
    pub untaken: Option<Instant>,
}

/// What a stream begins with.
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

    /// Unit: bytes. What has come and has not been taken.
    pub fn held(&self) -> u64 {
        self.arrived.held().get() + (self.piece.len() + self.data.len()) as u64
    }

    /// Unit: bytes. What has come in order and was not given out; what waits behind it counts itself.
    pub fn unread(&self) -> usize {
        self.piece.len() + self.data.len()
    }

    /// The next header fields, packed; none: they have not come.
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

    /// Takes what there is of the flow. What was taken before is passed on: the peer is granted its credit.
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

    /// The stream's end, once the flow's has come: until then the other end may still break off. Whether it has come.
    pub fn end(
        &mut self,
        connection: &mut Connection,
        book: &mut CreditBook<StreamId>,
    ) -> Result<bool, FlowFault> {
        loop {
            // Capsules that are not the flow's are skipped, and nothing else may come.
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

    /// Whatever has been given out has been passed on: the peer may send as much again.
    pub fn grant(&mut self, book: &mut CreditBook<StreamId>) {
        let position = self.arrived.position().saturating_sub(self.piece.len() as u64);
        if !self.credit.pass_on_quietly(position) {
            self.credit.pass_on(book, position);
        }
    }

    /// Nobody takes what has come: it is drawn out of QUIC, as far as it may, so that QUIC's window is free for others.
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

    /// The next bytes of the flow; none of them: it has ended; none at all: they have not come.
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
                // Nothing but data belongs to an open flow: not even more header fields.
                Some(Some(_)) => return Err(FlowFault::Wrong(Code::FRAME_UNEXPECTED)),
                // A stream that ends is no flow that does.
                Some(None) if !self.flow.close()? => return Err(FlowFault::Cut),
                Some(None) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next frame; none of them: the stream has ended; none at all: it has not come.
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
                // A stream cut off is no end.
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

    /// Whether as much waits as may, of this stream or of all: only what the first gap waits for is to be taken.
    fn is_full(&self, book: &CreditBook<StreamId>) -> bool {
        let cost = self.arrived.cost().get();
        !self.credit.is_enforced() && cost >= self.held_max || book.is_crowded()
    }

    /// Counts what waits now among that of all streams.
    fn recount(&mut self, book: &mut CreditBook<StreamId>) {
        let now = self.arrived.cost().get();
        book.recount(std::mem::replace(&mut self.counted, now), now);
    }

    /// The stream is gone, with what waited of it and what was promised to it.
    pub fn leave(&mut self, book: &mut CreditBook<StreamId>) {
        book.recount(std::mem::take(&mut self.counted), 0);
        self.credit.leave(book);
    }

    /// Where the first bytes stand that QUIC has. Nothing is read, so QUIC's credit is not renewed.
    fn first(&self, connection: &mut Connection) -> Option<u64> {
        let mut receiving = connection.recv_stream(self.id);
        let mut chunks = receiving.read(false).ok()?;
        let first = chunks.next(0).ok().flatten().map(|chunk| chunk.offset);
        let _ = chunks.finalize();
        first
    }

    /// Reads the next chunk that has come, with its place; none: nothing has. Where none will come any more it is empty, and
    /// all is complete.
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
