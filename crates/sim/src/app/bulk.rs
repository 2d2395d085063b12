//! Bulk traffic: connections that always send, like a file transfer that never ends.

use super::connections::{Connections, Turn};
use super::exchange::Amount;
use super::{App, AppContext};
use crate::host::{Connect, SocketEvent};
use crate::packet::{End, FlowId};
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::Instant;

/// Connections that always send.
#[derive(Debug)]
pub(crate) struct Bulk {
    plan: TrafficPlan,
    connect: Connect,
    sender: End,
    flows: u32,
    connections: Connections<()>,
    places: Vec<usize>,
}

impl Bulk {
    /// So many flows, over which `sender` sends.
    pub fn new(plan: &TrafficPlan, connect: Connect, sender: End, flows: u32) -> Self {
        let (connections, places) = (Connections::new(), Vec::new());
        Self { plan: plan.clone(), connect, sender, flows, connections, places }
    }
}

impl App for Bulk {
    fn start(&mut self, context: &mut AppContext<'_>) {
        for _ in 0..self.flows {
            self.places.push(self.connections.open(context, &self.connect, self.sender, ()));
        }
        context.wake_at(Instant::START + self.plan.stop);
    }

    fn handle_timeout(&mut self, context: &mut AppContext<'_>) {
        for &at in &self.places {
            if let Some(connection) = self.connections.at(at) {
                connection.exchange.finish(context.hosts);
            }
        }
    }

    fn handle(&mut self, context: &mut AppContext<'_>, flow: FlowId, end: End, event: SocketEvent) {
        let Some((at, turn)) = self.connections.handle(context, flow, end, event) else { return };
        let over = match turn {
            Turn::Opened => {
                // The stop of the traffic ends it, not a duration of its own.
                let span = (Instant::START + self.plan.stop).saturating_since(context.now());
                self.connections.ask(context, at, Amount::Time(span))
            }
            Turn::Complete | Turn::Failed => true,
        };
        if over {
            self.connections.end(context, at, turn != Turn::Failed);
        }
    }

    fn traffic_result(&self, end: Instant) -> Option<TrafficResult> {
        Some(self.connections.result(&self.plan, end))
    }
}
