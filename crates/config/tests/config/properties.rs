//! No text panics, and every error's position is inside its text.

use midhop_config::{Document, KeyPath, read_str};
use proptest::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only reading is tested")]
struct Any {
    a: Option<u8>,
    b: Option<BTreeMap<String, Any>>,
    c: Option<Vec<Any>>,
    d: Option<Choice>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only reading is tested")]
enum Choice {
    One,
    Two(u8),
    Three(u8, u8),
    Four { x: f64 },
}

/// Texts that are similar enough to TOML that parsing does not fail at the first character.
fn toml_like() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("a"),
        Just("b"),
        Just("c"),
        Just("d"),
        Just("One"),
        Just("Two"),
        Just("Three"),
        Just("Four"),
        Just("x"),
        Just(" = "),
        Just("."),
        Just("["),
        Just("]"),
        Just("[["),
        Just("]]"),
        Just("{"),
        Just("}"),
        Just(", "),
        Just("\n"),
        Just("\""),
        Just("'"),
        Just("1"),
        Just("-1"),
        Just("1.5"),
        Just("99999999999999999999"),
        Just("true"),
        Just("é\u{1F6F0}"),
        Just("\r\n"),
        Just("#"),
        Just("\t"),
        Just("1979-05-27"),
        Just("inf"),
        Just("\"\"\""),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn check(text: &str) -> Result<(), TestCaseError> {
    if let Err(error) = read_str::<Any>("x", text) {
        prop_assert!(!error.message.is_empty());
        let _ = error.to_string();
        let lines = text.matches('\n').count() + 1;
        prop_assert!((1..=lines).contains(&(error.line as usize)), "{error:?}");
        let line = text.split('\n').nth(error.line as usize - 1).unwrap_or_default();
        prop_assert!(error.column as usize <= line.chars().count() + 1, "{error:?}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_panics(text: String) {
        check(&text)?;
    }

    #[test]
    fn no_near_toml_panics(text in toml_like()) {
        check(&text)?;
    }

    #[test]
    fn any_path_can_be_asked_for(text in toml_like(), path: String, other in "[a-d0-1.]{1,8}") {
        if let Ok(document) = Document::parse("x", &text) {
            for path in [path, other] {
                if let Ok(path) = path.parse::<KeyPath>() {
                    let _ = (document.get(&path), document.locate(&path));
                    let mut changed = document.clone();
                    if let Ok(table) = changed.add_text("y", "v = 1") {
                        let node = table.get("v").expect("just written").clone();
                        if changed.set(&path, node.clone()).is_ok() {
                            prop_assert_eq!(changed.get(&path), Some(&node));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn dotted_keys_read_back(keys in proptest::collection::vec("[a-z .'é-]{1,6}", 1..4)) {
        let path = KeyPath::of(keys.iter().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()));
        if !path.is_root() {
            prop_assert_eq!(path.to_string().parse(), Ok(path));
        }
    }
}
