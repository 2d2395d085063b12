//! What the book and the README tell people to type works.
//!
//! `MIDHOP_BOOK=all` runs what takes long, too (`make book-commands`); else of that it is only checked that
//! the program takes it.

use midhop_pages::{blocks, typed};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What takes long, by how it begins.
const LONG: [&str; 7] = [
    "midhop lab up scenarios/geo-demo.toml",
    "midhop lab down",
    "midhop lab run scenarios/geo-demo.toml",
    "midhop lab run scenarios/tunnel.toml",
    "midhop sim run scenarios/geo-demo.toml",
    "midhop reproduce ",
    "midhop formulas",
];
/// What takes another host or another program.
const ELSEWHERE: [&str; 2] = ["midhop meter ", "midhop lab exec "];
/// What `crates/midhopd/tests/book.rs` runs, or asks of a daemon that it runs.
const OF_THE_DAEMON: [&str; 2] = ["midhopd ", "curl -s http://127.0.0.1:9310/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn begins(command: &str, with: &[&str]) -> bool {
    with.iter().any(|start| format!("{command} ").starts_with(start))
}

/// Runs a line as somebody would who has the program and stands in the repository.
fn shell(directory: &Path, line: &str) -> Output {
    let programs = Path::new(env!("CARGO_BIN_EXE_midhop")).parent().expect("a directory").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).current_dir(directory).env("PATH", format!("{programs}:{path}"));
    shell.output().expect("a shell")
}

fn assert_works(document: &str, line: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{document}: {line}\n{said}");
}

#[test]
fn what_is_to_be_typed_works() {
    let directory = tempfile::tempdir().expect("a directory");
    for shared in ["scenarios", "studies"] {
        let place = directory.path().join(shared);
        std::os::unix::fs::symlink(root().join(shared), place).expect("a link");
    }
    let all = std::env::var("MIDHOP_BOOK").as_deref() == Ok("all");
    let root_here = nix::unistd::geteuid().is_root();
    let mut ran = 0;
    for (document, line) in typed() {
        if let Some(recipe) = line.strip_prefix("make ") {
            // What it does is a test's business of its own.
            let output = Command::new("make").args(["-n", recipe]).current_dir(root()).output();
            assert_works(&document, &line, &output.expect("make"));
        } else if line.starts_with("target/release/") {
            let program = line.split(' ').next().expect("a program");
            assert!(matches!(program, "target/release/midhop" | "target/release/midhopd"));
        } else if begins(&line, &OF_THE_DAEMON) {
            // Run elsewhere.
        } else if begins(&line, &ELSEWHERE) || (begins(&line, &LONG) && !all) {
            let taken = line.split(" -- ").next().expect("a command");
            let output = shell(directory.path(), &format!("{taken} --help"));
            assert_works(&document, &line, &output);
        } else if line.starts_with("midhop lab run") && !root_here {
            midhop_skips::skipped(format!("{line} needs privileges"));
        } else {
            assert!(line.starts_with("midhop "), "{document}: nobody knows how to run {line}");
            // Beside other tests a laboratory is late; whether it may be believed then is not asked here.
            let late = if line.starts_with("midhop lab run ") { " --lateness '1 s'" } else { "" };
            assert_works(&document, &line, &shell(directory.path(), &format!("{line}{late}")));
            ran += 1;
        }
    }
    assert!(ran > 5, "the documents' commands are not found any more");
}

#[test]
fn scenarios_in_the_book_are_scenarios() {
    let directory = tempfile::tempdir().expect("a directory");
    let scenarios = blocks("toml").into_iter().filter(|block| block.text.contains("[nodes]"));
    let mut count = 0;
    for block in scenarios {
        std::fs::write(directory.path().join("it.toml"), &block.text).expect("written");
        let output = shell(directory.path(), "midhop sim run it.toml --seeds 1");
        assert_works(&block.document, &block.text, &output);
        count += 1;
    }
    assert!(count > 0, "the book has a scenario");
}
