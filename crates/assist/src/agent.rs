//! One agent of any kind, and a row of agents at one end of a path, which process each packet one after the other.
//!
//! What an agent forwards, and what it makes itself, is processed by the next agent, with the same heading.

use crate::{
    AckDecimation, AckSpacing, Action, Actions, Carried, Counts, DProxy, Report, Side, Snoop,
};
use midhop_units::{Bytes, Instant};
use std::mem;

/// The direction of a packet, seen from the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heading {
    /// Into the path that they serve.
    Out,
    /// Out of that path.
    In,
}

/// A packet that knows its heading.
pub trait Headed: Carried {
    /// Its direction.
    fn heading(&self) -> Heading;
}

/// One agent.
#[derive(Debug)]
pub enum Agent<P: Carried> {
    /// Repairs losses of packets that go out.
    Snoop(Snoop<P>),
    /// Repairs losses in either direction, together with an agent at the far end.
    DProxy(DProxy<P>),
    /// Thins the acknowledgements that go out.
    Decimation(AckDecimation<P>),
    /// Spaces the acknowledgements that come in.
    Spacing(AckSpacing<P>),
}

impl<P: Headed> Agent<P> {
    fn handle_packet(&mut self, now: Instant, packet: P, actions: &mut Actions<P>) {
        match (self, packet.heading()) {
            (Self::Snoop(agent), heading) => {
                agent.handle_packet(now, packet, heading == Heading::Out, actions);
            }
            (Self::DProxy(half), Heading::Out) => {
                half.handle_packet(now, packet, Side::Before, actions);
            }
            (Self::DProxy(half), Heading::In) => {
                half.handle_packet(now, packet, Side::Behind, actions);
            }
            (Self::Decimation(agent), Heading::Out) => agent.handle_packet(now, packet, actions),
            (Self::Spacing(agent), Heading::In) => agent.handle_packet(now, packet, actions),
            (Self::Decimation(_), Heading::In) | (Self::Spacing(_), Heading::Out) => {
                actions.send(packet);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions<P>) {
        match self {
            Self::Snoop(agent) => agent.handle_timeout(now, actions),
            Self::DProxy(agent) => agent.handle_timeout(now, actions),
            Self::Decimation(agent) => agent.handle_timeout(now, actions),
            Self::Spacing(agent) => agent.handle_timeout(now, actions),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Snoop(agent) => agent.poll_timeout(),
            Self::DProxy(agent) => agent.poll_timeout(),
            Self::Decimation(agent) => agent.poll_timeout(),
            Self::Spacing(agent) => agent.poll_timeout(),
        }
    }

    fn handle_drop(&mut self, packet: &P) {
        match self {
            Self::Snoop(agent) => agent.handle_drop(packet),
            Self::DProxy(agent) => agent.handle_drop(packet),
            Self::Decimation(_) | Self::Spacing(_) => {}
        }
    }

    /// The counts of what it did.
    pub fn counts(&self) -> Counts {
        match self {
            Self::Snoop(agent) => agent.counts(),
            Self::DProxy(agent) => agent.counts(),
            Self::Decimation(agent) => agent.counts(),
            Self::Spacing(agent) => agent.counts(),
        }
    }
}

/// Agents in a row.
#[derive(Debug)]
pub struct Row<P: Carried> {
    agents: Vec<Agent<P>>,
    /// The actions of each of them: empty between calls, with room for the next.
    wanted: Vec<Actions<P>>,
}

impl<P: Carried> FromIterator<Agent<P>> for Row<P> {
    fn from_iter<I: IntoIterator<Item = Agent<P>>>(agents: I) -> Self {
        let agents: Vec<_> = agents.into_iter().collect();
        let wanted = agents.iter().map(|_| Actions::default()).collect();
        Self { agents, wanted }
    }
}

impl<P: Headed> Row<P> {
    /// Whether there is no agent.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// The directions of flows of which agents that repair keep a state.
    pub fn flows(&self) -> usize {
        let flows = |agent: &Agent<P>| match agent {
            Agent::Snoop(snoop) => snoop.flows(),
            Agent::DProxy(half) => half.flows(),
            Agent::Decimation(_) | Agent::Spacing(_) => 0,
        };
        self.agents.iter().map(flows).sum()
    }

    /// What agents that repair have cached and hold. Unit: bytes, as [`Carried::room`] counts them.
    pub fn cached(&self) -> Bytes {
        let cached = |agent: &Agent<P>| match agent {
            Agent::Snoop(snoop) => snoop.cached().get(),
            Agent::DProxy(half) => half.cached().get(),
            Agent::Decimation(_) | Agent::Spacing(_) => 0,
        };
        Bytes::new(self.agents.iter().map(cached).sum())
    }

    /// The agents, in their order.
    pub fn agents(&self) -> &[Agent<P>] {
        &self.agents
    }

    /// A packet has arrived.
    pub fn handle_packet(&mut self, now: Instant, packet: P, actions: &mut Actions<P>) {
        self.go_on(0, now, packet, actions);
    }

    /// A report has arrived from the far end. Returns whether there is an agent for it.
    pub fn handle_report(
        &mut self,
        now: Instant,
        way: P::Way,
        report: Report,
        actions: &mut Actions<P>,
    ) -> bool {
        let half = self.agents.iter().position(|agent| matches!(agent, Agent::DProxy(_)));
        let Some(at) = half else { return false };
        self.act(at, now, actions, |agent, actions| {
            if let Agent::DProxy(half) = agent {
                half.handle_report(now, way, report, actions);
            }
        });
        true
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut Actions<P>) {
        for at in 0..self.agents.len() {
            if self.agents[at].poll_timeout().is_some_and(|due| due <= now) {
                self.act(at, now, actions, |agent, actions| agent.handle_timeout(now, actions));
            }
        }
    }

    /// Sends all held packets: there will be no more calls.
    pub fn let_go(&mut self, actions: &mut Actions<P>) {
        for agent in &mut self.agents {
            match agent {
                Agent::Snoop(_) => {}
                Agent::DProxy(half) => half.let_go(actions),
                Agent::Decimation(agent) => agent.let_go(actions),
                Agent::Spacing(agent) => agent.let_go(actions),
            }
        }
    }

    /// When one of them must be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.agents.iter().filter_map(Agent::poll_timeout).min()
    }

    /// A queue behind the agents had no room for a packet that went out.
    pub fn handle_drop(&mut self, packet: &P) {
        self.agents.iter_mut().for_each(|agent| agent.handle_drop(packet));
    }

    /// Passes a packet to the agents from the one at `at` on.
    fn go_on(&mut self, at: usize, now: Instant, packet: P, actions: &mut Actions<P>) {
        if at == self.agents.len() {
            return actions.send(packet);
        }
        self.act(at, now, actions, |agent, actions| agent.handle_packet(now, packet, actions));
    }

    /// Lets an agent act, and passes what it forwards to the next ones.
    fn act(
        &mut self,
        at: usize,
        now: Instant,
        actions: &mut Actions<P>,
        act: impl FnOnce(&mut Agent<P>, &mut Actions<P>),
    ) {
        if at + 1 == self.agents.len() {
            return act(&mut self.agents[at], actions);
        }
        let mut wanted = mem::take(&mut self.wanted[at]);
        act(&mut self.agents[at], &mut wanted);
        for action in wanted.drain() {
            match action {
                Action::Send(packet) => self.go_on(at + 1, now, packet, actions),
                Action::Drop(packet, cause) => actions.drop(packet, cause),
                Action::Report(way, report) => actions.report(way, report),
            }
        }
        self.wanted[at] = wanted;
    }
}
