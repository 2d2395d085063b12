//! The daemon as a program on the stage's gateway, and what it leaves there.
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

/// A directory with a configuration in it.
pub struct Desk {
    directory: TempDir,
}

impl Desk {
    pub fn new(config: &str) -> Self {
        let desk = Self { directory: TempDir::new().expect("a directory") };
        desk.rewrite(config);
        desk
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn config(&self) -> PathBuf {
        self.path().join("midhopd.toml")
    }

    /// Its control socket is its own: tests beside this one have the same host.
    pub fn rewrite(&self, config: &str) {
        let socket = self.socket();
        let control = if config.contains("[control]") {
            String::new()
        } else {
            format!("\n[control]\nsocket = {:?}\n", socket.display().to_string())
        };
        std::fs::write(self.config(), config.to_owned() + &control).expect("a configuration");
    }

    /// What the daemon on this desk reports of itself.
    pub fn status(&self) -> DaemonStatus {
        self.try_status().expect("the daemon answers")
    }

    /// The same; an error while nobody serves the control socket.
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

    /// What it reports of a peer.
    pub fn peer(&self, name: &str) -> PeerStatus {
        self.status().peers.remove(name).unwrap_or_default()
    }

    /// How many reloads it has applied, and how many it has refused.
    pub fn reloads(&self) -> [u64; 2] {
        let counts = self.status().reloads_total;
        ["applied", "refused"].map(|result| counts[result])
    }

    /// Fails if it has logged an error, or panicked anywhere.
    pub fn assert_no_errors(&self) {
        let counts = self.status().log_messages_total;
        assert_eq!(counts["error"], 0, "{}", log_of(self));
    }

    /// The control socket of the daemon.
    pub fn socket(&self) -> PathBuf {
        self.path().join("run/control.sock")
    }

    /// The program, with the arguments to run with the configuration. What it starts it looks for here first.
    pub fn command(&self) -> Command {
        let mut command = midhopd();
        let known = std::env::var_os("PATH").unwrap_or_default();
        let path = [self.path().to_owned()].into_iter().chain(std::env::split_paths(&known));
        command.env("PATH", std::env::join_paths(path).expect("a path"));
        command.arg("run").arg("--config").arg(self.config());
        command
    }

    /// Puts in the place of `program` one that prints `refusal` and fails; it is there until that is dropped.
    pub fn refusing(&self, program: &str, refusal: &str) -> impl Drop + use<> {
        let path = self.path().join(program);
        write_script(&path, &format!("#!/bin/sh\necho '{refusal}' >&2\nexit 1\n"));
        Removed(path)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // Where a test fails, the daemon's log may hold why.
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", log_of(self));
        }
    }
}

/// Puts a copy of a program somewhere.
///
/// A process of its own writes it, as it does a script: what a test beside this one starts at that moment would have
/// the file of this process open for writing until it becomes another program, and nobody can start such a file.
pub fn copy_program(from: impl AsRef<OsStr>, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).stdin(Stdio::null()).status();
    assert!(status.expect("cp starts").success(), "no copy of the program");
}

/// Puts a program that is a script somewhere.
pub fn write_script(path: &Path, script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(path).arg(script);
    let status = shell.stdin(Stdio::null()).status();
    assert!(status.expect("a shell starts").success(), "no script");
}

/// A file that goes with this.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The program: this build's, or that of `MIDHOPD`, for figures of an optimised one.
pub fn midhopd() -> Command {
    let own = || env!("CARGO_BIN_EXE_midhopd").into();
    let mut command = Command::new(std::env::var_os("MIDHOPD").unwrap_or_else(own));
    command
        .stdin(Stdio::null())
        .env_remove("MIDHOPD_LOG")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("MIDHOPD_SOCKET");
    command
}

/// Runs a program inside a namespace to its end.
pub fn output_in(namespace: &Namespace, command: &mut Command) -> Output {
    namespace.run(|| command.output()).expect("entering").expect("starting the program")
}

/// What it wrote to standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A daemon that serves.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts it on the gateway and waits until it reports that it serves.
    pub fn start(stage: &Stage, desk: &Desk) -> Self {
        Self::start_in(&stage.gateway, desk)
    }

    /// The process that has its privileges.
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

    /// Starts it somewhere else.
    pub fn start_in(namespace: &Namespace, desk: &Desk) -> Self {
        Self::start_by(namespace, desk, desk.command())
    }

    /// The same, by a command that starts what its last words are.
    pub fn start_as(namespace: &Namespace, desk: &Desk, mut by: Command) -> Self {
        let command = desk.command();
        by.stdin(Stdio::null()).env_remove("MIDHOPD_LOG");
        by.arg(command.get_program()).args(command.get_args());
        Self::start_by(namespace, desk, by)
    }

    fn start_by(namespace: &Namespace, desk: &Desk, mut command: Command) -> Self {
        let path = desk.path().join("notify");
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let log = std::fs::File::create(desk.path().join("log")).expect("a log");
        command.env("NOTIFY_SOCKET", &path).stderr(log);
        let child = namespace.run(|| command.spawn()).expect("entering").expect("starting midhopd");
        let running = Self { child };
        if let Err(error) = wait_for_ready(&socket) {
            panic!("midhopd did not get ready: {error}\n{}", log_of(desk));
        }
        running
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        kill(pid, signal).expect("a signal");
    }

    /// Signals the process that relays.
    pub fn signal_data_plane(&self, signal: Signal) {
        kill(self.data_plane(), signal).expect("a signal");
    }

    /// By which the system knows the first process.
    pub fn first(&self) -> u32 {
        self.child.id()
    }

    /// By which the system knows the process that relays.
    pub fn id(&self) -> u32 {
        self.data_plane().as_raw().cast_unsigned()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("waiting").is_some()
    }

    /// Waits for its end; gives the exit code.
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

/// The process of a daemon that has a name, of those that its first one has started.
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
            // A read with a timeout is not taken up again after a signal.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(length) => {
                assert_eq!(&notice[..length], b"READY=1");
                return Ok(());
            }
        }
    }
}

/// What the daemon has logged so far, for whoever reads why a test has failed. Nothing decides by it: counters do.
pub fn log_of(desk: &Desk) -> impl std::fmt::Display + use<> {
    wording_of(desk)
}

/// The same where its words are what is tested; `xtask/logs.toml` names the files that do so, and why.
pub fn wording_of(desk: &Desk) -> String {
    let mut text = String::new();
    if let Ok(mut file) = std::fs::File::open(desk.path().join("log")) {
        let _ = file.read_to_string(&mut text);
    }
    text
}

/// What of a daemon's is in the system: its tables, routing rules and routes.
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
        // A table of routes that was never there is an error to `ip`, and nothing to us.
        let listed = String::from_utf8_lossy(&output.stdout);
        traces.extend(listed.lines().map(|line| format!("{}: {line}", command.join(" "))));
    }
    traces
}
