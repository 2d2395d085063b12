//! The daemon's life cycle: start, serve, reload, drain, end.
//!
//! Invariant: if the start fails, nothing is left. Sockets are opened before anything is installed in the system, and
//! what was installed is removed with the value that stands for it.
//!
//! Decision 0009.

use crate::tunnel::modem;
use crate::{
    congestion::Congestion,
    data_plane::{DataPlane, StartError},
    explain::Explainer,
    explicit::{self, Explicit},
    failure::{self, Failure},
    firewall,
    idle::{self, Asked},
    keeper::{Keeper, Request},
    snapshot,
    survival::{
        door::Door,
        handed::Taken,
        holder::{END, Holder, Holding, RELOAD, Role, Succession},
        left::LeftDoors,
        register::Register,
    },
    syn_hold::Hold,
};
use midhop_pep::config::{Plan, ReportSource};
use midhop_process::{configuration, confine, logging::Logging, notify::Notice, privileges};
use midhop_status::{
    admin::{self, Status, StatusSource},
    control::{
        Socket,
        answer::{ErrorAnswer, Reload},
        serve::{self, ControlSources, Places, ReloadRequest, SnapshotSource},
    },
    reloads::Reloads,
};
use nix::sys::signal::SigSet;
use std::{
    collections::BTreeSet,
    error::Error,
    mem::ManuallyDrop,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        Arc,
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

/// Interval at which a draining daemon checks whether its last flow has ended.
const DRAIN_TICK: Duration = Duration::from_millis(50);

/// Runs until a signal ends it. If a program before this one has handed over its flows and this one
/// cannot serve them, it gives them back.
///
/// # Errors
/// When the configuration is wrong or the host refuses something; nothing is left behind then.
pub fn run(config: &Path, version: &'static str) -> Result<(), Failure> {
    let Some(taken) = Taken::received(config)?.map(Rc::new) else {
        return begin(config, version, None);
    };
    match begin(config, version, Some(taken.clone())) {
        Ok(()) => Ok(()),
        Err(failure) => {
            failure::report(&failure);
            match taken.give_back(config, failure)? {}
        }
    }
}

fn begin(config: &Path, version: &'static str, taken: Option<Rc<Taken>>) -> Result<(), Failure> {
    let (plan, text) = match &taken {
        Some(taken) => taken.plan(config)?,
        None => configuration::read(config)?,
    };
    let logging = Logging::start(&plan.log)?;
    let Some(Asked { plan, text, control, reloads }) =
        idle::until_asked(config, plan, text, &logging, taken.is_some())?
    else {
        return Ok(());
    };
    let before = taken.as_ref().map(|taken| taken.handed.begun.clone());
    // The keeper starts before there is any thread. A process without privileges needs no keeper.
    let keeper = match privileges::has_any() {
        true => Some(Keeper::start(config, &text, before.as_deref())?),
        false => None,
    };
    // Two sockets for each flow, pipes, and some descriptors for the daemon itself.
    privileges::raise_file_limit(u64::from(plan.limits.flows) * 2 + 1024);
    let failure = |error| Failure::run("flows could not be held").because(error);
    let register = match &taken {
        Some(taken) => taken.register.clone(),
        None => {
            let workers = usize::from(DataPlane::workers_of(&plan));
            let flows = usize::try_from(plan.limits.flows).unwrap_or(usize::MAX);
            Register::new(workers, flows).map_err(failure)?
        }
    };
    let door = Door::open(&plan, config, version, keeper.is_some());
    let begun = before.unwrap_or_else(|| text.clone());
    let holding = Holding { config: config.to_owned(), begun, version };
    let may_go_back = taken.clone();
    let holder = Holder::new(holding, register, keeper.clone(), door, taken).map_err(failure)?;
    let before = (control, reloads);
    privileges::drop_for_holding()?;
    match holder.split() {
        Ok(Role::DataPlane(succession)) => {
            let served = serve(config, plan, logging, keeper.as_ref(), before, succession);
            let report = |failure: Failure| {
                failure::report(&failure);
                failure.code()
            };
            let code = served.map_or_else(report, |()| 0);
            // The process exits without dropping its copies of sockets, which belong to the holder.
            std::process::exit(code.into())
        }
        Ok(Role::Holder(code)) => {
            if let Some(keeper) = keeper {
                keeper.end();
            }
            std::process::exit(code.into())
        }
        Err(failure) => {
            if let Some(keeper) = keeper {
                if may_go_back.is_some_and(|taken| taken.may_go_back()) {
                    let _ = keeper.leave();
                }
                // The keeper ends with this process, as after a crash: a rule that rejects goes on
                // stopping flows.
                std::mem::forget(keeper);
            }
            Err(failure)
        }
    }
}

/// Runs the data plane until it ends.
fn serve(
    config: &Path,
    plan: Plan,
    logging: Logging,
    keeper: Option<&Arc<Keeper>>,
    before: (Option<Socket>, Arc<Reloads>),
    succession: Succession,
) -> Result<(), Failure> {
    let plan = match succession.is_first {
        true => plan,
        false => followed(config, plan, keeper)?,
    };
    let announce = || {
        let process = std::process::id().cast_signed();
        let announced = keeper.map(|keeper| keeper.ask(&Request::Serving { process }));
        announced.transpose().map(drop).map_err(|failed| Failure::run(failed.message))
    };
    // A data plane that takes over flows does not wait for the keeper to start: the flows wait.
    let waits = succession.is_first && succession.takes_over();
    if !waits {
        announce()?;
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run("the event loop cannot be created").because(error))?;
    // Starting, ending and reloading block: the loop only waits and serves the admin page.
    let entered = runtime.enter();
    let mut signals = Signals::new()?;
    let (reloads, mut requests) = mpsc::channel(1);
    let (notices, inherited) = (succession.notices.clone(), succession.inherited.clone());
    let left = Arc::new(LeftDoors::of(&succession.register, &inherited, &doors_of(&plan)));
    let (keeper, succession) =
        (keeper.cloned(), Some(Succession { left: left.clone(), ..succession }));
    let started = Daemon::start(config, plan, logging, keeper, reloads, before, succession);
    // The sockets of flows and listeners stay open: a program before this one may need them.
    let mut daemon = started.inspect_err(|_| {
        std::mem::forget(inherited.clone());
        std::mem::forget(left.clone());
    })?;
    if waits && let Err(failure) = announce() {
        std::mem::forget((daemon, inherited, left));
        return Err(failure);
    }
    drop((entered, inherited, left));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        interfaces = ?daemon.plan.intercept.interfaces.0,
        admin = ?daemon.plan.admin.listen.0,
        "serving"
    );
    notices.notify(Notice::Ready);
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
            Ok(Order::Reload) => {
                let asked = notices.reloads_asked();
                daemon.reload(config);
                notices.reloaded(asked);
            }
            Ok(Order::ReloadFor(asker)) => {
                // A client that has left finds the result in the log.
                let _ = asker.send(daemon.reload(config));
            }
            Ok(Order::End) => break,
            Err(what) => {
                // Interception is removed at once, with the daemon: new flows pass directly.
                notices.notify(Notice::Stopping);
                return Err(Failure::run(what).hint("see the log; this is a fault in midhopd"));
            }
        }
    }
    drop(requests);
    notices.notify(Notice::Stopping);
    daemon.take_no_more();
    runtime.block_on(daemon.drain(&mut signals));
    Ok(())
}

