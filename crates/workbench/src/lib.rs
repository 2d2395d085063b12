//! The common part of the program `midhop` and the Python package: from a scenario or a study, in
//! any place, to records in virtual time, and from files to records. So both run, refuse and store
//! the same.
//!
//! ```text
//! file, text ─► scenario ─► plans ─► Simulator (an Executor of campaign) ─► records ─► tables
//! name, directory ─► Bundle ─► Prepared ──┘                                   └─► Outcome of a study
//! files of records, measurements ─► Found ─► Gathered ─► records
//! ```
//!
//! Invariant: nothing here prints, or depends on a terminal, on signals, or on Python.

mod asked;
mod outcome;
mod place;
mod reading;
mod scenario;
mod shipped;
mod side;
mod simulator;
mod studies;
mod tables;

pub use asked::Asked;
pub use outcome::{Outcome, Read};
pub use place::check_place;
pub use reading::{Found, Gathered, WHERE_RECORDS_ARE, limit_records, text_of};
pub use scenario::{Changes, Source, runnable_plans, simulable_plans, supply_files};
pub use shipped::{Bundle, find, names};
pub use side::Side;
pub use simulator::{Simulator, Watchers, processors, weight};
pub use studies::Prepared;
pub use tables::write_tables;
