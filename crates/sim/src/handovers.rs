//! Handovers: at their times, routes change. The flows of a proxy on the old path are moved or
//! reset, or stay there, and then their packets are forwarded to it.
//!
//! A flow that moves is frozen from the handover until its state has arrived at the other proxy.
//! The state is what its two endpoints and its directions hold. It crosses the link between the two
//! proxies, with that link's rate and delay, flow after flow in the order in which they began. From
//! the announcement on, it is copied while the flows still run (`copying`), so that after the
//! handover only the difference is left. It does not compete with packets. During the freeze,
//! packets of the flow are dropped at both nodes, as firewall rules would drop them; TCP
//! retransmits them. Packets that arrive at the old node later are forwarded to the new one.
//!
//! Invariant: a flow that moves is in one place: at a proxy, or in transit.
//!
//! Decision 0055.

mod copying;

use crate::agent::Actions;
use crate::diversions::Diversion;
use crate::engine::Engine;
use crate::fault::RunError;
use crate::hop::HopId;
use crate::network::Network;
use crate::packet::{FlowId, NodeId};
use crate::pep::{Extent, FROZEN, MovingFlow, Proxy};
use crate::routes;
use crate::simulation::Timetable;
use copying::{Copying, time_for};
use midhop_experiment::Plan;
use midhop_experiment::handovers::{Freezes, HandoverPlan, HandoversResult, LiveFlows, StateWay};
use midhop_path::Direction;
use midhop_path::delay::LinkDelay;
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// An action that is due at a time.
#[derive(Debug)]
enum Step {
    /// A handover is announced, or another round of copies may begin.
    Copy(usize),
    /// New flows bypass the proxy that will be left.
    Drain(usize),
    /// A handover takes place.
    HandOver(usize),
    /// The state of a flow arrives.
    Arrive(usize, FlowId),
    /// Flows at a node are reset.
    Reset(NodeId, Vec<FlowId>),
}

/// The path of state between the two nodes of a handover.
#[derive(Debug)]
enum Way {
    /// A link: the hops from the old node to the new one and back, and its delay.
    Link([HopId; 2], LinkDelay),
    /// A path of its own, outside the network.
    Own(Rate, Duration),
    None,
}

/// A handover of the plan, with its nodes and hops.
#[derive(Debug)]
struct Handover {
    nodes: [NodeId; 2],
    way: Way,
    plan: HandoverPlan,
}

/// The time of a handover, and the routes from then on.
#[derive(Debug)]
struct Moment {
    handover: usize,
    routes: Rc<Vec<Vec<Option<HopId>>>>,
    /// It has passed.
    over: bool,
}

/// The place of a flow that has moved.
#[derive(Debug)]
enum Place {
    At(NodeId),
    /// In transit since this time.
    OnItsWay(Instant, Option<MovingFlow>),
}

/// All handovers of a run.
#[derive(Debug)]
pub(crate) struct Handovers {
    plan: Plan,
    handovers: Vec<Handover>,
    moments: Vec<Moment>,
    steps: BTreeMap<(Instant, u64), Step>,
    sequence: u64,
    /// By moment.
    copies: BTreeMap<usize, Copying>,
    /// Nodes that were left and not returned to since, with the moment of each.
    left: BTreeMap<NodeId, usize>,
    /// Flows that have moved.
    places: BTreeMap<FlowId, Place>,
    result: HandoversResult,
    freezes: Vec<Duration>,
    /// Pairs of proxies of which both had a flow that was to move from one to the other.
    twice: BTreeSet<[NodeId; 2]>,
}

impl Handovers {
    /// The handovers of a plan.
    ///
    /// # Errors
    /// When the plan contradicts itself.
    pub fn of(plan: &Plan) -> Result<Self, RunError> {
        let handovers = plan.handovers.iter().map(|it| Handover::of(plan, it));
        let handovers = handovers.collect::<Result<_, _>>()?;
        let timeline = plan.timeline();
        let mut own = Self {
            plan: plan.clone(),
            handovers,
            moments: Vec::new(),
            steps: BTreeMap::new(),
            sequence: 0,
            copies: BTreeMap::new(),
            left: BTreeMap::new(),
            places: BTreeMap::new(),
            result: HandoversResult::default(),
            freezes: Vec::new(),
            twice: BTreeSet::new(),
        };
        let mut tables = BTreeMap::new();
        for (number, (moment, unused)) in
            timeline.moments().iter().zip(&timeline.unused()[1..]).enumerate()
        {
            let table = || Rc::new(routes::table(plan, unused));
            let routes = tables.entry(unused.clone()).or_insert_with(table).clone();
            own.moments.push(Moment { handover: moment.handover, routes, over: false });
            let planned = &plan.handovers[moment.handover];
            let at = Instant::START + moment.at;
            let announced = Instant::START + moment.at.saturating_sub(planned.announced);
            match planned.flows {
                LiveFlows::Moved if announced < at => own.plan_step(announced, Step::Copy(number)),
                LiveFlows::Drained => own.plan_step(announced, Step::Drain(number)),
                _ => {}
            }
            own.plan_step(at, Step::HandOver(number));
        }
        Ok(own)
    }

