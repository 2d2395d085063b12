//! What modems report of their links: the Dynamic Link Exchange Protocol (DLEP).
//!
//! A [`Router`] requests a modem's metrics, and receives each change. A [`Modem`] is the other end, for a laboratory.
//! Both are sans-IO: the caller gives bytes of a TCP connection and the time, and gets bytes to send. [`Steady`] is the
//! part of a changing rate that may be relied upon.
//!
//! Source: RFC 8175. Left out: discovery (§7.1: the router is given the modem's address), TLS, and all extensions.
//!
//! Decision 0062.

mod items;
mod mac;
mod message;
mod metrics;
mod modem;
mod router;
mod status;
mod steady;

pub use items::{Item, PeerType};
pub use mac::{Mac, ParseMacError};
pub use message::{Inbox, Kind, Message};
pub use metrics::Metrics;
pub use modem::Modem;
pub use router::{Router, SessionError};
pub use status::{Refusal, Status};
pub use steady::Steady;

/// The registered port (§15.14), for TCP.
pub const PORT: u16 = 854;
