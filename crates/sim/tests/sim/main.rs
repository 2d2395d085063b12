//! Simulated networks: their runs and results.
//!
//! The allocator counts per thread, so that `allocation` can run in parallel with other tests.

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
