//! What tests of several crates share. For tests only: crates name it under `[dev-dependencies]`, and no program links it.
//!
//! - [`BROWSER_OPTIONS`] opens a page in headless Chromium.
//! - [`skipped`] reports a test that this machine cannot run.
//! - `quantities_as_text` and `refuse_other_keys` hold JSON to what is published of it (feature `json`).
//! - `pages` compares pages of the book with the code that they are made from (feature `pages`).
//! - [`POLL`] is how long a test that waits for something pauses between two looks.
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

/// A pause between two looks at what a test waits for. Whoever spins instead takes a processor from what it waits for, and from
/// the tests beside it.
pub const POLL: std::time::Duration = std::time::Duration::from_millis(2);
