//! Streams whose flows can be resumed, and how they are replaced.

use super::kept::{KeptBytes, KeptCount, Offer};
use super::{AwaitedGrant, Output, Stream, StreamError};
use crate::tunnel::carrier::{Connection, Receiver, Sender};
use crate::tunnel::resumable_flows::FinishedFlow;
use bytes::Bytes;
use midhop_linux::shared_pool::PoolWriter;
use midhop_tunnel::connect::Response;
use midhop_tunnel::http3::Code;
use midhop_tunnel::payload::{Payload, PayloadReader};
use midhop_tunnel::quic::ConnectionError;
use midhop_tunnel::resumption::{self, NotResumable, ReceivedBytes, SentBytes};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Interval of the confirmations, as a fraction of the bytes that may be kept, and its minimum. A
/// slow return link carries a few such datagrams a second.
const CONFIRMATIONS: u64 = 16;
const CONFIRMED_LEAST: u64 = 256 << 10;

/// Unit: bytes. Interval of the confirmations, if `most` may be kept.
fn confirmed_each(most: u64) -> u64 {
    (most / CONFIRMATIONS).max(CONFIRMED_LEAST)
}

/// State that the streams of a session share. Each stream holds it.
#[derive(Debug, Default)]
pub struct SessionSeat {
    /// Unit: bytes. The kept bytes of flows that can be resumed.
    kept: Arc<AtomicU64>,
    /// Unit: seconds. How long the other end keeps flows, if it has announced that in a response.
    resumes: Arc<AtomicU64>,
    /// Whether the session was closed on purpose, and its flows with it.
    closed: AtomicBool,
}

impl SessionSeat {
    /// Unit: bytes. What the session's streams keep of flows that can be resumed.
    pub fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Whether a response has announced that the other end keeps flows.
    pub fn resumes(&self) -> bool {
        self.resumes.load(Relaxed) > 0
    }

    /// Records that the session is closed on purpose: no flow outlives it.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
    }
}

/// The position of a flow that another process has left.
#[derive(Debug)]
pub struct LeftFlow {
    /// Bytes that the process had sent, and keeps.
    pub sent: SentBytes,
    /// Unit: bytes. Received and passed on.
    pub delivered: u64,
    /// Whether the end was passed on as well.
    pub delivered_end: bool,
    /// The memory in which sent bytes are kept.
    pub writer: PoolWriter,
}

impl Output {
    /// Unit: bytes. Sent, and not confirmed by the other end as passed on; none: it confirms
    /// nothing.
    pub fn unconfirmed(&self) -> Option<u64> {
        self.kept.as_ref()?.unconfirmed()
    }
}

impl Stream {
    /// Creates the stream of a flow that another process has left. Its carrier is gone.
    pub fn left(flow: LeftFlow, offer: Offer, most: u64) -> Self {
        let LeftFlow { sent, delivered, delivered_end, writer } = flow;
        let mut this = Self::new(Connection::Gone, Sender::gone(), Receiver::gone(), false);
        this.carry_in(Payload::Capsules);
        if delivered_end {
            this.input.flow = PayloadReader::ended(Payload::Capsules);
        }
        this.output.kept = Some(Box::new(KeptBytes::left(sent, most, writer)));
        let received = ReceivedBytes::left(delivered, delivered_end, confirmed_each(most));
        this.input.received = Some(Box::new(received));
        this.offer = Some(Box::new(offer));
        this
    }

    /// Keeps the bytes in memory in which the next process finds them.
    pub fn keep_in(&mut self, writer: PoolWriter) {
        if let Some(kept) = &mut self.output.kept {
            kept.keep_in(writer);
        }
    }

    /// Makes the flow resumable: at most this many bytes are kept for that. At the requesting end
    /// this applies only if the response grants it. To be called before any of the flow's bytes.
    pub fn keep(&mut self, offer: Offer, most: u64) {
        let count = self.kept_count();
        self.output.kept = Some(Box::new(KeptBytes::new(most, count)));
        // Bytes that were read and put back are read once more.
        let returned = self.input.returned.iter().map(|piece| piece.len() as u64).sum();
        self.input.received = Some(Box::new(ReceivedBytes::of(returned, confirmed_each(most))));
        self.input.awaited = self.input.awaits_answer.then(|| Box::new(AwaitedGrant::Of(offer.id)));
        self.offer = Some(Box::new(offer));
    }

    /// Stores the announcements in responses on this stream for its session.
    pub fn note_announcements(&mut self) {
        let seconds = self.seat.as_ref().map(|seat| seat.resumes.clone());
        self.input.awaited = seconds.map(|it| Box::new(AwaitedGrant::Announcement(it)));
    }

    fn kept_count(&self) -> KeptCount {
        self.seat.as_ref().map_or_else(KeptCount::default, |seat| KeptCount::of(&seat.kept))
    }

