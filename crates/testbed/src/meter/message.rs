//! Control messages between the two ends of a meter.

use super::gaps::Gaps;
use super::series::{Arrivals, Samples};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which way the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The server sends.
    Down,
    /// The client sends.
    Up,
}

/// How much one flow sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// This much payload. Unit: bytes.
    Bytes(u64),
    /// As much as the sender can write in this time. Unit: nanoseconds.
    TimeNs(u64),
}

impl Amount {
    /// The amount of which `bytes` have arrived already. A time does not depend on them.
    pub(super) fn without(self, bytes: u64) -> Self {
        match self {
            Self::Bytes(all) => Self::Bytes(all.saturating_sub(bytes)),
            Self::TimeNs(_) => self,
        }
    }
}

/// Client to server: requests a transfer over this connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// Chosen by the client at random; all connections of one run share it.
    pub(super) session: u64,
    /// Number of the connection in its run.
    pub(super) flow: u32,
    pub(super) direction: Direction,
    pub(super) amount: Amount,
    /// Congestion control that the server is to use; its system's default when none.
    pub(super) congestion: Option<String>,
    /// Seed of the payload.
    pub(super) seed: u64,
    /// Time between samples; none: no samples. Unit: nanoseconds.
    pub(super) interval_ns: Option<u64>,
    /// Whether the server's log is to have the times without payload.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) gaps: bool,
}

/// Server to client, before the first byte of payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Accept {
    /// The server's congestion control on this connection, as its kernel names it.
    pub(super) congestion: String,
    /// See [`super::clock::name`].
    pub(super) clock: Option<String>,
}

/// Server to client: refuses the request, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The kind of refusal.
    pub reason: RefusalReason,
    /// One sentence for the user.
    pub detail: String,
}

/// Why a server refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// The server does not have the requested congestion control.
    Congestion,
    /// The request exceeds the server's limits.
    Limit,
    /// The request is not valid.
    Request,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Sender to receiver, behind the last byte of payload. Without it, the payload was cut short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    /// Payload sent on this connection so far, all requests together.
    pub(super) bytes: u64,
    /// XXH3-128 of it, hexadecimal.
    pub(super) hash: String,
}

/// Receiver to sender, once it has an [`End`]: what arrived. Sent only after an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Received {
    /// Payload received on this connection so far, all requests together.
    pub(super) bytes: u64,
    /// XXH3-128 of it, hexadecimal.
    pub(super) hash: String,
    /// When the first byte of this request arrived, on the receiver's clock.
    pub(super) first_byte_ns: u64,
    /// When the last byte of this request arrived, on the receiver's clock.
    pub(super) last_byte_ns: u64,
}

/// Client to server, on a connection of its own when all flows are done: requests the server's
/// logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fetch {
    pub(super) session: u64,
}

/// The log of one connection at one end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Log {
    /// Number of the connection in its run.
    pub(super) flow: u32,
    /// Whether the connection is closed, so that no field below changes any more.
    pub(super) closed: bool,
    /// This end's congestion control, as its kernel names it.
    pub(super) congestion: String,
    /// See [`super::clock::name`]. A client whose upload breaks off has not received it in an
    /// [`Accept`].
    #[serde(default)]
    pub(super) clock: Option<String>,
    /// When this end's part of the connection began, on its clock.
    pub(super) origin_ns: u64,
    /// Payload sent from here.
    pub(super) sent: u64,
    /// Payload that arrived here.
    pub(super) received: u64,
    /// When the last of it arrived, on this end's clock.
    pub(super) last_byte_ns: u64,
    /// Segments that this end retransmitted.
    pub(super) retransmissions: u64,
    /// Smallest round trip that this end measured. Unit: microseconds.
    pub(super) rtt_min_us: Option<u64>,
    /// Samples of `TCP_INFO`; empty at a receiver.
    pub(super) samples: Samples,
    /// Payload received over time; empty at a sender.
    pub(super) arrivals: Arrivals,
    /// Times without payload, if the client wants them; none at a sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gaps: Option<Gaps>,
    /// What ended the connection early.
    pub(super) error: Option<String>,
}
