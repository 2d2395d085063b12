//! An ACK decimator at a node, for packets that leave over certain links.

use super::acks::Crossing;
use super::pass_on;
use crate::agent::{Actions, Agent};
use crate::packet::{Body, Packet};
use midhop_assist::AckDecimation;
use midhop_experiment::agents;
use midhop_units::Instant;

/// The decimator of one node.
#[derive(Debug)]
pub struct AckDecimationNode {
    agent: AckDecimation<Packet>,
    crossing: Crossing,
    wanted: midhop_assist::Actions<Packet>,
}

impl AckDecimationNode {
    /// A decimator for packets that leave according to `crossing`.
    pub(crate) fn new(plan: &agents::AckDecimation, crossing: Crossing) -> Self {
        Self { agent: AckDecimation::new(plan.into()), crossing, wanted: Default::default() }
    }
}

impl Agent for AckDecimationNode {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        if !matches!(packet.body, Body::Segment(_)) || !self.crossing.leaves(&packet) {
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
