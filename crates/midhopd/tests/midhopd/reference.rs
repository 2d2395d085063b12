//! The book's pages of commands and of the configuration, and the schemas that the program prints, match the code.

use midhop_pep::config::Config;
use midhop_status::admin;
use midhop_status::console::Rates;
use midhop_status::control::answer;
use midhop_status::history::HistoryView;
use midhop_testkit::pages;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, schema_for};
use std::path::Path;

#[test]
fn the_book_has_every_command() {
    let program = Path::new(env!("CARGO_BIN_EXE_midhopd"));
    pages::assert_page("midhopd.md", &pages::commands(program, "midhopd"));
}

#[test]
fn the_book_has_every_key_of_the_configuration() {
    let schema = Config::schema();
    let words = "One TOML file, `/etc/midhopd.toml` unless `--config` names another. `midhopd check FILE` prints a file \
                 as the daemon understands it, and `midhopd schema` all of this for an editor. \
                 [An example](example.md) has every key with a comment.\n\n\
                 `NAME` stands for a name of your own, `[[...]]` for a table that may come several times.";
    let page = pages::keys("Configuration", words, schema.as_value());
    pages::assert_page("configuration.md", &page);
}

/// The schemas that `midhopd schema` prints.
#[test]
fn the_schemas_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    for (name, schema) in [
        ("config", Config::schema()),
        ("status", schema_for!(answer::DaemonStatus)),
        ("flows", schema_for!(answer::Flows)),
        ("why", schema_for!(answer::Why)),
        ("top", schema_for!(Rates)),
        ("reload", schema_for!(answer::Reload)),
        ("rate", schema_for!(answer::RateTaken)),
        ("move", schema_for!(answer::MoveOutcome)),
        ("page", written::<admin::Status>()),
        ("history", written::<HistoryView>()),
    ] {
        let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
        pages::assert_file(&folder.join(name).with_extension("json"), &text);
    }
}

/// The schema of a type that is only written.
fn written<T: JsonSchema>() -> Schema {
    SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<T>()
}
