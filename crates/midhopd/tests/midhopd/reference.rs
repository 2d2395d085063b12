//! The book's pages of commands and of the configuration say what the program says.

use midhop_testkit::pages;
use std::path::Path;

#[test]
fn the_book_has_every_command() {
    let program = Path::new(env!("CARGO_BIN_EXE_midhopd"));
    pages::assert_page("midhopd.md", &pages::commands(program, "midhopd"));
}

#[test]
fn the_book_has_every_key_of_the_configuration() {
    let schema = midhop_pep::config::Config::schema();
    let words = "One TOML file, `/etc/midhopd.toml` unless `--config` names another. `midhopd check FILE` prints a file \
                 as the daemon understands it, and `midhopd schema` all of this for an editor. \
                 [An example](example.md) has every key with a comment.\n\n\
                 `NAME` stands for a name of your own, `[[...]]` for a table that may come several times.";
    let page = pages::keys("Configuration", words, schema.as_value());
    pages::assert_page("configuration.md", &page);
}
