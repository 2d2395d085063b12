//! `midhop reproduce`: published studies, run again.
//!
//! Standard output carries data only: tables, or JSON with `--json`. Progress goes to standard error.

mod shipped;

use super::records::{Unwritten, check_place};
use super::scenario::simulable_plans;
use super::sim::batch::{processors, run_all};
use super::{arguments, output, own_program};
use crate::failure::Failure;
use anyhow::Context;
use midhop_experiment::record::Record;
use midhop_experiment::study::{Judgement, Measured, Reading, Verdict};
use midhop_experiment::{Plan, study::Study};
use midhop_store::{Build, Files, Key};
use midhop_testbed::signals::Interrupts;
use serde_json::json;
use shipped::Bundle;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// An expectation was not met.
const UNMET: u8 = 2;

/// Arguments of `midhop reproduce`.
///
/// Exit codes: 0 every claim holds, cannot be told from so few runs, or departs for a reason that the
/// study's file states; 1 a run failed or was not valid; 2 a claim does not hold; 64 usage.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Reproduce {
    /// A study, or a directory with a study.toml; `all` for every study that comes with the program
    #[arg(required = true, value_name = "NAME|DIR")]
    studies: Vec<String>,
    /// What it runs in
    #[arg(long = "in", value_enum, value_name = "WHERE", default_value = "sim")]
    place: Place,
    /// Fewer cells and seeds, as the study's file says
    #[arg(long)]
    quick: bool,
    /// Run each cell with this many seeds
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Runs at a time; all processors when not given
    #[arg(long, value_name = "N", default_value_t = processors(), value_parser = arguments::jobs)]
    jobs: usize,
    /// Keep each record in this directory, and take from there what an earlier call has finished
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object for each study instead of tables
    #[arg(long)]
    json: bool,
}

/// Where a study is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    /// In virtual time
    Sim,
    /// On real kernels
    Lab,
}

impl Reproduce {
    /// Runs the studies and prints what came out.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.place == Place::Lab {
            return Err(Failure::usage("studies run in the simulator only, so far")
                .hint("take --in sim, or give one of a study's scenarios to `midhop lab run`")
                .into());
        }
        let mut names: Vec<String> = Vec::new();
        for name in &self.studies {
            match name.as_str() {
                "all" => names.extend(shipped::names().map(str::to_owned)),
                name => names.push(name.to_owned()),
            }
        }
        let bundles =
            names.iter().map(|name| shipped::find(name)).collect::<anyhow::Result<Vec<_>>>()?;
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let mut worst = 0;
        for (number, bundle) in bundles.iter().enumerate() {
            let outcome = self.reproduce(bundle, &interrupts)?;
            let gap = if number > 0 && !self.json { "\n" } else { "" };
            output::print(&format!("{gap}{}", self.shown(bundle, &outcome)?))?;
            worst = match (worst, outcome.code()) {
                (crate::failure::RUN, _) | (_, crate::failure::RUN) => crate::failure::RUN,
                (one, other) => one.max(other),
            };
        }
        Ok(ExitCode::from(worst))
    }

    fn reproduce(&self, bundle: &Bundle, interrupts: &Interrupts) -> anyhow::Result<Outcome> {
        let began = Instant::now();
        let (mut plans, mut scenarios): (Vec<Plan>, Vec<&str>) = Default::default();
        for (name, mut scenario, set) in bundle.scenarios(self.quick) {
            let seeds = self.seeds.map(|seeds| format!("seeds={seeds}"));
            for assignment in set.iter().chain(&seeds) {
                scenario.set(assignment).map_err(Failure::from)?;
            }
            bundle.supply(name, &mut scenario)?;
            for plan in simulable_plans(&scenario)? {
                let number = u32::try_from(plans.len()).unwrap_or(u32::MAX);
                plans.push(Plan { number, ..plan });
                scenarios.push(name);
            }
        }
        let store = self.store(bundle)?;
        let keys: Vec<Key> = plans.iter().map(Key::of).collect::<Result<_, _>>()?;
        eprintln!("{}: {} runs", bundle.name, plans.len());
        let read = |plan: &Plan, record: &Record| {
            let scenario = scenarios[plan.number as usize];
            let label = || format!("{scenario}: {}", plan.label());
            let faults = record.validity.faults.iter().map(|fault| format!("{}: {fault}", label()));
            (Reading::of(scenario, record, &bundle.study.figures), faults.collect::<Vec<_>>())
        };
        let finished =
            |(plan, key): (&Plan, &Key)| Some(read(plan, &store.as_ref()?.get(plan, key)?));
        let mut results: Vec<Option<(Reading, Vec<String>)>> =
            plans.iter().zip(&keys).map(finished).collect();
        let left: Vec<&Plan> =
            plans.iter().filter(|plan| results[plan.number as usize].is_none()).collect();
        let unwritten = Unwritten::default();
        let ran = run_all(
            &left,
            self.jobs,
            interrupts,
            |_| Ok(Vec::new()),
            |plan, outcome| {
                // What failed was told when it did.
                let (mut record, _) = outcome.ok()?;
                if let Some(store) = &store {
                    let key = &keys[plan.number as usize];
                    unwritten.note(store.keep(&mut record, plan, key).map_err(Into::into));
                }
                Some(read(plan, &record))
            },
        );
        for (plan, result) in left.iter().zip(ran) {
            results[plan.number as usize] = result;
        }
        let runs = plans.len();
        let mut outcome = Outcome { runs, unwritten: unwritten.count(), ..Outcome::default() };
        for (reading, faults) in results.into_iter().flatten() {
            outcome.finished += 1;
            outcome.faults.extend(faults);
            outcome.measured.add(reading);
        }
        outcome.judgements = bundle.study.judge(&outcome.measured);
        outcome.cells = bundle.study.verdicts(&outcome.measured);
        outcome.took = began.elapsed();
        outcome.tell();
        Ok(outcome)
    }

    /// Where the records of a study are kept, if anywhere.
    fn store(&self, bundle: &Bundle) -> anyhow::Result<Option<Files>> {
        let Some(out) = &self.out else { return Ok(None) };
        let directory = out.join(bundle_directory(&bundle.name));
        check_place(&directory)?;
        Ok(Some(Files::new(&directory, Build::of(&own_program()?)?)))
    }

    fn shown(&self, bundle: &Bundle, outcome: &Outcome) -> anyhow::Result<String> {
        let Outcome { measured, judgements, took, .. } = outcome;
        if !self.json {
            let tables = midhop_report::study(&bundle.study, measured, judgements);
            let runs = format!("{} runs in {:.1} s", outcome.finished, took.as_secs_f64());
            let claims: Vec<Verdict> = judgements.iter().map(|it| it.verdict).collect();
            let (claims, cells) = (summed("claims", &claims), summed("figures", &outcome.cells));
            return Ok(format!("{tables}{claims}{cells}{runs}\n"));
        }
        let value = json!({
            "study": bundle.name,
            "title": bundle.study.title,
            "source": bundle.study.source,
            "confidence": bundle.study.confidence,
            "runs": outcome.runs,
            "finished": outcome.finished,
            "took_s": took.as_secs_f64(),
            "figures": figures(&bundle.study, measured),
            "claims": judgements,
            "faults": outcome.faults,
        });
        Ok(serde_json::to_string(&value).context("cannot print a study")? + "\n")
    }
}

