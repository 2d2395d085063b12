//! Escapes log lines, which may contain strangers' text.
//!
//! Text from peers and strangers reaches the log: the reason of a QUIC connection's end, a name, an
//! error's text. Every line passes through this module. It stays one line, contains no control
//! sequence, and is no longer than [`LINE_BYTES`].

use std::io::{self, Write};
use tracing_subscriber::fmt::MakeWriter;

/// Unit: bytes. The rest of a longer line is removed.
pub const LINE_BYTES: usize = 8 << 10;
/// Unit: bytes. In a JSON line that is too long, strings are cut to this length.
const STRING_BYTES: usize = 1 << 10;

/// The form of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As text.
    Text,
    /// Each as an object of JSON.
    Json,
}

/// The escaped output of lines. Each write is one line.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<M> {
    inner: M,
    form: Form,
}

impl<M> Escaped<M> {
    /// Escapes lines of a form, and writes them to `inner`.
    pub const fn new(inner: M, form: Form) -> Self {
        Self { inner, form }
    }
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Escaped<M> {
    type Writer = Escaped<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Escaped { inner: self.inner.make_writer(), form: self.form }
    }
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.inner.write_all(escape(&String::from_utf8_lossy(line), self.form).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Escapes a line for the log, and adds its end.
fn escape(line: &str, form: Form) -> String {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let mut escaped = match form {
        Form::Json if line.len() > LINE_BYTES => shorten(line),
        Form::Json | Form::Text => String::with_capacity(line.len() + 1),
    };
    if escaped.is_empty() {
        for char in line.chars() {
            if form == Form::Text && escaped.len() >= LINE_BYTES {
                escaped.push_str(" [...]");
                break;
            }
            push(&mut escaped, char, form);
        }
    }
    escaped.push('\n');
    escaped
}

fn push(out: &mut String, char: char, form: Form) {
    match (char, form) {
        _ if !misleads(char) => out.push(char),
        (_, Form::Text) => out.extend(char.escape_default()),
        (_, Form::Json) => {
            let mut units = [0; 2];
            for unit in char.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

/// Whether a character affects the text around it: controls, ends of lines, marks of direction.
fn misleads(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cuts long strings of a JSON line, so that it stays valid JSON.
fn shorten(line: &str) -> String {
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    cut(&mut value);
    let mut out = String::new();
    for char in value.to_string().chars() {
        push(&mut out, char, Form::Json);
    }
    out
}

fn cut(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if text.len() > STRING_BYTES => {
            let end = (0..=STRING_BYTES).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text.push_str(" [...]");
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(cut),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(cut),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_stays_one_line_and_moves_no_cursor() {
        let forged =
            "left why=closed\n2026-01-01 INFO midhopd: all is well\r\u{1b}[2Jx\u{9b}1m\u{202e}\n";
        assert_eq!(
            escape(forged, Form::Text),
            "left why=closed\\n2026-01-01 INFO midhopd: all is well\\r\\u{1b}[2Jx\\u{9b}1m\\u{202e}\n"
        );
        assert_eq!(escape("Grüße, 世界 \u{1f6f0}\n", Form::Text), "Grüße, 世界 \u{1f6f0}\n");
    }

    #[test]
    fn a_line_of_json_keeps_its_value() {
        let value = serde_json::json!({"why": "\n\u{7f}\u{9b}1m\u{1b}\u{2028}\u{202e} fine"});
        let line = escape(&format!("{value}\n"), Form::Json);
        assert!(line.trim_end_matches('\n').chars().all(|char| !misleads(char)), "{line:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).expect("JSON"), value);
    }

    #[test]
    fn a_long_line_is_cut() {
        let long = "\u{20ac}".repeat(LINE_BYTES);
        let line = escape(&long, Form::Text);
        assert!(line.len() < LINE_BYTES + 16 && line.ends_with(" [...]\n"));
        let event = serde_json::json!({"level": "INFO", "more": {"why": long}});
        let line = escape(&event.to_string(), Form::Json);
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(line.len() < LINE_BYTES && read["level"] == "INFO");
        assert!(read["more"]["why"].as_str().is_some_and(|why| why.ends_with(" [...]")));
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_line(text: String) {
            let line = escape(&text, Form::Text);
            prop_assert!(line.strip_suffix('\n').expect("an end").chars().all(|it| !misleads(it)));
        }
    }
}
