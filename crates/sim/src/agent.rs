//! Something that stands at a node and meets every packet there: a proxy, a snoop agent, a filter.
//!
//! An agent sees what arrives at its node from a link, whether it is for that node or passes by, and
//! what is made there: by the node's own endpoints, and by a proxy. It hands packets on as they are or
//! changed, keeps them, drops them for a cause that the record counts, or sends some of its own.
//!
//! Several agents at a node stand in a row. A packet meets each once, in their order, be it on its way
//! in, out or through; what an agent hands on or makes goes to the next. A proxy stands innermost,
//! behind all agents, whatever the order: what arrives meets the agents and then the proxy; what the
//! proxy makes meets the agents and then leaves. Behind the last, a packet takes the node's route to its
//! destination, or reaches the node's own endpoints.

use crate::packet::{Body, Contents, Packet};
use midhop_congestion::QueueReport;
use midhop_experiment::record::{LegResult, Series};
use midhop_units::Instant;

/// What an agent wants done, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The packet goes on, to the next agent or to its destination, be it one that came, changed or not,
    /// or a new one.
    Send(Packet),
    /// The packet is gone; the node's record counts it under this cause.
    Drop(Packet, &'static str),
}

/// Takes down what an agent wants done.
#[derive(Debug, Default)]
pub struct Actions {
    list: Vec<Action>,
    /// What datagrams of tunnels contain.
    contents: Contents,
}

impl Actions {
    /// Lets a packet go on.
    pub fn send(&mut self, packet: Packet) {
        self.list.push(Action::Send(packet));
    }

    /// Gives a packet up.
    pub fn drop(&mut self, packet: Packet, cause: &'static str) {
        self.list.push(Action::Drop(packet, cause));
    }

    /// What datagrams of tunnels contain.
    pub fn contents(&mut self) -> &mut Contents {
        &mut self.contents
    }

    /// How many datagrams with contents are under way.
    pub(crate) fn tunnelled(&self) -> usize {
        self.contents.len()
    }

    /// A packet is no more: gives back what it contained.
    pub(crate) fn bury(&mut self, packet: &Packet) {
        if let Body::Tunnel(contents) = packet.body {
            self.contents.take(contents);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.list)
    }

    /// Gives the room of a list that [`Actions::take`] gave back, so that it is not allocated again.
    pub(crate) fn give_back(&mut self, mut list: Vec<Action>) {
        list.clear();
        if self.list.is_empty() {
            self.list = list;
        }
    }
}

/// An agent. Sans-IO: time is an argument, and what it wants done it says.
pub trait Agent: std::fmt::Debug {
    /// A packet has come to the agent's node. Unless the agent sends it, it ends here.
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions);

    /// The time that it asked for has come.
    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions);

    /// When it must be called next; `None` for not until a packet comes.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The queue of a link that leaves its node had no room for a packet, whoever sent it. The agent may
    /// change what it knows, but cannot ask to be called earlier for it.
    fn handle_drop(&mut self, _now: Instant, _packet: &Packet) {}

    /// Whether it gets a report of the queue on the way back to a packet's sender, before it gets the packet.
    fn minds_queue(&self, _packet: &Packet) -> bool {
        false
    }

    /// That report; `packet` comes next. As with [`Agent::handle_drop`], it cannot ask to be called earlier for it.
    fn handle_queue(&mut self, _packet: &Packet, _report: &QueueReport) {}

    /// The causes under which it has dropped packets and what it did else, for the record: what and
    /// how often.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What a proxy's own connections did by `now`, by link.
    fn legs(&self, _now: Instant) -> Vec<LegResult> {
        Vec::new()
    }

    /// Notes how a proxy's own connections stand, as at `now`: every tenth of a second.
    fn sample(&mut self, _now: Instant) {}

    /// What they noted over time.
    fn series(&self) -> Vec<Series> {
        Vec::new()
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When something does not.
    fn check_invariants(&self) {}
}
