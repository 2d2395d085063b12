//! One flow's stream through a tunnel: a request and its response, then the bytes of the flow, in the form that the
//! request specifies ([`Payload`]).
//!
//! A flow that can be resumed outlives its stream: [`kept`] is what it keeps, and [`resumable`]
//! replaces its stream by another.
//!
//! Invariant: an end is reported only if the other end sent it. A half that is dropped before its stream has ended in
//! order is reset with the code of a broken TCP connection, whatever the reason.

pub mod kept;
pub mod resumable;

use self::kept::{KeptBytes, Offer};
use self::resumable::SessionSeat;
use super::carrier::{Connection, Receiver, Sender};
use bytes::Bytes;
use midhop_pep::config::ClassPlan;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::Response;
use midhop_tunnel::http3::{Code, Field};
use midhop_tunnel::payload::{Payload, PayloadError, PayloadReader};
use midhop_tunnel::resumption::{self, FlowId, ReceivedBytes};
use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time;

/// How long a peer may take to receive a response.
const PATIENCE: Duration = Duration::from_secs(10);

/// Both halves of a stream.
#[derive(Debug)]
pub struct Stream {
    connection: Connection,
    /// The half that this end sends.
    pub output: Output,
    /// The half that the other end sends.
    pub input: Input,
    /// Its place in its session.
    pub seat: Option<Arc<SessionSeat>>,
    /// The identity and request for resuming the flow, until a task takes it over.
    pub offer: Option<Box<Offer>>,
}

impl Stream {
    /// A stream that this end has opened for a request.
    pub fn to_ask(connection: Connection, sender: Sender, receiver: Receiver) -> Self {
        Self::new(connection, sender, receiver, true)
    }

    /// A stream that the other end has opened for a request.
    pub fn to_answer(connection: Connection, sender: Sender, receiver: Receiver) -> Self {
        Self::new(connection, sender, receiver, false)
    }

    fn new(
        connection: Connection,
        sender: Sender,
        receiver: Receiver,
        awaits_answer: bool,
    ) -> Self {
        let (output, input) = (
            Output { carrier: sender, payload: Payload::default(), kept: None },
            Input::new(receiver, awaits_answer),
        );
        Self { connection, output, input, seat: None, offer: None }
    }

    /// The connection that it belongs to.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sets the form of the flow's bytes, both ways. To be called before any of them.
    pub fn carry_in(&mut self, payload: Payload) {
        self.output.payload = payload;
        self.input.payload = payload;
        self.input.flow = PayloadReader::new(payload);
    }

    /// The form of the flow's bytes.
    pub fn payload(&self) -> Payload {
        self.output.payload
    }

    /// Responds that there is no flow. A peer that does not take the response keeps no place by
    /// that.
    pub async fn deny(mut self, answer: &[Field]) {
        match time::timeout(PATIENCE, self.output.send_fields(answer)).await {
            Ok(Ok(())) => {}
            Ok(Err(_broken)) => return,
            Err(_late) => return self.output.reset(Code::REQUEST_CANCELLED),
        }
        self.output.end();
        // Bytes that the client has sent meanwhile are not needed.
        self.input.stop(Code::NO_ERROR);
        let _ = self.output.stopped().await;
    }

    /// Reports the other end's violation to it, if that is what broke the flow.
    pub fn blame(&mut self, error: &io::Error) {
        let fault = error.get_ref().and_then(|error| error.downcast_ref());
        if let Some(StreamError::Wrong(code)) = fault {
            self.output.reset(*code);
            self.input.stop(*code);
        }
    }

    /// Waits until the other end resets the stream. Waits for ever where it does not.
    pub async fn broken(&mut self) -> StreamError {
        let mut taken = false;
        poll_fn(|cx| {
            // A peer that resets this end's half wants no response either. This is found at once.
            if !taken && let Poll::Ready(stopped) = self.output.poll_stopped(cx) {
                match stopped {
                    Ok(()) => taken = true,
                    Err(fault) => return Poll::Ready(fault),
                }
            }
            self.input.poll_reset(cx)
        })
        .await
    }
}

/// Closes a connection whose peer violated the protocol in a way that concerns the whole connection, as
/// most violations do.
pub fn judge(connection: &Connection, fault: &StreamError) {
    const OF_ONE_STREAM: [Code; 4] =
        [Code::MESSAGE_ERROR, Code::REQUEST_INCOMPLETE, Code::EXCESSIVE_LOAD, Code::INTERNAL_ERROR];
    if let StreamError::Wrong(code) = fault
        && !OF_ONE_STREAM.contains(code)
    {
        let peer = connection.remote_address();
        tracing::warn!(%peer, %code, "a tunnel is closed: its peer violated the protocol");
        connection.close(*code);
    }
}

