//! The load generator: TCP flows without disks, timed, sampled, and compared byte for byte by a
//! hash.
//!
//! It is the successor of the TCPMeter of the satellite-PEP literature: many flows at once, one
//! line per flow. It adds downloads, pages of objects, the sender's `TCP_INFO` over time, and proof
//! that the data arrived unchanged. [`Server`] and [`run`] speak the protocol of [`wire`] over the
//! connections that they measure. So the meter works through transparent proxies and address
//! translation, between two hosts as well as between two namespaces.
//!
//! What is measured: a flow starts before its `connect()`, and ends with its last byte of payload;
//! its goodput is payload over that time. Frames are not counted.
//!
//! Invariants:
//! - A transfer is complete only when the receiver has the sender's end mark, and count and hash
//!   agree. A connection that ends without the mark is an error, even when it ends with a FIN.
//! - No bytes of a peer make either end panic, or allocate memory in proportion to a length that
//!   they announce.
//! - The far end's samples travel after the run, on a connection of their own.

mod client;
pub mod clock;
mod connection;
mod error;
mod flow;
mod gaps;
pub mod link;
mod message;
mod options;
mod outline;
mod payload;
mod report;
mod sampler;
pub(crate) mod series;
mod server;
mod sessions;
mod socket;
pub(crate) mod tcp_sample;
mod traffic;
mod wire;

pub use client::run;
pub use error::{FlowError, MeterError, ServeError};
pub use message::{Amount, Direction, Refusal, RefusalReason};
pub use midhop_experiment::measured::MeterReport;
pub use options::{Connections, FLOWS_MAX, MeterOptions, Progress, Workload};
pub use outline::{Outline, Reader};
pub use server::{Limits, OnFlow, Resolve, ServedFlow, Server, ServerOptions};
pub use traffic::{Part, TrafficError, TrafficOptions, TrafficReport, run_traffic};
pub use wire::WireError;

/// The port that a server takes when no other is given.
pub const PORT: u16 = 5201;
