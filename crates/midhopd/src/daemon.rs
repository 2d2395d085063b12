//! The daemon's life cycle: start, serve, reload, drain, end.
//!
//! Invariant: if the start fails, nothing is left. Sockets are opened before anything is installed in the system, and
//! what was installed is removed with the value that stands for it.

use crate::{
    admin::{self, Status, StatusSource},
    cli, confine,
    congestion::Congestion,
    control::{
        self, Explainer, Socket,
        answer::{ErrorAnswer, Reload},
        serve::ReloadRequest,
    },
    data_plane::{DataPlane, StartError},
    explicit::{self, Explicit},
    failure::Failure,
    hold::Hold,
    idle,
    keeper::Keeper,
    logging::Logging,
    notify::{self, Notice},
    privileges, snapshot,
};
use midhop_pep::config::Plan;
use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time,
};

/// How often a draining daemon checks whether its last flow has ended.
const DRAIN_TICK: Duration = Duration::from_millis(50);

/// Runs until a signal ends it.
///
/// # Errors
/// When the configuration is wrong or the host refuses something; nothing is left behind then.
pub fn run(config: &Path) -> Result<(), Failure> {
    let (plan, text) = cli::read(config)?;
    let logging = Logging::start(&plan.log)?;
    let Some((plan, text)) = idle::until_asked(config, plan, text, &logging)? else {
        return Ok(());
    };
    // Before there is any thread. Where nothing takes privileges, there are none to separate.
    let keeper = match privileges::has_any() {
        true => Some(Keeper::start(config, &text)?),
        false => None,
    };
    let served = serve(config, plan, logging, keeper.clone());
    if let Some(keeper) = keeper {
        keeper.end();
    }
    served
}

/// The life of the data plane.
fn serve(
    config: &Path,
    plan: Plan,
    logging: Logging,
    keeper: Option<Arc<Keeper>>,
) -> Result<(), Failure> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run("no event loop can be had").because(error))?;
    // Starting, ending and reloading block: the loop only waits and serves the admin page.
    let entered = runtime.enter();
    let mut signals = Signals::new()?;
    let (reloads, mut requests) = mpsc::channel(1);
    let mut daemon = Daemon::start(config, plan, logging, keeper, reloads)?;
    drop(entered);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        interfaces = ?daemon.plan.intercept.interfaces.0,
        admin = ?daemon.plan.admin.listen.0,
        "serving"
    );
    notify::send(Notice::Ready);
    let health = daemon.data_plane.health().clone();
    loop {
        let order = runtime.block_on(async {
            tokio::select! {
                order = signals.next() => Ok(order),
                Some(request) = requests.recv() => Ok(Order::ReloadFor(request)),
                what = health.lost() => Err(what),
            }
        });
        match order {
            Ok(Order::Reload) => drop(daemon.reload(config)),
            Ok(Order::ReloadFor(asker)) => {
                // If it has left, the log has the result.
                let _ = asker.send(daemon.reload(config));
            }
            Ok(Order::End) => break,
            Err(what) => {
                // Interception is removed at once, with the daemon: new flows pass directly.
                notify::send(Notice::Stopping);
                return Err(
                    Failure::run(what).hint("the log says more; this is a fault of midhopd's")
                );
            }
        }
    }
    drop(requests);
    notify::send(Notice::Stopping);
    daemon.take_no_more();
    runtime.block_on(daemon.drain(&mut signals));
    Ok(())
}

/// Checks what the plan requires of this host.
pub(crate) fn check_host(plan: &Plan) -> Result<(), Failure> {
    let intercepts = !plan.intercept.interfaces.is_empty();
    note_interfaces(plan);
    if plan.stands_for_others() {
        privileges::check_interception()?;
    }
    if intercepts { check_ports(plan) } else { Ok(()) }
}

