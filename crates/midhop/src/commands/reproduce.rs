//! `midhop reproduce`: repeats published studies.
//!
//! Standard output carries data only: tables, or JSON with `--json`. Progress goes to standard error.

mod beside;
mod chosen;
mod cluster;
mod pages;

use super::lab::progress::spoken;
use super::lab::session::{Isolated, Pace, outlook as lab_outlook};
use super::sim::batch::run_all;
use super::sim::engine::Engine;
use super::sim::outlook::outlook as sim_outlook;
use super::{arguments, go_on, origin, output};
use anyhow::Context;
use midhop_campaign::{Build, Files, Naming, Ran, Resumed, Store};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_study::{Judgement, Place, Verdict, Whose};
use midhop_testbed::runner::LATENESS;
use midhop_testbed::signals::Interrupts;
use midhop_workbench::{Asked, Outcome, Prepared, Read, Simulator, check_place, processors};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Arguments of `midhop reproduce`.
///
/// Exit codes: 0 every claim holds, is undecided (too few runs, or an unclear text), or does not
/// hold for a reason that the study's file states; 1 a run failed or was not valid; 2 a claim does
/// not hold; 64 usage.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Reproduce {
    /// A study, or a directory with a study.toml; `all` for every study that comes with the program, in
    /// virtual time and on real kernels
    #[arg(required = true, value_name = "NAME|DIR")]
    studies: Vec<String>,
    /// Where to run; if not given, in each study's own place, and `all` in both. Results of the
    /// other place that an earlier call with the same --out has left are shown as well
    #[arg(long = "in", value_enum, value_name = "WHERE")]
    place: Option<Where>,
    /// Run fewer cells and seeds, as set in the study's file
    #[arg(long)]
    quick: bool,
    /// Run each cell with this many seeds
    #[arg(long, value_name = "N")]
    seeds: Option<u32>,
    /// Parallel runs; if not given, one per processor, and in the lab as many as it can carry
    /// without being late
    #[arg(long, value_name = "N", value_parser = arguments::jobs)]
    jobs: Option<usize>,
    /// What runs studies in virtual time instead of this machine's processors: `ray` for a Ray
    /// cluster (one on this machine or the one that RAY_ADDRESS names, otherwise a new one), or the
    /// address of a cluster, ray://HOST:PORT. It needs the Python package
    #[arg(long, value_name = "ENGINE", value_parser = Engine::parse, requires = "out")]
    engine: Option<Engine>,
    /// The build of what runs there, once it is known.
    #[arg(skip)]
    package: OnceLock<Build>,
    /// Lateness that makes a run in the lab invalid, if 1 % of the round trip is less
    #[arg(long, value_name = "TIME", default_value_t = LATENESS)]
    lateness: midhop_units::Duration,
    /// Keep each record in this directory, and reuse those that an earlier call has finished
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write a report into this directory: an HTML page for each study, and index.html with links
    /// to them; if not given, DIR/report of --out
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Run only these cells, of one study: SCENARIO, or SCENARIO:AXIS=LABEL,…; may be repeated
    #[arg(long = "cell", value_name = "CELL")]
    cells: Vec<Asked>,
    /// Print one JSON object for each study instead of tables
    #[arg(long)]
    json: bool,
}

/// Where a study is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    /// In virtual time
    Sim,
    /// On real kernels
    Lab,
    /// In virtual time, and then on real kernels
    Both,
}

impl Where {
    /// The places in order.
    fn places(self) -> &'static [Place] {
        match self {
            Self::Sim => &[Place::Sim],
            Self::Lab => &[Place::Lab],
            Self::Both => &[Place::Sim, Place::Lab],
        }
    }
}

