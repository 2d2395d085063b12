//! Starts and stops the data plane: workers with their listeners, then interception.

use crate::admission::Admission;
use crate::handover::Handover;
use crate::hold::Held;
use crate::intercept::{
    Entrance, InterceptError, Interception, Queue, Sight, gate, passed::Passed,
};
use crate::ledger::Ledger;
use crate::leg;
use crate::relay::{Budget, Pools};
use crate::tunnel::{self, Doubt, Identity, IdentityError, Tunnels};
use crate::worker::{Doors, PIPES, Worker};
use midhop_pep::config::{Accept, LegPlan, Plan};
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, watch};

/// Why the data plane did not start, or does not follow another plan. Nothing is left behind then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A listener on the loopback was refused.
    #[error(
        "cannot listen on {address} for leg {leg}: {source}; \
         choose another intercept.port if it is in use, or give CAP_NET_ADMIN if that is missing"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// For which leg.
        leg: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Interception was refused.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
    /// A tunnel's socket was refused.
    #[error("tunnel.listen: cannot listen on {address} (UDP): {source}")]
    Tunnel {
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Certificate, key or authority are not to be had.
    // The reason is told once: as the message, not as what is behind it.
    #[error("[tunnel]: {0}")]
    Identity(IdentityError),
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
    /// What the user can do about it, where the message does not say so.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Identity(error) => Some(error.hint()),
            _ => None,
        }
    }
}

