//! Every kept input of every target, replayed: what a fuzzer found once stays found.

use midhop_fuzz_targets::{SLOW, TARGETS};
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
            // Printed only when the test fails: shows which input it was.
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
            // Texts are long, and a cut within a line is like any other.
            let cuts = if SLOW.contains(&target) { 2 } else { 64 };
            let step = (bytes.len() / cuts).max(1);
            for length in (0..bytes.len()).step_by(step) {
                println!("the first {length} bytes of fuzz/corpus/{target}/{input}");
                run(&bytes[..length]);
            }
        }
    }
}

/// The first changes of a fuzzer, with any compiler: bytes that are changed, removed, or doubled. They are the same
/// each time.
#[test]
fn every_input_with_a_few_bytes_changed_holds() {
    const ROUNDS: u64 = 40;
    for (target, run) in TARGETS {
        let corpus = corpora().join(target);
        for input in names(&corpus) {
            let whole = fs::read(corpus.join(&input)).expect("readable");
            let rounds = if SLOW.contains(&target) { ROUNDS / 20 } else { ROUNDS };
            for round in 1..=rounds {
                let bytes = changed(whole.clone(), round);
                println!("fuzz/corpus/{target}/{input}, round {round}: {}", bytes.escape_ascii());
                run(&bytes);
            }
        }
    }
}

/// An input with up to four changes, which `seed` chooses.
fn changed(mut bytes: Vec<u8>, seed: u64) -> Vec<u8> {
    const TELLING: &[u8] = b"0123456789-+.eE, \n\t\0\"=[]{}\xff";
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut below = |limit: usize| {
        // Marsaglia's xorshift: good enough to choose places.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit.max(1) as u64) as usize
    };
    for _ in 0..=below(4) {
        let at = below(bytes.len());
        match below(4) {
            0 if at < bytes.len() => bytes[at] = TELLING[below(TELLING.len())],
            1 if at < bytes.len() => bytes[at] ^= 1 << below(8),
            2 if at < bytes.len() => {
                let until = (at + 1 + below(8)).min(bytes.len());
                bytes.drain(at..until);
            }
            _ => {
                let until = (at + 1 + below(16)).min(bytes.len());
                let again = bytes[at..until].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes
}

#[test]
fn every_target_is_fuzzed_and_every_corpus_replayed() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&corpora()), targets);
    let fuzzed = names(&corpora().join("../fuzz_targets"));
    let files: BTreeSet<String> = targets.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(fuzzed, files);
}
