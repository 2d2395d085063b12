//! Pages of the book that are made from the code.
//!
//! They are committed, so that readers of the repository find them. A test of the crate that a page
//! describes makes the page again and compares: [`assert_page`]. With `MIDHOP_PAGES=write` the test
//! writes the page instead.
//!
//! [`blocks`] extracts commands and files from the book and the README, and [`mentioned`] the
//! commands in their sentences, so that tests can use them.

mod keys;

pub use keys::keys;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The note at the head of each page.
const NOTICE: &str =
    "<!-- Made from the code: MIDHOP_PAGES=write cargo test writes it again. -->\n\n";

/// Compares a page under `docs/book/src/reference` with the text made from the code.
///
/// # Panics
/// When they differ, or the page cannot be read or written.
pub fn assert_page(name: &str, body: &str) {
    assert_file(&folder().join(name), &format!("{NOTICE}{body}"));
}

/// Compares a committed file with the text made from the code.
///
/// # Panics
/// When they differ, or the file cannot be read or written.
pub fn assert_file(path: &Path, made: &str) {
    if std::env::var("MIDHOP_PAGES").as_deref() == Ok("write") {
        std::fs::write(path, made).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let first = committed.lines().zip(made.lines()).position(|(old, new)| old != new);
    let line = first.unwrap_or_else(|| committed.lines().count().min(made.lines().count()));
    assert!(
        committed == made,
        "{} is not what the code says, from line {} on: {:?} for {:?}; hint: MIDHOP_PAGES=write cargo test \
         writes it again",
        path.file_name().unwrap_or_default().display(),
        line + 1,
        committed.lines().nth(line),
        made.lines().nth(line)
    );
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src/reference")
}

/// A program's help on its commands and their subcommands, as a page.
///
/// # Panics
/// When it prints none.
pub fn commands(program: &Path, name: &str) -> String {
    let mut page = format!("# Commands of {name}\n");
    describe(program, name, &[], &mut page);
    page
}

fn describe(program: &Path, name: &str, command: &[&str], page: &mut String) {
    let output = Command::new(program).args(command).arg("--help").env("COLUMNS", "100").output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !help.is_empty(), "{name} {command:?} has no help");
    if !command.is_empty() {
        let _ = write!(page, "\n## `{name} {}`\n", command.join(" "));
    }
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n```text\n{}\n```\n", lines.join("\n"));
    for below in subcommands(&help) {
        describe(program, name, &[command, &[below]].concat(), page);
    }
}

/// The names under "Commands:".
fn subcommands(help: &str) -> Vec<&str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.trim().is_empty());
    // Text further to the right of a name only explains it.
    let names =
        listed.filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// A command or a file's content, and its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The document, by its path in the repository.
    pub document: String,
    /// Its text.
    pub text: String,
}

/// The blocks in the README and in the book's guides between fences of this language, in order.
///
/// # Panics
/// When they cannot be read.
pub fn blocks(language: &str) -> Vec<Block> {
    let read = |(document, text): (String, String)| {
        let found = fenced(&text, language);
        found.into_iter().map(move |text| Block { document: document.clone(), text })
    };
    documents().into_iter().flat_map(read).collect()
}

/// The README and the book's guides, each by its path in the repository, with its text.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guides = root.join("docs/book/src");
    let listed = std::fs::read_dir(&guides).expect("the book's guides");
    let names = listed.map(|entry| entry.expect("a guide").file_name());
    let mut documents: Vec<String> = names
        .filter_map(|name| name.to_str().filter(|name| name.ends_with(".md")).map(str::to_owned))
        .map(|name| format!("docs/book/src/{name}"))
        .collect();
    documents.sort();
    documents.insert(0, "README.md".to_owned());
    let read = |document: String| {
        let text = std::fs::read_to_string(root.join(&document)).expect("a document");
        (document, text)
    };
    documents.into_iter().map(read).collect()
}