impl Reproduce {
    /// Runs the studies and prints the results.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut studies = self.chosen()?;
        self.check_engine(&studies)?;
        let inside = self.enter(&mut studies)?;
        self.announce_all(&studies)?;
        let interrupts = Interrupts::watch().context("cannot watch for signals")?;
        let mut worst = 0;
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut earlier: Vec<Option<Outcome>> = Vec::new();
        for (number, study) in studies.iter().enumerate() {
            let began = Instant::now();
            if let Some(engine) = self.engine_of(study)
                && let Some(code) = self.run_on(engine, study, &interrupts)?
            {
                return Ok(code);
            }
            let mut outcome = self.reproduce(study, inside.as_ref(), &interrupts)?;
            outcome.took = began.elapsed();
            let gap = if number > 0 && !self.json { "\n" } else { "" };
            output::print(&format!("{gap}{}", self.shown(study, &outcome)?))?;
            let twin = beside::twin(&studies, number);
            let left = if twin.is_none() { self.earlier(study) } else { None };
            let there = twin.and_then(|at| outcomes.get(at)).or(left.as_ref());
            if let (Some(there), false) = (there, self.json) {
                output::print(&beside::table(study, &outcome, there))?;
            }
            worst = match (worst, outcome.code()) {
                (crate::failure::RUN, _) | (_, crate::failure::RUN) => crate::failure::RUN,
                (one, other) => one.max(other),
            };
            outcomes.push(outcome);
            earlier.push(left);
        }
        if interrupts.is_set() {
            go_on::report(self.out.as_deref(), None);
        }
        let whole = self.cells.is_empty();
        if let Some(to) = pages::directory(self.report.as_deref(), self.out.as_deref(), whole) {
            let reports = studies.iter().enumerate().map(|(number, study)| {
                let twin = beside::twin(&studies, number).map(|at| &outcomes[at]);
                pages::StudyReport {
                    study,
                    outcome: &outcomes[number],
                    quick: self.quick,
                    command: self.again(study),
                    beside: twin.or(earlier[number].as_ref()),
                    beside_has_page: twin.is_some(),
                }
            });
            pages::write(&to, &reports.collect::<Vec<_>>())?;
        }
        Ok(ExitCode::from(worst))
    }

    /// The command that repeats a study.
    fn again(&self, study: &Prepared) -> String {
        let place = if study.place == Place::Lab { "lab" } else { "sim" };
        let mut command = format!("midhop reproduce {} --in {place}", study.bundle.name);
        if self.quick {
            command += " --quick";
        }
        if let Some(seeds) = self.seeds {
            command += &format!(" --seeds {seeds}");
        }
        command
    }

    fn reproduce(
        &self,
        study: &Prepared,
        inside: Option<&Isolated>,
        interrupts: &Interrupts,
    ) -> anyhow::Result<Outcome> {
        let plans = &study.plans;
        let reported = self.report.is_some() || self.out.is_some();
        if let Some(directory) = self.directory(study) {
            check_place(&directory)?;
        }
        let store = self.store(study)?;
        let store = store.as_ref().map(|it| it as &dyn Store);
        let read = |plan: &Plan, record: &Record| Read::of(study, plan, record, reported);
        let resumed = Resumed::of(plans, store, |plan, record| Some(read(plan, &record)));
        let elsewhere = self.engine_of(study).is_some();
        if !elsewhere {
            eprintln!("{}", self.announced(study, &resumed.left()));
        }
        // A failure was reported when it happened.
        let ran = match inside.filter(|_| study.place == Place::Lab) {
            // Runs that the cluster has left out are not run here.
            None if elsewhere => {
                let results = resumed.into_results().into_iter().map(Option::flatten);
                Ran { results: results.collect(), unwritten: 0 }
            }
            Some(inside) => {
                let (jobs, lateness) = (self.jobs, self.lateness);
                let pace =
                    Pace { jobs, lateness, repeats: None, must_be_in_time: true, lines: false };
                inside.run(resumed, pace, interrupts, store, |plan, outcome| {
                    Some(read(plan, &outcome.ok()?))
                })
            }
            None => {
                let (simulator, jobs) =
                    (Simulator::unwatched(), self.jobs.unwrap_or_else(processors));
                run_all(&simulator, resumed, jobs, interrupts, store, |plan, outcome| {
                    Some(read(plan, &outcome.ok()?))
                })
            }
        };
        let mut outcome = Outcome::of(study, ran.results);
        outcome.unwritten = ran.unwritten;
        report_failures(&outcome);
        Ok(outcome)
    }

    /// What will be run, and how long it will take.
    fn announced(&self, study: &Prepared, left: &[&Plan]) -> String {
        let Prepared { bundle, plans, .. } = study;
        let place = match study.place {
            own if own == bundle.study.place => "",
            Place::Sim => " in the simulator",
            Place::Lab => " in the lab",
        };
        let mut text = format!("{}{place}: {} runs", bundle.name, plans.len());
        if left.len() < plans.len() {
            text += &format!(", {} of them there already", plans.len() - left.len());
        }
        let (time, most) = self.outlook(study.place, left);
        let time =
            in_words(study.place, time).filter(|_| study.place == Place::Lab || !left.is_empty());
        text += &time.map_or_else(String::new, |time| format!(", about {time}"));
        if most > 1 {
            text += &format!(", up to {most} at a time");
        }
        for left_out in &study.left_out {
            text += &format!("\n  {left_out}");
        }
        text
    }

    /// An estimate of how long `plans` take in `place`, and the maximum number of parallel runs
    /// where that is of interest: on kernels, time is real time; in virtual time, it depends on the
    /// machine. None where a trial is not possible.
    fn outlook(&self, place: Place, plans: &[&Plan]) -> (Option<Duration>, usize) {
        match place {
            Place::Sim => (sim_outlook(plans, self.jobs.unwrap_or_else(processors)), 1),
            Place::Lab => {
                let (time, most) = lab_outlook(plans, self.jobs);
                (Some(time), most)
            }
        }
    }

    /// Where several studies run in one place, how long all of them will take there.
    fn announce_all(&self, studies: &[Prepared]) -> anyhow::Result<()> {
        for (place, name) in [(Place::Sim, "in the simulator"), (Place::Lab, "on real kernels")] {
            let here: Vec<&Prepared> = studies.iter().filter(|it| it.place == place).collect();
            // The speed of a cluster is not known here.
            if here.len() < 2 || (place == Place::Sim && self.engine.is_some()) {
                continue;
            }
            let (mut time, mut runs) = (Some(Duration::ZERO), 0);
            for study in here {
                let left = self.left(study)?;
                let (more, _) = self.outlook(place, &left);
                time = time.zip(more).map(|(time, more)| time + more);
                runs += left.len();
            }
            if let Some(time) = in_words(place, time).filter(|_| runs > 0 || place == Place::Lab) {
                eprintln!("{runs} runs {name} take about {time} in all");
            }
        }
        Ok(())
    }

    /// The runs of a study for which an earlier call has left no record. In virtual time there are
    /// thousands of records, and one of them is enough to check that this build has made them.
    fn left<'p>(&self, study: &'p Prepared) -> anyhow::Result<Vec<&'p Plan>> {
        let store = self.store(study)?;
        let mut left = Vec::new();
        let mut ours = None;
        for plan in &study.plans {
            let read = || store.as_ref().is_some_and(|it| it.finished(plan).is_some());
            let there = match study.place {
                Place::Lab => read(),
                Place::Sim => {
                    store.as_ref().is_some_and(|it| it.holds(plan))
                        && *ours.get_or_insert_with(read)
                }
            };
            if !there {
                left.push(plan);
            }
        }
        Ok(left)
    }

    /// The directory of a study's records, if they are kept.
    fn directory(&self, study: &Prepared) -> Option<PathBuf> {
        let directory = self.out.as_ref()?.join(study.bundle.directory_name());
        // A plan may have one record in virtual time and another on kernels.
        Some(if study.place == Place::Lab { directory.join("lab") } else { directory })
    }

    /// The store of a study's records, if they are kept.
    fn store(&self, study: &Prepared) -> anyhow::Result<Option<Files>> {
        let Some(directory) = self.directory(study) else { return Ok(None) };
        let origin = match (study.place, self.engine_of(study)) {
            (Place::Sim, None) => origin::simulated()?,
            (Place::Sim, Some(engine)) => self.origin_on(engine)?,
            (Place::Lab, _) => origin::real()?,
        };
        Ok(Some(Files::new(&directory, origin, Naming::ByKey)))
    }

    fn shown(&self, study: &Prepared, outcome: &Outcome) -> anyhow::Result<String> {
        let bundle = &study.bundle;
        let Outcome { measured, judgements, took, .. } = outcome;
        if !self.json {
            let tables =
                midhop_report::study(&bundle.study, measured, judgements, output::columns());
            let place = if study.place == Place::Lab { " on real kernels" } else { "" };
            let took = took.as_secs_f64();
            let runs = format!("{} runs{place} in {took:.1} s", outcome.finished);
            let claims = |whose, what| {
                let counted = |it: &&Judgement| it.claim.by == whose && it.claim.is_counted();
                let judged = judgements.iter().filter(counted);
                summed(what, &judged.map(|it| it.verdict).collect::<Vec<_>>())
            };
            let printed = summed("printed numbers", &outcome.cells);
            let studys = claims(Whose::Study, "the study's claims");
            let ours = claims(Whose::Ours, "our claims");
            return Ok(format!("{tables}{printed}{studys}{ours}{runs}\n"));
        }
        Ok(serde_json::to_string(&outcome.to_json(study)).context("cannot print a study")? + "\n")
    }
}

