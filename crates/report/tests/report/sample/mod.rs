//! A study of synthetic records, from which tests make a page.

use super::synthetic;
use midhop_experiment::Scenario;
use midhop_experiment::record::{Record, Series};
use midhop_report::{Beside, CellSeeds, Plans, Reproduction, Seeds, Trace, study_page};
use midhop_study::{Judgement, Measured, Place, Reading, Study};
use midhop_units::Rate;
use std::collections::BTreeMap;
use std::time::Duration;

/// A study of the synthetic records.
pub const STUDY: &str = r#"
title = "A proxy at the gateway"
source = "Synthetic sample"
scenarios = ["geo-demo"]

[axes.setup]
shows = "configuration"
names = { cubic = "CUBIC end to end", midhop-bbr = "midhopd, BBR" }
ours = ["midhop-hybla-plus", "midhop-bbr"]

[[figures]]
name = "file"
shows = "File: goodput by loss"
scenario = "geo-demo"
metric = "goodput"
at = { load = "file" }
within = 0.5
tolerance = "made up"
published = [
    { at = { "links.satellite.down.loss" = "1 %", setup = "cubic" }, value = 0.5, called = "Case <i>" },
    { at = { "links.satellite.down.loss" = "0 %", setup = "cubic" }, value = 40, departs = "too much <b>" },
]

[[figures]]
name = "loads"
shows = "All loads at 1 %: share of the limit"
scenario = "geo-demo"
metric = "efficiency"
at = { "links.satellite.down.loss" = "1 %" }

[[figures]]
name = "page"
shows = "Page at 1 %: time"
scenario = "geo-demo"
metric = "time"
at = { "links.satellite.down.loss" = "1 %", load = "page" }

[[figures]]
name = "again"
shows = "File: sent again"
scenario = "geo-demo"
metric = "resent"
at = { load = "file" }
against = "file"
published = [{ at = { "links.satellite.down.loss" = "1 %", setup = "cubic" }, value = 1 }]

[[claims]]
says = "BBR is ahead of CUBIC"
place = "Table 1"
figure = "file"
at = { "links.satellite.down.loss" = "1 %" }
over = "setup"
falling = ["bbr", "cubic"]

[[claims]]
says = "CUBIC is ahead of BBR"
figure = "file"
at = { "links.satellite.down.loss" = "1 %" }
over = "setup"
rising = ["bbr", "cubic"]

[[claims]]
says = "CUBIC fills the link"
departs = "it does not <i>know</i> losses"
figure = "file"
at = { "links.satellite.down.loss" = "1 %", setup = "cubic" }
at_least = 10

[[claims]]
says = "CUBIC reaches what it reaches"
by = "ours"
figure = "file"
at = { "links.satellite.down.loss" = "9 %", setup = "cubic" }
at_least = 10

[[claims]]
says = "Users are happier"
place = "Sec. 7"
untold = "happiness has no <b>unit</b>"
"#;

/// Everything that a page needs.
pub struct Ran {
    pub name: String,
    pub study: Study,
    pub scenarios: BTreeMap<String, Scenario>,
    pub measured: Measured,
    pub judgements: Vec<Judgement>,
    pub faults: Vec<String>,
    pub seeds: Seeds,
    pub plans: Plans,
    pub traces: Vec<Trace>,
    pub command: String,
    /// The results of the laboratory, and their seeds.
    pub lab: Option<(Measured, Seeds)>,
    /// The scenarios with the study's settings for the laboratory.
    pub scenarios_of_lab: BTreeMap<String, Scenario>,
}

impl Ran {
    pub fn of(text: &str) -> Self {
        Self::from(text, synthetic::records(3))
    }

    pub fn from(text: &str, records: Vec<Record>) -> Self {
        let study = Study::parse("study.toml", text).expect("a study");
        let demo = include_str!("../../../../../scenarios/geo-demo.toml");
        let demo = Scenario::parse("geo-demo.toml", demo).expect("a scenario");
        let mut ran = Self {
            name: "sample".to_owned(),
            scenarios: BTreeMap::from([("geo-demo".to_owned(), demo)]),
            measured: Measured::default(),
            judgements: Vec::new(),
            faults: Vec::new(),
            seeds: Seeds::new(),
            plans: Plans::new(),
            traces: Vec::new(),
            command: "midhop reproduce sample --in sim".to_owned(),
            lab: None,
            scenarios_of_lab: BTreeMap::new(),
            study,
        };
        for mut record in records {
            // Every possible phase of a sender.
            record.series.push(Series {
                quantity: "phase".to_owned(),
                place: record.transfers[0].name.clone(),
                flow: Some(0),
                unit: String::new(),
                time_s: (1..=40).map(|tenth| f64::from(tenth) / 10.0).collect(),
                value: (0..40).map(|tenth| f64::from(tenth / 10)).collect(),
            });
            ran.measured.add(Reading::of("geo-demo", &record, &ran.study.figures));
            let place = ("geo-demo".to_owned(), record.cell.clone());
            ran.plans.entry(place.clone()).or_insert_with(|| record.plan.clone());
            let seeds = ran.seeds.entry(place).or_default();
            if seeds.ran.is_empty() {
                ran.traces.extend(Trace::of("geo-demo", &record));
            }
            seeds.ran.push(record.seed);
            seeds.asked += 1;
        }
        ran.judgements = ran.study.judge(&ran.measured);
        ran
    }

    /// The same with laboratory results, where everything is slower by a tenth and one setup has
    /// not run.
    pub fn beside_the_laboratory(mut self) -> Self {
        let (mut measured, mut seeds) = (Measured::default(), Seeds::new());
        for mut record in synthetic::records(2) {
            if record.cell["setup"] == "bbr" {
                continue;
            }
            for transfer in &mut record.transfers {
                let goodput = transfer.goodput.bits_per_s() / 10 * 9;
                transfer.goodput = Rate::from_bits_per_s(goodput);
                transfer.took = transfer.took * 10 / 9;
            }
            measured.add(Reading::of("geo-demo", &record, &self.study.figures));
            let place = ("geo-demo".to_owned(), record.cell.clone());
            let seeds: &mut CellSeeds = seeds.entry(place).or_default();
            seeds.ran.push(record.seed);
            seeds.asked += 1;
        }
        self.scenarios_of_lab = self.scenarios.clone();
        for scenario in self.scenarios_of_lab.values_mut() {
            scenario.set("links.internet.rate=900 Mbit/s").expect("it can be set");
        }
        self.lab = Some((measured, seeds));
        self
    }

    pub fn shown(&self) -> Reproduction<'_> {
        Reproduction {
            name: &self.name,
            study: &self.study,
            scenarios: &self.scenarios,
            measured: &self.measured,
            judgements: &self.judgements,
            place: Place::Sim,
            quick: false,
            runs: 108,
            finished: 108,
            faults: &self.faults,
            left_out: &[],
            took: Duration::from_secs(8),
            seeds: &self.seeds,
            plans: &self.plans,
            environment: None,
            traces: &self.traces,
            command: &self.command,
            beside: self.lab.as_ref().map(|(measured, seeds)| Beside {
                place: Place::Lab,
                measured,
                scenarios: &self.scenarios_of_lab,
                seeds,
                page: true,
            }),
        }
    }

    pub fn page(&self) -> String {
        study_page(&self.shown()).expect("a page")
    }
}
