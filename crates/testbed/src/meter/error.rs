//! What can go wrong between two meters.

use super::message::Refusal;
use super::wire::WireError;
use std::io;
use std::net::SocketAddr;

/// Why one flow ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// The connection could not be established.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The last address tried.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel gave up the connection while this end sent.
    #[error("the connection failed while sending: {0}")]
    Send(#[source] io::Error),
    /// The kernel gave up the connection while this end received.
    #[error("the connection failed while receiving: {0}")]
    Receive(#[source] io::Error),
    /// The payload ended without the sender's end mark.
    #[error(
        "the connection was closed after {received} bytes, before the sender's end mark: \
         the sender died, or something on the path cut the transfer short"
    )]
    Truncated {
        /// Payload that had arrived.
        received: u64,
    },
    /// The peer closed in the middle of an exchange.
    #[error("the other end closed the connection in the middle of a message")]
    Cut,
    /// The peer closed where an answer was due.
    #[error("the other end closed the connection without an answer; is it a meter?")]
    NoAnswer,
    /// Another number of bytes arrived than were sent.
    #[error(
        "{sent} bytes were sent, {received} arrived: something on the path lost or added bytes"
    )]
    Count {
        /// Payload as the sender counted it.
        sent: u64,
        /// Payload as the receiver counted it.
        received: u64,
    },
    /// Other bytes arrived than were sent.
    #[error("the bytes were changed on the way: hash {sent} when sent, {received} when received")]
    Hash {
        /// XXH3-128 at the sender.
        sent: String,
        /// XXH3-128 at the receiver.
        received: String,
    },
    /// The transfer has not the amount that was requested.
    #[error("{asked} bytes were requested, the other end sent {received}")]
    Amount {
        /// What the request asked for.
        asked: u64,
        /// What came.
        received: u64,
    },
    /// The peer sent something that is no frame.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A frame that is not expected here.
    #[error("the other end sent {what} unexpectedly")]
    Unexpected {
        /// What came.
        what: &'static str,
    },
    /// The server refused.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// The run's time was up.
    #[error("not finished when the time limit was reached")]
    TimeLimit,
    /// The peer sent nothing for too long.
    #[error("the other end sent nothing for {seconds} s")]
    Silent {
        /// How long this end waited.
        seconds: u64,
    },
    /// The socket refused to be set up.
    #[error("cannot {doing}: {source}")]
    Socket {
        /// What was tried.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl FlowError {
    /// Whether the connection broke, so that another one may do better.
    pub(super) fn is_break(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::Send(_)
                | Self::Receive(_)
                | Self::Truncated { .. }
                | Self::Cut
                | Self::NoAnswer
        )
    }
}

/// Why a run of the client gave no report at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeterError {
    /// The server's name cannot be resolved.
    #[error("cannot find the address of {host:?}: {source}")]
    Resolve {
        /// The name as given.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The server's name has no address that fits `--bind`.
    #[error("{host:?} has no address of the family of the local address")]
    NoAddress {
        /// The name as given.
        host: String,
    },
    /// The kernel lacks the congestion control or does not permit it.
    #[error(
        "congestion control {name:?} is not available here: {source} (this kernel has: {available})"
    )]
    Congestion {
        /// What was asked for.
        name: String,
        /// What the kernel has.
        available: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The server refused.
    #[error("the server refused: {0}")]
    Refused(Refusal),
    /// Options that contradict each other.
    #[error("{0}")]
    Options(String),
    /// A local resource is missing.
    #[error("cannot {doing}: {source}")]
    Local {
        /// What was tried.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a server stopped or never began.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address as given.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
}
