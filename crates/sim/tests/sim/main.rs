//! Simulated networks: what runs in them, and what comes out.
//!
//! The allocator counts for each thread, so that `allocation` may stand beside the others.

mod scenes;

mod acks;
mod agents;
mod allocation;
mod congestion;
mod curves;
mod delay;
mod ecn;
mod edges;
mod formulas;
mod handovers;
mod limits;
mod naive;
mod pep;
mod repair;
mod runs;
mod stacks;
mod tunnel;
mod varying;
