//! The selection of studies, places and cells.

use super::{Reproduce, Where};
use crate::commands::lab::check_daemon;
use crate::commands::lab::refusal::parted;
use crate::commands::lab::session::Isolated;
use crate::failure::Failure;
use midhop_study::Place;
use midhop_workbench::{Bundle, Prepared, find, names};

impl Reproduce {
    /// The studies in order, each in virtual time before it is on kernels.
    pub(super) fn chosen(&self) -> anyhow::Result<Vec<Prepared>> {
        let mut studies = Vec::new();
        for name in &self.studies {
            if name != "all" {
                let bundle = find(name)?;
                let own = bundle.study.place;
                let places = self.place.map_or(vec![own], |wanted| wanted.places().to_vec());
                for place in places {
                    studies.push(self.prepared(find(name)?, place)?);
                }
                continue;
            }
            for name in names() {
                for place in [Place::Sim, Place::Lab] {
                    let bundle = find(name)?;
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
                        // A request for everything gets whatever is possible.
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

    /// Enters isolation where a study needs it. Where that is refused, a study that was not
    /// requested by name or place is left out.
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
        let mut study = Prepared::of(bundle, place, self.quick, self.seeds, &self.cells)?;
        if place == Place::Lab {
            leave_out(&mut study)?;
            check_daemon(&study.plans)?;
        }
        Ok(study)
    }
}

/// Leaves out plans that the lab cannot run.
///
/// # Errors
/// When nothing is left.
fn leave_out(study: &mut Prepared) -> anyhow::Result<()> {
    let (plans, scenarios) =
        (std::mem::take(&mut study.plans), std::mem::take(&mut study.scenarios));
    let some = !plans.is_empty();
    let (mut plans, left_out) = parted(plans, |plan| &scenarios[plan.number as usize]);
    if let Some(first) = left_out.first().filter(|_| some && plans.is_empty()) {
        let message = format!("the lab can run nothing of {}: {first}", study.bundle.name);
        return Err(Failure::usage(message).hint("run it with `--in sim`").into());
    }
    for (number, plan) in plans.iter_mut().enumerate() {
        study.scenarios.push(scenarios[plan.number as usize].clone());
        plan.number = u32::try_from(number).unwrap_or(u32::MAX);
    }
    (study.plans, study.left_out) = (plans, left_out);
    Ok(())
}
