//! The outcome of a study: the results of its runs, and the judgements of its claims.

use crate::studies::Prepared;
use midhop_experiment::record::{Environment, Record};
use midhop_experiment::{Plan, Scenario};
use midhop_failure as failure;
use midhop_report::{Plans, Seeds, Trace};
use midhop_study::{Judgement, Measured, Reading, Study, Verdict};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// An expectation was not met.
const UNMET: u8 = 2;

/// The results of one run.
#[derive(Debug)]
pub struct Read {
    reading: Reading,
    /// Why the run is not valid.
    faults: Vec<String>,
    environment: Environment,
    /// The curves, for the first seed only.
    trace: Option<Trace>,
}

impl Read {
    /// The results of `record`, of `plan`, for `study`; with curves where `over_time` is set and it
    /// is the first of its cell.
    pub fn of(study: &Prepared, plan: &Plan, record: &Record, over_time: bool) -> Self {
        let Prepared { bundle, plans, scenarios, .. } = study;
        let number = plan.number as usize;
        let scenario = &scenarios[number];
        let fault = |fault: &String| format!("{scenario}: {}: {fault}", plan.label());
        // The seed changes fastest from plan to plan.
        let before = number.checked_sub(1).map(|at| (&scenarios[at], plans[at].cell()));
        let first = over_time && before != Some((scenario, plan.cell()));
        Self {
            reading: Reading::of(scenario, record, &bundle.study.figures),
            faults: record.validity.faults.iter().map(fault).collect(),
            environment: record.environment.clone(),
            trace: first.then(|| Trace::of(scenario, record)).flatten(),
        }
    }
}

/// The outcome of a study.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The planned runs.
    pub runs: usize,
    /// Runs with a record.
    pub finished: usize,
    /// Records that could not be written.
    pub unwritten: usize,
    /// Why some runs are not valid.
    pub faults: Vec<String>,
    /// The results, figure by figure.
    pub measured: Measured,
    /// The judgements of the claims.
    pub judgements: Vec<Judgement>,
    /// The verdicts on published values, cell by cell.
    pub cells: Vec<Verdict>,
    /// The seeds of each cell that ran.
    pub seeds: Seeds,
    /// The plan of each cell.
    pub plans: Plans,
    /// The scenarios with the study's settings for this place.
    pub scenarios: BTreeMap<String, Scenario>,
    /// The environment of the first run.
    pub environment: Option<Environment>,
    /// One run of each cell over time.
    pub traces: Vec<Trace>,
    /// The total duration.
    pub took: Duration,
}

impl Outcome {
    /// The outcome of the runs of `study`; a run without a record has no result.
    pub fn of(study: &Prepared, results: Vec<Option<Read>>) -> Self {
        let Prepared { bundle, place, plans, scenarios, .. } = study;
        let read = study.read.clone();
        let mut outcome = Self { runs: plans.len(), scenarios: read, ..Self::default() };
        for (plan, read) in plans.iter().zip(results) {
            let Some(Read { reading, faults, environment, trace }) = read else { continue };
            outcome.finished += 1;
            outcome.faults.extend(faults);
            outcome.measured.add(reading);
            outcome.environment.get_or_insert(environment);
            outcome.traces.extend(trace);
            let place = (scenarios[plan.number as usize].clone(), plan.cell());
            if !outcome.plans.contains_key(&place)
                && let Ok(json) = plan.to_json()
            {
                outcome.plans.insert(place.clone(), json);
            }
            let seeds = outcome.seeds.entry(place).or_default();
            seeds.ran.push(plan.seed);
            seeds.asked = plan.seeds;
        }
        outcome.measured.relate(&bundle.study.figures);
        if *place != bundle.study.place {
            outcome.measured.forget_unmeasured();
        }
        outcome.judgements = bundle.study.judge(&outcome.measured);
        if *place != bundle.study.place {
            // A study that belongs in the other place is run only in part: the rest is not
            // reported.
            outcome.judgements.retain(Judgement::is_whole);
        }
        outcome.cells = bundle.study.verdicts(&outcome.measured);
        outcome
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        let claims = self.judgements.iter().map(|it| &it.verdict);
        let unmet = claims.chain(&self.cells).any(|verdict| *verdict == Verdict::Fails);
        let whole = self.finished == self.runs && self.unwritten == 0;
        match (self.faults.is_empty() && whole, unmet) {
            (false, _) => failure::RUN,
            (true, true) => UNMET,
            (true, false) => 0,
        }
    }
    /// The outcome for programs: each figure cell by cell, and each claim with its judgement.
    pub fn to_json(&self, study: &Prepared) -> Value {
        let bundle = &study.bundle;
        json!({
            "study": bundle.name,
            "in": study.place,
            "left_out": study.left_out,
            "title": bundle.study.title,
            "source": bundle.study.source,
            "confidence": bundle.study.confidence,
            "runs": self.runs,
            "finished": self.finished,
            "took_s": self.took.as_secs_f64(),
            "figures": figures(&bundle.study, &self.measured),
            "claims": self.judgements,
            "faults": self.faults,
        })
    }
}

fn figures(study: &Study, measured: &Measured) -> Vec<Value> {
    let mut figures = Vec::new();
    let level = study.level_of_points(measured);
    for figure in &study.figures {
        for value in measured.cells(&figure.name) {
            let published = figure.published.iter().find(|published| {
                published.at.iter().all(|(axis, label)| value.cell.get(axis) == Some(label))
            });
            figures.push(json!({
                "figure": figure.name,
                "metric": figure.metric,
                "take": figure.take,
                "relative_to": figure.relative_to,
                "unit": figure.unit(),
                "cell": value.cell,
                "published": published.map(|published| published.value),
                "allowed": published.and_then(|published| figure.allowance(published.value)),
                "verdict": published
                    .and_then(|published| figure.judge(published, measured, level)),
                "here": value.estimate(study.confidence),
                "values": value.values,
                "efficiencies": value.efficiencies,
                "limits": value.limits,
            }));
        }
    }
    figures
}
