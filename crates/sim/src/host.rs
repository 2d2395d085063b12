//! Hosts: TCP endpoints at nodes, and the flows that connect them.
//!
//! TCP ([`midhop_tcp`]) decides the meaning of a segment. A host gives each endpoint its segments and
//! its time, puts what it sends into packets, and stands between it and its application: it offers
//! the data to write as there is room, and reads all received data at once, as the testbed's meter does.
//!
//! Invariant: after [`Hosts::attend`] an endpoint has nothing left to send at this time, its
//! application has received all events, and its timer is set.

use crate::app::AppId;
use crate::control::Control;
use crate::dialogue::Dialogue;
use crate::engine::{Engine, Timer};
use crate::metrics::Thresholds;
use crate::network::Network;
use crate::packet::{Body, End, FlowId, IP_HEADER, NodeId, Packet, Xcp};
use crate::stack;
use crate::watch::Glance;
use midhop_congestion::{Law, build};
use midhop_experiment::limit::Family;
use midhop_experiment::random::Random;
use midhop_experiment::record::PhaseTimes;
use midhop_experiment::tcp::TcpPlan;
use midhop_tcp::{Cause, Endpoint, Event, Flags, Segment, Settings, State, refusal};
use midhop_units::{Instant, Seed};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// How many windows of data the kernel's send buffer holds: its size is for two windows of segments,
/// each counted at more than twice its payload (net/ipv4/tcp_input.c, tcp_sndbuf_expand).
const WINDOWS_BUFFERED: u64 = 6;
/// The first port of an opener, as in the testbed's namespaces.
const PORT_FIRST: u16 = 10_000;
/// The number of its ports.
const PORTS: u32 = 55_000;

/// How to open a connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Connect {
    /// The opener's node and the listener's.
    pub nodes: [NodeId; 2],
    /// The listener's port.
    pub port: u16,
    /// The version of IP.
    pub family: Family,
    /// Congestion control at both ends.
    pub congestion: Arc<Control>,
}

/// The events of one end of a connection for its application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketEvent {
    /// The handshake is over.
    Connected,
    /// Total number of bytes read.
    Read(u64),
    /// The peer has closed its direction.
    PeerClosed,
    /// Both directions have ended in order.
    Closed,
    /// The connection was cut short, and why.
    Failed(&'static str),
}

/// Data that an application still has to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// So many bytes.
    Bytes(u64),
    /// Unlimited data.
    Endless,
}

/// One end of a connection.
struct Socket {
    endpoint: Endpoint,
    flow: FlowId,
    end: End,
    timer: Timer,
    /// Whether it is in the list of sockets to process.
    listed: bool,
    waiting: Waiting,
    closing: bool,
    /// Total given to the endpoint.
    written: u64,
    /// Payload written since [`Hosts::write_on`].
    written_on: u64,
    read: u64,
    /// Collects the feedback of XCP's routers on the other end's segments.
    xcp: Dialogue,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.flow, self.end, self.endpoint.state())
    }
}

/// A flow.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The opener's node and the listener's.
    pub nodes: [NodeId; 2],
    /// The opener's port and the listener's.
    pub ports: [u16; 2],
    /// The version of IP.
    pub family: Family,
    /// `None` for datagrams.
    congestion: Option<Arc<Control>>,
    sockets: [Option<u32>; 2],
    app: AppId,
    tag: u32,
}

/// All endpoints and flows.
#[derive(Debug)]
pub(crate) struct Hosts {
    sockets: Vec<Option<Socket>>,
    free: Vec<u32>,
    flows: Vec<Flow>,
    /// Sockets on which an application has acted.
    listed: VecDeque<u32>,
    events: VecDeque<(FlowId, End, SocketEvent)>,
    timers: Vec<Option<u32>>,
    random: Random,
    /// The TCP of each node, by its number; Linux' where none is given.
    stacks: Vec<TcpPlan>,
    /// Settings of endpoints, by node, version of IP and pacing: all of a kind share them.
    settings: BTreeMap<(NodeId, usize, bool), Arc<Settings>>,
    /// The metrics of hosts that remember any.
    thresholds: Thresholds,
}

impl Hosts {
    /// No connections yet; the TCP of each node, by its number.
    pub fn new(seed: Seed, stacks: Vec<TcpPlan>) -> Self {
        Self {
            sockets: Vec::new(),
            free: Vec::new(),
            flows: Vec::new(),
            listed: VecDeque::new(),
            events: VecDeque::new(),
            timers: Vec::new(),
            random: Random::new(seed, "initial-sequence-numbers"),
            stacks,
            settings: BTreeMap::new(),
            thresholds: Thresholds::default(),
        }
    }

    // Calls of applications.

