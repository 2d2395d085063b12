//! The halves of a flow's stream over QUIC: HTTP/3 frames on the outside, header fields and payload on the inside.
//!
//! Invariant: a half that is dropped before its stream has ended in order is reset with the code of a
//! broken TCP connection, whatever the reason.

use super::connection::QuicConnection;
use super::late::LateReset;
use super::state::StreamWaiters;
use crate::tunnel::stream::StreamError;
use bytes::Bytes;
use midhop_pep::config::ClassPlan;
use midhop_tunnel::http3::{Code, Field, Frame, field};
use midhop_tunnel::quic::{Carrier, FlowFault, StreamId};
use midhop_units::Instant;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The most frames fetched together: as many as a flow writes by one call.
const FETCHED_MAX: usize = 64;

/// A stream, shared by both of its halves. It is forgotten when both are dropped.
#[derive(Debug)]
struct StreamHandle {
    connection: QuicConnection,
    id: StreamId,
}

impl StreamHandle {
    /// Calls the machine. None: the connection is gone.
    fn ask<T>(
        &self,
        ask: impl FnOnce(Instant, &mut Carrier, &mut StreamWaiters) -> T,
    ) -> Option<T> {
        let inner = self.connection.inner();
        let now = inner.shared.now();
        let mut state = inner.shared.lock();
        let (carrier, waiting) = state.stream(inner.number, self.id)?;
        let asked = ask(now, carrier, waiting);
        state.recount(inner.number);
        Some(asked)
    }

    /// The same for calls that make the endpoint send.
    fn ask_and_send<T>(&self, ask: impl FnOnce(Instant, &mut Carrier) -> T) -> Option<T> {
        let inner = self.connection.inner();
        let now = inner.shared.now();
        let mut state = inner.shared.lock();
        let asked = state.carrier_mut(inner.number).map(|carrier| ask(now, carrier));
        drop(state);
        inner.shared.call();
        asked
    }

    /// Why the connection is gone. None: it is open.
    fn lost(&self) -> Option<StreamError> {
        self.connection.close_reason().map(|why| StreamError::Lost(why.into()))
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        let inner = self.connection.inner();
        inner.shared.lock().forget_stream(inner.number, self.id, Code::CONNECT_ERROR);
        inner.shared.call();
    }
}

/// Both halves of a stream of `connection`.
pub fn halves(connection: &QuicConnection, id: StreamId) -> (QuicSender, QuicReceiver) {
    let stream = Arc::new(StreamHandle { connection: connection.clone(), id });
    let sender = QuicSender {
        stream: stream.clone(),
        waiting: 0,
        ended: false,
        was_reset: false,
        late: None,
    };
    let fetched = VecDeque::new();
    let receiver =
        QuicReceiver { stream, fetched, last: None, unread: 0, is_given: false, ended: false };
    (sender, receiver)
}

/// The half that this end sends.
#[derive(Debug)]
pub struct QuicSender {
    stream: Arc<StreamHandle>,
    /// Unit: bytes. Bytes that were not taken yet when this was last read.
    waiting: usize,
    ended: bool,
    was_reset: bool,
    /// The reset that waits until the bytes enqueued before it have arrived.
    late: Option<LateReset>,
}

impl QuicSender {
    /// Assigns it to a flow of the given class.
    pub fn join(&mut self, class: &ClassPlan) {
        let id = self.stream.id;
        self.stream.ask_and_send(|_, carrier| carrier.join(id, class));
    }

    /// Makes a frame of header fields. Nothing may be waiting.
    pub fn enqueue_fields(&mut self, fields: &[Field]) {
        self.enqueue_by(|now, id, carrier| carrier.enqueue_fields(now, id, fields));
    }

    /// Makes a frame of payload: `head`, and the bytes after it. Nothing may be waiting.
    pub fn enqueue(&mut self, head: &[u8], bytes: Bytes) {
        self.enqueue_by(|now, id, carrier| carrier.enqueue_data(now, id, head, bytes));
    }

    fn enqueue_by(&mut self, enqueue: impl FnOnce(Instant, StreamId, &mut Carrier)) {
        let id = self.stream.id;
        let waiting = self.stream.ask_and_send(|now, carrier| {
            enqueue(now, id, carrier);
            carrier.waiting(id)
        });
        self.waiting = waiting.flatten().unwrap_or(0);
    }

