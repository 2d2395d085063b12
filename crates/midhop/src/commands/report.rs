//! `midhop report`: records from files as a table, a page, or figures for programs.

use super::output;
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::record::Record;
use midhop_report::Options;
use midhop_study::Place;
use midhop_workbench::{Gathered, Source, WHERE_RECORDS_ARE, limit_records};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `midhop report`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Report {
    /// Records, output of `midhop meter run --json`, `midhop meter link --json` or `iperf3 --json`
    /// (JSON, one object or one per line), directories that hold them, or - for standard input
    #[arg(required = true, value_name = "DIR|FILE|-")]
    from: Vec<PathBuf>,
    /// The physical limit for measurements without a scenario: a scenario, or the output of `midhop
    /// meter link --json`
    #[arg(long, value_name = "FILE")]
    limit: Option<PathBuf>,
    /// Use only the records of the scenario with this title
    #[arg(long, value_name = "TITLE")]
    only: Option<String>,
    /// Use only the records of runs in this place
    #[arg(long = "in", value_enum, value_name = "WHERE")]
    place: Option<Where>,
    /// Write one HTML file with pictures, which needs no network
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Heading of the HTML file; if not given, the records' title
    #[arg(long, value_name = "TEXT", requires = "out")]
    title: Option<String>,
    /// The scenario's file, for the commands in the HTML file that repeat a run
    #[arg(long, value_name = "FILE", requires = "out")]
    scenario: Option<String>,
    /// Print JSON: means per cell, and each run
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: one line per run and transfer
    #[arg(long)]
    csv: bool,
}

/// Where records come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    /// In virtual time
    Sim,
    /// On real kernels
    Lab,
}

impl Report {
    /// Reads the records, writes the page if asked, prints the rest.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let records = self.wanted()?;
        if let Some(out) = &self.out {
            let mut options = Options::default();
            if let Some(title) = &self.title {
                options = options.titled(title);
            }
            if let Some(scenario) = &self.scenario {
                options = options.from_scenario(scenario);
            }
            let page = midhop_report::html(&records, &options)?;
            std::fs::write(out, page).with_context(|| format!("cannot write {}", out.display()))?;
            eprintln!("wrote {}", out.display());
        }
        let text = if self.json {
            midhop_report::json(&records)?
        } else if self.csv {
            midhop_report::csv(&records)?
        } else {
            midhop_report::table_in(&records, output::columns())
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The requested records. A page is about one scenario: it compares cells, and records of other
    /// scenarios only have the same names.
    fn wanted(&self) -> anyhow::Result<Vec<Record>> {
        let mut records = read_all(&self.from)?;
        if let Some(file) = &self.limit {
            limit_records(&Source::file(file)?, &mut records)?;
        }
        if let Some(wanted) = self.place {
            let place = match wanted {
                Where::Sim => Place::Sim,
                Where::Lab => Place::Lab,
            };
            records.retain(|record| Place::of(record) == place);
            if records.is_empty() {
                let message = format!("no record is of {}", in_words(place));
                let hint = format!("all of these are of {}", in_words(place.other()));
                return Err(Failure::usage(message).hint(hint).into());
            }
        }
        let titles: BTreeSet<String> =
            records.iter().map(|record| format!("\"{}\"", record.title)).collect();
        let listed = titles.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        if let Some(only) = &self.only {
            records.retain(|record| record.title == *only);
            if records.is_empty() {
                let message = format!("no record is of a scenario with the title \"{only}\"");
                return Err(Failure::usage(message).hint(format!("there are {listed}")).into());
            }
        } else if self.out.is_some() && titles.len() > 1 {
            let message = format!("these are records of {} scenarios: {listed}", titles.len());
            let hint = "--only TITLE makes the page of one; the table shows each by itself";
            return Err(Failure::usage(message).hint(hint).into());
        }
        Ok(records)
    }
}

/// A place in words, with the option that selects it.
fn in_words(place: Place) -> &'static str {
    match place {
        Place::Sim => "the simulator (--in sim)",
        Place::Lab => "the laboratory (--in lab)",
    }
}

/// The records in `places` and below, in the order of their plans.
fn read_all(places: &[PathBuf]) -> anyhow::Result<Vec<Record>> {
    let mut gathered = Gathered::default();
    for place in places {
        if place.as_os_str() == "-" {
            add_standard_input(&mut gathered)?;
        } else {
            gathered.add_place(place, None)?;
        }
    }
    note(&gathered);
    let records = gathered.into_records();
    if records.is_empty() {
        return Err(Failure::usage("no records found").hint(WHERE_RECORDS_ARE).into());
    }
    Ok(records)
}

/// Adds the records from standard input.
pub(super) fn add_standard_input(gathered: &mut Gathered) -> anyhow::Result<()> {
    let text = io::read_to_string(io::stdin()).context("cannot read standard input")?;
    Ok(gathered.add_text("standard input", &text, false)?)
}

/// Prints the warnings of measurements.
pub(super) fn note(gathered: &Gathered) {
    gathered.notes().iter().for_each(|note| eprintln!("note: {note}"));
}
