//! One flow between a TCP connection and a stream of a tunnel: the half of a flow that is split by two proxies.
//!
//! The end whose client opens the flow requests it from the other end, which opens a connection to the server. As
//! in the daemon it carries each way of ending to the other end: an end of stream after its last byte, a reset as
//! a reset, a refused far side as a refusal, a silent one as silence.

use super::flow::{Ended, leg_packet};
use super::flow_counting::FlowCounting;
use super::leg::Model;
use super::relay::{Booked, Leg, TURN};
use super::share::Share;
use super::tunnel::AskedFlow;
use super::{ServerPlace, Shared};
use crate::agent::Actions;
use crate::dialogue::Dialogue;
use crate::packet::{End, FlowId, NodeId, Packet, Xcp};
use bytes::Bytes;
use midhop_congestion::QueueReport;
use midhop_experiment::tcp::TcpPlan;
use midhop_pep::budget::{self, Budget, BudgetPart};
use midhop_pep::config::ClassPlan;
use midhop_pep::relay::{Direction, Step};
use midhop_tcp::{Cause, Event, Flags, Segment, State, refusal};
use midhop_tunnel::cause;
use midhop_tunnel::connect::Request;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{CarrierEvent, FlowFault, StreamId};
use midhop_units::Instant;
use std::sync::Arc;

/// How much is read from a socket at once.
const PIECE: usize = 64 << 10;
/// The payload of all flows.
static ZEROS: [u8; PIECE] = [0; PIECE];

/// The state of a flow through a tunnel.
#[derive(Debug)]
pub(super) struct TunnelFlow {
    pub id: FlowId,
    /// The proxy's.
    maker: NodeId,
    asked: AskedFlow,
    /// The end that the leg faces.
    end: End,
    leg: Leg,
    /// By its index among the proxy's tunnels.
    tunnel: usize,
    stream: Option<StreamId>,
    /// The request for it.
    request: Option<Box<Request>>,
    class: ClassPlan,
    /// The client's SYN, which waits for the far side.
    held: Option<Segment>,
    /// The far side has accepted.
    granted: bool,
    into: IntoTunnel,
    out: OutOfTunnel,
    broken: bool,
    counting: FlowCounting,
    /// How much it holds, as last counted.
    held_part: BudgetPart,
    pub due: Instant,
}

/// From the connection into the tunnel.
#[derive(Debug, Default)]
struct IntoTunnel {
    state: Direction,
    /// The other end has all of it.
    delivered: bool,
}

/// From the tunnel into the connection.
#[derive(Debug)]
struct OutOfTunnel {
    state: Direction,
    /// Taken and not yet written. Unit: bytes.
    staged: u64,
    /// The stream's end was received behind the flow's end.
    complete: bool,
    share: Option<Share>,
    /// The next try, while it waits for the budget.
    waits: Instant,
}

impl TunnelFlow {
    /// A flow through the tunnel at `tunnel`, between it and a connection on the leg.
    pub fn new(
        maker: NodeId,
        asked: AskedFlow,
        (end, model): (End, Model),
        (tunnel, class): (usize, &ClassPlan),
        tcp: &TcpPlan,
        initial: u32,
        budget: &Arc<Budget>,
    ) -> Self {
        let dials = end == End::Listener;
        let share = Share::of(&model);
        let leg = Leg {
            endpoint: model.endpoint(tcp, asked.family, dials, initial),
            xcp: Dialogue::default(),
            segment: Model::segment(tcp, asked.family),
            model,
            written: 0,
            connected: false,
            peer_closed: false,
            booked: Booked::default(),
        };
        Self {
            id: asked.flow,
            maker,
            asked,
            end,
            leg,
            tunnel,
            stream: None,
            request: None,
            class: class.clone(),
            held: None,
            granted: false,
            into: IntoTunnel::default(),
            out: OutOfTunnel {
                state: Direction::default(),
                staged: 0,
                complete: false,
                share,
                waits: Instant::NEVER,
            },
            broken: false,
            counting: FlowCounting::default(),
            held_part: BudgetPart::new(budget.clone()),
            due: Instant::NEVER,
        }
    }