/// A running data plane. Dropping it ends interception at once and resets what is left.
#[derive(Debug)]
pub struct DataPlane {
    // Order matters: interception goes before the workers do.
    interception: Option<Interception>,
    /// Where the legs' listeners are, by the legs' names at the start.
    doors: Vec<(String, [SocketAddr; 2])>,
    plan: watch::Sender<Arc<Plan>>,
    stop: watch::Sender<bool>,
    admission: Arc<Admission>,
    budget: Arc<Budget>,
    pools: Arc<Pools>,
    ledgers: Vec<Arc<Ledger>>,
    handover: Handover,
    tunnels: Arc<Tunnels>,
    /// Who this daemon is; none where it has no tunnels.
    identity: Option<watch::Sender<Arc<Identity>>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl DataPlane {
    /// Starts workers and interception in the network namespace of the calling thread.
    ///
    /// # Errors
    /// One clear error for the first thing that the host refuses; nothing is left behind.
    pub fn start(plan: Plan) -> Result<Self, StartError> {
        let plan = Arc::new(plan);
        let workers = match plan.daemon.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => usize::from(workers),
        };
        let workers = u16::try_from(workers).unwrap_or(u16::MAX);
        let (plan_sender, plan_receiver) = watch::channel(plan.clone());
        let (stop, stopped) = watch::channel(false);
        let admission = Admission::new(flows_max(&plan, workers));
        let intercepts = !plan.intercept.interfaces.is_empty();
        let identity = identity_of(&plan)?.map(|identity| watch::Sender::new(Arc::new(identity)));
        let seen = identity.as_ref().map(watch::Sender::subscribe);
        let (tunnels, tunnel_doors) = tunnel::doors(&plan, seen.as_ref(), usize::from(workers))
            .map_err(|(address, source)| StartError::Tunnel { address, source })?;
        let mut this = Self {
            interception: None,
            doors: doors_of(&plan),
            handover: Handover::new(Vec::new(), admission.clone()),
            plan: plan_sender,
            stop,
            admission,
            budget: Arc::new(Budget::new(plan.limits.memory.get())),
            pools: Arc::default(),
            ledgers: Vec::new(),
            tunnels: Arc::new(tunnels),
            identity,
            threads: Vec::new(),
        };
        let sight = sight(&plan);
        let held = Arc::new(Held::default());
        let mut handed = Vec::new();
        for (number, tunnels) in (0..workers).zip(tunnel_doors) {
            let mut doors =
                if intercepts { doors(&plan, sight, number)? } else { Doors::default() };
            let (sender, receiver) = mpsc::unbounded_channel();
            doors.handed = Some(receiver);
            doors.tunnels = tunnels;
            handed.push(sender);
            let ledger = Arc::new(Ledger::default());
            this.ledgers.push(ledger.clone());
            let worker_plan = plan_receiver.clone();
            let admission = this.admission.clone();
            let held = held.clone();
            let budget = this.budget.clone();
            let pools = this.pools.clone();
            let tunnels = this.tunnels.clone();
            let stopped = stopped.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || {
                    Worker::new(worker_plan, admission, held, budget, pools, ledger, tunnels)?
                        .run(doors, stopped)
                })
                .map_err(StartError::Thread)?;
            this.threads.push(thread);
        }
        this.handover = Handover::new(handed, this.admission.clone());
        if plan.stands_for_others() {
            let entrances = entrances(&plan, &this.doors);
            let interception = Interception::install(&plan, &entrances, sight, workers)?;
            this.interception = Some(interception);
            let instance = &plan.intercept.instance;
            let gate = gate::follow(instance, this.admission.clone(), stopped)
                .map_err(StartError::Thread)?;
            this.threads.push(gate);
        }
        Ok(this)
    }

    /// The counters of each worker.
    pub fn ledgers(&self) -> &[Arc<Ledger>] {
        &self.ledgers
    }

    /// For flows that clients asked for.
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }

    /// The tunnels to other proxies.
    pub fn tunnels(&self) -> &Arc<Tunnels> {
        &self.tunnels
    }

    /// The plan that new flows follow.
    pub fn plan(&self) -> watch::Receiver<Arc<Plan>> {
        self.plan.subscribe()
    }

    /// The places for flows, and how many are taken.
    pub fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// What all flows may hold, and what they do.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// What the firewall lets pass on its own; none where nothing is intercepted.
    pub fn passed(&self) -> Option<&Arc<Passed>> {
        self.interception.as_ref().map(Interception::passed)
    }

    /// How flows divide the legs of known rate.
    pub fn pools(&self) -> &Arc<Pools> {
        &self.pools
    }

    /// Lets new flows follow another plan; live ones keep theirs. A leg that is new has no listener
    /// of its own: its clients come in by the door of all others and are then set as it asks.
    ///
    /// # Errors
    /// When the plan's certificate cannot be had, or the firewall refuses its rules; all stays as it was then.
    pub fn reload(&self, plan: Plan) -> Result<(), StartError> {
        let plan = Arc::new(plan);
        let next = match &self.identity {
            Some(current) => identity_of(&plan)?.map(|next| (current, Arc::new(next))),
            None => None,
        };
        self.intercept(&plan)?;
        // Nothing of what follows is refused.
        self.budget.set_limit(plan.limits.memory.get());
        if let Some((current, next)) = next {
            // Tunnels that are open go on with what they began with.
            current.send_replace(next);
        }
        self.plan.send_replace(plan.clone());
        // Last, as it makes the gate of the new table follow.
        self.admission.set_limit(flows_max(&plan, self.workers()));
        Ok(())
    }

    /// Has the firewall follow `plan`, or what it followed before.
    fn intercept(&self, plan: &Plan) -> Result<(), StartError> {
        let Some(interception) = &self.interception else { return Ok(()) };
        let follow = |plan: &Plan| {
            let entrances = entrances(plan, &self.doors);
            interception.replace(plan, &entrances, sight(plan), self.workers())
        };
        follow(plan).map_err(|refused| {
            // A table that `nft` refuses changes nothing; what the queue refuses stands in one already.
            let before = self.plan.borrow().clone();
            if matches!(refused, InterceptError::Queue { .. })
                && let Err(error) = follow(&before)
            {
                tracing::error!(%error, "the firewall does not go back to its old rules");
            }
            refused.into()
        })
    }

    fn workers(&self) -> u16 {
        u16::try_from(self.ledgers.len()).unwrap_or(u16::MAX)
    }

    /// Takes no new flows from now on; live ones go on.
    pub fn end_interception(&mut self) {
        self.tunnels.leave();
        if let Some(interception) = &self.interception
            && let Err(error) = interception.close()
        {
            tracing::warn!(%error, "new flows cannot be told from live ones: all are let go");
            self.interception = None;
        }
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.interception = None;
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

/// Who the plan says that this daemon is.
fn identity_of(plan: &Plan) -> Result<Option<Identity>, IdentityError> {
    let Some(credentials) = &plan.tunnel.credentials else { return Ok(None) };
    let identity = Identity::load(credentials, &plan.peers)?;
    match &identity.doubt {
        None => {}
        Some(doubt @ Doubt::Ending { .. }) => tracing::warn!("{doubt}"),
        // Flows go on without their tunnels, as their rules say.
        Some(doubt) => tracing::error!("{doubt}"),
    }
    Ok(Some(identity))
}

/// Loopback addresses of the legs' listeners. Each leg has a port of its own, counted from the
/// configured one, so that an accepted socket tells which leg its client is on.
fn doors_of(plan: &Plan) -> Vec<(String, [SocketAddr; 2])> {
    let ports = plan.intercept.port..=u16::MAX;
    let door = |(leg, port): (&LegPlan, u16)| {
        let both = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
        (leg.name.clone(), both)
    };
    plan.legs.iter().zip(ports).map(door).collect()
}

/// By which door the clients of each leg come in; by none, where nothing is intercepted.
fn entrances<'a>(plan: &'a Plan, doors: &[(String, [SocketAddr; 2])]) -> Vec<Entrance<'a>> {
    let entrance = |leg: &'a LegPlan| {
        let own = doors.iter().find(|(name, _)| *name == leg.name);
        // The last door is that of all others.
        let (_, listeners) = own.or(doors.last())?;
        Some(Entrance { leg, listeners: listeners.to_vec() })
    };
    let intercepts = !plan.intercept.interfaces.is_empty();
    plan.legs.iter().filter(|_| intercepts).filter_map(entrance).collect()
}

