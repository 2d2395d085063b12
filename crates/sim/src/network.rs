//! Nodes and the links between them: packets go from hop to hop to their destination.
//!
//! The network knows neither TCP nor applications. [`Network::send`] takes a packet at a node and gives
//! it to the link of its route. When that link's timer fires, [`Network::hop_wakes`] takes the packets
//! that have arrived and forwards them, and [`Network::poll_local`] returns those for the
//! node itself.
//!
//! Invariant: a packet is in one place: in a link, with an agent, or waiting to be taken by its node;
//! when it is dropped, the place counts it under a cause.

use crate::agent::{Action, Actions, Agent};
use crate::diversions::Diversions;
use crate::engine::{Engine, Timer};
use crate::hop::{Hop, HopId};
use crate::node::{Node, Post};
use crate::packet::{Body, End, FlowId, Handle, NodeId, Packet, Packets};
use crate::watch::{Glance, Sight, Watcher};
use midhop_congestion::QueueReport;
use midhop_path::Cause;
use midhop_units::{Instant, Rate};
use std::collections::VecDeque;
use std::io;

/// The cause under which a node counts a packet without a route.
pub const NO_ROUTE: &str = "no-route";

/// A packet on its way through a node.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Its next agent, by the place among the node's posts.
    next: usize,
    packet: Packet,
}

/// Nodes, hops, and the packets between them.
#[derive(Debug, Default)]
pub struct Network {
    nodes: Vec<Node>,
    hops: Vec<Hop>,
    packets: Packets,
    /// Packets that have arrived, until their node takes them.
    local: VecDeque<(NodeId, Handle)>,
    actions: Actions,
    /// Packets on their way through the acting node; the last one continues next.
    steps: Vec<Step>,
    watchers: Vec<Box<dyn Watcher>>,
    /// Flows whose packets leave the route to their destination.
    pub(crate) diversions: Diversions,
}

