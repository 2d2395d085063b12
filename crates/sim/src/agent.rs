//! An agent at a node, which processes every packet there: a proxy, a snoop agent, a filter.
//!
//! An agent receives the packets that arrive at its node from a link, whether they are for that node or pass by, and
//! those that are made there: by the node's own endpoints, and by a proxy. It forwards packets unchanged or
//! changed, holds them, drops them for a cause that the record counts, or sends packets of its own.
//!
//! Several agents at a node form a chain. A packet passes each once, in their order, on its way
//! in, out or through; packets that an agent forwards or makes go to the next. A proxy is innermost,
//! behind all agents, whatever the order: arriving packets pass the agents and then the proxy; the
//! proxy's packets pass the agents and then leave. Behind the last agent, a packet takes the node's route to its
//! destination, or reaches the node's own endpoints.

use crate::packet::{Body, Contents, FlowId, Packet};
use midhop_congestion::QueueReport;
use midhop_experiment::record::{LegResult, Series};
use midhop_units::Instant;
use std::any::Any;

/// The actions of an agent, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The packet goes on, to the next agent or to its destination: one that was received, changed or not,
    /// or a new one.
    Send(Packet),
    /// The packet ends here; the node's record counts it under this cause.
    Drop(Packet, &'static str),
}

/// Collects the actions of an agent.
#[derive(Debug, Default)]
pub struct Actions {
    list: Vec<Action>,
    /// The contents of tunnels' datagrams.
    contents: Contents,
}

impl Actions {
    /// Forwards a packet.
    pub fn send(&mut self, packet: Packet) {
        self.list.push(Action::Send(packet));
    }

    /// Drops a packet.
    pub fn drop(&mut self, packet: Packet, cause: &'static str) {
        self.list.push(Action::Drop(packet, cause));
    }

    /// The contents of tunnels' datagrams.
    pub fn contents(&mut self) -> &mut Contents {
        &mut self.contents
    }

    /// How many datagrams with contents are in flight.
    pub(crate) fn tunnelled(&self) -> usize {
        self.contents.len()
    }

    /// A packet has ended: frees its contents.
    pub(crate) fn bury(&mut self, packet: &Packet) {
        if let Body::Tunnel(contents) = packet.body {
            self.contents.take(contents);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.list)
    }

    /// Takes back the memory of a list that [`Actions::take`] returned, so that it is not allocated again.
    pub(crate) fn give_back(&mut self, mut list: Vec<Action>) {
        list.clear();
        if self.list.is_empty() {
            self.list = list;
        }
    }
}

/// An agent. Sans-IO: time is an argument, and its actions go to [`Actions`].
pub trait Agent: std::fmt::Debug {
    /// A packet was received at the agent's node. Unless the agent sends it, it ends here.
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions);

    /// The requested time has come.
    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions);

    /// When it must be called next; `None`: not before the next packet.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The queue of a link that leaves its node had no room for a packet, whoever sent it. The agent may
    /// update its state, but cannot request an earlier call.
    fn handle_drop(&mut self, _now: Instant, _packet: &Packet) {}

    /// Whether it gets a report of the queue in the direction of a packet's sender, before it gets the packet.
    fn minds_queue(&self, _packet: &Packet) -> bool {
        false
    }

    /// That report; `packet` follows. As with [`Agent::handle_drop`], it cannot request an earlier call.
    fn handle_queue(&mut self, _packet: &Packet, _report: &QueueReport) {}

    /// The causes under which it has dropped packets, and its other counts, for the record: what and
    /// how often.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The counts of a proxy's own connections by `now`, by link.
    fn legs(&self, _now: Instant) -> Vec<LegResult> {
        Vec::new()
    }

    /// Samples the state of a proxy's own connections at `now`: every tenth of a second.
    fn sample(&mut self, _now: Instant) {}

    /// The samples over time.
    fn series(&self) -> Vec<Series> {
        Vec::new()
    }

    /// Whether it ends the connections of a flow.
    fn has_flow(&self, _flow: FlowId) -> bool {
        false
    }

    /// Itself, where it is something that others need to know.
    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When an invariant does not hold.
    fn check_invariants(&self) {}
}
