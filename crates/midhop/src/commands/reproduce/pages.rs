//! The report of `midhop reproduce`: a page for each study, an overview with links to them, and
//! files for other programs.

use anyhow::Context;
use midhop_report::{Beside, Reproduction, WriteError, overview, study_columns, study_page};
use midhop_workbench::{Outcome, Prepared};
use std::fs;
use std::path::{Path, PathBuf};

/// A study's part of the report.
pub struct StudyReport<'a> {
    /// The study with its plans.
    pub study: &'a Prepared,
    /// The results.
    pub outcome: &'a Outcome,
    /// Whether only the quick form was run.
    pub quick: bool,
    /// The command to repeat it.
    pub command: String,
    /// The results in the other place.
    pub beside: Option<&'a Outcome>,
    /// Whether those have a page too.
    pub beside_has_page: bool,
}

/// The directory of pages: `report` where it is given, otherwise below the directory of records.
/// None where only some cells ran without `report`: their pages would replace those of all cells.
pub fn directory(report: Option<&Path>, out: Option<&Path>, whole: bool) -> Option<PathBuf> {
    let beside = || out.filter(|_| whole).map(|out| out.join("report"));
    report.map(Path::to_owned).or_else(beside)
}

/// Writes all pages and files into `directory`.
pub fn write(directory: &Path, reports: &[StudyReport<'_>]) -> anyhow::Result<()> {
    let cannot = |path: &Path| format!("cannot write {}", path.display());
    fs::create_dir_all(directory).with_context(|| cannot(directory))?;
    let put = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        fs::write(&path, bytes).with_context(|| cannot(&path))
    };
    let runs: Vec<Reproduction<'_>> = reports.iter().map(reproduction).collect();
    for run in &runs {
        let made = || -> Result<_, WriteError> {
            let columns = study_columns(run);
            Ok((study_page(run)?, columns.csv()?, columns.parquet()?))
        };
        let (page, csv, parquet) = made().with_context(|| format!("no report of {}", run.name))?;
        let name = run.file_name();
        put(&format!("{name}.html"), page.as_bytes())?;
        put(&format!("{name}.csv"), csv.as_bytes())?;
        put(&format!("{name}.parquet"), &parquet)?;
    }
    put("index.html", overview(&runs)?.as_bytes())?;
    eprintln!("report: {}", directory.join("index.html").display());
    Ok(())
}

fn reproduction<'a>(report: &'a StudyReport<'_>) -> Reproduction<'a> {
    let StudyReport { study, outcome, quick, command, beside, beside_has_page } = report;
    Reproduction {
        name: &study.bundle.name,
        study: &study.bundle.study,
        scenarios: &outcome.scenarios,
        measured: &outcome.measured,
        judgements: &outcome.judgements,
        place: study.place,
        quick: *quick,
        runs: outcome.runs,
        finished: outcome.finished,
        faults: &outcome.faults,
        left_out: &study.left_out,
        took: outcome.took,
        seeds: &outcome.seeds,
        plans: &outcome.plans,
        environment: outcome.environment.as_ref(),
        traces: &outcome.traces,
        command,
        beside: beside.map(|it| Beside {
            place: study.place.other(),
            measured: &it.measured,
            scenarios: &it.scenarios,
            seeds: &it.seeds,
            page: *beside_has_page,
        }),
    }
}
