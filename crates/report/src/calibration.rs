//! Compares a recording with a preset: figures for a terminal, and one picture.

use crate::escape::html as text;
use midhop_experiment::calibration::{Calibration, Curves, Distribution, Model, Portrait};
use std::fmt::Write as _;

/// The figures of a link, and how each is shown.
const ROWS: [(&str, Shown); 9] = [
    ("rate, Mbit/s: mean", |it| mean(it.rate_bit_per_s.as_ref(), 1e-6, 1)),
    ("  p5, p50, p95", |it| quantiles(it.rate_bit_per_s.as_ref(), 1e-6, 1)),
    ("  from second to second, p5 and p95", |it| ends(it.rate_change_bit_per_s.as_ref(), 1e-6, 1)),
    ("delay one way, ms: mean", |it| mean(it.delay_s.as_ref(), 1e3, 1)),
    ("  p5, p50, p95", |it| quantiles(it.delay_s.as_ref(), 1e3, 1)),
    ("  longest 100 ms", |it| it.delay_s.map(|it| format!("{:.1}", it.max * 1e3))),
    ("lost, %", |it| it.loss.map(|it| format!("{:.3}", it.loss_ratio * 100.0))),
    ("steps on the grid, Mbit/s, p5 and p95", |it| {
        ends(it.grid.as_ref()?.rate_step_bit_per_s.as_ref(), 1e-6, 1)
    }),
    ("rate's autocorrelation, 1 s, 5 s, 10 s", |it| {
        let at = |s: f64| it.rate_autocorrelation.iter().find(|lag| lag.lag_s == s);
        Some(format!(
            "{:.2} {:.2} {:.2}",
            at(1.0)?.correlation,
            at(5.0)?.correlation,
            at(10.0)?.correlation
        ))
    }),
];

type Shown = fn(&Portrait) -> Option<String>;

fn mean(values: Option<&Distribution>, unit: f64, digits: usize) -> Option<String> {
    values.map(|it| format!("{:.digits$}", it.mean * unit))
}

fn quantiles(values: Option<&Distribution>, unit: f64, digits: usize) -> Option<String> {
    values.map(|it| {
        let [low, middle, high] = [it.p05, it.p50, it.p95].map(|value| value * unit);
        format!("{low:.digits$} {middle:.digits$} {high:.digits$}")
    })
}

fn ends(values: Option<&Distribution>, unit: f64, digits: usize) -> Option<String> {
    values.map(|it| format!("{:+.digits$} {:+.digits$}", it.p05 * unit, it.p95 * unit))
}

/// The figures, the distances, the fitted link, and what one recording does not show.
pub fn calibration_table(calibration: &Calibration) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:.0} s of a recording beside the preset `{}`, {}, {} seeds. The first half fits, the second judges.\n",
        calibration.span.as_s_f64(),
        calibration.preset,
        calibration.direction,
        calibration.seeds
    );
    let columns: Vec<(&str, &Portrait)> = std::iter::once(("judge", &calibration.judge))
        .chain(calibration.models.iter().map(|it| (it.name.as_str(), &it.portrait)))
        .collect();
    let _ = write!(out, "{:<40}", "");
    for (name, _) in &columns {
        let _ = write!(out, "{name:>20}");
    }
    out.push('\n');
    for (name, shown) in ROWS {
        let cells: Vec<Option<String>> = columns.iter().map(|(_, it)| shown(it)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(out, "{name:<40}");
        for cell in cells {
            let _ = write!(out, "{:>20}", cell.unwrap_or_else(|| "–".to_owned()));
        }
        out.push('\n');
    }
    let _ = write!(out, "\n{:<40}{:>20}", "distance from the half that judges", "");
    for model in &calibration.models {
        let _ = write!(out, "{:>20.3}", model.distance);
    }
    out.push('\n');
    let mut parts: Vec<&str> = Vec::new();
    for part in calibration.models.iter().flat_map(|it| &it.parts) {
        if !parts.contains(&part.quantity.as_str()) {
            parts.push(&part.quantity);
        }
    }
    for name in parts {
        let _ = write!(out, "  {name:<38}{:>20}", "");
        for model in &calibration.models {
            let part = model.parts.iter().find(|it| it.quantity == name);
            let cell = part.map_or_else(|| "–".to_owned(), |it| format!("{:.3}", it.distance));
            let _ = write!(out, "{cell:>20}");
        }
        out.push('\n');
    }
    out.push_str(
        "\nA distance of distributions is the area between their quantile functions over the recording's mean; of autocorrelations and losses, the\n\
         difference. Their mean is the number. \"first half\" is how far the recording is from itself: no model need be nearer.\n",
    );
    match &calibration.recording.grid {
        Some(grid) => {
            let _ = writeln!(
                out,
                "grid: every 15 s from {:.1} s on; its steps are {:.1} times those at other times",
                grid.phase.as_s_f64(),
                grid.sharpness
            );
        }
        None => out.push_str("grid: none of 15 s was found\n"),
    }
    if let Some(fit) = &calibration.fit {
        let _ = write!(out, "\nfitted to the first half ({} slots):\n{}", fit.slots, fit.toml());
    }
    out.push_str("\nwhat this recording leaves open:\n");
    for sentence in &calibration.unknown {
        let _ = writeln!(out, "- {sentence}");
    }
    out
}

/// The width and height of a panel, and its margins. Unit: pixels.
const PANEL: [f64; 2] = [420.0, 220.0];
const MARGIN: f64 = 55.0;
/// The colours of recording, preset, fitted, fixed, first half. Source: Okabe and Ito 2008;
/// everybody can distinguish them.
const COLOURS: [&str; 5] = ["#000000", "#d55e00", "#0072b2", "#999999", "#009e73"];