/// The addresses of the plan's listeners for flows.
fn doors_of(plan: &Plan) -> BTreeSet<SocketAddr> {
    let explicit = plan.explicit.http_connect.iter().chain(plan.explicit.socks5.iter());
    let intercepts = !plan.intercept.interfaces.is_empty();
    let transparent = firewall::doors(plan).into_iter().filter(|_| intercepts);
    explicit.copied().chain(transparent.flat_map(|(_, addresses)| addresses)).collect()
}

/// The plan that the previous data plane followed, which may have been reloaded.
fn followed(config: &Path, plan: Plan, keeper: Option<&Arc<Keeper>>) -> Result<Plan, Failure> {
    let next = match keeper {
        Some(keeper) => {
            let text = keeper.text().map_err(|failed| Failure::run(failed.message))?;
            Plan::read(&config.display().to_string(), &text).ok()
        }
        // Without a keeper nobody has kept that plan: the configuration file comes closest.
        None => configuration::read_plan(config).ok(),
    };
    Ok(match next {
        Some(next) => plan.reloaded(next).0,
        None => plan,
    })
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
            "`ip link` lists this host's interfaces; flows of an interface that appears later are intercepted from then on",
        ));
    }
    Congestion::default().activate(&mut plan.clone())
}

/// Time for which the data plane of a killed daemon may still occupy a port.
const PORTS: Duration = Duration::from_secs(2);
/// Interval between two attempts to bind a port.
const PORT_LOOK: Duration = Duration::from_millis(20);

