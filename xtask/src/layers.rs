//! The layer rules: the permitted dependencies, and what a pure crate may never depend on.

use crate::resolved::Resolve;
use anyhow::Context;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The rules as written in `layers.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    impure: BTreeSet<String>,
    crates: BTreeMap<String, Layer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    #[serde(default)]
    pure: bool,
    may: BTreeSet<String>,
}

/// Every package of a build, with its dependencies outside of tests.
#[derive(Debug)]
pub struct Graph {
    members: BTreeSet<String>,
    /// Package → packages it depends on in a build (development dependencies left out).
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    /// Reads the output of `cargo metadata`.
    pub fn parse(metadata: &str) -> anyhow::Result<Self> {
        let metadata: Metadata =
            serde_json::from_str(metadata).context("reading the output of cargo metadata")?;
        let names: BTreeMap<_, _> =
            metadata.packages.iter().map(|package| (&package.id, &package.name)).collect();
        let name = |id: &String| names.get(id).map_or_else(|| id.clone(), |name| (*name).clone());
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in &metadata.resolve.nodes {
            let built = node
                .deps
                .iter()
                .filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()))
                .map(|dep| name(&dep.pkg));
            edges.entry(name(&node.id)).or_default().extend(built);
        }
        let members = metadata.workspace_members.iter().map(name).collect();
        Ok(Self { members, edges })
    }

    /// One sentence for each dependency among crates of ours that `package` reaches and `lock`, the `Cargo.lock` of
    /// another workspace, lacks: that workspace can no longer be built with `--locked`.
    pub fn unlocked(&self, package: &str, lock: &str) -> anyhow::Result<Vec<String>> {
        let lock: Lock = toml::from_str(lock).context("reading a Cargo.lock")?;
        let locked: BTreeMap<_, _> =
            lock.package.iter().map(|it| (&it.name, &it.dependencies)).collect();
        let mut faults = Vec::new();
        let (mut reached, mut next) = (BTreeSet::new(), vec![package.to_owned()]);
        while let Some(name) = next.pop() {
            if !reached.insert(name.clone()) {
                continue;
            }
            let all = self.edges.get(&name).into_iter().flatten();
            for dependency in all.filter(|it| self.members.contains(*it)) {
                if !locked.get(&name).is_some_and(|all| all.contains(dependency)) {
                    faults.push(format!("{name} depends on {dependency}, which its lock lacks"));
                }
                next.push(dependency.clone());
            }
        }
        Ok(faults)
    }

    /// A shortest chain of dependencies from `from` to one of `targets`, both ends included.
    fn chain(&self, from: &str, targets: &BTreeSet<String>) -> Option<Vec<String>> {
        let mut queue = std::collections::VecDeque::from([vec![from.to_owned()]]);
        let mut seen = BTreeSet::from([from.to_owned()]);
        while let Some(chain) = queue.pop_front() {
            let last = chain.last()?;
            if targets.contains(last) {
                return Some(chain);
            }
            for next in self.edges.get(last).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    queue.push_back(chain.iter().cloned().chain([next.clone()]).collect());
                }
            }
        }
        None
    }
}

impl Layers {
    /// One sentence for each rule that `graph` breaks.
    pub fn faults(&self, graph: &Graph) -> Vec<String> {
        let mut faults = Vec::new();
        for member in &graph.members {
            let Some(layer) = self.crates.get(member) else {
                faults.push(format!(
                    "{member} has no line in xtask/layers.toml: say what it may depend on"
                ));
                continue;
            };
            let ours = graph.edges.get(member).into_iter().flatten();
            for dependency in ours.filter(|name| graph.members.contains(*name)) {
                if !layer.may.contains(dependency) {
                    faults
                        .push(format!("{member} depends on {dependency}, which its layer forbids"));
                }
            }
            if layer.pure
                && let Some(chain) = graph.chain(member, &self.impure)
            {
                faults.push(format!("{member} is pure but reaches {}", chain.join(" → ")));
            }
        }
        for name in self.crates.keys().filter(|name| !graph.members.contains(*name)) {
            faults.push(format!("xtask/layers.toml speaks of {name}, which does not exist"));
        }
        faults
    }
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    #[serde(default)]
    dependencies: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        Graph {
            members: ["engine", "shop"].map(str::to_owned).into(),
            edges: edges
                .iter()
                .map(|(from, to)| ((*from).to_owned(), to.iter().map(|&t| t.to_owned()).collect()))
                .collect(),
        }
    }

    fn layers() -> Layers {
        toml::from_str(
            "impure = [\"sockets\"]\n\
             [crates]\n\
             engine = { pure = true, may = [] }\n\
             shop = { may = [\"engine\"] }\n",
        )
        .unwrap()
    }

    #[test]
    fn what_the_table_allows_passes() {
        let graph = graph(&[("engine", &["maths"]), ("shop", &["engine", "sockets"])]);
        assert_eq!(layers().faults(&graph), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_crate_is_named() {
        let faults = layers().faults(&graph(&[("engine", &["shop"])]));
        assert_eq!(faults, ["engine depends on shop, which its layer forbids"]);
    }

    #[test]
    fn a_pure_crate_reaches_no_socket_through_others() {
        let graph = graph(&[("engine", &["maths"]), ("maths", &["sockets"])]);
        assert_eq!(
            layers().faults(&graph),
            ["engine is pure but reaches engine → maths → sockets"]
        );
    }

    #[test]
    fn a_crate_without_a_line_is_refused() {
        let mut graph = graph(&[]);
        graph.members.insert("stranger".to_owned());
        assert!(layers().faults(&graph)[0].contains("stranger has no line"));
    }

    #[test]
    fn a_dependency_that_another_lock_lacks_is_named() {
        let graph = graph(&[("shop", &["maths", "engine"]), ("engine", &["shop"])]);
        let lock = "version = 4\n[[package]]\nname = \"shop\"\nversion = \"1.0.0\"\n";
        let unlocked = graph.unlocked("shop", lock).unwrap();
        let shop = "shop depends on engine, which its lock lacks";
        assert_eq!(unlocked, [shop, "engine depends on shop, which its lock lacks"]);
        let engine = "[[package]]\nname = \"engine\"\ndependencies = [\"shop\"]\n";
        assert_eq!(graph.unlocked("shop", &format!("{lock}{engine}")).unwrap(), [shop]);
    }
}
