//! The claims of a study, and whether they hold here.
//!
//! A claim has a subject and an expectation:
//!
//! | keys | subject |
//! |---|---|
//! | `over`, `falling` or `rising` | the order of an axis' cells: each is above (below) the next |
//! | `of`, `to` | the value of one cell over that of another |
//! | neither | the value of the cell at `at` |
//! | `untold` | none that could be run: the text does not say which cells it is about |
//!
//! Ratio and value have bounds: `published` with `within`, `at_least`, `at_most`. With `across`, a
//! value is taken for each case of another axis, and the greatest, the least or every one counts. A
//! ratio may also have to exceed that of two other cells: `than`.
//!
//! The allowed difference from a `published` mean of `runs` runs is half of the last printed
//! `digit`, and the error of a mean of so many runs if they deviate as ours do. Anything more is a
//! difference.
//!
//! A claim holds where the whole confidence interval is within its bounds. It does not hold where
//! the whole interval is outside. Otherwise it is undecided, as it is where cells have not run, or
//! with a single run that depends on chance. Without chance, a run is its own interval. An untold
//! claim is undecided with any runs.

use crate::cell::{Cell, covers, joined};
use crate::estimate::Estimate;
use crate::measured::Measured;
use serde::{Deserialize, Serialize};

/// A claim as written.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim in a sentence.
    pub says: String,
    /// Whose claim it is.
    #[serde(default)]
    pub by: Whose,
    /// Where in the study it is made.
    pub place: Option<String>,
    /// Why it does not hold, if that is known and explained: then it is no fault.
    pub departs: Option<String>,
    /// Which of our parameters was chosen to meet it: then it shows nothing.
    pub calibrates: Option<String>,
    /// The text of the claim of which this is another reading. What a study leaves open is run in
    /// more than one way, and counted once.
    pub repeats: Option<String>,
    /// Why the text does not allow a judgement. Then the claim has no figure, and nothing is run
    /// for it.
    pub untold: Option<String>,
    /// The figure that it is about. Every claim has one, except those with `untold`.
    pub figure: Option<String>,
    /// The positions that all its cells share.
    #[serde(default)]
    pub at: Cell,
    /// The axis of an order.
    pub over: Option<String>,
    /// Cases of `over`, the greatest first.
    pub falling: Option<Vec<String>>,
    /// Cases of `over`, the smallest first.
    pub rising: Option<Vec<String>>,
    /// The numerator of a ratio: a cell.
    pub of: Option<Cell>,
    /// The denominator of the ratio: a cell.
    pub to: Option<Cell>,
    /// An axis of which every case is examined.
    pub across: Option<String>,
    /// Which of them counts.
    #[serde(default)]
    pub pick: Pick,
    /// The value that the study found.
    pub published: Option<f64>,
    /// How far our value may be from `published`, as a share of it.
    pub within: Option<f64>,
    /// Instead of `within`: the number of runs in the study's mean. Range: 2 or more.
    pub runs: Option<u32>,
    /// With `runs`: one unit of the last printed digit, in the unit of what is compared.
    pub digit: Option<f64>,
    /// The lower bound.
    pub at_least: Option<f64>,
    /// The upper bound.
    pub at_most: Option<f64>,
    /// Another ratio, which this one must exceed.
    pub than: Option<Other>,
    /// Where the bounds come from: what is published, and how certain it is.
    pub basis: Option<String>,
}

/// The ratio of two other cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Other {
    /// Their figure, if it is a different one.
    pub figure: Option<String>,
    /// The positions that both share.
    #[serde(default)]
    pub at: Cell,
    /// The numerator: a cell.
    pub of: Cell,
    /// The denominator of the ratio: a cell.
    pub to: Cell,
}

/// Whose claim it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// The study's.
    #[default]
    Study,
    /// Ours: it follows from the study's own parameters, or is about what the product adds.
    Ours,
}

