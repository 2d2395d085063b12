//! A run, event by event: an application writes, TCP makes a segment, the node routes it,
//! a link decides its fate and its time, the engine wakes the next node, an agent may process it, TCP
//! acknowledges, the recorder notes it.

use crate::agent::Agent;
use crate::app::{App, AppContext, AppId};
use crate::engine::{Engine, Timer};
use crate::hop::HopId;
use crate::host::Hosts;
use crate::network::Network;
use crate::node::Post;
use crate::packet::NodeId;
use crate::recorder::{INTERVAL, LinkCurves};
use midhop_experiment::handovers::HandoversResult;
use midhop_units::Instant;
use std::fmt;

/// How many events pass between two checks for an interruption.
const EVENTS_BETWEEN_LOOKS: u64 = 1 << 14;

/// The actor of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    /// A connection's end, or none.
    Socket,
    Hop(HopId),
    Agent(NodeId),
    /// The start of an application.
    Start(AppId),
    App(AppId),
    Sampler,
    Handovers,
}

/// Why a simulation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Every transfer is complete.
    Done,
    /// The end of its duration.
    TimeUp,
    /// An interruption was requested.
    Interrupted,
}

/// A source of scheduled changes of the network.
pub(crate) trait Timetable: fmt::Debug {
    /// When to call [`Timetable::wake`] next.
    fn due(&self) -> Instant;

    /// That time has come.
    fn wake(&mut self, engine: &mut Engine, network: &mut Network);

    /// Its results so far.
    fn result(&self, network: &Network) -> HandoversResult;

    /// Reasons to doubt the figures of the run.
    fn faults(&self) -> Vec<String>;

    /// For tests: checks what must hold after every event.
    ///
    /// # Panics
    /// When it does not.
    fn check_invariants(&self, network: &Network);
}

/// Everything in a run.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub engine: Engine,
    pub network: Network,
    pub hosts: Hosts,
    apps: Vec<(Box<dyn App>, Timer)>,
    actors: Vec<Actor>,
    sampler: Timer,
    pub links: LinkCurves,
    /// The handovers, and their timer.
    pub handovers: Option<(Box<dyn Timetable>, Timer)>,
    /// Runs every check after every event.
    pub checking: bool,
}

impl Simulation {
    /// A network whose hops have the timers `hops`, in their order, and its hosts; no applications yet.
    pub fn new(mut engine: Engine, network: Network, hops: &[Timer], hosts: Hosts) -> Self {
        let mut actors = Vec::new();
        for (number, timer) in hops.iter().enumerate() {
            set_actor(&mut actors, *timer, Actor::Hop(HopId(number as u16)));
        }
        let sampler = engine.timer();
        set_actor(&mut actors, sampler, Actor::Sampler);
        engine.set(sampler, Instant::START + INTERVAL);
        let links = LinkCurves::new(network.hops().len());
        Self {
            engine,
            network,
            hosts,
            apps: Vec::new(),
            actors,
            sampler,
            links,
            handovers: None,
            checking: false,
        }
    }

    /// Adds an application that begins at `at`.
    pub fn add(&mut self, at: Instant, app: impl FnOnce(AppId) -> Box<dyn App>) {
        let id = AppId(self.apps.len() as u16);
        let (timer, start) = (self.engine.timer(), self.engine.timer());
        set_actor(&mut self.actors, timer, Actor::App(id));
        set_actor(&mut self.actors, start, Actor::Start(id));
        self.engine.set(start, at);
        self.apps.push((app(id), timer));
    }

    /// Adds the handovers.
    pub fn hand_over(&mut self, handovers: Box<dyn Timetable>) {
        let timer = self.engine.timer();
        set_actor(&mut self.actors, timer, Actor::Handovers);
        self.engine.set(timer, handovers.due());
        self.handovers = Some((handovers, timer));
    }

    /// Adds an agent at a node, behind the present ones but before the proxy. Its counters have
    /// its name.
    pub fn place(&mut self, node: NodeId, name: Option<String>, agent: Box<dyn Agent>) {
        self.post(node, name, agent, false);
    }

    /// Adds a proxy at a node, behind all other agents there.
    pub fn place_proxy(&mut self, node: NodeId, agent: Box<dyn Agent>) {
        self.post(node, None, agent, true);
    }

    fn post(&mut self, node: NodeId, name: Option<String>, agent: Box<dyn Agent>, is_proxy: bool) {
        let timer = self.engine.timer();
        set_actor(&mut self.actors, timer, Actor::Agent(node));
        self.network.place(&mut self.engine, node, Post { name, agent, timer, is_proxy });
    }

