//! Which studies are run where, and what of them.

use super::shipped::{self, Bundle};
use super::{Reproduce, Where, asked};
use crate::commands::lab::check_daemon;
use crate::commands::lab::refusal::parted;
use crate::commands::lab::session::Isolated;
use crate::commands::scenario::{runnable_plans, simulable_plans};
use crate::failure::Failure;
use midhop_experiment::{Plan, Scenario};
use midhop_study::Place;
use std::collections::BTreeMap;

/// A study with all that is to be run of it in one place.
pub struct Prepared {
    pub bundle: Bundle,
    pub place: Place,
    pub plans: Vec<Plan>,
    /// The scenario of each plan.
    pub scenarios: Vec<String>,
    /// Every scenario by its name, with what the study sets in it there.
    pub read: BTreeMap<String, Scenario>,
    /// What cannot be run there, and why.
    pub left_out: Vec<String>,
}

impl Reproduce {
    /// The studies in their order, each in virtual time before it is on kernels.
    pub(super) fn chosen(&self) -> anyhow::Result<Vec<Prepared>> {
        let mut studies = Vec::new();
        for name in &self.studies {
            if name != "all" {
                let bundle = shipped::find(name)?;
                let own = bundle.study.place;
                let places = self.place.map_or(vec![own], |wanted| wanted.places().to_vec());
                for place in places {
                    studies.push(self.prepared(shipped::find(name)?, place)?);
                }
                continue;
            }
            for name in shipped::names() {
                for place in [Place::Sim, Place::Lab] {
                    let bundle = shipped::find(name)?;
                    let wanted = self.place.is_none_or(|wanted| wanted.places().contains(&place));
                    if !wanted || !bundle.study.runs_in(place) {
                        if self.place == Some(Where::Lab) && place == Place::Lab {
                            eprintln!("{name}: nothing of it is meant for the lab");
                        }
                        continue;
                    }
                    match self.prepared(bundle, place) {
                        Ok(study) if study.plans.is_empty() => {}
                        Ok(study) => studies.push(study),
                        // Who asks for everything gets what there is.
                        Err(error) if self.place.is_none() && place == Place::Lab => {
                            eprintln!("{name}: the lab is left out: {error:#}");
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(studies)
    }

    /// Goes into isolation where a study needs it; one that nobody asked for by its name or place is left out
    /// where that is refused.
    pub(super) fn enter(&self, studies: &mut Vec<Prepared>) -> anyhow::Result<Option<Isolated>> {
        if studies.iter().all(|study| study.place == Place::Sim) {
            return Ok(None);
        }
        match Isolated::enter() {
            Ok(inside) => Ok(Some(inside)),
            Err(error) if self.place.is_none() && self.studies.iter().all(|it| it == "all") => {
                eprintln!("the lab is left out: {error:#}");
                studies.retain(|study| study.place == Place::Sim);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Resolves the runs of a study for `place`.
    pub(super) fn prepared(&self, bundle: Bundle, place: Place) -> anyhow::Result<Prepared> {
        asked::check(&self.cells, &bundle)?;
        let (mut plans, mut scenarios): (Vec<Plan>, Vec<String>) = Default::default();
        let mut read = bundle.all().clone();
        for (name, mut scenario, set) in bundle.scenarios(place, self.quick) {
            let seeds = self.seeds.map(|seeds| format!("seeds={seeds}"));
            for assignment in set.iter().chain(&seeds) {
                scenario.set(assignment).map_err(Failure::from)?;
            }
            bundle.supply(name, &mut scenario)?;
            let mut resolved = match place {
                Place::Sim => simulable_plans(&scenario)?,
                Place::Lab => runnable_plans(&scenario)?,
            };
            asked::keep(&self.cells, name, &mut resolved);
            read.insert(name.to_owned(), scenario);
            for plan in resolved {
                let number = u32::try_from(plans.len()).unwrap_or(u32::MAX);
                plans.push(Plan { number, ..plan });
                scenarios.push(name.to_owned());
            }
        }
        let left_out = Vec::new();
        let mut study = Prepared { bundle, place, plans, scenarios, read, left_out };
        if place == Place::Lab {
            study.leave_out()?;
            check_daemon(&study.plans)?;
        }
        Ok(study)
    }
}

impl Prepared {
    /// Leaves out what the lab cannot run.
    ///
    /// # Errors
    /// When nothing is left.
    fn leave_out(&mut self) -> anyhow::Result<()> {
        let (plans, scenarios) =
            (std::mem::take(&mut self.plans), std::mem::take(&mut self.scenarios));
        let some = !plans.is_empty();
        let (mut plans, left_out) = parted(plans, |plan| &scenarios[plan.number as usize]);
        if let Some(first) = left_out.first().filter(|_| some && plans.is_empty()) {
            let message = format!("the lab can run nothing of {}: {first}", self.bundle.name);
            return Err(Failure::usage(message).hint("run it with `--in sim`").into());
        }
        for (number, plan) in plans.iter_mut().enumerate() {
            self.scenarios.push(scenarios[plan.number as usize].clone());
            plan.number = u32::try_from(number).unwrap_or(u32::MAX);
        }
        (self.plans, self.left_out) = (plans, left_out);
        Ok(())
    }
}
