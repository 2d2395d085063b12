//! Flows that begin as a Poisson process, each fetching a file of random size.

use super::connections::{Connections, Turn};
use super::exchange::Amount;
use super::{App, AppContext};
use crate::host::{Connect, SocketEvent};
use crate::packet::{End, FlowId};
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::{Beginnings, TrafficPlan};
use midhop_units::Instant;

/// Flows that begin at random times.
#[derive(Debug)]
pub(crate) struct Arrivals {
    plan: TrafficPlan,
    connect: Connect,
    beginnings: Beginnings,
    /// The size of the next flow.
    next: u64,
    connections: Connections<u64>,
}

impl Arrivals {
    /// Flows that begin at the times of `beginnings`.
    pub fn new(plan: &TrafficPlan, connect: Connect, beginnings: Beginnings) -> Self {
        let connections = Connections::new();
        Self { plan: plan.clone(), connect, beginnings, next: 0, connections }
    }

    fn wait(&mut self, context: &mut AppContext<'_>) {
        let next = self.beginnings.next();
        self.next = next.map_or(0, |(_, size)| size);
        context.wake_at(next.map_or(Instant::NEVER, |(at, _)| Instant::START + at));
    }
}

impl App for Arrivals {
    fn start(&mut self, context: &mut AppContext<'_>) {
        self.wait(context);
    }

    fn handle_timeout(&mut self, context: &mut AppContext<'_>) {
        self.connections.open(context, &self.connect, End::Listener, self.next);
        self.wait(context);
    }

    fn handle(&mut self, context: &mut AppContext<'_>, flow: FlowId, end: End, event: SocketEvent) {
        let Some((at, turn)) = self.connections.handle(context, flow, end, event) else { return };
        let over = match turn {
            Turn::Opened => {
                let Some(connection) = self.connections.at(at) else { return };
                let amount = Amount::Bytes(connection.what);
                self.connections.ask(context, at, amount)
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
