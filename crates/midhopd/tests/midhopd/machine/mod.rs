//! A machine that is administered with a real systemd, in namespaces of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A machine that is not up by then does not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running systemd, with this host's files; what is written there is lost with it.
pub struct Machine {
    systemd: Child,
    /// As the host counts processes.
    pid: String,
    directory: TempDir,
    /// The control group below which its own are.
    group: PathBuf,
}

impl Machine {
    /// Boots one; none, with a word about it, where this host has not what it takes.
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
        // It ends with this thread, however that ends.
        let mut boot = Command::new("setpriv");
        boot.args(["--pdeathsig", "KILL", "unshare", "--mount"]);
        boot.args(["sh", "-c", include_str!("boot.sh"), "sh"]);
        boot.arg(directory.path()).arg(&group).arg(program).arg(repository());
        boot.stdin(Stdio::null()).stdout(console.try_clone().expect("a file")).stderr(console);
        let systemd = boot.spawn().expect("setpriv");
        let mut machine = Self { systemd, pid: String::new(), directory, group };
        machine.is_up().then_some(machine)
    }

    /// Waits until it is up. Not, with a word about it, where it ends before it has its own root.
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

    /// Runs a line of a shell there, in the repository.
    pub fn run(&self, line: &str) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.pid, "--all", "--root", "--"]);
        // Never on the host, whatever has become of the machine.
        let line =
            format!("test -e /machine-of-a-test && cd '{}' && {line}", repository().display());
        enter.args(["sh", "-c", &line]).stdin(Stdio::null()).output().expect("nsenter")
    }

    /// The same, which must work; what it prints.
    #[track_caller]
    pub fn must(&self, line: &str) -> String {
        let output = self.run(line);
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}\n{printed}{errors}{}", self.log());
        printed
    }

    /// Waits until a service has logged it: what a signal asks for follows it.
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
        // Whatever runs in it ends with its first process, for whose end `unshare` waits.
        let killed = Command::new("kill").args(["-KILL", &self.pid]).status();
        if self.pid.is_empty() || !killed.is_ok_and(|status| status.success()) {
            let _ = self.systemd.kill();
        }
        let _ = self.systemd.wait();
        // Its control groups outlive what was in them.
        let _ = Command::new("find").arg(&self.group).args(["-type", "d", "-delete"]).status();
    }
}

fn repository() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    repository.canonicalize().expect("the repository")
}

/// A new one, where the host's hierarchy is mounted.
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
