//! A tunnel where UDP does not pass: HTTP/2 CONNECT over TLS on one TCP connection.
//!
//! The same two ends with the same certificates request the same flows in the same form. Only the carrier is TCP,
//! where a loss delays all flows alike. So it is used only while QUIC cannot be opened: see [`link`](super::link).
//! [`socket`] makes its connections, [`session`] runs HTTP/2 on one, [`door`] admits peers.
//!
//! Decision 0018.

pub mod door;
pub mod session;
pub mod socket;
mod tls_end;

pub use session::{LivenessProbe, TcpSession};
