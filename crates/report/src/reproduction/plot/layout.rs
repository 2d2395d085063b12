//! Decides which of a figure's axes is drawn along a picture, which side by side, and which gives
//! several pictures.

use super::{Along, Series};
use crate::axes::magnitude;
use crate::reproduction::Reproduction;
use midhop_experiment::vary::Axis;
use midhop_study::{CellValue, Figure};

/// With several axes, the most configurations side by side that are readable.
const SERIES_MAX: usize = 7;
/// The number of configurations that differ in dash, marker and pattern; further ones would look
/// like others.
const STYLES_MAX: usize = 12;
/// The name of the only curve or bar of a picture.
const ONLY: &str = "all runs";

/// An axis that varies within a figure.
#[derive(Debug, Clone)]
pub(super) struct Varied {
    key: String,
    /// Labels in the order of the scenario.
    pub(super) labels: Vec<String>,
    /// Whether it is a choice, or a condition.
    choice: bool,
    /// Whether the study names its labels: then they are cases, even when they are numbers.
    named: bool,
}

impl Varied {
    /// Whether its labels are quantities: numbers, with or without a unit.
    fn is_quantity(&self) -> bool {
        self.labels.len() >= 3
            && !self.named
            && self.labels.iter().all(|it| magnitude(it).is_some())
    }

    fn shown<'s>(&self, run: &Reproduction<'s>, label: &'s str) -> String {
        let name = run.study.label_name(&self.key, label);
        // A bare number has no meaning without its axis.
        if name == label && magnitude(label).is_some() {
            format!("{} {label}", run.study.axis_name(&self.key))
        } else {
            name.to_owned()
        }
    }

    /// Parts of a fixed number of labels each, named by the first and the last.
    fn portions<'v>(
        &self,
        run: &Reproduction<'_>,
        (title, values): (String, Vec<&'v CellValue>),
        most: usize,
    ) -> Vec<(String, Vec<&'v CellValue>)> {
        let size = self.labels.len().div_ceil(self.labels.len().div_ceil(most).max(1)).max(1);
        let part = |labels: &[String]| {
            let ends = labels.first().zip(labels.last()).map(|(first, last)| {
                let [first, last] = [first, last].map(|label| self.shown(run, label));
                if first == last { first } else { format!("{first} to {last}") }
            });
            let named = [title.clone(), ends.unwrap_or_default()];
            let named: Vec<String> = named.into_iter().filter(|it| !it.is_empty()).collect();
            let here = |value: &&&CellValue| {
                value.cell.get(&self.key).is_some_and(|label| labels.contains(label))
            };
            (named.join(", "), values.iter().filter(here).copied().collect::<Vec<_>>())
        };
        self.labels.chunks(size).map(part).filter(|(_, values)| !values.is_empty()).collect()
    }

    /// A part for each label, with its name.
    pub(super) fn divided<'v>(
        &self,
        run: &Reproduction<'_>,
        (title, values): (String, Vec<&'v CellValue>),
    ) -> Vec<(String, Vec<&'v CellValue>)> {
        let part = |label: &String| {
            let here = |value: &&&CellValue| value.cell.get(&self.key) == Some(label);
            let name = self.shown(run, label);
            let title = if title.is_empty() { name } else { format!("{title}, {name}") };
            (title, values.iter().filter(here).copied().collect::<Vec<_>>())
        };
        self.labels.iter().map(part).filter(|(_, values)| !values.is_empty()).collect()
    }
}