    /// Opens a connection.
    pub fn connect(
        &mut self,
        engine: &mut Engine,
        app: AppId,
        connect: &Connect,
        tag: u32,
    ) -> FlowId {
        let flow = self.number(Flow {
            nodes: connect.nodes,
            ports: [0, connect.port],
            family: connect.family,
            congestion: Some(connect.congestion.clone()),
            sockets: [None; 2],
            app,
            tag,
        });
        let socket = self.open(engine, flow, End::Opener);
        self.list(socket);
        flow
    }

    /// A number for a flow of datagrams.
    pub fn datagram_flow(
        &mut self,
        app: AppId,
        nodes: [NodeId; 2],
        port: u16,
        family: Family,
    ) -> FlowId {
        self.number(Flow {
            nodes,
            ports: [0, port],
            family,
            congestion: None,
            sockets: [None; 2],
            app,
            tag: 0,
        })
    }

    /// A number for a tunnel between two proxies, which belongs to no application.
    pub fn tunnel_flow(&mut self, nodes: [NodeId; 2], port: u16, family: Family) -> FlowId {
        self.datagram_flow(AppId::NOBODY, nodes, port, family)
    }

    /// Writes so many bytes, as soon as there is room for them.
    pub fn write(&mut self, flow: FlowId, end: End, bytes: u64) {
        if let Some((socket, at)) = self.socket_of(flow, end) {
            socket.waiting = match socket.waiting {
                Waiting::Bytes(waiting) => Waiting::Bytes(waiting + bytes),
                Waiting::Endless => Waiting::Endless,
            };
            self.list(at);
        }
    }

    /// Writes without end, behind the data written so far.
    pub fn write_on(&mut self, flow: FlowId, end: End) {
        if let Some((socket, at)) = self.socket_of(flow, end) {
            if let Waiting::Bytes(waiting) = socket.waiting {
                let taken = socket.endpoint.write(waiting);
                socket.written += taken;
            }
            socket.waiting = Waiting::Endless;
            socket.written_on = 0;
            self.list(at);
        }
    }

    /// Ends what [`Hosts::write_on`] began; returns how many bytes were written.
    pub fn write_no_more(&mut self, flow: FlowId, end: End) -> u64 {
        self.socket_of(flow, end).map_or(0, |(socket, _)| {
            socket.waiting = Waiting::Bytes(0);
            socket.written_on
        })
    }

    /// Closes, once all is written.
    pub fn close(&mut self, flow: FlowId, end: End) {
        if let Some((socket, at)) = self.socket_of(flow, end) {
            socket.closing = true;
            self.list(at);
        }
    }

    /// The tag that the application gave the flow when it opened it.
    pub fn tag(&self, flow: FlowId) -> u32 {
        self.flows[flow.index()].tag
    }

    /// The application of a flow.
    pub fn app(&self, flow: FlowId) -> AppId {
        self.flows[flow.index()].app
    }

    /// The ports of opener and listener.
    pub fn ports(&self, flow: FlowId) -> [u16; 2] {
        self.flows[flow.index()].ports
    }

    /// The state of one end of a connection; `None` once it is gone.
    pub fn glance(&self, flow: FlowId, end: End) -> Option<Glance> {
        let at = self.flows[flow.index()].sockets[end.index()]?;
        Some(self.sockets[at as usize].as_ref()?.glance())
    }

    /// How long one end of a connection was in each phase by `now`; `None` once it is gone.
    pub fn phases(&self, now: Instant, flow: FlowId, end: End) -> Option<PhaseTimes> {
        let at = self.flows[flow.index()].sockets[end.index()]?;
        Some(stack::phases(&self.sockets[at as usize].as_ref()?.endpoint, now))
    }

    // Events of the network and the clock.

    /// A packet has arrived at its destination. Returns the flow and number of a datagram, which
    /// is for its application.
    pub fn receive(
        &mut self,
        engine: &mut Engine,
        network: &mut Network,
        node: NodeId,
        packet: &Packet,
    ) -> Option<(FlowId, u64)> {
        let segment = match &packet.body {
            Body::Datagram(number) => return Some((packet.flow, *number)),
            Body::Segment(segment) => segment,
            // For an agent that is not here.
            Body::Report(_) | Body::Tunnel(_) => return None,
        };
        let flow = &self.flows[packet.flow.index()];
        let opens = segment.flags.contains(Flags::SYN) && !segment.flags.contains(Flags::ACK);
        let at = match flow.sockets[packet.towards.index()] {
            Some(at) => at,
            None if opens && packet.towards == End::Listener => {
                self.open(engine, packet.flow, End::Listener)
            }
            None => {
                if let Some(segment) = refusal(segment) {
                    let reply = self.packet(packet.flow, packet.towards, segment);
                    network.send(engine, node, reply);
                }
                return None;
            }
        };
        let now = engine.now();
        if let Some(socket) = &mut self.sockets[at as usize] {
            socket.xcp.receive(&mut socket.endpoint, &packet.xcp);
            let flow = &self.flows[packet.flow.index()];
            if flow.congestion.as_ref().is_some_and(|control| control.queue_feedback)
                && let Some(report) = network.first_queue(now, node, packet.source)
            {
                socket.endpoint.congestion_control().on_queue(&report);
            }
            socket.endpoint.handle_segment(now, segment);
        }
        self.attend(engine, network, at);
        None
    }

