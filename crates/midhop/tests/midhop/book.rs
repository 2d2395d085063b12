//! The commands in the book and the README work, in blocks and in sentences.
//!
//! A long command is run in a shorter form, and the program is checked to accept the whole one.
//! `MIDHOP_BOOK=all` (`make book-commands`) runs blocks as they are.

use midhop_testkit::pages::{blocks, mentioned, typed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long commands, by their beginning, and the shorter beginning of each. Studies are handled by
/// [`one_cell`].
const LESS: [(&str, &str); 5] = [
    (
        "midhop lab run scenarios/geo-demo.toml",
        "midhop lab run scenarios/geo-demo.toml --set load=flows --set setup=midhop-hybla-plus \
         --set 'links.satellite.down.loss=0 %' --set transfers.flows.seconds=1",
    ),
    (
        "midhop lab run scenarios/tunnel.toml",
        "midhop lab run scenarios/tunnel.toml --set setup=tunnel --set transfers.bulk.seconds=1",
    ),
    (
        "midhop sim run scenarios/geo-demo.toml",
        "midhop sim run scenarios/geo-demo.toml --set load=file --set setup=midhop-hybla-plus",
    ),
    (
        "midhop formulas",
        "midhop formulas --seeds 1 --set congestion=cubic --set 'loss=1 %' --set rtt=50ms \
         --set 'transfers.flow.bytes=160 MB'",
    ),
    ("midhop meter run 192.0.2.1 --seconds 120", "midhop meter run 192.0.2.1 --seconds 1"),
];
/// A cheap cell of each study.
const CELLS: [(&str, &str); 5] = [
    ("far-proxy", "sweep:proxy=small,rtt=30ms"),
    ("geo-onoff", "download:loss=independent,pep=off,congestion=cubic"),
    ("ntn-placement", "download:reading=b,loss=4,setup=S1"),
    ("pepsal-multiflow", "single:reading=each-hop,load=file,setup=newreno"),
    ("tunnel", "page:load=first,setup=tunnel"),
];
/// Commands that a sentence names without their arguments.
const NAMES: [&str; 4] =
    ["midhop orbit trace", "midhop lab up", "midhop lab run", "midhop sim run"];
/// Commands that `crates/midhopd/tests/{book,installed,packages}.rs` run, or that query a daemon
/// which they run.
const OF_THE_DAEMON: [&str; 8] = [
    "midhopd ",
    "target/release/midhopd ",
    "curl -s http://127.0.0.1:9310/",
    "apt ",
    "install ",
    "systemctl ",
    "useradd ",
    "chown ",
];
/// Commands that need two hosts; another test runs them.
const OF_TWO_HOSTS: [&str; 1] = ["midhop meter "];
/// Beside other tests a laboratory is late; whether its results are valid is not tested here.
const LATE: &str = "--lateness '1 s'";
/// How long a program may take to serve.
const PATIENCE: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn begins(command: &str, with: &[&str]) -> bool {
    with.iter().any(|start| format!("{command} ").starts_with(start))
}

fn less(line: &str) -> Option<String> {
    let (long, short) = LESS.into_iter().find(|(long, _)| begins(line, &[&format!("{long} ")]))?;
    Some(line.replacen(long, short, 1))
}

/// One cell of the study that a line runs, in virtual time where the study has a part there.
fn one_cell(line: &str) -> Option<String> {
    let words: Vec<&str> = line.strip_prefix("midhop reproduce ")?.split(' ').collect();
    let (named, options) = words.split_first()?;
    let study = if *named == "all" { "far-proxy" } else { named };
    let cell = CELLS.into_iter().find(|(name, _)| *name == study);
    let (_, cell) = cell.unwrap_or_else(|| panic!("{line}: which cell of {study} is cheap?"));
    let place = if study == "tunnel" { format!("lab {LATE}") } else { "sim".to_owned() };
    let mut short = format!("midhop reproduce {study} --seeds 1 --in {place}");
    if !options.contains(&"--cell") {
        short += &format!(" --cell {cell}");
    }
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match *option {
            "--quick" => {}
            "--in" => drop(options.next()),
            other => short += &format!(" {other}"),
        }
    }
    Some(short)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A reader who has the program and is in the repository, but writes elsewhere.
struct Reader {
    directory: tempfile::TempDir,
    /// The commands that have been run.
    done: BTreeSet<String>,
    /// The daemon on a node of a lab.
    daemon: Option<Serving>,
}

impl Reader {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for shared in ["scenarios", "studies"] {
            let place = directory.path().join(shared);
            std::os::unix::fs::symlink(root().join(shared), place).expect("a link");
        }
        Self { directory, done: BTreeSet::new(), daemon: None }
    }

    fn command(&self, line: &str) -> Command {
        let programs = Path::new(env!("CARGO_BIN_EXE_midhop")).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(line).current_dir(self.directory.path()).stdin(Stdio::null());
        shell.env("PATH", format!("{}:{path}", programs.display()));
        shell.env("MIDHOP_STATE_DIR", self.directory.path().join("state"));
        shell
    }

    fn shell(&self, line: &str) -> Output {
        self.command(line).output().expect("a shell")
    }

    /// Each command is run only once.
    fn must_work(&mut self, document: &str, line: &str, codes: &[i32]) {
        if self.done.insert(line.to_owned()) {
            let output = self.shell(line);
            assert_works(document, line, &output, codes);
        }
    }

    /// Checks that the program knows the command and its options.
    fn must_be_known(&mut self, document: &str, line: &str) {
        self.must_work(document, &format!("{line} --help"), &[0]);
    }

    /// Runs the command of a block, or a shorter form of it unless `all` is set.
    fn follow(&mut self, document: &str, line: &str, all: bool) {
        let own = line.strip_prefix("target/release/midhop ").map(|rest| format!("midhop {rest}"));
        let line = own.as_deref().unwrap_or(line);
        let lab = begins(line, &["midhop lab ", "midhop reproduce tunnel "])
            && !begins(line, &["midhop lab list "]);
        if begins(line, &OF_THE_DAEMON) || begins(line, &OF_TWO_HOSTS) {
            // Run by another test.
        } else if let Some(recipe) = line.strip_prefix("make ") {
            self.make(document, recipe, all);
        } else if lab && (!is_root() || !daemon_is_here()) {
            self.must_be_known(document, line.split(" -- ").next().expect("a command"));
            midhop_testkit::skipped(format!("{line} needs root and a midhopd"));
        } else if let Some(asked) = line.strip_prefix("midhop lab exec client -- curl ") {
            assert_eq!(asked, "http://…", "{document}: what should be asked for?");
            let _server = self.serve("midhop lab exec server --", "python3 -m http.server 80", 80);
            self.must_work(document, &line.replace("http://…", "-sf http://server/"), &[0]);
        } else if let Some(asked) = line.strip_prefix("midhop lab exec gateway -- midhopd ") {
            self.ask_daemon(document, asked);
        } else if let Some(short) = one_cell(line).filter(|_| !all) {
            self.must_be_known(document, line);
            // One cell with one seed need not satisfy the study's claims.
            self.must_work(document, &short, &[0, 2]);
        } else {
            assert!(line.starts_with("midhop "), "{document}: nobody knows how to run {line}");
            let short = less(line).filter(|_| !all);
            if short.is_some() {
                self.must_be_known(document, line);
            }
            let mut run = short.unwrap_or_else(|| line.to_owned());
            if line.starts_with("midhop lab run ") {
                run += &format!(" {LATE}");
            }
            self.must_work(document, &run, &[0]);
        }
    }

    /// Runs a daemon on the gateway of a lab with the configuration from the gateway's guide, or
    /// queries it.
    fn ask_daemon(&mut self, document: &str, asked: &str) {
        let at = |name: &str| self.directory.path().join(name).display().to_string();
        let (config, socket) = (at("midhopd.toml"), at("midhopd.sock"));
        let enter = "midhop lab exec gateway --";
        if asked == "run --config /etc/midhopd.toml" {
            let guide = blocks("toml").into_iter().find(|it| it.document.ends_with("/gateway.md"));
            let guide = guide.expect("the guide's configuration").text;
            let text = format!("{guide}[control]\nsocket = {socket:?}\n");
            std::fs::write(&config, text).expect("written");
            self.daemon = Some(self.serve(enter, &format!("midhopd run --config {config}"), 9310));
            return;
        }
        assert!(self.daemon.is_some(), "{document}: {asked}: no daemon runs");
        let (command, rest) = asked.split_once(' ').unwrap_or((asked, ""));
        let line = format!("{enter} midhopd {command} --socket {socket} {rest}");
        self.must_work(document, &line, &[0]);
    }

    /// Determines what a recipe would do; the commands of our program in it must be known.
    fn make(&mut self, document: &str, recipe: &str, all: bool) {
        let mut make = Command::new("make");
        make.arg(recipe).current_dir(root());
        // Recipes that take as long as this test, or hours, run only with `all`.
        if !(all && matches!(recipe, "build" | "demo")) {
            make.arg("-n");
        }
        let results = format!("RESULTS={}", self.directory.path().join("made").display());
        let output = make.arg(results).output().expect("make");
        assert_works(document, &format!("make {recipe}"), &output, &[0]);
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some(command) = line.strip_prefix("target/release/midhop ") {
                self.must_be_known(document, &format!("midhop {command}"));
            }
        }
    }

    /// Starts a program that serves at a port of a node of a lab, entered by `enter`, and waits
    /// until it does.
    fn serve(&self, enter: &str, line: &str, port: u16) -> Serving {
        let mut server = self.command(&format!("exec {enter} {line}"));
        server.stdout(Stdio::null()).stderr(Stdio::null());
        let serving = Serving(server.spawn().expect("a shell"));
        let listens = |line: &str| line.contains(&format!(":{port:04X} ")) && line.contains(" 0A ");
        let begin = Instant::now();
        loop {
            let sockets =
                self.shell(&format!("{enter} cat /proc/self/net/tcp /proc/self/net/tcp6"));
            if String::from_utf8_lossy(&sockets.stdout).lines().any(listens) {
                return serving;
            }
            assert!(begin.elapsed() < PATIENCE, "{line}: nobody listens at {port}");
            std::thread::sleep(midhop_testkit::POLL);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.daemon.take());
        // A failed test leaves no lab behind.
        let _ = self.shell("midhop lab down");
    }
}

