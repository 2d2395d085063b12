//! Tasks of the repository.

mod bill;
mod census;
mod circles;
mod decisions;
mod hardening;
mod layers;
mod linked;
mod logs;
mod names;
mod recipes;
mod resolved;
mod shown;
mod third_party;
mod tidy;
mod vetted;

use anyhow::Context;
use clap::Parser;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Chores of the repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Chore {
    /// Check what the compiler cannot: layers, names, file sizes, links, decisions, paths of one machine, recipes.
    Tidy,
    /// Check that every dependency is in the record of what we trust.
    Vet,
    /// Print the size of each crate: files, lines, public items and circles of files, without tests.
    Census {
        /// Another checkout, such as a worktree of an older commit
        root: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print what a program is linked with, for a target: its bill of materials (CycloneDX), or the licences of others.
    Linked {
        /// The program's package
        program: String,
        /// The target
        triple: String,
        /// Print the licences
        #[arg(long)]
        licences: bool,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Chore::parse() {
        Chore::Tidy => tidy::run(),
        Chore::Vet => vetted::run(&tidy::root()?),
        Chore::Census { root, json } => {
            let root = root.map_or_else(tidy::root, Ok)?;
            std::io::stdout().write_all(census::text(&root, json)?.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Chore::Linked { program, triple, licences } => {
            let root = tidy::root()?;
            let linked = linked::Linked::ask(&root, &program, &triple)?;
            let text = match licences {
                true => third_party::text(&linked)?,
                // The time that all files of a distribution package have.
                false => bill::text(&root, &linked, env_number("SOURCE_DATE_EPOCH")?)?,
            };
            std::io::stdout().write_all(text.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn env_number(name: &str) -> anyhow::Result<Option<u64>> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
}
