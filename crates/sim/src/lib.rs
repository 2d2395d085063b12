//! Networks in virtual time: the scenarios of the testbed, deterministic and far faster than real time.
//!
//! [`run::run`] takes the plan that the testbed takes and gives a record of the same shape. What decides
//! is the code that ships: congestion control, link models and TCP are the pure crates; nothing here is
//! a formula for their behaviour.
//!
//! # The way of a packet
//! An application (`app`) writes. TCP makes a segment of it, which its `host` puts into a packet. The
//! [`node`] knows the next hop. That [`hop`]'s link decides the packet's fate and its time, and asks the
//! [`engine`] to be woken when something may come out. Then the [`network`] takes it from there: an
//! [`agent`] may stand at the node, else the packet goes on to the next hop or has arrived. TCP
//! acknowledges, the application is told, and the `recorder` notes how things stand.
//! `simulation` is the loop in which all that happens, [`run::run`] builds it from a plan.
//!
//! # Invariants
//! - The engine knows neither TCP nor satellites; TCP knows neither links nor events.
//! - The same plan gives the same record, byte for byte, on every machine whose standard library
//!   computes `exp` and `ln` alike: what is drawn normal or exponential depends on them.
//! - Every packet that does not arrive is counted where it ended, with the cause.
//! - No transfer is faster than its path allows: the record of one that is says so, and is not valid.

mod app;
mod control;
mod host;
mod recorder;
mod simulation;
mod stack;
mod tunnels;

pub mod agent;
pub mod agents;
pub mod dialogue;
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
