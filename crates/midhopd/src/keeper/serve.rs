//! The keeper's end: its actions on requests, and after the last one.

use super::descriptors;
use super::frame;
use super::request::{Answer, Reply, Request, RequestFailed};
use super::supply::{self, Terms};
use crate::failure::{self, Failure};
use crate::firewall::Own;
use crate::intercept::{self, OnTracked, Ruleset};
use midhop_linux::twin;
use midhop_pep::config::Plan;
use midhop_process::logging::Logging;
use midhop_process::{configuration, confine, privileges};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Interval at which it checks whether something is gone.
const PAUSE: Duration = Duration::from_millis(2);
/// How long it waits for a predecessor of the same instance that still cleans up.
const PREDECESSOR: Duration = Duration::from_secs(10);
/// Unit: descriptors.
const FILES: u64 = 8192;
/// How long it waits until lines end whose other ends are gone.
const LETTING_GO: Duration = Duration::from_secs(5);
/// How long it waits for a data plane that has closed its end: its sockets are closed with it.
const DYING: Duration = Duration::from_secs(30);

/// Runs as the keeper of the process that has started this one.
pub fn main(config: &Path) -> ExitCode {
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure::report(&failure),
    }
}

fn serve(config: &Path) -> Result<(), Failure> {
    let parent = getppid();
    let failure = |error| {
        Failure::run("the keeper does not serve")
            .because(error)
            .hint("`midhopd run` starts it; do not start it by hand")
    };
    let _ = nix::sys::prctl::set_name(c"midhopd-keeper");
    outlive_signals().map_err(|error| failure(error.into()))?;
    let requests = io::stdin().as_fd().try_clone_to_owned().map_err(failure)?;
    let requests = UnixStream::from(requests);
    requests.peer_addr().map_err(failure)?;
    let news = io::stdout().as_fd().try_clone_to_owned().map_err(failure)?;
    let mut dying = DYING;
    let mut handler =
        RequestHandler { config: config.to_owned(), news: Arc::new(news), begun: None };
    loop {
        let request = match frame::read::<Request>(&requests) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(error) => {
                // The sender of such a message is not the program that was started.
                tracing::error!(%error, "the data plane sent a malformed request");
                // A data plane with such a fault is not waited for.
                dying = Duration::ZERO;
                break;
            }
        };
        let ends = request == Request::End;
        let leaves = request == Request::Leave;
        let answer = handler.answer(request);
        if ends {
            if let Some(terms) = handler.begun.as_ref().and_then(|begun| begun.terms.as_ref()) {
                terms.outlive(Duration::ZERO, true);
            }
            handler.begun = None;
        }
        if leaves && let Some(begun) = handler.begun.take() {
            begun.leave();
        }
        let answered = frame::write(&requests, &answer);
        if ends || leaves || answered.is_err() {
            break;
        }
    }
    if let Some(begun) = handler.begun {
        begun.outlive(parent, dying);
    }
    Ok(())
}

/// Ignores the signals that end the data plane in order, such as a terminal's ^C: the keeper has to
/// clean up afterwards. Programs that this process starts inherit this.
fn outlive_signals() -> nix::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        signals.add(signal);
    }
    signals.thread_block()
}

/// Handles the requests.
struct RequestHandler {
    config: PathBuf,
    news: Arc<OwnedFd>,
    begun: Option<Begun>,
}

/// A keeper that has its configuration.
struct Begun {
    // Dropped before the name: the next holder of the name must find nothing of ours installed.
    interception: Option<Own>,
    /// Whether a program before this one has left interception installed.
    left: bool,
    /// Moves the gate.
    ruleset: Option<Ruleset>,
    plan: Arc<Plan>,
    logging: Logging,
    /// What the lines are served with.
    terms: Option<Terms>,
    /// The text of the configuration that is followed.
    text: String,
    /// Whether connections are entered into connection tracking, as last announced.
    tracked: Arc<AtomicBool>,
    /// The data plane's process, so that its end is noticed.
    data_plane: Option<OwnedFd>,
    _name: Option<UnixListener>,
}

