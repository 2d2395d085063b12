//! A published study run again, as a page of its own and as one of an overview.
//!
//! ```text
//! Study + Measured + Judgement ─► plot (what pictures show) ─┐
//!                                 table, verdict (words)    ─┼─► page, overview
//! Record ─► Trace (one run over time)                       ─┘
//! ```
//!
//! Invariant: what a study printed, what was measured and what physics allows are told apart by form and by
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

/// What was run of a study and what came of it.
#[derive(Debug, Clone)]
pub struct Reproduction<'a> {
    /// What the user calls the study.
    pub name: &'a str,
    /// The study.
    pub study: &'a Study,
    /// Its scenarios by their names, with what the study sets in them where and as it ran.
    pub scenarios: &'a BTreeMap<String, Scenario>,
    /// What all runs gave.
    pub measured: &'a Measured,
    /// What became of its claims.
    pub judgements: &'a [Judgement],
    /// What it ran in.
    pub place: Place,
    /// Whether only what the study leaves where little time is given.
    pub quick: bool,
    /// Runs that were planned.
    pub runs: usize,
    /// Runs that gave a record.
    pub finished: usize,
    /// Why runs are not to be believed.
    pub faults: &'a [String],
    /// What could not be run there, and why.
    pub left_out: &'a [String],
    /// How long this call took.
    pub took: Duration,
    /// The seeds of each scenario and cell that ran.
    pub seeds: &'a Seeds,
    /// The plan of each of them.
    pub plans: &'a Plans,
    /// What the first run ran on.
    pub environment: Option<&'a Environment>,
    /// One run of each cell over time.
    pub traces: &'a [Trace],
    /// The command to run it all again.
    pub command: &'a str,
    /// What it gave in the other place, where it has run there too.
    pub beside: Option<Beside<'a>>,
}

/// Which seeds each scenario's cells ran with.
pub type Seeds = BTreeMap<(String, Cell), CellSeeds>;

/// The seeds of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CellSeeds {
    /// Those that gave a record.
    pub ran: Vec<Seed>,
    /// How many it was to run with: what `--seeds` says to run it with these again.
    pub asked: u32,
}

impl Reproduction<'_> {
    /// At what level the study's numbers are judged: [`Study::level_of_points`].
    fn level_of_points(&self) -> f64 {
        self.study.level_of_points(self.measured)
    }

    /// The name of its files, without ending: what leads to a directory, and what no file system likes,
    /// is left out.
    pub fn file_name(&self) -> String {
        self.file_name_in(self.place)
    }

    /// The same of what ran in `place`.
    fn file_name_in(&self, place: Place) -> String {
        let last = self.name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = last.chars().map(plain).collect();
        // The overview has a name of its own.
        let name = match name.trim_matches('.') {
            "" | "index" => "study",
            name => name,
        };
        if self.is_guest(place) { format!("{name}-lab") } else { name.to_owned() }
    }

    /// What it is about, and where it ran where it is not the only one.
    pub fn title(&self) -> String {
        let title = &self.study.title;
        if self.is_guest(self.place) { format!("{title}: on real kernels") } else { title.clone() }
    }

    /// What readers call it among others.
    pub fn label(&self) -> String {
        if self.is_guest(self.place) {
            format!("{} in the lab", self.name)
        } else {
            self.name.to_owned()
        }
    }

    /// Whether what runs in `place` stands beside what the simulator gives, where the study belongs.
    fn is_guest(&self, place: Place) -> bool {
        place == Place::Lab && self.study.place == Place::Sim
    }
}
