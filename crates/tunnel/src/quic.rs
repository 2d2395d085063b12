//! A connection between two proxies without any I/O: the caller gives time and datagrams, and gets datagrams and events.
//!
//! [`Carrier`] is one end. The caller above it requests flows, and gives and takes their bytes. Below it are
//! quinn-proto's connection, the [shim](crate::fec) that repairs losses, and the queue that releases datagrams at
//! their pace. Between the two is the session. It speaks HTTP/3 on all streams, decides which flow may write next
//! ([`midhop_pep::scheduler`]), and limits how much each may send ([`crate::credit`]).
//!
//! ```text
//! flows ─► session ─► quinn-proto ─► shim ─► datagrams
//! ```
//!
//! Decision 0038.

mod batch;
mod carrier;
mod endpoint;
mod event;
mod flow;
#[cfg(feature = "plaintext")]
mod lone;
#[cfg(feature = "plaintext")]
pub mod plaintext;
mod session;

pub use batch::DatagramBatch;
pub use carrier::{Carrier, CarrierError, CarrierStats, Label, Opening};
pub use endpoint::{Datagram, Endpoint, EndpointEvent};
pub use event::CarrierEvent;
pub use flow::{FlowFault, Taken};
#[cfg(feature = "plaintext")]
pub use lone::Lone;
pub use quinn_proto::{ConnectionError, ConnectionHandle, EcnCodepoint, Incoming, StreamId};
