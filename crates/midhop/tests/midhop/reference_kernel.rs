//! `midhop reference`: a cell of some congestion controls on an independently built kernel, compared
//! with the simulator.
//!
//! The machines are in virtual time and take their random numbers from their seed, so their results
//! are the same on every host with the same qemu, however busy it is.

use midhop_experiment::Record;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// The exit code on a host that cannot run such machines.
const UNABLE: i32 = 77;
/// One that losses drive, one with a model of the path, and one of a module. `make reference` has all.
const CONTROLS: [&str; 3] = ["cubic", "bbr", "hybla-linux"];

/// A queue that is too short for all algorithms that fill it: the algorithm decides how much passes,
/// not chance.
const SHORT_QUEUE: &str = r#"
title = "A short queue"
duration = "12 s"
[nodes]
client = {}
server = {}
[links.satellite]
between = ["client", "server"]
rate = "4 Mbit/s"
delay = "50 ms"
queue = "0.25 BDP"
[transfers.download]
from = "server"
to = "client"
seconds = 12
[vary]
"transfers.download.congestion" = ["cubic", "bbr", "hybla-linux"]
"#;

fn midhop(arguments: &[&str], state: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(arguments)
        .env("MIDHOP_STATE_DIR", state)
        .output()
        .expect("midhop runs")
}

/// The pause between two disturbances. The test does not wait for anything else: disturbances go on
/// until the machine has ended.
const UNDISTURBED: Duration = Duration::from_micros(100);

/// As [`midhop`], with its children woken again and again: a busy host wakes a machine's threads at
/// any moment.
fn disturbed(arguments: &[&str], state: &Path) -> Output {
    let midhop = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(arguments)
        .env("MIDHOP_STATE_DIR", state)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("midhop runs");
    let threads = format!("/proc/{}/task", midhop.id());
    let waker = thread::spawn(move || {
        let mut woken = 0;
        while let Ok(threads) = fs::read_dir(&threads) {
            let children = threads
                .flatten()
                .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
            for child in children.collect::<String>().split_whitespace() {
                let status = fs::read_to_string(format!("/proc/{child}/status"));
                let status = status.unwrap_or_default();
                let child = Pid::from_raw(child.parse().expect("a number"));
                // Once it runs, qemu reads this signal where it waits for files, and takes no other
                // action. While it starts a thread, it blocks all signals.
                if status.starts_with("Name:\tqemu")
                    && blocks(&status, Signal::SIGIO)
                    && !blocks(&status, Signal::SIGUSR2)
                    && kill(child, Signal::SIGIO).is_ok()
                {
                    woken += 1;
                }
            }
            thread::sleep(UNDISTURBED);
        }
        woken
    });
    let output = midhop.wait_with_output().expect("it ends");
    let woken: u32 = waker.join().expect("no panic");
    // The number depends on the host's other load, which disturbs as well.
    assert!(woken > 0, "nothing was disturbed");
    output
}

/// Whether the process with this `/proc/PID/status` blocks `signal`.
fn blocks(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

/// The files from which machines with this program start; none where this host cannot run them.
fn machine() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_midhop"));
    let place = program.with_file_name("reference-machine");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/reference-machine");
    let made = Command::new(script).arg(&place).arg(program).output().expect("a shell");
    let errors = String::from_utf8_lossy(&made.stderr);
    if made.status.code() == Some(UNABLE) {
        midhop_testkit::skipped(errors.trim().lines().last().unwrap_or("no reason given"));
        return None;
    }
    assert!(made.status.success(), "{errors}");
    Some(place)
}

