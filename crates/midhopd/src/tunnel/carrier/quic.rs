//! A flow's stream over QUIC: frames of HTTP/3 on the outside, header fields and payload on the inside.
//!
//! Invariant: a half that is dropped before its stream has ended in order is reset with the code of a
//! broken TCP connection, whatever the reason.

use crate::tunnel::credit::{Credit, Earning, Spending};
use crate::tunnel::reorder::{ArrivedData, ReorderRoom};
use crate::tunnel::scheduling::{Pool, ScheduledFlow};
use crate::tunnel::stream::StreamError;
use bytes::{Buf, Bytes};
use midhop_pep::config::ClassPlan;
use midhop_tunnel::http3::{Code, Field, Frame, FrameReader, field, frame};
use quinn::{Connection, ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};
use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{self, Sleep};

/// The priority of what is not urgent; the control stream's and everybody's at first is 0.
const PRIORITY_BULK: i32 = -1;
/// How often a stream that nobody reads is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A stream that nobody reads for so long is drawn out of QUIC from then on. Of 1 Gbit/s it has no more than 415
/// gaps by then, whatever is lost; and one that waits for less costs nothing.
const DRAW: Duration = Duration::from_millis(10);

/// QUIC's number of a code.
pub fn varint(code: Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}

/// The half that this end says.
pub struct QuicSender {
    half: Half,
    /// Its part in what may be written.
    share: ScheduledFlow,
    /// Frames that have not been taken yet: a head, and its payload.
    waiting: [Bytes; 2],
    /// What becomes of the stream, once somebody asks.
    stopped: Option<Stopped>,
    ended: bool,
}

type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send>>;

impl fmt::Debug for QuicSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicSender").field("half", &self.half).finish_non_exhaustive()
    }
}

impl QuicSender {
    /// A stream of `connection`, whose send window is `pool`.
    pub fn new(
        connection: &Connection,
        stream: SendStream,
        pool: midhop_units::Bytes,
        share: ScheduledFlow,
        credit: &Arc<Credit>,
    ) -> Self {
        let spending = Spending::new(credit, VarInt::from(stream.id()).into_inner());
        let half = Half { connection: connection.clone(), stream, pool: pool.get(), spending };
        Self { half, share, waiting: [Bytes::new(), Bytes::new()], stopped: None, ended: false }
    }

    /// Makes it that of a flow of some class.
    pub fn join(&mut self, class: &ClassPlan) {
        self.share.join(class);
    }

    /// Makes a frame of header fields; nothing may wait.
    pub fn put_fields(&mut self, fields: &[Field]) {
        let mut out = Vec::new();
        frame::write(frame::HEADERS, &field::encode(fields), &mut out);
        self.put_frame(out, Bytes::new());
    }

    /// Makes a frame of some payload: `head`, and what follows it. Nothing may wait.
    pub fn put(&mut self, head: &[u8], bytes: Bytes) {
        let mut out = Vec::with_capacity(9 + head.len());
        frame::write_head(frame::DATA, head.len() + bytes.len(), &mut out);
        out.extend_from_slice(head);
        self.put_frame(out, bytes);
    }

    fn put_frame(&mut self, head: Vec<u8>, payload: Bytes) {
        self.share.begin(&mut self.half);
        self.waiting = [Bytes::from(head), payload];
    }

    /// There is nothing more to say for now: others may.
    pub fn rest(&mut self) {
        self.share.leave();
    }

    /// Unit: bytes. What waits to be taken.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }

