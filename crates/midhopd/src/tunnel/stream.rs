//! One flow's stream through a tunnel: frames on the outside, bytes of the flow on the inside.
//!
//! Invariant: an end that nobody said is never heard. A half that is dropped before its stream has
//! ended in order is reset with the code of a broken TCP connection, whatever the reason.

use super::turns::Share;
use bytes::Bytes;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::Response;
use midhop_tunnel::http3::{Code, Field, Frame, FrameReader, field, frame};
use midhop_tunnel::reassembly::Reassembly;
use quinn::{Connection, ReadError, RecvStream, SendStream, StoppedError, VarInt};
use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{self, Sleep};

/// Both halves of a stream.
#[derive(Debug)]
pub struct Stream {
    connection: Connection,
    /// What this end says.
    pub output: Output,
    /// What the other end says.
    pub input: Input,
    /// Its place in its session.
    pub seat: Option<Arc<()>>,
}

impl Stream {
    /// A stream that this end has opened, to ask for something. Of what comes on it `held_max` may wait
    /// behind a gap; what is said on it is written as its `share` lets it.
    pub fn to_ask(
        connection: &Connection,
        (send, receive): (SendStream, RecvStream),
        held_max: midhop_units::Bytes,
        share: Share,
    ) -> Self {
        let (output, input) = (Output::new(send, share), Input::new(receive, true, held_max));
        Self { connection: connection.clone(), output, input, seat: None }
    }

    /// A stream that the other end has opened, to ask for something; the rest as above.
    pub fn to_answer(
        connection: &Connection,
        (send, receive): (SendStream, RecvStream),
        held_max: midhop_units::Bytes,
        share: Share,
    ) -> Self {
        let (output, input) = (Output::new(send, share), Input::new(receive, false, held_max));
        Self { connection: connection.clone(), output, input, seat: None }
    }

    /// The connection that it is a stream of.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until the other end breaks off; for ever, where it does not.
    pub async fn broken(&mut self) -> Fault {
        let mut stopped = pin!(self.output.stopped());
        poll_fn(|cx| {
            // Whoever breaks off wants no answer either, and that is told at once.
            if let Poll::Ready(Err(fault)) = stopped.as_mut().poll(cx) {
                return Poll::Ready(fault);
            }
            self.input.poll_reset(cx)
        })
        .await
    }
}

/// Ends a connection whose peer broke a rule that concerns it as a whole: most do.
pub fn judge(connection: &Connection, fault: &Fault) {
    const OF_ONE_STREAM: [Code; 4] =
        [Code::MESSAGE_ERROR, Code::REQUEST_INCOMPLETE, Code::EXCESSIVE_LOAD, Code::INTERNAL_ERROR];
    if let Fault::Wrong(code) = fault
        && !OF_ONE_STREAM.contains(code)
    {
        let peer = connection.remote_address();
        tracing::warn!(%peer, %code, "a tunnel ends: a rule was broken");
        connection.close(varint(*code), b"");
    }
}

/// Why a stream broke.
#[derive(Debug)]
pub enum Fault {
    /// The peer ended it abruptly.
    Reset(Code),
    /// The whole tunnel is gone.
    Lost(quinn::ConnectionError),
    /// The peer broke a rule; the code says which.
    Wrong(Code),
    /// The peer did not connect.
    Denied(Cause),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(f, "the peer reset the stream: {code}"),
            Self::Lost(error) => write!(f, "the tunnel is gone: {error}"),
            Self::Wrong(code) => write!(f, "the peer broke a rule: {code}"),
            Self::Denied(cause) => write!(f, "the peer did not connect: {}", cause.error()),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let kind = match &fault {
            Fault::Reset(_) => io::ErrorKind::ConnectionReset,
            Fault::Lost(quinn::ConnectionError::TimedOut) => io::ErrorKind::TimedOut,
            Fault::Lost(_) => io::ErrorKind::ConnectionAborted,
            Fault::Wrong(_) => io::ErrorKind::InvalidData,
            Fault::Denied(_) => io::ErrorKind::ConnectionRefused,
        };
        Self::new(kind, fault)
    }
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset(Code(code.into_inner())),
            ReadError::ConnectionLost(error) => Self::Lost(error),
            _ => Self::Wrong(Code::INTERNAL_ERROR),
        }
    }
}

fn varint(code: Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}