    /// The timer of a socket has fired.
    pub fn wake(&mut self, engine: &mut Engine, network: &mut Network, timer: Timer) {
        let Some(at) = self.timers.get(timer.index()).copied().flatten() else { return };
        let now = engine.now();
        if let Some(socket) = &mut self.sockets[at as usize] {
            socket.endpoint.handle_timeout(now);
        }
        self.attend(engine, network, at);
    }

    /// Processes the next socket on which an application has acted; returns whether there was one.
    pub fn attend_next(&mut self, engine: &mut Engine, network: &mut Network) -> bool {
        let Some(at) = self.listed.pop_front() else { return false };
        if let Some(socket) = &mut self.sockets[at as usize] {
            socket.listed = false;
            self.attend(engine, network, at);
        }
        true
    }

    /// The next event to report to an application.
    pub fn poll_event(&mut self) -> Option<(FlowId, End, SocketEvent)> {
        self.events.pop_front()
    }

    fn attend(&mut self, engine: &mut Engine, network: &mut Network, at: u32) {
        let now = engine.now();
        let Some(socket) = &mut self.sockets[at as usize] else { return };
        let (flow, end) = (socket.flow, socket.end);
        let nodes = self.flows[flow.index()].nodes;
        let from = nodes[end.index()];
        loop {
            let Some(socket) = &mut self.sockets[at as usize] else { return };
            socket.feed();
            while let Some(segment) = socket.endpoint.poll_transmit(now) {
                let xcp = socket.xcp.ask(&socket.endpoint, &segment);
                let packet = packet_of(&self.flows[flow.index()], flow, end, segment, xcp);
                network.send(engine, from, packet);
            }
            let mut again = false;
            while let Some(event) = socket.endpoint.poll_event() {
                let report = match event {
                    Event::Connected => SocketEvent::Connected,
                    Event::Readable => {
                        socket.read += socket.endpoint.read(now, u64::MAX);
                        SocketEvent::Read(socket.read)
                    }
                    Event::Writable => {
                        again = true;
                        continue;
                    }
                    Event::PeerClosed => SocketEvent::PeerClosed,
                    Event::Closed => {
                        if self.stacks[from.index()].threshold_cache {
                            let way = [from, nodes[end.other().index()]];
                            self.thresholds.note(way, &socket.endpoint);
                        }
                        SocketEvent::Closed
                    }
                    Event::Reset(cause) => SocketEvent::Failed(reason(cause)),
                };
                // Reading may have opened the window; the application's response is written later.
                again |= matches!(report, SocketEvent::Read(_)) && !socket.has_nothing_to_send(now);
                self.events.push_back((flow, end, report));
            }
            if !again {
                break;
            }
        }
        let Some(socket) = &mut self.sockets[at as usize] else { return };
        network.look(now, flow, end, || socket.glance());
        if socket.endpoint.state() == State::Closed {
            let timer = socket.timer;
            self.sockets[at as usize] = None;
            self.flows[flow.index()].sockets[end.index()] = None;
            self.timers[timer.index()] = None;
            engine.release(timer);
            self.free.push(at);
        } else {
            engine.set(socket.timer, socket.endpoint.poll_timeout().unwrap_or(Instant::NEVER));
        }
    }

    /// For tests: checks what must hold after every event.
    ///
    /// # Panics
    /// When an endpoint's counts do not add up.
    pub fn check_invariants(&self) {
        for socket in self.sockets.iter().flatten() {
            if let Err(broken) = socket.endpoint.check_invariants() {
                panic!("{socket:?}: {broken}");
            }
        }
    }

    fn number(&mut self, flow: Flow) -> FlowId {
        let number = self.flows.len() as u32;
        let port = PORT_FIRST + (number % PORTS) as u16;
        self.flows.push(Flow { ports: [port, flow.ports[1]], ..flow });
        FlowId(number)
    }

