//! QUIC on sockets: drives the machines of midhop-tunnel, and connects them to tasks.
//!
//! Each socket has one [`Endpoint`](midhop_tunnel::quic::Endpoint) with all of its connections, and
//! one task that [drives](driver) it. The task reads received datagrams, advances timers, wakes the
//! tasks that wait for events, and sends what may leave. Flows write bytes to a connection and read
//! bytes from it. This schedules the driver, which runs after the flows have had their turns, so
//! that their bytes leave together. A few datagrams are acknowledged together with what the woken
//! flows send; many are acknowledged at once.
//!
//! Invariant: all of that happens under the endpoint's lock. Another worker takes the lock for a chain's flow that
//! goes on through a tunnel of this one, for a datagram that its socket received, and to divide a peer's windows. A
//! holder of the lock waits for nothing but the socket's calls.

mod connection;
mod driver;
mod endpoint;
mod half;
mod late;
mod socket;
mod state;

pub use connection::QuicConnection;
pub use endpoint::{Incoming, QuicEndpoint};
pub use half::{QuicReceiver, QuicSender, halves};
pub use state::EndpointShared;

#[cfg(test)]
mod tests;
