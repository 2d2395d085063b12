//! The daemon as a program on the stage's gateway, and what it leaves behind there.
use crate::stage::{PATIENCE, Stage, until};
use midhop_status::control::answer::{DaemonStatus, Flows, LiveFlow, PeerStatus};
use midhop_testbed::namespace::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The setup of a daemon: a directory with a configuration in it.
pub struct Setup {
    directory: TempDir,
}

impl Setup {
    pub fn new(config: &str) -> Self {
        let setup = Self { directory: TempDir::new().expect("a directory") };
        setup.rewrite(config);
        setup
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn config(&self) -> PathBuf {
        self.path().join("midhopd.toml")
    }

    /// Each daemon has its own control socket: tests that run in parallel share the host.
    pub fn rewrite(&self, config: &str) {
        let socket = self.socket();
        let control = if config.contains("[control]") {
            String::new()
        } else {
            format!("\n[control]\nsocket = {:?}\n", socket.display().to_string())
        };
        std::fs::write(self.config(), config.to_owned() + &control).expect("a configuration");
    }

    /// The status of this setup's daemon.
    pub fn status(&self) -> DaemonStatus {
        self.try_status().expect("the daemon answers")
    }

    /// The same; an error while the control socket is not served.
    pub fn try_status(&self) -> io::Result<DaemonStatus> {
        self.ask("GET /status", "")
    }

    /// Its live flows.
    pub fn flows(&self) -> Vec<LiveFlow> {
        let flows: Flows = self.ask("POST /flows", "{}").expect("the daemon answers");
        flows.flows
    }

    fn ask<T: DeserializeOwned>(&self, what: &str, body: &str) -> io::Result<T> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = "host: midhopd\r\nconnection: close\r\ncontent-length";
        write!(stream, "{what} HTTP/1.1\r\n{head}: {}\r\n\r\n{body}", body.len())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(body).map_err(io::Error::other)
    }

    /// What it reports about a peer.
    pub fn peer(&self, name: &str) -> PeerStatus {
        self.status().peers.remove(name).unwrap_or_default()
    }

    /// Number of reloads that it has applied, and that it has refused.
    pub fn reloads(&self) -> [u64; 2] {
        let counts = self.status().reloads_total;
        ["applied", "refused"].map(|result| counts[result])
    }

    /// Fails if it has logged an error, or a thread has panicked.
    pub fn assert_no_errors(&self) {
        let counts = self.status().log_messages_total;
        assert_eq!(counts["error"], 0, "{}", log_of(self));
    }

    /// The control socket of the daemon.
    pub fn socket(&self) -> PathBuf {
        self.path().join("run/control.sock")
    }

    /// The program, with the arguments to run this configuration. Programs that it starts are
    /// looked for in this directory first.
    pub fn command(&self) -> Command {
        let mut command = midhopd();
        let known = std::env::var_os("PATH").unwrap_or_default();
        let path = [self.path().to_owned()].into_iter().chain(std::env::split_paths(&known));
        command.env("PATH", std::env::join_paths(path).expect("a path"));
        command.arg("run").arg("--config").arg(self.config());
        command
    }

    /// Replaces `program` by one that prints `refusal` and fails, until the returned value is
    /// dropped.
    pub fn refusing(&self, program: &str, refusal: &str) -> impl Drop + use<> {
        let path = self.path().join(program);
        write_script(&path, &format!("#!/bin/sh\necho '{refusal}' >&2\nexit 1\n"));
        Removed(path)
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        // If a test fails, the daemon's log may contain the reason.
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", log_of(self));
        }
    }
}

/// Copies a program.
///
/// A separate process writes it, as for a script. A child that a parallel test starts at that
/// moment would inherit this process's open file and keep it open for writing until it executes
/// another program, and such a file cannot be executed.
pub fn copy_program(from: impl AsRef<OsStr>, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).stdin(Stdio::null()).status();
    assert!(status.expect("cp starts").success(), "no copy of the program");
}

/// Writes a program that is a script.
pub fn write_script(path: &Path, script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(path).arg(script);
    let status = shell.stdin(Stdio::null()).status();
    assert!(status.expect("a shell starts").success(), "no script");
}

/// A file that is removed with this value.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The program: this build's, or that of `MIDHOPD`, to measure an optimised one.
pub fn midhopd() -> Command {
    let own = || env!("CARGO_BIN_EXE_midhopd").into();
    let mut command = Command::new(std::env::var_os("MIDHOPD").unwrap_or_else(own));
    command
        .stdin(Stdio::null())
        // scripts/test sets this for the test program alone.
        .env_remove("GLIBC_TUNABLES")
        .env_remove("MIDHOPD_LOG")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("MIDHOPD_SOCKET");
    command
}

/// Runs a program inside a namespace until it ends.
pub fn output_in(namespace: &Namespace, command: &mut Command) -> Output {
    namespace.run(|| command.output()).expect("entering").expect("starting the program")
}

