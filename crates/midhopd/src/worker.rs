//! One thread with its own runtime, listeners, pipes and ledger; flows never leave it.

use crate::accept::accept;
use crate::admission::Admission;
use crate::assist::{AssistDoor, assist};
use crate::flow::Ends;
use crate::handover::{self, HandedFlow};
use crate::health::Health;
use crate::hold::{Hold, hold};
use crate::intercept::Queue;
use crate::ledger::Ledger;
use crate::leg::Egress;
use crate::looks::Looks;
use crate::lookup::Resolver;
use crate::relay::{Budget, Desk, Pools};
use crate::tunnel::{self, Tunnels, fallback, link::Link};
use crate::watch::Watch;
use midhop_pep::config::{LegPlan, Plan};
use midhop_pep::policy::{Crossing, Turnback};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::LocalSet;

/// Pipes that one worker lends at a time. Each may pin a megabyte of kernel memory.
pub(crate) const PIPES: usize = 64;

/// What the flows of one thread share.
#[derive(Debug)]
pub struct Worker {
    plan: watch::Receiver<Arc<Plan>>,
    /// Places for flows.
    pub admission: Arc<Admission>,
    /// Flows whose clients are still to be accepted.
    pub hold: Arc<Hold>,
    /// Where flows are booked.
    pub ledger: Arc<Ledger>,
    /// What they share while they relay.
    pub desk: Desk,
    /// Where live flows are looked at.
    pub watch: Watch,
    /// When to look at what ends.
    pub looks: Looks,
    /// The tunnels of all workers.
    pub tunnels: Arc<Tunnels>,
    /// Those that are this worker's own, by peer.
    pub links: RefCell<BTreeMap<String, Link>>,
    /// The ends of QUIC on this thread.
    pub endpoints: RefCell<Vec<quinn::Endpoint>>,
    /// The tunnels over TCP on this thread.
    pub fallbacks: RefCell<Vec<Rc<fallback::TcpSession>>>,
    /// Looks up the targets that peers name.
    pub resolver: Resolver,
    /// What tells whether all is well.
    pub health: Arc<Health>,
    stopping: Cell<bool>,
    /// Which of the workers it is.
    number: usize,
    egress: Egress,
}

impl Worker {
    /// A worker that follows `plan`.
    ///
    /// # Errors
    /// When it may not ask for routes.
    pub fn new(
        plan: watch::Receiver<Arc<Plan>>,
        admission: Arc<Admission>,
        hold: Arc<Hold>,
        budget: Arc<Budget>,
        pools: Arc<Pools>,
        ledger: Arc<Ledger>,
        tunnels: Arc<Tunnels>,
    ) -> io::Result<Self> {
        let desk = Desk::new(PIPES, budget, pools, ledger.clone());
        let (watch, looks) = (Watch::default(), Looks::default());
        let (links, endpoints, egress) = (RefCell::default(), RefCell::default(), Egress::open()?);
        let fallbacks = RefCell::default();
        let resolver = Resolver::new(tunnels.lookups.clone());
        Ok(Self {
            plan,
            admission,
            hold,
            ledger,
            desk,
            watch,
            looks,
            tunnels,
            links,
            endpoints,
            fallbacks,
            resolver,
            health: Health::new(0),
            stopping: Cell::new(false),
            number: 0,
            egress,
        })
    }

    /// The same, as the `number`th of those whose health that is.
    #[must_use]
    pub fn follow(self, health: Arc<Health>, number: usize) -> Self {
        Self { health, number, ..self }
    }

    /// Which of the workers it is.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether it has been told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// The plan as it is now. A flow keeps the one it began with.
    pub fn plan(&self) -> Arc<Plan> {
        self.plan.borrow().clone()
    }

    /// The plan as it is now and will be.
    pub fn plans(&self) -> watch::Receiver<Arc<Plan>> {
        self.plan.clone()
    }

    /// Where packets to an address go.
    pub fn routes(&self) -> &Egress {
        &self.egress
    }

    /// The interface towards a flow's server, if any leg wants to know.
    pub fn egress(&self, plan: &Plan, ends: Ends) -> Option<Rc<str>> {
        let matters = plan.legs.iter().any(|leg| leg.interface.is_some());
        if matters { self.egress.towards(ends.server.ip()) } else { None }
    }

    /// Whether the tunnel to a peer would carry a flow back to where it comes from.
    pub fn turns_back(&self, plan: &Plan, peer: &str, flow: &Crossing<'_>) -> Option<Turnback> {
        let address = plan.peers.iter().find(|it| it.name == peer)?.address?;
        flow.turns_back(address.ip(), |to| self.egress.next_hop(to.to_canonical()))
    }

    /// Serves on the calling thread until `stop` turns true.
    ///
    /// # Errors
    /// When the thread can have no runtime.
    pub fn run(self, doors: Doors, mut stop: watch::Receiver<bool>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let local = LocalSet::new();
        let worker = Rc::new(self);
        local.block_on(&runtime, async {
            let health = worker.health.clone();
            health.keep("the beat of a worker", health.clone().beat(worker.number));
            for (door, listener) in doors.listeners {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                health.keep("accepting", accept(worker.clone(), door, listener));
            }
            match doors.queue {
                Some(queue) => {
                    health.keep("holding SYNs", hold(worker.clone(), queue, doors.waiting));
                }
                None => drop(doors.waiting),
            }
            if let Some(door) = doors.assist {
                health.keep("assisting flows", assist(worker.clone(), door));
            }
            let watching = worker.clone();
            let looking = async move { watching.watch.look(&watching.ledger).await };
            health.keep("looking at live flows", looking);
            let ending = worker.clone();
            let looking = async move { ending.looks.go_on().await };
            health.keep("looking at flows that end", looking);
            doors.tunnels.serve(&worker);
            if let Some(handed) = doors.handed {
                health.keep("taking flows over", handover::receive(worker.clone(), handed));
            }
            // A closed channel means that the daemon is gone: an end as well.
            let _ = stop.wait_for(|stop| *stop).await;
            worker.stopping.set(true);
            tunnel::close(&worker.endpoints.take(), &worker.fallbacks.take()).await;
            Ok(())
        })
    }
}

/// Where flows come in to one worker.
#[derive(Debug, Default)]
pub struct Doors {
    /// One listener per leg and address family, with the leg as it was when it began to listen.
    pub listeners: Vec<(Arc<LegPlan>, TcpListener)>,
    /// Where SYNs wait for the far side.
    pub queue: Option<Queue>,
    /// Where packets of assisted flows come in.
    pub assist: Option<AssistDoor>,
    /// Held until what waits there is safe.
    pub waiting: Option<Sender<Infallible>>,
    /// Where flows come from that clients asked for.
    pub handed: Option<UnboundedReceiver<HandedFlow>>,
    /// The tunnels that are this worker's own.
    pub tunnels: tunnel::TunnelDoors,
}
