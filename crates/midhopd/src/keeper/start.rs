//! The data plane's end: starts the keeper and asks it.

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

/// This program, whatever its file is called by now.
const PROGRAM: &str = "/proc/self/exe";

/// The keeper of this process. Dropping it is its [end](Keeper::end).
#[derive(Debug)]
pub struct Keeper {
    requests: Mutex<UnixStream>,
    /// Where it says what it has to say, and takes what threads give it to listen to.
    news: Arc<OwnedFd>,
    /// None once it has ended.
    child: Mutex<Option<Child>>,
    /// Whether it ends because it was asked to.
    ending: Arc<AtomicBool>,
    /// Of the plan that was read last.
    fingerprint: Mutex<u64>,
    /// What was passed when it was asked last.
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

    /// Gives it two ends of a thread's line.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn connect(&self, orders: &OwnedFd, supply: &OwnedFd) -> io::Result<()> {
        descriptors::send(&self.news, b"line", &[orders.as_raw_fd(), supply.as_raw_fd()])
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the keeper says, or that it is gone.
    pub fn ask(&self, request: &Request) -> Answer {
        let requests = held(&self.requests);
        let gone =
            |error: io::Error| RequestFailed::new(format!("the keeper does not answer: {error}"));
        frame::write(&*requests, request).map_err(gone)?;
        let answer = frame::read::<Answer>(&*requests).map_err(gone)?;
        answer.unwrap_or_else(|| Err(RequestFailed::new("the keeper has ended")))
    }

    /// Puts interception in place for so many workers. `tracked` follows whether connections are entered into
    /// connection tracking.
    ///
    /// # Errors
    /// As the keeper has it.
    pub fn install(&self, queues: u16, tracked: &AtomicBool) -> Result<(), RequestFailed> {
        if let Reply::Installed { tracked: now } = self.ask(&Request::Install { queues })? {
            tracked.store(now, Relaxed);
        }
        Ok(())
    }

    /// Remembers which plan is the one that was read from the configuration.
    pub fn note(&self, plan: &Plan) {
        *held(&self.fingerprint) = fingerprint(plan);
    }

    /// Has the keeper follow the configuration as it was noted.
    ///
    /// # Errors
    /// As the keeper has it; then all is as it was.
    pub fn reload(&self) -> Result<(), RequestFailed> {
        let fingerprint = *held(&self.fingerprint);
        self.ask(&Request::Reload { fingerprint }).map(drop)
    }

    /// How many SYNs the firewall let pass on its own, by why. Where the keeper does not answer, what it said last.
    pub fn passed(&self) -> BTreeMap<String, u64> {
        let answer = self.ask(&Request::Passed);
        let mut last = held(&self.passed);
        if let Ok(Reply::Counted(passed)) = answer {
            *last = passed;
        }
        last.clone()
    }

    /// Follows what the keeper has to say: `tracked` is whether connections are to be entered, and its end is one for
    /// the daemon as well.
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

    /// Has the keeper remove what it put into the system, and waits until it has ended.
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

/// What tells two plans apart.
pub(super) fn fingerprint(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    // A plan that cannot be written is like no other.
    serde_json::to_string(plan).ok().hash(&mut hasher);
    hasher.finish()
}
