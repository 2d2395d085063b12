//! HTTP/3 on one connection: the state that all of its streams share, and its flows.
//!
//! Invariant: the control stream of this end lives as long as the connection. A peer that breaks a rule of the
//! connection as a whole ends it ([`Session::fault`]).

mod by_frames;
mod control;
mod unidirectional;

use self::control::Outgoing;
use self::unidirectional::PeerStream;
use super::carrier::Opening;
use super::event::CarrierEvent;
use super::flow::{Awaited, FlowFault, FlowStream, Incoming, Taken};
use crate::cause::Cause;
use crate::connect::{Form, Request, Response};
use crate::credit::{self, CreditBook, CreditBounds};
use crate::fec;
use crate::http3::{Code, Field, Settings, StreamKind, field, frame};
use crate::peer::Places;
use bytes::Bytes;
use midhop_pep::config::{ClassPlan, PeerPlan, Repair, RequestForm};
use midhop_pep::scheduler::{Attempt, Scheduler};
use midhop_units::{Duration, Instant, Rate};
use quinn_proto::{Connection, Dir, StreamEvent, StreamId, VarInt};
use std::collections::{BTreeMap, VecDeque};

/// A stream that nobody reads for so long is read out of QUIC from then on. At 1 Gbit/s it has at most 415 gaps by
/// then, whatever is lost. A stream that waits for less costs nothing.
const DRAW: Duration = Duration::from_ms(10);
const NS_PER_S: u64 = 1_000_000_000;
/// How long a peer may take to send a request on a stream that it has opened.
const PATIENCE: Duration = Duration::from_s(10);

/// The session on one connection.
#[derive(Debug)]
pub(super) struct Session {
    own: Settings,
    /// The peer's settings, once they have arrived.
    peer: Option<Settings>,
    form: RequestForm,
    /// The peer as a proxy: its name and port.
    authority: String,
    flows: BTreeMap<StreamId, FlowStream>,
    places: Places,
    scheduler: Scheduler<StreamId>,
    /// Urgent flows that wait for room.
    urgent: VecDeque<StreamId>,
    credit: CreditBook<StreamId>,
    /// Unit: bytes. QUIC's send window.
    pool: u64,
    /// Unit: bytes. What was written on all streams.
    written: u64,
    /// Unit: bytes. How much of one stream may wait behind a gap if the peer does not heed credit.
    held_max: u64,
    /// Streams that may have room to write now.
    ready: VecDeque<StreamId>,
    /// Streams to be read out of QUIC at these times, if nobody has read them by then.
    draws: VecDeque<(Instant, StreamId)>,
    /// Streams on which a request must have arrived at these times.
    requests: VecDeque<(Instant, StreamId)>,
    /// How long the first flow in the queue waits for the shaper, and which flow it is.
    shaped: Option<(Instant, StreamId)>,
    /// This end's unidirectional streams, and the bytes of them that wait to be sent.
    control: Option<Outgoing>,
    grants: Option<Outgoing>,
    /// The peer's unidirectional streams.
    uni: BTreeMap<StreamId, PeerStream>,
    /// Their kinds so far: there may be one of each.
    seen: Vec<StreamKind>,
    /// Until when the peer must allow the control stream to be opened; none: it has, or it was not needed yet.
    silent_until: Option<Instant>,
    /// Whether this end has sent GOAWAY, and whether the peer has.
    leaving: [bool; 2],
    /// Whether the caller reads and writes the frames of flows itself.
    by_frames: bool,
    /// The ID of the first request that has not arrived.
    next: u64,
    pub events: VecDeque<CarrierEvent>,
    /// The connection-level rule that the peer broke, and whether the connection was closed for it.
    fault: Option<Code>,
    is_judged: bool,
}

