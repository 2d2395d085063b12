//! `midhop reference ns3`: a plan's description for its program, and the handling of each answer.
//! The program here is a script that stores its input; `make ns3` runs the one that is built
//! against ns-3.

use midhop_experiment::Record;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FILE: &str = r#"title = "A proxy in the middle"
duration = "20 s"
[nodes]
client = {}
gateway = { pep = "box" }
server = {}
[links.satellite]
between = ["client", "gateway"]
down = { rate = "2 Mbit/s", queue = "100 packets", loss = "1 %" }
up = { rate = "60 kbit/s", queue = "50 kB" }
delay = "250 ms"
[links.internet]
between = ["gateway", "server"]
rate = "100 Mbit/s"
delay = "10 ms"
queue = "1000 packets"
[peps.box]
legs.satellite = { congestion = "hybla", rtt0 = "50 ms", buffer = "1 MB" }
legs.internet = { congestion = "cubic" }
[transfers.file]
from = "server"
to = "client"
bytes = "1 MB"
flows = 2
"#;

/// A directory with a program that stores its input and answers with `script`.
struct Place(tempfile::TempDir);

impl Place {
    fn new(file: &str, script: &str) -> Self {
        let place = Self(tempfile::tempdir().expect("a directory"));
        fs::write(place.path("file.toml"), file).expect("written");
        let program = place.path("program");
        let input = place.path("input");
        let script = format!("#!/bin/sh\ncat >{}\n{script}\n", input.display());
        // Written by a separate process: otherwise a child that another test starts meanwhile would
        // hold the file open for writing.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""])
            .arg(&program)
            .arg(script);
        assert!(shell.status().expect("a shell starts").success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, more: &[&str]) -> Output {
        let word = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        Command::new(env!("CARGO_BIN_EXE_midhop"))
            .args(["reference", "ns3", &word(&self.path("file.toml"))])
            .args(["--program", &word(&self.path("program"))])
            .args(more)
            .output()
            .expect("midhop runs")
    }
}

#[test]
fn a_plan_goes_in_and_a_report_becomes_a_record() {
    let answer = "echo '0 8000000000 1000000 1000000 12'; echo '0 10000000000 1000000 900000 3'";
    let place = Place::new(FILE, answer);
    let out = place.path("out");
    let to = ["--out", out.to_str().expect("UTF-8"), "--json"];
    let output = place.run(&to);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let input = fs::read_to_string(place.path("input")).expect("its input");
    let held = |line: &str| line.starts_with("leg 0 1 cubic 25000000 ");
    for line in [
        "duration 20000000000",
        "nodes 3",
        // The client is the first node of the link: packets from it go up, packets to it go down.
        "link 0 1 60000 2000000 250000000 50000B 100p 0 0.01",
        "link 1 2 100000000 100000000 10000000 1000p 1000p 0 0",
        "leg 1 0 hybla 50000000 1000000",
        "flow 0 2 0 1000000 0 listener 1",
    ] {
        assert!(input.lines().any(|it| it == line), "{line}: {input}");
    }
    assert!(input.lines().any(held), "a host holds what its path does: {input}");
    assert_eq!(input.matches("\nflow ").count(), 2, "{input}");
    let text = String::from_utf8(output.stdout).expect("text");
    let record = Record::from_json(text.trim()).expect("a record");
    assert_eq!(record.environment.runner, "ns3");
    let file = &record.transfers[0];
    // An incomplete transfer lasted until the end.
    assert!(!file.complete && file.took.as_s_f64() == 20.0, "{file:?}");
    assert_eq!(file.bytes.get(), 1_900_000);
    assert_eq!(file.flows[0].retransmissions, 12);
    // A run with a record is not repeated.
    fs::write(place.path("program"), "#!/bin/sh\nexit 9\n").expect("written");
    let resume = || place.run(&[&to[..], &["--resume"]].concat()).status;
    assert!(resume().success());
    // A record of another build of this version is.
    let kept = out.join("0000.json");
    let mut record = Record::from_json(&fs::read_to_string(&kept).expect("kept")).expect("JSON");
    record.environment.versions.insert("build".to_owned(), "another".to_owned());
    fs::write(&kept, record.to_json().expect("JSON")).expect("written");
    assert!(!resume().success());
}

#[test]
fn a_proxy_that_does_not_take_a_flow_is_not_on_its_way() {
    for (interfaces, via) in [("internet", " 0 listener\n"), ("satellite", " 0 listener 1\n")] {
        let intercept = format!("[peps.box]\nintercept.interfaces = [\"{interfaces}\"]");
        let file = FILE.replace("[peps.box]", &intercept);
        let place = Place::new(&file, "echo '0 1 1 1 0'; echo '0 1 1 1 0'");
        place.run(&[]);
        let input = fs::read_to_string(place.path("input")).expect("its input");
        // The client opens: its SYN comes over the satellite.
        assert!(input.contains(via), "{interfaces}: {input}");
    }
}

#[test]
fn whoever_interrupts_does_not_wait_for_ns_3() {
    let place = Place::new(FILE, "exec sleep 1000");
    let word = |name: &str| place.path(name).to_str().expect("UTF-8").to_owned();
    let mut run = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(["reference", "ns3", &word("file.toml"), "--program", &word("program")])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("midhop runs");
    while !place.path("input").exists() {
        assert_eq!(run.try_wait().expect("its state"), None, "it ended before");
        std::thread::sleep(midhop_testkit::POLL);
    }
    let pid = nix::unistd::Pid::from_raw(run.id().try_into().expect("a process"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("interrupted");
    let mut errors = String::new();
    std::io::Read::read_to_string(&mut run.stderr.take().expect("piped"), &mut errors)
        .expect("read");
    assert_eq!(run.wait().expect("it ends").code(), Some(1), "{errors}");
    assert!(errors.contains("1 of 1 runs"), "{errors}");
}

#[test]
fn the_round_trips_of_ns_3_are_left_as_they_are_where_that_is_asked_for() {
    let place = Place::new(FILE, "echo '0 1 1 1 0'; echo '0 1 1 1 0'");
    place.run(&["--hybla-as-it-is"]);
    let input = fs::read_to_string(place.path("input")).expect("its input");
    assert!(input.contains("leg 1 0 hybla-as-it-is 50000000 1000000\n"), "{input}");
}

#[test]
fn what_is_no_report_is_an_error_and_leaves_no_record() {
    for (script, message) in [
        ("echo '0 1 1'", "ns-3 sent no report of a flow: 0 1 1"),
        ("echo '0 8000000000 1000000 1000000 12'", "no line for a flow"),
        ("echo 'error: no such queue' >&2; exit 64", "no such queue"),
        ("kill -9 $$", "signal: 9"),
    ] {
        let place = Place::new(FILE, script);
        let out = place.path("out");
        let output = place.run(&["--out", out.to_str().expect("UTF-8")]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{script}: {errors}");
        assert!(errors.contains(message), "{script}: {errors}");
        let left = fs::read_dir(&out).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{script}");
    }
}

#[test]
fn what_the_program_for_ns_3_has_not_is_refused_before_anything_runs() {
    let traffic = "[traffic.web]\nkind = \"bulk\"\nfrom = \"server\"\nto = \"client\"\n";
    let with = |from: &str, to: &str| FILE.replace(from, to);
    for (file, message) in [
        (format!("{FILE}{traffic}"), "cross traffic (traffic.web)"),
        (with("congestion = \"hybla\"", "congestion = \"hybla-linux\""), "peps.box.legs.satellite"),
        (with("client = {}", "client = { tcp = { sack = false } }"), "another TCP (nodes.client)"),
        (with("loss = \"1 %\"", "jitter = \"5 ms\""), "ns-3 has no jitter (links.satellite.down)"),
        (
            with("[peps.box]", "[peps.box]\nrules = [{ action = \"bypass\" }]"),
            "no rules (peps.box)",
        ),
        (
            format!(
                "{FILE}[transfers.up]\nfrom = \"client\"\nto = \"server\"\nbytes = \"1 kB\"\ncongestion = \"reno\"\n"
            ),
            "one congestion control (transfers.file and up)",
        ),
        (with("bytes = \"1 MB\"\nflows = 2", "objects = [\"1 kB\"]"), "objects (transfers.file)"),
        (with("bytes = \"1 MB\"", "bytes = \"1 MB\"\ncongestion = \"bbr3\""), "bbr3"),
    ] {
        let place = Place::new(&file, "exit 9");
        let output = place.run(&[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{message}: {errors}");
        assert!(errors.contains(message), "{message}: {errors}");
        assert!(!place.path("input").exists(), "{message}");
    }
    let place = Place::new(FILE, "exit 9");
    fs::remove_file(place.path("program")).expect("removed");
    let output = place.run(&[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("scripts/ns3 crates/midhop/ns3/path.cc"), "{errors}");
}
