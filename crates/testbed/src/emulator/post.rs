//! The agents that stand at one end of a link: they meet what its node puts on the link and what the link brings.
//!
//! They are those of the simulator, and get the bytes that the kernels sent. A frame meets each of them once, in the order of
//! the node's list, whichever way it goes; what an agent hands on or makes goes to the next.

use super::frame::{Frame, Frames, HEADER};
use midhop_assist::{
    AckDecimation, AckSpacing, Action, Actions, Carried, DProxy, Side, Snoop, message,
    wire::{self, Route},
};
use midhop_experiment::agents::{PlannedAgent, Role};
use midhop_experiment::record::NodeResult;
use midhop_tcp::Segment;
use midhop_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::net::IpAddr;

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heading {
    /// From the node onto the link.
    Out,
    /// From the link to the node.
    In,
}

/// A frame that goes on behind the last agent.
pub(super) struct Onward {
    pub(super) heading: Heading,
    pub(super) frame: Frame,
}

/// A TCP packet and its header.
#[derive(Debug, Clone)]
struct Met {
    frame: Frame,
    route: Route,
    segment: Segment,
    heading: Heading,
}

/// What of a frame agents go by; none for what they do not mind.
fn read(frame: &Frame) -> Option<(Route, Segment)> {
    wire::read(frame.bytes().get(HEADER..)?)
}

impl Carried for Met {
    type Way = Route;

    fn way(&self) -> Route {
        self.route
    }

    fn segment(&self) -> &Segment {
        &self.segment
    }

    fn with(mut self, segment: Segment) -> Self {
        if let Some(packet) = wire::write(&self.frame.bytes()[HEADER..], &segment)
            && self.frame.replace_packet(&packet)
        {
            self.segment = segment;
        }
        self
    }

    fn size(&self) -> u32 {
        u32::try_from(self.frame.packet_len()).unwrap_or(u32::MAX)
    }
}

/// One agent.
#[derive(Debug)]
struct Agent {
    name: String,
    kind: Kind,
    /// What it wants done, and the room for it.
    actions: Actions<Met>,
}

#[derive(Debug)]
enum Kind {
    Snoop(Snoop<Met>),
    DProxy(DProxy<Met>),
    Decimation(AckDecimation<Met>),
    Spacing(AckSpacing<Met>),
}

impl Kind {
    fn of(role: &Role) -> Option<Self> {
        match role {
            Role::Snoop(plan) => Some(Self::Snoop(Snoop::new(plan.into()))),
            Role::DProxy(plan) => Some(Self::DProxy(DProxy::new(plan.into()))),
            Role::AckDecimation(plan) => Some(Self::Decimation(AckDecimation::new(plan.into()))),
            Role::AckSpacing(plan) => Some(Self::Spacing(AckSpacing::new(plan.into()))),
            // It works in the link's queue.
            Role::AckFilter(_) => None,
        }
    }

