//! Waits for a configuration with flows to take. The configuration that is shipped takes none.
//!
//! Invariant: this is the first thing that the process does, and it still has all privileges, which
//! the start needs. It reads only the configuration, and what root, its user and `control.group`
//! request on the control socket.
//!
//! Invariant: it starts no thread, and installs no signal handler: both would outlast it.

mod signals;

use crate::{daemon, failure::Failure};
use midhop_pep::config::Plan;
use midhop_process::{
    configuration,
    logging::Logging,
    notify::{self, Notice},
};
use midhop_status::control::{
    Socket,
    answer::Reload,
    idle::IdleAnswers,
    serve::{self, Places, ReloadRequest},
};
use midhop_status::reloads::Reloads;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use signals::BlockedSignals;
use std::{
    convert::Infallible,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{net::UnixListener, runtime, sync::mpsc, task::JoinHandle, time};

/// How long clients of the control socket may take to read the last response.
const LAST_RESPONSE: Duration = Duration::from_secs(1);

/// A configuration that takes flows.
#[derive(Debug)]
pub struct Asked {
    /// The plan that it resolves to.
    pub plan: Plan,
    /// Its text.
    pub text: String,
    /// The control socket, if one is open already.
    pub control: Option<Socket>,
    /// The reloads so far.
    pub reloads: Arc<Reloads>,
}

/// Whether the plan takes any flow.
fn proxies(plan: &Plan) -> bool {
    let explicit = &plan.explicit;
    let asked = !explicit.http_connect.is_empty() || !explicit.socks5.is_empty();
    !plan.intercept.interfaces.is_empty() || asked || !plan.tunnel.listen.is_empty()
}

/// Waits until the configuration takes flows. Returns the plan, which this host can follow, and the
/// text of the file. None if a signal ends the process before. A program that takes over flows does
/// not wait.
///
/// # Errors
/// When the host refuses the first plan, or signals cannot be waited for.
pub fn until_asked(
    config: &Path,
    plan: Plan,
    text: String,
    logging: &Logging,
    takes_over: bool,
) -> Result<Option<Asked>, Failure> {
    if takes_over {
        // The host is not checked: the program before still occupies what has to be free.
        return Ok(Some(Asked { plan, text, control: None, reloads: Arc::default() }));
    }
    if proxies(&plan) {
        daemon::check_host(&plan)?;
        return Ok(Some(Asked { plan, text, control: None, reloads: Arc::default() }));
    }
    let failed = |error: nix::Error| Failure::run("signals cannot be waited for").because(error);
    let signals: SigSet = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(failed)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run("the event loop cannot be created").because(error))?;
    let asked = runtime.block_on(async {
        let mut idle = Idle::start(config, plan, logging)?;
        warn();
        notify::send(Notice::Ready);
        idle.wait(&signals).await
    })?;
    drop(runtime);
    if asked.is_none() {
        notify::send(Notice::Stopping);
    }
    before.thread_set_mask().map_err(failed)?;
    Ok(asked)
}

fn warn() {
    tracing::warn!(
        hint = "list them in [intercept], then `systemctl reload midhopd`, or send SIGHUP",
        "Nothing is intercepted until you set `interfaces`."
    );
}

/// A daemon that takes no flows yet.
struct Idle<'a> {
    config: &'a Path,
    logging: &'a Logging,
    control: Option<Socket>,
    answers: IdleAnswers,
    requests: mpsc::Receiver<ReloadRequest>,
    places: Places,
}

impl<'a> Idle<'a> {
    fn start(config: &'a Path, plan: Plan, logging: &'a Logging) -> Result<Self, Failure> {
        let control = daemon::control_socket(&plan, None)?;
        let (reloads, requests) = mpsc::channel(1);
        let answers = IdleAnswers {
            plan: Arc::new(Mutex::new(plan)),
            booked_reloads: Arc::default(),
            reloads,
            started: Instant::now(),
        };
        Ok(Self { config, logging, control, answers, requests, places: Places::default() })
    }

    /// Waits until a reload takes flows, or a signal ends the process.
    async fn wait(&mut self, wanted: &SigSet) -> Result<Option<Asked>, Failure> {
        let failed =
            |error: std::io::Error| Failure::run("signals cannot be waited for").because(error);
        let signals = BlockedSignals::of(wanted).map_err(failed)?;
        let mut serving = self.serve();
        loop {
            let asker = tokio::select! {
                signal = signals.next() => match signal.map_err(failed)? {
                    Signal::SIGHUP => None,
                    _ => return Ok(None),
                },
                Some(asker) = self.requests.recv() => Some(asker),
            };
            let (result, asked) = self.reload();
            if let Some(asker) = asker {
                // A client that has left finds the result in the log.
                let _ = asker.send(result);
            }
            if let Some((plan, text)) = asked {
                end(serving).await;
                // A client that takes longer loses the connection, and may repeat its request.
                let _ = time::timeout(LAST_RESPONSE, self.places.free()).await;
                let (control, reloads) = (self.control.take(), self.answers.booked_reloads.clone());
                return Ok(Some(Asked { plan, text, control, reloads }));
            }
            let plan = self.answers.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if !self.control.as_ref().is_some_and(|socket| socket.is_of(&plan)) {
                end(serving).await;
                self.control = None;
                self.control = daemon::control_socket(&plan, None).unwrap_or_else(|failure| {
                    daemon::not_reloaded(&failure);
                    None
                });
                serving = self.serve();
            }
        }
    }

    /// Answers requests on the control socket, if there is one.
    fn serve(&self) -> Option<JoinHandle<Infallible>> {
        let shared = self.control.as_ref().map(Socket::share)?;
        let listener = shared.and_then(|it| it.map(UnixListener::from_std).transpose());
        let listener = listener
            .inspect_err(|error| tracing::error!(%error, "the control socket cannot be served"))
            .ok()??;
        let (answers, places) = (self.answers.clone(), self.places.clone());
        Some(serve::serve(listener, Arc::new(answers), places))
    }

    /// Reads the configuration again. Returns the result, and the plan with its text if it takes
    /// flows.
    fn reload(&self) -> (Reload, Option<(Plan, String)>) {
        let mut asked = None;
        let mut error = None;
        match follow(self.config, self.logging) {
            Ok((plan, text)) if proxies(&plan) => asked = Some((plan, text)),
            Ok((plan, _)) => {
                tracing::info!("configuration reloaded");
                warn();
                *self.answers.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
            }
            Err(failure) => error = Some(daemon::not_reloaded(&failure)),
        }
        let result = Reload { error, kept: Vec::new() };
        self.answers.booked_reloads.book(result.clone());
        (result, asked)
    }
}

/// Ends a server; its clients keep their places.
async fn end(serving: Option<JoinHandle<Infallible>>) {
    if let Some(serving) = serving {
        serving.abort();
        let _ = serving.await;
    }
}

/// The configuration as it is now.
fn follow(config: &Path, logging: &Logging) -> Result<(Plan, String), Failure> {
    let (plan, text) = configuration::read(config)?;
    if proxies(&plan) {
        daemon::check_host(&plan)?;
    }
    logging.set(&plan.log)?;
    Ok((plan, text))
}
