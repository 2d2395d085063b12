//! One flow from one tunnel to the next, at a proxy in the middle of a chain.
//!
//! Nothing waits for the response of the next proxy: data of the flow's client is forwarded at once. Any response is
//! passed back.

use super::Shared;
use super::flow::Ended;
use super::flow_counting::FlowCounting;
use super::relay::TURN;
use super::tunnel::AskedFlow;
use crate::agent::Actions;
use crate::packet::{End, FlowId, Packet};
use bytes::Bytes;
use midhop_congestion::QueueReport;
use midhop_pep::config::ClassPlan;
use midhop_pep::relay::{Direction, Step};
use midhop_tcp::Segment;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::Request;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{CarrierEvent, FlowFault, StreamId};
use midhop_units::Instant;
use std::collections::VecDeque;

/// A flow between two streams.
#[derive(Debug)]
pub(super) struct ChainFlow {
    pub id: FlowId,
    asked: AskedFlow,
    class: ClassPlan,
    /// The directions towards the client and towards the server.
    ends: [ChainEnd; 2],
    request: Option<Box<Request>>,
    granted: bool,
    broken: bool,
    counting: FlowCounting,
    /// It needs no timer.
    pub due: Instant,
}

/// One of its streams.
#[derive(Debug)]
struct ChainEnd {
    /// Its tunnel, by the index among the proxy's tunnels.
    tunnel: usize,
    stream: Option<StreamId>,
    /// The state of the bytes from it.
    state: Direction,
    /// Bytes taken from it that are still to be forwarded.
    waiting: VecDeque<Bytes>,
    /// The stream's end was received behind the flow's end.
    complete: bool,
    /// The other end of the tunnel has all bytes forwarded to it.
    delivered: bool,
}

impl ChainFlow {
    /// A flow that was requested by a stream of the tunnel at `from`, and continues through the tunnel at `to`.
    pub fn new(
        asked: AskedFlow,
        (from, stream): (usize, StreamId),
        to: usize,
        request: Request,
        class: &ClassPlan,
    ) -> Self {
        let end = |tunnel, stream| ChainEnd {
            tunnel,
            stream,
            state: Direction::default(),
            waiting: VecDeque::new(),
            complete: false,
            delivered: false,
        };
        Self {
            id: asked.flow,
            asked,
            class: class.clone(),
            ends: [end(from, Some(stream)), end(to, None)],
            request: Some(Box::new(request)),
            granted: false,
            broken: false,
            counting: FlowCounting::default(),
            due: Instant::NEVER,
        }
    }

    /// It begins: sends the request to the next proxy.
    pub fn open(&mut self, now: Instant, shared: &mut Shared) -> Ended {
        self.counting.enter(&mut shared.counts);
        self.ask(now, shared);
        self.settle(now, shared)
    }

    fn ask(&mut self, now: Instant, shared: &mut Shared) {
        let end = &mut self.ends[End::Listener.index()];
        if end.stream.is_none() {
            let tunnel = &mut shared.tunnels[end.tunnel];
            end.stream = tunnel.ask(now, &mut self.request, self.asked, &self.class);
        }
    }

    /// An event of the tunnel at `tunnel`.
    pub fn on_carrier(
        &mut self,
        now: Instant,
        tunnel: usize,
        event: &CarrierEvent,
        shared: &mut Shared,
    ) -> Ended {
        let from = usize::from(self.ends[0].tunnel != tunnel);
        match event {
            CarrierEvent::Granted(_) => {
                self.granted = true;
                let end = &self.ends[End::Opener.index()];
                if let Some(stream) = end.stream {
                    let (at, carrier) = shared.tunnels[end.tunnel].carrier(now);
                    carrier.grant(at, stream, &self.class);
                }
            }
            CarrierEvent::Available => self.ask(now, shared),
            CarrierEvent::Delivered(_) => self.ends[from].delivered = true,
            CarrierEvent::Broken(_, fault) => self.on_fault(now, *fault, shared),
            CarrierEvent::Stopped(_, code) => self.on_fault(now, FlowFault::Reset(*code), shared),
            CarrierEvent::Lost(_) => {
                self.ends[from].stream = None;
                self.on_fault(now, FlowFault::Cut, shared);
            }
            _ => {}
        }
        self.settle(now, shared)
    }

    fn on_fault(&mut self, now: Instant, fault: FlowFault, shared: &mut Shared) {
        if std::mem::replace(&mut self.broken, true) {
            return;
        }
        self.forget(End::Listener, Code::CONNECT_ERROR, shared);
        if self.granted {
            shared.counts.reset += 1;
            return self.forget(End::Opener, Code::CONNECT_ERROR, shared);
        }
        shared.counts.refused += 1;
        let cause = match fault {
            FlowFault::Denied(cause) => cause,
            _ => Cause::Failed,
        };
        let end = &self.ends[End::Opener.index()];
        if let Some(stream) = end.stream {
            let (at, carrier) = shared.tunnels[end.tunnel].carrier(now);
            carrier.deny(at, stream, cause);
        }
    }