    /// To be called when there is nothing more to send for now: other flows may send.
    pub fn release_turn(&mut self) {
        let id = self.stream.id;
        if self.stream.ask(|_, carrier, _| carrier.release_turn(id)) == Some(true) {
            self.stream.connection.inner().shared.call();
        }
    }

    /// Unit: bytes. Waiting to be taken.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Hands on the waiting bytes. Ready when none wait.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        if self.waiting == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(lost) = self.stream.lost() {
            return Poll::Ready(Err(lost));
        }
        let id = self.stream.id;
        let waits = self.stream.ask(|_, carrier, waiting| {
            if let Some(code) = waiting.stopped {
                return Err(StreamError::Reset(code));
            }
            if let Some(fault) = waiting.fault {
                return Err(fault.into());
            }
            let waits = carrier.waiting(id).unwrap_or(0);
            if waits > 0 {
                keep(&mut waiting.writer, cx);
            }
            Ok(waits)
        });
        match waits.unwrap_or(Ok(0)) {
            Ok(waits) => {
                self.waiting = waits;
                if waits == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
            }
            Err(fault) => Poll::Ready(Err(fault)),
        }
    }

    /// Ends this half in order. Nothing may be waiting.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let id = self.stream.id;
            // The flow's own end was enqueued before, if the form of the bytes has one.
            self.stream.ask_and_send(|_, carrier| carrier.cut(id));
        }
    }

    /// Ends this half abruptly.
    pub fn reset(&mut self, code: Code) {
        (self.ended, self.was_reset) = (true, true);
        self.waiting = 0;
        let id = self.stream.id;
        self.stream.ask_and_send(|_, carrier| carrier.reset(id, code));
    }

    /// Ends this half abruptly once the peer has all bytes that were enqueued.
    /// [`QuicSender::poll_stopped`] waits for that, and is to be called until then. Nothing may be
    /// waiting.
    pub fn cut(&mut self) {
        if !self.ended && self.late.is_none() {
            let written = self.stream.ask(|_, carrier, _| carrier.written()).unwrap_or(0);
            self.late = Some(LateReset::behind(written));
        }
    }

    /// Waits until the peer wants no more bytes of it, or has all of them. Not to be called again
    /// after that.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let was_reset = self.was_reset;
        let known = self.stream.ask(|_, _, waiting| {
            if let Some(code) = waiting.stopped {
                return Some(Err(StreamError::Reset(code)));
            }
            if waiting.is_delivered || was_reset {
                return Some(Ok(()));
            }
            keep(&mut waiting.ender, cx);
            None
        });
        if let Some(stopped) = known.flatten().or_else(|| self.stream.lost().map(Err)) {
            return Poll::Ready(stopped);
        }
        let Some(late) = &mut self.late else { return Poll::Pending };
        let (stream, connection) = (&self.stream, &self.stream.connection);
        let has_arrived = |written| stream.ask(|_, it, _| it.has_arrived(written)) == Some(true);
        ready!(late.poll(cx, || connection.rtt(), has_arrived));
        self.late = None;
        self.reset(Code::CONNECT_ERROR);
        Poll::Ready(Ok(()))
    }
}

impl Drop for QuicSender {
    fn drop(&mut self) {
        if !self.ended {
            self.reset(Code::CONNECT_ERROR);
        }
    }
}

/// The half that the other end sends.
///
/// Several frames are fetched together, because each call takes the endpoint's lock.
#[derive(Debug)]
pub struct QuicReceiver {
    stream: Arc<StreamHandle>,
    /// Frames that were fetched and not handed out.
    fetched: VecDeque<Frame>,
    /// What follows these frames, if no further frame does: an end, or a fault.
    last: Option<Result<(), FlowFault>>,
    /// Unit: bytes. Arrived in order and not fetched, when this was last read.
    unread: usize,
    /// Whether something was handed out since credit was granted.
    is_given: bool,
    ended: bool,
}

