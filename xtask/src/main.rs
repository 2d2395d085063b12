//! Chores of the repository.

mod layers;
mod tidy;

use clap::Parser;
use std::process::ExitCode;

/// Chores of the repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Chore {
    /// Check what the compiler cannot: layers, file sizes, links, paths of one machine.
    Tidy,
}

fn main() -> anyhow::Result<ExitCode> {
    match Chore::parse() {
        Chore::Tidy => tidy::run(),
    }
}
