//! The bytes of a flow that a stream keeps, so that the flow outlives the stream.
//!
//! A flow that can be resumed keeps what it has sent until the other end has passed it on. Each end
//! confirms that: together with bytes or the end of its own direction, or otherwise after a pause.
//!
//! Invariant: a half ends only after the other end's half, and after this end has confirmed that
//! end. Until then it still has something to confirm.
//! A near end leaves a flow only when it knows that the far end has this confirmation: QUIC
//! acknowledges it; over TCP the far end's half ends after it.

use super::{Input, Output, StreamError};
use bytes::Bytes;
use midhop_linux::shared_pool::PoolWriter;
use midhop_pep::config::ClassPlan;
use midhop_tunnel::connect::Request;
use midhop_tunnel::http3::Code;
use midhop_tunnel::payload::Payload;
use midhop_tunnel::resumption::{FlowId, NotResumable, SentBytes};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// How long a few bytes that were passed on wait for others, before they are confirmed alone.
const PAUSE: Duration = Duration::from_secs(2);
/// Unit: bytes. What each flow may keep in any case.
const KEPT_LEAST: u64 = 16 << 10;

/// The identity of a flow that can be resumed, and the request for that.
#[derive(Debug)]
pub struct Offer {
    /// Its identity.
    pub id: FlowId,
    /// The request that opened it, at the end that sent it.
    pub request: Option<Request>,
    /// Its class.
    pub class: ClassPlan,
}

/// What an output keeps of its flow.
#[derive(Debug)]
pub struct KeptBytes {
    sent: SentBytes,
    /// The memory in which they are kept; none: another process does not find them.
    writer: Option<PoolWriter>,
    /// Unit: bytes. The most that all flows of the session may keep.
    most: u64,
    /// Whether the flow can still be resumed.
    lasts: bool,
    /// Bytes that have to be sent again over the present carrier, before anything else.
    again: VecDeque<Bytes>,
    end_again: bool,
    /// The offset to confirm with the next bytes.
    to_confirm: Option<u64>,
    /// The timer after which it is confirmed without any bytes.
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether a confirmation waits in the carrier.
    confirming: bool,
    /// Whether this half has reached its end.
    ends: bool,
    /// Whether the stream's half has ended.
    ended: bool,
    /// The kept bytes, counted for the session.
    count: KeptCount,
}

/// What one flow keeps, counted with the others of its session.
#[derive(Debug, Default)]
pub struct KeptCount {
    all: Arc<AtomicU64>,
    own: u64,
}

impl KeptCount {
    /// Creates it as a part of `all`. Unit: bytes.
    pub fn of(all: &Arc<AtomicU64>) -> Self {
        Self { all: all.clone(), own: 0 }
    }

    /// Unit: bytes. What the others leave of `most`.
    fn left_of(&self, most: u64) -> u64 {
        most.saturating_sub(self.all.load(Relaxed).saturating_sub(self.own))
    }

    fn set(&mut self, bytes: u64) {
        if bytes != self.own {
            self.all.fetch_add(bytes.wrapping_sub(self.own), Relaxed);
            self.own = bytes;
        }
    }
}

impl Drop for KeptCount {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl KeptBytes {
    /// Creates it to keep at most this many bytes together with the others of its session.
    pub fn new(most: u64, count: KeptCount) -> Self {
        Self {
            sent: SentBytes::default(),
            writer: None,
            most,
            lasts: true,
            again: VecDeque::new(),
            end_again: false,
            to_confirm: None,
            pause: None,
            confirming: false,
            ends: false,
            ended: false,
            count,
        }
    }

    /// Creates it from what another process has sent.
    pub fn left(sent: SentBytes, most: u64, writer: PoolWriter) -> Self {
        Self { sent, writer: Some(writer), ..Self::new(most, KeptCount::default()) }
    }

