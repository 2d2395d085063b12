//! An agent processes every packet at its node, and its actions take effect.

use crate::scenes::{FILE, plan};
use midhop_sim::agent::{Actions, Agent};
use midhop_sim::packet::{Body, NodeId, Packet};
use midhop_sim::{Options, run};
use midhop_units::{Duration, Instant};

/// Drops one in so many segments with payload, and holds all acknowledgements for a while.
#[derive(Debug, Default)]
struct Nuisance {
    payloads: u64,
    dropped: u64,
    held: Vec<(Instant, Packet)>,
}

const HOLDS: Duration = Duration::from_ms(30);

impl Agent for Nuisance {
    fn handle_packet(&mut self, now: Instant, packet: Packet, actions: &mut Actions) {
        let Body::Segment(segment) = &packet.body else { return actions.send(packet) };
        if segment.length > 0 {
            self.payloads += 1;
            if self.payloads.is_multiple_of(100) {
                self.dropped += 1;
                return actions.drop(packet, "nuisance");
            }
            actions.send(packet);
        } else {
            self.held.push((now + HOLDS, packet));
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        let due = self.held.partition_point(|(at, _)| *at <= now);
        self.held.drain(..due).for_each(|(_, packet)| actions.send(packet));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.held.first().map(|(at, _)| *at)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("payloads", self.payloads)]
    }
}

#[test]
fn an_agent_drops_and_delays_what_passes_its_node() {
    let plan = plan(FILE, &[]);
    let gateway = plan.nodes.iter().position(|node| node.name == "gateway").expect("named");
    let agents = |_: &_| {
        let agent: Box<dyn Agent> = Box::new(Nuisance::default());
        Ok(vec![(NodeId(gateway as u16), agent)])
    };
    let options = Options { agents: &agents, checking: true, ..Options::default() };
    let (record, _) = run(&plan, &options).expect("runs");
    let transfer = &record.transfers[0];
    assert!(transfer.complete, "{transfer:?}");
    let node = &record.nodes[0];
    assert_eq!((node.node.as_str(), record.nodes.len()), ("gateway", 1));
    assert!(node.drops["nuisance"] >= 13, "{node:?}");
    assert!(node.counts["payloads"] > 1_380, "{node:?}");
    let flow = &transfer.flows[0];
    assert!(flow.retransmissions >= node.drops["nuisance"], "{flow:?} {node:?}");
    // 70.4 ms of propagation, and 30 of waiting.
    assert!(flow.rtt_min.is_some_and(|rtt| rtt >= Duration::from_us(100_400)), "{flow:?}");
}
