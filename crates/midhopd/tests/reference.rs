//! The book's page of commands says what the program says.

use std::path::Path;

#[test]
fn the_book_has_every_command() {
    let program = Path::new(env!("CARGO_BIN_EXE_midhopd"));
    midhop_pages::assert_page("midhopd.md", &midhop_pages::commands(program, "midhopd"));
}
