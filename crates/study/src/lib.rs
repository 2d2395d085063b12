//! A published study as data: its printed figures, our values for comparison, and its claims.
//!
//! ```text
//! study.toml ─► Study ─► check (against the cells of its scenarios)
//! Record ─► Measured::add ─► (a figure's values, cell by cell) ─► Study::judge ─► Judgement per claim
//! ```
//!
//! A study's scenarios are ordinary scenario files beside it. A figure is one metric of one
//! transfer over the cells of one scenario. A claim is about cells of one figure; it holds, does
//! not hold, or is undecided, because there are too few runs or the text is unclear.
//!
//! Invariant: the bounds of a claim are in the file. No code here depends on a particular study.

mod axis;
mod cell;
mod chance;
mod claim;
mod estimate;
mod figure;
mod many;
mod measured;
mod part;
mod queueing;
mod sender;
mod shared;
pub mod statistics;
mod study;

pub use axis::AxisWords;
pub use cell::Cell;
pub use claim::{Claim, Judgement, Missed, Other, Pick, Verdict, Whose};
pub use estimate::{Estimate, LEVEL};
pub use figure::{Figure, Metric, Published, Take};
pub use measured::{CellValue, Measured, Reading};
pub use part::{Here, Part, Place};
pub use study::Study;

#[cfg(test)]
mod tests;
