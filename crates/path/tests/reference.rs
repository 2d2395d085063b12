//! The reference page says what the code does.

mod drive;

use drive::ms;
use midhop_path::{DirectionSpec, LinkSpec, presets};

const PAGE: &str = include_str!("../../../docs/links.md");

#[test]
fn its_example_can_be_run() {
    let example = PAGE.split("```").nth(1).expect("an example");
    let example = example.trim_start_matches("toml").replace("[links.satellite]", "");
    let link: LinkSpec = toml::from_str(&example).expect("a link");
    let plan = link.resolve(ms(600)).expect("a plan");
    assert!(plan.up.dama.is_some() && plan.down.dama.is_none());
}

#[test]
fn each_form_it_shows_is_read() {
    // Whatever stands in backquotes on a line that explains a key and looks like a table or a text
    // is a value of that key.
    let mut key = String::new();
    let mut read = 0;
    for line in PAGE.lines() {
        if let Some(rest) = line.strip_prefix("**`") {
            key = rest.split('`').next().expect("a key").to_owned();
        }
        if line.starts_with("## Presets") {
            break;
        }
        for value in line.split('`').skip(1).step_by(2) {
            let shown = value.starts_with('{') && value.ends_with('}') && value != "{}"
                || value.starts_with("[{");
            if shown {
                let text = format!("{key} = {value}");
                let spec: DirectionSpec =
                    toml::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
                spec.resolve(ms(600)).unwrap_or_else(|error| panic!("{text}: {error}"));
                read += 1;
            }
        }
    }
    assert!(read >= 10, "only {read} examples found");
}

#[test]
fn it_knows_every_key_and_every_preset() {
    let error = toml::from_str::<DirectionSpec>("unknown = 1").expect_err("unknown").to_string();
    let keys = error.split("expected one of").nth(1).expect("the keys");
    for key in keys.split('`').skip(1).step_by(2) {
        assert!(PAGE.contains(&format!("**`{key}`**")), "`{key}` is not explained");
    }
    for preset in presets::all() {
        assert!(PAGE.contains(&format!("| `{}` |", preset.name)), "{} is missing", preset.name);
    }
}
