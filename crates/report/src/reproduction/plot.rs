//! The data of a study's pictures for the page's script: every number is chosen here.
//!
//! An axis of quantities is drawn along a picture, and its other axes become curves. Without such
//! an axis, conditions are groups of bars, and choices (proxies, congestion control) are side by
//! side in each group.

mod layout;
mod scatter;
mod words;

pub(super) use layout::is_choice;
pub(super) use scatter::{Scatter, scatters};

use super::run_cell::RunCell;
use super::{Reproduction, beside, verdict};
use layout::Layout;
use midhop_study::{CellValue, Figure};
use serde::Serialize;

/// The most groups that are readable in one picture.
const GROUPS_MAX: usize = 20;

/// The common parts of all pictures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Frame {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) caption: String,
    /// Its figures as CSV, for other programs.
    pub(super) csv: String,
}

/// A picture of one figure.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Plot {
    #[serde(flatten)]
    pub(super) frame: Frame,
    /// The title of the value axis, with its unit.
    pub(super) axis: String,
    pub(super) unit: &'static str,
    /// The name of the place of the measurement.
    pub(super) here: &'static str,
    /// The name of the other place, where its results are marked too.
    pub(super) beside: Option<&'static str>,
    /// The axis along the picture: quantities, or groups of bars.
    pub(super) along: Along,
    pub(super) series: Vec<Series<Point>>,
}

/// The axis along a picture.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Along {
    /// One for each group of bars.
    Groups { names: Vec<String> },
    /// Quantities on an axis.
    Quantity { name: String, values: Vec<f64>, labels: Vec<String> },
}

/// A curve, the bars or the marks of one configuration.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Series<P> {
    pub(super) name: String,
    /// Whether all of it is with this project's proxy.
    pub(super) ours: bool,
    /// Shape: one per place.
    pub(super) points: Vec<Option<P>>,
}

/// The data of one cell.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Point {
    /// The mean; none where the figure is missing in a run.
    pub(super) value: Option<f64>,
    /// Half of the interval.
    pub(super) margin: Option<f64>,
    pub(super) ours: bool,
    pub(super) runs: usize,
    pub(super) missing: usize,
    pub(super) published: Option<f64>,
    /// The study's name for the cell.
    pub(super) called: Option<String>,
    /// The allowed deviation of our value from it.
    pub(super) allowed: Option<f64>,
    /// The verdict, in words.
    pub(super) verdict: Option<String>,
    pub(super) limit: Option<f64>,
    /// The result of the cell in the other place.
    pub(super) other: Option<There>,
    /// Index of the cell.
    pub(super) cell: usize,
}

/// The result of a cell in the other place.
#[derive(Debug, Clone, Serialize)]
pub(super) struct There {
    value: f64,
    /// Half of the interval.
    margin: Option<f64>,
    runs: usize,
    /// The ratio of laboratory to simulator, with its interval.
    ratio: Option<String>,
}

/// The pictures of `figure`; their cells are added to `cells`.
pub(super) fn plots(
    run: &Reproduction<'_>,
    figure: &Figure,
    number: usize,
    cells: &mut Vec<RunCell>,
) -> Vec<Plot> {
    let values = run.measured.cells(&figure.name);
    if values.is_empty() {
        return Vec::new();
    }
    let values: Vec<&CellValue> = values.iter().collect();
    let axes = layout::varied(run, figure, &values);
    let mut parts: Vec<(String, Vec<&CellValue>)> = vec![(String::new(), values)];
    let mut layout = Layout::of(&axes);
    // Too many groups are divided into several pictures, by the condition with the fewest cases.
    while layout.groups_of(&parts[0].1) > GROUPS_MAX && layout.groups.len() > 1 {
        let Some(place) = (0..layout.groups.len()).min_by_key(|&it| layout.groups[it].labels.len())
        else {
            break;
        };
        let axis = layout.groups.remove(place);
        parts = parts.into_iter().flat_map(|part| axis.divided(run, part)).collect();
    }
    let parts = layout.distinct(run, parts);
    let several = parts.len() > 1;
    let made = parts.into_iter().enumerate().map(|(part, (title, values))| {
        let along = layout.along(run, &values);
        let make = |value: &CellValue| Some(point(run, figure, value, cells));
        let series = layout.series(run, &values, make);
        let rows: Vec<_> = values.iter().map(|value| (figure, *value)).collect();
        let frame = Frame {
            id: if several { format!("plot-{number}-{part}") } else { format!("plot-{number}") },
            title: titled(&figure.shows, &title),
            caption: String::new(),
            csv: super::columns::of_cells(run, &rows).csv().unwrap_or_default(),
        };
        let mut plot = Plot {
            frame,
            axis: words::axis(run, figure),
            unit: figure.unit(),
            here: beside::name(run.place),
            beside: named_beside(
                run,
                series.iter().flat_map(|curve| curve.points.iter().flatten()),
            ),
            along,
            series,
        };
        plot.frame.caption = words::caption(run, figure, &plot);
        plot
    });
    made.collect()
}

/// The title of a picture, with its part where there are several.
fn titled(shows: &str, part: &str) -> String {
    if part.is_empty() { shows.to_owned() } else { format!("{shows}; {part}") }
}

fn point(
    run: &Reproduction<'_>,
    figure: &Figure,
    value: &CellValue,
    cells: &mut Vec<RunCell>,
) -> Point {
    let cell = RunCell::of(run, &figure.scenario, &value.cell);
    let place = cells.iter().position(|known| *known == cell).unwrap_or_else(|| {
        cells.push(cell);
        cells.len() - 1
    });
    let estimate = value.estimate(run.study.confidence);
    let published = super::table::published(figure, value);
    let judged = published.and_then(|it| figure.judge(it, run.measured, run.level_of_points()));
    Point {
        value: estimate.map(|it| it.mean),
        margin: estimate.and_then(|it| it.margin).filter(|margin| *margin > 0.0),
        ours: run.study.is_ours(&value.cell),
        runs: value.values.len(),
        missing: value.missing,
        published: published.map(|it| it.value),
        called: published.and_then(|it| it.called.clone()),
        allowed: published.and_then(|it| figure.allowance(it.value)),
        verdict: judged.map(|it| format!("{} {}", verdict::sign(it), verdict::name(it))),
        limit: super::table::mean(&value.limits),
        other: run.other(figure, value).and_then(|other| {
            let estimate = other.estimate?;
            Some(There {
                value: estimate.mean,
                margin: estimate.margin.filter(|margin| *margin > 0.0),
                runs: other.value.values.len(),
                ratio: other.ratio.map(beside::shown),
            })
        }),
        cell: place,
    }
}

/// The name of the other place, where at least one of `points` has a mark from there.
fn named_beside<'p>(
    run: &Reproduction<'_>,
    mut points: impl Iterator<Item = &'p Point>,
) -> Option<&'static str> {
    let place = run.beside?.place;
    points.any(|point| point.other.is_some()).then(|| beside::name(place))
}