/// Why a stream broke.
#[derive(Debug)]
pub enum StreamError {
    /// The peer reset it.
    Reset(Code),
    /// The whole tunnel is gone.
    Lost(io::Error),
    /// The peer violated the protocol, identified by the code.
    Wrong(Code),
    /// The peer did not connect.
    Denied(Cause),
    /// The stream ended, but the peer has not reported the end of the flow.
    Cut,
    /// The peer serves no requests of the configured form.
    Unable,
    /// The peer has not announced what it serves.
    Unannounced,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(f, "the peer reset the stream: {code}"),
            Self::Lost(error) => write!(f, "the tunnel was lost: {error}"),
            Self::Wrong(code) => write!(f, "the peer violated the protocol: {code}"),
            Self::Denied(cause) => write!(f, "the peer did not connect: {}", cause.error()),
            Self::Cut => write!(f, "the stream was cut off before the flow's end"),
            Self::Unable => write!(f, "the peer does not serve requests with a URI template"),
            Self::Unannounced => write!(f, "the peer has not announced which requests it serves"),
        }
    }
}

impl std::error::Error for StreamError {}

impl StreamError {
    /// Whether the data before an error of a stream is part of the flow, and more of it may be found there.
    pub fn leaves_a_rest(error: &io::Error) -> bool {
        let fault = error.get_ref().and_then(|error| error.downcast_ref());
        matches!(fault, Some(Self::Reset(_) | Self::Lost(_) | Self::Cut))
    }
}

impl From<StreamError> for io::Error {
    fn from(fault: StreamError) -> Self {
        let kind = match &fault {
            StreamError::Reset(_) => io::ErrorKind::ConnectionReset,
            StreamError::Lost(error) if error.kind() == io::ErrorKind::TimedOut => error.kind(),
            StreamError::Lost(_) => io::ErrorKind::ConnectionAborted,
            StreamError::Wrong(_) => io::ErrorKind::InvalidData,
            StreamError::Denied(_) => io::ErrorKind::ConnectionRefused,
            StreamError::Cut => io::ErrorKind::UnexpectedEof,
            StreamError::Unable => io::ErrorKind::Unsupported,
            StreamError::Unannounced => io::ErrorKind::TimedOut,
        };
        Self::new(kind, fault)
    }
}

impl From<PayloadError> for StreamError {
    fn from(_: PayloadError) -> Self {
        Self::Wrong(Code::MESSAGE_ERROR)
    }
}

/// The half that this end sends.
#[derive(Debug)]
pub struct Output {
    carrier: Sender,
    payload: Payload,
    /// What it keeps of a flow that can be resumed.
    kept: Option<Box<KeptBytes>>,
}

impl Output {
    /// Assigns it to a flow of the given class.
    pub fn join(&mut self, class: &ClassPlan) {
        self.carrier.join(class);
    }

    /// Sends header fields: a request or a response.
    ///
    /// # Errors
    /// When the stream breaks first.
    pub async fn send_fields(&mut self, fields: &[Field]) -> Result<(), StreamError> {
        self.carrier.enqueue_fields(fields)?;
        let sent = poll_fn(|cx| self.poll_flush(cx)).await;
        self.release_turn();
        sent
    }

    /// Takes some bytes of the flow. Nothing may be waiting. The bytes wait for [`Output::poll_flush`].
    pub fn enqueue(&mut self, bytes: Bytes) {
        let mut head = match &mut self.kept {
            Some(kept) => kept.enqueue(&bytes, self.payload),
            None => Vec::new(),
        };
        head.extend(self.payload.head(bytes.len()));
        self.carrier.enqueue(&head, bytes);
    }

    /// Takes a copy of some bytes of the flow, in memory that outlives this process if the flow
    /// does. Otherwise the same as [`Output::enqueue`].
    pub fn enqueue_copy(&mut self, bytes: &[u8]) {
        let kept = self.kept.as_mut().and_then(|kept| kept.copy(bytes));
        self.enqueue(kept.unwrap_or_else(|| Bytes::copy_from_slice(bytes)));
    }

    /// The owner of the flow's bytes, by which another process finds them, and the number of sent
    /// bytes.
    pub fn found_as(&self) -> Option<(u64, u64)> {
        self.kept.as_ref()?.found_as()
    }

