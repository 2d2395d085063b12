//! The keys of a file as a page: every table of it, and for each key its values, its default and
//! its meaning.
//!
//! Everything comes from the JSON Schema of the types that read the file, and its texts from the
//! comments on those types. A table that occurs in several places is described in the first one.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

/// A table in a schema, with its heading.
struct Section<'a> {
    heading: String,
    table: &'a Map<String, Value>,
}

/// The page, below its title and an introduction.
///
/// # Panics
/// When the schema contains an unknown reference.
pub fn keys(title: &str, words: &str, schema: &Value) -> String {
    let mut page = format!("# {title}\n\n{words}\n");
    let root = schema.as_object().expect("a schema is an object");
    let schemas = Schemas { definitions: root.get("$defs").and_then(Value::as_object) };
    let mut waiting = VecDeque::from([Section { heading: String::new(), table: root }]);
    let mut headings: BTreeMap<*const Map<String, Value>, String> = BTreeMap::new();
    while let Some(section) = waiting.pop_front() {
        if !section.heading.is_empty() {
            let _ = write!(page, "\n## `{}`\n\n", section.heading);
            let _ = writeln!(page, "{}", text_of(section.table));
        }
        let Some(properties) = section.table.get("properties").and_then(Value::as_object) else {
            continue;
        };
        let _ = write!(page, "\n| key | takes | default | meaning |\n|---|---|---|---|\n");
        for (key, property) in properties {
            let own = property.as_object().expect("a property is a schema");
            let found = schemas.tables(own);
            for (suffix, table) in &found {
                headings.entry(std::ptr::from_ref(*table)).or_insert_with(|| {
                    let heading = under(&section.heading, key, suffix);
                    waiting.push_back(Section { heading: heading.clone(), table });
                    heading
                });
            }
            let places: Vec<&String> =
                found.iter().filter_map(|(_, it)| headings.get(&std::ptr::from_ref(*it))).collect();
            let _ = writeln!(
                page,
                "| `{key}` | {} | {} | {} |",
                cell(&schemas.takes(own, &places)),
                default_of(own, section.table, key),
                cell(&schemas.meaning(own)),
            );
        }
    }
    page
}

/// The heading of a table at a key of another table.
fn under(heading: &str, key: &str, suffix: &str) -> String {
    let inner = heading.trim_matches(['[', ']']);
    let path = if inner.is_empty() { key.to_owned() } else { format!("{inner}.{key}") };
    if suffix == LIST { format!("[[{path}]]") } else { format!("[{path}{suffix}]") }
}

/// Marks a table that is one of a list.
const LIST: &str = "[]";
/// Marks a table that has a name.
const NAMED: &str = ".NAME";

struct Schemas<'a> {
    definitions: Option<&'a Map<String, Value>>,
}

impl<'a> Schemas<'a> {
    /// The target of a reference; any other schema unchanged.
    fn follow(&self, schema: &'a Map<String, Value>) -> &'a Map<String, Value> {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return schema };
        let name = reference.strip_prefix("#/$defs/").expect("a reference within the schema");
        let found = self.definitions.and_then(|all| all.get(name)).and_then(Value::as_object);
        found.unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The alternative forms of a value, without the one for "not given".
    fn forms(&self, schema: &'a Map<String, Value>) -> Vec<&'a Map<String, Value>> {
        let schema = self.follow(schema);
        let many = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array);
        let Some(many) = many else { return vec![schema] };
        // These are forms of one text, which the surrounding schema describes.
        if schema.contains_key("title") && schema.contains_key("description") {
            return vec![schema];
        }
        let many = many.iter().filter_map(Value::as_object);
        let given = many.filter(|form| form.get("type").is_none_or(|kind| kind != "null"));
        given.flat_map(|form| self.forms(form)).collect()
    }

    /// The tables to which a value leads, and how.
    fn tables(
        &self,
        schema: &'a Map<String, Value>,
    ) -> Vec<(&'static str, &'a Map<String, Value>)> {
        let mut found = Vec::new();
        for form in self.forms(schema) {
            let inner = |key: &str| form.get(key).and_then(Value::as_object);
            if form.contains_key("properties") {
                found.push(("", form));
            } else if let Some(each) = inner("additionalProperties") {
                let each = self.forms(each).into_iter().filter(|it| it.contains_key("properties"));
                found.extend(each.map(|table| (NAMED, table)));
            } else if let Some(each) = inner("items") {
                let each = self.forms(each).into_iter().filter(|it| it.contains_key("properties"));
                found.extend(each.map(|table| (LIST, table)));
            }
        }
        // A value that may be one or a list is described as one.
        let mut seen: Vec<*const Map<String, Value>> = Vec::new();
        found.retain(|(_, table)| {
            let new = !seen.contains(&std::ptr::from_ref(*table));
            seen.push(std::ptr::from_ref(*table));
            new
        });
        found
    }

    /// The possible values.
    fn takes(&self, schema: &'a Map<String, Value>, places: &[&String]) -> String {
        let mut words: Vec<String> = Vec::new();
        for form in self.forms(schema) {
            // The description of the key itself is its meaning.
            let description =
                if std::ptr::eq(form, schema) { None } else { form.get("description") };
            let word = self.form(form, description.and_then(Value::as_str), places);
            let so_far = words.join(", or ");
            let list = word.strip_prefix("a list, each ").or(word.strip_prefix("a list of "));
            let listed = !so_far.is_empty() && list == Some(&so_far);
            let word = if listed { "a list of these".to_owned() } else { word };
            if !words.contains(&word) {
                words.push(word);
            }
        }
        let all_literals = words.iter().all(|word| word.starts_with('`'));
        words.join(if all_literals { ", " } else { ", or " })
    }

    /// The same for one form, which may have a `description`.
    fn form(
        &self,
        form: &'a Map<String, Value>,
        description: Option<&str>,
        places: &[&String],
    ) -> String {
        if let Some(literal) = form.get("const") {
            return code(literal);
        }
        if let Some(Value::Array(all)) = form.get("enum") {
            return all.iter().map(code).collect::<Vec<_>>().join(", ");
        }
        let kinds: Vec<&str> = match form.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(kind)) => vec![kind],
            _ => vec![],
        };
        let kind = kinds.into_iter().find(|kind| *kind != "null").unwrap_or_default();
        if form.contains_key("properties") || kind == "object" {
            let at: Vec<String> = places.iter().map(|place| link(place)).collect();
            return if at.is_empty() { "a table".to_owned() } else { at.join(", ") };
        }
        match kind {
            "array" => {
                if let Some(description) = description {
                    return description.to_owned();
                }
                let Some(items) = form.get("items").and_then(Value::as_object) else {
                    return "a list".to_owned();
                };
                if !places.is_empty()
                    && self.forms(items).iter().any(|it| it.contains_key("properties"))
                {
                    return format!("a list of {}", self.takes(items, places));
                }
                format!("a list, each {}", self.takes(items, &[]))
            }
            "boolean" => "`true`, `false`".to_owned(),
            "integer" if description.is_none() => "a whole number".to_owned(),
            "number" if description.is_none() => "a number".to_owned(),
            _ => description.map_or("text".to_owned(), begun_small),
        }
    }

    /// The meaning of a key, and of each of its words.
    fn meaning(&self, schema: &'a Map<String, Value>) -> String {
        let mut meaning = text_of(schema);
        for form in self.forms(schema) {
            if let Some(literal) = form.get("const") {
                let description = text_of(form);
                if !description.is_empty() {
                    let _ = write!(meaning, "<br>{}: {description}", code(literal));
                }
            }
        }
        meaning
    }
}

