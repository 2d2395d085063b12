//! Constellations: where satellites are, who sees them, and which way packets take between two places.
//!
//! Everything here is computed before a run and becomes what a link already knows: a delay over time
//! and outages. So the emulator and the simulator need no astronomy, and a record holds what was run.
//!
//! ```text
//! OrbitSpec ─► OrbitPlan + Constellation ─► Journey ─► LinkDelay + Outages, for a Part of the way
//! ```
//!
//! - [`walker`] and [`elements`] say where satellites are: ideal shells over a sphere of 6371 km, or
//!   two-line elements moved by SGP4 over the WGS 84 ellipsoid. [`presets`] has known constellations.
//! - [`isl`] says which of them are joined, [`sky`] who sees whom at one moment, and finds the quickest
//!   way; [`choice`] decides which satellites are used, [`journey`] follows that over time.
//! - [`hypatia`] reads the networks of another simulator.
//! - [`profile`] and `link` make links of it; [`passes`] tells when a place sees what; [`refusal`] why a
//!   constellation cannot serve two places.
//!
//! # Invariants
//! - The same orbit gives the same delays, bit for bit, on every machine: only operations that IEEE 754
//!   defines exactly are used, and `libm` for angles. Elements are moved by a library that takes its
//!   sines from the platform; there the same holds on one platform.
//! - A delay is rounded once, from kilometres to nanoseconds, hop by hop.
//! - Paths are straight: neither refraction nor the troposphere's 8 ns count.

pub mod choice;
pub mod constellation;
pub mod earth;
mod elements;
pub mod hypatia;
pub mod isl;
pub mod journey;
mod link;
pub mod passes;
pub mod presets;
pub mod profile;
pub mod refusal;
pub mod sky;
mod spec;
pub mod vector;
pub mod walker;
mod written;

pub use choice::Choice;
pub use constellation::Constellation;
pub use earth::{Site, coverage_deg};
pub use elements::ElementsError;
pub use hypatia::HypatiaError;
pub use journey::{Handover, Hop, Journey};
pub use link::Journeys;
pub use profile::Part;
pub use refusal::OrbitError;
pub use spec::{OrbitPlan, OrbitSpec};
pub use written::{ConstellationSpec, ConstellationTable};

#[cfg(test)]
mod tests;