/// The axes that vary among `values`, in the order of the scenario.
pub(super) fn varied(
    run: &Reproduction<'_>,
    figure: &Figure,
    values: &[&CellValue],
) -> Vec<Varied> {
    let axes = run.scenarios.get(&figure.scenario).map(|it| it.axes()).unwrap_or_default();
    let there = |key: &str, label: &str| {
        values.iter().any(|value| value.cell.get(key).is_some_and(|it| it == label))
    };
    axes.iter()
        .map(|axis| Varied {
            key: axis.name.clone(),
            labels: axis
                .cases
                .iter()
                .map(|case| case.label.clone())
                .filter(|label| there(&axis.name, label))
                .collect(),
            choice: is_choice(axis),
            named: axis
                .cases
                .iter()
                .any(|case| run.study.label_name(&axis.name, &case.label) != case.label),
        })
        .filter(|axis| axis.labels.len() > 1)
        .collect()
}

/// Whether an axis sets only choices, such as proxies, congestion control and properties of stacks,
/// and no conditions.
pub(in crate::reproduction) fn is_choice(axis: &Axis) -> bool {
    let mut changes = axis.cases.iter().flat_map(|case| &case.changes).peekable();
    let chosen = |path: &str| {
        path.starts_with("peps.")
            || path.starts_with("tcp.")
            || path.starts_with("agents.")
            || path.contains("congestion")
            || path.contains(".aqm")
            || (path.starts_with("nodes.") && path.ends_with(".pep"))
    };
    let count = changes.clone().count();
    let choices = changes.by_ref().filter(|(path, _)| chosen(&path.to_string())).count();
    choices * 2 > count
}

/// The role of each axis in a picture.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    along: Option<Varied>,
    pub(super) groups: Vec<Varied>,
    series: Vec<Varied>,
}

impl Layout {
    pub(super) fn of(axes: &[Varied]) -> Self {
        let mut rest = axes.to_vec();
        let along = rest.iter().position(Varied::is_quantity).map(|place| rest.remove(place));
        if along.is_some() {
            return Self { along, groups: Vec::new(), series: rest };
        }
        let (mut series, mut groups): (Vec<_>, Vec<_>) = rest.into_iter().partition(|it| it.choice);
        if series.is_empty() && groups.len() > 1 {
            let fewest = (0..groups.len()).rev().min_by_key(|&it| groups[it].labels.len());
            series.extend(fewest.map(|place| groups.remove(place)));
        }
        while series.len() > 1 && size(&series) > SERIES_MAX {
            let Some(fewest) = (0..series.len()).min_by_key(|&it| series[it].labels.len()) else {
                break;
            };
            groups.push(series.remove(fewest));
        }
        if groups.is_empty() {
            // Names along the axis are easier to read than those of a legend.
            groups = std::mem::take(&mut series);
        }
        Self { along: None, groups, series }
    }

    /// The same for a picture of two figures: choices have different marks.
    pub(super) fn of_marks(axes: Vec<Varied>) -> Self {
        let (mut series, mut groups): (Vec<_>, Vec<_>) = axes.into_iter().partition(|it| it.choice);
        if series.is_empty() {
            std::mem::swap(&mut series, &mut groups);
        }
        Self { along: None, groups, series }
    }

    /// Divides `parts` into pictures in which no two configurations look alike.
    pub(super) fn distinct<'v>(
        &mut self,
        run: &Reproduction<'_>,
        mut parts: Vec<(String, Vec<&'v CellValue>)>,
    ) -> Vec<(String, Vec<&'v CellValue>)> {
        let most = |series: &[Varied], parts: &[(String, Vec<&CellValue>)]| {
            parts.iter().map(|(_, values)| places(series, values).len()).max().unwrap_or(0)
        };
        while most(&self.series, &parts) > STYLES_MAX {
            let fewest = (0..self.series.len()).min_by_key(|&it| self.series[it].labels.len());
            let Some(fewest) = fewest else { break };
            let each = |part, axis: &Varied, whole| match whole {
                true => axis.portions(run, part, STYLES_MAX),
                false => axis.divided(run, part),
            };
            let last = self.series.len() == 1;
            let axis = if last { self.series[fewest].clone() } else { self.series.remove(fewest) };
            parts = parts.into_iter().flat_map(|part| each(part, &axis, last)).collect();
            if last {
                break;
            }
        }
        parts
    }