    /// The client's end begins: its SYN is answered at once, or `waits` for the far side.
    pub fn open(
        &mut self,
        now: Instant,
        (syn, waits): (&Segment, bool),
        request: Request,
        shared: &mut Shared,
        actions: &mut Actions,
    ) -> Ended {
        self.counting.enter(&mut shared.counts);
        self.request = Some(Box::new(request));
        if waits {
            self.held = Some(*syn);
            self.counting.wait(&mut shared.counts);
            self.ask(now, shared);
        } else {
            self.leg.endpoint.handle_segment(now, syn);
        }
        self.settle(now, shared, actions)
    }

    /// The server's end begins: the other end has requested it by a stream.
    pub fn dial(
        &mut self,
        now: Instant,
        stream: StreamId,
        shared: &mut Shared,
        actions: &mut Actions,
    ) -> Ended {
        self.counting.enter(&mut shared.counts);
        self.stream = Some(stream);
        self.settle(now, shared, actions)
    }

    /// Requests the flow from the other end, unless that was done or the other end accepts no more for now.
    fn ask(&mut self, now: Instant, shared: &mut Shared) {
        if self.stream.is_none() {
            let tunnel = &mut shared.tunnels[self.tunnel];
            self.stream = tunnel.ask(now, &mut self.request, self.asked, &self.class);
        }
    }

    /// A segment of the flow was received in `packet`.
    pub fn receive(
        &mut self,
        now: Instant,
        packet: &Packet,
        segment: &Segment,
        shared: &mut Shared,
        actions: &mut Actions,
    ) -> Ended {
        if packet.towards != self.end.other() {
            // It passes this proxy: its leg is in the other direction.
            actions.send(*packet);
            return Ended::No;
        }
        if self.held.is_some() {
            // The client retransmits its SYN, or gives up.
            if segment.flags.contains(Flags::RST) {
                self.held = None;
                self.counting.go_on(&mut shared.counts);
                self.leg.endpoint.close();
                self.break_off(shared);
            }
            return self.settle(now, shared, actions);
        }
        self.leg.xcp.receive(&mut self.leg.endpoint, &packet.xcp);
        self.leg.endpoint.handle_segment(now, segment);
        self.settle(now, shared, actions)
    }

    /// An event of its tunnel.
    pub fn on_carrier(
        &mut self,
        now: Instant,
        event: &CarrierEvent,
        shared: &mut Shared,
        actions: &mut Actions,
    ) -> Ended {
        match event {
            CarrierEvent::Granted(_) => {
                self.granted = true;
                shared.answered.learn(self.target(), true, now);
                if let Some(syn) = self.held.take() {
                    self.counting.go_on(&mut shared.counts);
                    self.leg.endpoint.handle_segment(now, &syn);
                }
            }
            CarrierEvent::Available => self.ask(now, shared),
            CarrierEvent::Delivered(_) => self.into.delivered = true,
            CarrierEvent::Broken(_, fault) => self.on_fault(now, *fault, shared, actions),
            CarrierEvent::Stopped(_, code) => {
                self.on_fault(now, FlowFault::Reset(*code), shared, actions);
            }
            CarrierEvent::Lost(_) => {
                self.stream = None;
                self.on_fault(now, FlowFault::Cut, shared, actions);
            }
            _ => {}
        }
        self.settle(now, shared, actions)
    }

    /// Whether the connection's host gets reports of the queue at the link over which `packet` arrived.
    pub fn minds_queue(&self, packet: &Packet) -> bool {
        packet.towards == self.end.other() && self.leg.model.queue_feedback
    }

    /// Such a report.
    pub fn handle_queue(&mut self, _: &Packet, report: &QueueReport) {
        self.leg.endpoint.congestion_control().on_queue(report);
    }

