//! `midhop meter` from a user's view: two processes, their output, their exit codes.

use midhop_testbed::meter::MeterReport;
use midhop_units::Bytes;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

fn midhop(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_midhop"));
    command.arg("meter").args(arguments);
    command
}

/// A serving process, killed when the value is dropped.
struct Serving {
    child: Child,
    out: BufReader<ChildStdout>,
    port: u16,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(more: &[&str]) -> Serving {
    let mut child = midhop(&["serve", "--listen", "127.0.0.1:0", "--json"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("midhop starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line when ready");
    let ready: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let address = ready["ready"].as_str().expect("the bound address");
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    Serving { child, out, port }
}

impl Serving {
    fn measure(&self, arguments: &[&str]) -> Output {
        let host = format!("127.0.0.1:{}", self.port);
        midhop(&["run", &host]).args(arguments).output().expect("midhop runs")
    }
}

fn report(output: &Output) -> MeterReport {
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(midhop_testkit::quantities_as_text(&json, &[]), Vec::<String>::new());
    serde_json::from_slice(&output.stdout).expect("the report is all of standard output")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_download_gives_a_report_and_ends_a_server_that_serves_once() {
    let mut server = serve(&["--once"]);
    let output =
        server.measure(&["--bytes", "300kB", "--flows", "3", "--congestion", "reno", "--json"]);
    assert!(output.status.success(), "{}", error(&output));
    let report = report(&output);
    assert!(report.transfer.complete && report.clock_shared);
    assert_eq!(report.transfer.bytes, Bytes::new(900_000));
    assert_eq!(report.transfer.flows.len(), 3);
    for flow in &report.transfer.flows {
        assert_eq!((flow.congestion.as_str(), flow.server_port), ("reno", server.port));
        assert!(flow.hash_sent.is_some() && flow.hash_sent == flow.hash_received);
    }
    let status = server.child.wait().expect("the server ends");
    assert!(status.success());
    let mut rest = String::new();
    server.out.read_to_string(&mut rest).expect("the server's lines");
    assert_eq!(rest.lines().count(), 3, "{rest}");
    for line in rest.lines() {
        let flow: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let flow = &flow["flow"];
        assert_eq!((&flow["congestion"], &flow["sent_bytes"]), (&"reno".into(), &300_000.into()));
        assert!(flow["took_s"].is_f64() && flow["received_bytes"].is_u64(), "{line}");
    }
}

#[test]
fn a_page_is_shown_as_a_table() {
    let server = serve(&[]);
    let output = server.measure(&["--up", "--page", "1kB,20kB", "--connections", "new"]);
    assert!(output.status.success(), "{}", error(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["bytes agree", "first byte s", "20000", "meter: 21000 bytes", "complete"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn what_is_unfinished_is_reported_and_fails() {
    let server = serve(&[]);
    let output = server.measure(&["--bytes", "900GB", "--time-limit", "300ms", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(!report(&output).transfer.complete);
    assert!(error(&output).contains("time limit"), "{}", error(&output));
}

/// A meter that waits for its start, after its first line.
fn waiting(arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = midhop(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("midhop starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line when ready");
    assert!(line.contains("ready"), "{line}");
    (child, out)
}

/// The result of `child` after the start `start`: its exit code, output and errors.
fn begun(mut child: Child, mut out: BufReader<ChildStdout>, start: &str) -> Output {
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(start.as_bytes()).expect("it reads its start");
    drop(stdin);
    let mut output = Vec::new();
    out.read_to_end(&mut output).expect("its output");
    Output { stdout: output, ..child.wait_with_output().expect("it ends") }
}

#[test]
fn meters_start_when_their_standard_input_has_it() {
    let server = serve(&[]);
    let host = format!("127.0.0.1:{}", server.port);
    let arguments = ["run", &host, "--bytes", "10kB", "--json", "--epoch", "-"];
    let meters = [waiting(&arguments), waiting(&arguments)];
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    let start = (now.tv_sec() + 1) * 1_000_000_000 + now.tv_nsec();
    for (child, out) in meters {
        let output = begun(child, out, &format!("{start}\n"));
        assert!(output.status.success(), "{}", error(&output));
        let report = report(&output);
        // Times count from the common start, and none is before it.
        let first = report.transfer.flows[0].start;
        assert!(report.transfer.complete && !first.is_zero(), "{report:?}");
    }
    for start in ["", "soon\n", "-1\n"] {
        let (child, out) = waiting(&arguments);
        let output = begun(child, out, start);
        assert_eq!(output.status.code(), Some(1), "{start:?}: {output:?}");
        assert_eq!(error(&output).lines().count(), 1, "{start:?}: {}", error(&output));
    }
}

#[test]
fn a_links_tables_are_read_by_those_whom_they_are_for() {
    let server = serve(&["--once", "--link-rate-max", "4 Mbit/s"]);
    let host = format!("127.0.0.1:{}", server.port);
    let measure = |arguments: &[&str]| {
        let link = ["link", &host, "--time", "10"];
        midhop(&[&link, arguments].concat()).output().expect("midhop runs")
    };
    let output = measure(&["--toml"]);
    assert!(output.status.success(), "{}", error(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (leg, link) = text.split_once("\n\n").expect("two tables");
    let plan = midhop_pep::config::Plan::read("printed.toml", leg)
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let leg = plan.legs.iter().find(|leg| leg.name == "satellite").expect("the leg");
    // Loopback is faster than the server's limit: both rates are about its 4 Mbit/s, and reported
    // as lower bounds.
    for rate in [leg.rate, leg.rate_in] {
        let rate = rate.expect("a rate").mbit_per_s();
        assert!(rate > 1.0 && rate < 4.4, "{text}");
    }
    assert!(leg.rtt.is_some() && text.matches("at least").count() == 2, "{text}");
    let scenario = format!(
        "title = \"t\"\nduration = \"10 s\"\n[nodes]\nterminal = {{}}\ngateway = {{}}\n{link}"
    );
    let scenario = midhop_experiment::Scenario::parse("printed.toml", &scenario)
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(scenario.plans().expect("a plan").len(), 1);
    // Progress is not mixed with data.
    for part in
        ["rate down: a train of 1.00 Mbit/s", "loss up", "note: down: the link carries at least"]
    {
        assert!(error(&output).contains(part), "{part:?} is missing in\n{}", error(&output));
    }
}

#[test]
fn a_links_numbers_have_their_units_in_their_keys() {
    let server = serve(&["--link-rate-max", "2 Mbit/s"]);
    let host = format!("127.0.0.1:{}", server.port);
    let output = midhop(&["link", &host, "--time", "5", "--json"]).output().expect("midhop runs");
    assert!(output.status.success(), "{}", error(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["rtt_median_s"].is_f64(), "{report}");
    for way in ["down", "up"] {
        for key in ["rate_bit_per_s", "loss_high_ratio", "delay_variation_p95_s"] {
            assert!(report[way][key].is_f64(), "{key} in {report}");
        }
    }
    let output = midhop(&["link", &host, "--time", "5"]).output().expect("midhop runs");
    let text = String::from_utf8_lossy(&output.stdout);
    for part in
        ["round trip at rest", "down (to this host)", "[legs.satellite]", "[links.satellite]"]
    {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    // A server that measures no links refuses.
    let server = serve(&["--links-max", "0"]);
    let host = format!("127.0.0.1:{}", server.port);
    let output = midhop(&["link", &host]).output().expect("midhop runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("measures no links"), "{}", error(&output));
}

#[test]
fn an_unknown_congestion_control_is_named() {
    let server = serve(&[]);
    for direction in ["--down", "--up"] {
        let output = server.measure(&["--bytes", "1kB", direction, "--congestion", "nonesuch"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(error(&output).contains("nonesuch") && output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for arguments in [
        &["run", "host"][..],
        &["run", "host", "--bytes", "5"],
        &["run", "host", "--bytes", "5MB", "--seconds", "3"],
        &["run", "host", "--bytes", "5MB", "--parallel", "3"],
        &["run", "host", "--bytes", "5MB", "--epoch", "soon"],
        &["run", "host", "--page", "5MB", "--flows", "3"],
        &["run", "host:port", "--bytes", "5MB"],
        &["run", "127.0.0.1", "--bytes", "5MB", "--flows", "0"],
        &["link"],
        &["link", "host:port"],
        &["link", "host", "--time", "1"],
        &["link", "host", "--json", "--toml"],
        &["serve", "--listen", "5201"],
        &["serve", "--listen", "127.0.0.1"],
    ] {
        let output = midhop(arguments).output().expect("midhop runs");
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {}", error(&output));
    }
}

/// A fault of an address is reported in our words, with what to write.
#[test]
fn addresses_are_refused_with_what_to_write() {
    for (arguments, part) in [
        (&["serve", "--listen", "127.0.0.1"][..], "the port is missing: write 127.0.0.1:PORT"),
        (&["serve", "--listen", "::1:5201"], "write [::1]:5201"),
        (
            &["run", "host", "--bytes", "5MB", "--bind", "10.0.0.1:80"],
            "no port here: write 10.0.0.1",
        ),
        (&["link", "host", "--bind", "[::1]"], "no brackets here: write ::1"),
    ] {
        let output = midhop(arguments).output().expect("midhop runs");
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {}", error(&output));
        assert!(error(&output).contains(part), "{arguments:?}: {}", error(&output));
    }
}

/// A scenario's proxy accepts the same values as the daemon's file.
#[test]
fn a_scenario_s_addresses_are_refused_with_what_to_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("it.toml");
    let demo = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/geo-demo.toml"),
    );
    let demo = demo.expect("a scenario");
    for (keys, part) in [
        (
            "rules = [{ match = { source = \"10.0.0.0/33\" }, action = \"split\" }]",
            "at most 32 bits",
        ),
        ("explicit = { socks5 = \"10.0.0.1\" }", "the port is missing"),
    ] {
        let text = demo.replace("[peps.gw]\n", &format!("[peps.gw]\n{keys}\n"));
        std::fs::write(&file, text).expect("written");
        let output = Command::new(env!("CARGO_BIN_EXE_midhop"))
            .args(["sim", "run"])
            .arg(&file)
            .output()
            .expect("midhop runs");
        assert_eq!(output.status.code(), Some(64), "{keys}: {}", error(&output));
        let message = error(&output);
        assert!(message.contains(part) && message.contains("hint: write "), "{keys}: {message}");
    }
}

#[test]
fn a_port_in_use_is_one_clear_error() {
    let server = serve(&[]);
    let listen = format!("127.0.0.1:{}", server.port);
    let output = midhop(&["serve", "--listen", &listen]).output().expect("midhop runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains(&listen), "{}", error(&output));
}
