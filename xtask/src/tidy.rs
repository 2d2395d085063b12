//! What the compiler cannot check: layers, names, file sizes, headers, links in the documents, decisions, recipes, and
//! the record of dependencies.

use crate::decisions::Decisions;
use crate::layers::{Graph, Layers};
use crate::logs::Logs;
use crate::names::{self, Source, Words};
use crate::{circles, hardening, recipes, shown, vetted};
use anyhow::{Context, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// A longer code file has more than one subject.
const LINES_MAX: usize = 700;

/// Runs every check, prints each fault, fails when there is one.
pub fn run() -> anyhow::Result<ExitCode> {
    let root = root()?;
    let files = tracked(&root)?;
    let mut faults = layer_faults(&root)?;
    faults.extend(vetted::faults_at(&root)?);
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| file.to_owned());
    let makefile = read("Makefile")?;
    faults.extend(recipes::faults(&makefile, &read("scripts/recipes.txt")?, &read(".ci/run")?));
    let exists = |file: &str| root.join(file).is_file();
    faults.extend(recipes::attack_faults(&read("scripts/attack.txt")?, exists));
    let tests = |name: &str| {
        let places = [
            format!("crates/midhopd/tests/midhopd/{name}.rs"),
            format!("crates/midhopd/src/{name}/tests.rs"),
            format!("crates/status/src/{name}/tests.rs"),
        ];
        places.iter().find_map(|place| read(place).ok())
    };
    faults.extend(hardening::faults(&read("docs/hardening.md")?, tests));
    let names: Vec<String> = files.iter().map(|it| it.to_string_lossy().into_owned()).collect();
    faults.extend(shown::faults(&read("docs/users.md")?, &names, |file| read(file).ok()));
    faults.extend(test_faults(&files, |main| read(main).ok()));
    faults.extend(name_faults(&root, &files)?);
    let logs: Logs = toml::from_str(&read("xtask/logs.toml")?).context("xtask/logs.toml")?;
    faults.extend(logs.missing(exists));
    let decisions: Decisions =
        toml::from_str(&read("xtask/decisions.toml")?).context("xtask/decisions.toml")?;
    faults.extend(decisions.faults(&names, |file| read(file).ok()));
    for file in &files {
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        faults.extend(code_faults(file, &text));
        if file.ends_with("Cargo.toml") {
            faults.extend(recipes::bench_faults(&makefile, &text));
        }
        faults.extend(document_faults(&root, file, &text));
        faults.extend(machine_path_faults(file, &text));
        faults.extend(logs.faults(&file.to_string_lossy(), &text));
    }
    for fault in &faults {
        println!("tidy: {fault}");
    }
    println!("tidy: {} files, {} faults", files.len(), faults.len());
    Ok(ExitCode::from(u8::from(!faults.is_empty())))
}

/// The repository's root.
pub fn root() -> anyhow::Result<PathBuf> {
    let manifest = env::var("CARGO_MANIFEST_DIR").context("run this through cargo")?;
    Ok(Path::new(&manifest).parent().context("xtask has a parent folder")?.to_owned())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Files under version control, as paths below the root.
pub fn tracked(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let list = output(Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]))?;
    Ok(list.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect())
}

fn layer_faults(root: &Path) -> anyhow::Result<Vec<String>> {
    let rules = fs::read_to_string(root.join("xtask/layers.toml"))?;
    let layers: Layers = toml::from_str(&rules).context("xtask/layers.toml")?;
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let metadata = output(Command::new(cargo).current_dir(root).args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform=x86_64-unknown-linux-gnu",
    ]))?;
    let graph = Graph::parse(&metadata)?;
    let mut faults = layers.faults(&graph);
    // The fuzz targets' own workspace: its lock is written only where cargo-fuzz builds them.
    let lock = fs::read_to_string(root.join("fuzz/Cargo.lock")).context("fuzz/Cargo.lock")?;
    let unlocked = graph.unlocked("midhop-fuzz-targets", &lock)?.into_iter();
    let hint = "cargo metadata --manifest-path fuzz/Cargo.toml writes it";
    faults.extend(unlocked.map(|fault| format!("fuzz/Cargo.lock: {fault} ({hint})")));
    Ok(faults)
}

/// The code of the crates.
pub struct Code(Vec<(String, String, String, bool)>);

impl Code {
    /// Reads it from the tracked files of a checkout.
    pub fn read(root: &Path, files: &[PathBuf]) -> Self {
        let mut texts = Vec::new();
        for file in files.iter().filter(|file| has_extension(file, &["rs"])) {
            let path = file.to_string_lossy().into_owned();
            let parts: Vec<&str> = path.split('/').collect();
            let ["crates", krate, "src", ..] = parts[..] else { continue };
            let is_test = path.ends_with("/tests.rs") || parts.contains(&"tests");
            // A file that is missing is being deleted.
            if let Ok(text) = fs::read_to_string(root.join(file)) {
                texts.push((krate.to_owned(), path, text, is_test));
            }
        }
        Self(texts)
    }

    /// Its files.
    pub fn all(&self) -> Vec<Source<'_>> {
        self.sources(true)
    }

    /// Its files, without those of tests.
    pub fn shipped(&self) -> Vec<Source<'_>> {
        self.sources(false)
    }

    fn sources(&self, tests_too: bool) -> Vec<Source<'_>> {
        let chosen = self.0.iter().filter(|(.., is_test)| tests_too || !is_test);
        chosen.map(|(krate, path, text, _)| Source { krate, path, text }).collect()
    }
}

