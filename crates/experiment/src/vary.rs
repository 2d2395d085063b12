//! What is varied, and all its combinations.
//!
//! An axis is one line under `[vary]`: a dotted key with an array of values, or a name with a table
//! of cases, each a table of its changes. Changes are made in the tree of the file before it is
//! read, so everything in a file can be varied, and a wrong value is reported on its line of the
//! axis.

use midhop_config::{
    ConfigError, Document, KeyPath, suggest,
    tree::{Entry, Node, Table, Value},
};

/// The tables whose keys are names that the scenario chooses: a varied name must exist.
const NAMED: [&str; 6] = ["nodes", "links", "peps", "agents", "transfers", "traffic"];

/// One axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Its name: the dotted key that it changes, or the name given to its cases.
    pub name: String,
    /// Its positions in the order of the file. At least one.
    pub cases: Vec<Case>,
}

/// One position on an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The name in results. Unique on its axis.
    pub label: String,
    /// The changes: what it sets, and where.
    pub changes: Vec<(KeyPath, Node)>,
}

impl Axis {
    /// Reads the line `entry` of the `[vary]` table.
    ///
    /// # Errors
    /// When it is neither an array of values nor a table of cases, is empty, or names a case twice.
    pub(crate) fn read(document: &Document, entry: &Entry) -> Result<Self, ConfigError> {
        let here = KeyPath::of(["vary", entry.key.as_str()]);
        let refuse = |span, message: String, hint: Option<&str>| {
            document.fault_at(span, &here, message, hint.map(str::to_owned))
        };
        let cases = match &entry.node.value {
            Value::Array(values) => {
                let path: KeyPath =
                    entry.key.parse().map_err(|error: midhop_config::ParseKeyPathError| {
                        refuse(entry.key_span, error.to_string(), None)
                    })?;
                values
                    .iter()
                    .map(|node| Case {
                        label: node.value.to_string(),
                        changes: vec![(path.clone(), node.clone())],
                    })
                    .collect::<Vec<_>>()
            }
            Value::Table(cases) => cases
                .entries()
                .iter()
                .map(|case| Case::read(document, &here, case))
                .collect::<Result<_, _>>()?,
            _ => {
                return Err(refuse(
                    entry.node.span,
                    "an axis is an array of values, or a table of named cases".to_owned(),
                    Some(
                        "write \"links.sat.down.loss\" = [0, 0.01], or \
                         proxy = { none = {}, gateway = { nodes.gateway.pep = \"gw\" } }",
                    ),
                ));
            }
        };
        if cases.is_empty() {
            let message = "an axis without a value leaves nothing to run".to_owned();
            return Err(refuse(entry.key_span, message, Some("give it a value or take it out")));
        }
        for (number, case) in cases.iter().enumerate() {
            if cases[..number].iter().any(|earlier| earlier.label == case.label) {
                let span = case.changes.first().map_or(entry.key_span, |(_, node)| node.span);
                return Err(refuse(span, format!("`{}` is there twice", case.label), None));
            }
        }
        Ok(Self { name: entry.key.clone(), cases })
    }

    /// The same axis with only the case called `labels`, or those whose labels it lists, separated
    /// by commas. They keep their order.
    pub(crate) fn only(&self, labels: &str) -> Option<Self> {
        let called = |label: &str| self.cases.iter().find(|case| case.label == label.trim());
        if let Some(case) = called(labels) {
            return Some(Self { name: self.name.clone(), cases: vec![case.clone()] });
        }
        let wanted: Vec<&Case> = labels.split(',').map(called).collect::<Option<_>>()?;
        let cases = self.cases.iter().filter(|case| wanted.iter().any(|it| it.label == case.label));
        Some(Self { name: self.name.clone(), cases: cases.cloned().collect() })
    }
}

impl Case {
    fn read(document: &Document, axis: &KeyPath, entry: &Entry) -> Result<Self, ConfigError> {
        let here = axis.join(entry.key.as_str());
        let Value::Table(table) = &entry.node.value else {
            return Err(document.fault_at(
                entry.node.span,
                &here,
                "a case is a table of what it changes",
                Some("write it as { \"transfers.page.congestion\" = \"bbr\" }".to_owned()),
            ));
        };
        let mut changes = Vec::new();
        for change in table.entries() {
            collect(document, &here, &KeyPath::ROOT, change, &mut changes)?;
        }
        Ok(Self { label: entry.key.clone(), changes })
    }
}

/// Collects the changes of one entry of a case. A quoted key with dots is a whole path, and its
/// value replaces the existing one. Keys without quotes are parsed into tables, each leaf of which
/// is a separate change.
fn collect(
    document: &Document,
    case: &KeyPath,
    above: &KeyPath,
    entry: &Entry,
    changes: &mut Vec<(KeyPath, Node)>,
) -> Result<(), ConfigError> {
    let key: KeyPath = entry.key.parse().map_err(|error: midhop_config::ParseKeyPathError| {
        document.fault_at(entry.key_span, case, error.to_string(), None)
    })?;
    let path = key.keys().iter().fold(above.clone(), |path, key| path.join(key.as_str()));
    match &entry.node.value {
        Value::Table(table) if key.keys().len() == 1 && !table.entries().is_empty() => table
            .entries()
            .iter()
            .try_for_each(|inner| collect(document, case, &path, inner, changes)),
        _ => {
            changes.push((path, entry.node.clone()));
            Ok(())
        }
    }
}

