//! A `midhopd` on a node.

use crate::namespace::Namespace;
use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take until it serves. Generous: machines may be busy.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Interval at which a start checks whether the daemon still runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What the daemon reports when it serves, in the format of `sd_notify`.
const READY: &str = "READY=1";
/// The part of a log that an error shows. Unit: bytes.
const LOG_TAIL: u64 = 2000;

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// There is no daemon to start.
    #[error(
        "cannot find midhopd beside this program or in PATH; build it (cargo build -p midhopd)"
    )]
    Missing,
    /// nftables is missing, by which a daemon intercepts flows.
    #[error("cannot find nft in PATH, by which midhopd takes flows; install nftables")]
    NoNft,
    /// A file or the process could not be made.
    #[error("cannot {action} for the proxy on {node}: {source}")]
    Start {
        /// The proxy's node.
        node: String,
        /// What was tried.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// It ended or never served.
    #[error("midhopd on {node} {what}; its output:\n{log}")]
    NotReady {
        /// The proxy's node.
        node: String,
        /// What it did instead.
        what: String,
        /// The end of its log.
        log: String,
    },
}

/// A running `midhopd`. Dropping it kills it.
#[derive(Debug)]
pub struct Proxy {
    node: String,
    child: Child,
    log: PathBuf,
}

/// The `midhopd` to run: beside the running program, else in PATH.
///
/// # Errors
/// When there is none.
pub fn find_daemon() -> Result<PathBuf, ProxyError> {
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("midhopd")));
    let beside = beside.filter(|candidate| candidate.is_file());
    beside.or_else(|| in_path("midhopd")).ok_or(ProxyError::Missing)
}

/// Whether a daemon can be started and can intercept flows.
///
/// # Errors
/// When it cannot: what is missing.
pub fn check_daemon() -> Result<(), ProxyError> {
    find_daemon()?;
    in_path("nft").map(drop).ok_or(ProxyError::NoNft)
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&path).map(|directory| directory.join(program));
    candidates.find(|candidate| candidate.is_file())
}

impl Proxy {
    /// Starts a daemon and waits until it serves. `directory` takes its configuration and log.
    ///
    /// The daemon dies with the calling thread (see [`Namespace::command`]).
    ///
    /// # Errors
    /// When it cannot be started, ends at once, or does not serve in time.
    pub fn start(
        namespace: &Namespace,
        node: &str,
        configuration: &str,
        directory: &Path,
    ) -> Result<Self, ProxyError> {
        let node = node.to_owned();
        let fail = |action| {
            let node = node.clone();
            move |source| ProxyError::Start { node, action, source }
        };
        let file = directory.join(format!("{node}.toml"));
        let log = directory.join(format!("{node}.log"));
        fs::write(&file, configuration).map_err(fail("write the configuration"))?;
        let output = File::create(&log).map_err(fail("make the log"))?;
        // A socket with a path belongs to no network namespace: the daemon can reach it from its
        // node.
        let notices = directory.join(format!("{node}.notify"));
        let socket = UnixDatagram::bind(&notices).map_err(fail("make the notice socket"))?;
        socket.set_read_timeout(Some(LOOK_EVERY)).map_err(fail("make the notice socket"))?;
        let mut command: Command = namespace.command(find_daemon()?);
        let child = command
            // The runner handles Ctrl-C and then ends its proxies.
            .process_group(0)
            .env("NOTIFY_SOCKET", &notices)
            .arg("run")
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(fail("make the log"))?)
            .stderr(output)
            .spawn()
            .map_err(fail("start midhopd"))?;
        let mut proxy = Self { node: node.clone(), child, log };
        proxy.wait_ready(&socket)?;
        Ok(proxy)
    }

    fn wait_ready(&mut self, notices: &UnixDatagram) -> Result<(), ProxyError> {
        let deadline = Instant::now() + READY_WITHIN;
        let mut notice = [0; 256];
        loop {
            if let Ok(length) = notices.recv(&mut notice) {
                let text = String::from_utf8_lossy(&notice[..length]);
                if text.lines().any(|line| line == READY) {
                    return Ok(());
                }
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.not_ready(format!("ended at once ({status})")));
            }
            if Instant::now() > deadline {
                let seconds = READY_WITHIN.as_secs();
                return Err(self.not_ready(format!("did not serve within {seconds} s")));
            }
        }
    }

    fn not_ready(&self, what: String) -> ProxyError {
        ProxyError::NotReady { node: self.node.clone(), what, log: tail(&self.log) }
    }

    /// Whether it still runs; if not, what its log ends with.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check(&mut self) -> Result<(), ProxyError> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(self.not_ready(format!("ended during the run ({status})"))),
            _ => Ok(()),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // No draining: the owner needs the flows of a dropped proxy no more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log.
fn tail(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_else(|error| format!("(its log is not readable: {error})"))
}