/// Faults in the names of types, in the map of the code, and of words in identifiers.
fn name_faults(root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let code = Code::read(root, files);
    let (all, shipped) = (code.all(), code.shipped());
    let mut crates: BTreeSet<String> = all.iter().map(|source| source.krate.to_owned()).collect();
    crates.insert("xtask".to_owned());
    let rule = fs::read_to_string(root.join("xtask/words.toml")).context("xtask/words.toml")?;
    let rule: Words = toml::from_str(&rule).context("xtask/words.toml")?;
    let mut faults = names::twice(&shipped);
    faults.extend(circles::faults(&shipped));
    faults.extend(shipped.iter().flat_map(names::aliases));
    faults.extend(names::map_faults(&fs::read_to_string(root.join("ARCHITECTURE.md"))?, &crates));
    faults.extend(names::word_faults(&all, &rule));
    Ok(faults)
}

fn has_extension(file: &Path, extensions: &[&str]) -> bool {
    file.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e))
}

fn code_faults(file: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let shown = file.display();
    let ours = has_extension(file, &["rs", "c", "h", "js", "css", "py"])
        && !file.file_name().is_some_and(|name| name.to_string_lossy().contains(".min."));
    let lines = text.lines().count();
    if ours && lines > LINES_MAX {
        faults.push(format!("{shown} has {lines} lines (at most {LINES_MAX}): find its seam"));
    }
    if has_extension(file, &["rs"]) && !text.starts_with("//!") {
        faults.push(format!("{shown} does not begin by saying what it is (//!)"));
    }
    let manifest = file.file_name().is_some_and(|name| name == "Cargo.toml");
    let member = manifest && text.contains("[package]") && !text.contains("[workspace]");
    if member && !text.contains("[lints]\nworkspace = true") {
        faults.push(format!("{shown} does not inherit the workspace's lints"));
    }
    faults
}

/// A file beside the `main.rs` of a crate's tests has to be one of its modules: otherwise its tests
/// are not run.
fn test_faults(files: &[PathBuf], text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let path = file.to_string_lossy();
        let parts: Vec<&str> = path.split('/').collect();
        let ["crates", krate, "tests", program, name] = parts[..] else { continue };
        let Some(module) = name.strip_suffix(".rs").filter(|name| *name != "main") else {
            continue;
        };
        let main = format!("crates/{krate}/tests/{program}/main.rs");
        let Some(text) = text(&main) else { continue };
        if !text.lines().any(|line| line == format!("mod {module};")) {
            faults.push(format!("{path} is no module of {main}: nobody runs its tests"));
        }
    }
    faults
}

/// Relative links in Markdown must lead to a file.
fn document_faults(root: &Path, file: &Path, text: &str) -> Vec<String> {
    if !has_extension(file, &["md"]) {
        return Vec::new();
    }
    let folder = root.join(file.parent().unwrap_or(Path::new("")));
    text.match_indices("](")
        .filter_map(|(at, _)| text[at + 2..].split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or(target))
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .filter(|target| !folder.join(target).exists())
        .map(|target| format!("{} links to {target}, which does not exist", file.display()))
        .collect()
}

/// A path that exists on one machine only has no place in the repository.
fn machine_path_faults(file: &Path, text: &str) -> Vec<String> {
    // Written in two parts, so that this file does not contain them.
    let forbidden = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];
    text.lines()
        .enumerate()
        .filter(|(_, line)| forbidden.iter().any(|path| line.contains(path)))
        .map(|(number, _)| format!("{}:{} names a path of one machine", file.display(), number + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_and_missing_headers_are_found() {
        let long = format!("//! A header.\n{}", "x\n".repeat(LINES_MAX));
        assert_eq!(code_faults(Path::new("a.rs"), &long).len(), 1);
        assert_eq!(code_faults(Path::new("a.rs"), "fn main() {}\n").len(), 1);
        assert_eq!(code_faults(Path::new("chart.min.js"), &long).len(), 0);
        assert_eq!(code_faults(Path::new("x/Cargo.toml"), "[package]\nname = \"x\"\n").len(), 1);
    }

    #[test]
    fn tests_that_nobody_runs_are_found() {
        let files = ["main", "run", "lost", "stage/mod"];
        let files = files.map(|name| PathBuf::from(format!("crates/x/tests/x/{name}.rs")));
        let main =
            |path: &str| (path == "crates/x/tests/x/main.rs").then(|| "mod run;\n".to_owned());
        let faults = test_faults(&files, main);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("lost"), "{faults:?}");
        assert!(test_faults(&files, |_| None).is_empty(), "fixtures of programs of one file each");
    }

    #[test]
    fn dead_links_are_found() {
        let root = root().unwrap();
        let text = "[a](README.md) [b](https://example.org) [c](#part) [d](no-such-file.md)";
        let faults = document_faults(&root, Path::new("x.md"), text);
        assert!(faults.iter().any(|fault| fault.contains("no-such-file.md")), "{faults:?}");
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let line = format!("see /{}/somebody/notes", "home");
        assert_eq!(machine_path_faults(Path::new("x.md"), &line).len(), 1);
    }
}
