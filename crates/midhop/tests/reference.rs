//! The book's page of commands says what the program says.

use std::path::Path;

#[test]
fn the_book_has_every_command() {
    let program = Path::new(env!("CARGO_BIN_EXE_midhop"));
    midhop_pages::assert_page("midhop.md", &midhop_pages::commands(program, "midhop"));
}
