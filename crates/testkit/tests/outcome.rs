//! The result of a skipped test, seen from outside: this file starts itself again.

use std::process::{Command, Output};

/// A test that skips itself, in a process of its own.
fn skip(variable: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this test's file"));
    command.args(["--exact", "the_one_that_skips", "--ignored", "--nocapture"]);
    command.env_remove("MIDHOP_SKIPS").envs(variable.map(|value| ("MIDHOP_SKIPS", value)));
    command.output().expect("started")
}

#[test]
#[ignore = "the other tests of this file start it"]
fn the_one_that_skips() {
    midhop_testkit::skipped("there is no\nmoon tonight");
}

#[test]
fn it_is_printed() {
    let output = skip(None);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("skipped: the_one_that_skips"), "{text}");
    assert!(text.contains("moon tonight"), "{text}");
}

#[test]
fn it_fails_where_nothing_may_be_skipped() {
    let output = skip(Some("refuse"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("must not be skipped here"), "{text}");
}

#[test]
fn it_is_listed_one_line_each_time() {
    let list = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("skips");
    let _ = std::fs::remove_file(&list);
    for _ in 0..2 {
        assert!(skip(Some(list.to_str().expect("a path"))).status.success());
    }
    let text = std::fs::read_to_string(&list).expect("it was written");
    std::fs::remove_file(&list).expect("removed");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("the_one_that_skips (crates/testkit/tests/outcome.rs)"), "{text}");
    assert!(lines[0].ends_with(": there is no moon tonight"), "{text}");
}
