//! `midhop lab` from outside: the commands of a user, on real kernels, as root and as nobody.
//!
//! Figures are compared with physical limits and with each other, never with this machine's speed.

use midhop_experiment::record::Record;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Two nodes over one link of 20 Mbit/s and 2 × 10 ms; `more` is added to the link.
fn scenario(more: &str, transfer: &str) -> String {
    format!(
        "title = \"a test\"\nduration = \"60 s\"\n\
         [nodes]\nclient = {{}}\nserver = {{}}\n\
         [links.link]\nbetween = [\"client\", \"server\"]\nrate = \"20 Mbit/s\"\n\
         delay = \"10 ms\"\n{more}\n\
         [transfers.file]\nfrom = \"server\"\nto = \"client\"\n{transfer}\n"
    )
}

/// A directory for one test: its scenario, and the state of its labs.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new(scenario: &str) -> Self {
        let place = Self(tempfile::tempdir().expect("a directory"));
        fs::write(place.scenario(), scenario).expect("written");
        place
    }

    pub fn scenario(&self) -> PathBuf {
        self.0.path().join("test.toml")
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn midhop(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_midhop"));
        command.arg("lab").args(arguments).env("MIDHOP_STATE_DIR", self.state());
        command.stdin(Stdio::null());
        command
    }

    pub fn lab(&self, arguments: &[&str]) -> Output {
        self.midhop(arguments).output().expect("midhop runs")
    }

    pub fn run(&self, more: &[&str]) -> Vec<Record> {
        let file = self.scenario();
        let arguments = [&["run", file.to_str().expect("a path"), "--json"], more].concat();
        // On a busy machine packets are late; these tests also hold for late packets.
        let output = self.lab(&[&arguments[..], &["--lateness", "10 s"]].concat());
        records(&output)
    }

    /// Directories of labs in the state directory.
    fn labs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state()).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

fn records(output: &Output) -> Vec<Record> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().for_each(crate::records::assert_published);
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

/// Waits for a condition; the deadline only ends a test that has failed anyway.
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that hold for every run, however late its packets were.
fn check(record: &Record, bytes: u64) {
    assert_eq!(record.validity.faults, Vec::<String>::new());
    let transfer = &record.transfers[0];
    assert!(transfer.complete, "{:?}", transfer.flows);
    assert_eq!(transfer.bytes.get(), bytes);
    for flow in &transfer.flows {
        assert!(flow.hash_sent.is_some() && flow.hash_sent == flow.hash_received, "{flow:?}");
        let rtt = flow.rtt_min.expect("a round trip was measured");
        assert!(rtt >= midhop_units::Duration::from_ms(20), "{rtt} is faster than light");
    }
    let limit = transfer.limit.as_ref().expect("this path has a limit");
    assert!(limit.efficiency > 0.0 && limit.efficiency <= 1.0, "{limit:?}");
    for link in &record.links {
        let dropped: u64 = link.drops.values().sum();
        // Packets in flight at the end are in neither count.
        assert!(link.packets_out + dropped <= link.packets_in, "{link:?}");
        assert!(link.packets_out > 0 && link.lateness.is_some(), "{link:?}");
    }
}

fn host() -> String {
    let links = Command::new("ip").args(["-o", "link"]).output().expect("ip runs").stdout;
    String::from_utf8_lossy(&links).into_owned()
}

#[test]
fn a_run_gives_a_valid_record_and_leaves_nothing_behind() {
    let place = Place::new(&scenario("", "bytes = \"500 kB\""));
    let before = host();
    let records = place.run(&[]);
    assert_eq!(records.len(), 1);
    check(&records[0], 500_000);
    assert_eq!(host(), before);
    assert_eq!(place.labs(), Vec::<PathBuf>::new());
}

#[test]
fn ipv6_runs_as_well() {
    let place = Place::new(&scenario("", "bytes = \"200 kB\"\nfamily = \"ipv6\""));
    check(&place.run(&[])[0], 200_000);
}

