//! Files beside a scenario that its links take text from.
//!
//! A key that ends in `_file` names one; this crate opens none. Whoever reads a scenario asks which are
//! named ([`crate::Scenario::files`]) and hands their text over ([`crate::Scenario::supply`]); it is put
//! under the key without `_file`, before anything is read as a link.

use midhop_config::tree::{Node, Span, Value};
use midhop_config::{ConfigError, Document, KeyPath};
use std::collections::BTreeMap;

/// The keys that name a file, and those that hold its text.
const KEYS: [(&str, &str); 4] = [
    ("tle_file", "tle"),
    ("isls_file", "isls"),
    ("mahimahi_file", "mahimahi"),
    ("csv_file", "csv"),
];

/// A file that a scenario names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamedFile {
    /// The key that its text belongs under.
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

/// Puts the texts of files where they belong. One that is not there is left out: its reader says so.
///
/// # Errors
/// When something stands in the way.
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
