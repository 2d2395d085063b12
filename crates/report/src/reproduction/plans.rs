//! Resolved plans of cells, with every default visible. A page has the plan of each scenario's
//! first cell in full. Every other cell has only its differences, from which the page's script
//! restores its plan.

use super::Reproduction;
use super::run_cell::RunCell;
use crate::escape::html as text;
use midhop_study::Cell;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The plan of each scenario and cell, in the form of a record.
pub type Plans = BTreeMap<(String, Cell), Value>;

/// A path in a plan, and the new value there, or none where it is removed.
pub(super) type Change = (Vec<Value>, Vec<Value>);

/// The keys that belong to one run and not to its cell.
const OF_RUN: [&str; 3] = ["number", "seed", "seeds"];

/// The plans in full, by scenario.
#[derive(Debug, Default)]
pub(super) struct Folds(BTreeMap<String, (String, Value)>);

impl Folds {
    /// Takes the plan of the first of `cells` of each scenario, and gives each cell its
    /// differences; `title` is the name of a cell.
    pub(super) fn of(
        run: &Reproduction<'_>,
        cells: &mut [RunCell],
        title: impl Fn(&RunCell) -> String,
    ) -> Self {
        let mut folds = BTreeMap::new();
        for cell in cells {
            let at = cell.place.iter().map(|[axis, label]| (axis.clone(), label.clone())).collect();
            let Some(plan) = run.plans.get(&(cell.scenario.clone(), at)).map(of_cell) else {
                continue;
            };
            let (_, first) =
                folds.entry(cell.scenario.clone()).or_insert_with(|| (title(cell), plan.clone()));
            let mut changes = Vec::new();
            differ(first, &plan, &mut Vec::new(), &mut changes);
            cell.plan = Some(changes);
        }
        Self(folds)
    }

    /// The fold of `scenario`; empty where its plans are unknown.
    pub(super) fn fold(&self, scenario: &str) -> String {
        let Some((title, plan)) = self.0.get(scenario) else { return String::new() };
        let mut fold =
            format!("<details><summary>Plan of {}, every default visible</summary>\n", text(title));
        let plan = serde_json::to_string_pretty(plan).unwrap_or_default();
        let _ = writeln!(
            fold,
            "<p class=\"note\">Other cells have this plan with what they set; each has its own whole where a \
             picture tells of it.</p>\n<pre class=\"plan\" data-scenario=\"{}\"><code>{}</code></pre></details>",
            text(scenario),
            text(&plan)
        );
        fold
    }
}

/// `plan` without the keys of a single run.
fn of_cell(plan: &Value) -> Value {
    let mut plan = plan.clone();
    if let Some(keys) = plan.as_object_mut() {
        keys.retain(|key, _| !OF_RUN.contains(&key.as_str()));
    }
    plan
}

/// Appends to `changes` the differences from `here` to `there`, both of which are at `path`. Lists
/// of different lengths are replaced as a whole.
fn differ(here: &Value, there: &Value, path: &mut Vec<Value>, changes: &mut Vec<Change>) {
    let mut step = |key: Value, here: Option<&Value>, there: Option<&Value>| {
        path.push(key);
        match (here, there) {
            (Some(here), Some(there)) => differ(here, there, path, changes),
            (_, there) => changes.push((path.clone(), there.cloned().into_iter().collect())),
        }
        path.pop();
    };
    match (here, there) {
        (Value::Object(here), Value::Object(there)) => {
            for (key, value) in here {
                step(key.as_str().into(), Some(value), there.get(key));
            }
            for (key, value) in there.iter().filter(|(key, _)| !here.contains_key(*key)) {
                step(key.as_str().into(), None, Some(value));
            }
        }
        (Value::Array(here), Value::Array(there)) if here.len() == there.len() => {
            for (at, (here, there)) in here.iter().zip(there).enumerate() {
                step(at.into(), Some(here), Some(there));
            }
        }
        _ if here == there => {}
        _ => changes.push((path.clone(), vec![there.clone()])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_is_another_with_what_differs() {
        let here =
            json!({ "links": [{ "loss": 0, "rate": 9 }, {}], "nodes": [1], "peps": { "a": 1 } });
        let there =
            json!({ "links": [{ "loss": 1, "rate": 9 }, {}], "nodes": [1, 2], "peps": { "b": 1 } });
        let mut changes = Vec::new();
        differ(&here, &there, &mut Vec::new(), &mut changes);
        let wanted = json!([
            [["links", 0, "loss"], [1]],
            [["nodes"], [[1, 2]]],
            [["peps", "a"], []],
            [["peps", "b"], [1]],
        ]);
        assert_eq!(json!(changes), wanted);
        let mut none = Vec::new();
        differ(&there, &there, &mut Vec::new(), &mut none);
        assert_eq!(none, []);
    }

    #[test]
    fn what_is_of_one_run_is_no_part_of_its_cells_plan() {
        let plan = json!({ "seed": u64::MAX, "seeds": 5, "number": 7, "title": "t" });
        assert_eq!(of_cell(&plan), json!({ "title": "t" }));
    }
}
