//! The data plane's end: starts the keeper and sends it requests.

use super::request::{Answer, Reply, Request, RequestFailed};
use super::{descriptors, frame, line};
use crate::failure::Failure;
use crate::health::Health;
use midhop_pep::config::Plan;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// This program, even if its file has been renamed.
const PROGRAM: &str = "/proc/self/exe";

/// The keeper of this process. Dropping it is its [end](Keeper::end).
#[derive(Debug)]
pub struct Keeper {
    requests: Mutex<UnixStream>,
    /// Receives the keeper's news, and sends it the ends of threads' lines.
    news: Arc<OwnedFd>,
    /// None once it has ended.
    child: Mutex<Option<Child>>,
    /// Whether it ends on request.
    ending: Arc<AtomicBool>,
    /// The fingerprint of the plan that was read last.
    fingerprint: Mutex<u64>,
    /// The last counts of passed SYNs.
    passed: Mutex<BTreeMap<String, u64>>,
}

impl Keeper {
    /// Starts it. To be called before this process has a second thread.
    ///
    /// # Errors
    /// When it cannot be started, or refuses the configuration.
    pub fn start(config: &Path, text: &str) -> Result<Arc<Self>, Failure> {
        let failure = |error| Failure::run("the keeper could not be started").because(error);
        let (requests, asked) = UnixStream::pair().map_err(failure)?;
        let seqpacket = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        let (news, told) = socketpair(AddressFamily::Unix, seqpacket.0, None, seqpacket.1)
            .map_err(|error| failure(error.into()))?;
        let child = Command::new(PROGRAM)
            .arg0("midhopd")
            .arg("keeper")
            .arg("--config")
            .arg(config)
            .stdin(Stdio::from(OwnedFd::from(asked)))
            .stdout(Stdio::from(told))
            .spawn()
            .map_err(failure)?;
        let this = Self {
            requests: Mutex::new(requests),
            news: Arc::new(news),
            child: Mutex::new(Some(child)),
            ending: Arc::default(),
            fingerprint: Mutex::default(),
            passed: Mutex::default(),
        };
        let name = config.display().to_string();
        this.ask(&Request::Begin { name, text: text.to_owned() }).map_err(|failed| {
            failed.hint.into_iter().fold(Failure::run(failed.message), Failure::hint)
        })?;
        let this = Arc::new(this);
        line::ask(Arc::downgrade(&this));
        Ok(this)
    }

    /// Sends it two ends of a thread's line.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn connect(&self, orders: &OwnedFd, supply: &OwnedFd) -> io::Result<()> {
        descriptors::send(&self.news, b"line", &[orders.as_raw_fd(), supply.as_raw_fd()])
    }

    /// Sends a request, and waits for the response.
    ///
    /// # Errors
    /// The keeper's error, or that it is gone.
    pub fn ask(&self, request: &Request) -> Answer {
        let requests = held(&self.requests);
        let gone =
            |error: io::Error| RequestFailed::new(format!("the keeper does not answer: {error}"));
        frame::write(&*requests, request).map_err(gone)?;
        let answer = frame::read::<Answer>(&*requests).map_err(gone)?;
        answer.unwrap_or_else(|| Err(RequestFailed::new("the keeper has ended")))
    }

    /// Installs interception for this many workers. `tracked` follows whether connections are entered into connection
    /// tracking.
    ///
    /// # Errors
    /// The keeper's error.
    pub fn install(&self, queues: u16, tracked: &AtomicBool) -> Result<(), RequestFailed> {
        if let Reply::Installed { tracked: now } = self.ask(&Request::Install { queues })? {
            tracked.store(now, Relaxed);
        }
        Ok(())
    }

    /// Records the plan that was read from the configuration.
    pub fn note(&self, plan: &Plan) {
        *held(&self.fingerprint) = fingerprint(plan);
    }

    /// Makes the keeper apply the configuration as it was recorded.
    ///
    /// # Errors
    /// The keeper's error; then nothing has changed.
    pub fn reload(&self) -> Result<(), RequestFailed> {
        let fingerprint = *held(&self.fingerprint);
        self.ask(&Request::Reload { fingerprint }).map(drop)
    }

    /// How many SYNs the firewall let pass without the daemon, by reason. Where the keeper does not answer, its last
    /// response.
    pub fn passed(&self) -> BTreeMap<String, u64> {
        let answer = self.ask(&Request::Passed);
        let mut last = held(&self.passed);
        if let Ok(Reply::Counted(passed)) = answer {
            *last = passed;
        }
        last.clone()
    }

    /// Follows the keeper's news: `tracked` is whether connections are to be entered. When the keeper ends, the
    /// daemon ends as well.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn follow(&self, tracked: Arc<AtomicBool>, health: Arc<Health>) -> io::Result<()> {
        let (news, ending) = (self.news.clone(), self.ending.clone());
        let follow = move || {
            let mut byte = [0];
            while let Ok(Some((1, _))) = descriptors::receive(&news, &mut byte, true) {
                tracked.store(byte[0] != 0, Relaxed);
            }
            if !ending.load(Relaxed) {
                health.lose("the keeper has ended, which does what takes privileges".to_owned());
            }
        };
        std::thread::Builder::new().name("keeper".to_owned()).spawn(follow).map(drop)
    }

    /// Makes the keeper remove what it installed in the system, and waits until it has ended.
    pub fn end(&self) {
        let Some(mut child) = held(&self.child).take() else { return };
        self.ending.store(true, Relaxed);
        if let Err(error) = self.ask(&Request::End) {
            tracing::warn!(%error, "what the keeper put into the system may stay");
        }
        if let Err(error) = child.wait() {
            tracing::warn!(%error, "the keeper's end is not known");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Distinguishes two plans.
pub(super) fn fingerprint(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    // A plan that cannot be serialized equals no other.
    serde_json::to_string(plan).ok().hash(&mut hasher);
    hasher.finish()
}
