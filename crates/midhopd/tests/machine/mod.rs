//! A machine that is administered with a real systemd, in namespaces of its own.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A machine that is not up by then does not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running systemd, with this host's files, to which what is written is lost with it.
pub struct Machine {
    systemd: Child,
    /// As the host counts processes.
    pid: String,
    directory: TempDir,
}

impl Machine {
    /// Boots one; none, with a word about it, where this host cannot.
    pub fn boot() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/lib/systemd/systemd").exists() {
            midhop_skips::skipped("a machine with systemd takes root, and systemd");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let program = Path::new(env!("CARGO_BIN_EXE_midhopd")).parent().expect("a directory");
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let repository = repository.canonicalize().expect("the repository");
        let said = std::fs::File::create(directory.path().join("said")).expect("a file");
        let mut boot = Command::new("unshare");
        boot.args(["--mount", "sh", "-c", include_str!("boot.sh"), "sh"]);
        boot.arg(directory.path()).arg(program).arg(repository);
        boot.stdin(Stdio::null()).stdout(said.try_clone().expect("a file")).stderr(said);
        let systemd = boot.spawn().expect("unshare");
        let mut machine = Self { systemd, pid: String::new(), directory };
        machine.wait_until_up();
        Some(machine)
    }

    fn wait_until_up(&mut self) {
        let begin = Instant::now();
        loop {
            let pid = std::fs::read_to_string(self.directory.path().join("pid"));
            self.pid = pid.unwrap_or_default().trim().to_owned();
            let running = |output: Output| output.stdout == b"running\n";
            if !self.pid.is_empty() && running(self.run("systemctl is-system-running")) {
                return;
            }
            let ended = self.systemd.try_wait().expect("a child").is_some();
            let said = std::fs::read_to_string(self.directory.path().join("said"));
            assert!(!ended && begin.elapsed() < PATIENCE, "no systemd: {}", said.expect("a file"));
            std::thread::yield_now();
        }
    }

    /// Runs a line of a shell there, in the repository.
    pub fn run(&self, line: &str) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.pid, "--all", "--root", "--"]);
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let repository = repository.canonicalize().expect("the repository");
        let line = format!("cd '{}' && {line}", repository.display());
        enter.args(["sh", "-c", &line]).stdin(Stdio::null()).output().expect("nsenter")
    }

    /// The same, which must work; what it prints.
    #[track_caller]
    pub fn must(&self, line: &str) -> String {
        let output = self.run(line);
        let (said, errors) = (told(&output.stdout), told(&output.stderr));
        assert!(output.status.success(), "{line}\n{said}{errors}{}", self.said());
        said
    }

    /// What services have said.
    pub fn said(&self) -> String {
        told(&self.run("cat /said").stdout)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Whatever runs in it ends with its first process, for whose end `unshare` waits.
        let killed = Command::new("kill").args(["-KILL", &self.pid]).status();
        if self.pid.is_empty() || !killed.is_ok_and(|status| status.success()) {
            let _ = self.systemd.kill();
        }
        let _ = self.systemd.wait();
        let own = self.systemd.id();
        // Its groups of processes outlive them.
        let remove = format!(
            "mount -t cgroup2 none \"$0\" && find \"$0/midhop-machine-{own}\" -depth -type d -exec rmdir {{}} +"
        );
        let _ = Command::new("unshare")
            .args(["--mount", "sh", "-c", &remove])
            .arg(self.directory.path().join("cgroup"))
            .status();
    }
}

fn told(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