/// Its output on standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A daemon that serves.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts it on the gateway and waits until it reports that it serves.
    pub fn start(stage: &Stage, setup: &Setup) -> Self {
        Self::start_in(&stage.gateway, setup)
    }

    /// The process that has the privileges.
    pub fn keeper(&self) -> Pid {
        self.part("midhopd-keeper").expect("a keeper")
    }

    /// The process that relays.
    pub fn data_plane(&self) -> Pid {
        let mut found = None;
        until("there is a data plane", || {
            found = self.part("midhopd-data");
            found.is_some()
        });
        found.expect("a data plane")
    }

    fn part(&self, name: &str) -> Option<Pid> {
        part_of(self.child.id(), name)
    }

    /// Starts it in another namespace.
    pub fn start_in(namespace: &Namespace, setup: &Setup) -> Self {
        Self::start_by(namespace, setup, setup.command())
    }

    /// The same, by a command that starts the program in its last arguments.
    pub fn start_as(namespace: &Namespace, setup: &Setup, mut by: Command) -> Self {
        let command = setup.command();
        by.stdin(Stdio::null()).env_remove("MIDHOPD_LOG");
        by.arg(command.get_program()).args(command.get_args());
        Self::start_by(namespace, setup, by)
    }

    fn start_by(namespace: &Namespace, setup: &Setup, mut command: Command) -> Self {
        let path = setup.path().join("notify");
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let log = std::fs::File::create(setup.path().join("log")).expect("a log");
        command.env("NOTIFY_SOCKET", &path).stderr(log);
        let child = namespace.run(|| command.spawn()).expect("entering").expect("starting midhopd");
        let running = Self { child };
        if let Err(error) = wait_for_ready(&socket) {
            panic!("midhopd did not get ready: {error}\n{}", log_of(setup));
        }
        running
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        kill(pid, signal).expect("a signal");
    }

    /// Sends a signal to the process that relays.
    pub fn signal_data_plane(&self, signal: Signal) {
        kill(self.data_plane(), signal).expect("a signal");
    }

    /// Stops the data plane, until it is continued. No thread of it runs any more when this returns.
    pub fn stop_data_plane(&self) {
        self.signal_data_plane(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.data_plane());
        let is_stopped = |task: io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.expect("a thread").path().join("stat"));
            // Behind the name, which may contain anything.
            stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, it)| it.starts_with('T')))
        };
        until("it stands still", || {
            std::fs::read_dir(&tasks).expect("its threads").all(is_stopped)
        });
    }

    /// The process number of the first process.
    pub fn first(&self) -> u32 {
        self.child.id()
    }

    /// The process number of the process that relays.
    pub fn id(&self) -> u32 {
        self.data_plane().as_raw().cast_unsigned()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("waiting").is_some()
    }

    /// Waits for its end. Returns the exit code.
    pub fn end(mut self) -> Option<i32> {
        until("midhopd ends", || self.has_ended());
        self.child.wait().expect("waiting").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed leaves no daemon behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process with a name, among those that a daemon's first process has started.
pub fn part_of(first: u32, name: &str) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).ok()?;
    let mut parts = children.split_whitespace().filter(|number| {
        let comm = std::fs::read_to_string(format!("/proc/{number}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    });
    let part = parts.next()?.parse().expect("a number");
    assert_eq!(parts.next(), None, "more than one {name}");
    Some(Pid::from_raw(part))
}

/// Waits until a daemon reports on a socket that it serves.
pub fn wait_for_ready(socket: &UnixDatagram) -> io::Result<()> {
    let mut notice = [0; 64];
    loop {
        match socket.recv(&mut notice) {
            // A read with a timeout is not restarted after a signal.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(length) => {
                assert_eq!(&notice[..length], b"READY=1");
                return Ok(());
            }
        }
    }
}

/// What the daemon has logged so far, for readers of a failed test. Tests use counters to decide,
/// and not this text.
pub fn log_of(setup: &Setup) -> impl std::fmt::Display + use<> {
    wording_of(setup)
}

/// The same, for tests of the log's wording; `xtask/logs.toml` lists their files, with reasons.
pub fn wording_of(setup: &Setup) -> String {
    let mut text = String::new();
    if let Ok(mut file) = std::fs::File::open(setup.path().join("log")) {
        let _ = file.read_to_string(&mut text);
    }
    text
}

/// What is left of a daemon in the system: tables, routing rules and routes.
pub fn traces(namespace: &Namespace) -> Vec<String> {
    let mut traces = Vec::new();
    for command in [
        &["nft", "list", "tables"][..],
        &["ip", "-4", "rule", "list", "table", "28008"],
        &["ip", "-6", "rule", "list", "table", "28008"],
        &["ip", "-4", "route", "list", "table", "28008"],
        &["ip", "-6", "route", "list", "table", "28008"],
    ] {
        let output = output_in(namespace, Command::new(command[0]).args(&command[1..]));
        // If a routing table does not exist, `ip` reports an error, which does not matter here.
        let listed = String::from_utf8_lossy(&output.stdout);
        traces.extend(listed.lines().map(|line| format!("{}: {line}", command.join(" "))));
    }
    traces
}
