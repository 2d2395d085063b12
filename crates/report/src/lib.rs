//! Records as tables, plots and a self-contained HTML page.
//!
//! [`table`] is for eyes in a terminal, [`csv`] and [`json`] are for programs, [`html`] is one file
//! that opens without a network.
//!
//! Invariants: nothing is invented. A transfer that did not finish shows a bound; a run that is
//! invalid is marked wherever its figures appear, with the reason, and is left out of means as long
//! as a valid one is there. Text from records is foreign: it is escaped before it enters a page and
//! stripped of control characters before it enters a terminal. The crate reads and writes no files.

mod axes;
mod curves;
mod date;
mod downsample;
mod escape;
mod facts;
mod figures;
mod machine;
mod number;
mod page;
mod runs;
mod stats;
mod summary;
mod terminal;

pub use machine::{WriteError, csv, json};
pub use page::{Options, html};
pub use stats::Estimate;
pub use summary::{Row, rows};
pub use terminal::{table, table_in};