    fn of_moment(&self, moment: usize) -> &Handover {
        &self.handovers[self.moments[moment].handover]
    }

    fn plan_step(&mut self, at: Instant, step: Step) {
        self.sequence += 1;
        self.steps.insert((at, self.sequence), step);
    }

    /// Begins a round of copies.
    fn copy(&mut self, engine: &mut Engine, network: &mut Network, moment: usize) {
        if self.moments[moment].over {
            return;
        }
        let now = engine.now();
        let handover = self.of_moment(moment);
        let (from, state) = (handover.nodes[0], handover.plan.state.get());
        let rate = handover.rate(network);
        let flows = extents(engine, network, from);
        let flows: Vec<Extent> = flows.into_iter().filter(|flow| flow.established).collect();
        let next = self.copies.entry(moment).or_default().begin(now, &flows, state, rate);
        self.plan_step(next, Step::Copy(moment));
    }

    /// The host changes to its other link.
    fn hand_over(&mut self, engine: &mut Engine, network: &mut Network, moment: usize) {
        self.result.count += 1;
        self.find_ways(engine, network, moment);
        self.moments[moment].over = true;
        let [from, to] = self.of_moment(moment).nodes;
        self.left.insert(from, moment);
        self.left.remove(&to);
        with_proxy(engine, network, to, |proxy, _| proxy.drain(false));
        self.take_along(engine, network, moment);
        let flows = extents(engine, network, from);
        self.leave(engine, network, moment, flows);
        self.copies.remove(&moment);
    }

    /// Sets the routes from a moment on, and informs the proxies.
    fn find_ways(&mut self, engine: &mut Engine, network: &mut Network, moment: usize) {
        let routes = self.moments[moment].routes.clone();
        for (number, ways) in routes.iter().enumerate() {
            let node = NodeId(number as u16);
            for (far, hop) in ways.iter().enumerate() {
                network.node_mut(node).set_route(NodeId(far as u16), *hop);
            }
            let planned = &self.plan.nodes[number];
            let way = |hop: &Option<HopId>| {
                let link = hop.map(|hop| network.hops()[hop.index()].name.clone());
                let answers = |link: &String| self.plan.answers_xcp(&planned.name, link);
                (link.clone(), link.as_ref().is_some_and(answers))
            };
            let ways: Vec<_> = ways.iter().map(way).collect();
            with_proxy(engine, network, node, |proxy, _| proxy.set_ways(ways));
        }
    }

    /// Diverts packets of flows of other proxies, which the node that is left forwards to those
    /// proxies: the new node sends them to the node that is left. Without a link to it, these flows
    /// are reset.
    fn take_along(&mut self, engine: &mut Engine, network: &mut Network, moment: usize) {
        let handover = self.of_moment(moment);
        let ([from, to], outage) = (handover.nodes, handover.plan.outage);
        let back = handover.hops().map(|[_, back]| back);
        let mut cut: BTreeMap<NodeId, Vec<FlowId>> = BTreeMap::new();
        for (flow, home) in network.diversions.at(from) {
            if !network.has_flow(home, flow) || home == to {
                continue;
            }
            match back {
                _ if network.diversions.of(to, flow).is_some() => {}
                Some(hop) => network.diversions.set(to, flow, Diversion { hop, home }),
                None => cut.entry(home).or_default().push(flow),
            }
        }
        for (home, flows) in cut {
            self.plan_step(engine.now() + outage, Step::Reset(home, flows));
        }
    }