/// Checks what a start or a reload finds on this host beyond the plan: congestion controls are made selectable
/// for a moment.
///
/// # Errors
/// The first thing that is missing.
pub fn check_against_host(plan: &Plan) -> Result<(), Failure> {
    let legs = plan.legs.iter().filter_map(|leg| leg.interface.as_ref());
    let mut interfaces = plan.intercept.interfaces.iter().chain(legs);
    if let Some(missing) = interfaces.find(|name| !exists(name)) {
        return Err(Failure::run(format!("there is no interface {missing} on this host")).hint(
            "`ip link` lists those there are; flows of one that appears later are taken then",
        ));
    }
    Congestion::default().activate(&mut plan.clone())
}

/// Whether the ports of interception are free. Workers share them, and so would another daemon of this user: only
/// binding them alone, for a moment, shows this.
fn check_ports(plan: &Plan) -> Result<(), Failure> {
    for offset in (0..).take(plan.legs.len()) {
        let port = plan.intercept.port.saturating_add(offset);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpListener::bind(address).map_err(|error| {
            Failure::run(format!("intercept.port: cannot listen on {address}")).because(error).hint(
                "a second daemon on one host needs an instance, mark, table, queue and port of its own",
            )
        })?;
    }
    Ok(())
}

/// Reports that a configuration was read again and is not followed. Returns what is reported to who asked for it.
pub(crate) fn not_reloaded(failure: &Failure) -> ErrorAnswer {
    // One line: the excerpt from the file is for the user who asked.
    let error = failure.to_string();
    tracing::error!(
        error = %error.lines().next().unwrap_or_default(),
        cause = failure.source().map(tracing::field::display),
        hint = failure.hint_text(),
        "configuration not reloaded, the old one stays"
    );
    let cause = failure.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    ErrorAnswer { error: error + &cause, hint: failure.hint_text().map(str::to_owned) }
}

/// Reports missing interfaces: their flows are taken once they appear.
fn note_interfaces(plan: &Plan) {
    for interface in plan.intercept.interfaces.iter().filter(|name| !exists(name)) {
        tracing::warn!(
            interface,
            "there is no such interface yet; `ip link` lists those of this host"
        );
    }
    for leg in &plan.legs {
        if let Some(interface) = leg.interface.as_deref().filter(|name| !exists(name)) {
            tracing::warn!(leg = leg.name, interface, "there is no such interface yet");
        }
    }
}

fn exists(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::run("signals cannot be heard").because(error))
        };
        Ok(Self {
            reload: listen(SignalKind::hangup())?,
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.reload.recv() => Order::Reload,
            _ = self.terminate.recv() => Order::End,
            _ = self.interrupt.recv() => Order::End,
        }
    }
}

/// An order to the daemon.
enum Order {
    Reload,
    /// The same, with where the result goes.
    ReloadFor(ReloadRequest),
    End,
}

/// A running daemon.
struct Daemon {
    // Declared in the order of dropping: first the source of flows for the data plane, then the data plane with its
    // interception.
    explicit: Explicit,
    data_plane: DataPlane,
    congestion: Congestion,
    plan: Plan,
    logging: Logging,
    draining: Arc<AtomicBool>,
    keeper: Option<Arc<Keeper>>,
    last_reload: Arc<Mutex<Option<Reload>>>,
    /// Removed with the daemon.
    _control: Option<Socket>,
}