/// One SVG picture: quantiles of rates and delays, both over time, and the autocorrelation.
pub fn calibration_picture(calibration: &Calibration) -> String {
    let [width, height] = [2.0 * (PANEL[0] + MARGIN) + MARGIN, 3.0 * (PANEL[1] + MARGIN) + 90.0];
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"16\">A recording beside the preset {}, {}</text>\n",
        text(&calibration.preset),
        text(&calibration.direction)
    );
    let colour = |at: usize| COLOURS[at % COLOURS.len()];
    for (at, (name, _)) in calibration.curves.iter().enumerate() {
        let x = MARGIN + 165.0 * at as f64;
        let distance = calibration.models.iter().find(|it| it.name == *name);
        let distance = distance.map_or(String::new(), |it| format!(", {:.3}", it.distance));
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"36\" width=\"14\" height=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"43\">{}{distance}</text>",
            colour(at),
            x + 20.0,
            text(name)
        );
    }
    // The highest and lowest hundredth are left out: one spike would compress everything else.
    let quantile = |values: &[f64], unit: f64| -> Vec<[f64; 2]> {
        let last = values.len().saturating_sub(1);
        let inner = values.iter().enumerate().filter(|(at, _)| *at > 0 && *at < last);
        inner.map(|(at, it)| [it * unit, at as f64 / last as f64 * 100.0]).collect()
    };
    let over_time = |values: &[f64], step: f64, unit: f64| -> Vec<[f64; 2]> {
        values.iter().enumerate().map(|(at, it)| [at as f64 * step, it * unit]).collect()
    };
    let lags = |model: &Portrait, delay: bool| -> Vec<[f64; 2]> {
        let lags = if delay { &model.delay_autocorrelation } else { &model.rate_autocorrelation };
        lags.iter().map(|it| [it.lag_s, it.correlation]).collect()
    };
    let portrait = |name: &str| {
        let model = calibration.models.iter().find(|it: &&Model| it.name == name);
        model.map_or(&calibration.judge, |it| &it.portrait)
    };
    type Lines<'a> = &'a dyn Fn(&str, &Curves) -> Vec<[f64; 2]>;
    let panels: [(&str, &str, Lines<'_>); 6] = [
        ("rate, Mbit/s", "seconds below it, %", &|_, it| quantile(&it.rate, 1e-6)),
        ("delay one way, ms", "tenths of a second below it, %", &|_, it| quantile(&it.delay, 1e3)),
        ("time, s", "rate, Mbit/s", &|_, it| over_time(&it.seconds, 1.0, 1e-6)),
        ("time, s", "delay one way, ms", &|_, it| over_time(&it.tenths, 0.1, 1e3)),
        ("lag, s", "autocorrelation of the rate", &|name, _| lags(portrait(name), false)),
        ("lag, s", "autocorrelation of the delay", &|name, _| lags(portrait(name), true)),
    ];
    for (at, (x_axis, y_axis, lines)) in panels.iter().enumerate() {
        let corner = [
            MARGIN + (at % 2) as f64 * (PANEL[0] + MARGIN),
            60.0 + (at / 2) as f64 * (PANEL[1] + MARGIN),
        ];
        let lines: Vec<Vec<[f64; 2]>> =
            calibration.curves.iter().map(|(name, it)| lines(name, it)).collect();
        panel(&mut out, corner, [x_axis, y_axis], &lines);
    }
    out.push_str("</svg>\n");
    out
}

/// A number at an axis, with three digits.
fn tick(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// One panel with its axes, and a line for each curve; the first is drawn last, on top of the
/// others.
fn panel(
    out: &mut String,
    [left, top]: [f64; 2],
    [x_axis, y_axis]: [&str; 2],
    lines: &[Vec<[f64; 2]>],
) {
    let bounds = |at: usize| {
        let values = || lines.iter().flatten().map(|point| point[at]).filter(|it| it.is_finite());
        let low = values().fold(f64::INFINITY, f64::min).min(0.0);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        if high > low { [low, high] } else { [0.0, 1.0] }
    };
    let [x, y] = [bounds(0), bounds(1)];
    let at = |point: &[f64; 2]| {
        let across = (point[0] - x[0]) / (x[1] - x[0]) * PANEL[0];
        let up = (point[1] - y[0]) / (y[1] - y[0]) * PANEL[1];
        (left + across, top + PANEL[1] - up)
    };
    let bottom = top + PANEL[1];
    let _ = writeln!(
        out,
        "<path d=\"M{left} {top}V{bottom}H{}\" fill=\"none\" stroke=\"#444\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{x_axis}</text>\n\
         <text x=\"{}\" y=\"{}\">{y_axis}</text>",
        left + PANEL[0],
        left + PANEL[0] / 2.0,
        bottom + 32.0,
        left + 6.0,
        top + 10.0
    );
    for share in [0.0, 0.5, 1.0] {
        let value = |[low, high]: [f64; 2]| tick(low + (high - low) * share);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#444\">{}</text>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#444\">{}</text>",
            left + PANEL[0] * share,
            bottom + 16.0,
            value(x),
            left - 4.0,
            bottom - PANEL[1] * share + 4.0,
            value(y)
        );
    }
    for (number, line) in lines.iter().enumerate().rev().filter(|(_, line)| line.len() > 1) {
        let mut points = String::new();
        for point in line.iter().filter(|point| point.iter().all(|it| it.is_finite())) {
            let (across, down) = at(point);
            let _ = write!(points, "{across:.1},{down:.1} ");
        }
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"/>",
            points.trim_end(),
            COLOURS[number % COLOURS.len()],
            if number == 0 { 2.0 } else { 1.2 }
        );
    }
}
