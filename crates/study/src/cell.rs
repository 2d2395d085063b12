//! A cell of a scenario, and the selection of one of several.

use std::collections::BTreeMap;

/// A cell of a scenario, or some of its positions: axis → label.
pub type Cell = BTreeMap<String, String>;

/// Whether `cell` has every position of `at`.
pub(crate) fn covers(cell: &Cell, at: &Cell) -> bool {
    at.iter().all(|(axis, label)| cell.get(axis) == Some(label))
}

/// The positions of both; those of `more` take precedence.
pub(crate) fn joined(at: &Cell, more: &Cell) -> Cell {
    let mut cell = at.clone();
    cell.extend(more.clone());
    cell
}

/// The only one of `cells` with the positions `at`.
pub(crate) fn one<'c>(cells: &[&'c Cell], at: &Cell) -> Result<&'c Cell, String> {
    let mut fitting = cells.iter().filter(|cell| covers(cell, at));
    match (fitting.next(), fitting.next()) {
        (Some(cell), None) => Ok(cell),
        (None, _) => Err(format!("no cell is at {at:?}")),
        (Some(_), Some(_)) => Err(format!("more than one cell is at {at:?}")),
    }
}
