//! A simulated packet in the form that the agents of [`midhop_assist`] use.

use crate::agent::Actions;
use crate::packet::{Body, End, FlowId, Packet};
use midhop_assist::{Action, Carried, Report, Way};
use midhop_experiment::limit::Family;
use midhop_tcp::{Ecn, Flags, SackBlocks, Segment, SynOptions};

/// The segment of a datagram, which no agent ever gets.
static NO_SEGMENT: Segment = Segment {
    offset: 0,
    sequence: 0,
    acknowledgment: 0,
    length: 0,
    window: 0,
    flags: Flags::from_bits(0),
    ecn: Ecn::NotCapable,
    timestamps: None,
    sack: SackBlocks::NONE,
    syn: SynOptions { mss: None, window_scale: None, sack_permitted: false },
};

/// One direction of a flow, by its destination end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowDirection {
    /// The flow.
    pub flow: FlowId,
    /// The end.
    pub towards: End,
    /// The version of IP that it uses.
    pub family: Family,
}

impl Way for FlowDirection {
    fn back(self) -> Self {
        Self { towards: self.towards.other(), ..self }
    }
}

impl Carried for Packet {
    type Way = FlowDirection;

    fn way(&self) -> FlowDirection {
        FlowDirection { flow: self.flow, towards: self.towards, family: self.family }
    }

    fn segment(&self) -> &Segment {
        match &self.body {
            Body::Segment(segment) => segment,
            Body::Datagram(_) | Body::Report(_) | Body::Tunnel(_) => &NO_SEGMENT,
        }
    }

    fn with(mut self, segment: Segment) -> Self {
        self.size = self.size - self.segment().options_size() + segment.options_size();
        self.body = Body::Segment(segment);
        self
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn is_pure_ack(&self) -> bool {
        // Feedback of XCP's routers would be lost with it.
        self.segment().is_pure_ack() && self.xcp.reverse_q16 == 0
    }
}

/// Performs an agent's actions at a node; `message` makes a packet of a report to its peer, where it has one.
pub(crate) fn pass_on(
    wanted: &mut midhop_assist::Actions<Packet>,
    actions: &mut Actions,
    message: impl Fn(FlowDirection, Report) -> Option<Packet>,
) {
    for action in wanted.drain() {
        match action {
            Action::Send(packet) => actions.send(packet),
            Action::Drop(packet, cause) => actions.drop(packet, cause),
            Action::Report(way, report) => {
                if let Some(packet) = message(way, report) {
                    actions.send(packet);
                }
            }
        }
    }
}
