//! Shared parts of several crates' tests. Crates name it under `[dev-dependencies]`, and no program
//! links it.
//!
//! - [`BROWSER_OPTIONS`] opens a page in headless Chromium.
//! - [`skipped`] reports a test that this machine cannot run.
//! - `quantities_as_text` and `refuse_other_keys` check JSON against its published form (feature
//!   `json`).
//! - `pages` compares pages of the book with the code that they are made from (feature `pages`).
//! - [`POLL`] is the polling interval of tests that wait for something.
//! - [`allocations`] counts allocations, in the test programs that choose its allocator.

pub mod allocations;
mod browser;
#[cfg(feature = "pages")]
pub mod pages;
#[cfg(feature = "json")]
mod published;
mod skips;

pub use browser::BROWSER_OPTIONS;
#[cfg(feature = "json")]
pub use published::{quantities_as_text, refuse_other_keys};
pub use skips::skipped;

/// The polling interval of tests. A test that spins instead takes a processor from what it waits
/// for, and from parallel tests.
pub const POLL: std::time::Duration = std::time::Duration::from_millis(2);
