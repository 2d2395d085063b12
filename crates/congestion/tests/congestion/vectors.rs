//! The Rust laws give the outputs of the vectors. midhop-bpf's tests compare the BPF programs with the same lines.

use midhop_congestion::vectors::{FILES, LAWS, read};

#[test]
fn every_vector_holds() {
    for (file, text) in FILES {
        for vector in read(file, text).expect("every line is a vector") {
            let law = LAWS.iter().find(|law| law.name == vector.law).expect("a known law");
            assert_eq!(
                (law.evaluate)(&vector.inputs),
                vector.outputs,
                "{}: {} {:?}",
                vector.place,
                vector.law,
                vector.inputs
            );
        }
    }
}

#[test]
fn every_law_has_vectors() {
    let vectors: Vec<_> =
        FILES.iter().flat_map(|(file, text)| read(file, text).expect("vectors")).collect();
    for law in LAWS {
        let count = vectors.iter().filter(|vector| vector.law == law.name).count();
        assert!(count >= 3, "{} has {count} vectors", law.name);
    }
}

#[test]
fn a_line_that_is_no_vector_is_named() {
    for line in ["hybla_rho 1 = 2", "hybla_rho 1 2 3 = 4", "unknown 1 = 1", "hybla_rho 1 x = 1"] {
        let error = read("file.txt", &format!("# remark\n{line}")).expect_err(line);
        assert_eq!(error, format!("file.txt:2: {line}"));
    }
}
