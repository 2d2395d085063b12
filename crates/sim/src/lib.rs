//! Networks in virtual time: the scenarios of the testbed, deterministic and far faster than real time.
//!
//! [`run::run`] takes the same plan as the testbed and gives a record of the same shape. The shipped code
//! decides: congestion control, link models and TCP are the pure crates; nothing here is
//! a formula for their behaviour.
//!
//! # The way of a packet
//! An application (`app`) writes. TCP makes a segment of it, which its `host` puts into a packet. The
//! [`node`] knows the next hop. That [`hop`]'s link decides the packet's fate and its time, and requests a
//! wake-up of the [`engine`] for the arrival. Then the [`network`] continues: an
//! [`agent`] may process it at the node, else the packet goes to the next hop or has arrived. TCP
//! acknowledges, the application gets an event, and the `recorder` samples the state.
//! `simulation` is the loop around all that, [`run::run`] builds it from a plan.
//!
//! # Invariants
//! - The engine knows neither TCP nor satellites; TCP knows neither links nor events.
//! - The same plan gives the same record, byte for byte, on every machine whose standard library
//!   computes `exp` and `ln` alike: normal and exponential draws depend on them.
//! - Every packet that does not arrive is counted where it ended, with the cause.
//! - No transfer is faster than its path allows: the record of such a run reports it, and is not valid.

mod app;
mod control;
mod handovers;
mod host;
mod recorder;
mod routes;
mod simulation;
mod stack;
mod tunnels;

pub mod agent;
pub mod agents;
pub mod dialogue;
mod diversions;
mod engine;
mod fault;
pub mod hop;
mod metrics;
pub mod network;
pub mod node;
pub mod packet;
pub mod pep;
pub mod repair;
pub mod run;
pub mod watch;

pub use fault::RunError;
pub use run::{Effort, Options, check, run, run_watched};