    pub(super) fn groups_of(&self, values: &[&CellValue]) -> usize {
        if self.along.is_some() { 0 } else { places(&self.groups, values).len() }
    }

    pub(super) fn along(&self, run: &Reproduction<'_>, values: &[&CellValue]) -> Along {
        let Some(axis) = &self.along else {
            return Along::Groups { names: self.conditions(run, values) };
        };
        let (unit, scale) = unit_of(&axis.labels);
        let name = run.study.axis_name(&axis.key);
        Along::Quantity {
            name: if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") },
            values: axis
                .labels
                .iter()
                .filter_map(|it| magnitude(it))
                .map(|it| it * scale)
                .collect(),
            labels: axis.labels.clone(),
        }
    }

    /// The names of the groups of `values`.
    pub(super) fn conditions(&self, run: &Reproduction<'_>, values: &[&CellValue]) -> Vec<String> {
        let groups = places(&self.groups, values);
        groups.iter().map(|labels| unbroken(&named(run, &self.groups, labels))).collect()
    }

    /// The curves of `values`; `make` makes a point of each.
    pub(super) fn series<P>(
        &self,
        run: &Reproduction<'_>,
        values: &[&CellValue],
        mut make: impl FnMut(&CellValue) -> Option<P>,
    ) -> Vec<Series<P>> {
        let rows = match &self.along {
            Some(axis) => axis.labels.iter().map(|label| vec![label.clone()]).collect(),
            None => places(&self.groups, values),
        };
        let row_axes: Vec<&Varied> = match &self.along {
            Some(axis) => vec![axis],
            None => self.groups.iter().collect(),
        };
        let stands = |value: &CellValue, axes: &[&Varied], labels: &[String]| {
            axes.iter().zip(labels).all(|(axis, label)| value.cell.get(&axis.key) == Some(label))
        };
        let own: Vec<&Varied> = self.series.iter().collect();
        let mut curves = Vec::new();
        for labels in places(&self.series, values) {
            let cell = |row: &Vec<String>| {
                let here = |value: &&&CellValue| {
                    stands(value, &row_axes, row) && stands(value, &own, &labels)
                };
                values.iter().find(here).copied()
            };
            let found: Vec<Option<&CellValue>> = rows.iter().map(cell).collect();
            let ours = found.iter().flatten().all(|value| run.study.is_ours(&value.cell));
            let points = found.into_iter().map(|value| value.and_then(&mut make)).collect();
            let name = match named(run, &self.series, &labels) {
                name if name.is_empty() => ONLY.to_owned(),
                name => name,
            };
            curves.push(Series { name, ours, points });
        }
        curves
    }
}

/// The distinct labels of `values` along `axes`, in the order of the axes' labels; a single empty
/// one without axes.
fn places(axes: &[Varied], values: &[&CellValue]) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    for value in values {
        let place =
            |axis: &Varied| axis.labels.iter().position(|it| value.cell.get(&axis.key) == Some(it));
        let Some(place) = axes.iter().map(place).collect::<Option<Vec<usize>>>() else { continue };
        if !found.contains(&place) {
            found.push(place);
        }
    }
    found.sort();
    let label = |(axis, place): (&Varied, usize)| axis.labels[place].clone();
    found.into_iter().map(|it| axes.iter().zip(it).map(label).collect()).collect()
}

fn named(run: &Reproduction<'_>, axes: &[Varied], labels: &[String]) -> String {
    let names: Vec<String> =
        axes.iter().zip(labels).map(|(axis, label)| axis.shown(run, label)).collect();
    names.join(" · ")
}

/// `name` with each number and its unit on one line.
fn unbroken(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for word in name.split_inclusive(' ') {
        let number = word.trim_start_matches('(').starts_with(|c: char| c.is_ascii_digit());
        match word.strip_suffix(' ').filter(|_| number) {
            Some(word) => text.extend([word, "\u{a0}"]),
            None => text.push_str(word),
        }
    }
    text
}