    /// Hands on what waits. Ready when nothing does.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        while self.waiting() > 0 {
            let begun = usize::from(self.waiting[0].is_empty());
            let chunks = &mut self.waiting[begun..];
            ready!(self.share.poll_write(cx, &mut self.half, chunks))?;
            if self.waiting() == 0 {
                self.share.finish();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends this half in order. Nothing may wait.
    pub fn end(&mut self) {
        self.rest();
        if !self.ended {
            self.ended = true;
            // Where it was stopped before, that is heard of by `poll_stopped`.
            let _ = self.half.stream.finish();
        }
    }

    /// Ends this half abruptly.
    pub fn reset(&mut self, code: Code) {
        self.rest();
        self.ended = true;
        let _ = self.half.stream.reset(varint(code));
    }

    /// Waits until the peer wants no more of it, or has all of it. Not to be asked again after that.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let stream = &self.half.stream;
        let stopped = self.stopped.get_or_insert_with(|| Box::pin(stream.stopped()));
        Poll::Ready(match ready!(stopped.as_mut().poll(cx)) {
            Ok(None) => Ok(()),
            Ok(Some(code)) => Err(StreamError::Reset(Code(code.into_inner()))),
            Err(StoppedError::ConnectionLost(error)) => Err(error.into()),
            Err(StoppedError::ZeroRttRejected) => Err(StreamError::Wrong(Code::INTERNAL_ERROR)),
        })
    }
}

impl Drop for QuicSender {
    fn drop(&mut self) {
        if !self.ended {
            self.reset(Code::CONNECT_ERROR);
        }
    }
}

/// What is written to, and the window that it shares with its connection's other streams.
#[derive(Debug)]
struct Half {
    connection: Connection,
    stream: SendStream,
    /// Unit: bytes. QUIC's send window.
    pool: u64,
    /// What the peer lets be said beside QUIC's credit.
    spending: Spending,
}

impl Half {
    /// Writes no more than the peer lets be said.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, WriteError>> {
        let Some(room) = self.spending.room(cx) else { return Poll::Pending };
        let mut room = usize::try_from(room).unwrap_or(usize::MAX);
        let mut parts = [const { Bytes::new() }; 2];
        for (part, chunk) in parts.iter_mut().zip(&*chunks) {
            *part = chunk.slice(..chunk.len().min(room));
            room -= part.len();
        }
        let parts = parts.get_mut(..chunks.len()).unwrap_or_default();
        let written = ready!(pin!(self.stream.write_chunks(parts)).poll(cx))?.bytes;
        self.spending.spend(written);
        let mut left = written;
        for chunk in chunks {
            let part = left.min(chunk.len());
            chunk.advance(part);
            left -= part;
        }
        Poll::Ready(Ok(written))
    }
}

impl Pool for Half {
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, StreamError>> {
        Poll::Ready(ready!(self.write(cx, chunks)).map_err(|error| match error {
            WriteError::Stopped(code) => StreamError::Reset(Code(code.into_inner())),
            WriteError::ConnectionLost(error) => error.into(),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => {
                StreamError::Wrong(Code::INTERNAL_ERROR)
            }
        }))
    }