/// Checks that the ports of interception are free, or become free. Workers share them by
/// SO_REUSEPORT, and so could another daemon of this user. Only binding them exclusively, for a
/// moment, shows this.
fn check_ports(plan: &Plan) -> Result<(), Failure> {
    let begin = Instant::now();
    for offset in (0..).take(plan.legs.len()) {
        let port = plan.intercept.port.saturating_add(offset);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        while let Err(error) = TcpListener::bind(address) {
            if error.kind() == std::io::ErrorKind::AddrInUse && begin.elapsed() < PORTS {
                std::thread::sleep(PORT_LOOK);
                continue;
            }
            let failure = Failure::run(format!("intercept.port: cannot listen on {address}"));
            return Err(failure.because(error).hint(
                "a second daemon on one host needs an instance, mark, table, queue and port of its own",
            ));
        }
    }
    Ok(())
}

/// Logs that a new configuration is not followed. Returns the report for the client that requested
/// the reload.
pub(crate) fn not_reloaded(failure: &Failure) -> ErrorAnswer {
    // One line: the excerpt from the file is for the user who requested it.
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
    end: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |order| {
            let kind = SignalKind::from_raw(order as i32);
            signal(kind).map_err(|error| Failure::run("signals cannot be received").because(error))
        };
        let this = Self { reload: listen(RELOAD)?, end: listen(END)? };
        // The signals were blocked before this process began, so none is lost.
        let orders: SigSet = [RELOAD, END].into_iter().collect();
        orders.thread_unblock().map_err(|error| {
            Failure::run("signals cannot be received").because(std::io::Error::from(error))
        })?;
        Ok(this)
    }

    async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.reload.recv() => Order::Reload,
            _ = self.end.recv() => Order::End,
        }
    }
}

