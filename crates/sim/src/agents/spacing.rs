//! A spacer of acknowledgements at a node, for packets that arrive over certain links.

use super::acks::Crossing;
use super::pass_on;
use crate::agent::{Actions, Agent};
use crate::packet::{Body, Packet};
use midhop_assist::AckSpacing;
use midhop_experiment::agents;
use midhop_units::Instant;

/// The spacer of one node.
#[derive(Debug)]
pub struct AckSpacingNode {
    agent: AckSpacing<Packet>,
    crossing: Crossing,
    wanted: midhop_assist::Actions<Packet>,
}

impl AckSpacingNode {
    /// A spacer for packets that arrive according to `crossing`.
    pub(crate) fn new(plan: &agents::AckSpacing, crossing: Crossing) -> Self {
        Self { agent: AckSpacing::new(plan.into()), crossing, wanted: Default::default() }
    }
}

impl Agent for AckSpacingNode {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        if !matches!(packet.body, Body::Segment(_)) || !self.crossing.came(&packet) {
            return actions.send(packet);
        }
        self.agent.handle_packet(now, packet, &mut self.wanted);
        pass_on(&mut self.wanted, actions, |_, _| None);
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        self.agent.handle_timeout(now, &mut self.wanted);
        pass_on(&mut self.wanted, actions, |_, _| None);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.agent.poll_timeout()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.agent.counts()
    }
}
