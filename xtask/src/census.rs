//! The size of each crate, without its tests: to compare two commits.
//!
//! Decision 0073.

use crate::circles;
use crate::names::{Source, shipped};
use crate::tidy::{Code, tracked};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// What a crate has, without tests.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Size {
    files: usize,
    /// With comments and empty lines.
    lines: usize,
    /// Declarations with a bare `pub`.
    public_items: usize,
    /// Circles of files.
    circles: usize,
    /// Files of the largest circle.
    largest_circle: usize,
}

/// A table of the crates of a checkout, or JSON.
pub fn text(root: &Path, json: bool) -> anyhow::Result<String> {
    let code = Code::read(root, &tracked(root)?);
    let sizes = sizes(&code.shipped());
    if json {
        return Ok(serde_json::to_string_pretty(&sizes)? + "\n");
    }
    let mut text = String::from("crate          files   lines  public items  circles  largest\n");
    let mut all = Size::default();
    let mut line = |name: &str, size: &Size| {
        let Size { files, lines, public_items, circles, largest_circle } = size;
        let _ = writeln!(
            text,
            "{name:13}  {files:5}  {lines:6}  {public_items:12}  {circles:7}  {largest_circle:7}"
        );
    };
    for (krate, size) in &sizes {
        line(krate, size);
        all.files += size.files;
        all.lines += size.lines;
        all.public_items += size.public_items;
        all.circles += size.circles;
        all.largest_circle = all.largest_circle.max(size.largest_circle);
    }
    line("all", &all);
    Ok(text)
}

fn sizes<'a>(sources: &[Source<'a>]) -> BTreeMap<&'a str, Size> {
    let mut sizes: BTreeMap<&str, Size> = BTreeMap::new();
    for source in sources {
        let size = sizes.entry(source.krate).or_default();
        let text = shipped(source.text);
        size.files += 1;
        size.lines += text.lines().count();
        size.public_items += text.lines().filter(|line| is_public_item(line)).count();
    }
    for (krate, circles) in circles::of_crates(sources) {
        let size = sizes.entry(krate).or_default();
        size.circles = circles.len();
        size.largest_circle = circles.iter().map(|circle| circle.len()).max().unwrap_or_default();
    }
    sizes
}

/// Whether a line declares an item for other crates. Fields are no items.
fn is_public_item(line: &str) -> bool {
    const KINDS: [&str; 12] = [
        "async", "const", "enum", "extern", "fn", "macro", "mod", "static", "struct", "trait",
        "type", "unsafe",
    ];
    let rest = line.trim_start().strip_prefix("pub ");
    rest.and_then(|rest| rest.split(' ').next()).is_some_and(|word| KINDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_counted_without_its_tests() {
        let one = "//! One.\nuse crate::two::B;\n\npub struct A {\n    pub b: B,\n}\n#[cfg(test)]\nmod tests {\n    pub fn c() {}\n}\n";
        let two = "//! Two.\nuse crate::one::A;\npub(crate) fn d() {}\npub async fn e() {}\n";
        let source = |path, text| Source { krate: "a", path, text };
        let sources = [source("crates/a/src/one.rs", one), source("crates/a/src/two.rs", two)];
        let size = Size { files: 2, lines: 10, public_items: 2, circles: 1, largest_circle: 2 };
        assert_eq!(sizes(&sources), BTreeMap::from([("a", size)]));
    }
}