fn size(axes: &[Varied]) -> usize {
    axes.iter().map(|axis| axis.labels.len()).product()
}

/// The unit for labels of quantities, and the factor from their base unit.
fn unit_of(labels: &[String]) -> (&'static str, f64) {
    let most = labels.iter().filter_map(|it| magnitude(it)).fold(0.0, f64::max);
    let all = |parses: fn(&str) -> bool| labels.iter().all(|it| parses(it));
    if all(|it| it.parse::<f64>().is_ok()) {
        ("", 1.0)
    } else if all(|it| it.parse::<midhop_units::Loss>().is_ok()) {
        ("%", 100.0)
    } else if all(|it| it.parse::<midhop_units::Rate>().is_ok()) {
        ("Mbit/s", 1e-6)
    } else if all(|it| it.parse::<midhop_units::Duration>().is_ok()) {
        if most < 2.0 { ("ms", 1e3) } else { ("s", 1.0) }
    } else if most < 2e6 {
        ("kB", 1e-3)
    } else {
        ("MB", 1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(labels: &[&str], choice: bool) -> Varied {
        let labels = labels.iter().map(|&it| it.to_owned()).collect();
        Varied { key: "axis".to_owned(), labels, choice, named: false }
    }

    #[test]
    fn numbers_are_a_quantity_unless_they_have_names() {
        for (labels, quantity) in [
            (&["1", "2", "3", "4", "5"][..], true),
            (&["1", "2", "4", "7"], true),
            (&["1ms", "10ms", "250ms"], true),
            (&["0 %", "0.1 %", "1 %"], true),
            (&["near", "far", "far away"], false),
            (&["9", "11"], false),
        ] {
            let axis = axis(labels, false);
            assert_eq!(axis.is_quantity(), quantity, "{labels:?}");
            assert!(!Varied { named: true, ..axis }.is_quantity(), "{labels:?}");
        }
    }

    #[test]
    fn what_is_chosen_stands_side_by_side_and_what_is_given_in_groups() {
        let [losses, proxies] = [axis(&["none", "some"], false), axis(&["off", "on"], true)];
        let sizes = |layout: &Layout| [&layout.groups, &layout.series].map(|it| it.len());
        assert_eq!(sizes(&Layout::of(&[losses.clone(), proxies.clone()])), [1, 1]);
        // A single axis has its names below it.
        assert_eq!(sizes(&Layout::of(std::slice::from_ref(&proxies))), [1, 0]);
        assert_eq!(sizes(&Layout::of(&[])), [0, 0]);
        // Ten side by side are too many: the axis with fewer cases gives the groups.
        let senders = axis(&["a", "b", "c", "d", "e"], true);
        let layout = Layout::of(&[losses, proxies, senders]);
        assert_eq!((layout.groups.len(), layout.series[0].labels.len()), (2, 5));
        let swept = Layout::of(&[axis(&["1ms", "9ms", "20ms"], false), axis(&["off", "on"], true)]);
        assert!(swept.along.is_some() && swept.series.len() == 1);
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        assert_eq!(unbroken("far source (125 ms)"), "far source (125\u{a0}ms)");
        assert_eq!(unbroken("0.05 % in bursts"), "0.05\u{a0}% in bursts");
    }

    #[test]
    fn units_of_quantities_are_those_that_people_read() {
        let unit = |labels: &[&str]| {
            let labels: Vec<String> = labels.iter().map(|&it| it.to_owned()).collect();
            unit_of(&labels)
        };
        assert_eq!(unit(&["1ms", "250ms"]), ("ms", 1e3));
        assert_eq!(unit(&["1 %", "5 %"]), ("%", 100.0));
        assert_eq!(unit(&["1", "15"]), ("", 1.0));
        assert_eq!(unit(&["2 Mbit/s", "1 Gbit/s"]), ("Mbit/s", 1e-6));
    }
}
