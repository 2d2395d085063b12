//! The laboratory: run scenarios on real kernels, measure, report.

fn main() {}
