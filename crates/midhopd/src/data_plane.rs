//! Starts and stops the data plane: workers with their listeners, then interception.

use crate::admission::Admission;
use crate::assist::{AssistDoor, AssistPeerError, Peer};
use crate::capacity::Capacity;
use crate::failure::Failure;
use crate::firewall::{self, Firewall, Passed};
use crate::handover::Handover;
use crate::intercept::{Injector, InterceptError, Queue, assist_queue, gate, still_queue};
use crate::keeper::{Keeper, line::STOCK_MAX};
use crate::ledger::Ledger;
use crate::leg;
use crate::prefixes::Prefixes;
use crate::relay::Pools;
use crate::relocation::order::{FlowRequests, MovingWorker};
use crate::relocation::waiting;
use crate::survival::holder::Succession;
use crate::survival::left::LeftDoors;
use crate::syn_hold::Hold;
use crate::tunnel;
use crate::tunnel::directory::Tunnels;
use crate::worker::serve::{Doors, serve};
use crate::worker::{PIPES, Worker};
use midhop_pep::budget::Budget;
use midhop_pep::config::Plan;
use midhop_pki::identity::{Doubt, Identity, IdentityError};
use midhop_process::confine;
use midhop_status::health::Health;
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Why the data plane did not start, or does not apply another plan. Nothing is left behind then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A listener on the loopback was refused.
    #[error(
        "cannot listen on {address} for leg {leg}: {source}; \
         choose another intercept.port if it is in use, or give CAP_NET_ADMIN if that is missing"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The leg.
        leg: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Interception was refused.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
    /// A tunnel's socket was refused.
    #[error("tunnel.listen: cannot listen on {address} (UDP): {source}")]
    Tunnel {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// Certificate, key or authority are not available.
    // The reason is reported once: as the message, not as its source.
    #[error("[tunnel]: {0}")]
    Identity(IdentityError),
    /// No reports can be sent to the daemon at the far end of an assisted link.
    #[error(transparent)]
    Assist(#[from] AssistPeerError),
    /// Privileges cannot be given up.
    #[error(transparent)]
    Privileges(Failure),
    /// No thread could be started.
    #[error("cannot start a worker thread: {0}")]
    Thread(#[source] io::Error),
}

impl From<IdentityError> for StartError {
    fn from(error: IdentityError) -> Self {
        Self::Identity(error)
    }
}

impl StartError {
    /// What the user can do, where the message does not include it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Identity(error) => Some(error.hint()),
            Self::Assist(error) => Some(error.hint()),
            _ => None,
        }
    }
}

/// A running data plane. Dropping it ends interception at once and resets the remaining flows.
#[derive(Debug)]
pub struct DataPlane {
    // The order matters: interception is dropped before the workers.
    firewall: Option<Firewall>,
    plan: watch::Sender<Arc<Plan>>,
    stop: watch::Sender<bool>,
    admission: Arc<Admission>,
    budget: Arc<Budget>,
    hold: Arc<Hold>,
    pools: Arc<Pools>,
    ledgers: Vec<Arc<Ledger>>,
    /// Where flows are asked to stand still, by worker.
    halts: Vec<mpsc::UnboundedSender<FlowRequests>>,
    prefixes: Arc<Prefixes>,
    handover: Handover,
    tunnels: Arc<Tunnels>,
    health: Arc<Health>,
    /// This daemon's identity; none where it has no tunnels.
    identity: Option<watch::Sender<Arc<Identity>>>,
    /// Number of this daemon's data planes that were killed before.
    deaths: u64,
    /// Number of programs that have replaced one before them.
    upgrades: u64,
    /// The descriptors of its listeners.
    listeners: Vec<RawFd>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl DataPlane {
    /// Starts workers and interception in the network namespace of the calling thread.
    ///
    /// # Errors
    /// One clear error for the first thing that the host refuses; nothing is left behind.
    pub fn start(plan: Plan) -> Result<Self, StartError> {
        let injector = Hold::injector(&plan)?;
        Self::start_with(plan, injector, None, None, || Ok(()))
    }

    /// How many workers a plan has.
    pub fn workers_of(plan: &Plan) -> u16 {
        let workers = match plan.daemon.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => usize::from(workers),
        };
        u16::try_from(workers).unwrap_or(u16::MAX)
    }