impl Session {
    /// A session on a connection to `peer`, whose name and port are `authority`.
    pub fn new(
        peer: &PeerPlan,
        authority: String,
        Opening { initial, wants_backlog, by_frames }: Opening,
        now: Instant,
        rate: Option<Rate>,
    ) -> Self {
        let flow_window = peer.flow_window.get();
        let bounds = CreditBounds::of(flow_window, peer.receive_window.get(), initial);
        let repair_window = if peer.repair == Repair::Off { 0 } else { fec::WINDOW_MAX as u64 };
        Self {
            own: Settings {
                repair_window,
                stream_credit: bounds.first,
                wants_backlog,
                // An end that reads frames itself may resume flows.
                resume_s: if by_frames { peer.resume.as_ns() / NS_PER_S } else { 0 },
                ..Settings::own()
            },
            peer: None,
            form: peer.request,
            authority,
            flows: BTreeMap::new(),
            places: Places::new(peer.flows),
            scheduler: Scheduler::shaped(rate, now),
            urgent: VecDeque::new(),
            credit: CreditBook::new(bounds),
            pool: peer.send_window.get(),
            written: 0,
            held_max: credit::held_max(flow_window),
            ready: VecDeque::new(),
            draws: VecDeque::new(),
            requests: VecDeque::new(),
            shaped: None,
            control: None,
            grants: None,
            uni: BTreeMap::new(),
            seen: Vec::new(),
            silent_until: None,
            leaving: [false; 2],
            by_frames,
            next: 0,
            events: VecDeque::new(),
            fault: None,
            is_judged: false,
        }
    }

    /// The peer's settings, once they have arrived.
    pub fn settings(&self) -> Option<&Settings> {
        self.peer.as_ref()
    }

    /// Handles an event of a stream.
    pub fn handle_event(&mut self, now: Instant, event: StreamEvent, connection: &mut Connection) {
        match event {
            StreamEvent::Opened { dir } => self.accept(now, dir, connection),
            StreamEvent::Readable { id } => self.readable(now, id, connection),
            StreamEvent::Writable { id } => self.writable(id, connection),
            StreamEvent::Finished { id } => self.finished(id),
            StreamEvent::Stopped { id, error_code } => self.stopped(id, error_code),
            StreamEvent::Available { dir: Dir::Uni } => self.open_control(connection),
            StreamEvent::Available { dir: Dir::Bi } => {
                self.events.push_back(CarrierEvent::Available);
            }
        }
    }

    /// The connection-level rule that the peer broke.
    pub fn broken_rule(&self) -> Option<Code> {
        self.fault
    }

    /// The same, once, so that the connection is closed for it.
    pub fn take_fault(&mut self) -> Option<Code> {
        self.fault.filter(|_| !std::mem::replace(&mut self.is_judged, true))
    }

    /// Whether one of the ends accepts no more flows.
    pub fn is_leaving(&self) -> bool {
        self.leaving != [false; 2]
    }

    /// Whether the send window is full, as far as any flow has found.
    pub fn is_full(&self) -> bool {
        self.scheduler.is_full()
    }

    /// Changes how much may be unacknowledged. Returns whether that is new. Unit: bytes.
    pub fn set_pool(&mut self, pool: u64) -> bool {
        std::mem::replace(&mut self.pool, pool) != pool
    }

    /// Unit: bytes. Memory used by received bytes.
    pub fn stored(&self) -> u64 {
        self.credit.waiting()
    }

    /// Memory that other connections of the peer use for the same. Unit: bytes.
    pub fn set_stored_elsewhere(&mut self, bytes: u64) {
        self.credit.set_elsewhere(bytes);
    }

    /// Flows that are open.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    // Calls from above.

    /// Requests a flow of a class; none: the peer accepts no more for now.
    pub fn ask(
        &mut self,
        now: Instant,
        request: &Request,
        class: &ClassPlan,
        connection: &mut Connection,
    ) -> Option<StreamId> {
        if self.is_leaving() {
            return None;
        }
        let template = self.peer.is_some_and(|it| it.serves_templates());
        let form = match self.form {
            RequestForm::Template if !template => return None,
            RequestForm::Classic => Form::Classic,
            RequestForm::Auto if !template => Form::Classic,
            RequestForm::Auto | RequestForm::Template => {
                Form::Template { authority: &self.authority }
            }
        };
        let (fields, payload) = (request.fields(form), form.payload());
        let id = connection.streams().open(Dir::Bi)?;
        let flow = self.open(now, id, Awaited::Answer);
        flow.carry_in(payload);
        flow.schedule.join(class.weight, class.ahead);
        self.enqueue_fields(now, id, &fields, connection);
        Some(id)
    }

