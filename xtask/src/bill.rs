//! The bill of materials of a program, in CycloneDX's JSON: the packages that it is linked with,
//! their authors and licences.
//!
//! The same sources make the same bytes: its time is `SOURCE_DATE_EPOCH`, and it has no serial number.

use crate::linked::{Linked, Package};
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Source: the JSON schema of CycloneDX 1.6.
const VERSION: &str = "1.6";

/// The bill of a program, as the text of a file.
///
/// # Errors
/// When `Cargo.lock` of the workspace at `root` cannot be read.
pub fn text(root: &Path, linked: &Linked, epoch_s: Option<u64>) -> anyhow::Result<String> {
    let lock = root.join("Cargo.lock");
    let lock = std::fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    let bill = bill(linked, &checksums(&lock)?, epoch_s);
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// SHA-256 of each package of a registry, by its name and version.
fn checksums(lock: &str) -> anyhow::Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse()?;
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let word = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    Ok(packages
        .filter_map(|one| {
            Some(((word(one, "name")?, word(one, "version")?), word(one, "checksum")?))
        })
        .collect())
}

fn bill(
    linked: &Linked,
    checksums: &BTreeMap<(String, String), String>,
    epoch_s: Option<u64>,
) -> Value {
    let Linked { program, packages, needs } = linked;
    let mut own = component(program, None);
    own["type"] = json!("application");
    let mut metadata = json!({
        "tools": { "components": [{ "type": "application", "name": "xtask", "version": env!("CARGO_PKG_VERSION") }] },
        "component": own,
    });
    if let Some(epoch_s) = epoch_s {
        metadata["timestamp"] = json!(time(epoch_s));
    }
    let checksum = |one: &Package| checksums.get(&(one.name.clone(), one.version.clone()));
    let dependencies = packages.iter().chain([program]).zip(needs).map(|(one, needs)| {
        let on: Vec<_> = needs.iter().map(|&at| reference(&packages[at])).collect();
        json!({ "ref": reference(one), "dependsOn": on })
    });
    json!({
        "$schema": format!("http://cyclonedx.org/schema/bom-{VERSION}.schema.json"),
        "bomFormat": "CycloneDX",
        "specVersion": VERSION,
        "version": 1,
        "metadata": metadata,
        "components": packages.iter().map(|one| component(one, checksum(one))).collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    })
}

fn component(package: &Package, checksum: Option<&String>) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
    });
    if let Some(description) = &package.description {
        component["description"] =
            json!(description.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(expression) = package.expression() {
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if package.is_third_party() {
        component["purl"] = json!(reference(package));
    }
    if let Some(checksum) = checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// The name of a component in the bill: its package URL, where it has one.
fn reference(package: &Package) -> String {
    // The build metadata after `+` is not part of a version in a registry, and has to be escaped in
    // a URL.
    let version = package.version.replace('+', "%2B");
    match package.is_third_party() {
        true => format!("pkg:cargo/{}@{version}", package.name),
        false => format!("{}@{version}", package.name),
    }
}

/// Seconds since 1970 in the format of RFC 3339.
fn time(epoch_s: u64) -> String {
    let (days, second) = (epoch_s / 86_400, epoch_s % 86_400);
    // Years that begin in March end with the leap day. Source: Hinnant, "chrono-compatible low-level date algorithms".
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z",
        era * 400 + year + later
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linked::tests::example;

    #[test]
    fn a_bill_names_what_is_linked_with_its_licence_and_checksum() {
        let lock = "[[package]]\nname = \"theirs\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n";
        let bill = bill(&example(), &checksums(lock).expect("a lock"), Some(0));
        assert_eq!(bill["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(bill["metadata"]["component"]["type"], "application");
        let theirs = &bill["components"][1];
        assert_eq!(theirs["purl"], "pkg:cargo/theirs@1.0.0");
        assert_eq!(theirs["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(theirs["hashes"][0]["content"], "ab");
        assert_eq!(bill["components"][0]["purl"], Value::Null, "ours is in no registry");
        let last = &bill["dependencies"][2];
        assert_eq!(*last, json!({ "ref": "program@1.0.0", "dependsOn": ["ours@1.0.0"] }));
    }

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
        for (epoch_s, text) in [
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_600, "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(time(epoch_s), text);
        }
    }
}
