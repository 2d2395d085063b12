//! A study of one scenario with many setups, whose cells all have the same sample.

use crate::drawn::drawn;
use crate::synthetic;
use midhop_experiment::Scenario;
use midhop_experiment::record::Record;
use midhop_report::{Plans, Reproduction, Seeds, Trace, study_page};
use midhop_study::{Measured, Place, Study};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const STUDY: &str = r#"
title = "Many proxies"
source = "Synthetic sample"
scenarios = ["many"]
[[figures]]
name = "file"
shows = "File"
scenario = "many"
metric = "goodput"
"#;

/// The study and its scenario.
pub struct Many {
    pub study: Study,
    scenarios: BTreeMap<String, Scenario>,
}

impl Many {
    /// A study with so many setups, each in all cases of a condition: `delays`, with quotes and
    /// commas.
    pub fn of(setups: usize, delays: &str) -> Self {
        let setup = |at: usize| format!("s{at} = {{ \"tcp.initial_window\" = {} }}\n", at + 1);
        let cases: String = (0..setups).map(setup).collect();
        let text = format!(
            "title = \"t\"\nduration = \"9 s\"\n[nodes]\na = {{}}\nb = {{}}\n[links.l]\n\
             between = [\"a\", \"b\"]\nrate = \"9 Mbit/s\"\ndelay = \"9 ms\"\n[transfers.file]\nfrom = \"b\"\n\
             to = \"a\"\nbytes = \"1 MB\"\n[vary]\n\"links.l.delay\" = [{delays}]\n[vary.setup]\n{cases}"
        );
        let scenario = Scenario::parse("many.toml", &text).expect("a scenario");
        Self {
            study: Study::parse("study.toml", STUDY).expect("a study"),
            scenarios: BTreeMap::from([("many".to_owned(), scenario)]),
        }
    }

    /// One record of each cell.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let first = synthetic::records(1).into_iter().find(|it| it.cell["load"] == "file");
        let first = first.expect("a record of a file");
        let cells = self.scenarios["many"].positions().into_iter();
        cells.map(move |cell| Record { cell, ..first.clone() })
    }

    /// The data that the script of its page draws.
    pub fn data(&self, measured: &Measured, traces: &[Trace]) -> Value {
        let page = study_page(&Reproduction {
            name: "many",
            study: &self.study,
            scenarios: &self.scenarios,
            measured,
            judgements: &[],
            place: Place::Sim,
            quick: false,
            runs: 1,
            finished: 1,
            faults: &[],
            left_out: &[],
            took: Duration::from_secs(1),
            seeds: &Seeds::new(),
            plans: &Plans::new(),
            environment: None,
            traces,
            command: "midhop reproduce many",
            beside: None,
        });
        drawn(&page.expect("a page"))
    }
}