    /// Responds to a request.
    pub fn answer(
        &mut self,
        now: Instant,
        id: StreamId,
        response: &Response,
        connection: &mut Connection,
    ) {
        let Some(flow) = self.flows.get(&id) else { return };
        let payload = match response {
            Response::Granted => flow.payload,
            Response::Denied { .. } => crate::payload::Payload::Raw,
        };
        let fields = response.fields(payload);
        self.enqueue_fields(now, id, &fields, connection);
    }

    /// Responds that the flow is denied.
    pub fn deny(&mut self, now: Instant, id: StreamId, cause: Cause, connection: &mut Connection) {
        self.answer(now, id, &Response::from(cause), connection);
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.ended = true;
        }
    }

    /// Gives a flow its class.
    pub fn join(&mut self, id: StreamId, class: &ClassPlan) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.schedule.join(class.weight, class.ahead);
        }
    }

    /// Enqueues bytes of a flow, and sends them as soon as it may. Call it only when nothing waits.
    pub fn enqueue(
        &mut self,
        now: Instant,
        id: StreamId,
        bytes: Bytes,
        connection: &mut Connection,
    ) {
        let Some(flow) = self.flows.get(&id) else { return };
        let head = flow.payload.head(bytes.len());
        self.enqueue_data(now, id, &head, bytes, connection);
    }

    /// The flow has ended: sends its end behind all that was enqueued, and ends this half. Call it only when nothing
    /// waits.
    pub fn finish(&mut self, now: Instant, id: StreamId, connection: &mut Connection) {
        let Some(flow) = self.flows.get_mut(&id).filter(|flow| !flow.ended) else { return };
        flow.ended = true;
        let end = flow.payload.end();
        if end.is_empty() {
            return self.close_half(id, connection);
        }
        self.enqueue_data(now, id, &end, Bytes::new(), connection);
    }

    /// The flow broke after the bytes that were enqueued: ends this half without the flow's end. Call it only when
    /// nothing waits.
    pub fn cut(&mut self, id: StreamId, connection: &mut Connection) {
        if let Some(flow) = self.flows.get_mut(&id).filter(|flow| !flow.ended) {
            flow.ended = true;
            self.close_half(id, connection);
        }
    }

    /// Takes the available bytes of a flow.
    ///
    /// # Errors
    /// Why no more of it will follow.
    pub fn take(&mut self, id: StreamId, connection: &mut Connection) -> Result<Taken, FlowFault> {
        let Some(flow) = self.flows.get_mut(&id).filter(|flow| flow.incoming.awaits.is_none())
        else {
            return Ok(Taken::default());
        };
        let taken = flow.incoming.take(connection, &mut self.credit);
        if let Err(fault) = taken {
            self.judge(fault);
        }
        taken
    }

    /// Whether a stream has ended after its flow's end.
    ///
    /// # Errors
    /// Why it did not end in order.
    pub fn take_end(
        &mut self,
        id: StreamId,
        connection: &mut Connection,
    ) -> Result<bool, FlowFault> {
        let Some(flow) = self.flows.get_mut(&id) else { return Ok(true) };
        flow.incoming.end(connection, &mut self.credit)
    }

    /// Unit: bytes. How much of a flow waits to be sent; none: there is no such flow.
    pub fn waiting(&self, id: StreamId) -> Option<usize> {
        self.flows.get(&id).map(FlowStream::waiting)
    }

    /// Unit: bytes. How much of a flow was received and not taken.
    pub fn held(&self, id: StreamId) -> u64 {
        self.flows.get(&id).map_or(0, |flow| flow.incoming.held())
    }

    /// The flow has nothing more to send for now, so others may send. Returns whether another one waits for that.
    pub fn release_turn(&mut self, id: StreamId) -> bool {
        if let Some(flow) = self.flows.get_mut(&id) {
            self.scheduler.leave(&mut flow.schedule);
            self.wake_next();
        }
        !self.ready.is_empty()
    }

    /// Unit: bytes. How much of a stream was received in order and not delivered.
    pub fn unread(&self, id: StreamId) -> usize {
        self.flows.get(&id).map_or(0, |flow| flow.incoming.unread())
    }

    /// Removes a flow. Resets or stops each half that has not ended.
    pub fn forget(&mut self, id: StreamId, code: Code, connection: &mut Connection) {
        let Some(mut flow) = self.flows.remove(&id) else { return };
        self.scheduler.leave(&mut flow.schedule);
        self.wake_next();
        let number = VarInt::from(id).into_inner();
        self.credit.close(number);
        flow.incoming.leave(&mut self.credit);
        let code = VarInt::from_u64(code.0).unwrap_or(VarInt::MAX);
        if !flow.ended || flow.waiting() > 0 {
            let _ = connection.send_stream(id).reset(code);
        }
        if !flow.incoming.ended {
            let _ = connection.recv_stream(id).stop(code);
        }
    }

    // Events of the connection.

    /// The peer has opened streams.
    fn accept(&mut self, now: Instant, dir: Dir, connection: &mut Connection) {
        while let Some(id) = connection.streams().accept(dir) {
            if dir == Dir::Uni {
                self.uni.insert(id, PeerStream::Unknown(Vec::new()));
                self.read_uni(id, connection);
                continue;
            }
            let number = VarInt::from(id).into_inner();
            if self.leaving[0] && number >= self.next {
                // Nothing was done, so the peer may repeat the request elsewhere.
                let code = VarInt::from_u64(Code::REQUEST_REJECTED.0).unwrap_or(VarInt::MAX);
                let _ = connection.send_stream(id).reset(code);
                let _ = connection.recv_stream(id).stop(code);
                continue;
            }
            // IDs of streams of one kind are four apart.
            self.next = self.next.max(number + 4);
            let by_frames = self.by_frames;
            let flow = self.open(now, id, Awaited::Request);
            if by_frames {
                flow.incoming.awaits = None;
                self.events.push_back(CarrierEvent::Opened(id));
            } else {
                self.requests.push_back((now + PATIENCE, id));
            }
            if let Some(more) = self.places.grow(self.flows.len() as u64 + 1) {
                connection.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(more));
            }
            self.readable(now, id, connection);
        }
    }

    /// Bytes have arrived on a stream.
    fn readable(&mut self, now: Instant, id: StreamId, connection: &mut Connection) {
        if id.dir() == Dir::Uni {
            return self.read_uni(id, connection);
        }
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let incoming = &mut flow.incoming;
        while let Some(awaited) = incoming.awaits {
            let section = match incoming.headers(connection, &mut self.credit) {
                Ok(Some(section)) => section,
                Ok(None) => return,
                Err(fault) => return self.broke(id, fault),
            };
            let fields = match field::decode(&section) {
                Ok(fields) => fields,
                Err(code) => return self.broke(id, FlowFault::Wrong(code)),
            };
            match awaited {
                Awaited::Request => {
                    incoming.awaits = None;
                    self.asked(now, id, &fields, connection);
                    break;
                }
                Awaited::Answer => match Response::decode(&fields, incoming.payload()) {
                    // A provisional response: another one follows.
                    Ok(None) => {}
                    Ok(Some(Response::Granted)) => {
                        incoming.awaits = None;
                        self.events.push_back(CarrierEvent::Granted(id));
                    }
                    Ok(Some(Response::Denied { cause, .. })) => {
                        return self.broke(id, FlowFault::Denied(cause));
                    }
                    Err(_malformed) => {
                        return self.broke(id, FlowFault::Wrong(Code::MESSAGE_ERROR));
                    }
                },
            }
        }
        if let Some(flow) = self.flows.get_mut(&id).filter(|flow| !flow.incoming.ended) {
            if !self.by_frames && flow.incoming.untaken.replace(now).is_none() {
                self.draws.push_back((now + DRAW, id));
            }
            self.events.push_back(CarrierEvent::Readable(id));
        }
    }

    fn asked(&mut self, now: Instant, id: StreamId, fields: &[Field], connection: &mut Connection) {
        match Request::decode(fields) {
            Ok((request, payload)) => {
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.carry_in(payload);
                    self.events.push_back(CarrierEvent::Asked(id, Box::new(request)));
                }
            }
            Err(response) => {
                self.answer(now, id, &response, connection);
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.ended = true;
                }
            }
        }
    }

    /// A stream may have room to write.
    fn writable(&mut self, id: StreamId, connection: &mut Connection) {
        for own in [&mut self.control, &mut self.grants].into_iter().flatten() {
            if own.id == id {
                self.written += own.flush(connection);
                return;
            }
        }
        // QUIC reports room first to the stream that began to wait last. Urgent flows may use it before that stream.
        for urgent in self.urgent.drain(..).rev() {
            self.ready.push_front(urgent);
        }
        self.ready.push_back(id);
    }

    /// The peer has acknowledged all of a stream.
    fn finished(&mut self, id: StreamId) {
        if self.flows.contains_key(&id) {
            self.events.push_back(CarrierEvent::Delivered(id));
        }
    }

    /// The peer has stopped a stream.
    fn stopped(&mut self, id: StreamId, code: VarInt) {
        if self.flows.contains_key(&id) {
            self.events.push_back(CarrierEvent::Stopped(id, Code(code.into_inner())));
        }
    }

    /// When to call [`Session::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let draw = self.draws.front().map(|(at, _)| *at);
        let request = self.requests.front().map(|(at, _)| *at);
        let shaped = self.shaped.map(|(at, _)| at);
        [draw, request, shaped, self.silent_until].into_iter().flatten().min()
    }

    pub fn handle_timeout(&mut self, now: Instant, connection: &mut Connection) {
        if let Some((_, id)) = self.shaped.take_if(|(at, _)| *at <= now) {
            self.ready.push_back(id);
        }
        if self.silent_until.take_if(|at| *at <= now).is_some() {
            // RFC 9114 §6.2: each end must let the other open the streams that HTTP needs.
            self.fault.get_or_insert(Code::GENERAL_PROTOCOL_ERROR);
        }
        while let Some(&(_, id)) = self.requests.front().filter(|(at, _)| *at <= now) {
            self.requests.pop_front();
            let incoming = self.flows.get(&id).map(|flow| &flow.incoming);
            if incoming.is_some_and(|it| it.awaits == Some(Awaited::Request)) {
                self.events.push_back(CarrierEvent::Broken(
                    id,
                    FlowFault::Wrong(Code::REQUEST_INCOMPLETE),
                ));
                self.forget(id, Code::REQUEST_INCOMPLETE, connection);
            }
        }
        while let Some(&(_, id)) = self.draws.front().filter(|(at, _)| *at <= now) {
            self.draws.pop_front();
            let Some(flow) = self.flows.get_mut(&id) else { continue };
            // If it was read since then, skip it: new data starts the timer again.
            if flow.incoming.untaken.take().is_some()
                && let Err(fault) = flow.incoming.draw(connection, &mut self.credit)
            {
                self.broke(id, fault);
            }
        }
    }

    /// Lets all flows write that may, at the rate at which datagrams leave, and sends grants.
    pub fn pump(&mut self, now: Instant, rate: Option<Rate>, connection: &mut Connection) {
        while let Some(id) = self.ready.pop_front() {
            self.flush(now, rate, id, connection);
            self.wake_next();
        }
        self.grant(connection);
    }

    /// Lets one flow write what it may now.
    fn flush(
        &mut self,
        now: Instant,
        rate: Option<Rate>,
        id: StreamId,
        connection: &mut Connection,
    ) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.waiting() == 0 {
            return;
        }
        while flow.waiting() > 0 {
            let sent = flow.sent();
            let (schedule, mut half) = flow.half(id, connection, &mut self.credit, self.pool);
            let attempt = self.scheduler.write((now, rate), schedule, &id, &mut half);
            self.written += flow.sent() - sent;
            match attempt {
                Ok(Attempt::Written) => {}
                Ok(Attempt::Shaped(wait)) => {
                    self.shaped = Some((now + wait, id));
                    return;
                }
                Ok(Attempt::Blocked) => {
                    if flow.schedule.is_urgent() && !self.urgent.contains(&id) {
                        self.urgent.push_back(id);
                    }
                    return;
                }
                Ok(Attempt::Queued) => return,
                Err(fault) => {
                    self.scheduler.leave(&mut flow.schedule);
                    // When the peer has stopped the stream, its own event reports that.
                    if !(self.by_frames && matches!(fault, FlowFault::Reset(_))) {
                        self.broke(id, fault);
                    }
                    return;
                }
            }
        }
        flow.schedule.finish(now);
        if flow.ended {
            self.close_half(id, connection);
        } else {
            self.events.push_back(CarrierEvent::Writable(id));
        }
    }

    /// Ends this end's half of a stream.
    fn close_half(&mut self, id: StreamId, connection: &mut Connection) {
        self.release_turn(id);
        // If the peer has stopped it before, an event reports that.
        let _ = connection.send_stream(id).finish();
    }

    fn open(&mut self, now: Instant, id: StreamId, awaited: Awaited) -> &mut FlowStream {
        self.credit.open(VarInt::from(id).into_inner());
        let incoming = Incoming::new(id, awaited, self.held_max, &self.credit);
        self.flows.entry(id).or_insert_with(|| FlowStream::new(now, incoming))
    }

    /// Enqueues header fields. Call it only when nothing waits.
    pub fn enqueue_fields(
        &mut self,
        now: Instant,
        id: StreamId,
        fields: &[Field],
        connection: &mut Connection,
    ) {
        let mut out = Vec::new();
        frame::write(frame::HEADERS, &field::encode(fields), &mut out);
        self.enqueue_frame(now, id, out, Bytes::new(), connection);
    }

    /// Enqueues payload: `head`, which is short, and `bytes` behind it. Call it only when nothing waits.
    pub fn enqueue_data(
        &mut self,
        now: Instant,
        id: StreamId,
        head: &[u8],
        bytes: Bytes,
        connection: &mut Connection,
    ) {
        let mut out = Vec::with_capacity(9 + head.len());
        frame::write_head(frame::DATA, head.len() + bytes.len(), &mut out);
        out.extend_from_slice(head);
        self.enqueue_frame(now, id, out, bytes, connection);
    }

    fn enqueue_frame(
        &mut self,
        now: Instant,
        id: StreamId,
        head: Vec<u8>,
        payload: Bytes,
        connection: &mut Connection,
    ) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        debug_assert_eq!(flow.waiting(), 0, "something waits");
        if self.scheduler.begin(now, &mut flow.schedule) {
            let (_, mut half) = flow.half(id, connection, &mut self.credit, self.pool);
            midhop_pep::scheduler::SendPool::set_urgent(&mut half, true);
        }
        flow.waiting = [Bytes::from(head), payload];
        self.ready.push_back(id);
        self.wake_next();
    }

    /// Lets the flows write whose turn it is now.
    fn wake_next(&mut self) {
        while let Some(next) = self.scheduler.poll_woken() {
            self.ready.push_back(next);
        }
    }

    fn broke(&mut self, id: StreamId, fault: FlowFault) {
        self.judge(fault);
        self.events.push_back(CarrierEvent::Broken(id, fault));
    }

    /// Records a fault that concerns the connection as a whole, as most do: the connection is then closed.
    fn judge(&mut self, fault: FlowFault) {
        const OF_ONE_STREAM: [Code; 4] = [
            Code::MESSAGE_ERROR,
            Code::REQUEST_INCOMPLETE,
            Code::EXCESSIVE_LOAD,
            Code::INTERNAL_ERROR,
        ];
        if let FlowFault::Wrong(code) = fault
            && !OF_ONE_STREAM.contains(&code)
        {
            self.fault.get_or_insert(code);
        }
    }
}
