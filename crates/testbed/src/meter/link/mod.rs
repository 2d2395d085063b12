//! Measures a link: round trip, rate, loss and order, both ways, by datagrams.
//!
//! [`measure`] requests a session over TCP from a [`Server`](super::Server) that serves links, and
//! gets a token. Datagrams with that token then go both ways. The TCP connection carries which
//! trains to send and what arrived.
//!
//! Invariants:
//! - A server sends datagrams only to the address that its client has on the TCP connection, only after datagrams
//!   with the session's token have come from there, and never beyond its [`LinkLimits`].
//! - A datagram that is not of a session is ignored; no datagram is answered by a longer one.
//! - Results are computed from the receiver's times, which its kernel takes.

mod client;
mod end;
mod estimate;
mod found;
mod inbox;
mod message;
mod outline;
mod progress;
mod schedule;
mod search;
mod server;
mod socket;
#[cfg(test)]
mod synthetic;
mod train;
mod wire;

pub use client::{LinkError, LinkOptions, measure};
pub(super) use message::LinkMessage;
pub use midhop_experiment::measured::{LinkDirection, LinkReport};
pub use outline::{LinkInput, LinkOutline};
pub use server::LinkLimits;
pub(super) use server::{LinkSessions, bind};
