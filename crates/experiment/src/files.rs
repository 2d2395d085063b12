//! Files beside a scenario from which its links take text.
//!
//! A key that ends in `_file` names a file; this crate opens none. The reader of a scenario asks
//! for the names ([`crate::Scenario::files`]) and supplies the texts ([`crate::Scenario::supply`]).
//! A text is put under the key without `_file`, before the links are read.

use crate::plan::{Direction, PlannedLink};
use midhop_config::tree::{Node, Span, Value};
use midhop_config::{ConfigError, Document, KeyPath};
use midhop_path::{delay::LinkDelay, rate::LinkRate};
use midhop_units::Duration;
use std::collections::BTreeMap;

/// The keys that name a file, and those that hold its text.
const KEYS: [(&str, &str); 5] = [
    ("tle_file", "tle"),
    ("isls_file", "isls"),
    ("mahimahi_file", "mahimahi"),
    ("csv_file", "csv"),
    ("recorded_file", "recorded"),
];

/// A file that a scenario names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamedFile {
    /// The key under which its text belongs.
    key: KeyPath,
    /// Its name as written.
    pub(crate) name: String,
    span: Span,
}

/// The files that the links of a document name.
pub(crate) fn named(document: &Document) -> Vec<NamedFile> {
    let mut found = Vec::new();
    let path = KeyPath::of(["links"]);
    if let Some(links) = document.get(&path) {
        search(links, &path, &mut found);
    }
    found
}

fn search(node: &Node, path: &KeyPath, found: &mut Vec<NamedFile>) {
    let Value::Table(table) = &node.value else { return };
    for entry in table.entries() {
        let key = KEYS.iter().find(|(file, _)| *file == entry.key);
        match (key, &entry.node.value) {
            (Some((_, text)), Value::String(name)) => found.push(NamedFile {
                key: path.join(*text),
                name: name.clone(),
                span: entry.node.span,
            }),
            _ => search(&entry.node, &path.join(entry.key.as_str()), found),
        }
    }
}

/// Puts the texts of files in their places. A missing file is left out: the reader of its key
/// reports it.
///
/// # Errors
/// When another value is in the place of a text.
pub(crate) fn put(
    document: &mut Document,
    texts: &BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    for file in named(document) {
        if let Some(text) = texts.get(&file.name) {
            let value = Value::String(text.clone());
            document.set(&file.key, Node { value, span: file.span })?;
        }
    }
    Ok(())
}

/// Refuses a link whose recording may end before a run of this `duration` does: only the scenario
/// can say that it should repeat.
///
/// # Errors
/// When there is such a link.
pub(crate) fn check_length(
    document: &Document,
    links: &[PlannedLink],
    duration: Duration,
) -> Result<(), ConfigError> {
    for link in links {
        let whole = KeyPath::of(["links", link.name.as_str()]);
        for direction in [Direction::Down, Direction::Up] {
            let plan = link.direction(direction);
            let rate = match &plan.rate {
                LinkRate::Trace(trace) => trace.repeat,
                _ => None,
            };
            let delay = match &plan.delay {
                LinkDelay::Trace(trace) => trace.repeat,
                LinkDelay::Constant(_) => None,
            };
            for (quantity, length) in [("rate", rate), ("delay", delay)] {
                let own = whole.join(direction.name()).join(quantity);
                let shared = whole.join(quantity);
                let at = if document.get(&own).is_some() { own } else { shared };
                let written = |key: &str| document.get(&at.join(key)).is_some();
                let recorded = written("recorded") && !written("repeat");
                let Some(length) = length.filter(|length| recorded && *length < duration) else {
                    continue;
                };
                let message = format!("this recording lasts {length}, a run up to {duration}");
                let hint = format!(
                    "make `duration` shorter, or write `repeat = \"{length}\"` beside it, \
                     which begins it again"
                );
                return Err(document.fault(&at, message, Some(hint)));
            }
        }
    }
    Ok(())
}
