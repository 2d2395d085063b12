//! A user's first minute: the version, the demo, hints, tables, and how to continue an interrupted
//! call.

use midhop_testkit::skipped;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn midhop(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_midhop"));
    command.current_dir(ROOT).args(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_version_names_the_commit_that_was_built() {
    let shown = text(&midhop(&["--version"]).stdout);
    let head = Command::new("git").args(["-C", ROOT, "rev-parse", "HEAD"]).output();
    let head = head.ok().filter(|it| it.status.success()).map(|it| text(&it.stdout));
    let version = concat!("midhop ", env!("CARGO_PKG_VERSION"));
    match head.as_deref().and_then(|commit| commit.get(..12)) {
        Some(commit) if Path::new(ROOT).join(".git").exists() => {
            assert_eq!(shown.trim(), format!("{version} ({commit})"));
        }
        _ => assert_eq!(shown.trim(), version),
    }
}

#[test]
fn the_demo_simulates_first_then_measures_and_one_page_has_both() {
    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().display().to_string();
    let few = ["--set", "load=page", "--set", "setup=cubic,midhop-bbr"];
    let short = ["--set", "links.satellite.down.loss=0 %"];
    let page = ["--set", "transfers.page.objects=[\"50 kB\"]"];
    let arguments = [&["demo", "--out", &out][..], &few, &short, &page].concat();
    let demo = midhop(&arguments);
    let (table, errors) = (text(&demo.stdout), text(&demo.stderr));
    let at = |what: &str| table.find(what).unwrap_or_else(|| panic!("{what}: {table}{errors}"));
    at("a pair around the link, simulated");
    if errors.contains("cannot make the lab's namespaces") {
        return skipped("no namespaces can be made here");
    }
    let first = at("page       cubic");
    assert!(at("measured") > first, "{table}");
    // A line for each finished run on kernels. Late runs have more lines, and on a busy machine
    // they may stay late, so that the count does not reach its end.
    let finished = |of: usize| {
        let number = |line: &str| line.trim_start().split(' ').next().map(str::to_owned);
        let ends = format!("/{of}");
        errors.lines().filter_map(number).filter(|it| it.ends_with(&ends)).count()
    };
    assert!(finished(2) >= 2 || finished(1) >= 1, "{errors}");
    let page = std::fs::read_to_string(place.path().join("report.html")).expect("a page");
    for heading in ["Side by side", "Simulated: comparison", "Measured: comparison"] {
        assert!(page.contains(&format!("<h2>{heading}</h2>")), "{heading}: {errors}");
    }
    for records in ["simulated", "records"] {
        let records = std::fs::read_dir(place.path().join(records)).expect("records");
        assert!(records.count() >= 1);
    }
}

#[test]
fn a_table_in_a_file_splits_no_word() {
    let one = ["--set", "load=file", "--set", "links.satellite.down.loss=0 %"];
    let run = midhop(&[&["sim", "run", "scenarios/geo-demo.toml"][..], &one].concat());
    let table = text(&run.stdout);
    assert!(table.lines().any(|line| line.contains(" midhop-hybla-plus ")), "{table}");
    assert!(
        table.starts_with("GEO: no proxy, one at the gateway, a pair around the link, simulated")
    );
}

#[test]
fn words_of_others_are_hinted_at() {
    let refused = |arguments: &[&str], hint: &str| {
        let output = midhop(arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(hint), "{errors}");
    };
    let demo = "scenarios/geo-demo.toml";
    let loss = "did you mean `links.satellite.down.loss`";
    refused(&["sim", "run", demo, "--set", "loss=0.01"], loss);
    refused(&["sim", "run", demo, "--set", "plr=0.01"], loss);
    refused(&["sim", "sweep", demo, "--vary", "loss=0,0.01", "--out", "/nonexistent"], loss);
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("x.toml");
    let name = file.display().to_string();
    let scenario = std::fs::read_to_string(Path::new(ROOT).join(demo)).expect("the demo");
    for (own, others, meant) in [
        ("rate = \"1 Gbit/s\"", "bandwidth = \"1 Gbit/s\"", "rate"),
        ("delay = \"0.2 ms\"", "latency = \"0.2 ms\"", "delay"),
        ("bytes = \"5 MB\"", "size = \"5 MB\"", "bytes"),
        ("seconds = 15", "seconds = 15\ncongestion_control = \"bbr\"", "congestion"),
    ] {
        assert!(scenario.contains(own), "{own}");
        std::fs::write(&file, scenario.replacen(own, others, 1)).expect("written");
        refused(&["sim", "run", &name], &format!("did you mean `{meant}`"));
    }
}

#[test]
fn a_link_that_loses_everything_is_warned_of() {
    let one = ["--set", "setup=cubic", "--set", "load=page", "--set", "duration=20 s"];
    let all = [&["sim", "run", "scenarios/geo-demo.toml"][..], &one].concat();
    let errors = |loss| text(&midhop(&[&all[..], &["--set", loss]].concat()).stderr);
    let all = errors("links.satellite.down.loss=1");
    assert!(all.contains("warning: links.satellite.down.loss is 1: every packet is lost"), "{all}");
    assert!(all.contains("\"1 %\""), "{all}");
    let some = errors("links.satellite.down.loss=0.5");
    assert!(!some.contains("every packet"), "{some}");
}

#[test]
fn an_interrupted_sweep_names_the_command_that_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().join("a sweep").display().to_string();
    // Far more than can finish during the test.
    let arguments = ["sim", "sweep", "scenarios/quick.toml", "--seeds", "5000", "--out", &out];
    let mut child = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .current_dir(ROOT)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let records = place.path().join("a sweep/records.jsonl");
    while std::fs::metadata(&records).map_or(0, |it| it.len()) == 0 {
        let ended = child.try_wait().expect("a process");
        assert_eq!(ended, None, "it ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process"));
    kill(pid, Signal::SIGINT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let again = format!("to go on: midhop {} --out '{out}'", arguments[..5].join(" "));
    assert!(errors.contains(&again), "{errors}");
}

#[test]
fn the_doctor_reports_what_is_there() {
    let output = midhop(&["doctor"]);
    let shown = text(&output.stdout);
    for subject in ["simulator", "midhopd", "laboratory"] {
        assert!(shown.contains(subject), "{shown}{}", text(&output.stderr));
    }
}
