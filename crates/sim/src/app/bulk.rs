//! Bulk traffic: connections that send all the time, as a file transfer does that never ends.

use super::connections::Connections;
use super::exchange::{Amount, Step};
use super::{App, Desk};
use crate::host::{Connect, Told};
use crate::packet::{End, FlowId};
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::Instant;

/// Connections that send all the time.
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

    fn follow(&mut self, desk: &mut Desk<'_>, at: usize, step: Step) {
        self.connections.count(desk.now(), step.arrived);
        if step.complete.is_some() {
            self.connections.end(desk, at, true);
        }
    }
}

impl App for Bulk {
    fn start(&mut self, desk: &mut Desk<'_>) {
        for _ in 0..self.flows {
            self.places.push(self.connections.open(desk, &self.connect, self.sender, ()));
        }
        desk.wake_at(Instant::START + self.plan.stop);
    }

    fn handle_timeout(&mut self, desk: &mut Desk<'_>) {
        for &at in &self.places {
            if let Some(connection) = self.connections.at(at) {
                connection.exchange.finish(desk.hosts);
            }
        }
    }

    fn handle(&mut self, desk: &mut Desk<'_>, flow: FlowId, end: End, told: Told) {
        let now = desk.now();
        let Some(at) = self.connections.find(desk, flow) else {
            if told == Told::PeerClosed {
                desk.hosts.close(flow, end);
            }
            return;
        };
        let Some(connection) = self.connections.at(at) else { return };
        match told {
            Told::Connected if end == End::Opener => {
                // It is the traffic's stop that ends it, not a time of its own.
                let span = (Instant::START + self.plan.stop).saturating_since(now);
                let step = connection.exchange.ask(desk.hosts, now, Amount::Time(span));
                self.follow(desk, at, step);
            }
            Told::Read(total) => {
                let step = connection.exchange.read(desk.hosts, now, end, total);
                self.follow(desk, at, step);
            }
            Told::PeerClosed => desk.hosts.close(flow, end),
            Told::Failed(_) => {
                self.connections.end(desk, at, false);
            }
            Told::Connected | Told::Closed => {}
        }
    }

    fn traffic_result(&self, end: Instant) -> Option<TrafficResult> {
        Some(self.connections.result(&self.plan, end))
    }
}
