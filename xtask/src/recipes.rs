//! Every recipe runs: `scripts/recipes.txt` has for each one in the Makefile how CI runs it; every
//! bench belongs to a recipe; and the tests that `make attack` runs exist.

use std::collections::{BTreeMap, BTreeSet};

/// One sentence for each recipe that CI would not run, or that does not exist any more.
pub fn faults(makefile: &str, list: &str, ci: &str) -> Vec<String> {
    let (recipes, mut faults) = (recipes(makefile), Vec::new());
    let mut listed = BTreeMap::new();
    for line in list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(recipe), Some(form @ ("whole" | "short" | "parts")), None) => {
                if listed.insert(recipe, form).is_some() {
                    faults.push(format!("scripts/recipes.txt has {recipe} twice"));
                }
            }
            _ => faults.push(format!("scripts/recipes.txt: `{line}` is no recipe and its form")),
        }
    }
    for recipe in recipes.iter().filter(|recipe| !listed.contains_key(recipe.as_str())) {
        faults.push(format!("scripts/recipes.txt lacks {recipe}: say how CI runs it"));
    }
    let called = called(ci);
    for (recipe, form) in &listed {
        if !recipes.contains(*recipe) {
            faults.push(format!("scripts/recipes.txt has {recipe}, which the Makefile lacks"));
        } else if *form == "whole" && !called.contains(recipe) {
            faults.push(format!(".ci/run does not run `make {recipe}`, which is to run whole"));
        }
    }
    if listed.values().any(|form| *form == "short") && !called.contains("recipes") {
        faults.push(".ci/run does not run `make recipes`".to_owned());
    }
    faults
}

/// One sentence for each bench in a manifest that no recipe runs.
pub fn bench_faults(makefile: &str, manifest: &str) -> Vec<String> {
    let Ok(manifest) = manifest.parse::<toml::Table>() else { return Vec::new() };
    let benches = manifest.get("bench").and_then(toml::Value::as_array).into_iter().flatten();
    benches
        .filter_map(|bench| bench.get("name")?.as_str())
        .filter(|name| !makefile.contains(&format!("--bench {name} ")))
        .map(|name| format!("no recipe of the Makefile runs the bench {name}"))
        .collect()
}

/// One sentence for each line of `scripts/attack.txt` that names no existing module of tests.
pub fn attack_faults(list: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut faults = Vec::new();
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [package, module] = words[..] else {
            faults.push(format!("scripts/attack.txt: `{line}` is no package and module"));
            continue;
        };
        let folder = package.strip_prefix("midhop-").unwrap_or(package);
        let file = format!("crates/{folder}/tests/{folder}/{module}.rs");
        if !exists(&file) {
            faults.push(format!("scripts/attack.txt names {file}, which does not exist"));
        }
    }
    faults
}

/// The targets of a makefile: those with a description, and those declared phony.
fn recipes(makefile: &str) -> BTreeSet<String> {
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let mut recipes = BTreeSet::new();
    for line in makefile.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        if name == ".PHONY" {
            recipes.extend(rest.split_whitespace().map(str::to_owned));
        } else if is_name(name) && !rest.starts_with('=') {
            recipes.insert(name.to_owned());
        }
    }
    recipes
}

/// The recipes that a script makes.
fn called(script: &str) -> BTreeSet<&str> {
    let commands = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    commands.filter_map(|line| line.split_once("make ")?.1.split_whitespace().next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKEFILE: &str = "X := 1\n.PHONY: build run\nbuild: ## Builds\n\t@a\nrun: build ## Runs\n\t@b --bench speed --\n";

    #[test]
    fn a_recipe_that_ci_does_not_run_is_found() {
        let list = "# header\nbuild whole\nrun short\n";
        let ci = "make build\nX=1 make recipes\n";
        assert_eq!(faults(MAKEFILE, list, ci), Vec::<String>::new());
        for (list, ci, fault) in [
            ("build whole\n", ci, "lacks run"),
            (list, "make recipes\n", "does not run `make build`"),
            (list, "# make build\nmake recipes\n", "does not run `make build`"),
            (list, "make build\n", "does not run `make recipes`"),
            ("build whole\nrun short\ngone short\n", ci, "has gone"),
            ("build whole\nrun never\n", ci, "no recipe and its form"),
            ("build whole\nrun short\nrun whole\n", ci, "run twice"),
        ] {
            let faults = faults(MAKEFILE, list, ci);
            assert!(faults.iter().any(|found| found.contains(fault)), "{fault}: {faults:?}");
        }
    }

    #[test]
    fn an_undocumented_recipe_is_a_recipe() {
        assert!(recipes("hidden:\n\t@x\n").contains("hidden"));
        assert!(recipes(".PHONY: other\n").contains("other"));
    }

    #[test]
    fn an_attack_without_a_test_is_found() {
        let exists = |file: &str| file == "crates/tcp/tests/tcp/there.rs";
        let list = "# header\n\nmidhop-tcp there   # why\n";
        assert_eq!(attack_faults(list, exists), Vec::<String>::new());
        assert_eq!(attack_faults("midhop-tcp gone\nmidhop-tcp\n", exists).len(), 2);
    }

    #[test]
    fn a_bench_without_a_recipe_is_found() {
        let bench = |name| format!("[[bench]]\nname = \"{name}\"\nharness = false\n");
        assert_eq!(bench_faults(MAKEFILE, &bench("speed")), Vec::<String>::new());
        assert_eq!(bench_faults(MAKEFILE, &bench("spee")).len(), 1);
    }
}
