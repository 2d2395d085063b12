//! Flows that move from one proxy to another, and how a proxy behaves meanwhile.
//!
//! A flow moves completely: both endpoints with their congestion control, and the data of its
//! directions. What belongs to the proxy stays there: the flow's part of the budget and of a leg's
//! rate, and its counts. The other proxy's legs, by its own configuration, replace the old ones.

use super::flow::SplitFlow;
use super::proxied::ProxiedFlow;
use super::{Ended, Fate, Make, Proxy, either};
use crate::agent::Actions;
use crate::packet::{FlowId, NodeId};
use midhop_experiment::limit::Family;
use midhop_pep::policy::FlowKey;
use midhop_units::Instant;
use std::net::SocketAddr;

/// A flow in transit between two proxies.
#[derive(Debug)]
pub(crate) struct MovingFlow(Box<SplitFlow>);

/// The amount of state of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub flow: FlowId,
    /// Both of its connections are or were open; otherwise it cannot move.
    pub established: bool,
    /// Bytes that it holds: received out of order, not yet read, not yet written, not yet acknowledged.
    pub held: u64,
    /// The part of them that was received out of order.
    pub out_of_order: u64,
    /// Bytes that have arrived in order at both of its connections so far.
    pub arrived: u64,
}

impl Proxy {
    /// The live flows, in the order in which they began.
    pub(crate) fn extents(&self) -> Vec<Extent> {
        let flows = self.flows.iter().flatten().map(Box::as_ref);
        let split = flows.filter_map(|flow| match flow {
            ProxiedFlow::Split(flow) if flow.is_live() => Some(flow.extent()),
            _ => None,
        });
        split.collect()
    }

    /// Removes a live flow, and drops its packets from now on.
    pub(crate) fn take_out(&mut self, now: Instant, id: FlowId) -> Option<MovingFlow> {
        let place = self.flows.get_mut(id.index())?;
        match place.take().map(|flow| *flow) {
            Some(ProxiedFlow::Split(mut flow)) => {
                self.due.set(id, Instant::NEVER);
                flow.due = Instant::NEVER;
                flow.leave(now, &mut self.shared);
                self.shared.counts.moved_out += 1;
                self.frozen.insert(id);
                Some(MovingFlow(Box::new(flow)))
            }
            other => {
                self.flows[id.index()] = other.map(Box::new);
                None
            }
        }
    }

    /// Drops packets of a flow that will arrive here, until [`Proxy::take_in`] or [`Proxy::thaw`].
    pub(crate) fn freeze(&mut self, id: FlowId) {
        self.frozen.insert(id);
    }

    /// Stops dropping packets of a flow that is not here.
    pub(crate) fn thaw(&mut self, id: FlowId) {
        self.frozen.remove(&id);
    }

    /// Adds a flow, which continues here.
    pub(crate) fn take_in(&mut self, now: Instant, flow: MovingFlow, actions: &mut Actions) {
        let MovingFlow(mut flow) = flow;
        let id = flow.id;
        self.thaw(id);
        let (nodes, ports, family) = flow.ends();
        let models = self.models(nodes, ports, family);
        flow.settle_at(now, self.node, models, &self.shared.budget);
        flow.enter(&mut self.shared);
        self.shared.counts.moved_in += 1;
        self.place(id, ProxiedFlow::Split(*flow));
        self.with(now, id, |flow, shared| either!(flow, flow => flow.wake(now, shared, actions)));
        self.make_room(now, actions);
    }

    /// Resets both ends of a flow; returns whether there was one.
    pub(crate) fn reset(&mut self, now: Instant, id: FlowId, actions: &mut Actions) -> bool {
        let mut was_live = false;
        self.with(now, id, |flow, shared| match flow {
            ProxiedFlow::Split(flow) if flow.is_live() => {
                was_live = true;
                flow.reset(now, shared, actions)
            }
            _ => Ended::No,
        });
        was_live
    }

    /// Sets whether new flows bypass the proxy from now on.
    pub(crate) fn drain(&mut self, drains: bool) {
        self.drains = drains;
    }

    /// Sets for each node the link on which the route to it begins, and whether the queue there is
    /// an XCP router.
    pub(crate) fn set_ways(&mut self, ways: Vec<(Option<String>, bool)>) {
        for (place, (link, answers_xcp)) in self.places.iter_mut().zip(ways) {
            (place.link, place.answers_xcp) = (link, answers_xcp);
        }
    }

    /// The legs that this proxy would give the flow. Where it would not split the flow, the flow
    /// keeps its legs.
    fn models(
        &self,
        nodes: [NodeId; 2],
        ports: [u16; 2],
        family: Family,
    ) -> [Result<super::leg::Model, Option<String>>; 2] {
        let places = nodes.map(|node| self.places.get(node.index()));
        let links = places.map(|place| place.and_then(|place| place.link.clone()));
        let [Some(source), Some(destination)] = places else { return links.map(Err) };
        let version = usize::from(family == Family::Ipv6);
        let key = FlowKey {
            source: SocketAddr::new(source.addresses[version], ports[0]),
            destination: SocketAddr::new(destination.addresses[version], ports[1]),
            interface: links[0].as_deref(),
            peer: None,
            dscp: 0,
        };
        match &self.make {
            Make::Naive(made) => made.legs(&links).map(Ok),
            Make::Configured(made) => match made.fate(&key, &links, 0, 0, |_| false, |_| None) {
                Fate::Split { legs, .. } => (*legs).map(Ok),
                _ => links.map(Err),
            },
        }
    }
}
