//! A tunnel where UDP does not pass: HTTP/2 CONNECT over TLS on one TCP connection.
//!
//! The same ends with the same certificates ask for the same flows in the same words; only what is below
//! is TCP, whose losses hold up all flows alike. So it is used while QUIC cannot be had and no longer: see
//! [`link`](super::link). [`socket`] makes its connections, [`session`] speaks HTTP/2 on one,
//! [`door`] lets peers in.

pub mod door;
pub mod session;
pub mod socket;

pub use session::{LivenessProbe, TcpSession};