impl Daemon {
    fn start(
        config: &Path,
        mut plan: Plan,
        logging: Logging,
        keeper: Option<Arc<Keeper>>,
        reloads: mpsc::Sender<ReloadRequest>,
    ) -> Result<Self, Failure> {
        let mut control = control_socket(&plan)?;
        let admin = plan
            .admin
            .listen
            .iter()
            .map(|address| listen(*address, "admin.listen"))
            .collect::<Result<Vec<_>, _>>()?;
        let explicit = explicit::Listeners::open(&plan)?;
        let mut congestion = Congestion::default();
        congestion.activate(&mut plan)?;
        // Two sockets a flow, pipes, and some for ourselves.
        privileges::raise_file_limit(u64::from(plan.limits.flows) * 2 + 1024);
        let injector = Hold::injector(&plan)
            .map_err(|error| Failure::run("the data plane did not start").because(error))?;
        let sockets = control.as_ref().and_then(Socket::directory).map(Path::to_owned);
        let seal = || {
            privileges::drop_all()?;
            confine::process(&directories(config, &plan), sockets.as_deref());
            Ok(())
        };
        let data_plane = DataPlane::start_with(plan.clone(), injector, keeper.clone(), seal)
            .map_err(|error| refused("the data plane did not start", error))?;
        let explicit = explicit.serve(
            data_plane.plan(),
            data_plane.handover(),
            data_plane.tunnels().clone(),
            data_plane.health().clone(),
        )?;
        let draining = Arc::new(AtomicBool::new(false));
        let listener = control.as_mut().and_then(Socket::take);
        let daemon = Self {
            explicit,
            data_plane,
            congestion,
            plan,
            logging,
            draining,
            keeper,
            last_reload: Arc::default(),
            _control: control,
        };
        let source = admin::AnswerSources {
            status: daemon.status_source(),
            health: daemon.data_plane.health().clone(),
            draining: daemon.draining.clone(),
            history: Arc::default(),
            names: daemon.plan.admin.names.iter().cloned().collect(),
        };
        tokio::spawn(source.history.clone().follow(snapshot::Source::of(&daemon.data_plane)));
        for listener in admin {
            let served = tokio::net::TcpListener::from_std(listener).map_err(|error| {
                Failure::run("the admin server cannot be served").because(error)
            })?;
            let (health, serving) =
                (source.health.clone(), tokio::spawn(admin::serve(served, source.clone())));
            tokio::spawn(async move {
                let Err(error) = serving.await;
                health.lose(format!("the admin server has ended: {error}"));
            });
        }
        if let Some(listener) = listener {
            daemon.serve_control(listener, reloads)?;
        }
        Ok(daemon)
    }

    /// Answers requests on the control socket. Traffic does not depend on it.
    fn serve_control(
        &self,
        listener: std::os::unix::net::UnixListener,
        reloads: mpsc::Sender<ReloadRequest>,
    ) -> Result<(), Failure> {
        let failed = |error| Failure::run("the control socket cannot be served").because(error);
        let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
        let explainer = Explainer::new(&self.data_plane, self.draining.clone());
        let sources = control::serve::ControlSources {
            snapshot: self.snapshot_source(),
            explainer: Arc::new(explainer),
            health: self.data_plane.health().clone(),
            reloads,
            last_reload: self.last_reload.clone(),
            started: Instant::now(),
        };
        tokio::spawn(control::serve::serve(listener, sources));
        Ok(())
    }

    /// The state of the data plane, with congestion controls as they are configured.
    fn snapshot_source(&self) -> control::serve::SnapshotSource {
        let source = snapshot::Source::of(&self.data_plane);
        let names = self.congestion.names();
        Arc::new(move || {
            let mut data_plane = source.take();
            for leg in data_plane.legs.values_mut() {
                leg.congestion = names.configured(std::mem::take(&mut leg.congestion));
            }
            data_plane
        })
    }

    fn status_source(&self) -> StatusSource {
        let started = Instant::now();
        let snapshot = self.snapshot_source();
        let draining = self.draining.clone();
        let instance = self.plan.intercept.instance.clone();
        Arc::new(move || Status {
            version: env!("CARGO_PKG_VERSION"),
            instance: instance.clone(),
            uptime_s: started.elapsed().as_secs_f64(),
            draining: draining.load(Relaxed),
            data_plane: snapshot(),
        })
    }

