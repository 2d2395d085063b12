//! Numbers for readers: few digits, the same number of decimals in a column.

use midhop_study::Estimate;

/// Decimals that show the smallest of `values` with three digits, between 1 and 4.
pub(crate) fn decimals(values: impl Iterator<Item = f64>) -> usize {
    let smallest = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    match smallest {
        v if v < 0.1 => 4,
        v if v < 1.0 => 3,
        v if v < 100.0 => 2,
        _ => 1,
    }
}

/// `estimate` with `bound` (`>`, `<` or nothing) before it and, over several seeds, its interval.
pub(crate) fn estimate(
    estimate: Option<Estimate>,
    scale: f64,
    decimals: usize,
    bound: &str,
) -> String {
    let Some(Estimate { mean, margin, .. }) = estimate else { return "–".to_owned() };
    let mean = mean * scale;
    match margin {
        // Every seed gave the same: there is no randomness.
        Some(0.0) if bound.is_empty() => format!("{mean:.decimals$}"),
        // A bound has no interval: the spread of unfinished runs is unknown.
        Some(half) if bound.is_empty() => {
            format!("{mean:.decimals$} ± {:.decimals$}", half * scale)
        }
        _ if bound.is_empty() => format!("{mean:.decimals$}"),
        _ => format!("{bound}\u{a0}{mean:.decimals$}"),
    }
}
