//! Constellations: the positions of satellites, who sees them, and the path of packets between two
//! places.
//!
//! Everything here is computed before a run and becomes parameters of a link: a delay over time,
//! and outages. So the emulator and the simulator need no astronomy, and a record contains what was
//! run.
//!
//! ```text
//! OrbitSpec ─► OrbitPlan + Constellation ─► Journey ─► LinkDelay + Outages, for a Part of the way
//! ```
//!
//! - [`walker`] and [`elements`] compute the positions of satellites: ideal shells over a sphere of
//!   6371 km, or two-line elements moved by SGP4 over the WGS 84 ellipsoid. [`presets`] has known
//!   constellations.
//! - [`isl`] decides which of them are joined. [`sky`] decides who sees whom at one moment, and
//!   finds the fastest path. [`choice`] decides which satellites are used, and [`journey`] follows
//!   that over time.
//! - [`hypatia`] reads the networks of another simulator.
//! - [`profile`] and `link` make links from it. [`passes`] computes when a place sees which
//!   satellite. [`refusal`] explains why a constellation cannot serve two places.
//!
//! # Invariants
//! - The same orbit gives the same delays, bit for bit, on every machine: only operations that IEEE
//!   754 defines exactly are used, and `libm` for angles. Elements are moved by a library that uses
//!   the platform's sines; there, the same holds on one platform.
//! - A delay is rounded once, from kilometres to nanoseconds, hop by hop.
//! - Paths are straight: neither refraction nor the troposphere's 8 ns count.
//!
//! Decision 0012.

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
