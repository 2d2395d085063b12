//! The laws as the BPF programs compute them, inside the kernel's BPF machine, give the outputs of the vectors,
//! and those of the Rust laws for random inputs.
//!
//! A program of its own: libbpf's printing is one hook for the whole process. These tests load an object without the
//! loader's turn for that hook, so what is printed would be in errors of other tests.

use libbpf_rs::{Object, ObjectBuilder, ProgramInput, ProgramMut};
use midhop_bpf::{OBJECTS, missing_to_load};
use midhop_congestion::vectors::{FILES, LAWS, NUMBERS_MAX, read};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use std::ffi::OsString;

/// The object with every law as a program, or `None` where it cannot be loaded: the test is skipped.
fn laws() -> Option<Object> {
    if let Some(missing) = missing_to_load() {
        midhop_testkit::skipped(missing);
        return None;
    }
    let (_, bytes) =
        OBJECTS.iter().find(|(name, _)| *name == "laws.bpf.o").expect("it is among the objects");
    let object = ObjectBuilder::default().open_memory(bytes).expect("an object");
    Some(object.load().expect("the verifier takes every law"))
}

fn program<'object>(object: &'object Object, law: &str) -> ProgramMut<'object> {
    let name = OsString::from(format!("law_{law}"));
    object.progs_mut().find(|program| program.name() == name).expect("a program per law")
}

/// Runs one law in the kernel.
fn run(program: &ProgramMut, inputs: &[u32; NUMBERS_MAX]) -> Vec<u32> {
    let mut vector: Vec<u8> = inputs.iter().flat_map(|number| number.to_ne_bytes()).collect();
    vector.resize(2 * vector.len(), 0xee);
    let given = program
        .test_run(ProgramInput { context_in: Some(&mut vector), ..ProgramInput::default() })
        .expect("the kernel runs it")
        .return_value as usize;
    let outputs = vector[4 * NUMBERS_MAX..].chunks_exact(4);
    outputs.take(given).map(|word| u32::from_ne_bytes(word.try_into().expect("four"))).collect()
}

#[test]
fn every_vector_holds_in_the_kernel() {
    let Some(object) = laws() else { return };
    for (file, text) in FILES {
        for vector in read(file, text).expect("every line is a vector") {
            let got = run(&program(&object, &vector.law), &vector.inputs);
            assert_eq!(got, vector.outputs, "{}: {}", vector.place, vector.law);
        }
    }
}

#[test]
fn the_kernel_and_rust_agree_on_anything() {
    let Some(object) = laws() else { return };
    // Mostly numbers as they occur, sometimes any at all.
    let number = prop_oneof![4 => 0..4096_u32, 3 => 0..2_000_000_u32, 1 => any::<u32>()];
    for law in LAWS {
        let program = program(&object, law.name);
        TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() })
            .run(&prop::array::uniform8(number.clone()), |inputs| {
                prop_assert_eq!(run(&program, &inputs), (law.evaluate)(&inputs), "{}", law.name);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", law.name));
    }
}
