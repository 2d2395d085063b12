//! Every kept input of every target, replayed: what a fuzzer found once stays found.

#![expect(clippy::disallowed_methods, reason = "a test reads the files that the repository holds")]

use midhop_fuzz_targets::TARGETS;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
    entries
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .collect()
}

#[test]
fn every_kept_input_holds() {
    for (target, run) in TARGETS {
        let corpus = corpora().join(target);
        let inputs = names(&corpus);
        assert!(!inputs.is_empty(), "{target} has no corpus");
        for input in inputs {
            let bytes = fs::read(corpus.join(&input)).expect("readable");
            // Shown only when the test fails: which input it was.
            println!("fuzz/corpus/{target}/{input}");
            run(&bytes);
        }
    }
}

#[test]
fn every_input_cut_short_holds() {
    for (target, run) in TARGETS {
        let corpus = corpora().join(target);
        for input in names(&corpus) {
            let bytes = fs::read(corpus.join(&input)).expect("readable");
            // Texts are long, and a cut in the middle of a line is like any other.
            let step = (bytes.len() / 64).max(1);
            for length in (0..bytes.len()).step_by(step) {
                println!("the first {length} bytes of fuzz/corpus/{target}/{input}");
                run(&bytes[..length]);
            }
        }
    }
}

#[test]
fn every_target_is_fuzzed_and_every_corpus_replayed() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&corpora()), targets);
    let fuzzed = names(&corpora().join("../fuzz_targets"));
    let files: BTreeSet<String> = targets.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(fuzzed, files);
}