/// Which value counts if there is one for each case of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Pick {
    /// All of them.
    #[default]
    Every,
    /// The greatest.
    Greatest,
    /// The least.
    Least,
}

/// The verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It does not hold.
    Fails,
    /// It does not hold, and the study's file gives the reason.
    Departs,
    /// It is undecided: there are too few runs, or the text does not allow a judgement.
    Open,
    /// A parameter was chosen so that it holds: it shows nothing.
    Calibrated,
}

impl Verdict {
    /// The same verdict, unless it is a failure that `departs` explains.
    pub(crate) fn unless(self, departs: &Option<String>) -> Self {
        match self {
            Self::Fails if departs.is_some() => Self::Departs,
            other => other,
        }
    }
}

/// A claim and the verdict on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// The claim.
    pub claim: Claim,
    /// The verdict.
    pub verdict: Verdict,
    /// What was found, in words.
    pub found: String,
    /// What was required, in words.
    pub wanted: String,
    /// For a claim about every case of an axis: the cases that do not hold, those that fail first.
    /// Cases of a single run are listed only if they are outside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<Missed>,
}

/// A case for which a claim about every case does not hold.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Missed {
    /// Its position on the axis.
    pub at: Cell,
    /// Whether it fails or is undecided.
    pub verdict: Verdict,
    /// What was found, in words.
    pub found: String,
}

/// What a claim comes to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test<'c> {
    Nothing,
    Order { axis: &'c str, falling: Vec<&'c str> },
    Value { bounds: Bounds },
    Ratio { of: &'c Cell, to: &'c Cell, bounds: Bounds },
    Above { of: &'c Cell, to: &'c Cell, than: &'c Other },
}

