//! The record of our dependencies: each third-party package of `Cargo.lock` is in `supply-chain/`
//! with its version, as audited or trusted; each direct dependency has a reason.
//!
//! `cargo vet` checks the first part too, by its own rules, where it is installed; this check needs
//! no other program.

use anyhow::Context;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Checks the record of the repository at `root`, and prints each fault.
pub fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let faults = faults_at(root)?;
    for fault in &faults {
        println!("vet: {fault}");
    }
    println!("vet: {} faults", faults.len());
    Ok(ExitCode::from(u8::from(!faults.is_empty())))
}

/// One sentence for each dependency that the record does not have with its version.
pub fn faults_at(root: &Path) -> anyhow::Result<Vec<String>> {
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| file.to_owned());
    faults(
        &read("Cargo.lock")?,
        &read("Cargo.toml")?,
        &read("supply-chain/config.toml")?,
        &read("supply-chain/audits.toml")?,
    )
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Workspace {
    dependencies: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
struct Record {
    #[serde(default)]
    exemptions: BTreeMap<String, Vec<Entry>>,
}

#[derive(Deserialize)]
struct Audits {
    #[serde(default)]
    audits: BTreeMap<String, Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    version: Option<String>,
    delta: Option<String>,
    notes: Option<String>,
}

impl Entry {
    /// The version to which it applies.
    fn version(&self) -> Option<&str> {
        let to = self.delta.as_deref().and_then(|delta| Some(delta.split_once("->")?.1.trim()));
        self.version.as_deref().or(to)
    }
}

fn faults(lock: &str, manifest: &str, record: &str, audits: &str) -> anyhow::Result<Vec<String>> {
    let lock: Lock = toml::from_str(lock).context("Cargo.lock")?;
    let manifest: Manifest = toml::from_str(manifest).context("Cargo.toml")?;
    let record: Record = toml::from_str(record).context("supply-chain/config.toml")?;
    let audits: Audits = toml::from_str(audits).context("supply-chain/audits.toml")?;
    let used: BTreeSet<(&str, &str)> = lock
        .package
        .iter()
        .filter(|package| package.source.is_some())
        .map(|package| (package.name.as_str(), package.version.as_str()))
        .collect();
    let known: BTreeSet<(&str, &str)> = [&record.exemptions, &audits.audits]
        .into_iter()
        .flatten()
        .flat_map(|(name, entries)| {
            entries.iter().filter_map(|entry| Some((name.as_str(), entry.version()?)))
        })
        .collect();
    let mut faults: Vec<String> = used
        .difference(&known)
        .map(|(name, version)| {
            format!("{name} {version} is not in supply-chain/: look at it and record it there")
        })
        .collect();
    let exempt = record.exemptions.iter().flat_map(|(name, entries)| {
        entries.iter().filter_map(|entry| Some((name.as_str(), entry.version()?)))
    });
    faults.extend(exempt.filter(|named| !used.contains(named)).map(|(name, version)| {
        format!("supply-chain/config.toml trusts {name} {version}, which nothing uses")
    }));
    for (name, value) in &manifest.workspace.dependencies {
        let ours = value.get("path").is_some();
        let mut entries = [&record.exemptions, &audits.audits]
            .into_iter()
            .filter_map(|entries| entries.get(name))
            .flatten();
        if !ours && !entries.any(|entry| entry.notes.is_some()) {
            faults.push(format!("supply-chain/ has no notes on {name}: say why we depend on it"));
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[workspace.dependencies]\nours = { path = \"o\" }\nquinn = \"1\"\n";
    const LOCK: &str = "[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\
        [[package]]\nname = \"quinn\"\nversion = \"1.2.0\"\nsource = \"registry\"\n";

    fn found(record: &str, audits: &str) -> Vec<String> {
        faults(LOCK, MANIFEST, record, audits).unwrap()
    }

    #[test]
    fn a_dependency_is_recorded_at_its_version_and_with_a_reason() {
        let exempt = |version: &str, notes: &str| {
            format!("[[exemptions.quinn]]\nversion = \"{version}\"\ncriteria = \"x\"\n{notes}\n")
        };
        assert_eq!(found(&exempt("1.2.0", "notes = \"QUIC\""), ""), Vec::<String>::new());
        assert!(found("", "")[0].contains("quinn 1.2.0 is not in"));
        let old = found(&exempt("1.1.0", "notes = \"QUIC\""), "");
        assert!(old[0].contains("1.2.0 is not in") && old[1].contains("1.1.0, which nothing uses"));
        assert!(found(&exempt("1.2.0", ""), "")[0].contains("no notes on quinn"));
    }

    #[test]
    fn an_audit_of_a_change_speaks_for_the_later_version() {
        let audit = "[[audits.quinn]]\ndelta = \"1.1.0 -> 1.2.0\"\nnotes = \"QUIC\"\n";
        assert_eq!(found("", audit), Vec::<String>::new());
    }
}
