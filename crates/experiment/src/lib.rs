//! Scenarios as written, plans as resolved, records as measured, and the arithmetic on them.
//!
//! A scenario file becomes a [`Scenario`]. Its `vary` axes and its seeds give one [`plan::Plan`]
//! per run, in which every default is visible. A run gives a [`record::Record`], which contains its
//! plan. The simulator and the testbed accept the same plan and give the same record.
//!
//! ```text
//! text ─► Scenario ─► (set) ─► cells ─► Spec ─► check ─► resolve ─► Plan ─► a run ─► Record
//! ```
//!
//! Invariant: a plan can be run: its transfers have routes, its links are valid, its names exist.

pub mod agents;
mod bounds;
pub mod calibration;
mod check;
pub mod congestion;
pub mod drawn;
mod files;
pub mod handovers;
mod host_routes;
pub mod law;
pub mod limit;
pub mod measured;
pub mod metrics;
pub mod modem;
pub mod naive;
mod own_keys;
pub mod pep;
mod physics;
pub mod plan;
pub mod random;
pub mod record;
mod resolve;
pub mod route;
mod scenario;
pub mod spec;
pub mod tcp;
pub mod traffic;
pub mod tunnel;
pub mod vary;

pub use plan::Plan;
pub use record::Record;
pub use scenario::Scenario;
pub use spec::Spec;
