//! What two proxies around a link say to each other, and how they fill it, without any I/O.
//!
//! [`connect`] is the request that asks for a flow and the response to it, [`target`] where the flow
//! wants to go, [`template`] how a path says so, [`cause`] why it cannot; [`payload`] is how its bytes are
//! carried, [`http3`] puts all of that into frames, and [`http2`] says what is other where UDP is blocked.
//! [`control`] lets the congestion
//! control of midhop-congestion steer a QUIC connection, [`departures`] lets its datagrams go at the pace
//! that the control asks for, [`transport`](transport()) gives QUIC the settings that a leg needs and [`peer`] takes those from a plan, [`fec`]
//! brings back what the leg loses, [`reassembly`] puts in order what a lossy leg has put out of it, and
//! [`credit`] bounds what may wait for a reader that stalls. [`quic`] is one end of a connection, all of that together.
//!
//! Invariant: nothing here opens a socket or reads a clock; QUIC itself is quinn-proto's, which is
//! handed the time like everything else.

pub mod cause;
pub mod connect;
pub mod control;
pub mod credit;
pub mod departures;
pub mod fec;
pub mod http2;
pub mod http3;
pub mod payload;
pub mod peer;
pub mod quic;
pub mod reassembly;
pub mod target;
pub mod template;
mod transport;
pub mod varint;

pub use transport::{LegSettings, transport};
