//! A study as written, its checks, and the verdicts on its figures and claims.

use crate::axis::{self, AxisWords};
use crate::cell::{Cell, covers, joined, one};
use crate::claim::{Claim, Judgement, Verdict};
use crate::estimate::LEVEL;
use crate::figure::{Figure, Published};
use crate::many;
use crate::measured::Measured;
use crate::part::{Here, Part, Place};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// What it is about, in a line.
    pub title: String,
    /// Its authors, where it was published and when.
    pub source: String,
    /// Where it runs by default.
    #[serde(default)]
    pub place: Place,
    /// Whether its claims are goals, which are shown in one table beside the results of others.
    #[serde(default)]
    pub goals: bool,
    /// Level of all intervals. Range: above 0, below 1.
    #[serde(default = "level")]
    pub confidence: f64,
    /// The scenarios that run, by the names of their files without `.toml`.
    pub scenarios: Vec<String>,
    /// What is run with `--quick`.
    #[serde(default)]
    pub quick: Part,
    /// Which part of it is run in virtual time. Default: all, if that is its `place`.
    pub sim: Option<Here>,
    /// Which part of it is run on real kernels. Default: all, if that is its `place`.
    pub lab: Option<Here>,
    /// Axis → the words by which readers see it.
    #[serde(default)]
    pub axes: BTreeMap<String, AxisWords>,
    /// What is printed, in this order.
    pub figures: Vec<Figure>,
    /// What is judged, in this order.
    #[serde(default)]
    pub claims: Vec<Claim>,
}

impl Study {
    /// The JSON Schema of the file: every key, what it takes, its default and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    /// Reads `text`; errors name it `file_name`. Its references to scenarios are checked by
    /// [`Study::check`].
    ///
    /// # Errors
    /// When it is not a study: the error names the line.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, ConfigError> {
        let document = Document::parse(file_name, text)?;
        let study: Self = document.read()?;
        study.check_alone(&document)?;
        Ok(study)
    }

    /// Checks all references to cells against the `cells` of each scenario.
    ///
    /// # Errors
    /// One sentence, when a figure or a claim refers to no cell or to more than one.
    pub fn check(&self, cells: &BTreeMap<String, Vec<Cell>>) -> Result<(), String> {
        axis::check(&self.axes, cells)?;
        for figure in &self.figures {
            let known = cells.get(&figure.scenario).map(Vec::as_slice).unwrap_or_default();
            let mut within: Vec<&Cell> =
                known.iter().filter(|cell| covers(cell, &figure.at)).collect();
            if let Some(to) = &figure.relative_to {
                for cell in &within {
                    one(&within, &joined(cell, to))
                        .map_err(|what| format!("figure {}: relative_to: {what}", figure.name))?;
                }
                within.retain(|cell| !covers(cell, to));
            }
            if within.is_empty() {
                return Err(format!("figure {}: no cell of {} fits", figure.name, figure.scenario));
            }
            if let Some(axis) =
                figure.columns.as_ref().filter(|axis| !within[0].contains_key(*axis))
            {
                let Figure { name, scenario, .. } = figure;
                return Err(format!("figure {name}: {scenario} has no axis `{axis}` for columns"));
            }
            let along = figure.against.as_ref().and_then(|name| self.figure(name));
            if let Some(along) = along.filter(|it| !within.iter().any(|at| covers(at, &it.at))) {
                let Figure { name, .. } = figure;
                return Err(format!("figure {name}: `{}` has none of its cells", along.name));
            }
            for published in &figure.published {
                let at = &published.at;
                one(&within, at).map_err(|what| format!("figure {}: {what}", figure.name))?;
            }
            for claim in self.claims.iter().filter(|claim| claim.figure() == figure.name) {
                for at in claim.cells(&within)? {
                    one(&within, &at).map_err(|what| format!("claim `{}`: {what}", claim.says))?;
                }
            }
            let other = |claim: &&Claim| claim.other_figure() == figure.name;
            for claim in self.claims.iter().filter(other) {
                for end in claim.than.iter().flat_map(|than| [(than, &than.of), (than, &than.to)]) {
                    let at = joined(&end.0.at, end.1);
                    one(&within, &at).map_err(|what| format!("claim `{}`: {what}", claim.says))?;
                }
            }
        }
        Ok(())
    }

    /// The figure called `name`.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// The name of `axis` for readers.
    pub fn axis_name<'s>(&'s self, axis: &'s str) -> &'s str {
        self.axes.get(axis).and_then(|words| words.shows.as_deref()).unwrap_or(axis)
    }

    /// The name of `label` of `axis` for readers.
    pub fn label_name<'s>(&'s self, axis: &str, label: &'s str) -> &'s str {
        self.axes.get(axis).and_then(|words| words.names.get(label)).map_or(label, String::as_str)
    }

    /// Whether `cell` has a configuration with this project's proxy.
    pub fn is_ours(&self, cell: &Cell) -> bool {
        let ours = |(axis, label)| self.axes.get(axis).is_some_and(|it| it.ours.contains(label));
        cell.iter().any(ours)
    }

    /// Every claim with its judgement, at [the level of claims](Self::level_of_claims).
    pub fn judge(&self, measured: &Measured) -> Vec<Judgement> {
        let level = self.level_of_claims(measured);
        self.claims.iter().map(|claim| claim.judge(measured, level)).collect()
    }

    /// The level at which claims are judged, such that a share of `1 − confidence` of the decided
    /// ones may be decided by chance. Range: `confidence` to 1.
    pub fn level_of_claims(&self, measured: &Measured) -> f64 {
        let judged = self.claims.iter().filter(|claim| claim.is_judged());
        let verdicts: Vec<Box<dyn Fn(f64) -> Verdict>> = judged
            .map(|claim| -> Box<dyn Fn(f64) -> Verdict> {
                Box::new(|level| claim.judge(measured, level).verdict)
            })
            .collect();
        many::level(self.confidence, &verdicts)
    }

    /// The same for the published values of figures.
    pub fn level_of_points(&self, measured: &Measured) -> f64 {
        let published = self.figures.iter().flat_map(|figure| {
            let judged = figure.published.iter().filter(|it| it.calibrates.is_none());
            judged.map(move |it| (figure, it))
        });
        let verdicts: Vec<Box<dyn Fn(f64) -> Verdict>> = published
            .map(|(figure, it)| -> Box<dyn Fn(f64) -> Verdict> {
                Box::new(|level| figure.judge(it, measured, level).unwrap_or(Verdict::Open))
            })
            .collect();
        many::level(self.confidence, &verdicts)
    }

    /// The verdict on each published and judged value, in the order of the file.
    pub fn verdicts(&self, measured: &Measured) -> Vec<Verdict> {
        let level = self.level_of_points(measured);
        let judged =
            |figure: &Figure, published: &Published| figure.judge(published, measured, level);
        self.figures
            .iter()
            .filter(|figure| !measured.cells(&figure.name).is_empty())
            .flat_map(|figure| figure.published.iter().filter_map(move |it| judged(figure, it)))
            .collect()
    }

    fn check_alone(&self, document: &Document) -> Result<(), ConfigError> {
        let refuse = |path: KeyPath, message: String, hint: Option<String>| {
            Err(document.fault(&path, message, hint))
        };
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            let hint = Some("such as 0.95".to_owned());
            return refuse(KeyPath::of(["confidence"]), "no level of confidence".into(), hint);
        }
        self.check_scenarios(document)?;
        for (number, figure) in self.figures.iter().enumerate() {
            let path = KeyPath::of(["figures".to_owned(), number.to_string()]);
            if !self.scenarios.contains(&figure.scenario) {
                let hint = suggest::hint(&figure.scenario, "scenarios", &self.scenarios);
                let message = format!("no scenario is called `{}`", figure.scenario);
                return refuse(path.join("scenario"), message, hint);
            }
            if figure.within.is_some() && figure.off.is_some() {
                let message = "`within` and `off` are two tolerances for one figure".to_owned();
                return refuse(path.join("off"), message, None);
            }
            if self.figures[..number].iter().any(|earlier| earlier.name == figure.name) {
                let message = format!("`{}` is there twice", figure.name);
                return refuse(path.join("name"), message, None);
            }
            if let Some(Err((message, hint))) =
                figure.against.as_ref().map(|it| self.pair(figure, it))
            {
                return refuse(path.join("against"), message, hint);
            }
        }
        for (number, claim) in self.claims.iter().enumerate() {
            let path = KeyPath::of(["claims".to_owned(), number.to_string()]);
            if let Err(message) = claim.test() {
                return refuse(path, message, None);
            }
            if let Some(first) = &claim.repeats {
                let counted = |it: &&Claim| it.is_counted() && it.says == *first;
                if self.claims.iter().find(counted).is_none() {
                    let names = self.claims.iter().map(|it| it.says.as_str());
                    let hint = suggest::hint(first, "claims", names);
                    let message = "no claim that is counted says that".to_owned();
                    return refuse(path.join("repeats"), message, hint);
                }
            }
            if claim.untold.is_some() {
                if self.goals {
                    let message = "a goal is ours, and no text need tell of it".to_owned();
                    return refuse(path.join("untold"), message, None);
                }
                continue;
            }
            for named in [claim.figure(), claim.other_figure()] {
                if self.figure(named).is_none() {
                    let names = self.figures.iter().map(|figure| figure.name.as_str());
                    let hint = suggest::hint(named, "figures", names);
                    let message = format!("no figure is called `{named}`");
                    return refuse(path.join("figure"), message, hint);
                }
            }
        }
        Ok(())
    }
}