/// What a value has to lie within.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Claim {
    /// The test of the claim.
    ///
    /// # Errors
    /// One sentence, when the claim is incomplete or contradictory.
    pub(crate) fn test(&self) -> Result<Test<'_>, String> {
        if let Some(why) = &self.untold {
            return match self.beside_untold() {
                Some(key) => {
                    Err(format!("of what is `untold` nothing is judged: leave out `{key}`"))
                }
                None if why.trim().is_empty() => Err("`untold` says why".to_owned()),
                None => Ok(Test::Nothing),
            };
        }
        if self.figure.is_none() {
            let why = "a claim has a `figure`, or says in `untold` why the text does not tell";
            return Err(why.to_owned());
        }
        let some = |names: &[String]| names.len() >= 2;
        let order = match (&self.over, &self.falling, &self.rising) {
            (None, None, None) => None,
            (Some(axis), Some(falling), None) if some(falling) => {
                Some((axis, falling.iter().map(String::as_str).collect()))
            }
            (Some(axis), None, Some(rising)) if some(rising) => {
                Some((axis, rising.iter().rev().map(String::as_str).collect()))
            }
            _ => {
                return Err(
                    "an order has `over` and two cases or more in `falling` or in `rising`"
                        .to_owned(),
                );
            }
        };
        if let Some((axis, falling)) = order {
            let nothing_else = self.of.is_none() && self.to.is_none() && self.across.is_none();
            let unbounded = self.published.is_none() && self.at_least.is_none();
            return if nothing_else && unbounded && self.at_most.is_none() {
                Ok(Test::Order { axis, falling })
            } else {
                Err("an order has neither bounds nor `of`, `to` and `across`".to_owned())
            };
        }
        if let Some(than) = &self.than {
            let bounded = self.published.is_some() || self.at_least.or(self.at_most).is_some();
            return match (&self.of, &self.to) {
                (Some(of), Some(to)) if !bounded && self.across.is_none() => {
                    Ok(Test::Above { of, to, than })
                }
                _ => Err("`than` belongs to a ratio, `of` and `to`, and is its only bound".into()),
            };
        }
        let bounds = self.bounds()?;
        match (&self.of, &self.to) {
            (None, None) => Ok(Test::Value { bounds }),
            (Some(of), Some(to)) => Ok(Test::Ratio { of, to, bounds }),
            _ => Err("a ratio has both `of` and `to`".to_owned()),
        }
    }

    /// Whether a part of it can be judged.
    pub(crate) fn is_judged(&self) -> bool {
        self.untold.is_none() && self.calibrates.is_none()
    }

    /// Whether it is counted: it is not another reading of another claim.
    pub fn is_counted(&self) -> bool {
        self.repeats.is_none()
    }

    /// A key that a claim without any judgement must not have.
    fn beside_untold(&self) -> Option<&'static str> {
        let keys = [
            ("by", self.by == Whose::Ours),
            ("departs", self.departs.is_some()),
            ("calibrates", self.calibrates.is_some()),
            ("repeats", self.repeats.is_some()),
            ("figure", self.figure.is_some()),
            ("at", !self.at.is_empty()),
            ("over", self.over.is_some()),
            ("falling", self.falling.is_some()),
            ("rising", self.rising.is_some()),
            ("of", self.of.is_some()),
            ("to", self.to.is_some()),
            ("across", self.across.is_some()),
            ("pick", self.pick != Pick::Every),
            ("published", self.published.is_some()),
            ("within", self.within.is_some()),
            ("runs", self.runs.is_some()),
            ("digit", self.digit.is_some()),
            ("at_least", self.at_least.is_some()),
            ("at_most", self.at_most.is_some()),
            ("than", self.than.is_some()),
            ("basis", self.basis.is_some()),
        ];
        keys.into_iter().find(|(_, there)| *there).map(|(key, _)| key)
    }

    fn bounds(&self) -> Result<Bounds, String> {
        if let (Some(runs), Some(digit)) = (self.runs, self.digit) {
            let alone = self.within.is_none() && self.at_least.or(self.at_most).is_none();
            return match self.published {
                Some(published) if alone && runs >= 2 && digit > 0.0 => {
                    Ok(Bounds { low: published, high: published }.wider(digit / 2.0))
                }
                _ => Err("`runs`, 2 or more, and `digit` belong to `published` alone".to_owned()),
            };
        }
        if self.runs.is_some() || self.digit.is_some() {
            return Err("`runs` and `digit` belong together".to_owned());
        }
        let (low, high) = match (self.published, self.within, self.at_least, self.at_most) {
            (Some(published), Some(within), None, None) if within > 0.0 => {
                (published * (1.0 - within), published * (1.0 + within))
            }
            (None | Some(_), None, Some(low), Some(high)) if low <= high => (low, high),
            (None | Some(_), None, Some(low), None) => (low, f64::INFINITY),
            (None | Some(_), None, None, Some(high)) => (f64::NEG_INFINITY, high),
            _ => {
                return Err(
                    "a value has `published` with `within`, or `at_least` or `at_most`".to_owned()
                );
            }
        };
        Ok(Bounds { low, high })
    }

    /// All cells of `known` that the claim is about, each as the positions that identify it.
    pub(crate) fn cells(&self, known: &[&Cell]) -> Result<Vec<Cell>, String> {
        let with = |more: &Cell| {
            let mut at = self.at.clone();
            at.extend(more.clone());
            at
        };
        let ends = match self.test()? {
            Test::Nothing => return Ok(Vec::new()),
            Test::Order { axis, falling } => {
                let label = |label: &&str| Cell::from([(axis.to_owned(), (*label).to_owned())]);
                falling.iter().map(|name| with(&label(name))).collect()
            }
            Test::Value { .. } => vec![self.at.clone()],
            Test::Ratio { of, to, .. } | Test::Above { of, to, .. } => vec![with(of), with(to)],
        };
        let cases = self.cases(known.iter().copied());
        if let (Some(axis), true) = (&self.across, cases.is_empty()) {
            return Err(format!("claim `{}`: no cell has an axis `{axis}`", self.says));
        }
        Ok(ends.iter().flat_map(|end| cases.iter().map(move |case| joined(end, case))).collect())
    }

    /// Whether it holds for `measured`, with intervals of `level`.
    pub fn judge(&self, measured: &Measured, level: f64) -> Judgement {
        let mut missed = Vec::new();
        let (verdict, found, wanted) = match self.test() {
            Ok(Test::Nothing) => (Verdict::Open, String::new(), String::new()),
            Ok(Test::Order { axis, falling }) => self.order(measured, level, axis, &falling),
            Ok(Test::Value { bounds }) => self.values(measured, bounds, &mut missed, &|at| {
                measured.cell(self.figure(), &joined(&self.at, at))?.estimate(level)
            }),
            Ok(Test::Ratio { of, to, bounds }) => {
                self.values(measured, bounds, &mut missed, &|at| {
                    let value = |end: &Cell| {
                        let cell = joined(&joined(&self.at, end), at);
                        measured.cell(self.figure(), &cell)?.estimate(level)
                    };
                    value(of)?.over(value(to)?)
                })
            }
            Ok(Test::Above { of, to, than }) => self.above(measured, level, [of, to], than),
            Err(why) => (Verdict::Open, why, String::new()),
        };
        let verdict = match self.calibrates {
            Some(_) => Verdict::Calibrated,
            None => verdict.unless(&self.departs),
        };
        missed.sort_by_key(|it: &Missed| it.verdict != Verdict::Fails);
        Judgement { claim: self.clone(), verdict, found, wanted, missed }
    }

    fn above(
        &self,
        measured: &Measured,
        level: f64,
        [of, to]: [&Cell; 2],
        than: &Other,
    ) -> (Verdict, String, String) {
        let ratio = |figure: &str, at: &Cell, of: &Cell, to: &Cell| {
            let value = |end| measured.cell(figure, &joined(at, end))?.estimate(level);
            value(of)?.over(value(to)?)
        };
        let ours = ratio(self.figure(), &self.at, of, to);
        let other = ratio(self.other_figure(), &than.at, &than.of, &than.to);
        match ours.zip(other) {
            None => (Verdict::Open, NOT_RUN.to_owned(), "above the other".to_owned()),
            Some((ours, other)) => {
                let above = Bounds { low: 0.0, high: f64::INFINITY };
                let wanted = format!("> {}", other.words());
                (above.judge(ours.minus(other)), ours.words(), wanted)
            }
        }
    }

    /// The name of its figure; an empty name where it is untold.
    pub fn figure(&self) -> &str {
        self.figure.as_deref().unwrap_or_default()
    }

    /// The figure of `than`.
    pub(crate) fn other_figure(&self) -> &str {
        self.than.as_ref().and_then(|than| than.figure.as_deref()).unwrap_or(self.figure())
    }

    fn order(
        &self,
        measured: &Measured,
        level: f64,
        axis: &str,
        falling: &[&str],
    ) -> (Verdict, String, String) {
        let wanted = falling.join(" > ");
        let estimates: Option<Vec<Estimate>> = falling
            .iter()
            .map(|label| {
                let at = Cell::from([(axis.to_owned(), (*label).to_owned())]);
                measured.cell(self.figure(), &joined(&self.at, &at))?.estimate(level)
            })
            .collect();
        let Some(estimates) = estimates else { return (Verdict::Open, NOT_RUN.to_owned(), wanted) };
        let above = Bounds { low: 0.0, high: f64::INFINITY };
        let verdict = estimates
            .windows(2)
            .map(|pair| above.judge(pair[0].minus(pair[1])))
            .reduce(all)
            .unwrap_or(Verdict::Open);
        let found: Vec<String> = estimates.iter().map(|estimate| number(estimate.mean)).collect();
        (verdict, found.join(", "), wanted)
    }

    fn values(
        &self,
        measured: &Measured,
        bounds: Bounds,
        missed: &mut Vec<Missed>,
        value: &dyn Fn(&Cell) -> Option<Estimate>,
    ) -> (Verdict, String, String) {
        let known = measured.cells(self.figure()).iter().map(|known| &known.cell);
        let cases = self.cases(known);
        let estimates: Option<Vec<Estimate>> = cases.iter().map(value).collect();
        let estimates = match estimates {
            Some(estimates) if !estimates.is_empty() => estimates,
            _ => return (Verdict::Open, NOT_RUN.to_owned(), bounds.words(self.published)),
        };
        let mut estimates: Vec<(Estimate, &Cell)> = estimates.into_iter().zip(&cases).collect();
        estimates.sort_by(|(a, _), (b, _)| a.mean.total_cmp(&b.mean));
        let (first, last) = (estimates[0], estimates[estimates.len() - 1]);
        let allowed = |of: Estimate| bounds.wider(self.runs.map_or(0.0, |runs| of.margin_of(runs)));
        let one = |(of, case): (Estimate, &Cell)| {
            let at = case.iter().map(|(axis, label)| format!(" at {axis} {label}"));
            let found = of.words() + &at.collect::<String>();
            (allowed(of).judge(of), found, allowed(of).words(self.published))
        };
        match self.pick {
            Pick::Greatest => one(last),
            Pick::Least => one(first),
            Pick::Every if estimates.len() == 1 => {
                let (of, _) = first;
                (allowed(of).judge(of), of.words(), allowed(of).words(self.published))
            }
            Pick::Every => {
                let judged = |(of, case): &(Estimate, &Cell)| Missed {
                    at: (*case).clone(),
                    verdict: allowed(*of).judge(*of),
                    found: of.words(),
                };
                let judged: Vec<Missed> = estimates.iter().map(judged).collect();
                let verdict = judged.iter().map(|it| it.verdict).reduce(all);
                // A single run decides nothing: among those, the ones outside the bounds count.
                let inside = |of: &Estimate| {
                    of.margin.is_none() && (bounds.low..=bounds.high).contains(&of.mean)
                };
                let shown = judged
                    .into_iter()
                    .zip(&estimates)
                    .filter(|(it, (of, _))| it.verdict != Verdict::Holds && !inside(of));
                missed.extend(shown.map(|(it, _)| it));
                let found = format!("{} to {}", number(first.0.mean), number(last.0.mean));
                let wanted = bounds.words(self.published);
                (verdict.unwrap_or(Verdict::Open), found, wanted)
            }
        }
    }

    /// The cases of `across` among `known`, in order; a single empty one without `across`.
    fn cases<'k>(&self, known: impl Iterator<Item = &'k Cell>) -> Vec<Cell> {
        let Some(axis) = &self.across else { return vec![Cell::new()] };
        let mut cases: Vec<Cell> = Vec::new();
        for label in known.filter(|cell| covers(cell, &self.at)).filter_map(|cell| cell.get(axis)) {
            let case = Cell::from([(axis.clone(), label.clone())]);
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }
}

