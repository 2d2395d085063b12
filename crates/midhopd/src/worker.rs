//! One thread with its own runtime, listeners, pipes and ledger; flows never leave it.

use crate::accept::accept;
use crate::admission::Admission;
use crate::flow::Ends;
use crate::handover::{self, Asked};
use crate::hold::{Held, hold};
use crate::intercept::Queue;
use crate::ledger::Ledger;
use crate::leg::Egress;
use crate::relay::{Budget, Desk, Pools};
use crate::tunnel::{self, Tunnels, fallback, link::Link, paces::Paces};
use crate::watch::Watch;
use midhop_pep::config::{LegPlan, Plan};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
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
    pub held: Arc<Held>,
    /// Where flows are booked.
    pub ledger: Arc<Ledger>,
    /// What they share while they relay.
    pub desk: Desk,
    /// Where live flows are looked at.
    pub watch: Watch,
    /// The tunnels of all workers.
    pub tunnels: Arc<Tunnels>,
    /// Those that are this worker's own, by peer.
    pub links: RefCell<BTreeMap<String, Link>>,
    /// The ends of QUIC on this thread.
    pub endpoints: RefCell<Vec<quinn::Endpoint>>,
    /// The tunnels over TCP on this thread.
    pub fallbacks: RefCell<Vec<Rc<fallback::Session>>>,
    /// How the carriers of a tunnel on this thread divide its rate.
    pub paces: Rc<Paces>,
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
        held: Arc<Held>,
        budget: Arc<Budget>,
        pools: Arc<Pools>,
        ledger: Arc<Ledger>,
        tunnels: Arc<Tunnels>,
    ) -> io::Result<Self> {
        let desk = Desk::new(PIPES, budget, pools, ledger.clone());
        let watch = Watch::default();
        let (links, endpoints, egress) = (RefCell::default(), RefCell::default(), Egress::open()?);
        let (fallbacks, paces) = (RefCell::default(), Rc::default());
        Ok(Self {
            plan,
            admission,
            held,
            ledger,
            desk,
            watch,
            tunnels,
            links,
            endpoints,
            fallbacks,
            paces,
            egress,
        })
    }

    /// The plan as it is now. A flow keeps the one it began with.
    pub fn plan(&self) -> Arc<Plan> {
        self.plan.borrow().clone()
    }

    /// The interface towards a flow's server, if any leg wants to know.
    pub fn egress(&self, plan: &Plan, ends: Ends) -> Option<Rc<str>> {
        let matters = plan.legs.iter().any(|leg| leg.interface.is_some());
        if matters { self.egress.towards(ends.server.ip()) } else { None }
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
            for (door, listener) in doors.listeners {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::task::spawn_local(accept(worker.clone(), door, listener));
            }
            if let Some(queue) = doors.queue {
                tokio::task::spawn_local(hold(worker.clone(), queue));
            }
            let watching = worker.clone();
            tokio::task::spawn_local(async move { watching.watch.look(&watching.ledger).await });
            doors.tunnels.serve(&worker);
            if let Some(handed) = doors.handed {
                tokio::task::spawn_local(handover::receive(worker.clone(), handed));
            }
            // A closed channel means that the daemon is gone: an end as well.
            let _ = stop.wait_for(|stop| *stop).await;
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
    /// Where flows come from that clients asked for.
    pub handed: Option<UnboundedReceiver<Asked>>,
    /// The tunnels that are this worker's own.
    pub tunnels: tunnel::Doors,
}
