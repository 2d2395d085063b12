//! Compares the simulator with the laboratory: the cells that have run in both.

use super::Reproduce;
use midhop_campaign::Store;
use midhop_study::Place;
use midhop_workbench::{Outcome, Prepared, Read};
use std::fmt::Write as _;

/// The one of `studies` that is the study of `number` in the other place.
pub fn twin(studies: &[Prepared], number: usize) -> Option<usize> {
    let study = &studies[number];
    studies.iter().position(|it| it.bundle.name == study.bundle.name && it.place != study.place)
}

impl Reproduce {
    /// The results of `study` in the other place that earlier calls with the same directory of
    /// records have left; none where there are none, or none of its plans could run there.
    pub(super) fn earlier(&self, study: &Prepared) -> Option<Outcome> {
        self.out.as_ref()?;
        let bundle = midhop_workbench::find(&study.bundle.name).ok()?;
        let there = self.prepared(bundle, study.place.other()).ok()?;
        let store = self.store(&there).ok()??;
        let left = |plan| Some(Read::of(&there, plan, &store.finished(plan)?, false));
        let results = there.plans.iter().map(left).collect();
        let outcome = Outcome::of(&there, results);
        (outcome.finished > 0).then_some(outcome)
    }
}

/// A line for each cell of each figure that has run in both, with the numbers of runs; nothing
/// where there is none.
pub fn table(study: &Prepared, own: &Outcome, other: &Outcome) -> String {
    let [sim, lab] = match study.place {
        Place::Sim => [own, other],
        Place::Lab => [other, own],
    }
    .map(|it| &it.measured);
    let study = &study.bundle.study;
    let mut text = String::new();
    for figure in &study.figures {
        for there in lab.cells(&figure.name) {
            let Some(here) = sim.cell(&figure.name, &there.cell) else { continue };
            let estimates = [here, there].map(|it| it.estimate(study.confidence));
            let [Some(sim), Some(lab)] = estimates else { continue };
            let cell: Vec<String> =
                there.cell.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
            let ratio = match sim.mean == 0.0 {
                true => "–".to_owned(),
                false => format!("{:.2}", lab.mean / sim.mean),
            };
            let _ = writeln!(
                text,
                "{:>9.2} {:>4} {:>9.2} {:>4} {ratio:>7}  {} {}",
                sim.mean,
                here.values.len(),
                lab.mean,
                there.values.len(),
                figure.name,
                cell.join(" ")
            );
        }
    }
    if text.is_empty() {
        return text;
    }
    let head = ["sim", "runs", "lab", "runs", "lab/sim"];
    let [sim, sims, lab, labs, ratio] = head;
    let head = format!("{sim:>9} {sims:>4} {lab:>9} {labs:>4} {ratio:>7}");
    format!("\nThe simulator beside the laboratory\n{head}\n{text}")
}