    /// Keeps the bytes in the memory of `writer` from now on, in which the next process finds them.
    /// Nothing changes if there is no room for those that are kept already.
    pub fn keep_in(&mut self, mut writer: PoolWriter) {
        if self.sent.move_to(|offset, bytes| writer.write(offset, bytes)) {
            self.writer = Some(writer);
        }
    }

    /// The owner of the bytes, by which the next process finds them, and the number of sent bytes.
    pub fn found_as(&self) -> Option<(u64, u64)> {
        Some((self.writer.as_ref()?.owner(), self.sent.sent()))
    }

    /// Copies the bytes that are sent next into the memory in which they are kept.
    pub fn copy(&mut self, bytes: &[u8]) -> Option<Bytes> {
        let copy = self.writer.as_mut()?.write(self.sent.sent(), bytes);
        if copy.is_none() {
            // The memory is full. From here on the flow ends with this process.
            self.writer = None;
        }
        copy
    }

    /// Whether the flow can be resumed.
    pub fn lasts(&self) -> bool {
        self.lasts
    }

    /// Unit: bytes. What was sent in total.
    pub fn sent(&self) -> u64 {
        self.sent.sent()
    }

    /// Unit: bytes. What is kept.
    pub fn bytes(&self) -> u64 {
        self.sent.kept()
    }

    /// Unit: bytes. Not confirmed by the other end as passed on; none: it confirms nothing.
    pub fn unconfirmed(&self) -> Option<u64> {
        self.lasts.then(|| self.sent.unconfirmed())
    }

    /// Unit: bytes. Waiting to be sent again.
    pub fn waiting(&self) -> usize {
        self.again.iter().map(Bytes::len).sum()
    }

    /// To be called when these bytes are sent. Returns what has to be sent before them.
    pub fn enqueue(&mut self, bytes: &Bytes, payload: Payload) -> Vec<u8> {
        if self.lasts {
            self.sent.enqueue(bytes.clone(), self.count.left_of(self.most).max(KEPT_LEAST));
            self.count.set(self.sent.kept());
        }
        self.to_confirm.take().map_or_else(Vec::new, |offset| payload.confirmation(offset))
    }

    /// To be called when the flow's end is sent.
    pub fn enqueue_end(&mut self) {
        self.sent.enqueue_end();
    }

    /// To be called when this half has reached its end. Returns whether the stream ends later.
    pub fn end(&mut self) -> bool {
        self.ends = true;
        self.lasts
    }

    /// Whether its stream still has to end.
    pub fn has_to_end(&self) -> bool {
        self.lasts && !self.ended
    }

    /// The next piece to be sent again; none: there is none. An empty piece is the flow's end.
    pub fn next_again(&mut self) -> Option<Bytes> {
        let piece = self.again.pop_front();
        piece.or_else(|| std::mem::take(&mut self.end_again).then(Bytes::new))
    }

    /// To be called when the flow will not be resumed. Returns whether this half had reached its
    /// end before.
    pub fn let_go(&mut self) -> bool {
        (self.sent, self.writer) = (SentBytes::default(), None);
        self.count.set(0);
        (self.to_confirm, self.pause) = (None, None);
        std::mem::replace(&mut self.lasts, false) && self.ends
    }

    /// Whether the other end has passed on all bytes, and the end.
    pub fn is_confirmed(&self) -> bool {
        self.sent.is_confirmed()
    }

    /// Whether the flow can continue with an end that has received up to `offset`.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn can_go_on_after(&self, offset: u64) -> Result<(), NotResumable> {
        self.sent.after(offset).map(drop)
    }

    /// Continues over another carrier: what the other end lacks is sent again.
    ///
    /// # Errors
    /// When that is not kept any more.
    pub fn go_on_after(&mut self, offset: u64, count: KeptCount) -> Result<(), NotResumable> {
        (self.again, self.end_again) = self.sent.after(offset)?;
        self.count = count;
        self.count.set(self.sent.kept());
        (self.to_confirm, self.pause, self.confirming, self.ended) = (None, None, false, false);
        Ok(())
    }
}

