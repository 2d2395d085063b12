//! Campaigns: many plans are run, each record is stored at once, and no plan with a record is run
//! twice.
//!
//! ```text
//! plans ─► Resumed ─► what is left ─► pace: batches, so many runs at once ─► queue: the costliest first
//!             ▲                                     ▲                                   │
//!           Store ◄──── record ◄────────────────────┼───────────────────────────── Executor
//!                                                   └─ attempt: late runs again, with fewer in parallel
//! ```
//!
//! A runner of plans is an [`Executor`]: the simulator, the laboratory, a reference. A [`Store`]
//! stores records: [`Files`], one file each, or [`Lines`], all in one file for thousands of runs.
//! One rule decides which records count: [`Origin`]. Plans that differ only in their place in a
//! sweep have one [`Key`] and one record.
//!
//! Invariant: a record that is read from a store has the cell of the plan for which it was
//! requested.
//! Invariant: the crate depends on no simulator and no laboratory, and prints nothing: an
//! [`Observer`] receives events.
//!
//! Decision 0040.

mod attempt;
mod execution;
mod files;
mod key;
mod lines;
mod origin;
pub mod pace;
mod queue;
mod resumed;
mod store;

pub use execution::{Campaign, Executor, Observer, Ran};
pub use files::{Files, Naming};
pub use key::Key;
pub use lines::{Lines, without_bulk};
pub use origin::{Build, Origin};
pub use resumed::Resumed;
pub use store::{Store, StoreError, try_directory};

#[cfg(test)]
mod tests;
