//! The reference page agrees with the code.

use crate::drive::ms;
use midhop_path::orbit::{ConstellationTable, Journeys, OrbitSpec, isl::IslRules};
use midhop_path::{DirectionSpec, LinkSpec, presets};
use serde::de::DeserializeOwned;

const PAGE: &str = include_str!("../../../../docs/links.md");

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
    // Text in backquotes on a line that explains a key is a value of that key if it looks like a
    // table or a text.
    let mut key = String::new();
    let mut read = 0;
    for line in PAGE.lines() {
        if let Some(rest) = line.strip_prefix("**`") {
            key = rest.split('`').next().expect("a key").to_owned();
        }
        if line.starts_with("## Constellations") {
            break;
        }
        for value in line.split('`').skip(1).step_by(2) {
            let shown = value.starts_with('{') && value.ends_with('}') && value != "{}"
                || value.starts_with("[{");
            if shown {
                // The reader of a scenario inserts the contents of a file.
                let value = value.replace("csv_file = \"starlink.csv\"", "csv = \"0,20\\n1,30\"");
                let value =
                    value.replace("recorded_file = \"iperf.json\"", "recorded = \"1\\n2\\n\"");
                let value =
                    value.replace("recorded_file = \"ping.txt\"", "recorded = \"12\\n11\\n\"");
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

/// The names that a table accepts, from the error for an unknown one.
fn keys<T: DeserializeOwned>() -> Vec<String> {
    let Err(error) = toml::from_str::<T>("unknown = 1") else { panic!("everything is read") };
    let error = error.to_string();
    let keys = error.split("expected one of").nth(1).expect("the keys");
    keys.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn its_constellations_fly_and_their_keys_are_explained() {
    let section = PAGE.split("## Constellations").nth(1).expect("a section");
    let section = section.split("## Presets").next().expect("its end");
    let example = section.split("```").nth(1).expect("an example").trim_start_matches("toml");
    let link: LinkSpec = toml::from_str(&example.replace("[links.satellite]", "")).expect("a link");
    let (link, orbit) = link.with_orbit(ms(30_000), &mut Journeys::default()).expect("it flies");
    assert!(orbit.is_some() && link.resolve(ms(200)).is_ok());
    let shell = section.split("Walker shell,\n`").nth(1).expect("a shell");
    let shell = shell.split('`').next().expect("a shell");
    let orbit = format!("constellation = {shell}\nfrom = [51, 0]\nto = [51, 1]");
    let orbit: OrbitSpec = toml::from_str(&orbit).expect("an orbit");
    assert_eq!(orbit.resolve().expect("a constellation").0.satellites, 1584);

    for key in keys::<OrbitSpec>().into_iter().chain(keys::<ConstellationTable>()) {
        assert!(section.contains(&format!("`{key}`")), "`{key}` is not explained");
    }
    for key in keys::<IslRules>() {
        assert!(section.contains(&format!("`isl.{key}`")), "`isl.{key}` is not explained");
    }
}
