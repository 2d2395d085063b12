//! Flows that begin as a Poisson process, each fetching a file of random size.

use super::connections::{Connections, Turn};
use super::exchange::Amount;
use super::{App, Desk};
use crate::host::{Connect, Told};
use crate::packet::{End, FlowId};
use crate::random::Random;
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Bytes, Duration, Instant, Seed};

/// Flows that begin at random moments.
#[derive(Debug)]
pub(crate) struct Arrivals {
    plan: TrafficPlan,
    connect: Connect,
    /// Mean time between two.
    gap: Duration,
    size: Bytes,
    shape: Option<f64>,
    random: Random,
    connections: Connections<u64>,
}

impl Arrivals {
    /// `per_second` flows of `size` bytes each, on average.
    pub fn new(
        plan: &TrafficPlan,
        connect: Connect,
        per_second: f64,
        size: Bytes,
        shape: Option<f64>,
        seed: Seed,
    ) -> Self {
        Self {
            connect,
            gap: Duration::from_s_f64(1.0 / per_second),
            size,
            shape,
            random: Random::new(seed, &plan.name),
            connections: Connections::new(),
            plan: plan.clone(),
        }
    }

    fn wait(&mut self, desk: &mut Desk<'_>) {
        let next = desk.now() + self.random.time(self.gap, None);
        let within = next < Instant::START + self.plan.stop;
        desk.wake_at(if within { next } else { Instant::NEVER });
    }
}

impl App for Arrivals {
    fn start(&mut self, desk: &mut Desk<'_>) {
        self.wait(desk);
    }

    fn handle_timeout(&mut self, desk: &mut Desk<'_>) {
        let size = self.random.size(self.size, self.shape);
        self.connections.open(desk, &self.connect, End::Listener, size);
        self.wait(desk);
    }

    fn handle(&mut self, desk: &mut Desk<'_>, flow: FlowId, end: End, told: Told) {
        let Some((at, turn)) = self.connections.handle(desk, flow, end, told) else { return };
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
