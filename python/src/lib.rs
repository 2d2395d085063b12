//! What the Python package `midhop` does in Rust: scenarios to plans, plans to records, measurements
//! to records, records to tables.
//!
//! Python's own part (`python/midhop`) has the functions that people call, the plots, and the driver of a Ray
//! cluster; it contains no formula. The interpreter is released while plans run.
//!
//! Invariant: the package runs, refuses and keeps what the program `midhop` runs, refuses and keeps: both use
//! `midhop-workbench` and `midhop-campaign`.

mod batch;
mod campaign;
mod comparison;
mod error;
mod flow;
mod measured;
mod progress;
mod record;
mod records;
mod source;
mod study;
mod table;
mod work;

use pyo3::prelude::*;

/// The module `midhop._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::batch::{build, run_batch};
    #[pymodule_export]
    use crate::campaign::Campaign;
    #[pymodule_export]
    use crate::comparison::{Comparison, side};
    #[pymodule_export]
    use crate::flow::{Curve, Flow, Link, Transfer};
    #[pymodule_export]
    use crate::measured::{Measurement, found, has_plan, limited, numbered, text_of};
    #[pymodule_export]
    use crate::record::Record;
    #[pymodule_export]
    use crate::records::Records;
    #[pymodule_export]
    use crate::source::Source;
    #[pymodule_export]
    use crate::study::{StudyOutcome, StudyRun, studies};
    #[pymodule_export]
    use crate::table::Table;
}
