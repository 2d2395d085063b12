//! Chores of the repository.

mod circles;
mod hardening;
mod layers;
mod names;
mod recipes;
mod tidy;
mod vetted;

use clap::Parser;
use std::process::ExitCode;

/// Chores of the repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Chore {
    /// Check what the compiler cannot: layers, names, file sizes, links, paths of one machine, recipes.
    Tidy,
    /// Check that every dependency is in the record of what we trust.
    Vet,
}

fn main() -> anyhow::Result<ExitCode> {
    match Chore::parse() {
        Chore::Tidy => tidy::run(),
        Chore::Vet => vetted::run(&tidy::root()?),
    }
}