impl Network {
    /// Nodes and the hops between them. A node's routes name hops by their index in `hops`.
    pub fn new(nodes: Vec<Node>, hops: Vec<Hop>) -> Self {
        Self { nodes, hops, ..Self::default() }
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Samples the connections of proxies, as at `at`.
    pub(crate) fn sample(&mut self, at: Instant) {
        self.nodes.iter_mut().for_each(|node| node.sample(at));
    }

    /// Mutable access to a node.
    pub fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.index()]
    }

    /// All hops, in the order of their numbers.
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// The hops from one node to another; empty without a route.
    pub fn way(&self, from: NodeId, to: NodeId) -> Vec<HopId> {
        let (mut at, mut way) = (from, Vec::new());
        while at != to && way.len() <= self.nodes.len() {
            let Some(hop) = self.nodes[at.index()].route(to) else { return Vec::new() };
            way.push(hop);
            at = self.hops[hop.index()].to;
        }
        way
    }

    /// The packets in flight.
    pub fn packets(&self) -> &Packets {
        &self.packets
    }

    /// Adds a watcher.
    pub fn watch(&mut self, watcher: Box<dyn Watcher>) {
        self.watchers.push(watcher);
    }

    /// Lets the watchers finish.
    ///
    /// # Errors
    /// The first write error of a watcher.
    pub fn finish_watching(&mut self) -> io::Result<()> {
        self.watchers.drain(..).try_for_each(|mut watcher| watcher.finish())
    }

    /// Reports the state of one end of a connection to the watchers.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        flow: FlowId,
        end: End,
        glance: impl FnOnce() -> Glance,
    ) {
        if !self.watchers.is_empty() {
            let glance = glance();
            self.watchers.iter_mut().for_each(|watcher| watcher.look(now, flow, end, &glance));
        }
    }

    /// Puts an agent at a node, which its timer wakes.
    pub(crate) fn place(&mut self, engine: &mut Engine, node: NodeId, post: Post) {
        engine.set(post.timer, post.agent.poll_timeout().unwrap_or(Instant::NEVER));
        self.nodes[node.index()].place(post);
    }

    /// Sends a packet that was made at `node` to its destination. It passes the agents there, but no
    /// proxy.
    pub fn send(&mut self, engine: &mut Engine, node: NodeId, packet: Packet) {
        if self.nodes[node.index()].posts.is_empty() {
            self.leave(engine, node, packet);
        } else {
            self.steps.push(Step { next: 0, packet });
            self.go_on(engine, node);
        }
    }

    /// The timer of a hop has fired: packets may have arrived. They continue, or wait for their node to
    /// take them with [`Network::poll_local`].
    pub fn hop_wakes(&mut self, engine: &mut Engine, hop: HopId) {
        let now = engine.now();
        let acting = &mut self.hops[hop.index()];
        let node = acting.to;
        acting.catch_up(now);
        if acting.has_dropped() {
            self.bury(now, hop);
        }
        while let Some((handle, size)) = self.hops[hop.index()].poll_output(now) {
            let is_copy = handle.is_copy();
            let handle = self.packets.own(handle);
            if is_copy && let Body::Tunnel(contents) = self.packets.look(&handle).body {
                self.actions.contents().hold(contents);
            }
            for watcher in &mut self.watchers {
                let hop = &self.hops[hop.index()];
                watcher.see(now, hop, Sight::Left, &self.packets.look(&handle));
            }
            if !self.nodes[node.index()].posts.is_empty() {
                let packet = self.packets.take(handle);
                self.steps.push(Step { next: 0, packet });
                self.go_on(engine, node);
            } else if handle.destination() == node {
                self.local.push_back((node, handle));
            } else {
                self.route(engine, node, handle, size);
            }
        }
        self.hops[hop.index()].expect_output(engine);
    }

    /// The timer of an agent at a node has fired.
    pub fn agent_wakes(&mut self, engine: &mut Engine, node: NodeId, timer: Timer) {
        let now = engine.now();
        let posts = &self.nodes[node.index()].posts;
        let Some(post) = posts.iter().position(|post| post.timer == timer) else { return };
        self.meet(engine, node, post, |agent, actions| agent.handle_timeout(now, actions));
        self.go_on(engine, node);
    }

    /// Lets the last agent at a node act, where a proxy would be.
    pub(crate) fn with_last_agent<R>(
        &mut self,
        engine: &mut Engine,
        node: NodeId,
        act: impl FnOnce(&mut dyn Agent, &mut Actions) -> R,
    ) -> Option<R> {
        let post = self.nodes[node.index()].posts.len().checked_sub(1)?;
        let mut result = None;
        self.meet(engine, node, post, |agent, actions| result = Some(act(agent, actions)));
        self.go_on(engine, node);
        result
    }

    /// Whether the proxy at a node ends the connections of a flow.
    pub(crate) fn has_flow(&self, node: NodeId, flow: FlowId) -> bool {
        let posts = &self.nodes[node.index()].posts;
        posts.last().is_some_and(|post| post.agent.has_flow(flow))
    }

    /// The current rate of a hop; none without a limit.
    pub(crate) fn carrier_rate(&mut self, hop: HopId) -> Option<Rate> {
        self.hops[hop.index()].carrier_rate()
    }

    /// Forgets the diversions of flows that have ended.
    pub(crate) fn forget_diversions(&mut self) {
        let nodes = &self.nodes;
        self.diversions.retain(|flow, home| {
            nodes[home.index()].posts.last().is_some_and(|post| post.agent.has_flow(flow))
        });
    }

    /// The hop that a packet takes at `node` instead of its route, if the proxy that has its flow is elsewhere.
    fn diverted(&self, node: NodeId, packet: &Packet) -> Option<HopId> {
        let diversion = self.diversions.of(node, packet.flow)?;
        let is_home = packet.maker == diversion.home;
        let wanted = !is_home && self.has_flow(diversion.home, packet.flow);
        wanted.then_some(diversion.hop)
    }

    /// The next packet at its destination, for [`Network::take`], and the node.
    pub fn poll_local(&mut self) -> Option<(NodeId, Handle)> {
        self.local.pop_front()
    }

    /// Takes a packet at its destination.
    #[inline]
    pub fn take(&mut self, handle: Handle) -> Packet {
        let packet = self.packets.take(handle);
        self.actions.bury(&packet);
        packet
    }

    /// The queue at the first hop from `node` to `destination`, and that hop's rate; `None` without
    /// a route.
    pub(crate) fn first_queue(
        &mut self,
        now: Instant,
        node: NodeId,
        destination: NodeId,
    ) -> Option<QueueReport> {
        let hop = self.nodes[node.index()].route(destination)?;
        self.hops[hop.index()].catch_up(now);
        self.bury(now, hop);
        let hop = &mut self.hops[hop.index()];
        Some(QueueReport { now, queued: hop.queue_bytes(), allocation: hop.carrier_rate() })
    }

    /// Lets every link do everything due by now, so that its queue can be read.
    pub fn catch_up(&mut self, now: Instant) {
        for number in 0..self.hops.len() {
            self.hops[number].catch_up(now);
            self.bury(now, HopId(number as u16));
        }
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When a packet is counted nowhere.
    pub fn check_invariants(&self) {
        let mut inside = 0;
        for hop in &self.hops {
            hop.check_invariants(&self.packets);
            let counters = hop.counters();
            let came = counters.packets_in + counters.duplicates;
            inside += came - counters.packets_out - counters.dropped_in_all();
        }
        let copies: u64 = self.hops.iter().map(|hop| hop.counters().duplicates).sum();
        let kept = self.packets.len() as u64;
        assert!(kept <= inside && inside <= kept + copies, "{kept} kept, {inside} inside links");
        assert!(self.actions.tunnelled() <= self.packets.len(), "contents of no packet");
        let posts = self.nodes.iter().flat_map(|node| &node.posts);
        posts.for_each(|post| post.agent.check_invariants());
    }

    fn route(&mut self, engine: &mut Engine, node: NodeId, handle: Handle, size: u32) {
        let now = engine.now();
        let diverted = match self.diversions.is_empty() {
            true => None,
            false => self.diverted(node, &self.packets.look(&handle)),
        };
        let Self { nodes, hops, packets, watchers, actions, .. } = self;
        let node = &mut nodes[node.index()];
        let Some(next) = diverted.or_else(|| node.route(handle.destination())) else {
            actions.bury(&packets.take(handle));
            node.count_drop(NO_ROUTE);
            return;
        };
        let hop = &mut hops[next.index()];
        for watcher in watchers {
            watcher.see(now, hop, Sight::Entered, &packets.look(&handle));
        }
        hop.answer(now, packets, &handle);
        let handle = match &mut node.filter {
            Some((_, filter)) if filter.minds(next, &packets.look(&handle)) => {
                filter.thin(now, hop, packets, handle)
            }
            _ => Some(handle),
        };
        if let Some(handle) = handle {
            hop.send(engine, size, handle);
        }
        if hop.has_dropped() {
            self.bury(now, next);
        }
    }

    /// Frees the packets that a hop has dropped.
    fn bury(&mut self, now: Instant, hop: HopId) {
        while let Some(dropped) = self.hops[hop.index()].poll_dropped() {
            let is_copy = dropped.packet.is_copy();
            let packet = self.packets.take(dropped.packet);
            if !is_copy {
                self.actions.bury(&packet);
            }
            if matches!(dropped.cause, Cause::Queue | Cause::Aqm) {
                self.report_refused(now, hop, &packet);
            }
            let sight = Sight::Dropped(dropped.cause.name());
            for watcher in &mut self.watchers {
                watcher.see(now, &self.hops[hop.index()], sight, &packet);
            }
        }
    }

    /// Informs the agents at a hop's first node that the queue there has refused a packet.
    fn report_refused(&mut self, now: Instant, hop: HopId, packet: &Packet) {
        // The other direction of the link ends where this one begins.
        let Some(back) = self.hops.get(hop.index() ^ 1) else { return };
        let posts = &mut self.nodes[back.to.index()].posts;
        posts.iter_mut().for_each(|post| post.agent.handle_drop(now, packet));
    }

    /// Moves packets through a node, each past all its agents, before the next packet.
    fn go_on(&mut self, engine: &mut Engine, node: NodeId) {
        let now = engine.now();
        while let Some(Step { mut next, packet }) = self.steps.pop() {
            let passes = packet.maker == node
                || (!self.diversions.is_empty() && self.diverted(node, &packet).is_some());
            let posts = &self.nodes[node.index()].posts;
            // A proxy does not process its own packets, nor those that another one waits for.
            while posts.get(next).is_some_and(|post| post.is_proxy && passes) {
                next += 1;
            }
            if let Some(post) = posts.get(next) {
                if post.agent.minds_queue(&packet)
                    && let Some(report) = self.first_queue(now, node, packet.source)
                {
                    self.nodes[node.index()].posts[next].agent.handle_queue(&packet, &report);
                }
                self.meet(engine, node, next, |agent, actions| {
                    agent.handle_packet(now, packet, actions);
                });
            } else {
                self.leave(engine, node, packet);
            }
        }
    }

    /// Lets an agent act, and turns its packets into steps: to the next agent behind it. A
    /// proxy's packets start from the inside, and pass all other agents.
    fn meet(
        &mut self,
        engine: &mut Engine,
        node: NodeId,
        post: usize,
        act: impl FnOnce(&mut dyn Agent, &mut Actions),
    ) {
        let acting = &mut self.nodes[node.index()].posts[post];
        act(acting.agent.as_mut(), &mut self.actions);
        engine.set(acting.timer, acting.agent.poll_timeout().unwrap_or(Instant::NEVER));
        let is_proxy = acting.is_proxy;
        let list = self.actions.take();
        for action in &list {
            if let Action::Drop(packet, cause) = action {
                self.nodes[node.index()].count_drop(cause);
                self.actions.bury(packet);
            }
        }
        // The last step is taken first.
        for action in list.iter().rev() {
            if let Action::Send(packet) = *action {
                let next = if is_proxy && packet.maker == node { 0 } else { post + 1 };
                self.steps.push(Step { next, packet });
            }
        }
        self.actions.give_back(list);
    }

    /// A packet has passed all agents of a node: it is for the node itself, or takes its route.
    fn leave(&mut self, engine: &mut Engine, node: NodeId, packet: Packet) {
        let handle = self.packets.insert(&packet);
        if packet.destination == node {
            self.local.push_back((node, handle));
        } else {
            self.route(engine, node, handle, packet.size);
        }
    }
}