impl RequestHandler {
    fn answer(&mut self, request: Request) -> Answer {
        match (request, &mut self.begun) {
            (Request::Begin { name, text, before }, None) => {
                let begun = Begun::of(&name, &text, before.as_deref())?;
                let (terms, door) = (Terms::of(&begun.plan), self.news.clone());
                let own = terms.clone();
                let welcome = move || supply::welcome(&door, own);
                thread::Builder::new()
                    .name("door".to_owned())
                    .spawn(welcome)
                    .map_err(RequestFailed::new)?;
                let begun = self.begun.insert(begun);
                begun.terms = Some(terms);
                Ok(Reply::Done)
            }
            (Request::Succeed { nonce }, Some(begun)) => begun.succeed(nonce),
            (Request::Serving { process }, Some(begun)) => {
                let watched = twin::watch_process(Pid::from_raw(process));
                begun.data_plane = Some(watched.map_err(RequestFailed::new)?);
                Ok(Reply::Done)
            }
            (Request::Text, Some(begun)) => Ok(Reply::Text(begun.text.clone())),
            (Request::Install { queues }, Some(begun)) => begun.install(queues, &self.news),
            (Request::Reload { fingerprint }, Some(begun)) => {
                begun.reload(&self.config, fingerprint)
            }
            (Request::Close, Some(Begun { interception: Some(own), .. })) => {
                own.interception().close().map(|()| Reply::Done).map_err(RequestFailed::new)
            }
            (Request::Gate { shut }, Some(begun)) => begun.move_gate(shut),
            (Request::Remove, Some(begun)) => {
                begun.interception = None;
                Ok(Reply::Done)
            }
            (Request::Passed, Some(Begun { interception: Some(own), .. })) => {
                Ok(Reply::Counted(own.interception().passed().total()))
            }
            (Request::End | Request::Leave, _) => Ok(Reply::Done),
            (_, _) => Err(RequestFailed::new("the keeper received this request out of sequence")),
        }
    }
}

impl Drop for Begun {
    /// What another program left, and this one has not taken over, is removed as well.
    fn drop(&mut self) {
        if self.left {
            intercept::remove(&self.plan);
        }
    }
}

impl Begun {
    fn of(name: &str, text: &str, before: Option<&str>) -> Result<Self, RequestFailed> {
        let next = Plan::read(name, text).map_err(RequestFailed::new)?;
        let left = before.is_some();
        let plan = match before {
            Some(before) => configuration::after(name, before, next),
            None => next,
        };
        let logging = Logging::start(&plan.log).map_err(request_failed)?;
        // Descriptors pass through this process on their way to threads of the data plane.
        privileges::raise_file_limit(FILES);
        privileges::drop_unneeded().map_err(request_failed)?;
        confine::keeper();
        let name = plan.stands_for_others().then(|| take_name(&plan.intercept.instance)).flatten();
        let (interception, ruleset, terms, data_plane) = Default::default();
        let (plan, text, tracked) = (Arc::new(plan), text.to_owned(), Arc::default());
        let _name = name;
        let left = left && plan.stands_for_others();
        Ok(Self {
            interception,
            left,
            ruleset,
            plan,
            logging,
            terms,
            text,
            tracked,
            data_plane,
            _name,
        })
    }

    /// Finishes with a data plane that was killed. What is installed stays for the next one.
    fn succeed(&mut self, nonce: u64) -> Answer {
        self.data_plane = None;
        if self.terms.as_ref().is_some_and(|terms| !terms.outlive(LETTING_GO, true)) {
            return Err(RequestFailed::new("lines of the data plane that was killed do not end"));
        }
        if self.interception.is_some() {
            // The next data plane has room for flows.
            self.move_gate(false)?;
        }
        Ok(Reply::Succeeded { nonce })
    }