#[test]
fn packets_are_as_large_as_a_scenario_has_them() {
    let text = scenario("", "bytes = \"1 MB\"") + "[tcp]\npacket = \"1024 B\"\n";
    let place = Place::new(&text);
    let file = place.scenario();
    let output =
        place.lab(&["run", file.to_str().expect("a path"), "--json", "--lateness", "10 s"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let record =
        Record::from_json(String::from_utf8_lossy(&output.stdout).trim()).expect("a record");
    check(&record, 1_000_000);
    let down = &record.links[0];
    // 972 bytes of each are payload; of 1,500 bytes, 1,448 would be.
    let packets = 1_000_000_u64.div_ceil(972);
    assert!((packets..packets * 11 / 10).contains(&down.packets_in), "{down:?}");
    assert!(down.bytes_in <= down.packets_in * 1024, "{down:?}");
}

#[test]
fn every_lost_packet_is_in_the_books_and_is_sent_again() {
    let place = Place::new(&scenario("down = { loss = 0.05 }", "bytes = \"500 kB\""));
    let record = &place.run(&[])[0];
    check(record, 500_000);
    let down = record.links.iter().find(|link| link.direction == "down").expect("two directions");
    let lost = down.drops.get("loss").copied().unwrap_or(0);
    assert!(lost > 0, "5 % of {} packets and none lost", down.packets_in);
    assert!(record.transfers[0].flows[0].retransmissions >= lost, "{down:?}");
}

#[test]
fn a_proxys_satellite_leg_is_in_the_record() {
    let daemon = Path::new(env!("CARGO_BIN_EXE_midhop")).with_file_name("midhopd");
    if !daemon.is_file() {
        midhop_testkit::skipped("there is no midhopd; cargo build -p midhopd");
        return;
    }
    let place = Place::new(
        "title = \"a test\"\nduration = \"60 s\"\n\
         [nodes]\nclient = {}\ngateway = { pep = \"gw\" }\nserver = {}\n\
         [links.satellite]\nbetween = [\"client\", \"gateway\"]\nrate = \"20 Mbit/s\"\n\
         delay = \"40 ms\"\ndown = { loss = 0.02 }\n\
         [links.internet]\nbetween = [\"gateway\", \"server\"]\ndelay = \"5 ms\"\n\
         rate = \"1 Gbit/s\"\n[peps.gw]\n\
         [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"1 MB\"\n",
    );
    let record = &place.run(&[])[0];
    assert_eq!(record.validity.faults, Vec::<String>::new());
    let leg = |link: &str| record.legs.iter().find(|leg| leg.link == link).expect(link);
    let (satellite, internet) = (leg("satellite"), leg("internet"));
    assert_eq!((satellite.node.as_str(), record.legs.len()), ("gateway", 2));
    assert!(satellite.bytes.get() >= 1_000_000, "{satellite:?}");
    assert!(satellite.rtt_min >= Some(midhop_units::Duration::from_ms(80)), "{satellite:?}");
    assert!(internet.rtt_min >= Some(midhop_units::Duration::from_ms(10)), "{internet:?}");
    let down = record
        .links
        .iter()
        .find(|link| link.name == "satellite" && link.direction == "down")
        .expect("two directions");
    // Of the packets lost towards the client, only pure ACKs are not retransmitted: the gateway
    // sends one for the request, one for the client's FIN, and one for each of the meter's later
    // messages.
    let lost = down.drops.get("loss").copied().unwrap_or(0);
    let bare = 8;
    assert!(lost > bare && satellite.retransmissions >= lost - bare, "{lost} lost: {satellite:?}");
    let cwnd = record
        .series
        .iter()
        .find(|series| series.place == "gateway.satellite" && series.quantity == "cwnd");
    assert!(cwnd.is_some_and(|cwnd| cwnd.value.iter().all(|&bytes| bytes > 0.0)), "{cwnd:?}");
}

#[test]
fn cells_and_seeds_run_side_by_side_in_their_own_order() {
    let text = scenario("", "bytes = \"100 kB\"")
        + "[vary]\n\"transfers.file.bytes\" = [\"100 kB\", \"50 kB\", \"150 kB\"]\n";
    let place = Place::new(&text);
    let out = place.0.path().join("out");
    let out = out.to_str().expect("a path");
    let records = place.run(&["--jobs", "3", "--seeds", "2", "--out", out]);
    let sizes: Vec<_> = records.iter().map(|record| record.transfers[0].bytes.get()).collect();
    assert_eq!(sizes, [100_000, 100_000, 50_000, 50_000, 150_000, 150_000]);
    for record in &records {
        check(record, record.transfers[0].bytes.get());
    }
    assert_ne!(records[0].seed, records[1].seed);
    assert_eq!(fs::read_dir(out).expect("a directory").count(), 6);
}

#[test]
fn a_killed_runner_takes_everything_with_it_and_the_next_start_sweeps() {
    let place = Place::new(&scenario("", "seconds = 50"));
    let file = place.scenario();
    let mut runner: Child = place
        .midhop(&["run", file.to_str().expect("a path")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("midhop runs");
    let directory = || place.labs().pop();
    let init = || -> Option<u32> {
        fs::read_to_string(directory()?.join("init")).ok()?.trim().parse().ok()
    };
    // The client's log exists shortly before the client.
    let inside = || init().map(processes_below).unwrap_or_default();
    wait_for("a running transfer: runner and two meters", || {
        directory().is_some_and(|lab| lab.join("run-0/run-file.log").exists())
            && inside().len() >= 3
    });
    let inside = inside();
    let init = init().expect("process 1 is noted");
    runner.kill().expect("killed");
    runner.wait().expect("gone");
    for process in inside.into_iter().chain([init]) {
        wait_for("the end of a process of the lab", || !is_alive(process));
    }
    assert_eq!(place.labs().len(), 1, "killed, it could not clear up itself");
    assert!(place.lab(&["list"]).status.success());
    assert_eq!(place.labs(), Vec::<PathBuf>::new());
}

/// All descendants of a process.
fn processes_below(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    let children: Vec<u32> = if children.is_empty() {
        children_by_status(parent)
    } else {
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    children.iter().flat_map(|&child| [vec![child], processes_below(child)].concat()).collect()
}

/// For kernels that do not list children: the processes whose parent is `parent`.
fn children_by_status(parent: u32) -> Vec<u32> {
    let wanted = format!("PPid:\t{parent}");
    let processes = fs::read_dir("/proc").expect("a list of processes").flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line == wanted)
        })
        .collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn an_interrupted_run_ends_and_clears_up() {
    let place = Place::new(&scenario("", "seconds = 50"));
    let file = place.scenario();
    let runner = place
        .midhop(&["run", file.to_str().expect("a path")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("midhop runs");
    wait_for("a running transfer", || {
        place.labs().pop().is_some_and(|lab| lab.join("run-0/run-file.log").exists())
    });
    let pid = nix::unistd::Pid::from_raw(runner.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("sent");
    let output = runner.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("interrupted"), "{errors}");
    assert_eq!(place.labs(), Vec::<PathBuf>::new());
}

#[test]
fn two_labs_are_held_at_once_and_run_any_program() {
    let place = Place::new(&scenario("", "bytes = \"1 kB\""));
    let file = place.scenario();
    let file = file.to_str().expect("a path");
    for name in ["one", "two"] {
        let output = place.lab(&["up", file, "--name", name]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let exec = |lab: &str, node: &str, script: &str| {
        let output = place.lab(&["exec", "--lab", lab, node, "--", "sh", "-c", script]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Files of the host are visible; other labs and the host's network are not.
    assert_eq!(exec("one", "client", "exit 7"), (Some(7), String::new()));
    let devices = "ip -o link | cut -d: -f2 | cut -d@ -f1 | tr -d ' \\n'";
    assert_eq!(exec("one", "client", devices), (Some(0), "lolink".to_owned()));
    let (code, hosts) = exec("two", "client", "grep -c server /etc/hosts");
    assert_eq!((code, hosts.as_str()), (Some(0), "2"));
    // Programs of two labs serve on the same port.
    let servers: Vec<Child> = ["one", "two"]
        .map(|lab| {
            let mut server = Command::new(env!("CARGO_BIN_EXE_midhop"));
            server.args(["lab", "exec", "--lab", lab, "server", "--"]);
            server.args([env!("CARGO_BIN_EXE_midhop"), "meter", "serve", "--json", "--once"]);
            server.env("MIDHOP_STATE_DIR", place.state()).stdout(Stdio::piped());
            server.spawn().expect("started")
        })
        .into();
    for (lab, mut server) in ["one", "two"].into_iter().zip(servers) {
        use std::io::{BufRead, BufReader};
        let mut lines = BufReader::new(server.stdout.take().expect("piped"));
        let mut ready = String::new();
        lines.read_line(&mut ready).expect("a line");
        assert!(ready.contains("ready"), "{ready}");
        let client = place.lab(&[
            "exec",
            "--lab",
            lab,
            "client",
            "--",
            env!("CARGO_BIN_EXE_midhop"),
            "meter",
            "run",
            "--bytes",
            "10kB",
            "server",
        ]);
        assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
        std::io::copy(&mut lines, &mut std::io::sink()).expect("read to its end");
        assert!(server.wait().expect("it ends").success());
    }
    assert_eq!(place.lab(&["exec", "client", "--", "true"]).status.code(), Some(64), "which lab?");
    for name in ["one", "two"] {
        assert!(place.lab(&["down", name]).status.success());
    }
    assert_eq!(place.labs(), Vec::<PathBuf>::new());
    let nothing = place.lab(&["down"]);
    assert_eq!(nothing.status.code(), Some(64));
}

#[test]
fn nobody_runs_a_lab_without_root() {
    if !nix::unistd::geteuid().is_root() {
        // Without root, every other test of this file covers this case.
        midhop_testkit::skipped("only root can become nobody");
        return;
    }
    let place = Place::new(&scenario("", "bytes = \"200 kB\""));
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).expect("opened");
    fs::create_dir(place.state()).expect("made");
    let nobody = Some(65534);
    std::os::unix::fs::chown(place.state(), nobody, nobody).expect("given away");
    // The user nobody may not have access to the build directory.
    let program = place.0.path().join("midhop");
    // Copied by a separate process: otherwise a child that another test starts meanwhile would hold
    // the file open for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_midhop")).arg(&program).status();
    assert!(copied.expect("cp starts").success());
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
        .arg(&program)
        .args(["lab", "run", "--json", "--lateness", "10 s"])
        .arg(place.scenario())
        .env("MIDHOP_STATE_DIR", place.state())
        .current_dir("/")
        .output()
        .expect("setpriv runs");
    let records = records(&output);
    check(&records[0], 200_000);
    assert!(!records[0].environment.privileged);
    assert_eq!(place.labs(), Vec::<PathBuf>::new());
}

#[test]
fn mistakes_are_usage_errors_that_name_the_place() {
    let place = Place::new(&scenario("colour = \"red\"", "bytes = \"1 kB\""));
    let file = place.scenario();
    let file = file.to_str().expect("a path");
    let code_and_text = |arguments: &[&str]| {
        let output = place.lab(arguments);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = code_and_text(&["run", file]);
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("test.toml") && text.contains("colour"), "{text}");
    let missing = Path::new("/nonexistent.toml").to_str().expect("a path");
    assert_eq!(code_and_text(&["run", missing]).0, Some(64));
    assert_eq!(code_and_text(&["exec", "client", "--", "true"]).0, Some(64));
    assert_eq!(code_and_text(&["run"]).0, Some(64));
}

#[test]
fn a_proxys_mistakes_are_reported_before_anything_starts() {
    let proxied = |legs: &str| {
        scenario("", "bytes = \"1 kB\"").replacen("server = {}", "server = { pep = \"gw\" }", 1)
            + &format!("[peps.gw]\n{legs}\n")
    };
    for (legs, place_and_key, hint) in [
        (
            "legs.link = { conjestion = \"bbr\" }",
            "test.toml:16:15: peps.gw.legs.link.conjestion",
            "did you mean `congestion`?",
        ),
        (
            "intercept.mark = 0",
            "test.toml:16:18: peps.gw.intercept.mark",
            "name five bits that no other firewall rule of this host uses",
        ),
    ] {
        let place = Place::new(&proxied(legs));
        let file = place.scenario();
        let file = file.to_str().expect("a path");
        for arguments in [["run", file], ["up", file]] {
            let output = place.lab(&arguments);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{text}");
            assert!(text.contains(place_and_key), "{text}");
            assert!(text.contains(&format!("hint: {hint}")), "{text}");
            assert!(!place.state().exists(), "nothing was to start");
        }
    }
}

#[test]
fn what_a_daemon_needs_is_missed_before_anything_starts() {
    let daemon = Path::new(env!("CARGO_BIN_EXE_midhop")).with_file_name("midhopd");
    if !daemon.is_file() {
        midhop_testkit::skipped("there is no midhopd; cargo build -p midhopd");
        return;
    }
    let proxied =
        scenario("", "bytes = \"1 kB\"").replacen("server = {}", "server = { pep = \"gw\" }", 1)
            + "[peps.gw]\n";
    let place = Place::new(&proxied);
    let file = place.scenario();
    let file = file.to_str().expect("a path");
    for arguments in [["run", file], ["up", file]] {
        let output = place.midhop(&arguments).env("PATH", place.state()).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("cannot find nft") && text.contains("install nftables"), "{text}");
        assert_eq!(text.matches("error:").count(), 1, "{text}");
        assert!(output.stdout.is_empty(), "nothing was to run");
    }
}

#[test]
fn a_place_that_takes_no_records_is_refused_before_anything_runs() {
    let place = Place::new(&scenario("", "bytes = \"1 kB\""));
    let file = place.scenario();
    let file = file.to_str().expect("a path");
    // A file is in the place of the directory; root may write to any directory.
    let output = place.lab(&["run", file, "--out", file]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(text.contains("no records can be written to") && text.contains("hint: "), "{text}");
    assert!(output.stdout.is_empty(), "nothing was to run");
}

#[test]
fn a_record_that_cannot_be_written_is_reported_and_still_in_the_table() {
    let place = Place::new(&scenario("", "bytes = \"100 kB\""));
    let file = place.scenario();
    let out = place.0.path().join("out");
    // Something else is in the place of the second record.
    fs::create_dir_all(out.join("0001.json/in the way")).expect("made");
    let (file, to) = (file.to_str().expect("a path"), out.to_str().expect("a path"));
    let late = ["--lateness", "10 s"];
    let output =
        place.lab(&[&["run", file, "--seeds", "2", "--json", "--out", to][..], &late].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("0001.json") && text.contains("1 of 2 records were not written"),
        "{text}"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2, "both were measured");
    let mut left: Vec<_> = fs::read_dir(&out)
        .expect("readable")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["0000.json", "0001.json"], "no drafts stay");
}

#[test]
fn an_interrupted_experiment_keeps_what_is_finished() {
    let place = Place::new(&scenario("", "bytes = \"100 kB\""));
    let file = place.scenario();
    let out = place.0.path().join("out");
    let (file, to) = (file.to_str().expect("a path"), out.to_str().expect("a path"));
    let mut run = place
        .midhop(&["run", file, "--seeds", "500", "--jobs", "2", "--lateness", "10 s", "--out", to])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("midhop runs");
    wait_for("the first record", || out.join("0000.json").is_file());
    let pid = nix::unistd::Pid::from_raw(run.id().try_into().expect("a process"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("interrupted");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut run.stderr.take().expect("piped"), &mut text).expect("read");
    assert_eq!(run.wait().expect("it ends").code(), Some(1), "{text}");
    assert!(text.contains("of 500 runs have no record"), "{text}");
    for entry in fs::read_dir(&out).expect("readable") {
        let record = fs::read(entry.expect("an entry").path()).expect("readable");
        check(&serde_json::from_slice(&record).expect("whole"), 100_000);
    }
    assert_eq!(place.labs(), Vec::<PathBuf>::new());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new(&scenario("", "bytes = \"1 kB\""));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = place.midhop(&["list"]).stdout(writer).output().expect("midhop runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{text}");
}

/// A seed gives the same cross traffic in virtual time and on kernels.
#[test]
fn cross_traffic_is_that_of_the_simulator() {
    let from_to = "from = \"server\"\nto = \"client\"\nstop = \"2 s\"";
    let traffic = format!(
        "seconds = 4\n\
         [traffic.bulk]\nkind = \"bulk\"\nflows = 2\n{from_to}\n\
         [traffic.calls]\nkind = \"on-off\"\nrate = \"2 Mbit/s\"\npacket = \"200 B\"\n\
         on = \"50 ms\"\noff = \"50 ms\"\nshape = 1.5\n{from_to}\n\
         [traffic.files]\nkind = \"arrivals\"\nper_second = 20\nbytes = \"10 kB\"\n{from_to}\n\
         [traffic.uploads]\nkind = \"bulk\"\nopens = \"from\"\nfrom = \"client\"\n\
         to = \"server\"\nstop = \"2 s\"\ncongestion = \"reno\"\n\
         [traffic.users]\nkind = \"web\"\nsessions = 100\n{from_to}\n\
         [traffic.video]\nkind = \"constant\"\nrate = \"1 Mbit/s\"\nfamily = \"ipv6\"\n{from_to}\n"
    );
    let place = Place::new(&scenario("", &traffic));
    let lab = place.run(&[]).remove(0);
    assert_eq!(lab.validity.faults, Vec::<String>::new());
    assert!(lab.transfers[0].complete, "{:?}", lab.transfers);
    let mut sim = Command::new(env!("CARGO_BIN_EXE_midhop"));
    let sim = sim.args(["sim", "run", "--json"]).arg(place.scenario()).output().expect("it runs");
    let sim = records(&sim).remove(0);
    let names = ["bulk", "calls", "files", "uploads", "users", "video"];
    assert_eq!(lab.traffic.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), names);
    for (ours, theirs) in lab.traffic.iter().zip(&sim.traffic) {
        assert!(ours.bytes.get() > 0 && ours.goodput.bits_per_s() > 0, "{ours:?}");
        // Users continue when a page has arrived, which depends on time.
        if ours.name != "users" {
            assert_eq!(
                (ours.flows, ours.packets_sent),
                (theirs.flows, theirs.packets_sent),
                "{ours:?} {theirs:?}"
            );
        }
        let datagrams = ours.packets_sent > 0;
        assert_eq!(ours.lateness.is_some(), datagrams, "{ours:?}");
        assert!(ours.packets_received <= ours.packets_sent, "{ours:?}");
        assert!(datagrams || ours.complete > 0, "{ours:?}");
        let curve = lab.series.iter().find(|it| it.place == ours.name).expect("a curve");
        assert_eq!(curve.quantity, "goodput");
    }
}

/// A counter of an agent in a run.
fn counted(record: &Record, node: &str, what: &str) -> u64 {
    let at = |it: &&midhop_experiment::record::NodeResult| it.node == node;
    let counts = record.nodes.iter().filter(at).map(|it| it.counts.get(what).copied());
    counts.flatten().sum()
}

/// Agents of the simulator process packets of kernels, of both families.
#[test]
fn agents_on_the_path_meet_packets_of_kernels() {
    let text = "title = \"a test\"\nduration = \"60 s\"\n\
        [nodes]\nclient = {}\nterminal = {}\ngateway = {}\nserver = {}\n\
        [links.lan]\nbetween = [\"client\", \"terminal\"]\nrate = \"100 Mbit/s\"\ndelay = \"1 ms\"\n\
        [links.air]\nbetween = [\"terminal\", \"gateway\"]\nrate = \"20 Mbit/s\"\ndelay = \"5 ms\"\n\
        loss = 0.02\n\
        [links.cable]\nbetween = [\"gateway\", \"server\"]\nrate = \"100 Mbit/s\"\ndelay = \"5 ms\"\n\
        [agents.snoop]\nkind = \"snoop\"\nlinks = [\"air\"]\n\
        [agents.pair]\nkind = \"d-proxy\"\npeers = [\"terminal\", \"gateway\"]\n\
        [agents.thin]\nkind = \"ack-decimation\"\nlinks = [\"air\"]\n\
        [agents.even]\nkind = \"ack-spacing\"\nlinks = [\"air\"]\nrebuild = \"2896 B\"\n\
        [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"2 MB\"\n\
        [vary.agents]\n\
        snoop = { nodes.gateway.agents = [\"snoop\"] }\n\
        pair = { nodes.gateway.agents = [\"pair\"], nodes.terminal.agents = [\"pair\"] }\n\
        acks = { links.air.loss = 0, nodes.terminal.agents = [\"thin\"], nodes.gateway.agents = [\"even\"] }\n\
        [vary.family]\n\
        ipv4 = { transfers.file.family = \"ipv4\" }\nipv6 = { transfers.file.family = \"ipv6\" }\n";
    let place = Place::new(text);
    let records = place.run(&[]);
    assert_eq!(records.len(), 6);
    for record in &records {
        check(record, 2_000_000);
        let some = |node: &str, what: &str| {
            assert!(
                counted(record, node, what) > 0,
                "{what}: {:?} {:?}",
                record.cell,
                record.nodes
            );
        };
        match record.cell.get("agents").map(String::as_str) {
            Some("snoop") => {
                some("gateway", "snoop.segments-cached");
                some("gateway", "snoop.segments-resent");
            }
            Some("pair") => {
                some("gateway", "pair.segments-resent");
                some("terminal", "pair.gaps-filled");
            }
            _ => {
                some("terminal", "thin.acks-left-out");
                some("gateway", "even.acks-made");
                // Each ACK that has been forwarded passes the other agent once, and none that this
                // one has dropped does.
                let gone_on = counted(record, "terminal", "thin.acks")
                    - counted(record, "terminal", "thin.acks-left-out");
                let met = counted(record, "gateway", "even.acks-come");
                assert!(met <= gone_on, "{met} of {gone_on}: {:?}", record.nodes);
                let dropped = record.nodes.iter().find_map(|it| it.drops.get("ack-decimated"));
                assert_eq!(dropped, Some(&counted(record, "terminal", "thin.acks-left-out")));
            }
        }
    }
}

#[test]
fn a_congestion_control_that_others_cannot_have_ends_the_run() {
    let traffic = "bytes = \"10 kB\"\n[traffic.others]\nkind = \"bulk\"\nfrom = \"server\"\n\
        to = \"client\"\ncongestion = \"nobodys\"";
    let place = Place::new(&scenario("", traffic));
    let output = place.lab(&["run", place.scenario().to_str().expect("a path")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("nobodys"), "{errors}");
}
