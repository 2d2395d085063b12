//! What a link can do: round trip, rate, loss and order, both ways, measured by datagrams.
//!
//! [`measure`] asks a [`Server`](super::Server) that serves links for a session over TCP and gets a token; datagrams
//! with that token then go both ways beside that connection, which carries what to send and what arrived.
//!
//! Invariants:
//! - A server sends datagrams only to the address that its client has on the TCP connection, only after datagrams
//!   with the session's token have come from there, and never beyond its [`LinkLimits`].
//! - A datagram that is not of a session is ignored; no datagram is answered by a longer one.
//! - What is judged are the receiver's times, taken by its kernel.

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
