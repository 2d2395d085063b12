//! Samples over time, as columns.

use crate::axes::Axes;
use crate::columns::{Columns, Values};
use midhop_experiment::record::{Record, Runner, Series};

/// One row per run, curve and sample, with all samples as recorded. `at` is a transfer, a link or a
/// proxy's leg. The unit of `value` has a column. Each `vary` axis is a column `cell.<axis>`.
pub fn samples(records: &[Record]) -> Columns {
    let all: Vec<(&Record, &Series, usize)> = records
        .iter()
        .flat_map(|record| record.series.iter().map(move |series| (record, series)))
        .flat_map(|(record, series)| {
            let count = series.time_s.len().min(series.value.len());
            (0..count).map(move |sample| (record, series, sample))
        })
        .collect();
    let text = |value: &dyn Fn(&Record, &Series) -> String| {
        Values::Text(all.iter().map(|(record, series, _)| Some(value(record, series))).collect())
    };
    let number = |value: &dyn Fn(&Series, usize) -> f64| {
        Values::Number(all.iter().map(|(_, series, at)| Some(value(series, *at))).collect())
    };
    let mut columns = Columns::default();
    columns.push("title", text(&|record, _| record.title.clone()));
    columns.push("place", text(&|record, _| Runner::of(record).name().to_owned()));
    columns.push("seed", Values::Count(all.iter().map(|(it, ..)| Some(it.seed.0)).collect()));
    for axis in &Axes::of(records).all {
        let labels = all.iter().map(|(record, ..)| record.cell.get(&axis.key).cloned()).collect();
        columns.push_labels(&format!("cell.{}", axis.key), labels);
    }
    columns.push("at", text(&|_, series| series.place.clone()));
    let flow = |(_, series, _): &(&Record, &Series, usize)| series.flow.map(u64::from);
    columns.push("flow", Values::Count(all.iter().map(flow).collect()));
    columns.push("quantity", text(&|_, series| series.quantity.clone()));
    columns.push("unit", text(&|_, series| series.unit.clone()));
    columns.push("time_s", number(&|series, at| series.time_s[at]));
    columns.push("value", number(&|series, at| series.value[at]));
    columns
}
