//! A flow's stream over HTTP/2: h2 makes frames of header fields and payload.
//!
//! h2 keeps what it was given until the TCP connection takes it. A [`Http2Room`] bounds this for all flows, so that
//! the bytes to be written next are selected late.
//!
//! HTTP/2 has one reset for both halves of a stream: it ends the other half as well, whichever end sends it.
//!
//! Invariant: a stream whose halves are dropped before it has ended in order is reset with the code of a
//! broken TCP connection, whatever the reason.

mod message;
mod room;

pub use message::request_of;
pub use room::{Http2Room, Piece};

use self::message::{response_of, with_headers};
use self::room::{UnsentData, lock};
use crate::tunnel::scheduling::{Pool, ScheduledFlow};
use crate::tunnel::stream::StreamError;
use bytes::{Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{FlowControl, Reason, RecvStream, SendStream};
use http::Request;
use midhop_pep::config::ClassPlan;
use midhop_tunnel::http2;
use midhop_tunnel::http3::{Code, Field};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

/// The most that is given to h2 at once. Unit: bytes.
const PIECE_BYTES: usize = 16 << 10;

/// Smaller pieces are put together with other waiting bytes. Unit: bytes.
const SMALL_BYTES: usize = 512;

/// The handle to write and reset a stream.
#[derive(Debug)]
enum Handle {
    /// No response has been sent.
    Asked(SendResponse<Piece>),
    Open(SendStream<Piece>),
}

impl Handle {
    fn reset(&mut self, code: Code) {
        let reason = Reason::from(http2::reason(code));
        match self {
            Self::Asked(stream) => stream.send_reset(reason),
            Self::Open(stream) => stream.send_reset(reason),
        }
    }

    /// Waits until the peer resets it.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        let reset = match self {
            Self::Asked(stream) => ready!(stream.poll_reset(cx)),
            Self::Open(stream) => ready!(stream.poll_reset(cx)),
        };
        Poll::Ready(
            reset.map_or_else(fault_of, |reason| StreamError::Reset(http2::code(reason.into()))),
        )
    }
}

/// Converts an error of h2 to a fault of a stream.
pub fn fault_of(error: h2::Error) -> StreamError {
    match error.reason() {
        Some(reason) if error.is_reset() && error.is_remote() => {
            StreamError::Reset(http2::code(reason.into()))
        }
        Some(reason) if error.is_reset() => StreamError::Wrong(http2::code(reason.into())),
        _ => StreamError::Lost(io_error(error)),
    }
}

/// Converts an error of h2 to an error of a connection.
pub fn io_error(error: h2::Error) -> io::Error {
    if !error.is_io() {
        return io::Error::new(io::ErrorKind::ConnectionAborted, error);
    }
    error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into())
}

/// The half that this end sends.
#[derive(Debug)]
pub struct Http2Sender {
    half: Half,
    /// Its part in the scheduler.
    share: ScheduledFlow,
    /// Bytes that were not taken yet.
    waiting: [Bytes; 2],
    ended: bool,
    /// Whether it is reset once all bytes have left.
    cut: bool,
}

#[derive(Debug)]
struct Half {
    handle: Arc<Mutex<Handle>>,
    room: Arc<Http2Room>,
    leaving: Arc<UnsentData>,
}

impl Http2Sender {
    /// Assigns it to a flow of the given class.
    pub fn join(&mut self, class: &ClassPlan) {
        self.share.join(class);
    }

    /// Takes header fields. They are sent at once.
    ///
    /// # Errors
    /// When they are no response, or the stream is gone.
    pub fn enqueue_fields(&mut self, fields: &[Field]) -> Result<(), StreamError> {
        let wrong = || StreamError::Wrong(Code::INTERNAL_ERROR);
        let response = response_of(fields).ok_or_else(wrong)?;
        let mut handle = lock(&self.half.handle);
        let Handle::Asked(asked) = &mut *handle else { return Err(wrong()) };
        let stream = asked.send_response(response, false).map_err(fault_of)?;
        *handle = Handle::Open(stream);
        Ok(())
    }

    /// Takes payload. Nothing may be waiting.
    pub fn enqueue(&mut self, head: &[u8], bytes: Bytes) {
        self.share.begin(&mut self.half);
        self.waiting = [Bytes::copy_from_slice(head), bytes];
    }

    /// To be called when there is nothing more to send for now: other flows may send.
    pub fn release_turn(&mut self) {
        self.share.leave();
    }

    /// Unit: bytes. Waiting to be taken.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }

