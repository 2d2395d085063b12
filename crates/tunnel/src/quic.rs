//! A connection between two proxies without any I/O: the caller gives time and datagrams, and gets datagrams and events.
//!
//! [`Carrier`] is one end. From above it is asked for flows and given their bytes; below it stand quinn-proto's
//! connection, the [shim](crate::fec) that repairs losses, and the queue from which datagrams leave at their pace. In
//! between is the session: HTTP/3 on all of its streams, whose turn it is to write
//! ([`midhop_pep::scheduler`]), and who may send how much ([`crate::credit`]).
//!
//! ```text
//! flows ─► session ─► quinn-proto ─► shim ─► datagrams
//! ```

mod batch;
mod carrier;
mod endpoint;
mod flow;
#[cfg(feature = "plaintext")]
mod lone;
#[cfg(feature = "plaintext")]
pub mod plaintext;
mod session;

pub use batch::DatagramBatch;
pub use carrier::{Carrier, CarrierError, CarrierEvent, CarrierStats, Label, Opening};
pub use endpoint::{Datagram, Endpoint, EndpointEvent};
pub use flow::{FlowFault, Taken};
#[cfg(feature = "plaintext")]
pub use lone::Lone;
pub use quinn_proto::{ConnectionError, ConnectionHandle, EcnCodepoint, Incoming, StreamId};