/// Text in the form for the middle of a sentence: `A port` becomes "a port", `IPv4` stays.
fn begun_small(words: &str) -> String {
    let (article, rest) = words.split_once(' ').unwrap_or((words, ""));
    if matches!(article, "A" | "An" | "The") {
        format!("{} {rest}", article.to_lowercase())
    } else {
        words.to_owned()
    }
}

fn link(heading: &str) -> String {
    let anchor: String = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == '_' || *c == '-')
        .flat_map(char::to_lowercase)
        .collect();
    format!("[`{heading}`](#{anchor})")
}

fn code(value: &Value) -> String {
    format!("`{value}`")
}

/// The value that is used where a key is left out.
fn default_of(own: &Map<String, Value>, table: &Map<String, Value>, key: &str) -> String {
    let required = table.get("required").and_then(Value::as_array);
    if required.is_some_and(|keys| keys.iter().any(|it| it == key)) {
        return "must be given".to_owned();
    }
    match own.get("default") {
        None | Some(Value::Null | Value::Object(_)) => String::new(),
        Some(Value::Array(all)) if all.is_empty() => String::new(),
        Some(value) => code(value),
    }
}

/// The text of a schema, with links into the code replaced by their words.
fn text_of(schema: &Map<String, Value>) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    text.replace("[`", "`").replace("`]", "`")
}

/// Text in the form for a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_of_tables_are_headed_by_their_paths() {
        let schema = json!({
            "type": "object",
            "required": ["title"],
            "properties": {
                "title": { "type": "string", "description": "In a line." },
                "mode": { "description": "How.", "oneOf": [
                    { "const": "a", "description": "At once." }, { "const": "b" }], "default": "a" },
                "legs": { "type": "object", "additionalProperties": { "$ref": "#/$defs/Leg" } },
                "rules": { "type": "array", "items": { "$ref": "#/$defs/Rule" } },
                "spare": { "anyOf": [{ "$ref": "#/$defs/Leg" }, { "type": "null" }] }
            },
            "$defs": {
                "Leg": { "type": "object", "description": "A side.",
                    "properties": { "on": { "type": ["boolean", "null"], "default": true } } },
                "Rule": { "type": "object", "properties": { "leg": { "$ref": "#/$defs/Leg" } } }
            }
        });
        let page = keys("A file", "Some words.", &schema);
        let lines: Vec<&str> = page.lines().collect();
        for line in [
            "# A file",
            "| `title` | text | must be given | In a line. |",
            "| `mode` | `\"a\"`, `\"b\"` | `\"a\"` | How.<br>`\"a\"`: At once. |",
            "| `legs` | [`[legs.NAME]`](#legsname) |  |  |",
            "| `rules` | a list of [`[[rules]]`](#rules) |  |  |",
            "| `spare` | [`[legs.NAME]`](#legsname) |  |  |",
            "## `[legs.NAME]`",
            "A side.",
            "| `on` | `true`, `false` | `true` |  |",
            "## `[[rules]]`",
            "| `leg` | [`[legs.NAME]`](#legsname) |  |  |",
        ] {
            assert!(lines.contains(&line), "{line} is not in\n{page}");
        }
        assert_eq!(page.matches("## `").count(), 2, "a table is described once");
    }

    #[test]
    fn a_cell_holds_no_bar_and_no_line() {
        assert_eq!(cell("a |\n b"), "a \\| b");
    }
}
