//! UDP: datagrams at a constant rate, always or in bursts.
//!
//! The clock of the sender runs only while a burst lasts, and every `packet / rate` of it a datagram
//! leaves. So the long-run rate is exactly `rate × on / (on + off)`, however short the bursts are, and
//! a constant rate is the case of a burst that never ends. Bursts and pauses with a Pareto law of
//! infinite variance add up to self-similar traffic.
//!
//! Source: W. Willinger, M. Taqqu, R. Sherman, D. Wilson, "Self-similarity through high-variability",
//! IEEE/ACM Transactions on Networking 5(1), 1997.

use super::arrived::Arrived;
use super::{App, Desk};
use crate::packet::{Body, End, FlowId, IP_HEADER, NodeId, Packet, UDP_HEADER, Xcp};
use crate::random::Random;
use midhop_experiment::limit::Family;
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};

/// When a source sends.
#[derive(Debug, Clone, Copy)]
struct Bursts {
    on: Duration,
    off: Duration,
    shape: Option<f64>,
}

/// A source of datagrams and their sink.
#[derive(Debug)]
pub(crate) struct Datagrams {
    plan: TrafficPlan,
    rate: Rate,
    size: u32,
    bursts: Option<Bursts>,
    random: Random,
    nodes: [NodeId; 2],
    flow: Option<FlowId>,
    /// The burst under way: when it began, and when it ends.
    burst: (Instant, Instant),
    /// Time on before this burst. Unit: nanoseconds.
    on_before: u64,
    sent: u64,
    received: u64,
    arrived: Arrived,
}

impl Datagrams {
    /// Packets of `size` at `rate`, in bursts of `(mean on, mean off, shape)` where there are any.
    pub fn new(
        plan: &TrafficPlan,
        nodes: [NodeId; 2],
        rate: Rate,
        size: Bytes,
        bursts: Option<(Duration, Duration, Option<f64>)>,
        seed: Seed,
    ) -> Self {
        Self {
            rate,
            size: u32::try_from(size.get()).unwrap_or(u32::MAX),
            bursts: bursts.map(|(on, off, shape)| Bursts { on, off, shape }),
            random: Random::new(seed, &plan.name),
            nodes,
            flow: None,
            burst: (Instant::START, Instant::START),
            on_before: 0,
            sent: 0,
            received: 0,
            arrived: Arrived::new(),
            plan: plan.clone(),
        }
    }

    /// Payload of each datagram. Unit: bytes.
    fn payload_size(&self) -> u64 {
        let headers = IP_HEADER[usize::from(self.plan.family == Family::Ipv6)] + UDP_HEADER;
        u64::from(self.size.saturating_sub(headers))
    }

    fn begin_burst(&mut self, now: Instant) {
        let lasts = self.bursts.map(|bursts| self.random.time(bursts.on, bursts.shape));
        self.burst = (now, lasts.map_or(Instant::NEVER, |lasts| now + lasts));
    }

    /// When the next datagram is due in the burst under way, should that last so long.
    fn next_due(&self) -> Instant {
        let bits = u128::from(self.sent) * u128::from(self.size) * 8;
        let on = bits * 1_000_000_000 / u128::from(self.rate.bits_per_s().max(1));
        let into_burst = u64::try_from(on).unwrap_or(u64::MAX).saturating_sub(self.on_before);
        self.burst.0 + Duration::from_ns(into_burst)
    }

    /// Sends all that is due by now, and sees when to come again.
    fn go_on(&mut self, desk: &mut Desk<'_>, flow: FlowId) {
        let now = desk.now();
        let stop = Instant::START + self.plan.stop;
        loop {
            let due = self.next_due();
            if due < self.burst.1 {
                if due > now {
                    return desk.wake_at(if due < stop { due } else { Instant::NEVER });
                }
                desk.send(
                    self.nodes[0],
                    Packet {
                        flow,
                        towards: End::Listener,
                        source: self.nodes[0],
                        destination: self.nodes[1],
                        maker: self.nodes[0],
                        ports: desk.hosts.ports(flow),
                        family: self.plan.family,
                        size: self.size,
                        xcp: Xcp::default(),
                        body: Body::Datagram(self.sent),
                    },
                );
                self.sent += 1;
                continue;
            }
            // The pause after the burst.
            let Some(bursts) = self.bursts else { return };
            self.on_before += (self.burst.1 - self.burst.0).as_ns();
            let begin = self.burst.1 + self.random.time(bursts.off, bursts.shape);
            self.begin_burst(begin);
            if begin > now {
                return desk.wake_at(if begin < stop { begin } else { Instant::NEVER });
            }
        }
    }
}

impl App for Datagrams {
    fn start(&mut self, desk: &mut Desk<'_>) {
        self.begin_burst(desk.now());
        let flow = desk.datagram_flow(self.nodes, self.plan.port, self.plan.family);
        self.flow = Some(flow);
        self.go_on(desk, flow);
    }

    fn handle_timeout(&mut self, desk: &mut Desk<'_>) {
        if let Some(flow) = self.flow {
            self.go_on(desk, flow);
        }
    }

    fn handle_datagram(&mut self, desk: &mut Desk<'_>, _flow: FlowId, _number: u64) {
        self.received += 1;
        self.arrived.add(desk.now(), self.payload_size());
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
        })
    }
}
