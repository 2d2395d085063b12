//! A repeated study, as a page of its own and as a part of an overview.
//!
//! ```text
//! Study + Measured + Judgement ─► plot (what pictures show) ─┐
//!                                 table, verdict (words)    ─┼─► page, overview
//! Record ─► Trace (one run over time)                       ─┘
//! ```
//!
//! Invariant: a study's published values, measured values and physical limits differ in form and in
//! words, never by colour alone.

mod beside;
mod columns;
mod over_time;
mod overview;
mod page;
mod plans;
mod plot;
mod run_cell;
mod table;
mod trace;
mod verdict;

pub use beside::Beside;
pub use columns::study_columns;
pub use overview::overview;
pub use page::study_page;
pub use plans::Plans;
pub use trace::Trace;

use midhop_experiment::Scenario;
use midhop_experiment::record::Environment;
use midhop_study::{Cell, Judgement, Measured, Place, Study};
use midhop_units::Seed;
use std::collections::BTreeMap;
use std::time::Duration;

/// The runs of a study and their results.
#[derive(Debug, Clone)]
pub struct Reproduction<'a> {
    /// The user's name for the study.
    pub name: &'a str,
    /// The study.
    pub study: &'a Study,
    /// Its scenarios by name, with the study's settings for this place.
    pub scenarios: &'a BTreeMap<String, Scenario>,
    /// The results of all runs.
    pub measured: &'a Measured,
    /// The judgements of its claims.
    pub judgements: &'a [Judgement],
    /// The place of the runs.
    pub place: Place,
    /// Whether only the quick form was run.
    pub quick: bool,
    /// Runs that were planned.
    pub runs: usize,
    /// Runs that gave a record.
    pub finished: usize,
    /// Why runs are not valid.
    pub faults: &'a [String],
    /// The runs that were left out, and why.
    pub left_out: &'a [String],
    /// How long this call took.
    pub took: Duration,
    /// The seeds of each scenario and cell that ran.
    pub seeds: &'a Seeds,
    /// The plan of each scenario and cell.
    pub plans: &'a Plans,
    /// The environment of the first run.
    pub environment: Option<&'a Environment>,
    /// One run of each cell over time.
    pub traces: &'a [Trace],
    /// The command that repeats everything.
    pub command: &'a str,
    /// The results in the other place, if it was run there too.
    pub beside: Option<Beside<'a>>,
}

/// The seeds of each scenario's cells.
pub type Seeds = BTreeMap<(String, Cell), CellSeeds>;

/// The seeds of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CellSeeds {
    /// The seeds with a record.
    pub ran: Vec<Seed>,
    /// The planned number of seeds: the value of `--seeds` that repeats them.
    pub asked: u32,
}

impl Reproduction<'_> {
    /// The level at which the study's numbers are judged: [`Study::level_of_points`].
    fn level_of_points(&self) -> f64 {
        self.study.level_of_points(self.measured)
    }

    /// The name of its files, without ending. Path separators and characters that file systems do
    /// not allow are left out.
    pub fn file_name(&self) -> String {
        self.file_name_in(self.place)
    }

    /// The name of the files for `place`.
    fn file_name_in(&self, place: Place) -> String {
        let last = self.name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = last.chars().map(plain).collect();
        // The overview's name is reserved.
        let name = match name.trim_matches('.') {
            "" | "index" => "study",
            name => name,
        };
        if self.is_guest(place) { format!("{name}-lab") } else { name.to_owned() }
    }

    /// Its title, with the place where there are several.
    pub fn title(&self) -> String {
        let title = &self.study.title;
        if self.is_guest(self.place) { format!("{title}: on real kernels") } else { title.clone() }
    }

    /// Its short name in lists.
    pub fn label(&self) -> String {
        if self.is_guest(self.place) {
            format!("{} in the lab", self.name)
        } else {
            self.name.to_owned()
        }
    }

    /// Whether the results from `place` are shown beside those of the simulator, where the study
    /// belongs.
    fn is_guest(&self, place: Place) -> bool {
        place == Place::Lab && self.study.place == Place::Sim
    }
}
