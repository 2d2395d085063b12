//! The daemon as a program on the stage's gateway, and what it leaves there.
use crate::stage::{PATIENCE, Stage, until};
use midhop_testbed::namespace::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::net::UnixDatagram;
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

    /// The control socket of the daemon.
    pub fn socket(&self) -> PathBuf {
        self.path().join("run/control.sock")
    }

    /// The program, told to run with the configuration. What it starts it looks for here first.
    pub fn command(&self) -> Command {
        let mut command = midhopd();
        let known = std::env::var_os("PATH").unwrap_or_default();
        let path = [self.path().to_owned()].into_iter().chain(std::env::split_paths(&known));
        command.env("PATH", std::env::join_paths(path).expect("a path"));
        command.arg("run").arg("--config").arg(self.config());
        command
    }

    /// Puts in the place of `program` one that says `refusal` and fails; it is there until that is dropped.
    pub fn refusing(&self, program: &str, refusal: &str) -> impl Drop + use<> {
        let path = self.path().join(program);
        write_script(&path, &format!("#!/bin/sh\necho '{refusal}' >&2\nexit 1\n"));
        Removed(path)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // Where a test fails, what the daemon said may be why.
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

/// What it said to standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A daemon that serves.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts it on the gateway and waits until it says that it serves.
    pub fn start(stage: &Stage, desk: &Desk) -> Self {
        Self::start_in(&stage.gateway, desk)
    }

    /// The process that has its privileges.
    pub fn keeper(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.id());
        let children = std::fs::read_to_string(children).expect("its children");
        let mut words = children.split_whitespace();
        let keeper = words.next().expect("a keeper").parse().expect("a number");
        assert_eq!(words.next(), None, "more than one child");
        Pid::from_raw(keeper)
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
        if let Err(error) = hear_ready(&socket) {
            panic!("midhopd did not get ready: {error}\n{}", log_of(desk));
        }
        running
    }

    /// The process, where it was started by nothing that stays.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        kill(pid, signal).expect("a signal");
    }

    /// By which the system knows it.
    pub fn id(&self) -> u32 {
        self.child.id()
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

/// Waits until a daemon says to a socket that it serves.
pub fn hear_ready(socket: &UnixDatagram) -> io::Result<()> {
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

/// What the daemon has logged so far.
pub fn log_of(desk: &Desk) -> String {
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
        let said = String::from_utf8_lossy(&output.stdout);
        traces.extend(said.lines().map(|line| format!("{}: {line}", command.join(" "))));
    }
    traces
}
