//! The runs of a study, by place.

use crate::asked::{self, Asked};
use crate::scenario::{runnable_plans, simulable_plans};
use crate::shipped::Bundle;
use midhop_experiment::{Plan, Scenario};
use midhop_failure::Failure;
use midhop_study::Place;
use std::collections::BTreeMap;

/// A study with all its runs in one place.
#[derive(Debug)]
pub struct Prepared {
    /// The study.
    pub bundle: Bundle,
    /// The place.
    pub place: Place,
    /// All its runs.
    pub plans: Vec<Plan>,
    /// The scenario of each plan.
    pub scenarios: Vec<String>,
    /// Every scenario by name, with the study's settings for that place.
    pub read: BTreeMap<String, Scenario>,
    /// The runs that are left out there, and why.
    pub left_out: Vec<String>,
}

impl Prepared {
    /// Resolves the runs of a study for `place`: the quick form where it is `quick`, with so many
    /// `seeds` for each cell where they are given, and only the requested `cells` where there are
    /// any.
    ///
    /// # Errors
    /// When a scenario of it cannot be run, or it has no such cell.
    pub fn of(
        bundle: Bundle,
        place: Place,
        quick: bool,
        seeds: Option<u32>,
        cells: &[Asked],
    ) -> Result<Self, Failure> {
        asked::check(cells, &bundle)?;
        let (mut plans, mut scenarios): (Vec<Plan>, Vec<String>) = Default::default();
        let mut read = bundle.all().clone();
        for (name, mut scenario, set) in bundle.scenarios(place, quick) {
            let seeds = seeds.map(|seeds| format!("seeds={seeds}"));
            for assignment in set.iter().chain(&seeds) {
                scenario.set(assignment)?;
            }
            bundle.supply(name, &mut scenario)?;
            let mut resolved = match place {
                Place::Sim => simulable_plans(&scenario)?,
                Place::Lab => runnable_plans(&scenario)?,
            };
            asked::keep(cells, name, &mut resolved);
            read.insert(name.to_owned(), scenario);
            for plan in resolved {
                let number = u32::try_from(plans.len()).unwrap_or(u32::MAX);
                plans.push(Plan { number, ..plan });
                scenarios.push(name.to_owned());
            }
        }
        Ok(Self { bundle, place, plans, scenarios, read, left_out: Vec::new() })
    }
}