    /// Whether the flow can be resumed, as the other end has granted.
    pub fn lasts(&self) -> bool {
        self.output.kept.as_ref().is_some_and(|kept| kept.lasts())
            && self.input.received.is_some()
            && !self.input.awaits_answer
    }

    /// Whether the flow outlives this error of its stream: its carrier is gone, and it was not
    /// ended on purpose.
    pub fn outlives(&self, error: &io::Error) -> bool {
        let fault = error.get_ref().and_then(|error| error.downcast_ref());
        let Some(StreamError::Lost(why)) = fault else { return false };
        let by_quic = why.get_ref().and_then(|why| why.downcast_ref::<ConnectionError>());
        let is_gone = match by_quic {
            Some(ConnectionError::ApplicationClosed(close)) => {
                Code(close.error_code.into_inner()) == Code::PEER_SILENT
            }
            Some(why) => matches!(
                why,
                ConnectionError::TimedOut | ConnectionError::Reset | ConnectionError::LocallyClosed
            ),
            None => why.kind() != io::ErrorKind::ConnectionAborted,
        };
        is_gone && self.lasts() && !self.is_closed() && !self.connection.is_broken()
    }

    /// Whether its session was closed on purpose.
    pub fn is_closed(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.closed.load(Relaxed))
    }

    /// Unit: bytes. Kept, so that the flow can be resumed.
    pub fn kept(&self) -> u64 {
        self.output.kept.as_ref().map_or(0, |kept| kept.bytes())
    }

    /// Whether both ends have passed on all of the flow, and have confirmed that.
    pub fn is_complete(&self) -> bool {
        self.output.kept.as_ref().is_some_and(|kept| kept.is_confirmed())
            && self.input.received.as_ref().is_some_and(|received| received.is_end_confirmed())
    }

    /// How far the flow was sent and received, once both directions have ended.
    pub fn finished(&self) -> Option<FinishedFlow> {
        let (kept, received) = (self.output.kept.as_ref()?, self.input.received.as_ref()?);
        kept.lasts().then(|| FinishedFlow { sent: kept.sent(), received: received.offset() })
    }

    /// Ends the stream of a flow that is complete: confirms the other end's direction up to `received`, and sends this
    /// direction's end if it is `lacking`.
    ///
    /// # Errors
    /// When the stream breaks.
    pub async fn conclude(&mut self, received: u64, lacking: bool) -> Result<(), StreamError> {
        self.input.flow = PayloadReader::ended(Payload::Capsules);
        let payload = self.output.payload;
        let mut last = payload.confirmation(received);
        if lacking {
            last.extend(payload.end());
        }
        self.output.carrier.enqueue(&last, Bytes::new());
        poll_fn(|cx| self.output.poll_flush(cx)).await?;
        self.output.end();
        poll_fn(|cx| self.input.poll_end(cx)).await?;
        self.output.stopped().await
    }

    /// The offset up to which the flow has been received.
    pub fn received(&self) -> u64 {
        self.input.received.as_ref().map_or(0, |received| received.offset())
    }

    /// Whether the flow can continue with an end that has received it up to `offset`.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn can_go_on_after(&self, offset: u64) -> Result<(), NotResumable> {
        let kept = self.output.kept.as_ref().filter(|kept| kept.lasts());
        kept.map_or(Err(NotResumable::Forgotten), |kept| kept.can_go_on_after(offset))
    }

    /// Continues the flow on another stream, whose other end has received it up to `offset`.
    ///
    /// # Errors
    /// When it cannot continue from there. Then nothing has changed.
    pub fn succeed(&mut self, by: Self, offset: u64) -> Result<(), NotResumable> {
        self.can_go_on_after(offset)?;
        let count = by.kept_count();
        let Self { connection, output, input, seat, offer: _ } = by;
        if let Some(kept) = &mut self.output.kept {
            kept.go_on_after(offset, count)?;
        }
        self.output.carrier = output.carrier;
        self.input.succeed(input.carrier);
        (self.connection, self.seat) = (connection, seat);
        Ok(())
    }

    /// Waits for the response to a request that resumes a flow. Returns the offset up to which the other end has
    /// received it.
    ///
    /// # Errors
    /// When the other end does not resume it, or the stream breaks.
    pub async fn resumed(&mut self) -> Result<u64, StreamError> {
        loop {
            let fields = poll_fn(|cx| self.input.carrier.poll_fields(cx)).await?;
            match Response::decode(&fields, self.input.payload) {
                Ok(None) => {}
                Ok(Some(Response::Granted)) => {
                    // Otherwise it has opened another flow, which is reset when the stream is
                    // dropped.
                    let offset = resumption::resumed_at(&fields);
                    return offset.ok_or(StreamError::Wrong(Code::MESSAGE_ERROR));
                }
                Ok(Some(Response::Denied { cause, .. })) => return Err(StreamError::Denied(cause)),
                Err(_malformed) => return Err(StreamError::Wrong(Code::MESSAGE_ERROR)),
            }
        }
    }
}