/// Exchanges confirmations with the other end of a flow that can be resumed. This end has passed on
/// what it has received up to the offset `delivered`.
///
/// # Errors
/// When the stream breaks, or the other end confirms what was never sent.
pub fn confirm(
    output: &mut Output,
    input: &mut Input,
    cx: &mut Context<'_>,
    delivered: u64,
) -> Result<(), StreamError> {
    let Some(kept) = output.kept.as_deref_mut().filter(|kept| kept.lasts) else { return Ok(()) };
    let Some(received) = &mut input.received else {
        // The other end has not granted that the flow can be resumed.
        output.give_up();
        return Ok(());
    };
    if let Some(offset) = input.flow.take_confirmed() {
        kept.sent.confirm(offset).map_err(|_| StreamError::Wrong(Code::MESSAGE_ERROR))?;
        kept.count.set(kept.sent.kept());
        if kept.sent.kept() == 0
            && let Some(writer) = &mut kept.writer
        {
            writer.rest();
        }
    }
    if received.is_unconfirmed(delivered) {
        let is_due = received.is_due(delivered, kept.ends) || {
            let pause = kept.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
            pause.as_mut().poll(cx).is_ready()
        };
        if is_due {
            received.confirm(delivered);
            (kept.to_confirm, kept.pause) = (Some(delivered), None);
        }
    }
    // Nothing but the end of the stream shows the other end over TCP that its confirmation has arrived.
    let is_known = output.carrier.reports_arrival() || kept.sent.is_confirmed();
    let is_ending = kept.ends && !kept.ended && received.is_end_confirmed() && is_known;
    let is_idle =
        kept.to_confirm.is_none() && !kept.confirming && kept.again.is_empty() && !kept.end_again;
    if is_idle && !is_ending {
        return Ok(());
    }
    if output.poll_flush(cx)?.is_pending() {
        return Ok(());
    }
    let payload = output.payload;
    let Some(kept) = output.kept.as_deref_mut() else { return Ok(()) };
    if let Some(offset) = kept.to_confirm.take() {
        kept.confirming = true;
        output.carrier.enqueue(&payload.confirmation(offset), Bytes::new());
        if output.poll_flush(cx)?.is_pending() {
            return Ok(());
        }
    }
    if let Some(kept) = output.kept.as_deref_mut() {
        kept.confirming = false;
        kept.ended |= is_ending;
    }
    // The flow leaves the queue. Its other bytes enter it again.
    output.carrier.release_turn();
    if is_ending {
        output.carrier.end();
    }
    Ok(())
}

/// Whether the other end has this half's last confirmation, once the stream has ended; an error
/// if the stream broke.
/// Over TCP the other end's half has ended then.
pub fn poll_confirmation_arrived(
    output: &mut Output,
    cx: &mut Context<'_>,
) -> Poll<Result<(), StreamError>> {
    if !output.carrier.reports_arrival() {
        return Poll::Ready(Ok(()));
    }
    match ready!(output.carrier.poll_stopped(cx)) {
        Err(lost @ StreamError::Lost(_)) => Poll::Ready(Err(lost)),
        // Who wants no more of it has all.
        Ok(()) | Err(_) => Poll::Ready(Ok(())),
    }
}

/// Whether the other end has passed on all of the flow; an error if the stream broke.
pub(super) fn poll_confirmed(
    output: &mut Output,
    cx: &mut Context<'_>,
) -> Option<Poll<Result<(), StreamError>>> {
    let kept = output.kept.as_deref().filter(|kept| kept.lasts)?;
    if kept.is_confirmed() {
        return Some(Poll::Ready(Ok(())));
    }
    // The carrier's other end has acknowledged everything. Its confirmation follows, or has been
    // lost with the carrier.
    Some(match output.carrier.poll_stopped(cx) {
        Poll::Ready(Err(fault)) => Poll::Ready(Err(fault)),
        Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
    })
}
