//! The events that a connection reports to its caller.

use super::flow::FlowFault;
use crate::connect::Request;
use crate::http3::Code;
use midhop_units::Duration;
use quinn_proto::{ConnectionError, StreamId};

/// An event of a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum CarrierEvent {
    /// The handshake is complete: the peer has shown its certificates.
    Connected,
    /// The handshake is confirmed, at the end that began it: the peer has accepted this end's certificates.
    Confirmed,
    /// The peer's settings have arrived.
    Settled,
    /// The peer has opened a stream for a flow. The caller reads its frames.
    Opened(StreamId),
    /// The peer requests a flow.
    Asked(StreamId, Box<Request>),
    /// The peer has granted a flow.
    Granted(StreamId),
    /// Bytes of a flow have arrived, or its end.
    Readable(StreamId),
    /// Nothing of a flow waits to be sent any more: more may be put.
    Writable(StreamId),
    /// The peer has acknowledged all of this end's half.
    Delivered(StreamId),
    /// The peer has stopped this end's half.
    Stopped(StreamId, Code),
    /// A flow broke.
    Broken(StreamId, FlowFault),
    /// The peer accepts more flows than before.
    Available,
    /// The peer accepts no more flows; open flows continue.
    Leaving,
    /// The peer has had more to send than the path takes, for so long.
    Backlog(Duration),
    /// The connection is lost, and why.
    Lost(ConnectionError),
}
