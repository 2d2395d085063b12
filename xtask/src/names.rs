//! Names: each type name is unique in its crate, and no file uses another name for it; the map of
//! the code contains all crates; and few identifiers contain words that mean neither send nor
//! receive.
//!
//! Decision 0037.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The contents of `xtask/words.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    /// In lower case.
    words: BTreeSet<String>,
    /// How many identifiers of a crate's code still have one.
    crates: BTreeMap<String, usize>,
}

/// A file of a crate's code.
#[derive(Debug)]
pub struct Source<'a> {
    /// The crate's folder.
    pub krate: &'a str,
    /// Its path.
    pub path: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// Public types with the same name as another one of their crate.
pub fn twice(sources: &[Source<'_>]) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        for name in shipped(source.text).lines().filter_map(public_type) {
            places.entry((source.krate, name)).or_default().insert(source.path);
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    twice
        .map(|((krate, name), places)| {
            let places = Vec::from_iter(places).join(", ");
            format!("{krate} has more than one public type {name}: {places}")
        })
        .collect()
}

/// Our types that a file imports under another name.
pub fn aliases(source: &Source<'_>) -> Vec<String> {
    let uses = shipped(source.text).split(';').filter_map(|statement| {
        let (_, path) = statement.rsplit_once("use ")?;
        let own = ["crate::", "super::", "self::", "midhop"];
        own.iter().any(|own| path.starts_with(own)).then_some(path)
    });
    let names = uses.flat_map(|path| path.split([',', '{', '}'])).filter_map(|name| {
        let (of, other) = name.rsplit("::").next()?.trim().split_once(" as ")?;
        let is_type = |name: &str| name.starts_with(|first: char| first.is_uppercase());
        (is_type(of) && is_type(other)).then(|| format!("{}: {of} goes as {other}", source.path))
    });
    names.collect()
}

/// Crates that are missing in the map of `ARCHITECTURE.md`, and its lines without a crate.
pub fn map_faults(page: &str, crates: &BTreeSet<String>) -> Vec<String> {
    let rows = page.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let named: BTreeSet<String> = rows
        .map_while(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()))
        .collect();
    let lacks = crates.difference(&named).map(|it| format!("ARCHITECTURE.md does not name {it}"));
    let lost = named.difference(crates).map(|it| format!("ARCHITECTURE.md names a crate {it}"));
    lacks.chain(lost).collect()
}

/// Crates whose identifiers contain more of the words than allowed, or fewer, which then becomes
/// the limit.
pub fn word_faults(sources: &[Source<'_>], rule: &Words) -> Vec<String> {
    let mut found: BTreeMap<&str, usize> = rule.crates.keys().map(|it| (it.as_str(), 0)).collect();
    for source in sources {
        let code = source.text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let parts = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphabetic()));
        let count = parts.flat_map(pieces).filter(|it| rule.words.contains(it)).count();
        *found.entry(source.krate).or_default() += count;
    }
    let rule = |krate: &str| rule.crates.get(krate).copied().unwrap_or_default();
    let odd = found.into_iter().filter(|(krate, count)| *count != rule(krate));
    odd.map(|(krate, count)| {
        let allowed = rule(krate);
        let hint = if count > allowed { "send, receive, report?" } else { "write the new number" };
        format!("xtask/words.toml: {krate} has {count} of these words, for {allowed}: {hint}")
    })
    .collect()
}

/// The part of a file before its tests.
pub fn shipped(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// The type that a line declares, if it is public in its crate or beyond.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')')?.1,
        None => rest,
    };
    let kinds = [" struct ", " enum ", " trait ", " type ", " union "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// The words in an identifier, in lower case: `ToldTwice` has two.
fn pieces(letters: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    for letter in letters.chars() {
        match pieces.last_mut() {
            Some(last) if letter.is_ascii_lowercase() => String::push(last, letter),
            _ => pieces.push(letter.to_ascii_lowercase().to_string()),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source<'a>(path: &'a str, text: &'a str) -> Source<'a> {
        Source { krate: "one", path, text }
    }

    #[test]
    fn a_name_that_stands_twice_is_found() {
        let tests = "pub struct A;\n#[cfg(test)]\nmod tests {\n    pub enum B {}\n}\n";
        let all = [source("a.rs", tests), source("b.rs", "pub(super) enum B {}\nstruct A;\n")];
        assert!(twice(&all).is_empty(), "private ones and those of tests may have any name");
        let all =
            [source("a.rs", "pub(crate) type A<T> = T;\n"), source("b.rs", "  pub trait A {}\n")];
        assert_eq!(twice(&all), ["one has more than one public type A: a.rs, b.rs"]);
    }

    #[test]
    fn another_name_for_a_type_of_ours_is_found() {
        let text = "use crate::a::{\n    b::{C as D, e as f},\n    G,\n};\nuse std::fmt::Write as _;\nuse http::Request as Message;\n";
        assert_eq!(aliases(&source("a.rs", text)), ["a.rs: C goes as D"]);
        assert_eq!(aliases(&source("a.rs", "pub use midhop_a::A as B;\n")).len(), 1);
    }

    #[test]
    fn the_map_has_each_crate_once() {
        let page = "| crate | what |\n|---|---|\n| `a` | x |\n| `b` | x |\n\n| `c` | x |\n";
        let crates = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        assert!(map_faults(page, &crates(&["a", "b"])).is_empty());
        assert_eq!(map_faults(page, &crates(&["a", "d"])).len(), 2);
    }

    #[test]
    fn words_are_counted_in_identifiers() {
        let rule = r#"words = ["told", "say"]
            crates = { one = 2 }"#;
        let rule: Words = toml::from_str(rule).expect("a rule");
        let text = "fn poll_told(all: Told) {} // told what it is told\nfn essay() {}\n";
        assert!(word_faults(&[source("a.rs", text)], &rule).is_empty());
        let more = format!("{text}let say = 1;\n");
        assert!(word_faults(&[source("a.rs", &more)], &rule)[0].contains("send, receive"));
        assert!(word_faults(&[], &rule)[0].contains("the new number"));
    }
}
