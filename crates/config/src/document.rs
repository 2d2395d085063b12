//! A parsed file, and positions in it.

use crate::read::{NodeReader, ReadFault};
use crate::tree::{Entry, Node, Span, Table, Value};
use crate::{ConfigError, KeyPath, syntax};
use serde::de::DeserializeOwned;

/// A parsed text that can be read as a type and changed, and whose values have positions.
#[derive(Debug, Clone)]
pub struct Document {
    texts: Vec<Text>,
    root: Node,
}

#[derive(Debug, Clone)]
struct Text {
    name: String,
    text: String,
}

impl Document {
    /// Parses `text`; errors call it `file_name`.
    ///
    /// # Errors
    /// When the text is not TOML.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, ConfigError> {
        let text = Text { name: file_name.to_owned(), text: text.to_owned() };
        let root = text.parse(0)?;
        Ok(Self { texts: vec![text], root })
    }

    /// Reads the whole document as a `T`.
    ///
    /// # Errors
    /// When it is not a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.read_at(&KeyPath::ROOT)
    }

    /// Reads what is at `path` as a `T`.
    ///
    /// # Errors
    /// When there is no value, or it is not a `T`.
    pub fn read_at<T: DeserializeOwned>(&self, path: &KeyPath) -> Result<T, ConfigError> {
        let Some(node) = self.get(path) else {
            return Err(self.fault(path, "nothing is written here", None));
        };
        T::deserialize(NodeReader(node)).map_err(|fault| self.read_error(path, fault))
    }

    /// The table at the root.
    pub fn root(&self) -> &Table {
        static EMPTY: Table = Table::EMPTY;
        self.root.value.as_table().unwrap_or(&EMPTY)
    }

    /// The value at `path`.
    pub fn get(&self, path: &KeyPath) -> Option<&Node> {
        self.follow(path)
            .filter(|(_, depth)| *depth == path.keys().len())
            .map(|(place, _)| place.node)
    }

    /// The line, from 1, on which `path` or the innermost table around it was written, if it was
    /// written in the file.
    pub fn locate(&self, path: &KeyPath) -> Option<u32> {
        let error = self.fault(path, String::new(), None);
        (error.line > 0).then_some(error.line)
    }

    /// An error about `path`, which need not exist: then the position is that of the innermost
    /// table that does.
    pub fn fault(
        &self,
        path: &KeyPath,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> ConfigError {
        let span = self.follow(path).map_or(self.root.span, |(place, _)| place.span);
        self.error(span, path, message.into(), hint)
    }

    /// Like [`Document::fault`], for a part of the value at `span`.
    pub fn fault_at(
        &self,
        span: Span,
        path: &KeyPath,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> ConfigError {
        self.error(span, path, message.into(), hint)
    }

    /// An error in `text`, which came from the option `name` and not from the file.
    pub fn option_fault(
        &self,
        name: &str,
        text: &str,
        message: impl Into<String>,
        hint: Option<&str>,
    ) -> ConfigError {
        let hint = hint.map(str::to_owned);
        ConfigError::at(name, text, 0, text.len(), None, message.into(), hint)
    }

    /// Parses another TOML text whose values are then put into this document with
    /// [`Document::set`]; errors in it are reported under `name`.
    ///
    /// # Errors
    /// When the text is not TOML.
    pub fn add_text(&mut self, name: &str, text: &str) -> Result<Table, ConfigError> {
        let text = Text { name: name.to_owned(), text: text.to_owned() };
        let root = text.parse(self.texts.len())?;
        self.texts.push(text);
        Ok(match root.value {
            Value::Table(table) => table,
            _ => Table::default(),
        })
    }

    /// Puts `node` at `path`, replacing an existing value; missing tables on the path are created.
    ///
    /// # Errors
    /// When a value on the path is not a table.
    pub fn set(&mut self, path: &KeyPath, node: Node) -> Result<(), ConfigError> {
        let span = node.span;
        let blocked = match self.follow(path) {
            Some((place, depth)) if depth < path.keys().len() => match &place.node.value {
                Value::Table(_) | Value::Array(_) if place.table_or_item(&path.keys()[depth]) => {
                    None
                }
                other => Some((depth, other.kind())),
            },
            _ => None,
        };
        if let Some((depth, kind)) = blocked {
            let there = KeyPath::of(path.keys()[..depth].iter().cloned());
            return Err(self.error(span, path, format!("`{there}` is {kind}, not a table"), None));
        }
        put(&mut self.root, path.keys(), node);
        Ok(())
    }

    /// Removes the value of the top-level `key` and returns it.
    pub fn take(&mut self, key: &str) -> Option<Node> {
        match &mut self.root.value {
            Value::Table(table) => table.remove(key),
            _ => None,
        }
    }

    /// Removes the value at `path`, below a table, and returns it.
    pub fn remove(&mut self, path: &KeyPath) -> Option<Node> {
        let (last, above) = path.keys().split_last()?;
        let table = above.iter().try_fold(&mut self.root, |node, key| match &mut node.value {
            Value::Table(table) => table.get_mut(key),
            Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
            _ => None,
        })?;
        match &mut table.value {
            Value::Table(table) => table.remove(last),
            _ => None,
        }
    }

    /// The innermost existing value on the path, and the number of keys that lead to it.
    fn follow(&self, path: &KeyPath) -> Option<(Place<'_>, usize)> {
        let mut place = Place { node: &self.root, span: self.root.span };
        for (depth, key) in path.keys().iter().enumerate() {
            place = match place.step(key) {
                Some(next) => next,
                None if depth == 0 => return None,
                None => return Some((place, depth)),
            };
        }
        Some((place, path.keys().len()))
    }

    fn read_error(&self, above: &KeyPath, fault: ReadFault) -> ConfigError {
        let below = fault.path();
        let path = KeyPath::of(above.keys().iter().chain(below.keys()).cloned());
        // A fault of a whole table has the position of its header, not of all its lines.
        let whole = self.get(&path).is_some_and(|node| Some(node.span) == fault.span);
        let span = match (fault.span, self.follow(&path)) {
            (Some(_), Some((place, _))) if whole && place.is_table() => place.span,
            (Some(span), _) => span,
            (None, place) => place.map_or(self.root.span, |(place, _)| place.span),
        };
        self.error(span, &path, fault.message, fault.hint)
    }

    fn error(
        &self,
        span: Span,
        path: &KeyPath,
        message: String,
        hint: Option<String>,
    ) -> ConfigError {
        let key = (!path.is_root()).then(|| path.to_string());
        let text = &self.texts[span.text.min(self.texts.len() - 1)];
        // The whole text is no position: such an error is about a missing value.
        let (start, end) = if span == self.root.span { (0, 0) } else { (span.start, span.end) };
        ConfigError::at(&text.name, &text.text, start, end, key, message, hint)
    }
}

impl Text {
    fn parse(&self, number: usize) -> Result<Node, ConfigError> {
        syntax::parse(&self.text, number).map_err(|fault| {
            let (start, end) = (fault.span.start, fault.span.end);
            ConfigError::at(&self.name, &self.text, start, end, None, fault.message, None)
        })
    }
}

/// A value with its position for errors: that of its key where it is a table, otherwise its own.
struct Place<'d> {
    node: &'d Node,
    span: Span,
}