/// A program in the background.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn daemon_is_here() -> bool {
    Path::new(env!("CARGO_BIN_EXE_midhop")).with_file_name("midhopd").is_file()
}

fn assert_works(document: &str, line: &str, output: &Output, codes: &[i32]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(code.is_some_and(|code| codes.contains(&code)), "{document}: {line}\n{errors}");
}

#[test]
fn what_is_to_be_typed_works() {
    let all = std::env::var("MIDHOP_BOOK").as_deref() == Ok("all");
    let mut reader = Reader::new();
    for (document, line) in typed() {
        reader.follow(&document, &line, all);
    }
    for line in ["midhop --version", "midhop lab list", "midhop sim run scenarios/quick.toml"] {
        assert!(reader.done.contains(line), "{line} is not found any more: {:?}", reader.done);
    }
}

#[test]
fn what_sentences_name_works() {
    let mut reader = Reader::new();
    for (document, line) in mentioned(&["midhop ", "make "]) {
        if NAMES.contains(&line.as_str()) {
            reader.must_be_known(&document, &line);
        } else {
            reader.follow(&document, &line, false);
        }
    }
    assert!(reader.done.contains("midhop --version"), "not found any more: {:?}", reader.done);
}

/// The commands for one host and for another, on two nodes of a lab with these names.
#[test]
fn two_hosts_measure_between_them() {
    const HOSTS: &str = "title = \"Two hosts\"\nduration = \"10 s\"\n[nodes]\nhost-a = {}\nhost-b = {}\n\
        [links.link]\nbetween = [\"host-a\", \"host-b\"]\nrate = \"100 Mbit/s\"\ndelay = \"5 ms\"\n\
        [transfers.file]\nfrom = \"host-a\"\nto = \"host-b\"\nbytes = \"1 kB\"\n";
    let controls = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let controls = std::fs::read_to_string(controls).unwrap_or_default();
    if !is_root() || !controls.contains("bbr") {
        midhop_testkit::skipped("two hosts of a lab need root, and BBR in the kernel");
        return;
    }
    let all = std::env::var("MIDHOP_BOOK").as_deref() == Ok("all");
    let mut reader = Reader::new();
    std::fs::write(reader.directory.path().join("hosts.toml"), HOSTS).expect("a scenario");
    reader.must_work("this test", "midhop lab up hosts.toml", &[0]);
    let (mut serving, mut runs, mut linked) = (None, 0, false);
    for (document, line) in typed() {
        if line == "midhop meter serve" {
            let serve = || reader.serve("midhop lab exec host-a --", &line, 5201);
            serving.get_or_insert_with(serve);
        } else if line.starts_with("midhop meter ") {
            assert!(serving.is_some(), "{document}: {line}: nobody serves");
            // It takes most of a minute: only the first one is run.
            if line.starts_with("midhop meter link ") && std::mem::replace(&mut linked, true) {
                continue;
            }
            let line = less(&line).filter(|_| !all).unwrap_or(line).replace("192.0.2.1", "host-a");
            let line = format!("midhop lab exec host-b -- {line}");
            let output = reader.shell(&line);
            assert_works(&document, &line, &output, &[0]);
            let printed = String::from_utf8_lossy(&output.stdout);
            let expected: &[&str] = match line.contains(" meter link ") {
                true => &["[legs.satellite]", "[links.satellite]"],
                false => &["bbr", "complete"],
            };
            assert!(
                expected.iter().all(|part| printed.contains(part)),
                "{document}: {line}\n{printed}"
            );
            runs += 1;
        }
    }
    assert!(runs >= 2, "the documents' measurements are not found any more");
}

