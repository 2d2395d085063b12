//! Reads the configuration file, and prints configurations.
//!
//! Serialisation is compiled where it is called by name: here, in a crate that is optimised for
//! size, and not in the data plane's.

use crate::logging;
use midhop_failure::Failure;
use midhop_pep::config::{Match, Plan};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Reads and resolves the configuration in `file`.
///
/// # Errors
/// When the file cannot be read, or is not valid.
pub fn read_plan(file: &Path) -> Result<Plan, Failure> {
    read(file).map(|(plan, _)| plan)
}

/// The same, with the text of the file.
///
/// # Errors
/// As [`read_plan`].
pub fn read(file: &Path) -> Result<(Plan, String), Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("{name} cannot be read"))
            .because(error)
            .hint("name the configuration with --config FILE")
    })?;
    let plan = Plan::read(&name, &text)?;
    logging::check(&plan.log)?;
    Ok((plan, text))
}

/// The plan after a reload from `before`, the text of the previous configuration, to `next`, with
/// the changes that a reload can make. It is `next` itself where this program no longer understands
/// that text.
pub fn after(name: &str, before: &str, next: Plan) -> Plan {
    let Ok(before) = Plan::read(name, before) else { return next };
    let (plan, kept) = before.reloaded(next);
    for key in kept {
        tracing::warn!(key, "the key has changed, which takes effect at the next restart");
    }
    plan
}

/// A plan as TOML, every default included.
///
/// # Errors
/// The reason why TOML cannot represent it.
pub fn as_toml(plan: &Plan) -> Result<String, String> {
    toml::to_string(plan).map_err(|error| error.to_string())
}

/// A plan as JSON.
///
/// # Errors
/// The reason why JSON cannot represent it.
pub fn as_json(plan: &Plan) -> Result<String, String> {
    serde_json::to_string_pretty(plan).map(|json| json + "\n").map_err(|error| error.to_string())
}

/// The conditions of a rule in the configuration's form: a line for each key, none if it matches
/// every flow.
pub fn matches_as_toml(matches: &Match) -> String {
    toml::to_string(matches).unwrap_or_default()
}

/// Distinguishes two plans.
pub fn fingerprint(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    // A plan that cannot be serialized equals no other.
    serde_json::to_string(plan).ok().hash(&mut hasher);
    hasher.finish()
}