#[test]
fn the_kernel_s_own_are_what_the_simulator_has_and_a_machine_repeats_itself() {
    let Some(machine) = machine() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let (file, out) = (place.path().join("short.toml"), place.path().join("records"));
    fs::write(&file, SHORT_QUEUE).expect("written");
    let words = |path: &Path| path.to_string_lossy().into_owned();
    let (file, out, machine) = (words(&file), words(&out), words(&machine));
    let reference = ["reference", "run", &file, "--machine", &machine, "--out", &out, "--json"];
    let output = midhop(&reference, place.path());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let real = records(&output);
    let simulated = records(&midhop(&["sim", "run", &file, "--json"], place.path()));
    assert_eq!(real.len(), CONTROLS.len(), "{errors}");
    for (real, simulated) in real.iter().zip(&simulated) {
        let name = &real.cell["transfers.download.congestion"];
        assert_eq!(real.cell, simulated.cell);
        let passed = [real, simulated].map(|it| it.transfers[0].goodput.mbit_per_s());
        let ratio = passed[1] / passed[0];
        // BBR leaves a queue this short nearly empty, or the link nearly busy.
        assert!((0.85..1.15).contains(&ratio), "{name}: {passed:?} Mbit/s, {ratio}");
        let kernel = name.strip_suffix("-linux").unwrap_or(name);
        assert_eq!(real.transfers[0].flows[0].congestion, kernel);
        // The kernel's own counts: no packet bypassed its queue.
        let down = real.links.iter().find(|link| link.direction == "down").expect("counted");
        assert!(down.bytes_out > real.transfers[0].bytes.get(), "{down:?}");
        assert_eq!(down.drops["loss"], 0, "{down:?}");
    }

    // One of them again, with disturbances: the result is identical bit by bit. A run with a record
    // is not repeated.
    let kept = fs::read(Path::new(&out).join("0001.json")).expect("a record");
    fs::remove_file(Path::new(&out).join("0001.json")).expect("removed");
    let again = disturbed(&[&reference[..], &["--resume"]].concat(), place.path());
    let errors = String::from_utf8_lossy(&again.stderr);
    assert!(errors.contains("2 of 3 runs are there already"), "{errors}");
    assert!(fs::read(Path::new(&out).join("0001.json")).expect("a record") == kept);

    // A kernel's random numbers follow from the seed: the ports of clients are the first visible
    // ones.
    let brief =
        ["duration=2s", "transfers.download.seconds=1", "transfers.download.congestion=cubic"];
    let brief = brief.iter().flat_map(|it| ["--set", it]);
    let seeds = ["reference", "run", &file, "--machine", &machine, "--json", "--seeds", "2"];
    let drawn = records(&midhop(&seeds.into_iter().chain(brief).collect::<Vec<_>>(), place.path()));
    let ports: Vec<u16> = drawn.iter().map(|it| it.transfers[0].flows[0].client_port).collect();
    let distinct: BTreeSet<_> = ports.iter().collect();
    assert_eq!((ports.len(), distinct.len()), (2, 2), "{ports:?}");
}

fn records(output: &Output) -> Vec<Record> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| Record::from_json(line).expect("a record")).collect()
}

#[test]
fn what_netem_cannot_be_is_refused_in_one_line() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("it.toml");
    for (change, why) in [
        (("queue = \"0.25 BDP\"", "jitter = \"5 ms\""), "netem has no jitter"),
        (("queue = \"0.25 BDP\"", "aqm = \"codel\""), "netem has no AQM"),
        (
            ("server = {}", "server = { pep = \"gw\" }\n[peps.gw]"),
            "an emulated machine has no proxy",
        ),
    ] {
        fs::write(&file, SHORT_QUEUE.replace(change.0, change.1)).expect("written");
        let output = midhop(&["reference", "run", &file.to_string_lossy()], place.path());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(why), "{errors}");
    }
    fs::write(&file, SHORT_QUEUE).expect("written");
    let nowhere = place.path().join("nowhere");
    let arguments =
        ["reference", "run", &file.to_string_lossy(), "--machine", &nowhere.to_string_lossy()];
    let output = midhop(&arguments, place.path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(
        errors.contains("is no machine to start") && errors.contains("reference-machine"),
        "{errors}"
    );
}