    fn settle(&mut self, now: Instant, shared: &mut Shared) -> Ended {
        while !self.broken {
            let moved = [End::Opener, End::Listener].map(|from| self.pass_on(now, from, shared));
            if moved == [false, false] {
                break;
            }
        }
        let over = |end: &ChainEnd| end.complete && end.state.is_done() && end.delivered;
        if self.ends.iter().all(over) {
            shared.counts.ended += u64::from(!self.broken);
            for end in End::BOTH {
                self.forget(end, Code::NO_ERROR, shared);
            }
        } else if self.broken && self.ends[End::Opener.index()].delivered {
            // The other end knows that the flow was denied.
            self.forget(End::Opener, Code::NO_ERROR, shared);
        }
        let gone = self.ends.iter().all(|end| end.stream.is_none()) && self.request.is_none();
        if gone || self.broken {
            self.counting.leave(&mut shared.counts);
        }
        if gone { Ended::Yes } else { Ended::No }
    }

    /// Forwards received bytes from one end; returns whether there were any.
    fn pass_on(&mut self, now: Instant, from: End, shared: &mut Shared) -> bool {
        let [opener, listener] = &mut self.ends;
        let (from, to) = match from {
            End::Opener => (opener, listener),
            End::Listener => (listener, opener),
        };
        let (Some(own), Some(other)) = (from.stream, to.stream) else { return false };
        let mut any = false;
        loop {
            let (at, next) = shared.tunnels[to.tunnel].carrier(now);
            if next.waiting(other) != Some(0) {
                break;
            }
            match from.state.step(!from.waiting.is_empty(), TURN, || false) {
                Step::Write => {
                    let Some(bytes) = from.waiting.pop_front() else { continue };
                    let count = bytes.len() as u64;
                    from.state.count(count);
                    next.enqueue(at, other, bytes);
                    shared.tunnels[to.tunnel].count_sent(count);
                    any = true;
                    continue;
                }
                Step::Read => {}
                Step::End => {
                    next.finish(at, other);
                    from.state.finish();
                    any = true;
                    break;
                }
                Step::Cut | Step::Yield | Step::Wait { .. } | Step::Done => break,
            }
            let taken = shared.tunnels[from.tunnel].carrier(now).1.take(own);
            let Ok(taken) = taken else {
                self.on_fault(now, FlowFault::Cut, shared);
                return true;
            };
            if taken.pieces.is_empty() && !taken.ended {
                shared.tunnels[to.tunnel].carrier(now).1.release_turn(other);
                break;
            }
            let bytes: usize = taken.pieces.iter().map(Bytes::len).sum();
            shared.tunnels[from.tunnel].count_received(bytes as u64);
            from.waiting.extend(taken.pieces);
            if taken.ended {
                from.state.end();
            }
            any = true;
        }
        if from.state.has_ended() && !from.complete {
            match shared.tunnels[from.tunnel].carrier(now).1.take_end(own) {
                Ok(complete) => from.complete = complete,
                Err(fault) => self.on_fault(now, fault, shared),
            }
        }
        any
    }

    fn forget(&mut self, end: End, code: Code, shared: &mut Shared) {
        let end = &mut self.ends[end.index()];
        if let Some(stream) = end.stream.take() {
            shared.tunnels[end.tunnel].forget(stream, code);
        }
    }

    /// Whether it uses the tunnel at `tunnel`.
    pub fn is_by(&self, tunnel: usize) -> bool {
        self.ends.iter().any(|end| end.tunnel == tunnel)
    }

    // Methods of the other kinds of flows, which have no effect here.

    /// No segment of such a flow is for this proxy.
    pub fn receive(
        &mut self,
        _: Instant,
        packet: &Packet,
        _: &Segment,
        _: &mut Shared,
        actions: &mut Actions,
    ) -> Ended {
        actions.send(*packet);
        Ended::No
    }

    pub fn wake(&mut self, _: Instant, _: &mut Shared, _: &mut Actions) -> Ended {
        Ended::No
    }

    pub fn timeout(&self) -> Instant {
        Instant::NEVER
    }

    pub fn minds_queue(&self, _: &Packet) -> bool {
        false
    }

    pub fn handle_queue(&mut self, _: &Packet, _: &QueueReport) {}

    pub fn leave(&mut self, _: Instant, shared: &mut Shared) {
        self.counting.leave(&mut shared.counts);
    }

    pub fn listener(&self) -> u16 {
        self.asked.ports[1]
    }

    pub fn held_bytes(&self) -> u64 {
        0
    }
}
