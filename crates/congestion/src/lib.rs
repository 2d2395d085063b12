//! Congestion control for simulator, tunnel and daemon: one [`Controller`] for each connection.
//!
//! A transport reports each event ([`Ack`], [`Loss`], [`Rto`], [`Spurious`], [`Handover`]) and reads
//! the limit of data in flight ([`Controller::window`]) and the pacing rate
//! ([`Controller::pacing_rate`]). The transport counts the data in flight, finds losses
//! and repairs them.
//!
//! Each algorithm is one module that names its source: the law as plain integer functions, which the
//! BPF programs of midhop-bpf compute identically bit for bit ([`vectors`] compares them), and a
//! [`CongestionControl`] from it: a [`slow_start`], an avoidance and a response to loss;
//! [`reno`] holds the plain ones. [`build()`] makes a controller of any of them by its name.
//!
//! Invariant: no clock, no floats, no randomness except from a given seed. Time comes with
//! each event; the same events give the same windows on every machine.

mod algorithm;
mod arrivals;
mod build;
mod common;
mod contract;
mod controller;
mod description;
mod random;
mod segments;

pub mod bbr;
pub mod committed;
pub mod cubic;
pub mod dvegas;
pub mod hybla;
pub mod hybla_linux;
pub mod known_rate;
pub mod opening;
pub mod prr;
pub mod pulse;
pub mod rate_share;
pub mod reno;
pub mod slow_start;
pub mod vectors;
pub mod vegas;
pub mod vivace;
pub mod westwood;
pub mod xcp;

#[cfg(test)]
mod testing;

pub use algorithm::{Algorithm, Law};
pub use build::{BuildError, Settings, build};
pub use contract::{
    Ack, CongestionControl, Established, Handover, Loss, LostSegment, Phase, QueueReport,
    RateSample, Restart, Rto, Spurious,
};
pub use controller::Controller;
pub use description::{Description, FirstSlowStart, InKernel, Pacing};
pub use opening::Opening;
pub use slow_start::SlowStart;
