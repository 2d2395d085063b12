//! The simulator beside the laboratory: the cells that have run in both.

use midhop_experiment::study::{Measured, Study};
use std::fmt::Write as _;

/// A line for each cell of each figure that has run in both; nothing where there is none.
pub fn table(study: &Study, sim: &Measured, lab: &Measured) -> String {
    let mut text = String::new();
    for figure in &study.figures {
        for there in lab.cells(&figure.name) {
            let here = sim.cell(&figure.name, &there.cell);
            let pair = here.and_then(|it| it.estimate(study.confidence));
            let Some((sim, lab)) = pair.zip(there.estimate(study.confidence)) else { continue };
            let cell: Vec<String> =
                there.cell.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
            let mut ratio = "     –".to_owned();
            if sim.mean != 0.0 {
                ratio = format!("{:6.2}", lab.mean / sim.mean);
            }
            let _ = writeln!(
                text,
                "{:>10.3} {:>10.3} {ratio}  {} {}",
                sim.mean,
                lab.mean,
                figure.name,
                cell.join(" ")
            );
        }
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "\nThe simulator beside the laboratory\n{:>10} {:>10} {:>6}\n{text}",
        "sim", "lab", "lab/sim"
    )
}