impl<'d> Place<'d> {
    fn step(&self, key: &str) -> Option<Self> {
        match &self.node.value {
            Value::Table(table) => table.entry(key).map(|Entry { key_span, node, .. }| {
                let span = if node.value.as_table().is_some() { *key_span } else { node.span };
                Self { node, span }
            }),
            Value::Array(items) => {
                let node = items.get(key.parse::<usize>().ok()?)?;
                Some(Self { node, span: node.span })
            }
            _ => None,
        }
    }

    fn is_table(&self) -> bool {
        self.node.value.as_table().is_some()
    }

    /// Whether `key` could be put below this place.
    fn table_or_item(&self, key: &str) -> bool {
        match &self.node.value {
            Value::Table(_) => true,
            Value::Array(items) => key.parse::<usize>().is_ok_and(|number| number < items.len()),
            _ => false,
        }
    }
}

fn put(place: &mut Node, keys: &[String], node: Node) {
    let Some((key, rest)) = keys.split_first() else {
        *place = node;
        return;
    };
    match &mut place.value {
        Value::Table(table) => {
            let span = node.span;
            let entry = table.entry_or(key, || Entry {
                key: key.clone(),
                key_span: span,
                node: Node { value: Value::Table(Table::default()), span },
            });
            entry.key_span = if rest.is_empty() { span } else { entry.key_span };
            put(&mut entry.node, rest, node);
        }
        Value::Array(items) => {
            if let Some(item) = key.parse::<usize>().ok().and_then(|number| items.get_mut(number)) {
                put(item, rest, node);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_is_gone_and_its_neighbours_stay_where_they_were() {
        let text = "[a.b]\nc = 1\nd = { e = 2, f = 3 }\n[[list]]\ng = 4\nh = 5\n";
        let mut document = Document::parse("a.toml", text).expect("TOML");
        let at = |keys: &str| keys.parse::<KeyPath>().expect("a key");
        for (path, there) in [("a.b.d.e", true), ("list.0.g", true), ("a.b.d.e", false)] {
            assert_eq!(document.remove(&at(path)).is_some(), there, "{path}");
            assert!(document.get(&at(path)).is_none(), "{path}");
        }
        for path in ["list.1.g", "list.x", "a.b.c.z", "none", "a.none.c"] {
            assert_eq!(document.remove(&at(path)), None, "{path}");
        }
        assert_eq!(document.remove(&KeyPath::ROOT), None);
        for (path, line) in [("a.b.c", 2), ("a.b.d.f", 3), ("list.0.h", 6)] {
            assert!(document.get(&at(path)).is_some(), "{path}");
            assert_eq!(document.locate(&at(path)), Some(line), "{path}");
        }
    }
}