    /// As much again. Nobody else writes meanwhile.
    fn poll_write_beside(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, StreamError>> {
        self.connection.set_send_window(self.pool.saturating_mul(2));
        let written = self.poll_write(cx, chunks);
        self.connection.set_send_window(self.pool);
        written
    }

    fn set_urgent(&mut self, urgent: bool) {
        // A stream that is closed already sends nothing.
        let _ = self.stream.set_priority(if urgent { 0 } else { PRIORITY_BULK });
    }
}

/// The half that the other end says.
///
/// It is read as it comes and put in order here: quinn ends the whole connection over a stream with too
/// many gaps. Where as much waits behind a gap as may, nothing is read but what the gap waits for, and QUIC's
/// credit is used up. With a peer that heeds a credit of ours it is read even while nobody takes what comes: that
/// credit bounds it, and whoever goes beyond it is refused.
#[derive(Debug)]
pub struct QuicReceiver {
    stream: RecvStream,
    reader: FrameReader,
    /// What has come and is not in order.
    arrived: ArrivedData,
    /// Unit: bytes. What of it may wait behind a gap where no credit is heeded.
    held_max: u64,
    /// What has come in order and has not been taken apart.
    piece: Bytes,
    /// Whether all of it has come.
    complete: bool,
    /// What the peer may say.
    earning: Earning,
    /// Until the next look at what comes though nobody takes it.
    pause: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl QuicReceiver {
    /// Of what comes `held_max` may wait behind a gap.
    pub fn new(
        stream: RecvStream,
        held_max: midhop_units::Bytes,
        credit: &Arc<Credit>,
        room: &Arc<ReorderRoom>,
    ) -> Self {
        Self {
            earning: Earning::new(credit, VarInt::from(stream.id()).into_inner()),
            stream,
            reader: FrameReader::default(),
            arrived: ArrivedData::new(room),
            held_max: held_max.get(),
            piece: Bytes::new(),
            complete: false,
            pause: None,
            ended: false,
        }
    }

    /// Waits for header fields, before which nothing else may come.
    pub fn poll_fields(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Field>, StreamError>> {
        Poll::Ready(match ready!(self.poll_frame(cx))? {
            Some(Frame::Headers(section)) => field::decode(&section).map_err(StreamError::Wrong),
            Some(_) => Err(StreamError::Wrong(Code::FRAME_UNEXPECTED)),
            None => Err(StreamError::Wrong(Code::REQUEST_INCOMPLETE)),
        })
    }

    /// Waits for payload; none: the other end has ended its half.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        Poll::Ready(match ready!(self.poll_frame(cx))? {
            Some(Frame::Data(bytes)) => Ok(Some(bytes)),
            // Nothing but data belongs to an open flow: not even more header fields.
            Some(_) => Err(StreamError::Wrong(Code::FRAME_UNEXPECTED)),
            None => Ok(None),
        })
    }

    /// Unit: bytes. What has come in order and has not been given out; what waits behind it counts itself.
    pub fn held(&self) -> usize {
        self.piece.len()
    }

    /// Whatever has been given out has been passed on: the peer may say as much again.
    pub fn grant(&mut self) {
        self.earning.pass_on(self.arrived.position().saturating_sub(self.piece.len() as u64));
    }