    /// Runs until every application is done, `until` has come, or `interrupted` returns true.
    pub fn run(&mut self, until: Instant, interrupted: &dyn Fn() -> bool) -> Stopped {
        let mut look = self.engine.fired() + EVENTS_BETWEEN_LOOKS;
        while let Some(timer) = self.engine.next(until) {
            let may_end = self.wake(timer);
            if self.checking {
                self.check_invariants();
            }
            if may_end && self.is_done() {
                return Stopped::Done;
            }
            if self.engine.fired() >= look {
                look += EVENTS_BETWEEN_LOOKS;
                if interrupted() {
                    return Stopped::Interrupted;
                }
            }
        }
        Stopped::TimeUp
    }

    /// Whether every transfer is complete. A run without transfers continues to its end.
    fn is_done(&self) -> bool {
        let mut transfers = self.apps.iter().filter_map(|(app, _)| app.is_done()).peekable();
        transfers.peek().is_some() && transfers.all(|done| done)
    }

    /// Lets an actor act, with all direct responses; returns whether an application got an event.
    fn wake(&mut self, timer: Timer) -> bool {
        let Self { engine, network, hosts, handovers, .. } = self;
        let mut notified = false;
        match self.actors.get(timer.index()).copied().unwrap_or(Actor::Socket) {
            Actor::Hop(hop) => network.hop_wakes(engine, hop),
            Actor::Agent(node) => network.agent_wakes(engine, node, timer),
            Actor::Socket => hosts.wake(engine, network, timer),
            Actor::Start(app) => {
                notified = true;
                self.context(app, |app, context| app.start(context));
            }
            Actor::App(app) => {
                notified = true;
                self.context(app, |app, context| app.handle_timeout(context));
            }
            Actor::Handovers => {
                if let Some((handovers, timer)) = handovers {
                    handovers.wake(engine, network);
                    engine.set(*timer, handovers.due());
                }
            }
            Actor::Sampler => {
                let now = self.engine.now();
                self.sample(now);
                self.engine.set(self.sampler, now + INTERVAL);
            }
        }
        self.settle() || notified
    }

    /// Continues until no actor has anything to do at this time; returns whether an application got an
    /// event.
    fn settle(&mut self) -> bool {
        let mut any = false;
        loop {
            let Self { engine, network, hosts, .. } = self;
            if let Some((node, handle)) = network.poll_local() {
                let packet = network.take(handle);
                if let Some((flow, number)) = hosts.receive(engine, network, node, &packet) {
                    let app = hosts.app(flow);
                    self.context(app, |app, context| app.handle_datagram(context, flow, number));
                }
            } else if let Some((flow, end, event)) = hosts.poll_event() {
                any = true;
                let app = hosts.app(flow);
                self.context(app, |app, context| app.handle(context, flow, end, event));
            } else if !hosts.attend_next(engine, network) {
                return any;
            }
        }
    }

    /// Samples everything, as at `at`.
    pub fn sample(&mut self, at: Instant) {
        self.network.catch_up(self.engine.now());
        self.links.sample(at, self.network.hops());
        self.network.sample(at);
        for app in 0..self.apps.len() {
            self.context(AppId(app as u16), |app, context| app.sample(context, at));
        }
    }

    /// Lets an application act at its context.
    pub fn context<R>(
        &mut self,
        app: AppId,
        act: impl FnOnce(&mut dyn App, &mut AppContext<'_>) -> R,
    ) -> R {
        let Self { engine, network, hosts, apps, .. } = self;
        let (acting, timer) = &mut apps[app.index()];
        let mut context = AppContext { engine, network, hosts, app, timer: *timer };
        act(acting.as_mut(), &mut context)
    }

    /// How many applications there are.
    pub fn apps(&self) -> impl Iterator<Item = AppId> + use<> {
        (0..self.apps.len() as u16).map(AppId)
    }

    /// For tests: checks what must hold after every event.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check_invariants(&self) {
        self.engine.check_invariants();
        self.network.check_invariants();
        self.hosts.check_invariants();
        if let Some((handovers, _)) = &self.handovers {
            handovers.check_invariants(&self.network);
        }
    }
}

fn set_actor(actors: &mut Vec<Actor>, timer: Timer, actor: Actor) {
    if actors.len() <= timer.index() {
        actors.resize(timer.index() + 1, Actor::Socket);
    }
    actors[timer.index()] = actor;
}