/// The number of combinations; none where it overflows.
pub fn cells(axes: &[Axis]) -> Option<usize> {
    axes.iter().try_fold(1usize, |product, axis| product.checked_mul(axis.cases.len()))
}

/// All combinations: the last axis changes fastest. One empty combination without axes.
pub fn cross(axes: &[Axis]) -> impl Iterator<Item = Vec<&Case>> {
    let total = cells(axes).unwrap_or(usize::MAX);
    (0..total).map(move |number| {
        let mut rest = number;
        let mut cell: Vec<&Case> = axes
            .iter()
            .rev()
            .map(|axis| {
                let case = &axis.cases[rest % axis.cases.len()];
                rest /= axis.cases.len();
                case
            })
            .collect();
        cell.reverse();
        cell
    })
}

/// Makes a change in `document`.
///
/// # Errors
/// When the path contains a name that the scenario does not have, or leads through something that
/// has no keys. Whether the last key is known and the value fits is checked when the tree is read.
pub(crate) fn apply(
    document: &mut Document,
    path: &KeyPath,
    node: &Node,
) -> Result<(), ConfigError> {
    let keys = path.keys();
    let named = keys.first().is_some_and(|first| NAMED.contains(&first.as_str()));
    // A proxy's table contains chosen names, of legs and peers: all but the last key must exist.
    let known = match keys.first().map(String::as_str) {
        Some("peps") => keys.len().saturating_sub(1).max(2),
        _ => 2,
    };
    for depth in (1..known.min(keys.len())).filter(|_| named) {
        let above = KeyPath::of(keys[..depth].iter().cloned());
        let there = document.get(&above).and_then(|node| node.value.as_table());
        let Some(table) = there else { continue };
        if table.get(&keys[depth]).is_none() {
            let hint = suggest::hint(&keys[depth], "known", table.keys().collect::<Vec<_>>());
            let message = format!("`{above}` has no `{}` that could be changed", keys[depth]);
            return Err(document.fault_at(node.span, path, message, hint));
        }
    }
    document.set(path, node.clone())?;
    match keys {
        [links, link, key] if links == "links" => refuse_hidden_key(document, link, key, node),
        _ => Ok(()),
    }
}

/// Refuses keys of links without effect, where each direction has its own.
///
/// # Errors
/// At the first such key.
pub(crate) fn refuse_hidden(document: &Document) -> Result<(), ConfigError> {
    let links = document.root().get("links").and_then(|links| links.value.as_table());
    for link in links.into_iter().flat_map(Table::entries) {
        for entry in link.node.value.as_table().into_iter().flat_map(Table::entries) {
            refuse_hidden_key(document, &link.key, &entry.key, &entry.node)?;
        }
    }
    Ok(())
}

fn refuse_hidden_key(
    document: &Document,
    link: &str,
    key: &str,
    node: &Node,
) -> Result<(), ConfigError> {
    let own = |direction| KeyPath::of(["links", link, direction, key]);
    if ["down", "up"].iter().any(|direction| document.get(&own(direction)).is_none()) {
        return Ok(());
    }
    let message = format!("acts on nothing: both directions have a `{key}` of their own");
    let hint = format!("change `{}` and `{}`, or take them out", own("down"), own("up"));
    Err(document.fault_at(node.span, &KeyPath::of(["links", link, key]), message, Some(hint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axes(sizes: &[usize]) -> Vec<Axis> {
        sizes
            .iter()
            .enumerate()
            .map(|(axis, &size)| Axis {
                name: format!("axis{axis}"),
                cases: (0..size)
                    .map(|case| Case { label: format!("{axis}:{case}"), changes: Vec::new() })
                    .collect(),
            })
            .collect()
    }

    #[test]
    fn the_last_axis_changes_fastest() {
        let axes = axes(&[2, 3]);
        let labels: Vec<String> = cross(&axes)
            .map(|cell| cell.iter().map(|case| case.label.as_str()).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(labels, ["0:0 1:0", "0:0 1:1", "0:0 1:2", "0:1 1:0", "0:1 1:1", "0:1 1:2"]);
        assert_eq!(cross(&[]).count(), 1);
    }

    #[test]
    fn several_cases_of_an_axis_can_be_left() {
        let axis = &axes(&[4])[0];
        let labels = |wanted: &str| -> Option<Vec<String>> {
            let cases = axis.only(wanted)?.cases;
            Some(cases.into_iter().map(|case| case.label).collect())
        };
        assert_eq!(labels("0:2"), Some(vec!["0:2".to_owned()]));
        assert_eq!(labels("0:3, 0:1"), Some(vec!["0:1".to_owned(), "0:3".to_owned()]));
        assert_eq!(labels("0:1,none"), None);
        assert_eq!(labels(""), None);
    }

    proptest! {
        #[test]
        fn there_are_as_many_cells_as_the_product_and_no_two_alike(
            sizes in proptest::collection::vec(1..5usize, 0..5),
        ) {
            let axes = axes(&sizes);
            let mut cells: Vec<Vec<String>> = cross(&axes)
                .map(|cell| cell.iter().map(|case| case.label.clone()).collect())
                .collect();
            prop_assert_eq!(Some(cells.len()), super::cells(&axes));
            cells.sort();
            cells.dedup();
            prop_assert_eq!(cells.len(), sizes.iter().product::<usize>());
        }
    }
}
