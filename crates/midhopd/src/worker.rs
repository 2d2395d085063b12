//! State that the flows of one thread share; they never leave it. How the thread serves: [`serve`].
//!
//! Decision 0004.

pub mod serve;

use crate::admission::Admission;
use crate::coarse_timer::CoarseTimer;
use crate::ends::Ends;
use crate::flow_sampler::FlowSampler;
use crate::ledger::Ledger;
use crate::leg::Egress;
use crate::relay::{Pools, RelayContext};
use crate::survival::open_moves::OpenMoves;
use crate::survival::register::Region;
use crate::survival::store::Store;
use crate::syn_hold::state::Hold;
use crate::tunnel::directory::Tunnels;
use crate::tunnel::{fallback, link::Link};
use midhop_linux::schedstat::ThreadWaits;
use midhop_lookup::Resolver;
use midhop_pep::budget::Budget;
use midhop_pep::config::Plan;
use midhop_pep::policy::{Crossing, Turnback};
use midhop_status::health::Health;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The most pipes that one worker lends at a time. Each may pin a megabyte of kernel memory.
pub(crate) const PIPES: usize = 64;

/// State that the flows of one thread share.
#[derive(Debug)]
pub struct Worker {
    plan: watch::Receiver<Arc<Plan>>,
    /// The number of flows and its limits.
    pub admission: Arc<Admission>,
    /// Flows whose clients are still to be accepted.
    pub hold: Arc<Hold>,
    /// Where flows are booked.
    pub ledger: Arc<Ledger>,
    /// What flows share while they relay.
    pub relay_context: RelayContext,
    /// Samples live flows.
    pub sampler: FlowSampler,
    /// The timer for checks of flows that end.
    pub coarse_timer: CoarseTimer,
    /// The tunnels of all workers.
    pub tunnels: Arc<Tunnels>,
    /// The tunnels of this worker, by peer.
    pub links: RefCell<BTreeMap<String, Link>>,
    /// The QUIC endpoints on this thread.
    pub endpoints: RefCell<Vec<crate::tunnel::quic::QuicEndpoint>>,
    /// The tunnels over TCP on this thread.
    pub fallbacks: RefCell<Vec<Rc<fallback::TcpSession>>>,
    /// Looks up the targets that peers name.
    pub resolver: Resolver,
    /// The part of the register in which flows are entered, so that they outlive this process.
    pub region: Option<Rc<Region>>,
    /// Keeps the bytes that tunnels have not confirmed.
    pub store: Arc<Store>,
    /// Moves of flows that an upgrade waits for.
    pub open_moves: OpenMoves,
    /// The health of the daemon's parts.
    pub health: Arc<Health>,
    /// How long this thread has waited for a processor, if the kernel records that.
    waits: Option<ThreadWaits>,
    stopping: Cell<bool>,
    /// Its number among the workers.
    number: usize,
    egress: Egress,
}

impl Worker {
    /// A worker that follows `plan`.
    ///
    /// # Errors
    /// When it cannot query routes.
    pub fn new(
        plan: watch::Receiver<Arc<Plan>>,
        admission: Arc<Admission>,
        hold: Arc<Hold>,
        budget: Arc<Budget>,
        pools: Arc<Pools>,
        ledger: Arc<Ledger>,
        tunnels: Arc<Tunnels>,
    ) -> io::Result<Self> {
        let relay_context = RelayContext::new(PIPES, budget, pools, ledger.clone());
        let (sampler, coarse_timer) = (FlowSampler::default(), CoarseTimer::default());
        let (links, endpoints, egress) = (RefCell::default(), RefCell::default(), Egress::open()?);
        let fallbacks = RefCell::default();
        let resolver = Resolver::new(tunnels.lookups.clone());
        Ok(Self {
            plan,
            admission,
            hold,
            ledger,
            relay_context,
            sampler,
            coarse_timer,
            tunnels,
            links,
            endpoints,
            fallbacks,
            resolver,
            region: None,
            store: Arc::default(),
            open_moves: OpenMoves::default(),
            health: Health::new(0),
            waits: ThreadWaits::of_this_thread().ok(),
            stopping: Cell::new(false),
            number: 0,
            egress,
        })
    }

    /// The same, as worker number `number`, with the health that it reports to.
    #[must_use]
    pub fn follow(self, health: Arc<Health>, number: usize) -> Self {
        Self { health, number, ..self }
    }

    /// The same, with what outlives this process: the register that flows are entered in, the store of unconfirmed bytes, and
    /// the count of moves that an upgrade waits for.
    #[must_use]
    pub fn remember(
        self,
        region: Option<Rc<Region>>,
        store: Arc<Store>,
        open_moves: OpenMoves,
    ) -> Self {
        self.relay_context.scratch.replace(store.scratch());
        Self { region, store, open_moves, ..self }
    }

    /// Its number among the workers.
    pub fn number(&self) -> usize {
        self.number
    }

    /// How long its thread has been ready to run without a processor, since it began; zero if that
    /// is not known.
    pub fn waited(&self) -> Duration {
        let waited = self.waits.as_ref().and_then(|waits| waits.waited().ok());
        waited.unwrap_or_default()
    }

    /// Whether it has been stopped.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Stops it.
    fn stop(&self) {
        self.stopping.set(true);
    }

    /// The present plan. A flow keeps the one it began with.
    pub fn plan(&self) -> Arc<Plan> {
        self.plan.borrow().clone()
    }

    /// The present plan and its changes.
    pub fn plans(&self) -> watch::Receiver<Arc<Plan>> {
        self.plan.clone()
    }

    /// The routes of packets to an address.
    pub fn routes(&self) -> &Egress {
        &self.egress
    }

    /// The interface towards a flow's server, if any leg depends on it.
    pub fn egress(&self, plan: &Plan, ends: Ends) -> Option<Rc<str>> {
        let matters = plan.legs.iter().any(|leg| leg.interface.is_some());
        if matters { self.egress.towards(ends.server.ip()) } else { None }
    }

    /// Whether the tunnel to a peer would carry a flow back to where it comes from.
    pub fn turns_back(&self, plan: &Plan, peer: &str, flow: &Crossing<'_>) -> Option<Turnback> {
        let address = plan.peers.iter().find(|it| it.name == peer)?.address?;
        flow.turns_back(address.ip(), |to| self.egress.next_hop(to.to_canonical()))
    }
}
