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

mod carrier;
mod flow;
#[cfg(feature = "plaintext")]
pub mod plaintext;
mod session;

pub use carrier::{Carrier, CarrierError, CarrierEvent, CarrierStats};
pub use flow::{FlowFault, Taken};
pub use quinn_proto::StreamId;
