//! Campaigns: many plans run, each record kept the moment it is there, and nothing run twice that is there.
//!
//! ```text
//! plans ─► Resumed ─► what is left ─► pace: batches, so many runs at once ─► queue: the costliest first
//!             ▲                                     ▲                                   │
//!           Store ◄──── record ◄────────────────────┼───────────────────────────── Executor
//!                                                   └─ attempt: late runs again, with fewer beside them
//! ```
//!
//! Whatever runs the plans is an [`Executor`]: the simulator, the laboratory, a reference. A [`Store`] holds records:
//! [`Files`], one file each, or [`Lines`], all in one file for runs by the thousand. Which records count is one rule
//! for all of them: [`Origin`]. Plans that differ in nothing but their place in a sweep have one [`Key`] and one record.
//!
//! Invariant: a record that is read from a store has the cell of the plan that it was asked for with.
//! Invariant: the crate knows no simulator and no laboratory, and prints nothing: an [`Observer`] is notified.

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
