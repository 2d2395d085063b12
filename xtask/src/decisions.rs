//! Decisions: each record in `docs/decisions` is named by a file that follows it, and each decision that a file names
//! has a record.
//!
//! A file names a decision by the word and its number, as the header of [`crate::names`] does, or by the path of its
//! record.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The folder of the records. Source: CONTRIBUTING.md.
const RECORDS: &str = "docs/decisions/";
/// The file of the exceptions.
const EXCEPTIONS: &str = "xtask/decisions.toml";
/// Unit: digits.
const LENGTH: usize = 4;

/// The contents of `xtask/decisions.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decisions {
    /// Numbers of records that no file names, and why.
    unnamed: BTreeMap<String, String>,
}

impl Decisions {
    /// One sentence for each record that neither a file nor the list of exceptions names, for each exception that is
    /// none, and for each named decision without a record. `files` are the files under version control; `text`
    /// returns the text of one.
    pub fn faults(&self, files: &[String], text: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let mut faults = Vec::new();
        let records: BTreeSet<&str> = files.iter().filter_map(|file| record(file)).collect();
        let mut followers: BTreeMap<String, &str> = BTreeMap::new();
        for file in files {
            let Some(text) = text(file) else { continue };
            for number in numbers(&text) {
                if !records.contains(number) {
                    faults.push(format!("{file} names decision {number}, which does not exist"));
                } else if may_follow(file) {
                    followers.entry(number.to_owned()).or_insert(file);
                }
            }
        }
        for number in records.iter().copied() {
            let (follower, why) = (followers.get(number), self.unnamed.get(number));
            faults.extend(match (follower, why) {
                (None, None) => Some(format!(
                    "no file names decision {number}: name it where it is followed, or say in {EXCEPTIONS} why not"
                )),
                (Some(file), Some(_)) => Some(format!("{EXCEPTIONS}: {file} names {number}")),
                (None, Some(why)) if why.is_empty() => {
                    Some(format!("{EXCEPTIONS} does not say why no file names {number}"))
                }
                _ => None,
            });
        }
        let lost = self.unnamed.keys().filter(|number| !records.contains(number.as_str()));
        faults.extend(lost.map(|number| format!("{EXCEPTIONS}: there is no decision {number}")));
        faults
    }
}

/// The number of a record, by its path.
fn record(file: &str) -> Option<&str> {
    number(file.strip_prefix(RECORDS)?)
}

/// Whether a file may follow a decision. Documents describe what others do.
fn may_follow(file: &str) -> bool {
    !file.starts_with("docs/") && !file.ends_with(".md") && file != EXCEPTIONS
}

/// The numbers of the decisions that a text names.
fn numbers(text: &str) -> BTreeSet<&str> {
    let mut numbers = BTreeSet::new();
    // As long as the text, byte for byte.
    let lower = text.to_ascii_lowercase();
    for (at, word) in lower.match_indices("decision") {
        let mut rest = &text[at + word.len()..];
        rest = rest.strip_prefix(['s', 'S']).unwrap_or(rest);
        // A link, the next part of a path, the next line of a comment.
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || "[/!#*".contains(c));
        while let Some(found) = number(rest) {
            numbers.insert(found);
            let others = &rest[LENGTH..];
            let next = [", and ", ", ", " and "].iter().find_map(|it| others.strip_prefix(it));
            rest = next.unwrap_or_default();
        }
    }
    numbers
}

/// The number of a decision at the beginning of a text. Its first digit is 0: that of no year is, nor that of an RFC
/// of four digits.
fn number(text: &str) -> Option<&str> {
    let (number, rest) = text.split_at_checked(LENGTH)?;
    let is_number = number.starts_with('0') && number.bytes().all(|it| it.is_ascii_digit());
    (is_number && !rest.starts_with(|next: char| next.is_ascii_alphanumeric())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The texts are written in parts, so that this file names no decision.
    const FIRST: (&str, &str) = (concat!("docs/decisi", "ons/0001-one.md"), "# 0001 One\n");

    fn naming(numbers: &str) -> String {
        format!("//! A header.\n//!\n//! Decision {numbers}.\n")
    }

    fn found(unnamed: &str, files: &[(&str, &str)]) -> Vec<String> {
        let decisions = format!("[unnamed]\n{unnamed}");
        let decisions: Decisions = toml::from_str(&decisions).expect("a list");
        let names: Vec<String> = files.iter().map(|(name, _)| (*name).to_owned()).collect();
        let text = |file: &str| Some(files.iter().find(|it| it.0 == file)?.1.to_owned());
        decisions.faults(&names, text)
    }

    #[test]
    fn a_record_is_named_or_listed_with_a_reason() {
        let named = naming("0001");
        assert_eq!(found("", &[FIRST, ("a.rs", &named)]), [""; 0]);
        assert_eq!(found("0001 = \"it shapes no code\"", &[FIRST]), [""; 0]);
        for place in ["docs/a.toml", "CHANGELOG.md", EXCEPTIONS] {
            let faults = found("", &[FIRST, (place, &named)]);
            assert!(faults[0].starts_with("no file names"), "{place}: {faults:?}");
        }
        assert!(found("0001 = \"\"", &[FIRST])[0].contains("does not say why"));
    }

    #[test]
    fn an_exception_that_is_none_is_a_fault() {
        let named = naming("0001");
        let faults = found("0001 = \"x\"", &[FIRST, ("a.rs", &named)]);
        assert_eq!(faults, ["xtask/decisions.toml: a.rs names 0001"]);
        let faults = found("0001 = \"x\"\n0002 = \"x\"", &[FIRST]);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with(EXCEPTIONS) && faults[0].ends_with(" 0002"), "{faults:?}");
    }

    #[test]
    fn a_number_without_a_record_is_a_fault() {
        let named = naming("0002");
        let faults = found("0001 = \"x\"", &[FIRST, ("docs/a.md", &named)]);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].ends_with("0002, which does not exist"), "{faults:?}");
    }

    #[test]
    fn numbers_stand_after_the_word_or_in_a_path() {
        let both = BTreeSet::from(["0001", "0002"]);
        for text in ["s 0001 and 0002", "s 0001, 0002.", " 0001, and 0002"] {
            assert_eq!(numbers(&format!("(DECISION{text})")), both, "{text}");
        }
        let one = BTreeSet::from(["0001"]);
        for text in ["s/0001-one.md", "s/0001", " [0001](x)", "\n    /// 0001", "\n# 0001"] {
            assert_eq!(numbers(&format!("é decision{text}")), one, "{text}");
        }
        for text in ["s of 2019", " 2019", " RFC 0793", " 00011", " 0001st", " 001", "s", ": 0001"]
        {
            assert!(numbers(&format!("decision{text}")).is_empty(), "{text}");
        }
        assert!(numbers("0001 0.0001 0x0001").is_empty());
    }
}
