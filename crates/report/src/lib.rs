//! Records as tables, plots and a self-contained HTML page.
//!
//! [`table`] is for a terminal. [`csv()`] and [`json()`] are for programs, as are [`runs()`] and
//! [`cells()`], which are columns for CSV and Parquet. [`html`] is one file that opens without a
//! network. [`study_page`] is such a file for a repeated study, and [`overview`] has links to all
//! of them. [`compare`] compares two sets of records.
//!
//! Invariants: nothing is invented. A transfer that did not finish is shown with a bound. An
//! invalid run is marked wherever its figures appear, with the reason, and is left out of means if
//! there is a valid one. Text from records is foreign: it is escaped in a page and stripped of
//! control characters for a terminal. The crate reads and writes no files.

mod arrivals;
mod axes;
mod beside;
mod calibration;
mod columns;
mod comparison;
mod contrast_table;
mod curves;
mod date;
mod downsample;
mod escape;
mod facts;
mod figures;
mod formulas;
mod handovers;
mod machine;
mod number;
mod page;
mod parquet_file;
mod phrases;
mod reproduction;
mod runs;
mod samples;
mod shell;
mod study;
mod summary;
mod terminal;

pub use beside::beside_table;
pub use calibration::{calibration_picture, calibration_table};
pub use columns::{Column, Columns, Values};
pub use comparison::{Agreement, Comparison, Contrast, Line, compare, compare_at};
pub use contrast_table::comparison_table;
pub use formulas::{Formulas, Held, formulas_table};
pub use machine::{ReportFigures, WriteError, cells, csv, json, runs};
pub use page::{Options, html};
pub use reproduction::{
    Beside, CellSeeds, Plans, Reproduction, Seeds, Trace, overview, study_columns, study_page,
};
pub use runs::quoted;
pub use samples::samples;
pub use study::{study, verdict_name};
pub use summary::{Row, rows, rows_at};
pub use terminal::{table, table_in};
