//! UDP: datagrams at a constant rate, always or in bursts.
//! [`Departures`] decides when each leaves.

use super::arrived::Arrived;
use super::{App, AppContext};
use crate::packet::{Body, End, FlowId, NodeId, Packet, Xcp};
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::{Departures, TrafficPlan};
use midhop_units::{Bytes, Instant};

/// A source of datagrams and their sink.
#[derive(Debug)]
pub(crate) struct Datagrams {
    plan: TrafficPlan,
    size: Bytes,
    departures: Departures,
    /// When the next one leaves.
    next: Option<Instant>,
    nodes: [NodeId; 2],
    flow: Option<FlowId>,
    sent: u64,
    received: u64,
    arrived: Arrived,
}

impl Datagrams {
    /// Packets of `size`, which leave at the times of `departures`.
    pub fn new(
        plan: &TrafficPlan,
        nodes: [NodeId; 2],
        size: Bytes,
        departures: Departures,
    ) -> Self {
        Self {
            size,
            departures,
            next: None,
            nodes,
            flow: None,
            sent: 0,
            received: 0,
            arrived: Arrived::new(),
            plan: plan.clone(),
        }
    }

    fn wait(&mut self, context: &mut AppContext<'_>) {
        self.next = self.departures.next().map(|at| Instant::START + at);
        context.wake_at(self.next.unwrap_or(Instant::NEVER));
    }

    /// Sends all datagrams due by now, and schedules the next call.
    fn go_on(&mut self, context: &mut AppContext<'_>, flow: FlowId) {
        while self.next.is_some_and(|next| next <= context.now()) {
            context.send(
                self.nodes[0],
                Packet {
                    flow,
                    towards: End::Listener,
                    source: self.nodes[0],
                    destination: self.nodes[1],
                    maker: self.nodes[0],
                    ports: context.hosts.ports(flow),
                    family: self.plan.family,
                    size: u32::try_from(self.size.get()).unwrap_or(u32::MAX),
                    xcp: Xcp::default(),
                    body: Body::Datagram(self.sent),
                },
            );
            self.sent += 1;
            self.wait(context);
        }
    }
}

impl App for Datagrams {
    fn start(&mut self, context: &mut AppContext<'_>) {
        let flow = context.datagram_flow(self.nodes, self.plan.port, self.plan.family);
        self.flow = Some(flow);
        self.wait(context);
        self.go_on(context, flow);
    }

    fn handle_timeout(&mut self, context: &mut AppContext<'_>) {
        if let Some(flow) = self.flow {
            self.go_on(context, flow);
        }
    }

    fn handle_datagram(&mut self, context: &mut AppContext<'_>, _flow: FlowId, _number: u64) {
        self.received += 1;
        self.arrived.add(context.now(), self.plan.payload(self.size).get());
    }

    fn traffic_result(&self, end: Instant) -> Option<TrafficResult> {
        Some(TrafficResult {
            name: self.plan.name.clone(),
            flows: u64::from(self.flow.is_some()),
            complete: 0,
            bytes: self.arrived.bytes(),
            goodput: self.arrived.goodput(&self.plan, end),
            packets_sent: self.sent,
            packets_received: self.received,
            flow_time_mean: None,
            lateness: None,
        })
    }
}
