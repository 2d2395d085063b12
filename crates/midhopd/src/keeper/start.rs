//! The data plane's end: starts the keeper and sends it requests.

use super::request::{Answer, Reply, Request, RequestFailed};
use super::{descriptors, frame, line};
use crate::failure::Failure;
use midhop_pep::config::Plan;
use midhop_process::configuration::fingerprint;
use midhop_status::health::Health;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the keeper may take to finish with a data plane that was killed: it may be changing the
/// firewall for it.
const SUCCESSION: Duration = Duration::from_secs(30);
/// How long a change of the firewall that is under way may take when another program takes over.
const LEAVING: Duration = Duration::from_secs(10);
/// This program, even if its file has been renamed.
const PROGRAM: &str = "/proc/self/exe";

/// The keeper of this process. Dropping it is its [end](Keeper::end).
#[derive(Debug)]
pub struct Keeper {
    requests: Mutex<UnixStream>,
    /// Receives the keeper's news, and sends it the ends of threads' lines.
    news: Arc<OwnedFd>,
    /// Whether the response to the first request is still to come.
    begins: AtomicBool,
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
    /// Starts it. To be called before this process has a second thread. `before` is the text that
    /// the previous program was started with, if that program has [left](Self::leave) interception
    /// installed.
    ///
    /// # Errors
    /// When it cannot be started, or refuses the configuration. After a previous program, the
    /// refusal is the error of the next request.
    pub fn start(config: &Path, text: &str, before: Option<&str>) -> Result<Arc<Self>, Failure> {
        let failure = |error| Failure::run("the keeper could not be started").because(error);
        let (requests, asked) = UnixStream::pair().map_err(failure)?;
        let seqpacket = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        let (news, news_sender) = socketpair(AddressFamily::Unix, seqpacket.0, None, seqpacket.1)
            .map_err(|error| failure(error.into()))?;
        let child = Command::new(PROGRAM)
            .arg0("midhopd")
            .arg("keeper")
            .arg("--config")
            .arg(config)
            .stdin(Stdio::from(OwnedFd::from(asked)))
            .stdout(Stdio::from(news_sender))
            .spawn()
            .map_err(failure)?;
        let this = Self {
            requests: Mutex::new(requests),
            news: Arc::new(news),
            begins: AtomicBool::new(false),
            child: Mutex::new(Some(child)),
            ending: Arc::default(),
            fingerprint: Mutex::default(),
            passed: Mutex::default(),
        };
        let name = config.display().to_string();
        let begin =
            Request::Begin { name, text: text.to_owned(), before: before.map(str::to_owned) };
        let begun = match before {
            None => this.ask(&begin).map(drop),
            // Flows wait, so their data plane starts meanwhile, and reads this response together
            // with that to its first request.
            Some(_) => {
                this.begins.store(true, Relaxed);
                frame::write(&*held(&this.requests), &begin).map_err(gone)
            }
        };
        if let Err(failed) = begun {
            // It must not remove what the program that goes on has installed.
            let _ = this.leave();
            let failure = Failure::run(failed.message);
            return Err(failed.hint.into_iter().fold(failure, Failure::hint));
        }
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
        frame::write(&*requests, request).map_err(gone)?;
        if self.begins.swap(false, Relaxed)
            && let Some(begun) = frame::read::<Answer>(&*requests).map_err(gone)?
        {
            begun?;
        }
        let answer = frame::read::<Answer>(&*requests).map_err(gone)?;
        answer.unwrap_or_else(|| Err(RequestFailed::new("the keeper has ended")))
    }

    /// Lets another process, which shares the keeper, read the response to the first request.
    pub fn begins_elsewhere(&self) {
        self.begins.store(false, Relaxed);
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

    /// Lets the keeper finish with a data plane that was killed, at whatever instruction that was,
    /// and begin with the next one. Responses to the dead one are skipped. All other descriptors of
    /// the dead one have to be closed before.
    ///
    /// # Errors
    /// When the keeper is gone, or does not end the dead one's lines.
    pub fn succeed(&self) -> io::Result<()> {
        let mut nonce = [0; 8];
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut nonce)?;
        let nonce = u64::from_ne_bytes(nonce);
        let mut expected = Vec::new();
        frame::write(&mut expected, &Answer::Ok(Reply::Succeeded { nonce }))?;
        let mut requests = &*held(&self.requests);
        requests.set_read_timeout(Some(SUCCESSION))?;
        frame::write(requests, &Request::Succeed { nonce })?;
        let mut received = VecDeque::with_capacity(expected.len());
        let mut byte = [0];
        while !received.iter().eq(&expected) {
            io::Read::read_exact(&mut requests, &mut byte)?;
            if received.len() == expected.len() {
                received.pop_front();
            }
            received.push_back(byte[0]);
        }
        requests.set_read_timeout(None)
    }

    /// The text of the configuration that the keeper follows.
    ///
    /// # Errors
    /// When the keeper is gone.
    pub fn text(&self) -> Result<String, RequestFailed> {
        match self.ask(&Request::Text)? {
            Reply::Text(text) => Ok(text),
            _ => Err(RequestFailed::new("the keeper answers something else")),
        }
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

    /// Follows what the keeper reports: `tracked` is whether connections are to be entered. When
    /// the keeper ends, the daemon ends as well.
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

    /// Its process number. None: it has ended.
    pub fn process(&self) -> Option<Pid> {
        held(&self.child).as_ref().map(|child| Pid::from_raw(child.id().cast_signed()))
    }

    /// Ends it, and leaves what it installed in the system to the keeper of the program that takes over.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn leave(&self) -> io::Result<()> {
        let Some(mut child) = held(&self.child).take() else { return Ok(()) };
        self.ending.store(true, Relaxed);
        held(&self.requests).set_read_timeout(Some(LEAVING))?;
        if let Err(error) = self.ask(&Request::Leave) {
            tracing::warn!(%error, "the keeper did not finish its work, and is killed");
        }
        child.kill()?;
        match child.wait() {
            // It is another process's child, which waits for it.
            Err(error) if error.raw_os_error() == Some(Errno::ECHILD as i32) => Ok(()),
            waited => waited.map(drop),
        }
    }

    /// Makes the keeper remove what it installed in the system, and waits until it has ended.
    pub fn end(&self) {
        let Some(mut child) = held(&self.child).take() else { return };
        self.ending.store(true, Relaxed);
        if let Err(error) = self.ask(&Request::End) {
            tracing::warn!(%error, "the keeper's firewall and routing rules may not have been removed");
        }
        if let Err(error) = child.wait() {
            tracing::warn!(%error, "the keeper's exit status is unknown");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn gone(error: io::Error) -> RequestFailed {
    RequestFailed::new(format!("the keeper does not answer: {error}"))
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