    /// Waits until the other end breaks off, even while nobody reads; for ever, where it does not.
    ///
    /// What comes meanwhile is drawn out of QUIC, as far as it may. Else it is looked for now and then: quinn
    /// would tell, but then keeps a place for a stream that has been read to its end meanwhile, and never gives
    /// it back.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        while !(self.ended || self.complete) {
            let may_draw = self.may_draw();
            let pause = if may_draw { DRAW } else { LOOK };
            let pause = self.pause.get_or_insert_with(|| Box::pin(time::sleep(pause)));
            ready!(pause.as_mut().poll(cx));
            self.earning.stand_still();
            let read = if may_draw {
                // Whatever comes after this wakes the flow.
                let drawn = self.poll_draw(cx);
                self.arrived.settle();
                match ready!(drawn) {
                    Ok(()) => Ok(()),
                    Err(Unread::Beyond) => return Poll::Ready(BEYOND),
                    Err(Unread::Broken(error)) => Err(error),
                }
            } else {
                self.pause = None;
                // Nothing is taken of what waits.
                match pin!(self.stream.read_chunk(0, false)).poll(cx) {
                    Poll::Ready(read) => read.map(drop),
                    Poll::Pending => Ok(()),
                }
            };
            if let Err(error) = read {
                self.ended = matches!(error, ReadError::Reset(_));
                return Poll::Ready(error.into());
            }
        }
        Poll::Pending
    }

    fn may_draw(&self) -> bool {
        self.earning.may_draw(&self.arrived)
    }

    /// Draws what has come out of QUIC, as far as it may. Pending: nothing more has.
    fn poll_draw(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unread>> {
        while self.may_draw() && !self.complete {
            let count = ready!(self.poll_read(cx))?;
            self.earning.draw(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the next chunk that has come. Gives its length; where none will come any more, all is complete.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, Unread>> {
        let read = ready!(pin!(self.stream.read_chunk(usize::MAX, false)).poll(cx));
        let Some(chunk) = read.map_err(Unread::Broken)? else {
            self.complete = true;
            return Poll::Ready(Ok(0));
        };
        let count = chunk.bytes.len() as u64;
        if !self.earning.may_come(chunk.offset.saturating_add(count)) {
            return Poll::Ready(Err(Unread::Beyond));
        }
        self.arrived.insert(chunk.offset, chunk.bytes);
        Poll::Ready(Ok(count))
    }

    /// Waits until what the first gap waits for has come, or the stream's end or break, which is read as those
    /// are. Nothing is read, so QUIC's credit is not renewed.
    fn poll_gap(&mut self, cx: &mut Context<'_>) -> Poll<Option<StreamError>> {
        loop {
            // Nothing is taken of it, but where it is is told.
            let first = match ready!(pin!(self.stream.read_chunk(0, false)).poll(cx)) {
                Ok(Some(chunk)) => chunk.offset,
                Ok(None) | Err(_) => return Poll::Ready(None),
            };
            if first <= self.arrived.position() {
                return Poll::Ready(None);
            }
            if let Some(fault) = ready!(self.poll_more(cx)) {
                return Poll::Ready(Some(fault));
            }
        }
    }

    /// Wants no more of it.
    pub fn stop(&mut self, code: Code) {
        if !self.ended {
            self.ended = true;
            let _ = self.stream.stop(varint(code));
        }
    }

    /// Waits until more has come, or the other end breaks off; none: it has ended in order.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Option<StreamError>> {
        Poll::Ready(match ready!(pin!(self.stream.received_reset()).poll(cx)) {
            Ok(None) => None,
            Ok(Some(code)) => Some(StreamError::Reset(Code(code.into_inner()))),
            Err(quinn::ResetError::ConnectionLost(error)) => Some(error.into()),
            Err(quinn::ResetError::ZeroRttRejected) => {
                Some(StreamError::Wrong(Code::INTERNAL_ERROR))
            }
        })
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, StreamError>> {
        let read = self.poll_frame_unsettled(cx);
        self.arrived.settle();
        read
    }

    fn poll_frame_unsettled(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame>, StreamError>> {
        // It is read again: the next one that waits begins anew.
        self.pause.take_if(|pause| pause.is_elapsed());
        loop {
            if let Some(frame) = self.reader.read(&mut self.piece).map_err(StreamError::Wrong)? {
                return Poll::Ready(Ok(Some(frame)));
            }
            if let Some(piece) = self.arrived.pop() {
                self.earning.settle(self.arrived.held());
                self.piece = piece;
                continue;
            }
            if self.complete && !self.ended {
                // A stream cut off is no end.
                if !self.reader.is_between_frames() {
                    return Poll::Ready(Err(StreamError::Wrong(Code::FRAME_ERROR)));
                }
                self.ended = true;
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            if self.earning.is_full(&self.arrived, self.held_max)
                && let Some(fault) = ready!(self.poll_gap(cx))
            {
                return Poll::Ready(Err(fault));
            }
            match ready!(self.poll_read(cx)) {
                Ok(_) => {}
                Err(Unread::Beyond) => return Poll::Ready(Err(BEYOND)),
                Err(Unread::Broken(error)) => {
                    self.ended = matches!(error, ReadError::Reset(_));
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }
}

/// The peer has said more than it was granted, and knows it.
const BEYOND: StreamError = StreamError::Wrong(Code::GENERAL_PROTOCOL_ERROR);

/// Why nothing was read.
enum Unread {
    /// See [`BEYOND`].
    Beyond,
    Broken(ReadError),
}

impl Drop for QuicReceiver {
    fn drop(&mut self) {
        self.stop(Code::CONNECT_ERROR);
    }
}

impl From<ReadError> for StreamError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset(Code(code.into_inner())),
            ReadError::ConnectionLost(error) => error.into(),
            _ => Self::Wrong(Code::INTERNAL_ERROR),
        }
    }
}

impl From<quinn::ConnectionError> for StreamError {
    fn from(error: quinn::ConnectionError) -> Self {
        Self::Lost(error.into())
    }
}