/// What this end says.
#[derive(Debug)]
pub struct Output {
    stream: SendStream,
    /// Its part in what may be written.
    share: Share,
    /// Frames that have not been taken yet: a head, and its payload.
    waiting: [Bytes; 2],
    ended: bool,
}

impl Output {
    fn new(stream: SendStream, share: Share) -> Self {
        Self { stream, share, waiting: [Bytes::new(), Bytes::new()], ended: false }
    }

    /// Says a whole frame.
    ///
    /// # Errors
    /// When the stream breaks first.
    pub async fn say(&mut self, frame: Vec<u8>) -> Result<(), Fault> {
        self.share.begin(&self.stream);
        self.waiting = [Bytes::from(frame), Bytes::new()];
        let said = poll_fn(|cx| self.poll_flush(cx)).await;
        self.rest();
        said
    }

    /// Makes a frame of some bytes of the flow. Nothing may wait; what is made waits for
    /// [`Output::poll_flush`].
    pub fn put(&mut self, bytes: Bytes) {
        let mut head = Vec::with_capacity(9);
        frame::write_head(frame::DATA, bytes.len(), &mut head);
        self.share.begin(&self.stream);
        self.waiting = [Bytes::from(head), bytes];
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
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        while self.waiting() > 0 {
            let begun = usize::from(self.waiting[0].is_empty());
            let chunks = &mut self.waiting[begun..];
            ready!(self.share.poll_write(cx, &mut self.stream, chunks))?;
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
            // Where it was stopped before, that is heard of by `stopped`.
            let _ = self.stream.finish();
        }
    }

    /// Ends this half abruptly.
    pub fn reset(&mut self, code: Code) {
        self.rest();
        self.ended = true;
        let _ = self.stream.reset(varint(code));
    }

