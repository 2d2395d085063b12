//! The doctor tells the truth: where interception works it has proved it, and where it does not it
//! says so.

mod program;
mod stage;

use program::midhopd;
use serde_json::Value;
use stage::Stage;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Examines; gives the exit code and the report.
fn examine(path: Option<&Path>) -> (Option<i32>, Value) {
    let mut command = midhopd();
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.args(["doctor", "--json"]).output().expect("starting the program");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("no report: {error}\n{}", String::from_utf8_lossy(&output.stderr))
    });
    (output.status.code(), report)
}

/// The verdict and detail on everything whose name begins so.
fn verdicts<'a>(report: &'a Value, name: &str) -> Vec<(&'a str, &'a str)> {
    let findings = report["findings"].as_array().expect("findings");
    let wanted = |found: &&Value| found["name"].as_str().is_some_and(|own| own.starts_with(name));
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    findings
        .iter()
        .filter(wanted)
        .map(|found| (text(&found["verdict"]), text(&found["detail"])))
        .collect()
}

#[test]
fn where_interception_works_it_is_proved() {
    if Stage::set().is_none() {
        return;
    }
    let (code, report) = examine(None);
    assert_eq!((code, &report["ok"]), (Some(0), &Value::Bool(true)), "{report:#}");
    let proofs = verdicts(&report, "interception");
    assert_eq!(proofs.len(), 4, "IPv4 and IPv6, early and after connect: {proofs:?}");
    for (verdict, detail) in proofs {
        assert_eq!(verdict, "yes", "{detail}");
        let server_saw = detail.contains("10.77.0.2:") || detail.contains("[fd77::2]:");
        assert!(detail.contains("1048576 bytes") && server_saw, "{detail}");
    }
    for finding in report["findings"].as_array().expect("findings") {
        let whole = finding["verdict"] == "yes" || finding["hint"].is_string();
        assert!(whole, "no hint what to do: {finding}");
    }
}

#[test]
fn the_table_says_the_same() {
    if Stage::set().is_none() {
        return;
    }
    let output = midhopd().arg("doctor").output().expect("starting the program");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(said.contains("✓ interception, IPv6 (after-connect)"), "{said}");
    assert!(said.ends_with("Interception works on this host.\n"), "{said}");
}

/// Puts another `nft` in the way, one that behaves as on a kernel without the expression.
#[test]
fn a_kernel_without_tproxy_is_told() {
    if Stage::set().is_none() {
        return;
    }
    let tools = tempfile::tempdir().expect("a directory");
    let script = "#!/bin/sh\n\
        export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
        [ \"$1\" = --version ] && exec nft --version\n\
        rules=$(cat)\n\
        case $rules in *tproxy*)\n\
          echo 'Error: Could not process rule: No such file or directory' >&2; exit 1;;\n\
        esac\n\
        printf '%s\\n' \"$rules\" | nft -f -\n";
    let nft = tools.path().join("nft");
    std::fs::write(&nft, script).expect("a script");
    std::fs::set_permissions(&nft, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let (code, report) = examine(Some(tools.path()));
    assert_eq!((code, &report["ok"]), (Some(1), &Value::Bool(false)), "{report:#}");
    assert_eq!(verdicts(&report, "nft tproxy")[0].0, "no");
    assert_eq!(verdicts(&report, "nft socket")[0].0, "yes");
    let proofs = verdicts(&report, "interception");
    assert!(
        !proofs.is_empty() && proofs.iter().all(|(verdict, _)| *verdict != "yes"),
        "{proofs:?}"
    );
}
