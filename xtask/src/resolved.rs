//! Who depends on whom, as `cargo metadata` has it under `resolve`.

use serde::Deserialize;

/// All packages with what they depend on.
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

/// What it depends on, and for what.
#[derive(Deserialize)]
pub struct Dependency {
    pub pkg: String,
    pub dep_kinds: Vec<Kind>,
}

/// What a dependency is for.
#[derive(Deserialize)]
pub struct Kind {
    /// `dev`, `build`, or none for what is linked.
    pub kind: Option<String>,
}
