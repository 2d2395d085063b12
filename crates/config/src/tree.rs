//! A document as a tree with the position of every key and value.
//!
//! Decision 0005.

use std::fmt;

/// A range of one of a document's texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// The text: 0 is the file, later ones were added with [`crate::Document::add_text`].
    pub text: usize,
    /// First byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it was written; for a table with a header, the header.
    pub span: Span,
}

/// The values of TOML. Dates and times are kept as text.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string, a date or a time.
    String(String),
    /// An integer.
    Integer(i64),
    /// A number.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// An array.
    Array(Vec<Node>),
    /// A table.
    Table(Table),
}

impl Value {
    /// The table, if it is one.
    pub fn as_table(&self) -> Option<&Table> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The kind of value, with its article.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Boolean(_) => "a boolean",
            Self::Array(_) => "an array",
            Self::Table(_) => "a table",
        }
    }
}

/// In the form of TOML on one line; a string alone has no quotes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(text) => f.write_str(text),
            nested => write_inline(nested, f),
        }
    }
}

fn write_inline(value: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value {
        Value::String(text) => write!(f, "{text:?}"),
        Value::Integer(number) => write!(f, "{number}"),
        Value::Float(number) => write!(f, "{number}"),
        Value::Boolean(truth) => write!(f, "{truth}"),
        Value::Array(items) => {
            f.write_str("[")?;
            for (position, item) in items.iter().enumerate() {
                f.write_str(if position > 0 { ", " } else { "" })?;
                write_inline(&item.value, f)?;
            }
            f.write_str("]")
        }
        Value::Table(table) => {
            f.write_str("{ ")?;
            for (position, entry) in table.entries().iter().enumerate() {
                f.write_str(if position > 0 { ", " } else { "" })?;
                write!(f, "{} = ", crate::KeyPath::of([entry.key.as_str()]))?;
                write_inline(&entry.node.value, f)?;
            }
            f.write_str(" }")
        }
    }
}

/// A table: its entries in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table(Vec<Entry>);

/// One line of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key was written.
    pub key_span: Span,
    /// Its value.
    pub node: Node,
}

impl Table {
    /// A table without entries.
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// The entries in their order.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|entry| entry.key.as_str())
    }

    /// The entry of `key`.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.key == key)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// The value of `key`, mutable.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.0.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
    }

    /// The value at `path` below this table.
    pub fn at(&self, path: &crate::KeyPath) -> Option<&Node> {
        let (first, rest) = path.keys().split_first()?;
        rest.iter().try_fold(self.get(first)?, |node, key| node.value.as_table()?.get(key))
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let position = self.0.iter().position(|entry| entry.key == key)?;
        Some(self.0.remove(position).node)
    }

    /// The entry of `key`; where there is none, one with the value of `absent` is appended.
    pub(crate) fn entry_or(&mut self, key: &str, absent: impl FnOnce() -> Entry) -> &mut Entry {
        let position = match self.0.iter().position(|entry| entry.key == key) {
            Some(position) => position,
            None => {
                self.0.push(absent());
                self.0.len() - 1
            }
        };
        &mut self.0[position]
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.0.push(entry);
    }
}