/// An order to the daemon.
enum Order {
    Reload,
    /// A reload, with the channel for its result.
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
    booked_reloads: Arc<Reloads>,
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
        (control, booked_reloads): (Option<Socket>, Arc<Reloads>),
        succession: Option<Succession>,
    ) -> Result<Self, Failure> {
        // A control socket that was opened before the daemon started to serve is kept: clients may
        // already wait at it.
        let mut control = control_socket(&plan, control)?;
        let admin = plan
            .admin
            .listen
            .iter()
            .map(|address| listen(*address, "admin.listen"))
            .collect::<Result<Vec<_>, _>>()?;
        let left = succession.as_ref().map(|succession| succession.left.clone());
        let explicit = explicit::Listeners::open(&plan, left.as_deref())?;
        let mut listeners = explicit.descriptors();
        let register = succession.as_ref().map(|succession| succession.register.clone());
        let mut congestion = Congestion::default();
        congestion.activate(&mut plan)?;
        let injector = Hold::injector(&plan)
            .map_err(|error| Failure::run("the data plane did not start").because(error))?;
        let sockets = control.as_ref().and_then(Socket::directory).map(Path::to_owned);
        let seal = || {
            privileges::drop_all()?;
            confine::process(&directories(config, &plan), sockets.as_deref());
            Ok(())
        };
        let data_plane =
            DataPlane::start_with(plan.clone(), injector, keeper.clone(), succession, seal)
                .map_err(|error| refused("the data plane did not start", error))?;
        listeners.extend(data_plane.listeners());
        // The data plane has flows now. If a later step fails, this process ends, and the next one
        // takes them: none is reset here.
        let data_plane = ManuallyDrop::new(data_plane);
        let explicit = explicit.serve(
            data_plane.plan(),
            data_plane.handover(),
            data_plane.tunnels().clone(),
            data_plane.health().clone(),
        )?;
        let draining = Arc::new(AtomicBool::new(false));
        let listener = control.as_mut().and_then(Socket::take);
        let daemon = ManuallyDrop::new(Self {
            explicit,
            data_plane: ManuallyDrop::into_inner(data_plane),
            congestion,
            plan,
            logging,
            draining,
            keeper,
            booked_reloads,
            _control: control,
        });
        let source = admin::AnswerSources {
            status: daemon.status_source(),
            health: daemon.data_plane.health().clone(),
            draining: daemon.draining.clone(),
            reloads: daemon.booked_reloads.clone(),
            history: Arc::default(),
            names: daemon.plan.admin.names.iter().cloned().collect(),
        };
        let measured = snapshot::Source::of(&daemon.data_plane);
        tokio::spawn(source.history.clone().follow(move || measured.totals()));
        let tunnels = daemon.data_plane.tunnels().clone();
        tokio::spawn(modem::read(daemon.data_plane.plan(), tunnels));
        for listener in admin {
            let served = tokio::net::TcpListener::from_std(listener).map_err(|error| {
                Failure::run("the admin server cannot be served").because(error)
            })?;
            let (health, serving) = (source.health.clone(), admin::serve(served, source.clone()));
            tokio::spawn(async move {
                let Err(error) = serving.await;
                health.lose(format!("the admin server has ended: {error}"));
            });
        }
        if let Some(listener) = listener {
            daemon.serve_control(listener, reloads)?;
        }
        // From here on, what the previous process left belongs to this one.
        if let Some(register) = register {
            register.note_doors(&listeners);
            daemon.data_plane.hold().awaited.settle();
        }
        Ok(ManuallyDrop::into_inner(daemon))
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
        let sources = ControlSources {
            snapshot: self.snapshot_source(),
            explainer: Arc::new(explainer),
            health: self.data_plane.health().clone(),
            reloads,
            booked_reloads: self.booked_reloads.clone(),
            started: Instant::now(),
        };
        serve::serve(listener, Arc::new(sources), Places::default());
        Ok(())
    }

    /// The state of the data plane, with congestion controls as they are configured.
    fn snapshot_source(&self) -> SnapshotSource {
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
                tracing::info!("configuration reloaded; live flows keep their settings");
                Reload { error: None, kept }
            }
            Err(failure) => Reload { error: Some(not_reloaded(&failure)), kept: Vec::new() },
        };
        self.booked_reloads.book(result.clone());
        result
    }

    /// Applies the present contents of `config`. Returns the changed keys that take effect only
    /// after a restart.
    ///
    /// # Errors
    /// When it is wrong, or the host refuses it; then nothing has changed.
    fn follow(&mut self, config: &Path) -> Result<Vec<String>, Failure> {
        let mut next = configuration::read_plan(config)?;
        if let Some(keeper) = &self.keeper {
            keeper.note(&next);
        }
        note_interfaces(&next);
        self.congestion.activate(&mut next)?;
        let (next, kept) = self.plan.reloaded(next);
        self.data_plane
            .reload(next.clone())
            .map_err(|error| refused("the data plane does not follow it", error))?;
        // This cannot fail: the level was checked when the file was read.
        self.logging.set(&next.log)?;
        self.plan = next;
        for key in &kept {
            tracing::warn!(key, "the key has changed, which takes effect at the next restart");
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

/// The control socket of a plan; `there` is one that is open already. If it is not configured and
/// cannot be opened, the daemon serves without it.
pub(crate) fn control_socket(
    plan: &Plan,
    there: Option<Socket>,
) -> Result<Option<Socket>, Failure> {
    if let Some(socket) = there.filter(|socket| socket.is_of(plan)) {
        return Ok(Some(socket));
    }
    match Socket::open(plan) {
        Ok(socket) => Ok(socket),
        Err(error) if plan.control.socket.is_none() && plan.control.group.is_none() => {
            tracing::info!(%error, "no control socket: `midhopd status` will not find this daemon");
            Ok(None)
        }
        Err(error) => Err(Failure::run("control.socket: it cannot be opened")
            .because(error)
            .hint("name another path, or \"\" for none")),
    }
}

/// The directories of the configuration and the keys that a reload reads, and of files that report rates.
fn directories(config: &Path, plan: &Plan) -> Vec<PathBuf> {
    let keys = plan.tunnel.credentials.iter().flat_map(|files| {
        [&files.certificate, &files.key, &files.authority].into_iter().chain(&files.revoked)
    });
    let reports = plan.peers.iter().filter_map(|peer| match &peer.modem.as_ref()?.source {
        ReportSource::File { path, .. } => Some(path),
        ReportSource::Dlep { .. } => None,
    });
    let files = keys.chain(reports).map(PathBuf::as_path).chain([config]);
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
