//! The agents at one end of a link: they process what its node sends onto the link and what the
//! link delivers.
//!
//! They are the agents of the simulator, and get the bytes that the kernels sent. A frame passes
//! each of them once, in the order of the node's list, in both directions. A frame that an agent
//! forwards or makes goes to the next agent.

use super::frame::{Frame, Frames, HEADER};
pub(super) use midhop_assist::Heading;
use midhop_assist::{
    AckDecimation, AckSpacing, Action, Actions, Agent, Carried, DProxy, Headed, Report, Row, Snoop,
    message,
    wire::{self, Route},
};
use midhop_experiment::agents::{PlannedAgent, Role};
use midhop_experiment::record::NodeResult;
use midhop_tcp::Segment;
use midhop_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::net::IpAddr;

/// A frame that has passed the last agent.
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

/// The route and the TCP header of a frame; none for frames that agents do not process.
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

impl Headed for Met {
    fn heading(&self) -> Heading {
        self.heading
    }
}

/// An agent of a plan; none for one that works in the link's queue.
fn agent(role: &Role) -> Option<Agent<Met>> {
    match role {
        Role::Snoop(plan) => Some(Agent::Snoop(Snoop::new(plan.into()))),
        Role::DProxy(plan) => Some(Agent::DProxy(DProxy::new(plan.into()))),
        Role::AckDecimation(plan) => Some(Agent::Decimation(AckDecimation::new(plan.into()))),
        Role::AckSpacing(plan) => Some(Agent::Spacing(AckSpacing::new(plan.into()))),
        Role::AckFilter(_) => None,
    }
}

/// The agents at one end of a link, as planned.
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
    /// Their names, in the order of the row.
    names: Vec<String>,
    row: Row<Met>,
    /// The actions that they ask for, in a reused buffer.
    actions: Actions<Met>,
    addresses: Option<[[IpAddr; 2]; 2]>,
    /// The Ethernet addresses from this end to the far one, as in frames.
    ethernet: Option<[u8; 12]>,
    /// Agents' time does not go back, although a frame may have arrived before a timer was handled.
    clock: Instant,
    drops: BTreeMap<&'static str, u64>,
    onward: VecDeque<Onward>,
}

impl Post {
    /// The agents of a plan, at their node.
    pub(super) fn new(node: &str, plan: PostPlan) -> Self {
        let agents = plan.agents.into_iter().filter_map(|it| Some((it.name, agent(&it.role)?)));
        let (names, row): (Vec<_>, Vec<_>) = agents.unzip();
        Self {
            node: node.to_owned(),
            names,
            row: row.into_iter().collect(),
            actions: Actions::default(),
            addresses: plan.addresses,
            ethernet: None,
            clock: Instant::START,
            drops: BTreeMap::new(),
            onward: VecDeque::new(),
        }
    }

    /// Whether there are no agents.
    pub(super) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// The next frame that goes on.
    pub(super) fn poll_output(&mut self) -> Option<Onward> {
        self.onward.pop_front()
    }

    /// Handles a frame from the node or from the link.
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
                let met = Met { frame, route, segment, heading };
                self.row.handle_packet(self.clock, met, &mut self.actions);
                self.carry_out(frames);
            }
            None => self.onward.push_back(Onward { heading, frame }),
        }
    }

    /// Handles the timers of agents that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant, frames: &Frames) {
        self.clock = self.clock.max(now);
        self.row.handle_timeout(self.clock, &mut self.actions);
        self.carry_out(frames);
    }

    /// When the next timer of an agent is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.row.poll_timeout()
    }

    /// Handles a frame from this end that the link's queue has dropped.
    pub(super) fn handle_drop(&mut self, frame: Frame) {
        if let Some((route, segment)) = read(&frame) {
            let met = Met { frame, route, segment, heading: Heading::Out };
            self.row.handle_drop(&met);
        }
    }

    /// What the agents did with packets.
    pub(super) fn result(&self) -> NodeResult {
        let drops = self.drops.iter().map(|(cause, count)| ((*cause).to_owned(), *count));
        let counts = self.names.iter().zip(self.row.agents()).flat_map(|(name, agent)| {
            agent.counts().into_iter().map(move |(what, count)| (format!("{name}.{what}"), count))
        });
        NodeResult { node: self.node.clone(), drops: drops.collect(), counts: counts.collect() }
    }

    /// Carries out the actions of the agents.
    fn carry_out(&mut self, frames: &Frames) {
        let mut actions = mem::take(&mut self.actions);
        for action in actions.drain() {
            match action {
                Action::Send(Met { heading, frame, .. }) => {
                    self.onward.push_back(Onward { heading, frame });
                }
                Action::Drop(_, cause) => *self.drops.entry(cause).or_default() += 1,
                Action::Report(route, report) => {
                    if let Some(frame) = self.message(route, report, frames) {
                        self.onward.push_back(Onward { heading: Heading::Out, frame });
                    }
                }
            }
        }
        self.actions = actions;
    }

    /// Learns the Ethernet addresses for reports, from a frame of the far end.
    fn learn_ethernet(&mut self, frame: &Frame) {
        if let Some((addresses, _)) = frame.bytes().split_first_chunk() {
            let mut back = *addresses;
            back.rotate_left(6);
            self.ethernet = Some(back);
        }
    }

    /// Whether a frame is a report to a D-Proxy at this end, which then consumes it.
    fn takes_report(&mut self, frame: &Frame, frames: &Frames) -> bool {
        let Some([own, _]) = self.addresses else { return false };
        let packet = &frame.bytes()[HEADER..];
        let Some((route, report)) = own.iter().find_map(|own| message::read(packet, *own)) else {
            return false;
        };
        let is_taken = self.row.handle_report(self.clock, route, report, &mut self.actions);
        self.carry_out(frames);
        is_taken
    }

    fn message(&self, route: Route, report: Report, frames: &Frames) -> Option<Frame> {
        let [own, far] = self.addresses?;
        let version = usize::from(route.source.is_ipv6());
        let packet = message::write(own[version], far[version], route, report)?;
        let mut frame = frames.take();
        let kind: [u8; 2] = if version == 0 { [0x08, 0x00] } else { [0x86, 0xdd] };
        let bytes = [&self.ethernet?[..], &kind, &packet].concat();
        frame.room().get_mut(..bytes.len())?.copy_from_slice(&bytes);
        frame.set_len(bytes.len());
        Some(frame)
    }
}