impl QuicReceiver {
    /// Waits for header fields, before which nothing else may arrive.
    pub fn poll_fields(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Field>, StreamError>> {
        self.poll_frame(cx).map(|frame| match frame? {
            Some(Frame::Headers(section)) => field::decode(&section).map_err(StreamError::Wrong),
            Some(_) => Err(StreamError::Wrong(Code::FRAME_UNEXPECTED)),
            None => Err(StreamError::Wrong(Code::REQUEST_INCOMPLETE)),
        })
    }

    /// Waits for payload. None: the other end has ended its half.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        self.poll_frame(cx).map(|frame| match frame? {
            Some(Frame::Data(bytes)) => Ok(Some(bytes)),
            // Only data belongs to an open flow: not even more header fields.
            Some(_) => Err(StreamError::Wrong(Code::FRAME_UNEXPECTED)),
            None => Ok(None),
        })
    }

    /// Unit: bytes. Arrived in order, and not handed out. Data behind a gap is counted separately.
    pub fn held(&self) -> usize {
        let fetched = self.fetched.iter().map(|frame| match frame {
            Frame::Data(bytes) => bytes.len(),
            _ => 0,
        });
        self.unread + fetched.sum::<usize>()
    }

    /// To be called when everything that was handed out has been passed on: the peer may send as
    /// much again.
    pub fn grant(&mut self) {
        if self.fetched.is_empty() && std::mem::take(&mut self.is_given) {
            let id = self.stream.id;
            self.stream.ask_and_send(|now, carrier| carrier.pass_on(now, id));
        }
    }

    /// Waits until the other end resets the stream, even while it is not read. Waits for ever if
    /// there is no reset.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        if self.ended || self.last == Some(Ok(())) {
            return Poll::Pending;
        }
        let id = self.stream.id;
        let mut is_new = false;
        let fault = self.last.and_then(Result::err).or_else(|| {
            self.stream.ask(|now, carrier, waiting| {
                let fault = waiting.fault.or_else(|| carrier.reset_of(id));
                if fault.is_none() {
                    keep(&mut waiting.reader, cx);
                    is_new = carrier.stand_still(now, id);
                }
                fault
            })?
        });
        if is_new {
            self.stream.connection.inner().shared.call();
        }
        match fault.map(StreamError::from).or_else(|| self.stream.lost()) {
            Some(fault) => {
                self.ended = true;
                Poll::Ready(fault)
            }
            None => Poll::Pending,
        }
    }

    /// Requests that the other end stops sending.
    pub fn stop(&mut self, code: Code) {
        if !std::mem::replace(&mut self.ended, true) {
            let id = self.stream.id;
            self.stream.ask_and_send(|_, carrier| carrier.stop(id, code));
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, StreamError>> {
        if self.fetched.is_empty() && self.last.is_none() {
            self.fetch(cx);
        }
        if let Some(frame) = self.fetched.pop_front() {
            if self.fetched.is_empty() {
                // An idle flow holds no memory.
                self.fetched = VecDeque::new();
            }
            self.is_given = true;
            return Poll::Ready(Ok(Some(frame)));
        }
        match self.last {
            Some(Ok(())) => {
                self.ended = true;
                Poll::Ready(Ok(None))
            }
            Some(Err(fault)) => {
                self.ended = matches!(fault, FlowFault::Reset(_));
                Poll::Ready(Err(fault.into()))
            }
            None => match self.stream.lost() {
                Some(lost) => Poll::Ready(Err(lost)),
                None => Poll::Pending,
            },
        }
    }

    /// Fetches the frames that have arrived. If there are none, the task is woken when some arrive.
    fn fetch(&mut self, cx: &Context<'_>) {
        let Self { stream, fetched, last, unread, .. } = self;
        let id = stream.id;
        stream.ask(|_, carrier, waiting| {
            while last.is_none() && fetched.len() < FETCHED_MAX {
                match carrier.next_frame(id) {
                    Ok(Some(Some(frame))) => fetched.push_back(frame),
                    Ok(Some(None)) => *last = Some(Ok(())),
                    // Data that arrived before a fault can still be read.
                    Ok(None) if waiting.fault.is_some() => *last = waiting.fault.map(Err),
                    Ok(None) => {
                        keep(&mut waiting.reader, cx);
                        break;
                    }
                    Err(fault) => *last = Some(Err(fault)),
                }
            }
            *unread = carrier.unread(id);
        });
    }
}

impl Drop for QuicReceiver {
    fn drop(&mut self) {
        self.stop(Code::CONNECT_ERROR);
    }
}

/// Stores the task to be woken.
fn keep(place: &mut Option<std::task::Waker>, cx: &Context<'_>) {
    match place {
        Some(known) => known.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

impl From<FlowFault> for StreamError {
    fn from(fault: FlowFault) -> Self {
        match fault {
            FlowFault::Reset(code) => Self::Reset(code),
            FlowFault::Wrong(code) => Self::Wrong(code),
            FlowFault::Denied(cause) => Self::Denied(cause),
            FlowFault::Cut => Self::Cut,
        }
    }
}
