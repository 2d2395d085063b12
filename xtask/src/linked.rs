//! The packages with which a program is linked, as cargo resolves them for one target.

use crate::resolved::{Dependency, Node, Resolve};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The needed part of cargo's metadata.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

/// A linked package.
#[derive(Debug, Clone, Deserialize)]
pub struct Package {
    id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence, as written in its manifest.
    pub license: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// The repository of its source.
    pub repository: Option<String>,
    /// Its registry; none where it belongs to this workspace.
    pub source: Option<String>,
    manifest_path: PathBuf,
}

impl Package {
    /// Whether it is not ours.
    pub fn is_third_party(&self) -> bool {
        self.source.is_some()
    }

    /// Its licence as an SPDX expression: some manifests still have the slash that was used before
    /// `OR`.
    pub fn expression(&self) -> Option<String> {
        self.license.as_ref().map(|license| license.replace(" / ", " OR ").replace('/', " OR "))
    }

    /// The folder of its source.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }
}

/// A program with the packages that it is linked with.
pub struct Linked {
    /// The program's own package.
    pub program: Package,
    /// The others, by name and version.
    pub packages: Vec<Package>,
    /// The dependencies of each, by index among the others; the program's own come last.
    pub needs: Vec<BTreeSet<usize>>,
}

impl Linked {
    /// Asks cargo about the program `program` of the workspace at `root` for the target `triple`.
    ///
    /// # Errors
    /// When cargo fails, or there is no such program.
    pub fn ask(root: &Path, program: &str, triple: &str) -> anyhow::Result<Self> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", triple]);
        let output = cargo.current_dir(root).output().context("cargo does not start")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Self::of(&serde_json::from_slice(&output.stdout)?, program)
    }

    fn of(metadata: &Metadata, program: &str) -> anyhow::Result<Self> {
        let nodes: BTreeMap<&str, &Node> =
            metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let own = metadata.packages.iter().find(|one| one.name == program && one.source.is_none());
        let own = own.with_context(|| format!("this workspace has no package {program}"))?;
        let needs_of = |id: &str| {
            let deps = nodes.get(id).map(|node| node.deps.as_slice()).unwrap_or_default();
            let linked = |dep: &&Dependency| dep.dep_kinds.iter().any(|kind| kind.kind.is_none());
            deps.iter().filter(linked).map(|dep| dep.pkg.clone()).collect::<Vec<_>>()
        };
        let (mut reached, mut open) = (BTreeSet::new(), needs_of(&own.id));
        while let Some(id) = open.pop() {
            if reached.insert(id.clone()) {
                open.extend(needs_of(&id));
            }
        }
        let mut packages: Vec<Package> =
            metadata.packages.iter().filter(|one| reached.contains(&one.id)).cloned().collect();
        packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        let places: BTreeMap<&str, usize> =
            packages.iter().enumerate().map(|(at, one)| (one.id.as_str(), at)).collect();
        let placed = |id: &str| {
            needs_of(id).iter().filter_map(|id| places.get(id.as_str()).copied()).collect()
        };
        let ids = packages.iter().chain([own]).map(|one| one.id.as_str());
        let needs = ids.map(placed).collect();
        Ok(Self { program: own.clone(), packages, needs })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// A program that links one library of its own workspace and one third-party library. A build
    /// dependency and a development dependency are not linked.
    pub fn example() -> Linked {
        let package = |name: &str, source: Option<&str>| {
            json!({
                "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "description": "An example",
                "repository": "https://example.org", "source": source, "manifest_path": "/nowhere/Cargo.toml",
            })
        };
        let registry = Some("registry+https://github.com/rust-lang/crates.io-index");
        let need = |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                package("theirs", registry), package("program", None), package("ours", None),
                package("maker", registry), package("tester", registry),
            ],
            "resolve": { "nodes": [
                { "id": "program", "deps": [need("ours", None), need("tester", Some("dev"))] },
                { "id": "ours", "deps": [need("theirs", None), need("maker", Some("build"))] },
            ]},
        });
        let metadata = serde_json::from_value(metadata).expect("metadata");
        Linked::of(&metadata, "program").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn what_only_builds_or_tests_is_not_linked() {
        let linked = example();
        let names: Vec<_> = linked.packages.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["ours", "theirs"]);
        assert_eq!(linked.needs, [BTreeSet::from([1]), BTreeSet::new(), BTreeSet::from([0])]);
    }

    #[test]
    fn an_old_licence_becomes_an_expression() {
        assert_eq!(example().program.expression().as_deref(), Some("MIT OR Apache-2.0"));
    }
}