    /// Decides what happens to flows at the node that was left at a moment.
    fn leave(
        &mut self,
        engine: &mut Engine,
        network: &mut Network,
        moment: usize,
        flows: Vec<Extent>,
    ) {
        let now = engine.now();
        let Handover { nodes: [from, to], plan, .. } = self.of_moment(moment);
        let (nodes @ [from, to], live) = ([*from, *to], plan.flows);
        let (back_at, drained_at) = (now + plan.outage, now + plan.drain);
        let back = self.of_moment(moment).hops().map(|[_, back]| back);
        let mut reset = Vec::new();
        let mut stay = Vec::new();
        let mut moved = Vec::new();
        for extent in flows {
            let flow = extent.flow;
            if live != LiveFlows::Reset && network.has_flow(to, flow) {
                self.twice.insert(nodes);
                self.plan_step(back_at, Step::Reset(to, vec![flow]));
                reset.push(flow);
                continue;
            }
            match (live, back) {
                (LiveFlows::Moved, _) if extent.established => moved.push(extent),
                (LiveFlows::Drained | LiveFlows::Anchored, Some(hop)) => {
                    network.diversions.set(to, flow, Diversion { hop, home: from });
                    stay.push(flow);
                }
                _ => reset.push(flow),
            }
        }
        self.result.flows_chained += stay.len() as u64;
        if live == LiveFlows::Drained && !stay.is_empty() {
            self.plan_step(drained_at, Step::Reset(from, stay));
        }
        if !reset.is_empty() {
            // While the host has no link, it would not receive the reset.
            self.plan_step(back_at, Step::Reset(from, reset));
        }
        self.ship(engine, network, moment, moved);
    }

    /// Moves flows to the other proxy.
    fn ship(
        &mut self,
        engine: &mut Engine,
        network: &mut Network,
        moment: usize,
        flows: Vec<Extent>,
    ) {
        let now = engine.now();
        let handover = self.of_moment(moment);
        let ([from, to], state) = (handover.nodes, handover.plan.state.get());
        let (rate, delay) = (handover.rate(network), handover.delay(now));
        let mut copying = self.copies.remove(&moment).unwrap_or_default();
        copying.settle(now);
        self.result.state_bytes += Bytes::new(copying.sent);
        let mut sum = 0;
        for extent in flows {
            let id = extent.flow;
            let flow = with_proxy(engine, network, from, |proxy, _| proxy.take_out(now, id));
            let Some(flow) = flow.flatten() else { continue };
            sum += state + copying.missing(&extent);
            with_proxy(engine, network, to, |proxy, _| proxy.freeze(id));
            self.places.insert(id, Place::OnItsWay(now, Some(flow)));
            let there = now + time_for(sum, rate) + delay;
            self.plan_step(there, Step::Arrive(moment, id));
        }
        self.result.state_bytes += Bytes::new(sum);
        self.result.state_frozen_bytes += Bytes::new(sum);
    }

    /// The state of a flow has arrived at the other proxy.
    fn arrive(&mut self, engine: &mut Engine, network: &mut Network, moment: usize, id: FlowId) {
        let now = engine.now();
        let handover = self.of_moment(moment);
        let ([from, to], hops) = (handover.nodes, handover.hops());
        let Some(Place::OnItsWay(since, flow)) = self.places.get_mut(&id) else { return };
        let (since, Some(flow)) = (*since, flow.take()) else { return };
        self.freezes.push(now.saturating_since(since));
        self.result.flows_moved += 1;
        self.places.insert(id, Place::At(to));
        if let Some([hop, _]) = hops {
            network.diversions.set(from, id, Diversion { hop, home: to });
            with_proxy(engine, network, from, |proxy, _| proxy.thaw(id));
        }
        network.diversions.come(id, to);
        with_proxy(engine, network, to, |proxy, actions| proxy.take_in(now, flow, actions));
        if let Some(&later) = self.left.get(&to) {
            // That node was left in the meantime.
            let flows = extents(engine, network, to);
            let flows = flows.into_iter().filter(|extent| extent.flow == id).collect();
            self.leave(engine, network, later, flows);
        }
    }

    fn reset(
        &mut self,
        engine: &mut Engine,
        network: &mut Network,
        node: NodeId,
        flows: &[FlowId],
    ) {
        let now = engine.now();
        for &flow in flows {
            let reset =
                with_proxy(engine, network, node, |proxy, actions| proxy.reset(now, flow, actions));
            self.result.flows_reset += u64::from(reset == Some(true));
        }
        network.forget_diversions();
    }
}

