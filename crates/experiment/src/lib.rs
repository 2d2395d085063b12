//! Scenarios as written, plans as resolved, records as measured, and the arithmetic on them.
//!
//! A scenario file becomes a [`spec::Spec`]; crossing it with its `vary` axes and seeds gives one
//! [`plan::Plan`] per run, in which every default is visible; a run gives a [`record::Record`], which
//! holds its plan. The simulator and the testbed take the same plan and give the same record.

pub mod record;
