//! Files, by Landlock.

use super::ConfineError;
use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use std::path::{Path, PathBuf};

/// What is requested from the kernel. An older one enforces what it supports.
const WANTED: ABI = ABI::V6;

/// The directories of name resolution and of the host's state. A rule for a file alone would not be enough: a file
/// that is replaced is another file.
const HOST: [&str; 4] = ["/etc", "/run", "/proc", "/sys"];

/// How much of it the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforced {
    /// All of it.
    Fully,
    /// The part that an older kernel supports.
    Partly,
    /// The kernel has no Landlock, or does not use it.
    Not,
}

/// Lets the calling thread and those that it starts read below `directories`, and where the host keeps the files of
/// name resolution. They may write, make or execute nothing, and send no signals. They may remove files in the
/// directory of `sockets`.
///
/// # Errors
/// When the kernel refuses what it claims to support.
pub fn files(directories: &[PathBuf], sockets: Option<&Path>) -> Result<Enforced, ConfineError> {
    let host = HOST.iter().map(Path::new);
    let readable = host.chain(directories.iter().map(PathBuf::as_path));
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(readable, read)))
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(sockets, AccessFs::RemoveFile)))
        .map_err(ConfineError::of)?;
    enforce(ruleset)
}

/// Lets the keeper read and execute existing files, and write only to the null device.
///
/// # Errors
/// When the kernel refuses what it claims to support.
pub(super) fn of_the_keeper() -> Result<Enforced, ConfineError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(["/"], read)))
        .and_then(|ruleset| {
            ruleset.add_rules(path_beneath_rules(["/dev/null"], AccessFs::WriteFile))
        })
        .map_err(ConfineError::of)?;
    enforce(ruleset)
}

fn enforce(ruleset: landlock::RulesetCreated) -> Result<Enforced, ConfineError> {
    let status = ruleset.restrict_self().map_err(ConfineError::of)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Enforced::Fully,
        RulesetStatus::PartiallyEnforced => Enforced::Partly,
        RulesetStatus::NotEnforced => Enforced::Not,
    })
}
