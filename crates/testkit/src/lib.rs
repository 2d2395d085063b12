//! What tests of several crates share. For tests only: crates name it under `[dev-dependencies]`, and no program links it.
//!
//! - [`BROWSER_OPTIONS`] opens a page in headless Chromium.
//! - [`skipped`] reports a test that this machine cannot run.
//! - `quantities_as_text` finds quantities in JSON that are no numbers (feature `json`).
//! - `pages` compares pages of the book with the code that they are made from (feature `pages`).
//! - [`allocations`] counts allocations, in the test programs that choose its allocator.

pub mod allocations;
mod browser;
#[cfg(feature = "pages")]
pub mod pages;
#[cfg(feature = "json")]
mod quantities;
mod skips;

pub use browser::BROWSER_OPTIONS;
#[cfg(feature = "json")]
pub use quantities::quantities_as_text;
pub use skips::skipped;
