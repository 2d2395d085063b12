//! A machine with a real systemd, in namespaces of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time in which a machine must have started.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running systemd, with this host's files. What is written there is discarded with it.
pub struct Machine {
    systemd: Child,
    /// The process number on the host.
    pid: String,
    directory: TempDir,
    /// The control group that contains its own.
    group: PathBuf,
}

impl Machine {
    /// Boots a machine; none, with a message, if this host lacks something for it.
    pub fn boot() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/lib/systemd/systemd").exists() {
            midhop_testkit::skipped("a machine with systemd takes root, and systemd");
            return None;
        }
        let Some(group) = control_group() else {
            midhop_testkit::skipped("a machine with systemd takes a cgroup2 that is mounted");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let program = Path::new(env!("CARGO_BIN_EXE_midhopd")).parent().expect("a directory");
        let console = std::fs::File::create(directory.path().join("said")).expect("a file");
        // The machine ends with this thread.
        let mut boot = Command::new("setpriv");
        boot.args(["--pdeathsig", "KILL", "unshare", "--mount"]);
        boot.args(["sh", "-c", include_str!("boot.sh"), "sh"]);
        boot.arg(directory.path()).arg(&group).arg(program).arg(repository());
        boot.stdin(Stdio::null()).stdout(console.try_clone().expect("a file")).stderr(console);
        let systemd = boot.spawn().expect("setpriv");
        let mut machine = Self { systemd, pid: String::new(), directory, group };
        machine.is_up().then_some(machine)
    }

    /// Waits until it has started. Returns false, with a message, if it ends before it has its own
    /// root directory.
    fn is_up(&mut self) -> bool {
        let begin = Instant::now();
        let file = |name: &str| self.directory.path().join(name);
        let (pid, console) = (file("pid"), file("said"));
        loop {
            let ended = self.systemd.try_wait().expect("a child").is_some();
            let known = std::fs::read_to_string(&pid).unwrap_or_default();
            if let Some(known) = known.strip_suffix('\n') {
                self.pid = known.to_owned();
                let asked = self.run("systemctl is-system-running");
                if asked.stdout == b"running\n" {
                    return true;
                }
            }
            let why = || std::fs::read_to_string(&console).unwrap_or_default();
            if ended && self.pid.is_empty() {
                midhop_testkit::skipped(format!("no machine can be booted here: {}", why()));
                return false;
            }
            assert!(!ended && begin.elapsed() < PATIENCE, "systemd does not come up: {}", why());
            std::thread::sleep(midhop_testkit::POLL * 10);
        }
    }

    /// Runs a shell command there, in the repository.
    pub fn run(&self, line: &str) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.pid, "--all", "--root", "--"]);
        // The command never runs on the host, whatever has happened to the machine.
        let line =
            format!("test -e /machine-of-a-test && cd '{}' && {line}", repository().display());
        enter.args(["sh", "-c", &line]).stdin(Stdio::null()).output().expect("nsenter")
    }

    /// The same for a command that must succeed. Returns its output.
    #[track_caller]
    pub fn must(&self, line: &str) -> String {
        let output = self.run(line);
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}\n{printed}{errors}{}", self.log());
        printed
    }

    /// Waits until a service has logged this, for example as the result of a signal.
    pub fn wait_for(&self, word: &str) {
        self.must(&format!("timeout 60 sh -c 'until grep -q \"{word}\" /said; do :; done'"));
    }

    /// What services have logged.
    pub fn log(&self) -> String {
        text(&self.run("cat /said").stdout)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Everything that runs in it ends with its first process, for which `unshare` waits.
        let killed = Command::new("kill").args(["-KILL", &self.pid]).status();
        if self.pid.is_empty() || !killed.is_ok_and(|status| status.success()) {
            let _ = self.systemd.kill();
        }
        let _ = self.systemd.wait();
        // Its control groups outlive their processes.
        let _ = Command::new("find").arg(&self.group).args(["-type", "d", "-delete"]).status();
    }
}

fn repository() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    repository.canonicalize().expect("the repository")
}

/// Creates a control group, where the host's hierarchy is mounted.
fn control_group() -> Option<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let hierarchy = words.into_iter().find(|words| words.get(2) == Some(&"cgroup2"))?[1].to_owned();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("midhop-machine-{}-{number}", std::process::id());
    let group = Path::new(&hierarchy).join(name);
    std::fs::create_dir(&group).ok()?;
    Some(group)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
