//! The dependencies between packages, from `resolve` in the output of `cargo metadata`.

use serde::Deserialize;

/// All packages with their dependencies.
#[derive(Deserialize)]
pub struct Resolve {
    pub nodes: Vec<Node>,
}

/// One package.
#[derive(Deserialize)]
pub struct Node {
    pub id: String,
    pub deps: Vec<Dependency>,
}

/// A dependency and its kinds.
#[derive(Deserialize)]
pub struct Dependency {
    pub pkg: String,
    pub dep_kinds: Vec<Kind>,
}

/// The kind of a dependency.
#[derive(Deserialize)]
pub struct Kind {
    /// `dev`, `build`, or none for a linked one.
    pub kind: Option<String>,
}
