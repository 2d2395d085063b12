//! Checks JSON against its published form: a schema, and numbers for quantities.

use serde_json::Value;

const UNITS: [&str; 36] = [
    "ns", "us", "µs", "ms", "s", "min", "h", "d", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB",
    "TiB", "byte", "bytes", "bit", "bits", "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "b/s", "kb/s",
    "Mb/s", "Gb/s", "B/s", "kB/s", "MB/s", "packets", "segments", "km", "%",
];

/// The places where `value` has a number with a unit as text: the path and the text of each. Values
/// below keys in `apart` are skipped.
pub fn quantities_as_text(value: &Value, apart: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    walk(value, "", apart, &mut found);
    found
}

/// Makes a JSON Schema refuse keys that it does not name. Published schemas accept them, so that a
/// later release may add some.
pub fn refuse_other_keys(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if keys.get("properties").is_some_and(Value::is_object) {
                keys.entry("additionalProperties").or_insert(false.into());
            }
            keys.values_mut().for_each(refuse_other_keys);
        }
        Value::Array(items) => items.iter_mut().for_each(refuse_other_keys),
        _ => {}
    }
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
    fn keys_that_are_not_named_are_refused() {
        let mut schema = json!({
            "properties": { "of": { "additionalProperties": { "type": "string" } } },
            "$defs": { "One": { "properties": { "name": {} } } }
        });
        refuse_other_keys(&mut schema);
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(
            schema["properties"]["of"],
            json!({ "additionalProperties": { "type": "string" } })
        );
        assert_eq!(schema["$defs"]["One"]["additionalProperties"], false);
    }

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