impl Judgement {
    /// Whether it is about cells that have all run.
    pub fn is_whole(&self) -> bool {
        self.claim.untold.is_none() && self.found != NOT_RUN
    }
}

const NOT_RUN: &str = "not all of its cells have run";

impl Bounds {
    /// A value without an interval, from one random draw, decides nothing.
    pub(crate) fn judge(self, found: Estimate) -> Verdict {
        let Some(margin) = found.margin else { return Verdict::Open };
        let (least, most) = (found.mean - margin, found.mean + margin);
        if least >= self.low && most <= self.high {
            Verdict::Holds
        } else if most < self.low || least > self.high {
            Verdict::Fails
        } else {
            Verdict::Open
        }
    }

    /// The bounds, widened on both sides.
    fn wider(self, by: f64) -> Self {
        Self { low: self.low - by, high: self.high + by }
    }

    fn words(self, published: Option<f64>) -> String {
        let band = match (self.low.is_finite(), self.high.is_finite()) {
            (true, true) => format!("{} to {}", number(self.low), number(self.high)),
            (true, false) => format!("≥ {}", number(self.low)),
            _ => format!("≤ {}", number(self.high)),
        };
        match published {
            Some(published) => format!("{} ({band})", number(published)),
            None => band,
        }
    }
}

impl Estimate {
    fn words(self) -> String {
        match self.margin {
            Some(margin) if margin > 0.0 => {
                format!("{} ± {}", number(self.mean), number(margin))
            }
            _ => number(self.mean),
        }
    }
}