    /// Reports that the flow has ended, if the end of the stream does not. Otherwise the same as
    /// [`Output::enqueue`]. [`Output::end`] follows.
    pub fn enqueue_end(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.enqueue_end();
        }
        self.send_end();
    }

    fn send_end(&mut self) {
        let end = self.payload.end();
        if !end.is_empty() {
            self.carrier.enqueue(&end, Bytes::new());
        }
    }

    /// To be called when there is nothing more to send for now: other flows may send.
    pub fn release_turn(&mut self) {
        self.carrier.release_turn();
    }

    /// Unit: bytes. Waiting to be taken by the carrier.
    pub fn waiting(&self) -> usize {
        self.carrier.waiting() + self.kept.as_ref().map_or(0, |kept| kept.waiting())
    }

    /// Hands on the waiting bytes. Ready when none wait.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        loop {
            ready!(self.carrier.poll_flush(cx))?;
            match self.kept.as_mut().and_then(|kept| kept.next_again()) {
                None => return Poll::Ready(Ok(())),
                Some(bytes) if bytes.is_empty() => self.send_end(),
                Some(bytes) => self.carrier.enqueue(&self.payload.head(bytes.len()), bytes),
            }
        }
    }

    /// Ends this half in order. Nothing may be waiting.
    pub fn end(&mut self) {
        if self.kept.as_mut().is_some_and(|kept| kept.end()) {
            // Other flows have their turns until then.
            self.carrier.release_turn();
        } else {
            self.carrier.end();
        }
    }

    /// Ends this half abruptly.
    pub fn reset(&mut self, code: Code) {
        if let Some(kept) = &mut self.kept {
            kept.let_go();
        }
        self.carrier.reset(code);
    }

    /// To be called when the flow will not be resumed: this half then ends as that of any other
    /// flow.
    pub fn give_up(&mut self) {
        if self.kept.as_mut().is_some_and(|kept| kept.let_go()) {
            self.carrier.end();
        }
    }

    /// Whether a requested end waits for the other end's.
    pub fn has_to_end(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.has_to_end())
    }

    /// Whether a [cut](Self::cut) follows the bytes that were enqueued before. Otherwise it waits until
    /// they have arrived.
    pub fn cuts_in_order(&self) -> bool {
        self.payload == Payload::Capsules || self.carrier.resets_in_order()
    }

    /// To be called when the flow broke: reports this behind the bytes that were enqueued before.
    /// Nothing may be waiting. The report has arrived once [`Output::poll_stopped`] is ready.
    pub fn cut(&mut self) {
        self.give_up();
        if self.payload == Payload::Capsules {
            // A stream that ends before its flow shows that the flow was cut off.
            self.carrier.end();
        } else {
            self.carrier.cut();
        }
    }

    /// Waits until the peer wants no more bytes of it, or has all of them. Not to be called again
    /// after that.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        match kept::poll_confirmed(self, cx) {
            Some(confirmed) => confirmed,
            None => self.carrier.poll_stopped(cx),
        }
    }

    /// The same, for a caller that waits for nothing else.
    ///
    /// # Errors
    /// When the peer reset it.
    pub async fn stopped(&mut self) -> Result<(), StreamError> {
        poll_fn(|cx| self.poll_stopped(cx)).await
    }
}

/// Pieces of a flow that are taken, and written, at once.
pub(super) const PIECES: usize = 64;

/// The half that the other end sends.
#[derive(Debug)]
pub struct Input {
    carrier: Receiver,
    payload: Payload,
    /// Parses the payload.
    flow: PayloadReader,
    /// Received bytes that were not parsed.
    data: Bytes,
    /// Whether a response to a request comes first.
    awaits_answer: bool,
    /// Bytes that were taken and put back.
    returned: VecDeque<Bytes>,
    /// The fault, reported once the bytes before it were handed on.
    fault: Option<StreamError>,
    /// How far the flow has been received, if it can be resumed.
    received: Option<Box<ReceivedBytes>>,
    /// What the response is expected to contain about resumption, until it has arrived.
    awaited: Option<Box<AwaitedGrant>>,
}

/// The field on resumption in the response that grants a flow.
#[derive(Debug)]
enum AwaitedGrant {
    /// The field grants that the flow may be resumed with this identity.
    Of(FlowId),
    /// The field announces for how many seconds the other end keeps flows. They are stored here.
    Announcement(Arc<AtomicU64>),
}

impl Input {
    fn new(carrier: Receiver, awaits_answer: bool) -> Self {
        let (payload, flow, data) = (Payload::default(), PayloadReader::default(), Bytes::new());
        let returned = VecDeque::new();
        Self {
            carrier,
            payload,
            flow,
            data,
            awaits_answer,
            returned,
            fault: None,
            received: None,
            awaited: None,
        }
    }

    /// Replaces the carrier. What was not parsed is sent again.
    fn succeed(&mut self, carrier: Receiver) {
        self.carrier = carrier;
        self.flow.begin_again();
        (self.data, self.fault) = (Bytes::new(), None);
        if let Some(received) = &mut self.received {
            received.confirm_again();
        }
    }