    /// Reads the configuration again. A wrong configuration is reported, and changes nothing.
    fn reload(&mut self, config: &Path) -> Reload {
        let result = match self.follow(config) {
            Ok(kept) => {
                tracing::info!("configuration reloaded; live flows keep what they began with");
                Reload { error: None, kept }
            }
            Err(failure) => Reload { error: Some(not_reloaded(&failure)), kept: Vec::new() },
        };
        *self.last_reload.lock().unwrap_or_else(PoisonError::into_inner) = Some(result.clone());
        result
    }

    /// Applies the present contents of `config`. Returns the keys that stay as they were.
    ///
    /// # Errors
    /// When it is wrong, or the host refuses it; then nothing has changed.
    fn follow(&mut self, config: &Path) -> Result<Vec<String>, Failure> {
        let mut next = cli::read_plan(config)?;
        if let Some(keeper) = &self.keeper {
            keeper.note(&next);
        }
        note_interfaces(&next);
        self.congestion.activate(&mut next)?;
        let (next, kept) = self.plan.reloaded(next);
        self.data_plane
            .reload(next.clone())
            .map_err(|error| refused("the data plane does not follow it", error))?;
        // The level was found valid as it was read.
        self.logging.set(&next.log)?;
        self.plan = next;
        for key in &kept {
            tracing::warn!(key, "changed, but stays as it was until a restart");
        }
        Ok(kept)
    }

    /// From here on new flows pass directly.
    fn take_no_more(&mut self) {
        self.draining.store(true, Relaxed);
        self.data_plane.end_interception();
        self.explicit.close();
    }

    /// Waits until all live flows have ended, or the timeout expires.
    async fn drain(&self, signals: &mut Signals) {
        let patience = self.plan.daemon.drain;
        tracing::info!(flows = self.flows(), %patience, "draining: new flows pass directly");
        let ended = async {
            let mut tick = time::interval(DRAIN_TICK);
            while self.flows() > 0 {
                tick.tick().await;
            }
        };
        tokio::select! {
            () = ended => {}
            () = time::sleep(patience.into()) => {}
            () = ended_by(signals) => {}
        }
        match self.flows() {
            0 => tracing::info!("drained"),
            flows => tracing::warn!(flows, "flows that had not ended are reset"),
        }
    }

    fn flows(&self) -> u64 {
        self.data_plane.admission().flows()
    }
}

/// The control socket of a plan. Without one that is not configured the daemon serves all the same.
fn control_socket(plan: &Plan) -> Result<Option<Socket>, Failure> {
    match Socket::open(plan) {
        Ok(socket) => Ok(socket),
        Err(error) if plan.control.socket.is_none() && plan.control.group.is_none() => {
            tracing::info!(%error, "no control socket: `midhopd status` will not find this daemon");
            Ok(None)
        }
        Err(error) => Err(Failure::run("control.socket: it cannot be had")
            .because(error)
            .hint("name another path, or \"\" for none")),
    }
}

/// The directories of the configuration and the keys that a reload reads.
fn directories(config: &Path, plan: &Plan) -> Vec<PathBuf> {
    let keys = plan.tunnel.credentials.iter().flat_map(|files| {
        [&files.certificate, &files.key, &files.authority].into_iter().chain(&files.revoked)
    });
    let files = keys.map(PathBuf::as_path).chain([config]);
    let directory = |file: &Path| match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    files.map(directory).collect()
}

/// A refusal of the data plane, with what the user can do about it.
fn refused(what: &str, error: StartError) -> Failure {
    let hint = error.hint();
    hint.into_iter().fold(Failure::run(what).because(error), Failure::hint)
}

/// Waits for the second order to end. There is nothing to reload any more.
async fn ended_by(signals: &mut Signals) {
    while let Order::Reload = signals.next().await {}
}

/// Listens on `address`, which `key` configures.
pub(crate) fn listen(address: SocketAddr, key: &str) -> Result<TcpListener, Failure> {
    let listening = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listening.map_err(|error| {
        Failure::run(format!("{key}: cannot listen on {address}"))
            .because(error)
            .hint("choose another port, or end what listens there (`ss -ltnp` names it)")
    })
}
