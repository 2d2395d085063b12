//! What tests of several crates share. For tests only: crates name it under `[dev-dependencies]`, and no program links it.
//!
//! - [`BROWSER_OPTIONS`] opens a page in headless Chromium.
//! - [`skipped`] reports a test that this machine cannot run.
//! - `pages` compares pages of the book with the code that they are made from (feature `pages`).
//! - [`allocations`] counts allocations, in the test programs that choose its allocator.

pub mod allocations;
mod browser;
#[cfg(feature = "pages")]
pub mod pages;
mod skips;

pub use browser::BROWSER_OPTIONS;
pub use skips::skipped;