    /// Waits for the request that opens the stream.
    ///
    /// # Errors
    /// When the stream breaks, ends or begins with anything else.
    pub async fn request(&mut self) -> Result<Vec<Field>, StreamError> {
        poll_fn(|cx| self.carrier.poll_fields(cx)).await
    }

    /// Waits for the response to the request that opened the stream, where it was not received before.
    ///
    /// # Errors
    /// [`StreamError::Denied`] when that is the response, else when none arrives.
    pub async fn answer(&mut self) -> Result<(), StreamError> {
        poll_fn(|cx| self.poll_answer(cx)).await
    }

    /// Waits for bytes of the flow and takes those that are there. `false`: the other end has ended
    /// the flow. The peer gets credit for the bytes taken before, so of these no more may wait than
    /// are gathered.
    pub fn poll_pieces(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &mut VecDeque<Bytes>,
    ) -> Poll<Result<bool, StreamError>> {
        if !self.returned.is_empty() {
            pieces.append(&mut self.returned);
            return Poll::Ready(Ok(true));
        }
        if let Some(fault) = self.fault.take() {
            return Poll::Ready(Err(fault));
        }
        ready!(self.poll_answer(cx))?;
        if self.data.is_empty() {
            self.carrier.grant();
        }
        while pieces.len() < PIECES {
            let fault = match self.poll_bytes(cx) {
                Poll::Ready(Ok(Some(bytes))) => {
                    pieces.push_back(bytes);
                    continue;
                }
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

    /// Takes back bytes that were taken and not used: they come first again.
    pub fn put_back(&mut self, pieces: VecDeque<Bytes>) {
        self.returned = pieces;
    }

    /// Whether nothing more can arrive: the stream broke behind the bytes taken last.
    pub fn is_broken(&self) -> bool {
        self.fault.is_some()
    }

    /// Waits for the stream's end, after the flow's end: until then the other end may still reset
    /// it.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        if let Some(fault) = self.fault.take() {
            return Poll::Ready(Err(fault));
        }
        loop {
            // Frames that do not concern the flow are skipped, and no others may arrive.
            self.flow.read(&mut self.data)?;
            self.carrier.grant();
            match ready!(self.carrier.poll_data(cx))? {
                Some(data) => self.data = data,
                None => return Poll::Ready(self.flow.close().map(drop).map_err(StreamError::from)),
            }
        }
    }

    /// Unit: bytes. Arrived, and not taken.
    pub fn held(&self) -> usize {
        let returned: usize = self.returned.iter().map(Bytes::len).sum();
        self.carrier.held() + self.data.len() + returned
    }

    /// Waits until the other end resets the stream, even while it is not read. Waits for ever if
    /// there is no reset.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        self.carrier.poll_reset(cx)
    }

    /// Requests that the other end stops sending.
    pub fn stop(&mut self, code: Code) {
        self.carrier.stop(code);
    }

    /// The same as [`Input::answer`].
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        while self.awaits_answer {
            let fields = ready!(self.carrier.poll_fields(cx))?;
            match Response::decode(&fields, self.payload) {
                // A provisional response: the final one follows.
                Ok(None) => {}
                Ok(Some(Response::Granted)) => {
                    self.awaits_answer = false;
                    self.read_grant(&fields);
                }
                Ok(Some(Response::Denied { cause, .. })) => {
                    return Poll::Ready(Err(StreamError::Denied(cause)));
                }
                Err(_malformed) => {
                    return Poll::Ready(Err(StreamError::Wrong(Code::MESSAGE_ERROR)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the response that grants the flow whether the flow can be resumed.
    fn read_grant(&mut self, fields: &[Field]) {
        match self.awaited.take().as_deref() {
            Some(AwaitedGrant::Of(id)) if !resumption::grants(fields, *id) => self.received = None,
            Some(AwaitedGrant::Announcement(seconds)) => {
                seconds.store(resumption::announcement(fields).unwrap_or(0), Relaxed);
            }
            Some(AwaitedGrant::Of(_)) | None => {}
        }
    }

    /// The next bytes of the flow. None: it has ended.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        loop {
            if let Some(bytes) = self.flow.read(&mut self.data)? {
                if let Some(received) = &mut self.received {
                    received.count(bytes.len() as u64);
                }
                return Poll::Ready(Ok(Some(bytes)));
            }
            if self.flow.has_ended() {
                if let Some(received) = &mut self.received {
                    received.end();
                }
                return Poll::Ready(Ok(None));
            }
            match ready!(self.carrier.poll_data(cx))? {
                Some(data) => self.data = data,
                // The end of the stream alone is not the end of the flow.
                None if !self.flow.close()? => return Poll::Ready(Err(StreamError::Cut)),
                None => {}
            }
        }
    }
}