    /// The same with raw sockets that [`Hold::injector`] opened before: opening them takes a
    /// capability that serving does not. Where there is a keeper, it installs interception. When
    /// all sockets are open and no thread has started, `seal` drops the privileges that are not
    /// needed any more.
    ///
    /// # Errors
    /// As [`DataPlane::start`].
    pub fn start_with(
        plan: Plan,
        injector: Option<Injector>,
        keeper: Option<Arc<Keeper>>,
        succession: Option<Succession>,
        seal: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Self, StartError> {
        let plan = Arc::new(plan);
        let workers = Self::workers_of(&plan);
        let (plan_sender, plan_receiver) = watch::channel(plan.clone());
        let (stop, stopped) = watch::channel(false);
        let admission = Admission::new(flows_max(&plan, workers));
        let intercepts = !plan.intercept.interfaces.is_empty();
        let identity = identity_of(&plan)?.map(|identity| watch::Sender::new(Arc::new(identity)));
        let seen = identity.as_ref().map(watch::Sender::subscribe);
        let (tunnels, tunnel_doors) = tunnel::doors(&plan, seen.as_ref(), usize::from(workers))
            .map_err(|(address, source)| StartError::Tunnel { address, source })?;
        let names = firewall::doors(&plan).into_iter().map(|(name, _)| name).collect();
        let hold = Hold::new(&plan, injector, names).following(succession.as_ref());
        let hold = Arc::new(hold);
        let mut this = Self {
            firewall: None,
            handover: Handover::new(Vec::new(), admission.clone()),
            plan: plan_sender,
            stop,
            admission,
            budget: budget_of(&plan),
            hold: hold.clone(),
            pools: Arc::default(),
            ledgers: Vec::new(),
            halts: Vec::new(),
            prefixes: Arc::default(),
            tunnels: Arc::new(tunnels),
            health: Health::new(usize::from(workers)),
            identity,
            deaths: succession.as_ref().map_or(0, |it| it.deaths),
            upgrades: succession.as_ref().map_or(0, |it| it.upgrades),
            listeners: Vec::new(),
            threads: Vec::new(),
        };
        this.follow_sources(&plan);
        let mut all_doors = (0..workers)
            .map(|number| {
                if intercepts {
                    let left = succession.as_ref().map(|it| &*it.left);
                    doors(&plan, &hold, left, number)
                } else {
                    Ok(Doors::default())
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        let listeners = all_doors.iter().flat_map(|doors| &doors.listeners);
        this.listeners = listeners.map(|(_, listener)| listener.as_raw_fd()).collect();
        if let Some(first) = all_doors.first_mut().filter(|_| intercepts) {
            let queue = Queue::bind_shut(still_queue(&plan, workers), waiting::QUEUED);
            first.moving = Some(queue.map_err(|source| InterceptError::Queue { source })?);
        }
        if let Some(first) = all_doors.first_mut().filter(|_| intercepts && plan.assist.is_on()) {
            let queue = Queue::bind(assist_queue(&plan, workers), ASSIST_QUEUED);
            let queue = queue.map_err(|source| InterceptError::Queue { source })?;
            let peer = plan.assist.peer.as_ref().map(Peer::open).transpose()?;
            first.assist = Some(AssistDoor { queue, peer });
        }
        seal().map_err(StartError::Privileges)?;
        let takes_over = succession.as_ref().is_some_and(Succession::takes_over);
        let workers = NewWorkers { doors: all_doors, tunnel_doors, plan: plan_receiver, stopped };
        match this.begin(&plan, workers, keeper, succession) {
            Ok(()) => Ok(this),
            Err(error) => {
                if takes_over {
                    // This process ends. Its flows belong to the next one, and dropping the value
                    // would reset them.
                    std::mem::forget(this);
                }
                Err(error)
            }
        }
    }

    /// Starts workers and interception, with all sockets open and no privileges.
    fn begin(
        &mut self,
        plan: &Arc<Plan>,
        new: NewWorkers,
        keeper: Option<Arc<Keeper>>,
        succession: Option<Succession>,
    ) -> Result<(), StartError> {
        let NewWorkers { doors, tunnel_doors, plan: plan_receiver, stopped } = new;
        let workers = u16::try_from(doors.len()).unwrap_or(u16::MAX);
        // After a takeover, the table that is installed still delivers the packets of live flows:
        // these are continued first.
        let is_installed = succession.as_ref().is_some_and(Succession::takes_over);
        let (opened, may_open) = watch::channel(!is_installed);
        if !is_installed {
            // Before any worker runs: once a tunnel is open, no flow may bypass the rule that names it.
            self.intercept(plan, workers, keeper.as_ref())?;
        }
        if succession.is_some() {
            self.tunnels.resumable_flows.adopt(usize::from(workers));
        }
        let mut handed = Vec::new();
        let (waiting, all_wait) = std::sync::mpsc::channel();
        for ((number, mut doors), tunnels) in (0..workers).zip(doors).zip(tunnel_doors) {
            let (sender, receiver) = mpsc::unbounded_channel();
            doors.handed = Some(receiver);
            doors.waiting = Some(waiting.clone());
            doors.tunnels = tunnels;
            doors.succession = succession.clone();
            doors.may_open = Some(may_open.clone());
            handed.push(sender);
            let (sender, receiver) = mpsc::unbounded_channel();
            doors.halts = Some(receiver);
            self.halts.push(sender);
            let ledger = Arc::new(Ledger::with_prefixes(self.prefixes.clone()));
            self.ledgers.push(ledger.clone());
            let worker_plan = plan_receiver.clone();
            let admission = self.admission.clone();
            let hold = self.hold.clone();
            let budget = self.budget.clone();
            let pools = self.pools.clone();
            let tunnels = self.tunnels.clone();
            let stopped = stopped.clone();
            let health = self.health.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || {
                    confine::thread();
                    health.run(&format!("worker {number}"), || {
                        let worker = Worker::new(
                            worker_plan,
                            admission,
                            hold,
                            budget,
                            pools,
                            ledger,
                            tunnels,
                        )?;
                        serve(worker.follow(health.clone(), usize::from(number)), doors, stopped)
                    })
                })
                .map_err(StartError::Thread)?;
            self.threads.push(thread);
        }
        drop(waiting);
        if is_installed {
            self.intercept(plan, workers, keeper.as_ref())?;
            opened.send_replace(true);
        }
        // From now on, packets that wait in a queue go on even if this process ends. A worker that
        // does not get this far ends the process.
        let _ = all_wait.recv_timeout(QUEUES);
        self.handover = Handover::new(handed, self.admission.clone());
        if plan.stands_for_others() {
            let instance = &plan.intercept.instance;
            let (admission, health) = (self.admission.clone(), self.health.clone());
            let gate = gate::follow(instance, keeper, admission, health, stopped)
                .map_err(StartError::Thread)?;
            self.threads.push(gate);
        }
        Ok(())
    }

    /// Installs interception where the plan has it, and follows what the keeper reports.
    fn intercept(
        &mut self,
        plan: &Arc<Plan>,
        workers: u16,
        keeper: Option<&Arc<Keeper>>,
    ) -> Result<(), StartError> {
        let tracked = &self.hold.tracked;
        if plan.stands_for_others() {
            self.firewall = Some(Firewall::install(plan, workers, tracked.clone(), keeper)?);
        }
        if let Some(keeper) = keeper {
            let health = self.health.clone();
            keeper.follow(tracked.clone(), health).map_err(StartError::Thread)?;
        }
        Ok(())
    }

    /// The counters of each worker.
    pub fn ledgers(&self) -> &[Arc<Ledger>] {
        &self.ledgers
    }

    /// The counters of source prefixes.
    pub fn prefixes(&self) -> &Arc<Prefixes> {
        &self.prefixes
    }

    /// This daemon's identity, and its changes; none where it has no tunnels.
    pub fn identity(&self) -> Option<watch::Receiver<Arc<Identity>>> {
        self.identity.as_ref().map(watch::Sender::subscribe)
    }

    /// How many data planes of this daemon were killed before this one.
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// How many programs have replaced one before them.
    pub fn upgrades(&self) -> u64 {
        self.upgrades
    }

    /// The descriptors of the listeners that interception delivers to.
    pub fn listeners(&self) -> &[RawFd] {
        &self.listeners
    }

    /// Hands over flows that clients requested.
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }

    /// The tunnels to other proxies.
    pub fn tunnels(&self) -> &Arc<Tunnels> {
        &self.tunnels
    }

    /// The health of all its parts.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The plan that new flows follow.
    pub fn plan(&self) -> watch::Receiver<Arc<Plan>> {
        self.plan.subscribe()
    }

    /// The places for flows, and their use.
    pub fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// The flows that are being opened.
    pub fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The memory limit of all flows, and its use.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The counters of SYNs that the firewall lets pass without the daemon; none where nothing is intercepted.
    pub fn passed(&self) -> Option<Passed> {
        self.firewall.as_ref().map(Firewall::passed)
    }

    /// How flows divide the legs of known rate.
    pub fn pools(&self) -> &Arc<Pools> {
        &self.pools
    }

    /// The workers, whose flows may move.
    pub fn moving_workers(&self) -> Vec<MovingWorker> {
        let both = self.ledgers.iter().zip(&self.halts);
        both.map(|(ledger, halts)| MovingWorker { ledger: ledger.clone(), halts: halts.clone() })
            .collect()
    }

    /// Applies another plan to new flows. Live ones keep theirs. A new leg has no listener of its own: its clients
    /// are accepted by the shared listener, and then get the leg's settings.
    ///
    /// # Errors
    /// When the plan's certificate is not available, or the firewall refuses its rules; then nothing has changed.
    pub fn reload(&self, plan: Plan) -> Result<(), StartError> {
        let plan = Arc::new(plan);
        let next = match &self.identity {
            Some(current) => identity_of(&plan)?.map(|next| (current, Arc::new(next))),
            None => None,
        };
        if let Some(firewall) = &self.firewall {
            firewall.follow(&plan)?;
        }
        // The following steps cannot fail.
        self.budget.set_limit(memory_max(&plan));
        self.budget.set_window_least(plan.limits.flow_buffer.get());
        self.follow_sources(&plan);
        if let Some((current, next)) = next {
            // Open tunnels keep their plan, unless their peers may not stay.
            current.send_replace(next);
        }
        self.plan.send_replace(plan.clone());
        self.tunnels.follow(&plan.peers);
        // Last, because it also sets the gate of the new table.
        self.admission.set_limit(flows_max(&plan, self.workers()));
        Ok(())
    }

    fn follow_sources(&self, plan: &Plan) {
        self.prefixes.follow(&plan.sources);
        self.admission.limit_sources(&plan.sources, plan.limits.flows_per_source);
    }

    fn workers(&self) -> u16 {
        u16::try_from(self.ledgers.len()).unwrap_or(u16::MAX)
    }

    /// Takes no new flows from now on. Live ones go on.
    pub fn end_interception(&mut self) {
        self.tunnels.leave();
        if let Some(firewall) = &self.firewall
            && let Err(error) = firewall.close()
        {
            tracing::warn!(%error, "interception cannot be ended for new flows alone: it is removed");
            self.firewall = None;
        }
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.firewall = None;
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "a worker ended early"),
                Err(_) => tracing::error!("a worker panicked"),
            }
        }
    }
}

