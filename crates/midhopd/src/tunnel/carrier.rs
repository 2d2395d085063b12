//! The carrier of a flow's stream between two proxies.
//!
//! A carrier transports header fields and payload from one end to the other, distinguishes an end from a reset, and
//! grants credit when its reader asks for more. It does not interpret requests or payload.

mod gone;
pub mod http2;

use self::gone::Gone;
use super::quic::{QuicConnection, QuicReceiver, QuicSender};
use super::stream::StreamError;
use bytes::Bytes;
use midhop_pep::config::ClassPlan;
use midhop_tunnel::http3::{Code, Field};
use std::net::{Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

/// The connection that a stream belongs to.
#[derive(Debug, Clone)]
pub enum Connection {
    /// HTTP/3.
    Quic(QuicConnection),
    /// HTTP/2. h2 handles violations of its rules.
    Tcp {
        /// The session's number in this process.
        number: u64,
        /// The peer's address.
        peer: SocketAddr,
    },
    /// A connection of a process that is gone.
    Gone,
}

impl Connection {
    /// Address of its other end.
    pub fn remote_address(&self) -> SocketAddr {
        match self {
            Self::Quic(connection) => connection.remote_address(),
            Self::Tcp { peer, .. } => *peer,
            Self::Gone => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        }
    }

    /// Whether it is HTTP/2 over TCP.
    pub fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp { .. })
    }

    /// Whether it ended because its peer violated the protocol in a way that concerns it as a whole.
    pub fn is_broken(&self) -> bool {
        match self {
            Self::Quic(connection) => connection.is_broken(),
            Self::Tcp { .. } | Self::Gone => false,
        }
    }

    /// Closes the connection because its peer violated the protocol.
    pub fn close(&self, code: Code) {
        match self {
            Self::Quic(connection) => connection.break_off(code),
            Self::Tcp { .. } | Self::Gone => {}
        }
    }
}

/// The half of a stream that this end sends.
#[derive(Debug)]
pub enum Sender {
    /// A half of a QUIC stream.
    Quic(QuicSender),
    /// A half of an HTTP/2 stream.
    Http2(http2::Http2Sender),
    /// A half of a process that is gone.
    Gone(Gone),
}

/// The half of a stream that the other end sends.
#[derive(Debug)]
pub enum Receiver {
    /// A half of a QUIC stream.
    Quic(QuicReceiver),
    /// A half of an HTTP/2 stream.
    Http2(http2::Http2Receiver),
    /// A half of a process that is gone.
    Gone(Gone),
}

/// Calls the same method of each variant.
macro_rules! each {
    ($self:ident, $half:ident => $call:expr) => {
        match $self {
            Self::Quic($half) => $call,
            Self::Http2($half) => $call,
            Self::Gone($half) => $call,
        }
    };
}

impl Sender {
    /// A half of a process that is gone.
    pub fn gone() -> Self {
        Self::Gone(Gone)
    }

    /// Assigns it to a flow of the given class.
    pub fn join(&mut self, class: &ClassPlan) {
        each!(self, half => half.join(class));
    }

    /// Takes header fields. Nothing may be waiting.
    ///
    /// # Errors
    /// When they cannot be sent.
    pub fn enqueue_fields(&mut self, fields: &[Field]) -> Result<(), StreamError> {
        match self {
            Self::Quic(half) => {
                half.enqueue_fields(fields);
                Ok(())
            }
            Self::Http2(half) => half.enqueue_fields(fields),
            Self::Gone(half) => half.enqueue_fields(fields),
        }
    }

    /// Takes payload: `head`, which is short, and the bytes after it. Nothing may be waiting.
    pub fn enqueue(&mut self, head: &[u8], bytes: Bytes) {
        each!(self, half => half.enqueue(head, bytes));
    }

    /// To be called when there is nothing more to send for now: other flows may send.
    pub fn release_turn(&mut self) {
        each!(self, half => half.release_turn());
    }

    /// Unit: bytes. Waiting to be taken by the carrier.
    pub fn waiting(&self) -> usize {
        each!(self, half => half.waiting())
    }

    /// Hands on the waiting bytes. Ready when none wait.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        each!(self, half => half.poll_flush(cx))
    }

    /// Ends this half in order. Nothing may be waiting.
    pub fn end(&mut self) {
        each!(self, half => half.end());
    }

    /// Ends this half abruptly.
    pub fn reset(&mut self, code: Code) {
        each!(self, half => half.reset(code));
    }

    /// Whether a reset follows the bytes that were enqueued before it. QUIC's reset may overtake them,
    /// so it waits until they have arrived.
    pub fn resets_in_order(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// Whether [`Sender::poll_stopped`] reports that the peer has all. Otherwise it reports that all has left.
    pub fn reports_arrival(&self) -> bool {
        matches!(self, Self::Quic(_))
    }

    /// Ends this half abruptly, behind the bytes that were enqueued. The reset is complete once
    /// [`Sender::poll_stopped`] is ready. Nothing may be waiting.
    pub fn cut(&mut self) {
        each!(self, half => half.cut());
    }

    /// Waits until the peer wants no more bytes of it, or has all of them. Not to be called again
    /// after that.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        each!(self, half => half.poll_stopped(cx))
    }
}

impl Receiver {
    /// A half of a process that is gone.
    pub fn gone() -> Self {
        Self::Gone(Gone)
    }

    /// Waits for header fields, before which nothing else may arrive.
    pub fn poll_fields(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Field>, StreamError>> {
        each!(self, half => half.poll_fields(cx))
    }

    /// Waits for payload. None: the other end has ended its half.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        each!(self, half => half.poll_data(cx))
    }

    /// Unit: bytes. Arrived, and not handed out.
    pub fn held(&self) -> usize {
        each!(self, half => half.held())
    }

    /// To be called when everything that was handed out has been passed on: the peer may send as
    /// much again.
    pub fn grant(&mut self) {
        match self {
            Self::Quic(half) => half.grant(),
            Self::Http2(half) => half.grant(),
            Self::Gone(_) => {}
        }
    }

    /// Waits until the other end resets the stream, even while it is not read. Waits for ever if
    /// there is no reset.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        each!(self, half => half.poll_reset(cx))
    }

    /// Requests that the other end stops sending.
    pub fn stop(&mut self, code: Code) {
        each!(self, half => half.stop(code));
    }
}
