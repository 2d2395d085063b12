//! QUIC on sockets: what drives the machines of midhop-tunnel, and how tasks reach them.
//!
//! Each socket has one [`Endpoint`](midhop_tunnel::quic::Endpoint) with all of its connections, and one task that
//! [drives](driver) it: it reads what has come, lets time pass, wakes whoever waits for what has happened, and sends what
//! may leave. Flows put bytes into a connection and take them out; the driver is called then and runs once they have
//! had their turns, so that what they put leaves together.
//!
//! Invariant: all of that happens under the endpoint's lock. Another worker takes it for a chain's flow that goes on
//! through a tunnel of this one, for a datagram that its socket received, and to divide a peer's windows. Nobody waits for
//! anything but the socket's calls while it has the lock.

mod connection;
mod driver;
mod endpoint;
mod half;
mod state;

pub use connection::QuicConnection;
pub use endpoint::{Incoming, QuicEndpoint};
pub use half::{QuicReceiver, QuicSender, halves};
pub use state::EndpointShared;

#[cfg(test)]
mod tests;
