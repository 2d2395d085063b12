//! What somebody who made a mistake gets to read, word for word.

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

/// What is printed for `text`: the error, then its hint.
fn printed(text: &str) -> String {
    let error: ConfigError = read_str::<File>("lab.toml", text).expect_err("it is wrong");
    match &error.hint {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

#[track_caller]
fn check(text: &str, expected: &str) {
    let got = printed(text);
    assert!(got == expected.trim_matches('\n'), "got:\n{got}\n\nexpected:{expected}");
}

#[test]
fn unknown_key_at_the_top() {
    check(
        "title = \"x\"\nsedes = 3\n",
        r"
lab.toml:2:1: sedes: unknown key
  |
2 | sedes = 3
  | ^^^^^
hint: did you mean `seeds`? (known keys: `title`, `seeds`, `general`, `links`, `rules`)
",
    );
}

#[test]
fn unknown_key_in_a_nested_table() {
    check(
        "title = \"x\"\n[general]\n\tverbos = true\n",
        "
lab.toml:3:2: general.verbos: unknown key
  |
3 | \tverbos = true
  | \t^^^^^^
hint: did you mean `verbose`? (known keys: `interfaces`, `verbose`)
",
    );
}

#[test]
fn unknown_key_in_an_array_of_tables() {
    check(
        "title = \"x\"\n[[rules]]\naction = \"split\"\n[[rules]]\naktion = \"split\"\n",
        r"
lab.toml:5:1: rules.1.aktion: unknown key
  |
5 | aktion = 'split'
  | ^^^^^^
hint: did you mean `action`?
"
        .replace('\'', "\"")
        .as_str(),
    );
}

#[test]
fn unknown_key_in_a_table_keyed_by_names() {
    check(
        "title = \"x\"\nlinks.sat = { between = [\"a\", \"b\"], dealy = \"1 ms\" }\n",
        r#"
lab.toml:2:37: links.sat.dealy: unknown key
  |
2 | links.sat = { between = ["a", "b"], dealy = "1 ms" }
  |                                     ^^^^^
hint: did you mean `delay`? (known keys: `between`, `rate`, `delay`, `queue`)
"#,
    );
}

#[test]
fn wrong_type() {
    check(
        "title = \"x\"\n\n[general]\nverbose = \"yes\"",
        r#"
lab.toml:4:11: general.verbose: expected true or false, found the string "yes"
  |
4 | verbose = "yes"
  |           ^^^^^
"#,
    );
    check(
        "title = \"x\"\nseeds = -1",
        r"
lab.toml:2:9: seeds: expected a whole number from 0 to 4294967295, found the number -1
  |
2 | seeds = -1
  |         ^^
",
    );
    check(
        "title = \"x\"\nlinks.sat = 5",
        r"
lab.toml:2:13: links.sat: expected a table, found the number 5
  |
2 | links.sat = 5
  |             ^
",
    );
}

#[test]
fn wrong_quantity() {
    check(
        "title = \"x\"\n[links.sat]\nbetween = [\"a\", \"b\"]\nrate = \"20 MB\"\n",
        r#"
lab.toml:4:8: links.sat.rate: "20 MB" is not a rate such as "20 Mbit/s" (bit/s, kbit/s, Mbit/s, Gbit/s)
  |
4 | rate = "20 MB"
  |        ^^^^^^^
"#,
    );
    check(
        "title = \"x\"\n[links.sat]\nbetween = [\"a\", \"b\"]\ndelay = 600\n",
        r#"
lab.toml:4:9: links.sat.delay: expected a time such as "600 ms" (ns, us, ms, s, min, h), found the number 600
  |
4 | delay = 600
  |         ^^^
"#,
    );
}

#[test]
fn wrong_number_of_values() {
    check(
        "title = \"x\"\n[links.sat]\nbetween = [\"a\"]\n",
        r#"
lab.toml:3:11: links.sat.between: expected an array of length 2, found 1 values
  |
3 | between = ["a"]
  |           ^^^^^
"#,
    );
}

#[test]
fn unknown_value() {
    check(
        "title = \"x\"\n[[rules]]\naction = \"bypas\"\n",
        r#"
lab.toml:3:10: rules.0.action: unknown value "bypas"
  |
3 | action = "bypas"
  |          ^^^^^^^
hint: did you mean `bypass`? (known values: `split`, `bypass`)
"#,
    );
    check(
        "title = \"x\"\n[links.s]\nbetween = [\"a\", \"b\"]\nqueue = { drop-tail = { packet = 5 } }\n",
        r"
lab.toml:4:25: links.s.queue.drop-tail.packet: unknown key
  |
4 | queue = { drop-tail = { packet = 5 } }
  |                         ^^^^^^
hint: did you mean `packets`?
",
    );
    check(
        "title = \"x\"\n[links.s]\nbetween = [\"a\", \"b\"]\nqueue = 7\n",
        r"
lab.toml:4:9: links.s.queue: expected one of `drop-tail`, `codel`, found a whole number
  |
4 | queue = 7
  |         ^
",
    );
}

#[test]
fn syntax() {
    check(
        "title = \"x\n[links]",
        r#"
lab.toml:1:11: invalid basic string, expected `"`
  |
1 | title = "x
  |           ^
"#,
    );
    check(
        "title = \"x\"\nseeds 3\n",
        r"
lab.toml:2:7: key with no value, expected `=`
  |
2 | seeds 3
  |       ^
",
    );
}

#[test]
fn duplicate_key() {
    check(
        "title = \"x\"\nseeds = 1\nseeds = 2\n",
        r"
lab.toml:3:1: duplicate key
  |
3 | seeds = 2
  | ^^^^^
",
    );
}

#[test]
fn missing_key() {
    check(
        "seeds = 1\n",
        r"
lab.toml:1:1: key `title` is missing
  |
1 | seeds = 1
  | ^
",
    );
    check(
        "title = \"x\"\n[links.lan]\nbetween = [\"a\", \"b\"]\n[links.sat]\nrate = \"1 Mbit/s\"\n",
        r"
lab.toml:4:8: links.sat: key `between` is missing
  |
4 | [links.sat]
  |        ^^^
",
    );
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
