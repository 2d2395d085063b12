//! Quantities that stand as text where numbers are promised.

use serde_json::Value;

const UNITS: [&str; 36] = [
    "ns", "us", "µs", "ms", "s", "min", "h", "d", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB",
    "TiB", "byte", "bytes", "bit", "bits", "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "b/s", "kb/s",
    "Mb/s", "Gb/s", "B/s", "kB/s", "MB/s", "packets", "segments", "km", "%",
];

/// Where `value` has a number with a unit as text: the path and the text of each. What is below keys of `apart` is passed over.
pub fn quantities_as_text(value: &Value, apart: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    walk(value, "", apart, &mut found);
    found
}

fn walk(value: &Value, path: &str, apart: &[&str], found: &mut Vec<String>) {
    match value {
        Value::String(text) if is_quantity(text) => found.push(format!("{path} = {text:?}")),
        Value::Array(all) => {
            for (number, item) in all.iter().enumerate() {
                walk(item, &format!("{path}/{number}"), apart, found);
            }
        }
        Value::Object(all) => {
            for (key, item) in all.iter().filter(|(key, _)| !apart.contains(&key.as_str())) {
                walk(item, &format!("{path}/{key}"), apart, found);
            }
        }
        _ => {}
    }
}

fn is_quantity(text: &str) -> bool {
    let text = text.trim();
    let unit = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | '_'));
    let (number, unit) = text.split_at(unit.unwrap_or(text.len()));
    number.contains(|c: char| c.is_ascii_digit()) && UNITS.contains(&unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_with_units_are_found_and_names_are_not() {
        for text in
            ["270692.8 us", "14776.898 kbit/s", "500 kB", "0 ns", "1%", "-3.5ms", "12 packets"]
        {
            assert!(is_quantity(text), "{text}");
        }
        for text in [
            "",
            "s",
            "10.0.0.1:80",
            "lan0",
            "7",
            "1.2.3",
            "0.1 of it",
            "2001:db8::/32",
            "3 s after the run began",
        ] {
            assert!(!is_quantity(text), "{text}");
        }
        let value =
            json!({ "plan": { "rate": "1 Mbit/s" }, "links": [{ "span_s": 1.5, "cpu": "2 ms" }] });
        assert_eq!(quantities_as_text(&value, &["plan"]), ["/links/0/cpu = \"2 ms\""]);
        assert_eq!(quantities_as_text(&value, &[]).len(), 2);
    }
}