    /// Hands on the waiting bytes. Ready when none wait.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        while self.waiting() > 0 {
            ready!(self.share.poll_write(cx, &mut self.half, &mut self.waiting))?;
            if self.waiting() == 0 {
                self.share.finish();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends this half in order. Nothing may be waiting.
    pub fn end(&mut self) {
        self.release_turn();
        if self.ended {
            return;
        }
        self.ended = true;
        let end = self.half.room.hold(Bytes::new(), &self.half.leaving);
        if let Handle::Open(stream) = &mut *lock(&self.half.handle) {
            // If it was reset before, `poll_stopped` reports that.
            let _ = stream.send_data(end, true);
        }
        self.half.leaving.complete();
    }

    /// Ends the stream abruptly, once all bytes have left: at a reset, h2 drops the bytes that it still has. Nothing
    /// may be waiting.
    pub fn cut(&mut self) {
        self.release_turn();
        if !self.ended {
            self.cut = true;
            self.half.leaving.complete();
        }
    }

    /// Ends the stream abruptly.
    pub fn reset(&mut self, code: Code) {
        self.release_turn();
        self.ended = true;
        lock(&self.half.handle).reset(code);
    }

    /// Waits until the peer wants no more bytes of it, or all have been sent.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        if let Poll::Ready(fault) = lock(&self.half.handle).poll_reset(cx) {
            return Poll::Ready(Err(fault));
        }
        ready!(self.half.leaving.poll_left(cx));
        if self.cut && !self.ended {
            self.reset(Code::CONNECT_ERROR);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Http2Sender {
    fn drop(&mut self) {
        if !self.ended {
            self.reset(Code::CONNECT_ERROR);
        }
    }
}

impl Half {
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
        beside: bool,
    ) -> Poll<Result<usize, StreamError>> {
        let mut handle = lock(&self.handle);
        if let Poll::Ready(fault) = handle.poll_reset(cx) {
            return Poll::Ready(Err(fault));
        }
        let Handle::Open(stream) = &mut *handle else {
            return Poll::Ready(Err(StreamError::Wrong(Code::INTERNAL_ERROR)));
        };
        let wanted = chunks.iter().map(Bytes::len).sum::<usize>().min(PIECE_BYTES);
        if wanted > 0 {
            stream.reserve_capacity(wanted);
        }
        let mut credit = stream.capacity();
        if credit == 0 {
            credit = match ready!(stream.poll_capacity(cx)) {
                Some(capacity) => capacity.map_err(fault_of)?,
                None => return Poll::Ready(Err(StreamError::Wrong(Code::INTERNAL_ERROR))),
            };
        }
        let room = if beside { Some(wanted) } else { self.room.free(cx) };
        let Some(room) = room else { return Poll::Pending };
        let mut left = wanted.min(credit).min(room);
        let written = left;
        for chunk in chunks {
            let part = chunk.split_to(left.min(chunk.len()));
            left -= part.len();
            if !part.is_empty() {
                stream.send_data(self.room.hold(part, &self.leaving), false).map_err(fault_of)?;
            }
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
        self.write(cx, chunks, false)
    }

    fn poll_write_beside(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut [Bytes],
    ) -> Poll<Result<usize, StreamError>> {
        self.write(cx, chunks, true)
    }

    fn set_urgent(&mut self, _urgent: bool) {
        // h2 lets streams send in turns, a frame each.
    }
}

/// The half that the other end sends.
#[derive(Debug)]
pub struct Http2Receiver {
    handle: Arc<Mutex<Handle>>,
    /// The response to a request, until it has arrived.
    answer: Option<ResponseFuture>,
    /// Header fields that have arrived and were not read.
    fields: Option<Vec<Field>>,
    /// The payload after them.
    stream: Option<RecvStream>,
    /// Credit for the payload that has arrived.
    credit: Option<FlowControl>,
    /// Data taken out of h2 in order to find what follows it.
    arrived: VecDeque<Bytes>,
    /// The last pieces of that data, joined because each is so small that it would cost more than
    /// its bytes.
    small: BytesMut,
    /// The fault that follows it.
    fault: Option<StreamError>,
    /// Whether all of it has arrived.
    complete: bool,
    /// Unit: bytes. Handed out, without new credit for it yet.
    given: usize,
    ended: bool,
}

impl Http2Receiver {
    fn new(handle: &Arc<Mutex<Handle>>) -> Self {
        Self {
            handle: handle.clone(),
            answer: None,
            fields: None,
            stream: None,
            credit: None,
            arrived: VecDeque::new(),
            small: BytesMut::new(),
            fault: None,
            complete: false,
            given: 0,
            ended: false,
        }
    }

    fn follow(&mut self, mut stream: RecvStream) {
        self.credit = Some(stream.flow_control().clone());
        self.stream = Some(stream);
    }

    /// Waits for header fields, before which nothing else may arrive.
    pub fn poll_fields(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Field>, StreamError>> {
        if let Some(answer) = &mut self.answer {
            let answer = ready!(Pin::new(answer).poll(cx)).map_err(fault_of);
            self.answer = None;
            let answer = answer?;
            let status = Field::new(":status", answer.status().as_str().to_owned());
            self.fields = Some(with_headers(vec![status], answer.headers()));
            self.follow(answer.into_body());
        }
        Poll::Ready(self.fields.take().ok_or(StreamError::Wrong(Code::FRAME_UNEXPECTED)))
    }

    /// Waits for payload. None: the other end has ended its half.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        if self.arrived.is_empty() {
            if let Some(fault) = self.fault.take() {
                return Poll::Ready(Err(fault));
            }
            ready!(self.poll_arrive(cx))?;
        }
        let Some(bytes) = self.arrived.pop_front() else {
            self.ended = true;
            return Poll::Ready(Ok(None));
        };
        if self.arrived.is_empty() && !self.small.is_empty() {
            self.arrived.push_back(self.small.split().freeze());
        }
        self.given += bytes.len();
        Poll::Ready(Ok(Some(bytes)))
    }

    /// To be called when everything that was handed out has been passed on: the peer may send as
    /// much again.
    pub fn grant(&mut self) {
        let given = std::mem::take(&mut self.given);
        if let Some(credit) = self.credit.as_mut().filter(|_| given > 0) {
            // This cannot fail: no more is released than has arrived.
            let _ = credit.release_capacity(given);
        }
    }

    /// Unit: bytes. Arrived, and not handed out.
    pub fn held(&self) -> usize {
        let come = self.credit.as_ref().map_or(0, FlowControl::used_capacity);
        come.saturating_sub(self.given)
    }

    /// Waits until the other end resets the stream, even while it is not read. Waits for ever if
    /// there is no reset.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        // At most the peer's credit is taken out of h2 here.
        while !self.complete && self.stream.is_some() && self.fault.is_none() {
            if let Err(fault) = ready!(self.poll_arrive(cx)) {
                return Poll::Ready(fault);
            }
        }
        Poll::Pending
    }