    fn install(&mut self, queues: u16, news: &Arc<OwnedFd>) -> Answer {
        if self.interception.is_some() {
            return Ok(Reply::Installed { tracked: self.tracked.load(Relaxed) });
        }
        if !self.plan.stands_for_others() {
            return Err(RequestFailed::new("the keeper received this request out of sequence"));
        }
        let (last, news) = (self.tracked.clone(), news.clone());
        let on_tracked = OnTracked::by(move |tracked| {
            last.store(tracked, Relaxed);
            // If nobody reads it, the end of the data plane is noticed in other ways.
            let _ = descriptors::send(&news, &[u8::from(tracked)], &[]);
        });
        let installed = Own::install(&self.plan, queues, on_tracked, self.left);
        self.interception = Some(installed.map_err(RequestFailed::new)?);
        self.left = false;
        Ok(Reply::Installed { tracked: self.tracked.load(Relaxed) })
    }

    fn move_gate(&mut self, shut: bool) -> Answer {
        let ruleset = match self.ruleset.take() {
            Some(ruleset) => ruleset,
            None => Ruleset::open(&self.plan.intercept.instance).map_err(RequestFailed::new)?,
        };
        let moved = self.ruleset.insert(ruleset).set_gate(shut);
        moved.map(|()| Reply::Done).map_err(RequestFailed::new)
    }

    /// Reads the configuration again, and applies it.
    fn reload(&mut self, config: &Path, expected: u64) -> Answer {
        let (next, text) = configuration::read(config).map_err(request_failed)?;
        if configuration::fingerprint(&next) != expected {
            return Err(RequestFailed {
                message: "the configuration changed while it was read".to_owned(),
                hint: Some("send SIGHUP again".to_owned()),
            });
        }
        let (next, _) = self.plan.reloaded(next);
        let next = Arc::new(next);
        if let Some(own) = &self.interception {
            own.interception().follow(&next).map_err(RequestFailed::new)?;
        }
        self.logging.set(&next.log).map_err(request_failed)?;
        if let Some(terms) = &self.terms {
            terms.follow(&next);
        }
        (self.plan, self.text) = (next, text);
        Ok(Reply::Done)
    }

    /// Leaves everything to the keeper of another program. No `nft` of this keeper runs after this:
    /// it could replace the next keeper's table by an old one.
    fn leave(mut self) {
        self.left = false;
        if let Some(own) = self.interception.take() {
            own.leave();
        }
    }

    /// The data plane has ended without notice: everything is removed except what has to stop flows.
    fn outlive(mut self, parent: Pid, dying: Duration) {
        let begun = Instant::now();
        // The data plane's sockets are closed when it has ended, and their flows are reset.
        let lives = || getppid() == parent || !self.data_plane.as_ref().is_none_or(twin::has_ended);
        while lives() && begun.elapsed() < dying {
            sleep(PAUSE);
        }
        // Packets that still wait would be dropped together with the table.
        if let Some(terms) = &self.terms {
            terms.outlive(LETTING_GO, false);
        }
        let Some(own) = self.interception.take() else { return };
        let stops = !self.plan.policy.firewall_stops().is_empty();
        if stops {
            own.interception().leave_table();
        }
        drop(own);
        tracing::warn!(
            table_stays = stops,
            "the data plane has ended unexpectedly: interception is removed"
        );
    }
}

/// Waits until no other keeper of this instance cleans up in this network namespace. The name has no file, and ends
/// with its process. A keeper that stays is not waited for: anybody may take a name.
fn take_name(instance: &str) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("midhopd-keeper-{instance}")).ok()?;
    let asked = Instant::now();
    loop {
        match UnixListener::bind_addr(&name) {
            Ok(name) => return Some(name),
            Err(error) if asked.elapsed() > PREDECESSOR => {
                tracing::warn!(instance, %error, "another keeper of this instance has not ended in time");
                return None;
            }
            Err(_) => sleep(PAUSE),
        }
    }
}

fn request_failed(failure: Failure) -> RequestFailed {
    let message = match failure.source() {
        Some(source) => format!("{failure}: {source}"),
        None => failure.to_string(),
    };
    RequestFailed { message, hint: failure.hint_text().map(str::to_owned) }
}