/// What workers are started with.
struct NewWorkers {
    doors: Vec<Doors>,
    tunnel_doors: Vec<tunnel::TunnelDoors>,
    plan: watch::Receiver<Arc<Plan>>,
    stopped: watch::Receiver<bool>,
}

/// The daemon's identity in the plan.
fn identity_of(plan: &Plan) -> Result<Option<Identity>, IdentityError> {
    let Some(credentials) = &plan.tunnel.credentials else { return Ok(None) };
    let identity = Identity::load(credentials, &plan.peers)?;
    match &identity.doubt {
        None => {}
        Some(doubt @ Doubt::Ending { .. }) => tracing::warn!("{doubt}"),
        // Flows go on without their tunnels, as their rules specify.
        Some(doubt) => tracing::error!("{doubt}"),
    }
    Ok(Some(identity))
}

/// The number of flows that is wanted and that descriptors suffice for: an accepted flow without a descriptor would
/// be reset.
fn flows_max(plan: &Plan, workers: u16) -> u64 {
    /// Two sockets.
    const PER_FLOW: u64 = 2;
    /// The event loop, queue, routes and pipes of a worker, and its stock of sockets.
    const PER_WORKER: u64 = 64 + 2 * PIPES as u64 + STOCK_MAX as u64;
    /// Logs, admin page, reloads and the like.
    const OTHERS: u64 = 128;
    let wanted = u64::from(plan.limits.flows);
    let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let doors = 2 * plan.legs.len() as u64;
    let taken = u64::from(workers) * (PER_WORKER + doors) + OTHERS;
    wanted.min(soft.saturating_sub(taken) / PER_FLOW)
}