/// As many flows as are wanted and as there are descriptors for: a flow that was accepted and then
/// found none would be reset.
fn flows_max(plan: &Plan, workers: u16) -> u64 {
    /// Two sockets.
    const PER_FLOW: u64 = 2;
    /// The event loop, queue, routes and pipes of a worker.
    const PER_WORKER: u64 = 64 + 2 * PIPES as u64;
    /// Logs, admin page, reloads and the like.
    const OTHERS: u64 = 128;
    let wanted = u64::from(plan.limits.flows);
    let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let doors = 2 * plan.legs.len() as u64;
    let taken = u64::from(workers) * (PER_WORKER + doors) + OTHERS;
    wanted.min(soft.saturating_sub(taken) / PER_FLOW)
}

/// What the daemon has to see of flows before it accepts them.
fn sight(plan: &Plan) -> Sight {
    if plan.intercept.interfaces.is_empty() {
        return Sight::Nothing;
    }
    let waits = plan.policy.accept_modes().any(|mode| mode == Accept::AfterConnect);
    if waits || plan.policy.decides_beyond_firewall() { Sight::Openings } else { Sight::Answers }
}

/// One worker's listeners, two per leg, and its queue.
fn doors(plan: &Plan, sight: Sight, worker: u16) -> Result<Doors, StartError> {
    let mut doors = Doors::default();
    for (leg, (_, addresses)) in plan.legs.iter().zip(doors_of(plan)) {
        let door = Arc::new(leg.clone());
        for address in addresses {
            let listener = leg::listen(address, leg).map_err(|source| StartError::Listen {
                address,
                leg: leg.name.clone(),
                source,
            })?;
            doors.listeners.push((door.clone(), listener));
        }
    }
    // One more than may wait: the daemon decides who passes by, not the queue's length.
    let number = plan.intercept.queue.saturating_add(worker);
    match Queue::bind(number, plan.limits.pending.saturating_add(1)) {
        Ok(queue) => doors.queue = Some(queue),
        Err(source) if sight == Sight::Openings => {
            return Err(InterceptError::Queue { source }.into());
        }
        Err(error) => tracing::info!(%error, "there are no netfilter queues"),
    }
    Ok(doors)
}
