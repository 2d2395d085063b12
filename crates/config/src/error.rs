//! The error type of this crate, and its display.

use std::fmt;

/// A fault in a configuration, with its position and a hint.
///
/// Displayed as the message with its position, then the line with a caret below. The hint is not
/// included: it is printed separately, after the error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// The file as named by the caller, or the option that contained the value.
    pub file: String,
    /// Line in the file, from 1; 0 where the position is unknown.
    pub line: u32,
    /// Column in the line in characters, from 1; 0 where the position is unknown.
    pub column: u32,
    /// The dotted key; none in a text that is not TOML.
    pub key: Option<String>,
    /// What is wrong.
    pub message: String,
    /// How to correct it.
    pub hint: Option<String>,
    excerpt: Option<Box<Excerpt>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    line: String,
    /// Characters before the caret, with tabs kept so that it stays below its key.
    indent: String,
    width: usize,
}

impl ConfigError {
    /// An error at the bytes `start..end` of `text`.
    pub(crate) fn at(
        file: &str,
        text: &str,
        start: usize,
        end: usize,
        key: Option<String>,
        message: String,
        hint: Option<String>,
    ) -> Self {
        let start =
            (0..=start.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let before = &text[line_start..start];
        let line = text[line_start..line_end].trim_end_matches('\r');
        let end = (end.clamp(start, line_end)..=line_end)
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(line_end);
        let indent = before.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let width = text[start..end].trim_end().chars().count().max(1);
        let number = |count: usize| u32::try_from(count + 1).unwrap_or(u32::MAX);
        Self {
            file: file.to_owned(),
            line: number(text[..line_start].matches('\n').count()),
            column: number(before.chars().count()),
            key,
            message,
            hint,
            excerpt: Some(Box::new(Excerpt { line: line.to_owned(), indent, width })),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(Excerpt { line, indent, width }) = self.excerpt.as_deref() {
            let number = self.line.to_string();
            let margin = " ".repeat(number.len());
            write!(
                f,
                "\n{margin} |\n{number} | {line}\n{margin} | {indent}{}",
                "^".repeat(*width)
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
