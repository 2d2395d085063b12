//! Nodes and the links between them: packets go from hop to hop until they are where they belong.
//!
//! The network knows neither TCP nor applications. [`Network::send`] takes a packet at a node and gives
//! it to the link of its route; when that link's timer fires, [`Network::hop_wakes`] lets the packets
//! out that have arrived and sends them on, and [`Network::poll_local`] gives those that are for the
//! node itself.
//!
//! Invariant: a packet is in one place: in a link, with an agent, or waiting to be taken by its node;
//! when it is dropped, the place counts it under a cause.

use crate::agent::{Action, Actions, Agent};
use crate::engine::{Engine, Timer};
use crate::hop::{Hop, HopId};
use crate::node::Node;
use crate::packet::{End, FlowId, Handle, NodeId, Packet, Packets};
use crate::watch::{Glance, Sight, Watcher};
use midhop_congestion::QueueReport;
use midhop_units::Instant;
use std::collections::VecDeque;
use std::io;

/// The cause under which a node counts a packet that it knows no way for.
pub const NO_ROUTE: &str = "no-route";

/// Nodes, hops, and the packets between them.
#[derive(Debug, Default)]
pub struct Network {
    nodes: Vec<Node>,
    hops: Vec<Hop>,
    packets: Packets,
    /// Packets that are where they belong, until their node takes them.
    local: VecDeque<(NodeId, Handle)>,
    actions: Actions,
    watchers: Vec<Box<dyn Watcher>>,
}

impl Network {
    /// Nodes and the hops between them. A node's routes name hops by their place in `hops`.
    pub fn new(nodes: Vec<Node>, hops: Vec<Hop>) -> Self {
        Self { nodes, hops, ..Self::default() }
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node, to change it.
    pub fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.index()]
    }

    /// All hops, in the order of their numbers.
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// The hops from one node to another; none where there is no way.
    pub fn way(&self, from: NodeId, to: NodeId) -> Vec<HopId> {
        let (mut at, mut way) = (from, Vec::new());
        while at != to && way.len() <= self.nodes.len() {
            let Some(hop) = self.nodes[at.index()].route(to) else { return Vec::new() };
            way.push(hop);
            at = self.hops[hop.index()].to;
        }
        way
    }

    /// The packets under way.
    pub fn packets(&self) -> &Packets {
        &self.packets
    }

    /// Lets somebody watch.
    pub fn watch(&mut self, watcher: Box<dyn Watcher>) {
        self.watchers.push(watcher);
    }

    /// Lets the watchers finish.
    ///
    /// # Errors
    /// The first thing that one of them could not write.
    pub fn finish_watching(&mut self) -> io::Result<()> {
        self.watchers.drain(..).try_for_each(|mut watcher| watcher.finish())
    }

    /// Shows the watchers how one end of a connection stands.
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

    /// Puts an agent at a node, which `timer` wakes.
    pub fn place(
        &mut self,
        engine: &mut Engine,
        node: NodeId,
        agent: Box<dyn Agent>,
        timer: Timer,
    ) {
        engine.set(timer, agent.poll_timeout().unwrap_or(Instant::NEVER));
        self.nodes[node.index()].agent = Some((agent, timer));
    }

    /// Sends a packet from `node` to its destination. It does not meet the node's own agent.
    pub fn send(&mut self, engine: &mut Engine, node: NodeId, packet: Packet) {
        let handle = self.packets.insert(&packet);
        if packet.destination == node {
            self.local.push_back((node, handle));
        } else {
            self.route(engine, node, handle, packet.size);
        }
    }

    /// The timer of a hop has fired: packets may have come out. They go on, or wait for their node to
    /// take them with [`Network::poll_local`].
    pub fn hop_wakes(&mut self, engine: &mut Engine, hop: HopId) {
        let now = engine.now();
        self.hops[hop.index()].catch_up(now);
        self.bury(now, hop);
        while let Some((handle, size)) = self.hops[hop.index()].poll_output(now) {
            let handle = self.packets.own(handle);
            let node = self.hops[hop.index()].to;
            for watcher in &mut self.watchers {
                let hop = &self.hops[hop.index()];
                watcher.see(now, hop, Sight::Left, &self.packets.look(&handle));
            }
            if self.nodes[node.index()].agent.is_some() {
                let packet = self.packets.take(handle);
                self.meet(engine, node, |agent, actions| agent.handle_packet(now, packet, actions));
            } else if handle.destination() == node {
                self.local.push_back((node, handle));
            } else {
                self.route(engine, node, handle, size);
            }
        }
        self.hops[hop.index()].expect_output(engine);
    }

    /// The timer of a node's agent has fired.
    pub fn agent_wakes(&mut self, engine: &mut Engine, node: NodeId) {
        let now = engine.now();
        self.meet(engine, node, |agent, actions| agent.handle_timeout(now, actions));
    }

    /// The next packet that is where it belongs, and the node where that is.
    pub fn poll_local(&mut self) -> Option<(NodeId, Packet)> {
        let (node, handle) = self.local.pop_front()?;
        Some((node, self.packets.take(handle)))
    }

    /// What waits at the first hop from `node` to `destination`, and how fast that sends; none where
    /// there is no way.
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

    /// Lets every link do what was due by now, so that its queue can be read.
    pub fn catch_up(&mut self, now: Instant) {
        for number in 0..self.hops.len() {
            self.hops[number].catch_up(now);
            self.bury(now, HopId(number as u16));
        }
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When a packet has been lost from the books.
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
    }

    fn route(&mut self, engine: &mut Engine, node: NodeId, handle: Handle, size: u32) {
        let Some(hop) = self.nodes[node.index()].route(handle.destination()) else {
            self.packets.take(handle);
            self.nodes[node.index()].count_drop(NO_ROUTE);
            return;
        };
        for watcher in &mut self.watchers {
            let (now, packet) = (engine.now(), self.packets.look(&handle));
            watcher.see(now, &self.hops[hop.index()], Sight::Entered, &packet);
        }
        self.hops[hop.index()].answer(engine.now(), &mut self.packets, &handle);
        self.hops[hop.index()].send(engine, size, handle);
        self.bury(engine.now(), hop);
    }

    /// Gives back the room of what a hop has dropped.
    fn bury(&mut self, now: Instant, hop: HopId) {
        while let Some(dropped) = self.hops[hop.index()].poll_dropped() {
            let packet = self.packets.take(dropped.packet);
            let sight = Sight::Dropped(dropped.cause.name());
            for watcher in &mut self.watchers {
                watcher.see(now, &self.hops[hop.index()], sight, &packet);
            }
        }
    }

    /// Lets the agent of a node act, and does what it wants done.
    fn meet(
        &mut self,
        engine: &mut Engine,
        node: NodeId,
        act: impl FnOnce(&mut dyn Agent, &mut Actions),
    ) {
        let Some((agent, timer)) = &mut self.nodes[node.index()].agent else { return };
        act(agent.as_mut(), &mut self.actions);
        engine.set(*timer, agent.poll_timeout().unwrap_or(Instant::NEVER));
        let list = self.actions.take();
        for action in &list {
            match *action {
                Action::Send(packet) => self.send(engine, node, packet),
                Action::Drop(_, cause) => self.nodes[node.index()].count_drop(cause),
            }
        }
        self.actions.give_back(list);
    }
}