impl Study {
    /// Whether `figure` can be drawn over the one called `other`.
    ///
    /// # Errors
    /// When it cannot: one sentence, and a hint.
    fn pair(&self, figure: &Figure, other: &str) -> Result<(), (String, Option<String>)> {
        let alike = |it: &&Figure| it.name != figure.name && it.scenario == figure.scenario;
        let names = self.figures.iter().filter(alike).map(|it| it.name.as_str());
        let Some(along) = self.figures.iter().filter(alike).find(|it| it.name == other) else {
            let message = format!("no other figure of {} is called `{other}`", figure.scenario);
            return Err((message, suggest::hint(other, "figures", names)));
        };
        match [figure, along].into_iter().find(|it| !it.is_of_runs()) {
            None => Ok(()),
            Some(it) => {
                let hint = "leave out its `take` and `relative_to`".to_owned();
                Err((format!("the runs of `{}` do not stand for themselves", it.name), Some(hint)))
            }
        }
    }

    fn check_scenarios(&self, document: &Document) -> Result<(), ConfigError> {
        let path = KeyPath::of(["scenarios"]);
        if self.scenarios.is_empty() {
            let hint = "name the files beside it, without .toml".to_owned();
            return Err(document.fault(&path, "without a scenario nothing runs", Some(hint)));
        }
        for (number, name) in self.scenarios.iter().enumerate() {
            if self.scenarios[..number].contains(name) {
                // Its runs would count twice, and every margin would be too small.
                return Err(document.fault(&path, format!("`{name}` is there twice"), None));
            }
        }
        self.check_parts(document)
    }
}

fn level() -> f64 {
    LEVEL
}
