//! What processes with less privilege can do: these tests start themselves again with less of it.

use midhop_bpf::{
    Algorithm, Hold, LoadError, Missing, Parameters, available, ensure, missing_to_load,
};
use std::{env, process::Command, time::Duration};

/// Set in the process that has less privilege.
const INSIDE: &str = "MIDHOP_BPF_TEST_INSIDE";

/// Whether this is the process with less privilege; if not, starts it through `wrapper` and waits.
fn inside(test: &str, wrapper: &[&str]) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    if let Some(missing) = missing_to_load() {
        midhop_testkit::skipped(missing);
        return false;
    }
    // Registered here, so that the process inside finds something to select.
    let _loaded = ensure(Algorithm::Hybla, &Parameters::default()).expect("the kernel takes it");
    let status = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg(env::current_exe().expect("this test's file"))
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "yes")
        .status()
        .expect("util-linux is installed");
    assert!(status.success(), "{test} failed inside {wrapper:?}");
    false
}

/// Parameters that no other process uses.
fn unregistered() -> Parameters {
    let rtt0 = Duration::from_micros(2_000_000 + u64::from(std::process::id()));
    Parameters { rtt0, ..Parameters::default() }
}

#[test]
fn a_user_namespace_selects_but_does_not_register() {
    let test = "a_user_namespace_selects_but_does_not_register";
    if !inside(test, &["unshare", "--user", "--map-root-user", "--net"]) {
        return;
    }
    assert!(available(Algorithm::Hybla.kernel_name()));
    let loaded = ensure(Algorithm::Hybla, &Parameters::default()).expect("it is registered");
    assert!(matches!(loaded.hold(), Hold::Borrowed), "{:?}", loaded.hold());
    let error = ensure(Algorithm::Hybla, &unregistered()).expect_err("it is not registered");
    assert!(matches!(error, LoadError::NotInitialUserNamespace { .. }), "{error:?}");
    assert!(error.to_string().contains("register it from outside first"), "{error}");
}

#[test]
fn a_process_without_bpf_selects_but_does_not_register() {
    let test = "a_process_without_bpf_selects_but_does_not_register";
    if !inside(test, &["setpriv", "--bounding-set=-all,+net_admin"]) {
        return;
    }
    let loaded = ensure(Algorithm::Hybla, &Parameters::default()).expect("it is registered");
    assert!(matches!(loaded.hold(), Hold::Borrowed), "{:?}", loaded.hold());
    let error = ensure(
        Algorithm::Vegas,
        &Parameters {
            vegas: midhop_bpf::VegasThresholds { alpha: 1, beta: 999, gamma: 1 },
            ..Parameters::default()
        },
    )
    .expect_err("it is not registered");
    let LoadError::NoPrivilege { missing: Missing::Capabilities(names), .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(names, &["CAP_PERFMON", "CAP_BPF"]);
    assert!(error.to_string().contains("run as root"), "{error}");
}

#[test]
fn three_capabilities_are_enough() {
    let test = "three_capabilities_are_enough";
    if !inside(test, &["setpriv", "--bounding-set=-all,+net_admin,+bpf,+perfmon"]) {
        return;
    }
    let loaded = ensure(Algorithm::Hybla, &unregistered()).expect("the kernel takes it");
    assert!(matches!(loaded.hold(), Hold::Own(_)), "{:?}", loaded.hold());
}