    fn open(&mut self, engine: &mut Engine, id: FlowId, end: End) -> u32 {
        let flow = &self.flows[id.index()];
        let control = flow.congestion.as_ref().expect("a datagram opens nothing");
        let node = flow.nodes[end.index()];
        let (stack, pacing) = (&self.stacks[node.index()], control.paces());
        let kind = self.settings.entry((node, version(flow.family), pacing));
        let settings = kind
            .or_insert_with(|| Settings { pacing, ..stack::settings(stack, flow.family) }.into())
            .clone();
        let initial = self.random.word();
        let mut controls = midhop_congestion::Settings {
            mss: settings.segment_payload(),
            // Probing flows must not all probe at the same time.
            seed: Seed(initial.into()).derive("congestion"),
            ..control.settings(end).clone()
        };
        if stack.threshold_cache {
            controls.threshold = self.thresholds.of([node, flow.nodes[end.other().index()]]);
        }
        if let Law::KnownRate(known) = &mut controls.law {
            known.overhead = stack::overhead(&settings, flow.family);
        }
        let control =
            build(&controls).expect("the plan was refused where an algorithm cannot be built");
        let endpoint = match end {
            End::Opener => Endpoint::connect(settings, control, initial),
            End::Listener => Endpoint::listen(settings, control, initial),
        };
        let timer = engine.timer();
        let socket = Socket {
            endpoint,
            flow: id,
            end,
            timer,
            listed: false,
            waiting: Waiting::Bytes(0),
            closing: false,
            written: 0,
            written_on: 0,
            read: 0,
            xcp: Dialogue::default(),
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.sockets.push(None);
            self.sockets.len() as u32 - 1
        });
        self.sockets[at as usize] = Some(socket);
        if self.timers.len() <= timer.index() {
            self.timers.resize(timer.index() + 1, None);
        }
        self.timers[timer.index()] = Some(at);
        self.flows[id.index()].sockets[end.index()] = Some(at);
        at
    }

    fn socket_of(&mut self, flow: FlowId, end: End) -> Option<(&mut Socket, u32)> {
        let at = self.flows[flow.index()].sockets[end.index()]?;
        Some((self.sockets[at as usize].as_mut()?, at))
    }

    fn list(&mut self, at: u32) {
        if let Some(socket) = &mut self.sockets[at as usize]
            && !socket.listed
        {
            socket.listed = true;
            self.listed.push_back(at);
        }
    }

    /// A segment that `end` of a flow sends, in its packet.
    fn packet(&self, flow: FlowId, end: End, segment: Segment) -> Packet {
        packet_of(&self.flows[flow.index()], flow, end, segment, Xcp::default())
    }
}

impl Socket {
    /// Its state as a sender.
    fn glance(&self) -> Glance {
        Glance::of(&self.endpoint)
    }

    /// Whether neither the application nor the endpoint has anything to send now.
    fn has_nothing_to_send(&self, now: Instant) -> bool {
        self.waiting == Waiting::Bytes(0) && self.endpoint.has_nothing_to_send(now)
    }

    /// Offers the waiting data to the endpoint.
    fn feed(&mut self) {
        match self.waiting {
            Waiting::Bytes(0) => {}
            Waiting::Bytes(waiting) => {
                let taken = self.endpoint.write(waiting);
                self.written += taken;
                self.waiting = Waiting::Bytes(waiting - taken);
            }
            Waiting::Endless => {
                let taken = self.endpoint.write(send_room(&self.endpoint, self.written));
                self.written += taken;
                self.written_on += taken;
            }
        }
        if self.closing && self.waiting == Waiting::Bytes(0) {
            self.closing = false;
            self.endpoint.close();
        }
    }
}

/// How much more a self-sizing kernel send buffer takes after `written` bytes.
pub(crate) fn send_room(endpoint: &Endpoint, written: u64) -> u64 {
    let held = written - endpoint.acknowledged();
    (endpoint.window().get() * WINDOWS_BUFFERED).saturating_sub(held)
}

fn packet_of(of: &Flow, flow: FlowId, end: End, segment: Segment, xcp: Xcp) -> Packet {
    let towards = end.other();
    Packet {
        flow,
        towards,
        source: of.nodes[end.index()],
        destination: of.nodes[towards.index()],
        maker: of.nodes[end.index()],
        ports: [of.ports[end.index()], of.ports[towards.index()]],
        family: of.family,
        size: IP_HEADER[version(of.family)] + segment.size(),
        xcp,
        body: Body::Segment(segment),
    }
}

fn version(family: Family) -> usize {
    usize::from(family == Family::Ipv6)
}

fn reason(cause: Cause) -> &'static str {
    match cause {
        Cause::Refused => "connection refused",
        Cause::Peer => "connection reset by the other end",
        Cause::TimedOut => "the other end did not answer",
        Cause::Aborted => "aborted",
    }
}
