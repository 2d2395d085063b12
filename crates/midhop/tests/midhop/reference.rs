//! The book's pages of commands, scenarios, studies and records, and the schemas that the program
//! prints, agree with the code.

use midhop_experiment::Scenario;
use midhop_experiment::calibration::Calibration;
use midhop_experiment::measured::{LinkReport, MeterReport};
use midhop_experiment::record::Record;
use midhop_report::{Comparison, ReportFigures};
use midhop_study::Study;
use midhop_testkit::pages;
use std::path::Path;

#[test]
fn the_book_has_every_command() {
    let program = Path::new(env!("CARGO_BIN_EXE_midhop"));
    pages::assert_page("midhop.md", &pages::commands(program, "midhop"));
}

const NAMES: &str =
    "`NAME` stands for a name of your own, `[[...]]` for a table that may come several times.";

#[test]
fn the_book_has_every_key_of_a_scenario() {
    let schema = Scenario::schema();
    let words = format!(
        "What a scenario is, and which keys go together, is told [here](scenarios.md); these are all keys. \
         `midhop schema scenario` prints them for an editor. A proxy's table under `[peps]` takes the \
         [configuration](configuration.md) of the daemon.\n\n{NAMES}"
    );
    let page = pages::keys("Keys of a scenario", &words, schema.as_value());
    pages::assert_page("scenario.md", &page);
}

#[test]
fn the_book_has_every_key_of_a_study() {
    let schema = Study::schema();
    let words = format!(
        "A study is a directory with this file, `study.toml`, and the scenarios that it names. \
         `midhop schema study` prints its keys for an editor.\n\n{NAMES}"
    );
    let page = pages::keys("Keys of a study", &words, schema.as_value());
    pages::assert_page("study.md", &page);
}

#[test]
fn the_book_has_every_key_of_a_record() {
    let words = "A record is what a run measured, as JSON: `midhop sim run --json` prints one a line, and `--out DIR` writes \
                 each to a file. Quantities are numbers with the unit at the end of the key. Only `plan` has the notation of \
                 scenario files, since it is configuration, and `cell` has the labels of the scenario. `midhop schema record` \
                 prints the JSON Schema. What *must be given* is in every record; a number or text that is not known is \
                 `null`. A later release may add keys.";
    let page = pages::keys("Keys of a record", words, Record::schema().as_value());
    pages::assert_page("record.md", &page);
}

/// The problems that an editor would mark in valid files.
#[test]
fn schemas_take_the_files_that_ship() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let validator =
        |schema: schemars::Schema| jsonschema::validator_for(schema.as_value()).expect("a schema");
    let scenario = validator(Scenario::schema());
    let study = validator(Study::schema());
    let configuration = validator(midhop_pep::config::Config::schema());
    let read = |path: &Path| -> serde_json::Value {
        let text = std::fs::read_to_string(path).expect("a file");
        let table: toml::Table = text.parse().expect("TOML");
        serde_json::to_value(table).expect("JSON")
    };
    let listed = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a directory");
        entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    let mut files = listed(&root.join("scenarios"));
    for folder in listed(&root.join("studies")).into_iter().filter(|path| path.is_dir()) {
        files.extend(listed(&folder));
    }
    files.push(root.join("packaging/midhopd.toml"));
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert!(files.len() > 20, "{files:?}");
    for path in files {
        let validator = match path.file_name().and_then(|name| name.to_str()) {
            Some("study.toml") => &study,
            Some("midhopd.toml") => &configuration,
            _ => &scenario,
        };
        let faults: Vec<String> = validator
            .iter_errors(&read(&path))
            .map(|fault| format!("{}: {fault}", fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{}: {faults:#?}", path.display());
    }
    // And the schema does not accept everything.
    for wrong in [serde_json::json!({ "titel": "x" }), serde_json::json!({ "duration": 3 })] {
        assert!(!scenario.is_valid(&wrong), "{wrong}");
    }
    assert!(!configuration.is_valid(&serde_json::json!({ "limits": { "flow": 3 } })));
}

/// The schemas that `midhop schema` prints.
#[test]
fn the_schemas_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    for (name, schema) in [
        ("scenario", Scenario::schema()),
        ("study", Study::schema()),
        ("record", Record::schema()),
        ("meter-run", MeterReport::schema()),
        ("meter-link", LinkReport::schema()),
        ("report", ReportFigures::schema()),
        ("compare", Comparison::schema()),
        ("calibration", Calibration::schema()),
    ] {
        let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
        pages::assert_file(&folder.join(name).with_extension("json"), &text);
    }
}