/// What came of a study.
#[derive(Debug, Default)]
struct Outcome {
    runs: usize,
    finished: usize,
    /// Records that could not be written.
    unwritten: usize,
    faults: Vec<String>,
    measured: Measured,
    judgements: Vec<Judgement>,
    /// Of what is published cell by cell.
    cells: Vec<Verdict>,
    took: Duration,
}

impl Outcome {
    fn tell(&self) {
        for fault in &self.faults {
            eprintln!("invalid: {fault}");
        }
        if self.finished < self.runs {
            eprintln!("error: {} of {} runs gave no record", self.runs - self.finished, self.runs);
        }
        if self.unwritten > 0 {
            eprintln!("error: {} of {} records were not written", self.unwritten, self.runs);
        }
    }

    fn code(&self) -> u8 {
        let claims = self.judgements.iter().map(|it| &it.verdict);
        let unmet = claims.chain(&self.cells).any(|verdict| *verdict == Verdict::Fails);
        let whole = self.finished == self.runs && self.unwritten == 0;
        match (self.faults.is_empty() && whole, unmet) {
            (false, _) => crate::failure::RUN,
            (true, true) => UNMET,
            (true, false) => 0,
        }
    }
}

/// How many of `verdicts` there are of each kind; nothing where there are none.
fn summed(what: &str, verdicts: &[Verdict]) -> String {
    use Verdict::{Calibrated, Departs, Fails, Holds, Open};
    let counted = [Holds, Fails, Departs, Open, Calibrated]
        .into_iter()
        .map(|verdict| (verdict, verdicts.iter().filter(|it| **it == verdict).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(verdict, count)| {
            let name = midhop_report::verdict_name(verdict);
            format!("{count} {}", name.trim_end_matches(['*', '=']))
        });
    let counted = counted.collect::<Vec<_>>().join(", ");
    if counted.is_empty() { counted } else { format!("{what}: {counted}\n") }
}

fn figures(study: &Study, measured: &Measured) -> Vec<serde_json::Value> {
    let mut figures = Vec::new();
    for figure in &study.figures {
        for value in measured.cells(&figure.name) {
            let published = figure.published.iter().find(|published| {
                published.at.iter().all(|(axis, label)| value.cell.get(axis) == Some(label))
            });
            figures.push(json!({
                "figure": figure.name,
                "metric": figure.metric,
                "unit": figure.metric.unit(),
                "cell": value.cell,
                "published": published.map(|published| published.value),
                "allowed": published.and_then(|published| figure.allowance(published.value)),
                "verdict": published
                    .and_then(|published| figure.judge(published, measured, study.confidence)),
                "here": value.estimate(study.confidence),
                "values": value.values,
                "efficiencies": value.efficiencies,
            }));
        }
    }
    figures
}

/// A study's directory among the records: its name without what leads to it.
fn bundle_directory(name: &str) -> &str {
    Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or("study")
}
