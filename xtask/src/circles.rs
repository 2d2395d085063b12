//! Circles of files: files of a crate of which each depends on the others.
//!
//! A file depends on another where it names an item of it by `crate::`, `super::` or `self::`. A
//! crate's root, which declares all modules, is not counted, nor are tests. A circle has to be read
//! as one file, so none may be large. A file that names its own modules by their bare names counts as
//! above them, and not as in a circle with them.

use crate::names::{Source, shipped};
use std::collections::{BTreeMap, BTreeSet};

/// The most files that a circle may have.
const FILES_MAX: usize = 6;

type Module = Vec<String>;

/// One sentence for each circle that is too large.
pub fn faults(sources: &[Source<'_>]) -> Vec<String> {
    let crates = of_crates(sources).into_iter();
    let all = crates.flat_map(|(krate, circles)| circles.into_iter().map(move |it| (krate, it)));
    let large = all.filter(|(_, circle)| circle.len() > FILES_MAX);
    large
        .map(|(krate, circle)| {
            let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            let (count, names) = (names.len(), names.join(", "));
            format!("{krate} has a circle of {count} files, {FILES_MAX} may be: {names}")
        })
        .collect()
}

/// The circles of each crate, with the files of each.
pub fn of_crates<'a>(sources: &[Source<'a>]) -> BTreeMap<&'a str, Vec<BTreeSet<Vec<String>>>> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, &str>> = BTreeMap::new();
    for source in sources {
        if let Some(module) = module(source.path) {
            crates.entry(source.krate).or_default().insert(module, source.text);
        }
    }
    crates.into_iter().map(|(krate, files)| (krate, circles(&files))).collect()
}

/// The module of a file; none for a root and for tests.
fn module(path: &str) -> Option<Module> {
    let inside = path.split_once("/src/")?.1.strip_suffix(".rs")?;
    let mut parts: Module = inside.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    let name = parts.last()?;
    let is_root = parts.len() == 1 && ["lib", "main"].contains(&name.as_str());
    let is_test = parts.iter().any(|part| part == "tests") || parts[0] == "bin";
    (!is_root && !is_test).then_some(parts)
}

fn circles(files: &BTreeMap<Module, &str>) -> Vec<BTreeSet<Module>> {
    let needs: BTreeMap<&Module, BTreeSet<Module>> =
        files.iter().map(|(module, text)| (module, needed(module, text, files))).collect();
    let reached: BTreeMap<&Module, BTreeSet<Module>> = files
        .keys()
        .map(|module| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![module.clone()]);
            while let Some(module) = next.pop() {
                next.extend(
                    needs[&module].iter().filter(|it| reached.insert((*it).clone())).cloned(),
                );
            }
            (module, reached)
        })
        .collect();
    let circles: BTreeSet<BTreeSet<Module>> = files
        .keys()
        .map(|module| {
            reached[module].iter().filter(|it| reached[it].contains(module)).cloned().collect()
        })
        .collect();
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The files of which a module names items.
fn needed(module: &Module, text: &str, files: &BTreeMap<Module, &str>) -> BTreeSet<Module> {
    let code = shipped(text).lines().map(|line| line.split("//").next().unwrap_or_default());
    let code: Vec<&str> = code.collect();
    let mut needed = BTreeSet::new();
    for path in paths(&code.join("\n")) {
        let parts: Vec<&str> = path.split("::").collect();
        let mut absolute = match parts[0] {
            "crate" => Module::new(),
            "self" => module.clone(),
            _ => module[..module.len() - 1].to_vec(),
        };
        for part in &parts[1..] {
            match *part {
                "super" => drop(absolute.pop()),
                part => absolute.push(part.to_owned()),
            }
        }
        // The last part of the path is an item in a file, or a file itself.
        while !absolute.is_empty() && !files.contains_key(&absolute) {
            absolute.pop();
        }
        if !absolute.is_empty() && absolute != *module {
            needed.insert(absolute);
        }
    }
    needed
}

/// The paths within the crate that code names, those in braces written out.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| is_word(c) || c == ':') {
                continue;
            }
            let end =
                code[at..].find(|c: char| !is_word(c) && c != ':').map_or(code.len(), |it| at + it);
            let head = code[at..end].trim_end_matches("::");
            match code[end..].strip_prefix('{').filter(|_| code[..end].ends_with("::")) {
                Some(rest) => {
                    expand(head, rest, &mut paths);
                }
                None => paths.push(head.to_owned()),
            }
        }
    }
    paths
}

/// Expands the braces behind `head`; returns the text after them.
fn expand<'c>(head: &str, inside: &'c str, paths: &mut Vec<String>) -> &'c str {
    let mut rest = inside;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if let Some(after) = rest.strip_prefix('}') {
            return after;
        }
        let end = rest.find([',', '{', '}']).unwrap_or(rest.len());
        let word = rest[..end].trim();
        let name = word.split(" as ").next().unwrap_or_default().trim_end_matches("::");
        let path = if name.is_empty() { head.to_owned() } else { format!("{head}::{name}") };
        rest = &rest[end..];
        match rest.strip_prefix('{') {
            Some(inner) => rest = expand(&path, inner, paths),
            None if name.is_empty() => return "",
            None => paths.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&'static str, &'static str)]) -> Vec<BTreeSet<Module>> {
        let files = files.iter().filter_map(|(path, text)| Some((module(path)?, *text)));
        circles(&files.collect())
    }

    #[test]
    fn files_that_need_each_other_are_found_by_any_path_they_name() {
        let two = [
            ("crates/a/src/lib.rs", "mod one; mod two;"),
            ("crates/a/src/one.rs", "use crate::two::{self, inner::{Deep, Deeper as Other}};"),
            ("crates/a/src/two.rs", "fn f() { super::one::g(); }"),
            ("crates/a/src/two/inner.rs", "use std::fmt;"),
        ];
        let circle = BTreeSet::from([vec!["one".to_owned()], vec!["two".to_owned()]]);
        assert_eq!(found(&two), [circle]);
    }

    #[test]
    fn tests_comments_and_roots_need_nobody() {
        let none = [
            ("crates/a/src/one.rs", "use crate::two::Two;"),
            (
                "crates/a/src/two.rs",
                "// crate::one\n#[cfg(test)]\nmod tests {\n use crate::one::One;\n}",
            ),
            ("crates/a/src/two/tests.rs", "use crate::one::One;"),
        ];
        assert_eq!(found(&none), []);
    }

    #[test]
    fn paths_in_braces_are_written_out() {
        let code =
            "use crate::{a::B, c::{D, self}};\nlet x = super::super::e::F::new(); mycrate::g();";
        let paths = paths(code);
        assert_eq!(
            paths,
            ["crate::a::B", "crate::c::D", "crate::c::self", "super::super::e::F::new"]
        );
    }

    #[test]
    fn a_large_circle_is_a_fault() {
        let texts: Vec<(String, String)> = (0..7)
            .map(|n| (format!("crates/a/src/m{n}.rs"), format!("use crate::m{}::X;", (n + 1) % 7)))
            .collect();
        let source = |(path, text): &'static (String, String)| Source { krate: "a", path, text };
        let texts: &'static [(String, String)] = texts.leak();
        let sources: Vec<Source<'_>> = texts.iter().map(source).collect();
        assert!(faults(&sources)[0].starts_with("a has a circle of 7 files, 6 may be: m0, m1"));
        assert_eq!(faults(&sources[..6]), [""; 0]);
    }
}