/// Both hold, or one does not hold, or it is undecided.
fn all(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Fails, _) | (_, Verdict::Fails) => Verdict::Fails,
        (Verdict::Holds, Verdict::Holds) => Verdict::Holds,
        _ => Verdict::Open,
    }
}

/// Three digits.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.095 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reading, Study};
    use std::collections::BTreeMap;

    #[test]
    fn of_a_claim_about_every_case_those_are_named_that_do_not_hold() {
        let claim = Claim {
            says: "no harm".to_owned(),
            figure: Some("f".to_owned()),
            across: Some("link".to_owned()),
            at_least: Some(0.98),
            ..Claim::default()
        };
        let judged = |runs: &[(&str, f64)]| {
            let mut measured = Measured::default();
            for (link, value) in runs {
                let cell = Cell::from([("link".to_owned(), (*link).to_owned())]);
                measured.add(Reading::given(cell, "f", Some(*value)));
            }
            let judgement = claim.judge(&measured, 0.95);
            let missed = judgement.missed.iter().map(|it| (it.at["link"].clone(), it.verdict));
            (judgement.verdict, missed.collect::<Vec<_>>())
        };
        let named = |link: &str, verdict| (link.to_owned(), verdict);
        let three = [
            ("wide", 1.2),
            ("wide", 1.21),
            ("open", 0.9),
            ("open", 1.1),
            ("slow", 0.5),
            ("slow", 0.51),
        ];
        let missed = vec![named("slow", Verdict::Fails), named("open", Verdict::Open)];
        assert_eq!(judged(&three), (Verdict::Fails, missed));
        let single = [("wide", 1.2), ("slow", 0.5)];
        assert_eq!(judged(&single), (Verdict::Open, vec![named("slow", Verdict::Open)]));
        assert_eq!(judged(&three[..2]), (Verdict::Holds, Vec::new()));
    }

    #[test]
    fn what_the_text_leaves_open_is_never_judged() {
        let study = |more: &str| {
            let text = format!("title = \"t\"\nsource = \"s\"\nscenarios = [\"a\"]\n{more}");
            Study::parse("study.toml", &text)
        };
        let figure =
            "[[figures]]\nname = \"f\"\nshows = \"x\"\nscenario = \"a\"\nmetric = \"time\"\n";
        let untold =
            format!("{figure}[[claims]]\nsays = \"x\"\nplace = \"Sec. 5\"\nuntold = \"no load\"\n");
        let sound = study(&untold).expect("a study");
        sound
            .check(&BTreeMap::from([("a".to_owned(), vec![Cell::new()])]))
            .expect("no cell is wrong");
        let judged = sound.judge(&Measured::default());
        assert_eq!((judged[0].verdict, judged[0].is_whole()), (Verdict::Open, false));
        for (key, more) in [
            ("figure", "figure = \"f\""),
            ("at", "at = { pep = \"on\" }"),
            ("at_least", "at_least = 1"),
            ("departs", "departs = \"why\""),
            ("by", "by = \"ours\""),
        ] {
            let error = study(&format!("{untold}{more}\n")).expect_err(more).to_string();
            assert!(error.contains(&format!("leave out `{key}`")), "{error}");
        }
        let goals = format!("goals = true\n{untold}");
        let refused = [
            (untold.replace("no load", " "), "`untold` says why"),
            (format!("{figure}[[claims]]\nsays = \"x\"\nat_least = 1\n"), "has a `figure`"),
            (goals, "a goal is ours"),
        ];
        for (text, why) in refused {
            let error = study(&text).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
