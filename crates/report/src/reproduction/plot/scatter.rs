//! A picture of one figure over another, run by run: the positions of configurations, and the
//! spread of their runs.
//!
//! Choices have different marks, and all conditions are in the same picture.

use super::layout::{self, Layout};
use super::{Frame, Point, Series, beside, named_beside, point, titled, words};
use crate::reproduction::run_cell::RunCell;
use crate::reproduction::{Reproduction, columns};
use midhop_study::{CellValue, Figure};
use serde::Serialize;

/// A picture of two figures.
#[derive(Debug, Clone, Serialize)]
pub(in crate::reproduction) struct Scatter {
    #[serde(flatten)]
    pub(in crate::reproduction) frame: Frame,
    /// The horizontal axis.
    x: Measure,
    /// The vertical axis.
    y: Measure,
    /// The name of the place of the measurement.
    here: &'static str,
    /// The name of the other place, where its results are marked too.
    beside: Option<&'static str>,
    /// The names of the conditions.
    names: Vec<String>,
    /// Shape: one point per condition.
    series: Vec<Series<Spot>>,
}

/// An axis of such a picture.
#[derive(Debug, Clone, Serialize)]
struct Measure {
    /// The title, with the unit.
    axis: String,
    unit: &'static str,
}

/// The data of one cell.
#[derive(Debug, Clone, Serialize)]
struct Spot {
    x: Point,
    y: Point,
    /// Both values of each run; none where one of them is missing in a run.
    runs: Vec<[f64; 2]>,
}

/// The pictures of `figure` over its other figure; their cells are added to `cells`.
pub(in crate::reproduction) fn scatters(
    run: &Reproduction<'_>,
    figure: &Figure,
    number: usize,
    cells: &mut Vec<RunCell>,
) -> Vec<Scatter> {
    let Some(along) = figure.against.as_ref().and_then(|name| run.study.figure(name)) else {
        return Vec::new();
    };
    let across = |y: &CellValue| run.measured.cell(&along.name, &y.cell);
    let values: Vec<&CellValue> =
        run.measured.cells(&figure.name).iter().filter(|y| across(y).is_some()).collect();
    if values.is_empty() {
        return Vec::new();
    }
    let mut layout = Layout::of_marks(layout::varied(run, figure, &values));
    let parts = layout.distinct(run, vec![(String::new(), values)]);
    let several = parts.len() > 1;
    let made = parts.into_iter().enumerate().map(|(part, (title, values))| {
        let make = |y: &CellValue| {
            let x = across(y)?;
            let (runs, y) = (paired(x, y), point(run, figure, y, cells));
            Some(Spot { x: point(run, along, x, cells), y, runs })
        };
        let series = layout.series(run, &values, make);
        let rows: Vec<_> = values
            .iter()
            .flat_map(|y| across(y).map(|x| (along, x)).into_iter().chain([(figure, *y)]))
            .collect();
        let shows = words::against(along, figure);
        let frame = Frame {
            id: match several {
                true => format!("scatter-{number}-{part}"),
                false => format!("scatter-{number}"),
            },
            title: titled(&shows, &title),
            caption: caption(run, &series),
            csv: columns::of_cells(run, &rows).csv().unwrap_or_default(),
        };
        let measure = |of| Measure { axis: words::axis(run, of), unit: of.unit() };
        Scatter {
            frame,
            x: measure(along),
            y: measure(figure),
            here: beside::name(run.place),
            beside: named_beside(run, series.iter().flat_map(spots).map(|spot| &spot.y)),
            names: layout.conditions(run, &values),
            series,
        }
    });
    made.collect()
}

/// Both values of each run: the runs of a cell are in the same order if each has both values.
fn paired(x: &CellValue, y: &CellValue) -> Vec<[f64; 2]> {
    let whole = x.missing == 0 && y.missing == 0;
    let runs = x.values.iter().zip(&y.values).filter(|_| whole);
    runs.map(|(&x, &y)| [x, y]).collect()
}

fn spots(curve: &Series<Spot>) -> impl Iterator<Item = &Spot> {
    curve.points.iter().flatten()
}

/// The caption of such a picture, in a few sentences.
fn caption(run: &Reproduction<'_>, series: &[Series<Spot>]) -> String {
    let spots = || series.iter().flat_map(spots);
    let mut text =
        "Both axes are logarithmic; what is nothing lies where 0 is, in a row for each name. \
                    Large marks: means"
            .to_owned();
    if spots().any(|spot| spot.runs.len() > 1) {
        text += "; small ones: single runs";
    }
    text.push('.');
    let published = |point: &Point| point.published.is_some();
    if spots().any(|spot| published(&spot.x) && published(&spot.y)) {
        text += " ◇ what the study printed.";
    }
    let there = |spot: &Spot| spot.x.other.is_some() && spot.y.other.is_some();
    if let Some(place) = run.beside.map(|it| beside::name(it.place)).filter(|_| spots().any(there))
    {
        text += &format!(" ✕ the same in the {place}.");
    }
    text
}
