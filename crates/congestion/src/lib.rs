//! Congestion control as one trait, shared by simulator, tunnel and daemon.
//!
//! A controller is told what happened ([`Ack`], [`Loss`], [`Rto`], [`Spurious`], [`Handover`]) and
//! says how much may be on its way ([`CongestionControl::window`]) and how fast it may leave
//! ([`CongestionControl::pacing_rate`]). The transport keeps count of what is in flight, finds losses
//! and repairs them.
//!
//! Each algorithm is one module with its source named: the law as plain integer functions, which the
//! BPF programs of midhop-bpf compute bit for bit alike ([`vectors`] compares them), and a controller
//! made of it. [`reno`] holds the parts that the others are composed with.
//!
//! Invariant: no clock, no randomness, no floats. Time comes with each event; the same events give
//! the same windows on every machine.

mod algorithm;
mod contract;
mod segments;

pub mod hybla;
pub mod hybla_linux;
pub mod prr;
pub mod reno;
pub mod vectors;
pub mod vegas;
pub mod westwood;

pub use algorithm::Algorithm;
pub use contract::{
    Ack, CongestionControl, Handover, Loss, LostSegment, Phase, RateSample, Restart, Rto, Spurious,
};
