//! The protocol between two proxies around a link, and how they fill it, without any I/O.
//!
//! A flow: [`connect`] is the request that opens it and the response, [`target`] its destination, [`template`] a
//! destination as a path, [`cause`] why it failed, [`payload`] how its bytes are carried, [`resumption`] how
//! it outlives its carrier. [`http3`] frames all
//! of that, and [`http2`] has the differences for a path that blocks UDP.
//!
//! A connection: [`control`] lets midhop-congestion control QUIC, [`pacer`] releases datagrams at the pace
//! of that control, [`transport`](transport()) has the settings that QUIC needs for a leg and [`peer`] derives them
//! from a plan, [`fec`] recovers what the leg loses, [`send_pool`] bounds what waits to be sent,
//! [`reassembly`] puts streams in order, and [`credit`] bounds what waits for a stalled reader. [`quic`] is one end of a connection, with all of these together.
//!
//! Invariant: nothing here opens a socket or reads a clock. QUIC itself is quinn-proto's, which gets
//! the time as an argument too.

pub mod cause;
pub mod connect;
pub mod control;
pub mod credit;
pub mod fec;
pub mod http2;
pub mod http3;
pub mod pacer;
pub mod payload;
pub mod peer;
pub mod quic;
pub mod reassembly;
pub mod relocation;
pub mod resumption;
pub mod send_pool;
pub mod target;
pub mod template;
mod transport;
pub mod varint;

pub use transport::{LegSettings, transport};
