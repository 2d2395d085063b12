//! The doctor's report is true: if interception works it has tried it, and if it does not work it
//! reports that.

use crate::program::{copy_program, midhopd, write_script};
use crate::stage::{Stage, nft};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs the doctor. Returns the exit code and the report.
fn examine(path: Option<&Path>) -> (Option<i32>, Value) {
    let mut command = midhopd();
    if let Some(path) = path {
        command.env("PATH", path);
    }
    examine_with(command)
}

fn examine_with(mut command: Command) -> (Option<i32>, Value) {
    let output = command.args(["doctor", "--json"]).output().expect("starting the program");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("no report: {error}\n{}", String::from_utf8_lossy(&output.stderr))
    });
    (output.status.code(), report)
}

/// The verdict and detail of every finding whose name begins with `name`.
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

/// In namespaces of an ordinary user, without any privilege of the host.
#[test]
fn it_is_proved_to_an_ordinary_user() {
    if Stage::set().is_none() {
        return;
    }
    let users = std::fs::read_to_string("/proc/self/uid_map").expect("a map of users");
    if users.split_whitespace().last() != Some("4294967295") {
        midhop_testkit::skipped("no other user can be taken on in here, that takes root");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    };
    open(place.path());
    let program = place.path().join("midhopd");
    copy_program(env!("CARGO_BIN_EXE_midhopd"), &program);
    open(&program);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    let output = command.arg(&program).args(["doctor", "--json"]).output().expect("setpriv");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let proofs = verdicts(&report, "interception");
    assert_eq!(proofs.len(), 4, "{report:#}");
    for (verdict, detail) in proofs {
        assert_eq!(verdict, "yes", "{detail}");
    }
}

#[test]
fn the_table_shows_the_same() {
    if Stage::set().is_none() {
        return;
    }
    let output = midhopd().arg("doctor").output().expect("starting the program");
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(stdout.contains("✓ interception, IPv6 (after-connect)"), "{stdout}");
    assert!(stdout.ends_with("Interception works on this host.\n"), "{stdout}");
}

/// Puts another `nft` first in the path, which behaves as on a kernel without the expression.
#[test]
fn a_kernel_without_tproxy_is_reported() {
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
    write_script(&tools.path().join("nft"), script);
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

/// What it reports of the firewall of the stage's gateway, with the line that helps.
fn firewall(stage: &Stage) -> Vec<(String, Option<String>)> {
    let (_, report) = stage.gateway.run(|| examine_with(midhopd())).expect("entering");
    let findings = report["findings"].as_array().expect("findings").iter();
    let named = |it: &&Value| it["name"] == "firewall" || it["name"] == "SYN cookies";
    let found = findings.filter(named).filter(|it| it["verdict"] != "yes");
    found
        .map(|it| {
            let detail = it["detail"].as_str().expect("a detail").to_owned();
            (detail, it["hint"].as_str().map(str::to_owned))
        })
        .collect()
}

fn shell(stage: &Stage, line: &str) {
    let status = stage.gateway.command("sh").args(["-c", line]).status().expect("a shell");
    assert!(status.success(), "{line}");
}

/// Rules of the host that drop the daemon's packets are reported with the line that helps, and this
/// line does help.
#[test]
fn rules_in_the_way_are_reported_with_the_line_that_would_do() {
    let Some(stage) = Stage::set() else { return };
    assert_eq!(firewall(&stage), []);
    nft(
        &stage.gateway,
        "table inet adm { chain i { type filter hook input priority 0; policy drop; \
        iifname lo accept; tcp dport 22 accept; }; \
        chain o { type filter hook output priority 0; policy drop; oifname lo accept; }; }",
    );
    let findings = firewall(&stage);
    assert_eq!(findings.len(), 2, "{findings:?}");
    for (detail, hint) in findings {
        let hint = hint.expect("what would do");
        assert!(detail.contains("inet adm") && hint.starts_with("nft insert rule "), "{hint}");
        shell(&stage, &hint);
    }
    assert_eq!(firewall(&stage), []);
    // A filter with connection tracking lets the daemon's packets pass.
    nft(&stage.gateway, "flush ruleset");
    nft(
        &stage.gateway,
        "table inet adm { chain i { type filter hook input priority 0; policy drop; \
        ct state vmap { established : accept, related : accept, invalid : drop }; }; \
        chain p { type nat hook postrouting priority 100; oifname wan0 masquerade; }; }",
    );
    assert_eq!(firewall(&stage), []);
    nft(
        &stage.gateway,
        "table ip raw { chain p { type filter hook prerouting priority -300; \
        tcp dport 80 notrack; tcp dport 25 drop; meta mark set 0x1000001; }; }",
    );
    nft(
        &stage.gateway,
        "table ip late { chain p { type nat hook postrouting priority 200; \
        oifname wan0 masquerade; }; }",
    );
    shell(&stage, "sysctl -qw net.ipv4.tcp_syncookies=2");
    let findings = firewall(&stage);
    for word in ["notrack", "drops packets", "firewall mark", "ip late p", "every SYN"] {
        assert!(findings.iter().any(|(detail, _)| detail.contains(word)), "{word}: {findings:#?}");
    }
    let late =
        findings.iter().find(|(detail, _)| detail.contains("ip late p")).expect("it was told");
    assert_eq!(late.1.as_deref(), Some("[intercept] hooks = { hold = 201 }"));
}
