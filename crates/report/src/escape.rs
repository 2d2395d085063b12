//! Escapes foreign text for HTML.

use serde::Serialize;

/// `text` for element content and quoted attributes.
pub(crate) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that HTML forbids even as references; a title may contain any.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// `value` as JSON that is safe inside a `<script>` element: it has no `<`, so nothing ends the
/// element or opens a comment, and none of the line separators that old parsers reject.
pub(crate) fn script_json<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(value)?
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_script_and_everything_survives() {
        let hostile = "</script><!-- & \u{2028} ]]> \"'";
        let json = script_json(&hostile).expect("a string");
        assert!(!json.contains('<') && !json.contains('>') && !json.contains('&'), "{json}");
        let back: String = serde_json::from_str(&json).expect("valid JSON");
        assert_eq!(back, hostile);
    }

    #[test]
    fn markup_becomes_text() {
        assert_eq!(html("<a href='x'>&\u{0}"), "&lt;a href=&#39;x&#39;&gt;&amp;\u{fffd}");
    }
}
