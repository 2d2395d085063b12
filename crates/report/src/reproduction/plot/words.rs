//! The texts of a picture's axis and its caption.

use super::Plot;
use crate::reproduction::Reproduction;
use midhop_study::{Figure, Metric, Take};

/// The title of the value axis, with its unit.
pub(super) fn axis(run: &Reproduction<'_>, figure: &Figure) -> String {
    let words = words(figure.metric);
    if let Some(to) = &figure.relative_to {
        let names = to.iter().map(|(axis, label)| run.study.label_name(axis, label));
        return format!("{words}, over that of {}", names.collect::<Vec<_>>().join(", "));
    }
    match figure.unit() {
        "" => words.to_owned(),
        unit => format!("{words}, {unit}"),
    }
}

/// The title of a picture of two figures.
pub(super) fn against(along: &Figure, figure: &Figure) -> String {
    format!("{}; against it, run by run: {}", along.shows, words(figure.metric))
}

/// The name of a metric on an axis.
fn words(metric: Metric) -> &'static str {
    match metric {
        Metric::Time => "time to the last byte",
        Metric::Goodput | Metric::GoodputKb | Metric::Span => "goodput",
        Metric::SpanOfAll => "goodput of all",
        Metric::FlowsKb => "goodput of all flows",
        Metric::Start => "time to nine tenths of the limit",
        Metric::Efficiency => "share of the limit",
        Metric::Epb => "effective over provisioned bandwidth",
        Metric::Jain => "Jain's index",
        Metric::Resent => "sent again",
        Metric::Excess => "sent again beyond losses",
        Metric::Share | Metric::ShareOfOthers => "share of an equal part",
        Metric::Dropped => "packets dropped",
        Metric::Queue => "waiting before the link",
        Metric::QueueingMedian | Metric::QueueingP95 => "waiting time before the link",
        Metric::OutstandingMean | Metric::OutstandingMax => "data outstanding",
        Metric::Window => "congestion window",
        Metric::RoundTrip => "smoothed round trip",
        Metric::StallMedian | Metric::StallP99 => "longest wait for payload at a handover",
        Metric::State => "state moved",
        Metric::Broken => "connections reset",
        Metric::Restarts => "files begun again",
        Metric::SlowStart | Metric::Avoidance | Metric::Recovery | Metric::Timeout => {
            "share of time"
        }
    }
}

/// The better direction; empty where there is none.
fn better(metric: Metric) -> &'static str {
    match metric {
        Metric::Time | Metric::Start | Metric::Resent | Metric::Excess | Metric::Dropped => {
            "Less is better. "
        }
        Metric::Queue
        | Metric::QueueingMedian
        | Metric::QueueingP95
        | Metric::StallMedian
        | Metric::StallP99
        | Metric::State
        | Metric::Broken
        | Metric::Restarts => "Less is better. ",
        Metric::Goodput
        | Metric::GoodputKb
        | Metric::FlowsKb
        | Metric::Span
        | Metric::SpanOfAll
        | Metric::Jain => "More is better. ",
        Metric::Efficiency | Metric::Epb | Metric::Share => "More is better. ",
        _ => "",
    }
}

/// Whether a value exceeds its limit by more than rounding and the printed decimals.
fn exceeds((value, limit): (f64, f64)) -> bool {
    value > limit * 1.001
}

/// How a value can exceed the physical limit: only during a part of the time.
fn above(figure: &Figure) -> &'static str {
    if figure.metric == Metric::Span && !figure.from.is_zero() {
        " What is above it had arrived before that time, and waited for a lost segment."
    } else {
        ""
    }
}

/// The caption of a picture, in a few sentences.
pub(super) fn caption(run: &Reproduction<'_>, figure: &Figure, plot: &Plot) -> String {
    let points = || plot.series.iter().flat_map(|it| it.points.iter().flatten());
    let mut text = better(figure.metric).to_owned();
    let runs: Vec<usize> = points().map(|it| it.runs + it.missing).collect();
    let (least, most) =
        (runs.iter().min().copied().unwrap_or(0), runs.iter().max().copied().unwrap_or(0));
    let taken = match (figure.take, &figure.relative_to) {
        (Take::Mean, None) => "Means",
        (Take::Mean, Some(_)) => "Quotients of the means",
        (Take::Greatest, None) => "The greatest",
        (Take::Greatest, Some(_)) => "Quotients of the greatest",
    };
    text += &match (least, most) {
        (1, 1) => "One run of each cell".to_owned(),
        (least, most) if least == most => format!("{taken} of {most} runs"),
        (least, most) => format!("{taken} of {least} to {most} runs"),
    };
    if points().any(|it| it.margin.is_some()) {
        text += &format!("; whiskers: interval at {:.0} %", run.study.confidence * 100.0);
    }
    text.push('.');
    if points().any(|it| it.published.is_some()) {
        text += " ◇ what the study printed";
        if points().any(|it| it.allowed.is_some()) {
            text += ", with a dotted line as far as ours may be off";
        }
        text.push('.');
    }
    if let Some(name) = plot.beside {
        text += &format!(" ✕ the same in the {name}");
        if points().filter_map(|it| it.other.as_ref()).any(|it| it.margin.is_some()) {
            text += ", with a line of its interval beside it";
        }
        text.push('.');
    }
    if points().any(|it| it.limit.is_some()) {
        text += " Solid line: what physics allows.";
        if points().any(|it| it.value.zip(it.limit).is_some_and(exceeds)) {
            text += above(figure);
        }
    }
    let missing = points().filter(|it| it.value.is_none()).count();
    if missing > 0 {
        text += &format!(
            " Without a value: {} of {}, where a run did not give this figure.",
            missing,
            crate::phrases::count(points().count(), "cell")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_part_of_the_time_can_have_more_than_physics_allows() {
        let figure = |from: &str| {
            let text = format!(
                r#"{{"name":"a","shows":"b","scenario":"c","metric":"span","from":"{from}","until":"60 s"}}"#
            );
            serde_json::from_str::<Figure>(&text).expect("a figure")
        };
        assert_eq!(above(&figure("0 s")), "");
        assert!(above(&figure("20 s")).contains("before that time"));
        let whole = Figure { metric: Metric::Goodput, ..figure("20 s") };
        assert_eq!(above(&whole), "");
    }

    #[test]
    fn what_is_above_by_rounding_is_not() {
        assert!(exceeds((139.8, 135.1)));
        assert!(!exceeds((135.1001, 135.1)));
    }
}