#[test]
fn scenarios_in_the_book_are_scenarios() {
    let reader = Reader::new();
    let scenarios = blocks("toml").into_iter().filter(|block| block.text.contains("[nodes]"));
    let mut count = 0;
    for block in scenarios {
        std::fs::write(reader.directory.path().join("it.toml"), &block.text).expect("written");
        let output = reader.shell("midhop sim run it.toml --seeds 1");
        assert_works(&block.document, &block.text, &output, &[0]);
        count += 1;
    }
    assert!(count > 0, "the book has a scenario");
}

/// The shorter form of a command is of the same study, and keeps the options that do not concern
/// the amount.
#[test]
fn less_of_a_study_is_one_cell_of_it() {
    for (line, short) in [
        (
            "midhop reproduce all --quick --report results/studies",
            "midhop reproduce far-proxy --seeds 1 --in sim --cell sweep:proxy=small,rtt=30ms \
             --report results/studies",
        ),
        (
            "midhop reproduce far-proxy --in sim --cell sweep:proxy=ours,rtt=30ms",
            "midhop reproduce far-proxy --seeds 1 --in sim --cell sweep:proxy=ours,rtt=30ms",
        ),
        (
            "midhop reproduce ntn-placement --in lab",
            "midhop reproduce ntn-placement --seeds 1 --in sim --cell download:reading=b,loss=4,setup=S1",
        ),
    ] {
        assert_eq!(one_cell(line).as_deref(), Some(short));
    }
    assert_eq!(one_cell("midhop sim run scenarios/quick.toml"), None);
    assert!(less("midhop formulas").is_some() && less("midhop lab list").is_none());
}
