//! The daemon's life cycle: start, serve, reload, drain, end.
//!
//! Invariant: if the start fails, nothing is left. Sockets are opened before anything is installed in the system, and
//! what was installed is removed with the value that stands for it.

use crate::{
    admin::{self, Status, StatusSource},
    cli, confine,
    congestion::Congestion,
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
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
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
    let mut daemon = Daemon::start(config, plan, logging, keeper)?;
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
                what = health.lost() => Err(what),
            }
        });
        match order {
            Ok(Order::Reload) => daemon.reload(config),
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

/// Reports that a configuration was read again and is not followed.
pub(crate) fn not_reloaded(failure: &Failure) {
    // One line: the excerpt from the file is for the user of `midhopd check`.
    let error = failure.to_string();
    tracing::error!(
        error = %error.lines().next().unwrap_or_default(),
        cause = failure.source().map(tracing::field::display),
        hint = failure.hint_text(),
        "configuration not reloaded, the old one stays"
    );
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

/// The order of a signal.
enum Order {
    Reload,
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
}

impl Daemon {
    fn start(
        config: &Path,
        mut plan: Plan,
        logging: Logging,
        keeper: Option<Arc<Keeper>>,
    ) -> Result<Self, Failure> {
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
        let seal = || {
            privileges::drop_all()?;
            confine::process(&directories(config, &plan));
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
        let daemon = Self { explicit, data_plane, congestion, plan, logging, draining, keeper };
        let source = admin::AnswerSources {
            status: daemon.status_source(),
            health: daemon.data_plane.health().clone(),
            draining: daemon.draining.clone(),
        };
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
        Ok(daemon)
    }

    fn status_source(&self) -> StatusSource {
        let started = Instant::now();
        let source = snapshot::Source::of(&self.data_plane);
        let draining = self.draining.clone();
        let instance = self.plan.intercept.instance.clone();
        let names = self.congestion.names();
        Arc::new(move || {
            let mut data_plane = source.take();
            for leg in data_plane.legs.values_mut() {
                leg.congestion = names.configured(std::mem::take(&mut leg.congestion));
            }
            Status {
                version: env!("CARGO_PKG_VERSION"),
                instance: instance.clone(),
                uptime_s: started.elapsed().as_secs_f64(),
                draining: draining.load(Relaxed),
                data_plane,
            }
        })
    }

    /// Reads the configuration again. A wrong configuration is reported, and changes nothing.
    fn reload(&mut self, config: &Path) {
        match self.follow(config) {
            Ok(()) => {
                tracing::info!("configuration reloaded; live flows keep what they began with")
            }
            Err(failure) => not_reloaded(&failure),
        }
    }

    /// Applies the present contents of `config`.
    ///
    /// # Errors
    /// When it is wrong, or the host refuses it; then nothing has changed.
    fn follow(&mut self, config: &Path) -> Result<(), Failure> {
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
        for key in kept {
            tracing::warn!(key, "changed, but stays as it was until a restart");
        }
        Ok(())
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