impl Timetable for Handovers {
    fn due(&self) -> Instant {
        self.steps.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at)
    }

    fn wake(&mut self, engine: &mut Engine, network: &mut Network) {
        while let Some(first) = self.steps.first_entry().filter(|it| it.key().0 <= engine.now()) {
            match first.remove() {
                Step::Copy(moment) => self.copy(engine, network, moment),
                Step::Drain(moment) => {
                    let [from, _] = self.of_moment(moment).nodes;
                    with_proxy(engine, network, from, |proxy, _| proxy.drain(true));
                }
                Step::HandOver(moment) => self.hand_over(engine, network, moment),
                Step::Arrive(moment, flow) => self.arrive(engine, network, moment, flow),
                Step::Reset(node, flows) => self.reset(engine, network, node, &flows),
            }
        }
    }

    fn result(&self, network: &Network) -> HandoversResult {
        let dropped = network.nodes().iter().filter_map(|node| node.drops().get(FROZEN));
        HandoversResult {
            packets_dropped: Some(dropped.sum()),
            freeze: Freezes::of(self.freezes.clone()),
            ..self.result.clone()
        }
    }

    fn faults(&self) -> Vec<String> {
        let name = |node: NodeId| self.plan.nodes[node.index()].name.as_str();
        let fault = |&[from, to]: &[NodeId; 2]| {
            format!(
                "flows were split by both {} and {}, and reset at the handover: let one of them intercept them",
                name(from),
                name(to)
            )
        };
        self.twice.iter().map(fault).collect()
    }

    /// For tests: checks that each flow that has moved is in one place.
    ///
    /// # Panics
    /// When it is not.
    fn check_invariants(&self, network: &Network) {
        let nodes: BTreeSet<NodeId> = self.handovers.iter().flat_map(|it| it.nodes).collect();
        for (flow, place) in &self.places {
            for node in nodes.iter().filter(|node| network.has_flow(**node, *flow)) {
                let there = matches!(place, Place::At(home) if home == node);
                assert!(there, "{flow:?} is at {node:?}, and {place:?}");
            }
        }
    }
}

impl Handover {
    fn of(plan: &Plan, handover: &HandoverPlan) -> Result<Self, RunError> {
        let node = |name: &String| {
            let number = plan.nodes.iter().position(|node| node.name == *name);
            let id = number.map(|number| NodeId(number as u16));
            id.ok_or_else(|| RunError::Plan { what: format!("the node {name}") })
        };
        let way = match &handover.over {
            Some(StateWay::Link(name)) => {
                let number = plan.links.iter().position(|link| link.name == *name);
                let unknown = || RunError::Plan { what: format!("the link {name}") };
                let number = number.ok_or_else(unknown)?;
                let link = &plan.links[number];
                let there = match link.between[0] == handover.to {
                    true => Direction::Down,
                    false => Direction::Up,
                };
                let mut hops = Direction::ALL.map(|way| routes::hop(number, way));
                if there == Direction::Up {
                    hops.reverse();
                }
                Way::Link(hops, link.direction(there).delay.clone())
            }
            Some(StateWay::Own(own)) => Way::Own(own.rate, own.delay),
            None => Way::None,
        };
        let nodes = [node(&handover.from)?, node(&handover.to)?];
        Ok(Self { nodes, way, plan: handover.clone() })
    }

    /// The hops from the old node to the new one and back, where the path is a link.
    fn hops(&self) -> Option<[HopId; 2]> {
        match self.way {
            Way::Link(hops, _) => Some(hops),
            Way::Own(..) | Way::None => None,
        }
    }

    /// The current rate of the path; none without a limit.
    fn rate(&self, network: &mut Network) -> Option<Rate> {
        match self.way {
            Way::Link([hop, _], _) => network.carrier_rate(hop),
            Way::Own(rate, _) => Some(rate),
            Way::None => None,
        }
    }

    fn delay(&self, now: Instant) -> Duration {
        match &self.way {
            Way::Link(_, delay) => delay.at(now.saturating_since(Instant::START)),
            Way::Own(_, delay) => *delay,
            Way::None => Duration::ZERO,
        }
    }
}

/// Lets the proxy at a node act, if there is one.
fn with_proxy<R>(
    engine: &mut Engine,
    network: &mut Network,
    node: NodeId,
    act: impl FnOnce(&mut Proxy, &mut Actions) -> R,
) -> Option<R> {
    let done = network.with_last_agent(engine, node, |agent, actions| {
        Some(act(agent.as_any_mut()?.downcast_mut()?, actions))
    });
    done.flatten()
}

/// The live flows at a node.
fn extents(engine: &mut Engine, network: &mut Network, node: NodeId) -> Vec<Extent> {
    with_proxy(engine, network, node, |proxy, _| proxy.extents()).unwrap_or_default()
}