/// Prints failures on standard error.
fn report_failures(outcome: &Outcome) {
    let Outcome { runs, finished, unwritten, .. } = outcome;
    for fault in &outcome.faults {
        eprintln!("invalid: {fault}");
    }
    if finished < runs {
        eprintln!("error: {} of {runs} runs gave no record", runs - finished);
    }
    if *unwritten > 0 {
        eprintln!("error: {unwritten} of {runs} records were not written");
    }
}

/// `time` in words.
fn in_words(place: Place, time: Option<Duration>) -> Option<String> {
    match place {
        Place::Sim => {
            time.map(|it| format!("{} on this machine", spoken(it.max(Duration::from_secs(1)))))
        }
        Place::Lab => time.map(spoken),
    }
}

/// The number of `verdicts` of each kind; nothing where there are none.
fn summed(what: &str, verdicts: &[Verdict]) -> String {
    use Verdict::{Calibrated, Departs, Fails, Holds, Open};
    let counted = [Holds, Fails, Departs, Open, Calibrated]
        .into_iter()
        .map(|verdict| (verdict, verdicts.iter().filter(|it| **it == verdict).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(verdict, count)| {
            let name = midhop_report::verdict_name(verdict);
            format!("{count} {}", name.trim_end_matches('='))
        });
    let counted = counted.collect::<Vec<_>>().join(", ");
    if counted.is_empty() { counted } else { format!("{what}: {counted}\n") }
}