    /// A time that [`TunnelFlow::timeout`] named has come.
    pub fn wake(&mut self, now: Instant, shared: &mut Shared, actions: &mut Actions) -> Ended {
        if self.held.is_none() && self.leg.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            self.leg.endpoint.handle_timeout(now);
        }
        if self.out.waits <= now {
            self.out.waits = Instant::NEVER;
        }
        if let Some(share) = &mut self.out.share {
            let leg = &mut self.leg;
            let sent = leg.written - leg.endpoint.unsent().min(leg.written);
            share.follow(now, self.out.staged, sent, &mut leg.endpoint);
        }
        self.settle(now, shared, actions)
    }

    /// When to call [`TunnelFlow::wake`].
    pub fn timeout(&self) -> Instant {
        let leg = self.leg.endpoint.poll_timeout().filter(|_| self.held.is_none());
        let share = self.out.share.as_ref().map_or(Instant::NEVER, Share::due);
        leg.unwrap_or(Instant::NEVER).min(share).min(self.out.waits)
    }

    /// Does everything due at this time.
    fn settle(&mut self, now: Instant, shared: &mut Shared, actions: &mut Actions) -> Ended {
        loop {
            let mut again = false;
            while let Some(segment) = self.leg.endpoint.poll_transmit(now) {
                let xcp = self.leg.xcp.ask(&self.leg.endpoint, &segment);
                actions.send(self.packet(segment, xcp));
            }
            while let Some(event) = self.leg.endpoint.poll_event() {
                again = true;
                self.on_event(now, event, shared, actions);
            }
            if self.leg.connected && !self.broken {
                again |= self.move_into(now, shared);
                again |= self.move_out(now, shared, actions);
            }
            if !again {
                break;
            }
        }
        self.leave_stream(shared);
        self.count();
        let closed = self.leg.endpoint.state() == State::Closed && self.held.is_none();
        if matches!(self.leg.endpoint.state(), State::TimeWait) || closed {
            self.counting.leave(&mut shared.counts);
        }
        if closed && self.stream.is_none() && (self.leg.connected || self.broken) {
            Ended::Yes
        } else {
            Ended::No
        }
    }

    fn on_event(&mut self, now: Instant, event: Event, shared: &mut Shared, actions: &mut Actions) {
        match event {
            Event::Connected => {
                self.leg.connected = true;
                if self.end == End::Opener {
                    self.ask(now, shared);
                } else if let Some(stream) = self.stream {
                    let (at, carrier) = shared.tunnels[self.tunnel].carrier(now);
                    carrier.grant(at, stream, &self.class);
                    self.granted = true;
                }
            }
            Event::Readable | Event::Writable => {}
            Event::PeerClosed => self.leg.peer_closed = true,
            Event::Closed => {
                if !self.broken && self.into.state.is_done() && self.out.state.is_done() {
                    shared.counts.ended += 1;
                }
            }
            Event::Reset(Cause::Aborted) => {}
            Event::Reset(cause) => self.on_reset(now, cause, shared, actions),
        }
    }

    /// The connection went away without ending its stream.
    fn on_reset(&mut self, now: Instant, cause: Cause, shared: &mut Shared, _: &mut Actions) {
        if self.end == End::Listener && !self.granted {
            // The far side has not accepted, so the client is not accepted.
            let (count, cause) = match cause {
                Cause::TimedOut => (&mut shared.counts.silent, cause::Cause::TimedOut),
                _ => (&mut shared.counts.refused, cause::Cause::Refused),
            };
            *count += 1;
            if let Some(stream) = self.stream {
                let (at, carrier) = shared.tunnels[self.tunnel].carrier(now);
                carrier.deny(at, stream, cause);
            }
            self.broken = true;
            return;
        }
        self.break_off(shared);
    }

    /// The tunnel's side of the flow broke.
    fn on_fault(
        &mut self,
        now: Instant,
        fault: FlowFault,
        shared: &mut Shared,
        actions: &mut Actions,
    ) {
        if self.broken {
            return;
        }
        if let Some(syn) = self.held.take() {
            self.counting.go_on(&mut shared.counts);
            shared.answered.learn(self.target(), false, now);
            if fault == FlowFault::Denied(cause::Cause::TimedOut) {
                shared.counts.silent += 1;
            } else {
                shared.counts.refused += 1;
                if let Some(reset) = refusal(&syn) {
                    actions.send(self.packet(reset, Xcp::default()));
                }
            }
            self.leg.endpoint.close();
            self.forget(Code::NO_ERROR, shared);
            self.broken = true;
            return;
        }
        self.leg.endpoint.abort();
        self.break_off(shared);
    }

    /// Resets the tunnel's side.
    fn break_off(&mut self, shared: &mut Shared) {
        shared.counts.reset += u64::from(!self.broken);
        self.broken = true;
        self.forget(Code::CONNECT_ERROR, shared);
    }

    /// Moves received data from the connection into the tunnel; returns whether there was any.
    fn move_into(&mut self, now: Instant, shared: &mut Shared) -> bool {
        let Some(stream) = self.stream else { return false };
        let tunnel = &mut shared.tunnels[self.tunnel];
        let mut any = false;
        loop {
            let (at, carrier) = tunnel.carrier(now);
            // One piece at a time: QUIC's window holds the rest.
            let staged = carrier.waiting(stream) != Some(0);
            match self.into.state.step(staged, TURN, || false) {
                Step::Read => {}
                Step::End => {
                    carrier.finish(at, stream);
                    self.into.state.finish();
                    return true;
                }
                Step::Write | Step::Cut | Step::Yield | Step::Wait { .. } | Step::Done => break,
            }
            let readable = self.leg.endpoint.readable();
            if readable == 0 && self.leg.peer_closed {
                self.into.state.end();
                continue;
            }
            if readable == 0 {
                carrier.release_turn(stream);
                break;
            }
            let piece = self.leg.endpoint.read(now, readable.min(PIECE as u64));
            let bytes = Bytes::from_static(&ZEROS).slice(..piece as usize);
            carrier.enqueue(at, stream, bytes);
            self.into.state.count(piece);
            tunnel.count_sent(piece);
            match self.end {
                End::Opener => shared.counts.bytes_up += piece,
                End::Listener => shared.counts.bytes_down += piece,
            }
            any = true;
        }
        any
    }

    /// Moves received data from the tunnel into the connection; returns whether there was any.
    fn move_out(&mut self, now: Instant, shared: &mut Shared, actions: &mut Actions) -> bool {
        let Some(stream) = self.stream else { return false };
        let mut any = false;
        loop {
            let on_its_way = || self.leg.written > self.leg.endpoint.acknowledged();
            let must_wait = || shared.budget.must_wait(on_its_way);
            match self.out.state.step(self.out.staged > 0, TURN, must_wait) {
                Step::Write => {
                    any |= self.write() > 0;
                    if self.out.staged > 0 {
                        return any;
                    }
                }
                Step::Read => match self.read(now, stream, shared) {
                    Ok(true) => any = true,
                    Ok(false) => return any,
                    Err(fault) => {
                        self.on_fault(now, fault, shared, actions);
                        return true;
                    }
                },
                Step::End => {
                    self.leg.endpoint.close();
                    self.out.state.finish();
                    any = true;
                }
                Step::Wait { begins } => {
                    shared.counts.memory_waits += u64::from(begins);
                    self.out.waits = self.out.waits.min(now + budget::LOOK_AGAIN);
                    return any;
                }
                Step::Cut | Step::Yield | Step::Done => break,
            }
        }
        if self.out.state.has_ended() && !self.out.complete {
            let (_, carrier) = shared.tunnels[self.tunnel].carrier(now);
            match carrier.take_end(stream) {
                Ok(complete) => self.out.complete = complete,
                Err(fault) => self.on_fault(now, fault, shared, actions),
            }
        }
        any
    }

    /// Takes received data from the tunnel; returns whether there was any.
    fn read(
        &mut self,
        now: Instant,
        stream: StreamId,
        shared: &mut Shared,
    ) -> Result<bool, FlowFault> {
        let tunnel = &mut shared.tunnels[self.tunnel];
        let (_, carrier) = tunnel.carrier(now);
        let taken = carrier.take(stream)?;
        let bytes: u64 = taken.pieces.iter().map(|piece| piece.len() as u64).sum();
        if bytes == 0 && !taken.ended {
            return Ok(false);
        }
        tunnel.count_received(bytes);
        match self.end {
            End::Opener => shared.counts.bytes_down += bytes,
            End::Listener => shared.counts.bytes_up += bytes,
        }
        self.out.staged = bytes;
        if taken.ended {
            self.out.state.end();
        }
        if let Some(share) = &mut self.out.share {
            share.before_write(now, bytes, &mut self.leg.endpoint);
        }
        Ok(true)
    }

    /// Writes as much as the connection has room for. Unit: bytes.
    fn write(&mut self) -> u64 {
        let room = self.leg.model.room(&self.leg.endpoint, self.leg.written);
        let taken = self.leg.endpoint.write(self.out.staged.min(room));
        self.out.staged -= taken;
        self.leg.written += taken;
        self.out.state.count(taken);
        taken
    }

    /// Drops the stream once both of its halves are over.
    fn leave_stream(&mut self, shared: &mut Shared) {
        let denied = self.broken && self.end == End::Listener && !self.granted;
        if self.into.delivered && (self.out.complete && self.out.state.is_done() || denied) {
            self.forget(Code::NO_ERROR, shared);
        }
    }

    fn forget(&mut self, code: Code, shared: &mut Shared) {
        if let Some(stream) = self.stream.take() {
            shared.tunnels[self.tunnel].forget(stream, code);
        }
    }

    fn target(&self) -> ServerPlace {
        let AskedFlow { nodes, ports, family, .. } = self.asked;
        ServerPlace { node: nodes[1], port: ports[1], family }
    }

    fn packet(&self, segment: Segment, xcp: Xcp) -> Packet {
        let AskedFlow { flow, nodes, ports, family } = self.asked;
        leg_packet((flow, self.maker), (nodes, ports, family), self.end.index(), segment, xcp)
    }

    /// Releases its part of shared limits, and adds its counts: it is over.
    pub fn leave(&mut self, now: Instant, shared: &mut Shared) {
        self.counting.go_on(&mut shared.counts);
        self.counting.leave(&mut shared.counts);
        if let Some(share) = &mut self.out.share {
            share.withdraw();
        }
        self.held_part.set(0);
        if shared.measures(self.listener()) && self.leg.connected {
            self.leg.book(now, &mut shared.legs);
        }
    }

    /// The destination port.
    pub fn listener(&self) -> u16 {
        self.asked.ports[1]
    }

    /// How much it holds in both directions, as last counted. Unit: bytes.
    pub fn held_bytes(&self) -> u64 {
        self.held_part.held()
    }

    /// Its connection.
    pub fn connected(&self) -> Option<&Leg> {
        Some(&self.leg).filter(|leg| leg.connected)
    }

    /// Whether it uses the tunnel at `tunnel`.
    pub fn is_by(&self, tunnel: usize) -> bool {
        self.tunnel == tunnel
    }

    /// The tunnel's own window bounds data towards the tunnel; data from it is held here.
    fn count(&mut self) {
        let leg = &self.leg;
        let queued = leg.written - leg.endpoint.acknowledged().min(leg.written);
        self.held_part.set(leg.endpoint.readable() + self.out.staged + queued);
    }
}