    /// Waits until the peer wants no more of it, or has all of it.
    pub fn stopped(&self) -> impl Future<Output = Result<(), Fault>> + use<> {
        let stopped = self.stream.stopped();
        async move {
            match stopped.await {
                Ok(None) => Ok(()),
                Ok(Some(code)) => Err(Fault::Reset(Code(code.into_inner()))),
                Err(StoppedError::ConnectionLost(error)) => Err(Fault::Lost(error)),
                Err(StoppedError::ZeroRttRejected) => Err(Fault::Wrong(Code::INTERNAL_ERROR)),
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.ended {
            self.reset(Code::CONNECT_ERROR);
        }
    }
}

/// How often a stream that nobody reads is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Pieces of a flow that are taken at once.
const PIECES: usize = 32;

/// What the other end says.
///
/// It is read as it comes and put in order here: quinn ends the whole connection over a stream with too
/// many gaps. Where as much waits behind a gap as may, it is read a piece at a time: the one that is
/// missing is the first once it has come.
#[derive(Debug)]
pub struct Input {
    stream: RecvStream,
    reader: FrameReader,
    /// What has come and is not in order.
    arrived: Reassembly,
    /// What has come in order and has not been taken apart.
    piece: Bytes,
    /// Whether all has come.
    complete: bool,
    /// Whether an answer to a request comes first.
    awaits_answer: bool,
    /// What is told once that is handed on which came before it.
    fault: Option<Fault>,
    /// Until the next look for a reset.
    pause: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl Input {
    fn new(stream: RecvStream, awaits_answer: bool, held_max: midhop_units::Bytes) -> Self {
        Self {
            stream,
            reader: FrameReader::default(),
            arrived: Reassembly::new(held_max),
            piece: Bytes::new(),
            complete: false,
            awaits_answer,
            fault: None,
            pause: None,
            ended: false,
        }
    }

    /// Waits for the request that opens the stream.
    ///
    /// # Errors
    /// When the stream breaks, ends or says something else first.
    pub async fn request(&mut self) -> Result<Vec<Field>, Fault> {
        poll_fn(|cx| self.poll_fields(cx)).await
    }

    /// Waits for the answer to the request that opened the stream, where that was not heard before.
    ///
    /// # Errors
    /// [`Fault::Denied`] when that is the answer, else when none comes.
    pub async fn answer(&mut self) -> Result<(), Fault> {
        poll_fn(|cx| self.poll_answer(cx)).await
    }

    /// Waits for bytes of the flow and takes what there is of them; `false`: the other end has ended
    /// its half.
    pub fn poll_pieces(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &mut VecDeque<Bytes>,
    ) -> Poll<Result<bool, Fault>> {
        if let Some(fault) = self.fault.take() {
            return Poll::Ready(Err(fault));
        }
        ready!(self.poll_answer(cx))?;
        while pieces.len() < PIECES {
            let fault = match self.poll_frame(cx) {
                Poll::Ready(Ok(Some(Frame::Data(bytes)))) => {
                    pieces.push_back(bytes);
                    continue;
                }
                // Nothing but data belongs to an open flow: not even more header fields.
                Poll::Ready(Ok(Some(_))) => Fault::Wrong(Code::FRAME_UNEXPECTED),
                Poll::Ready(Err(fault)) => fault,
                Poll::Ready(Ok(None)) if pieces.is_empty() => return Poll::Ready(Ok(false)),
                Poll::Pending if pieces.is_empty() => return Poll::Pending,
                Poll::Ready(Ok(None)) | Poll::Pending => break,
            };
            if pieces.is_empty() {
                return Poll::Ready(Err(fault));
            }
            self.fault = Some(fault);
            break;
        }
        Poll::Ready(Ok(true))
    }

    /// Waits until the other end breaks off, even while nobody reads; for ever, where it does not.
    ///
    /// It is looked for now and then: quinn would tell, but then keeps a place for a stream that has been
    /// read to its end meanwhile, and never gives it back.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        while !self.ended {
            let pause = self.pause.get_or_insert_with(|| Box::pin(time::sleep(LOOK)));
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
            // Nothing is taken of what waits.
            match pin!(self.stream.read_chunk(0, false)).poll(cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
        Poll::Pending
    }

    /// Waits until more has come, or the other end breaks off; none: it has ended in order.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Option<Fault>> {
        Poll::Ready(match ready!(pin!(self.stream.received_reset()).poll(cx)) {
            Ok(None) => None,
            Ok(Some(code)) => Some(Fault::Reset(Code(code.into_inner()))),
            Err(quinn::ResetError::ConnectionLost(error)) => Some(Fault::Lost(error)),
            Err(quinn::ResetError::ZeroRttRejected) => Some(Fault::Wrong(Code::INTERNAL_ERROR)),
        })
    }

    /// Wants no more of it.
    pub fn stop(&mut self, code: Code) {
        if !self.ended {
            self.ended = true;
            let _ = self.stream.stop(varint(code));
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        while self.awaits_answer {
            let fields = ready!(self.poll_fields(cx))?;
            match Response::decode(&fields) {
                // A provisional one: the other follows.
                Ok(None) => {}
                Ok(Some(Response::Granted)) => self.awaits_answer = false,
                Ok(Some(Response::Denied { cause, .. })) => {
                    return Poll::Ready(Err(Fault::Denied(cause)));
                }
                Err(_malformed) => return Poll::Ready(Err(Fault::Wrong(Code::MESSAGE_ERROR))),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_fields(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Field>, Fault>> {
        Poll::Ready(match ready!(self.poll_frame(cx))? {
            Some(Frame::Headers(section)) => field::decode(&section).map_err(Fault::Wrong),
            Some(_) => Err(Fault::Wrong(Code::FRAME_UNEXPECTED)),
            None => Err(Fault::Wrong(Code::REQUEST_INCOMPLETE)),
        })
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, Fault>> {
        loop {
            if let Some(frame) = self.reader.read(&mut self.piece).map_err(Fault::Wrong)? {
                return Poll::Ready(Ok(Some(frame)));
            }
            if let Some(piece) = self.arrived.pop() {
                self.piece = piece;
                continue;
            }
            if self.complete && !self.ended {
                // A stream cut off is no end.
                if !self.reader.is_between_frames() {
                    return Poll::Ready(Err(Fault::Wrong(Code::FRAME_ERROR)));
                }
                self.ended = true;
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            let read = ready!(pin!(self.stream.read_chunk(usize::MAX, false)).poll(cx));
            match read {
                Ok(Some(chunk)) => {
                    self.arrived.insert(chunk.offset, chunk.bytes);
                    if self.arrived.is_full()
                        && let Some(fault) = ready!(self.poll_more(cx))
                    {
                        return Poll::Ready(Err(fault));
                    }
                }
                Ok(None) => self.complete = true,
                Err(error) => {
                    self.ended = matches!(error, ReadError::Reset(_));
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.stop(Code::CONNECT_ERROR);
    }
}