/// What all flows may hold together, and what each window may have in any case.
fn budget_of(plan: &Plan) -> Arc<Budget> {
    let budget = Budget::new(memory_max(plan));
    budget.set_window_least(plan.limits.flow_buffer.get());
    Arc::new(budget)
}

/// Unit: bytes. The most that all flows may hold together, within this host's capacity; at least two directions of
/// one flow.
fn memory_max(plan: &Plan) -> u64 {
    let least = plan.limits.flow_buffer + plan.limits.flow_buffer;
    Capacity::bound(plan.limits.memory).max(least).get()
}

/// The most SYNs that wait for a worker; more pass by.
const QUEUED: u32 = 1024;
/// The most packets of assisted flows that wait; more pass without assistance.
const ASSIST_QUEUED: u32 = 8192;
/// How long workers may take until they serve their queues.
const QUEUES: Duration = Duration::from_secs(5);

/// One worker's listeners, two per leg, and its queue.
fn doors(
    plan: &Plan,
    hold: &Hold,
    left: Option<&LeftDoors>,
    worker: u16,
) -> Result<Doors, StartError> {
    let mut doors = Doors::default();
    for (leg, (_, addresses)) in plan.legs.iter().zip(firewall::doors(plan)) {
        let door = Arc::new(leg.clone());
        for address in addresses {
            let mark = hold.marks.client;
            let listener = match left.and_then(|left| left.take(address)) {
                Some(listener) => leg::listen_on(listener, leg, mark),
                None => leg::listen(address, leg, mark),
            };
            let listener = listener.map_err(|source| StartError::Listen {
                address,
                leg: leg.name.clone(),
                source,
            })?;
            doors.listeners.push((door.clone(), listener));
        }
    }
    // Longer than `limits.pending` for clients' SYNs and for our own: the daemon decides which
    // flows pass by, not the queue's length.
    let number = plan.intercept.queue.saturating_add(worker);
    let length = plan.limits.pending.saturating_mul(2).saturating_add(QUEUED);
    let queue = Queue::bind(number, length);
    doors.queue = Some(queue.map_err(|source| InterceptError::Queue { source })?);
    Ok(doors)
}
