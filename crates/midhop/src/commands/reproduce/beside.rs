//! The simulator beside the laboratory: the cells that have run in both.

use midhop_experiment::study::{Measured, Study};
use std::fmt::Write as _;

/// A line for each cell of each figure that has run in both, with how many runs there were; nothing where
/// there is none.
pub fn table(study: &Study, sim: &Measured, lab: &Measured) -> String {
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