fn fenced(text: &str, language: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), None);
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(kind), None) => open = Some((kind == language, String::new())),
            (Some(_), Some(_)) => found.extend(open.take().filter(|it| it.0).map(|it| it.1)),
            (None, Some((_, block))) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    found
}

/// The commands in blocks of `sh`, without comments and prompts, each with its document.
///
/// # Panics
/// As [`blocks`].
pub fn typed() -> Vec<(String, String)> {
    let lines = |block: Block| {
        let lines: Vec<String> = block.text.lines().map(str::to_owned).collect();
        lines.into_iter().map(move |line| (block.document.clone(), command(&line).to_owned()))
    };
    blocks("sh").into_iter().flat_map(lines).filter(|(_, command)| !command.is_empty()).collect()
}

/// The texts between backticks in sentences that begin with one of `programs`, each with its
/// document. Text in blocks is not included: that is [`typed`].
///
/// # Panics
/// As [`blocks`], and where a backtick is not closed.
pub fn mentioned(programs: &[&str]) -> Vec<(String, String)> {
    let begins = |span: &str| programs.iter().any(|program| span.starts_with(program));
    let found = |(document, text): (String, String)| {
        let spans =
            spans(&text).unwrap_or_else(|around| panic!("{document}: one backtick in {around:?}"));
        spans.into_iter().filter(|span| begins(span)).map(move |span| (document.clone(), span))
    };
    documents().into_iter().flat_map(found).collect()
}

/// The texts between backticks outside of blocks, also across lines. The error is the paragraph of
/// a backtick that is not closed.
fn spans(text: &str) -> Result<Vec<String>, String> {
    let mut paragraphs = vec![String::new()];
    let mut in_block = false;
    for line in text.lines() {
        let fence = line.starts_with("```");
        in_block ^= fence;
        if fence || in_block || line.trim().is_empty() {
            paragraphs.push(String::new());
        } else if let Some(paragraph) = paragraphs.last_mut() {
            *paragraph += line.trim();
            paragraph.push(' ');
        }
    }
    let mut found = Vec::new();
    for paragraph in paragraphs {
        let pieces: Vec<&str> = paragraph.split('`').collect();
        if pieces.len().is_multiple_of(2) {
            return Err(paragraph);
        }
        found.extend(pieces.into_iter().skip(1).step_by(2).map(str::to_owned));
    }
    Ok(found)
}

/// The part of a line that is typed.
fn command(line: &str) -> &str {
    let line = line.split_once("$ ").map_or(line, |(_host, typed)| typed);
    line.split_once(" #").map_or(line, |(typed, _comment)| typed).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommands_are_found_and_their_explanations_are_not() {
        let help = "Does things\n\nUsage: it <COMMAND>\n\nCommands:\n  run    Runs\n         for long\n  \
                    pki    Makes\n  help   Print this\n\nOptions:\n  -h, --help  Print help\n";
        assert_eq!(subcommands(help), ["run", "pki"]);
    }

    #[test]
    fn what_is_typed_is_found() {
        let text = "Words\n```sh\na b   # why\nhost$ c\n```\n```toml\nd = 1\n```\n```\ne\n```\n";
        assert_eq!(fenced(text, "sh"), ["a b   # why\nhost$ c\n"]);
        assert_eq!(fenced(text, "toml"), ["d = 1\n"]);
        assert_eq!(["a b   # why", "host$ c", "# d", ""].map(command), ["a b", "c", "# d", ""]);
        assert!(typed().iter().any(|(document, _)| document == "README.md"));
    }

    #[test]
    fn what_is_mentioned_is_found() {
        let text = "Run `a b`, or `a\nc`.\n\n```sh\n`a d`\n```\n| `e` | `a f` |\n";
        assert_eq!(spans(text).expect("pairs"), ["a b", "a c", "e", "a f"]);
        assert!(spans("one ` only\n\n`and` another").is_err());
        let own = mentioned(&["midhop ", "make "]);
        assert!(own.iter().any(|(_, command)| command == "make demo"), "{own:?}");
        assert!(own.iter().all(|(_, command)| command.starts_with("m")), "{own:?}");
    }
}