    /// Stops reading. If this end has sent everything, and there was no fault, the stream ends by itself once both
    /// halves are dropped: a reset would overtake the sent bytes.
    pub fn stop(&mut self, code: Code) {
        if !self.ended {
            self.ended = true;
            if code != Code::NO_ERROR && !self.complete {
                lock(&self.handle).reset(code);
            }
        }
    }

    /// Keeps received bytes. A peer may send frames of a byte each: together they take no more memory than their
    /// bytes.
    fn keep(&mut self, bytes: Bytes) {
        if !self.arrived.is_empty() && bytes.len() < SMALL_BYTES {
            self.small.extend_from_slice(&bytes);
            if self.small.len() >= PIECE_BYTES {
                self.arrived.push_back(self.small.split().freeze());
            }
            return;
        }
        if !self.small.is_empty() {
            self.arrived.push_back(self.small.split().freeze());
        }
        self.arrived.push_back(bytes);
    }

    /// Waits until more has arrived, or all of it.
    fn poll_arrive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.complete) else {
            return Poll::Ready(Ok(()));
        };
        while let Some(bytes) = ready!(stream.poll_data(cx)) {
            let bytes = bytes.map_err(fault_of)?;
            // An end may arrive in an empty frame.
            if !bytes.is_empty() {
                self.keep(bytes);
                return Poll::Ready(Ok(()));
            }
        }
        // No more data is not an end yet: nothing but data belongs to an open flow.
        if ready!(stream.poll_trailers(cx)).map_err(fault_of)?.is_some() {
            return Poll::Ready(Err(StreamError::Wrong(Code::FRAME_UNEXPECTED)));
        }
        self.complete = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Http2Receiver {
    fn drop(&mut self) {
        self.stop(Code::CONNECT_ERROR);
    }
}

/// The halves of a stream on which a response is awaited.
pub fn to_ask(
    (answer, stream): (ResponseFuture, SendStream<Piece>),
    room: &Arc<Http2Room>,
    share: ScheduledFlow,
) -> (Http2Sender, Http2Receiver) {
    let handle = Arc::new(Mutex::new(Handle::Open(stream)));
    let mut receiver = Http2Receiver::new(&handle);
    receiver.answer = Some(answer);
    (Http2Sender::new(handle, room, share), receiver)
}

/// The halves of a stream on which a request was received.
pub fn to_answer(
    (request, answer): (Request<RecvStream>, SendResponse<Piece>),
    room: &Arc<Http2Room>,
    share: ScheduledFlow,
) -> (Http2Sender, Http2Receiver) {
    let handle = Arc::new(Mutex::new(Handle::Asked(answer)));
    let (parts, stream) = request.into_parts();
    let mut fields = vec![Field::new(":method", parts.method.as_str().to_owned())];
    let mut add = |name, value: Option<&str>| {
        fields.extend(value.map(|value| Field::new(name, value.to_owned())));
    };
    add(":scheme", parts.uri.scheme_str());
    add(":authority", parts.uri.authority().map(|authority| authority.as_str()));
    add(":path", parts.uri.path_and_query().map(|path| path.as_str()));
    add(":protocol", parts.extensions.get().map(h2::ext::Protocol::as_str));
    let mut receiver = Http2Receiver::new(&handle);
    receiver.fields = Some(with_headers(fields, &parts.headers));
    receiver.follow(stream);
    (Http2Sender::new(handle, room, share), receiver)
}

impl Http2Sender {
    fn new(handle: Arc<Mutex<Handle>>, room: &Arc<Http2Room>, share: ScheduledFlow) -> Self {
        let half = Half { handle, room: room.clone(), leaving: Arc::default() };
        let waiting = [Bytes::new(), Bytes::new()];
        Self { half, share, waiting, ended: false, cut: false }
    }
}

#[cfg(test)]
mod tests;