    fn handle_packet(&mut self, now: Instant, met: Met, actions: &mut Actions<Met>) {
        let heading = met.heading;
        match (self, heading) {
            (Self::Snoop(snoop), _) => {
                snoop.handle_packet(now, met, heading == Heading::Out, actions);
            }
            (Self::DProxy(half), Heading::Out) => {
                half.handle_packet(now, met, Side::Before, actions);
            }
            (Self::DProxy(half), Heading::In) => {
                half.handle_packet(now, met, Side::Behind, actions);
            }
            (Self::Decimation(agent), Heading::Out) => agent.handle_packet(now, met, actions),
            (Self::Spacing(agent), Heading::In) => agent.handle_packet(now, met, actions),
            (Self::Decimation(_), Heading::In) | (Self::Spacing(_), Heading::Out) => {
                actions.send(met);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions<Met>) {
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

    fn handle_drop(&mut self, met: &Met) {
        match self {
            Self::Snoop(agent) => agent.handle_drop(met),
            Self::DProxy(agent) => agent.handle_drop(met),
            Self::Decimation(_) | Self::Spacing(_) => {}
        }
    }

    fn counts(&self) -> midhop_assist::Counts {
        match self {
            Self::Snoop(agent) => agent.counts(),
            Self::DProxy(agent) => agent.counts(),
            Self::Decimation(agent) => agent.counts(),
            Self::Spacing(agent) => agent.counts(),
        }
    }
}

/// Who stands at one end of a link.
#[derive(Debug, Clone, Default)]
pub struct PostPlan {
    /// In the order of the node's list.
    pub agents: Vec<PlannedAgent>,
    /// The addresses of this end and of the far one, IPv4 and IPv6: where agents at both ends report to each other.
    pub addresses: Option<[[IpAddr; 2]; 2]>,
}

/// The agents at one end of a link.
pub(super) struct Post {
    node: String,
    agents: Vec<Agent>,
    addresses: Option<[[IpAddr; 2]; 2]>,
    /// From this end to the far one, as frames have it.
    ethernet: Option<[u8; 12]>,
    /// Agents' time does not go back, though a frame may have come before one of their timers was looked at.
    clock: Instant,
    drops: BTreeMap<&'static str, u64>,
    onward: VecDeque<Onward>,
}

impl Post {
    /// Those of a plan, at their node.
    pub(super) fn new(node: &str, plan: PostPlan) -> Self {
        let agents = plan.agents.into_iter().filter_map(|it| {
            Some(Agent { name: it.name, kind: Kind::of(&it.role)?, actions: Actions::default() })
        });
        Self {
            node: node.to_owned(),
            agents: agents.collect(),
            addresses: plan.addresses,
            ethernet: None,
            clock: Instant::START,
            drops: BTreeMap::new(),
            onward: VecDeque::new(),
        }
    }

    /// Whether nobody stands there.
    pub(super) fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// The next frame that goes on.
    pub(super) fn poll_output(&mut self) -> Option<Onward> {
        self.onward.pop_front()
    }

    /// A frame has come.
    pub(super) fn handle_frame(
        &mut self,
        now: Instant,
        frame: Frame,
        heading: Heading,
        frames: &Frames,
    ) {
        self.clock = self.clock.max(now);
        if heading == Heading::In {
            self.learn_ethernet(&frame);
            if self.takes_report(&frame, frames) {
                return;
            }
        }
        match read(&frame) {
            Some((route, segment)) => {
                self.go_on(0, Met { frame, route, segment, heading }, frames);
            }
            None => self.onward.push_back(Onward { heading, frame }),
        }
    }

    /// The time that one of them asked for has come.
    pub(super) fn handle_timeout(&mut self, now: Instant, frames: &Frames) {
        self.clock = self.clock.max(now);
        for index in 0..self.agents.len() {
            let Agent { kind, actions, .. } = &mut self.agents[index];
            if kind.poll_timeout().is_some_and(|at| at <= now) {
                kind.handle_timeout(self.clock, actions);
                self.carry_out(index, frames);
            }
        }
    }

    /// When one of them must be called next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.agents.iter().filter_map(|agent| agent.kind.poll_timeout()).min()
    }

    /// The link's queue had no room for a frame from this end.
    pub(super) fn handle_drop(&mut self, frame: Frame) {
        if let Some((route, segment)) = read(&frame) {
            let met = Met { frame, route, segment, heading: Heading::Out };
            self.agents.iter_mut().for_each(|agent| agent.kind.handle_drop(&met));
        }
    }

    /// What became of packets there.
    pub(super) fn result(&self) -> NodeResult {
        let drops = self.drops.iter().map(|(cause, count)| ((*cause).to_owned(), *count));
        let counts = self.agents.iter().flat_map(|Agent { name, kind, .. }| {
            kind.counts().into_iter().map(move |(what, count)| (format!("{name}.{what}"), count))
        });
        NodeResult { node: self.node.clone(), drops: drops.collect(), counts: counts.collect() }
    }

    /// Takes a packet past the agents from the one at `index` on.
    fn go_on(&mut self, index: usize, met: Met, frames: &Frames) {
        let Some(Agent { kind, actions, .. }) = self.agents.get_mut(index) else {
            let Met { heading, frame, .. } = met;
            self.onward.push_back(Onward { heading, frame });
            return;
        };
        kind.handle_packet(self.clock, met, actions);
        self.carry_out(index, frames);
    }

    /// Does what the agent at `index` wants done.
    fn carry_out(&mut self, index: usize, frames: &Frames) {
        let mut actions = mem::take(&mut self.agents[index].actions);
        for action in actions.drain() {
            match action {
                Action::Send(met) => self.go_on(index + 1, met, frames),
                Action::Drop(_, cause) => *self.drops.entry(cause).or_default() += 1,
                Action::Report(route, repair) => {
                    if let Some(frame) = self.message(route, repair, frames) {
                        self.onward.push_back(Onward { heading: Heading::Out, frame });
                    }
                }
            }
        }
        self.agents[index].actions = actions;
    }

    /// Where a report would go to, from a frame of the far end.
    fn learn_ethernet(&mut self, frame: &Frame) {
        if let Some((addresses, _)) = frame.bytes().split_first_chunk() {
            let mut back = *addresses;
            back.rotate_left(6);
            self.ethernet = Some(back);
        }
    }

    /// Whether a frame is a report to a D-Proxy that stands here, which takes it.
    fn takes_report(&mut self, frame: &Frame, frames: &Frames) -> bool {
        let Some([own, _]) = self.addresses else { return false };
        let packet = &frame.bytes()[HEADER..];
        let Some((route, repair)) = own.iter().find_map(|own| message::read(packet, *own)) else {
            return false;
        };
        for index in 0..self.agents.len() {
            if let Agent { kind: Kind::DProxy(half), actions, .. } = &mut self.agents[index] {
                half.handle_report(self.clock, route, repair, actions);
                self.carry_out(index, frames);
                return true;
            }
        }
        false
    }

    fn message(
        &self,
        route: Route,
        repair: midhop_assist::Repair,
        frames: &Frames,
    ) -> Option<Frame> {
        let [own, far] = self.addresses?;
        let version = usize::from(route.source.is_ipv6());
        let packet = message::write(own[version], far[version], route, repair)?;
        let mut frame = frames.take();
        let kind: [u8; 2] = if version == 0 { [0x08, 0x00] } else { [0x86, 0xdd] };
        let bytes = [&self.ethernet?[..], &kind, &packet].concat();
        frame.room().get_mut(..bytes.len())?.copy_from_slice(&bytes);
        frame.set_len(bytes.len());
        Some(frame)
    }
}
