//! The complete messages for mistakes.

use insta::assert_snapshot;
use midhop_config::{ConfigError, Document, KeyPath, read_str};
use midhop_units::{Duration, Rate};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only reading is tested")]
struct File {
    title: String,
    #[serde(default)]
    seeds: u32,
    #[serde(default)]
    general: General,
    #[serde(default)]
    links: BTreeMap<String, Link>,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct General {
    interfaces: Vec<String>,
    verbose: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "mostly reading is tested")]
struct Link {
    between: [String; 2],
    rate: Option<Rate>,
    delay: Option<Duration>,
    queue: Option<Queue>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[expect(dead_code, reason = "only reading is tested")]
enum Queue {
    DropTail { packets: u32 },
    Codel,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only reading is tested")]
struct Rule {
    action: Action,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Split,
    Bypass,
}

/// The output for `text`: the error, then its hint.
fn printed(text: &str) -> String {
    let error: ConfigError = read_str::<File>("lab.toml", text).expect_err("it is wrong");
    match &error.hint {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

/// The same for each of some texts.
fn all_printed(texts: &[&str]) -> String {
    texts.iter().map(|text| printed(text)).collect::<Vec<_>>().join("\n\n")
}

#[test]
fn unknown_key_at_the_top() {
    assert_snapshot!(printed("title = \"x\"\nsedes = 3\n"));
}

#[test]
fn unknown_key_in_a_nested_table() {
    assert_snapshot!(printed("title = \"x\"\n[general]\n\tverbos = true\n"));
}

#[test]
fn unknown_key_in_an_array_of_tables() {
    assert_snapshot!(printed(
        "title = \"x\"\n[[rules]]\naction = \"split\"\n[[rules]]\naktion = \"split\"\n"
    ));
}

#[test]
fn unknown_key_in_a_table_keyed_by_names() {
    assert_snapshot!(printed(
        "title = \"x\"\nlinks.sat = { between = [\"a\", \"b\"], dealy = \"1 ms\" }\n"
    ));
}

#[test]
fn wrong_type() {
    assert_snapshot!(all_printed(&[
        "title = \"x\"\n\n[general]\nverbose = \"yes\"",
        "title = \"x\"\nseeds = -1",
        "title = \"x\"\nlinks.sat = 5",
    ]));
}

#[test]
fn wrong_quantity() {
    assert_snapshot!(all_printed(&[
        "title = \"x\"\n[links.sat]\nbetween = [\"a\", \"b\"]\nrate = \"20 MB\"\n",
        "title = \"x\"\n[links.sat]\nbetween = [\"a\", \"b\"]\ndelay = 600\n",
    ]));
}

#[test]
fn wrong_number_of_values() {
    assert_snapshot!(printed("title = \"x\"\n[links.sat]\nbetween = [\"a\"]\n"));
}

#[test]
fn unknown_value() {
    assert_snapshot!(all_printed(&[
        "title = \"x\"\n[[rules]]\naction = \"bypas\"\n",
        "title = \"x\"\n[links.s]\nbetween = [\"a\", \"b\"]\nqueue = { drop-tail = { packet = 5 } }\n",
        "title = \"x\"\n[links.s]\nbetween = [\"a\", \"b\"]\nqueue = 7\n",
    ]));
}

#[test]
fn syntax() {
    assert_snapshot!(all_printed(&["title = \"x\n[links]", "title = \"x\"\nseeds 3\n",]));
}

#[test]
fn duplicate_key() {
    assert_snapshot!(printed("title = \"x\"\nseeds = 1\nseeds = 2\n"));
}

#[test]
fn missing_key() {
    assert_snapshot!(all_printed(&[
        "seeds = 1\n",
        "title = \"x\"\n[links.lan]\nbetween = [\"a\", \"b\"]\n[links.sat]\nrate = \"1 Mbit/s\"\n",
    ]));
}

#[test]
fn a_check_made_later_points_at_its_key() {
    let text = "title = \"x\"\n[links.sat]\nbetween = [\"a\", \"b\"]\n";
    let document = Document::parse("lab.toml", text).expect("it is TOML");
    let path = |text: &str| text.parse::<KeyPath>().expect("a dotted key");
    let error = document.fault(&path("links.sat.between.1"), "no node is called `b`", None);
    assert_eq!(
        error.to_string(),
        "lab.toml:3:17: links.sat.between.1: no node is called `b`\n  |\n3 | between = [\"a\", \"b\"]\n  |                 ^^^"
    );
    assert_eq!(document.locate(&path("links.sat.between")), Some(3));
    assert_eq!(document.locate(&path("links.sat.delay")), Some(2));
    assert_eq!(document.locate(&path("links")), Some(2));
}

#[test]
fn a_part_is_read_with_the_keys_of_the_whole() {
    let text = "a = 1\n[links.sat]\nbetween = [\"a\", \"b\"]\n[links.net]\nbetwen = 1\n";
    let document = Document::parse("lab.toml", text).expect("it is TOML");
    let read = |path: &str| document.read_at::<Link>(&path.parse().expect("a dotted key"));
    assert_eq!(read("links.sat").expect("it is a link").between, ["a", "b"]);
    let error = read("links.net").expect_err("it is none");
    assert_eq!((error.line, error.key.as_deref()), (5, Some("links.net.betwen")));
    let error = read("links.lan").expect_err("it is not there");
    assert_eq!(
        error.to_string().lines().next(),
        Some("lab.toml:2:2: links.lan: nothing is written here")
    );
}

#[test]
fn a_value_put_in_is_reported_where_it_came_from() {
    let text = "title = \"x\"\n[links.sat]\nbetween = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\n";
    let mut document = Document::parse("lab.toml", text).expect("it is TOML");
    let path: KeyPath = "links.sat.rate".parse().expect("a dotted key");
    let table = document.add_text("--set", "links.sat.rate = \"fast\"").expect("it is TOML");
    let node = table.at(&path).expect("it was just written").clone();
    document.set(&path, node.clone()).expect("there is a table");
    let error = document.read::<File>().expect_err("fast is no rate");
    assert_eq!((error.file.as_str(), error.line, error.column), ("--set", 1, 18));
    let error = document.set(&"title.x".parse().expect("a key"), node).expect_err("no table");
    assert_eq!(error.message, "`title` is a string, not a table");
}
