//! A proxy's flows through tunnels: those that it requests, those requested from it, and the connections' events.

use super::chain_flow::ChainFlow;
use super::configured::Onwards;
use super::flow::Ended;
use super::leg::Model;
use super::proxied::{ProxiedFlow, either};
use super::tunnel::{AskedFlow, TunnelEnd};
use super::tunnel_flow::TunnelFlow;
use super::{Make, Proxy};
use crate::agent::Actions;
use crate::packet::{End, FlowId, Packet};
use midhop_pep::config::ClassPlan;
use midhop_pep::policy::FlowKey;
use midhop_tcp::Segment;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::Request;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{CarrierEvent, StreamId};
use midhop_tunnel::target::Target;
use midhop_units::Instant;

impl Proxy {
    /// Takes a SYN whose flow uses a tunnel.
    pub(super) fn tunnel_off(
        &mut self,
        now: Instant,
        (packet, syn): (&Packet, &Segment),
        (waits, peer, leg, class): (bool, &str, Model, &ClassPlan),
        request: Request,
        actions: &mut Actions,
    ) {
        let Some(tunnel) = self.tunnel_to(peer) else { return actions.send(*packet) };
        let Packet { flow, source, destination, ports, family, .. } = *packet;
        let asked = AskedFlow { flow, nodes: [source, destination], ports, family };
        let made = TunnelFlow::new(
            self.node,
            asked,
            (End::Opener, leg),
            (tunnel, class),
            &self.tcp,
            self.random.word(),
            &self.shared.budget,
        );
        self.take(flow, ProxiedFlow::Tunnelled(made));
        self.with(now, flow, |flow, shared| match flow {
            ProxiedFlow::Tunnelled(flow) => flow.open(now, (syn, waits), request, shared, actions),
            _ => Ended::No,
        });
    }

    /// The other end of a tunnel requests a flow.
    fn serve(
        &mut self,
        now: Instant,
        at: usize,
        stream: StreamId,
        request: &Request,
        actions: &mut Actions,
    ) {
        let tunnel = &mut self.shared.tunnels[at];
        let Some(asked) = tunnel.asked(stream) else { return };
        let peer = tunnel.peer.clone();
        let link = self.places.get(asked.nodes[1].index()).and_then(|place| place.link.clone());
        let served = match (&self.make, &request.target, request.client) {
            (Make::Configured(made), Target::Address(target), Some(client)) => {
                let key = FlowKey {
                    source: client,
                    destination: *target,
                    interface: None,
                    peer: Some(&peer),
                    dscp: 0,
                };
                let live = self.shared.counts.live;
                made.serve(&key, link.as_deref(), live, request.class.as_deref())
            }
            _ => Err(Cause::Failed),
        };
        let denied = match served {
            Ok((Onwards::Leg(leg), class)) => {
                let initial = self.random.word();
                let (end, via) = ((End::Listener, leg.over(link.as_deref())), (at, &class));
                let budget = &self.shared.budget;
                let made = TunnelFlow::new(self.node, asked, end, via, &self.tcp, initial, budget);
                self.take(asked.flow, ProxiedFlow::Tunnelled(made));
                return self.with(now, asked.flow, |flow, shared| match flow {
                    ProxiedFlow::Tunnelled(flow) => flow.dial(now, stream, shared, actions),
                    _ => Ended::No,
                });
            }
            Ok((Onwards::Tunnel(peer), class)) => {
                let next = self.tunnel_to(&peer);
                let onwards = request.onwards(request.target.clone(), class.announced());
                match (next, onwards) {
                    (Some(to), Some(request)) => {
                        let made = ChainFlow::new(asked, (at, stream), to, request, &class);
                        self.take(asked.flow, ProxiedFlow::Chained(made));
                        return self.with(now, asked.flow, |flow, shared| match flow {
                            ProxiedFlow::Chained(flow) => flow.open(now, shared),
                            _ => Ended::No,
                        });
                    }
                    (None, _) => Cause::Failed,
                    (_, None) => Cause::Loop,
                }
            }
            Err(cause) => cause,
        };
        let tunnel = &mut self.shared.tunnels[at];
        tunnel.flows.remove(&stream);
        let (then, carrier) = tunnel.carrier(now);
        carrier.deny(then, stream, denied);
        self.shared.counts.rejected += 1;
    }

    /// The tunnel for flows to a peer.
    fn tunnel_to(&self, peer: &str) -> Option<usize> {
        let usable = |it: &TunnelEnd| it.peer == peer && it.opens() && !it.lost;
        self.shared.tunnels.iter().position(usable)
    }

    /// Lets all tunnels do everything due at this time.
    pub(super) fn run_tunnels(&mut self, now: Instant, actions: &mut Actions) {
        let mut again = !self.shared.tunnels.is_empty();
        while std::mem::take(&mut again) {
            for at in 0..self.shared.tunnels.len() {
                while let Some(event) = self.shared.tunnels[at].poll_event(now) {
                    again = true;
                    self.on_carrier(now, at, &event, actions);
                }
                again |= self.shared.tunnels[at].send(now, actions);
            }
        }
        self.shared.tunnels.iter_mut().for_each(TunnelEnd::settle);
    }

    fn on_carrier(&mut self, now: Instant, at: usize, event: &CarrierEvent, actions: &mut Actions) {
        let stream = match event {
            CarrierEvent::Asked(stream, request) => {
                return self.serve(now, at, *stream, request, actions);
            }
            CarrierEvent::Connected
            | CarrierEvent::Confirmed
            | CarrierEvent::Opened(_)
            | CarrierEvent::Settled
            | CarrierEvent::Leaving
            | CarrierEvent::Backlog(_) => return,
            // The other end has everything that it needs.
            CarrierEvent::Stopped(_, code) if *code == Code::NO_ERROR => return,
            CarrierEvent::Granted(stream)
            | CarrierEvent::Readable(stream)
            | CarrierEvent::Writable(stream)
            | CarrierEvent::Delivered(stream)
            | CarrierEvent::Stopped(stream, _)
            | CarrierEvent::Broken(stream, _) => *stream,
            CarrierEvent::Lost(_) | CarrierEvent::Available => {
                self.shared.tunnels[at].lost |= matches!(event, CarrierEvent::Lost(_));
                let all = self.flows.iter().flatten().filter(|flow| flow.is_by(at));
                let all: Vec<FlowId> = all.map(|flow| either!(&**flow, flow => flow.id)).collect();
                all.into_iter().for_each(|id| self.report(now, (at, id), event, actions));
                return;
            }
        };
        match self.shared.tunnels[at].flows.get(&stream) {
            Some(id) => self.report(now, (at, *id), event, actions),
            // Event of a flow that was denied.
            None if matches!(event, CarrierEvent::Delivered(_)) => {
                self.shared.tunnels[at].forget(stream, Code::NO_ERROR);
            }
            None => {}
        }
    }

    /// Reports an event of the tunnel at `at` to a flow.
    fn report(
        &mut self,
        now: Instant,
        (at, id): (usize, FlowId),
        event: &CarrierEvent,
        actions: &mut Actions,
    ) {
        self.with(now, id, |flow, shared| match flow {
            ProxiedFlow::Tunnelled(flow) => flow.on_carrier(now, event, shared, actions),
            ProxiedFlow::Chained(flow) => flow.on_carrier(now, at, event, shared),
            ProxiedFlow::Split(_) => Ended::No,
        });
    }
}
