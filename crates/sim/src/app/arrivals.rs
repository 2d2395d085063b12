//! Flows that begin as a Poisson process, each fetching a file of random size.

use super::connections::{Connections, Turn};
use super::exchange::Amount;
use super::{App, Desk};
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

    fn wait(&mut self, desk: &mut Desk<'_>) {
        let next = self.beginnings.next();
        self.next = next.map_or(0, |(_, size)| size);
        desk.wake_at(next.map_or(Instant::NEVER, |(at, _)| Instant::START + at));
    }
}

impl App for Arrivals {
    fn start(&mut self, desk: &mut Desk<'_>) {
        self.wait(desk);
    }

    fn handle_timeout(&mut self, desk: &mut Desk<'_>) {
        self.connections.open(desk, &self.connect, End::Listener, self.next);
        self.wait(desk);
    }

    fn handle(&mut self, desk: &mut Desk<'_>, flow: FlowId, end: End, event: SocketEvent) {
        let Some((at, turn)) = self.connections.handle(desk, flow, end, event) else { return };
        let over = match turn {
            Turn::Opened => {
                let Some(connection) = self.connections.at(at) else { return };
                let amount = Amount::Bytes(connection.what);
                self.connections.ask(desk, at, amount)
            }
            Turn::Complete | Turn::Failed => true,
        };
        if over {
            self.connections.end(desk, at, turn != Turn::Failed);
        }
    }

    fn traffic_result(&self, end: Instant) -> Option<TrafficResult> {
        Some(self.connections.result(&self.plan, end))
    }
}
