//! What an endpoint with many connections guarantees, in virtual time: each connection gets its own datagrams, whoever
//! else connects, wherever its peer moves, and however late the peer is identified.

use crate::flows::{address, class, noise, peer, request};
use bytes::{Bytes, BytesMut};
use midhop_congestion::Settings;
use midhop_pep::config::{PeerPlan, Repair};
use midhop_tunnel::http3::{Code, Field, Frame};
use midhop_tunnel::peer;
use midhop_tunnel::quic::plaintext::Plaintext;
use midhop_tunnel::quic::{
    CarrierEvent, ConnectionError, ConnectionHandle, DatagramBatch, Endpoint, EndpointEvent,
    FlowFault, Incoming, Label, Opening, StreamId,
};
use midhop_units::{Duration, Instant};
use quinn_proto::{ClientConfig, EndpointConfig, ServerConfig};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const DELAY: Duration = Duration::from_ms(20);
const SERVER: u16 = 443;

/// Endpoints, each at a port of one host, and the datagrams in transit between them.
struct Net {
    now: Instant,
    epoch: std::time::Instant,
    peer: PeerPlan,
    opening: Opening,
    ends: BTreeMap<u16, Endpoint>,
    /// Datagrams in transit: when each arrives, from where, and where to.
    way: VecDeque<(Instant, u16, u16, Bytes)>,
    sent: u64,
    batch: DatagramBatch,
    lost_each: u64,
    incoming: Vec<Incoming>,
    events: BTreeMap<u16, VecDeque<(ConnectionHandle, CarrierEvent)>>,
}

impl Net {
    fn new(more: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "there is no other way to have an instant")]
        let epoch = std::time::Instant::now();
        let peer = peer(&format!("rate = \"50 Mbit/s\"\nrtt = \"40 ms\"\n{more}"));
        let opening =
            Opening { initial: peer.flow_window.get(), wants_backlog: true, by_frames: false };
        let (way, incoming, events, ends) = Default::default();
        let (now, sent, lost_each) = (Instant::START, 0, 0);
        let batch = DatagramBatch::new(8);
        let mut net =
            Self { now, epoch, peer, opening, ends, way, sent, batch, lost_each, incoming, events };
        let server = ServerConfig::with_crypto(Arc::new(Plaintext));
        net.open(SERVER, Some(server));
        net
    }

    fn open(&mut self, port: u16, server: Option<ServerConfig>) {
        let mut own = EndpointConfig::default();
        own.grease_quic_bit(false);
        let mut seed = [7; 32];
        seed[..2].copy_from_slice(&port.to_be_bytes());
        let server = server.map(Arc::new);
        let endpoint = Endpoint::new(Arc::new(own), server, self.epoch, Some(seed));
        self.ends.insert(port, endpoint);
    }

    fn transport(
        &self,
        steered: &PeerPlan,
    ) -> (quinn_proto::TransportConfig, midhop_tunnel::control::Pace) {
        let repaired = self.peer.repair != Repair::Off;
        let settings: Settings = peer::congestion(steered);
        let (config, steering) =
            peer::transport(steered, false, repaired, settings).expect("QUIC's");
        (config, steering.pace())
    }

    /// Begins a connection from a port to the server.
    fn connect(&mut self, port: u16) -> ConnectionHandle {
        if !self.ends.contains_key(&port) {
            self.open(port, None);
        }
        let (transport, pace) = self.transport(&self.peer);
        let mut config = ClientConfig::new(Arc::new(Plaintext));
        config.transport_config(Arc::new(transport));
        let (now, peer, opening) = (self.now, self.peer.clone(), self.opening);
        let end = self.ends.get_mut(&port).expect("an end");
        end.connect(now, &peer, address(SERVER), (config, pace), opening).expect("a connection")
    }

    /// Accepts the first incoming connection.
    fn accept(&mut self) -> ConnectionHandle {
        let incoming = self.incoming.remove(0);
        let (transport, pace) = self.transport(&self.peer);
        let mut config = ServerConfig::with_crypto(Arc::new(Plaintext));
        config.transport_config(Arc::new(transport));
        let may_repair = self.peer.repair != Repair::Off;
        let (now, config) = (self.now, (Arc::new(config), pace));
        self.server().accept(now, incoming, config, may_repair).expect("a connection")
    }

    fn begin(&mut self, handle: ConnectionHandle) {
        let (now, peer, opening) = (self.now, self.peer.clone(), self.opening);
        self.server().carrier_mut(handle).expect("a connection").begin(now, &peer, opening);
    }

    /// A connection from a port, identified at both ends: its handles there and at the server.
    fn pair(&mut self, port: u16) -> [ConnectionHandle; 2] {
        let near = self.connect(port);
        self.run_for(DELAY + Duration::from_ms(1));
        let far = self.accept();
        self.run_for(DELAY * 4);
        self.expect(SERVER, far, |event| *event == CarrierEvent::Connected);
        self.begin(far);
        self.run_for(DELAY * 4);
        self.expect(port, near, |event| *event == CarrierEvent::Settled);
        [near, far]
    }

    fn server(&mut self) -> &mut Endpoint {
        self.ends.get_mut(&SERVER).expect("the server")
    }

    fn carrier(
        &mut self,
        port: u16,
        handle: ConnectionHandle,
    ) -> &mut midhop_tunnel::quic::Carrier {
        let end = self.ends.get_mut(&port).expect("an end");
        end.carrier_mut(handle).expect("a connection")
    }

    /// Removes an end's first event for which `is` holds.
    fn expect(
        &mut self,
        port: u16,
        handle: ConnectionHandle,
        is: impl Fn(&CarrierEvent) -> bool,
    ) -> CarrierEvent {
        let events = self.events.entry(port).or_default();
        let at = events.iter().position(|(of, event)| *of == handle && is(event));
        events.remove(at.unwrap_or_else(|| panic!("not among {events:?}"))).expect("it is there").1
    }

    fn has(&self, port: u16, is: impl Fn(&CarrierEvent) -> bool) -> bool {
        self.events.get(&port).is_some_and(|events| events.iter().any(|(_, event)| is(event)))
    }

    fn run_for(&mut self, span: Duration) {
        let until = self.now + span;
        loop {
            self.step();
            let arrival = self.way.front().map(|(at, ..)| *at);
            let timers: Vec<_> =
                self.ends.values_mut().filter_map(Endpoint::poll_timeout).collect();
            let next = arrival.into_iter().chain(timers).min().unwrap_or(Instant::NEVER);
            if next > until {
                break;
            }
            self.now = next.max(self.now + Duration::from_us(1));
        }
        self.now = until;
    }

    fn step(&mut self) {
        let now = self.now;
        while self.way.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, from, to, datagram) = self.way.pop_front().expect("one");
            if let Some(end) = self.ends.get_mut(&to) {
                let (size, label) = (datagram.len(), Label::of(address(from)));
                end.handle_datagrams(now, BytesMut::from(datagram), size, label);
            }
        }
        for (port, end) in &mut self.ends {
            end.handle_timeout(now);
            while end.poll_batch(now, &mut self.batch) {
                let to = self.batch.label().expect("a batch").peer.port();
                for datagram in self.batch.datagrams() {
                    self.sent += 1;
                    if self.lost_each == 0 || !self.sent.is_multiple_of(self.lost_each) {
                        let datagram = Bytes::copy_from_slice(datagram);
                        self.way.push_back((now + DELAY, *port, to, datagram));
                    }
                }
                self.batch.clear();
            }
            while let Some(event) = end.poll_event() {
                match event {
                    EndpointEvent::Incoming(incoming) => self.incoming.push(*incoming),
                    EndpointEvent::Carrier(handle, event) => {
                        self.events.entry(*port).or_default().push_back((handle, event));
                    }
                    EndpointEvent::Drained(..) => {}
                }
            }
        }
    }

    /// A flow that was requested and granted.
    fn flow(&mut self, port: u16, [near, far]: [ConnectionHandle; 2]) -> StreamId {
        let now = self.now;
        let id = self.carrier(port, near).ask(now, &request(), &class()).expect("a flow");
        self.run_for(DELAY * 2);
        self.expect(SERVER, far, |event| matches!(event, CarrierEvent::Asked(it, _) if *it == id));
        let now = self.now;
        self.carrier(SERVER, far).grant(now, id, &class());
        self.run_for(DELAY * 2);
        self.expect(port, near, |event| *event == CarrierEvent::Granted(id));
        id
    }
}

/// What each peer sends on a flow of its own, and what has arrived of it.
struct Transfer {
    port: u16,
    handles: [ConnectionHandle; 2],
    id: StreamId,
    left: Bytes,
    come: Vec<u8>,
    ended: bool,
}

/// Transfers the bytes of all peers to the server at the same time. `between` is called after each step.
fn carry(
    net: &mut Net,
    transfers: &mut [Transfer],
    mut between: impl FnMut(&mut Net, &mut [Transfer], u32),
) {
    for round in 0.. {
        assert!(round < 20_000, "they take for ever");
        for it in &mut *transfers {
            let (now, [near, far]) = (net.now, it.handles);
            let carrier = net.carrier(it.port, near);
            while carrier.waiting(it.id) == Some(0) && !it.left.is_empty() {
                carrier.enqueue(now, it.id, it.left.split_to(it.left.len().min(8_000)));
                if it.left.is_empty() && carrier.waiting(it.id) == Some(0) {
                    carrier.finish(now, it.id);
                }
            }
            if it.left.is_empty() && carrier.waiting(it.id) == Some(0) {
                carrier.finish(now, it.id);
            }
            let taken = net.carrier(SERVER, far).take(it.id).expect("a sound flow");
            it.come.extend(taken.pieces.concat());
            it.ended |= taken.ended;
        }
        if transfers.iter().all(|it| it.ended) {
            return;
        }
        net.run_for(Duration::from_ms(2));
        between(net, transfers, round);
    }
}

fn transfer(net: &mut Net, port: u16, len: usize) -> Transfer {
    let handles = net.pair(port);
    let id = net.flow(port, handles);
    let left = Bytes::from(noise(port.into(), len));
    Transfer { port, handles, id, left, come: Vec::new(), ended: false }
}

#[test]
fn each_of_many_connections_has_its_own() {
    for repair in ["off", "auto"] {
        let mut net = Net::new(&format!("repair = \"{repair}\"\n"));
        let mut all: Vec<_> = (1000..1030).map(|port| transfer(&mut net, port, 60_000)).collect();
        net.lost_each = 29;
        carry(&mut net, &mut all, |_, _, _| {});
        for it in &all {
            assert!(it.come == noise(it.port.into(), 60_000), "{} with {repair}", it.port);
        }
        assert_eq!(net.server().connections(), 30);
    }
}

#[test]
fn what_a_peer_sends_from_elsewhere_is_still_its_own() {
    for repair in ["off", "auto"] {
        let mut net = Net::new(&format!("repair = \"{repair}\"\n"));
        let mut all = vec![transfer(&mut net, 1000, 700_000), transfer(&mut net, 1001, 100_000)];
        net.lost_each = 37;
        carry(&mut net, &mut all, |net, all, round| {
            // As behind a router whose address translation changes.
            if [10, 60].contains(&round) {
                let before = all[0].port;
                let end = net.ends.remove(&before).expect("an end");
                all[0].port = before + 1000;
                net.ends.insert(all[0].port, end);
                net.way.iter_mut().filter(|it| it.2 == before).for_each(|it| it.2 += 1000);
            }
        });
        assert!(all[0].come == noise(1000, 700_000), "with {repair}");
        assert!(all[1].come == noise(1001, 100_000), "the other's, with {repair}");
        let far = all[0].handles[1];
        assert_eq!(net.carrier(SERVER, far).remote_address(), address(3000));
    }
}

#[test]
fn a_stranger_at_a_peer_s_address_takes_nothing_of_it() {
    let mut net = Net::new("repair = \"auto\"\n");
    let mut all = vec![transfer(&mut net, 1000, 300_000)];
    net.lost_each = 23;
    let mut strangers = 0;
    carry(&mut net, &mut all, |net, _, round| {
        if round == 5 {
            // A client with the same address begins a connection, and is never identified.
            net.connect(1000);
        }
        if !net.incoming.is_empty() {
            net.accept();
            strangers += 1;
        }
    });
    assert!(all[0].come == noise(1000, 300_000));
    assert_eq!(
        (strangers, net.server().connections()),
        (1, 2),
        "it came while there was something to take"
    );
}

#[test]
fn whoever_is_refused_learns_it_and_whoever_is_not_answered_gives_up() {
    let mut net = Net::new("");
    let near = net.connect(1000);
    net.run_for(DELAY * 2);
    let incoming = net.incoming.pop().expect("somebody");
    assert!(!incoming.remote_address_validated());
    net.server().refuse(incoming);
    net.run_for(DELAY * 3);
    assert!(matches!(
        net.expect(1000, near, |event| matches!(event, CarrierEvent::Lost(_))),
        CarrierEvent::Lost(ConnectionError::ConnectionClosed(_))
    ));
    // A connection that is not answered ends by itself.
    let mute = net.connect(1002);
    net.run_for(DELAY * 2);
    let incoming = net.incoming.pop().expect("somebody");
    net.server().ignore(incoming);
    net.run_for(Duration::from_s(1));
    assert!(!net.has(1002, |event| *event == CarrierEvent::Connected));
    let now = net.now;
    net.carrier(1002, mute).close(now, Code::NO_ERROR);
    net.run_for(Duration::from_s(30));
    assert_eq!(net.ends[&1002].connections(), 0, "nothing is left of it");
}

#[test]
fn what_a_peer_asks_before_it_is_known_waits_until_it_is() {
    let mut net = Net::new("request = \"classic\"\n");
    let near = net.connect(1000);
    net.run_for(DELAY + Duration::from_ms(1));
    let far = net.accept();
    net.run_for(DELAY * 4);
    let now = net.now;
    let id = net.carrier(1000, near).ask(now, &request(), &class()).expect("a flow");
    net.run_for(Duration::from_s(1));
    assert!(!net.has(SERVER, |event| matches!(event, CarrierEvent::Asked(..))));
    net.begin(far);
    net.run_for(DELAY);
    net.expect(SERVER, far, |event| matches!(event, CarrierEvent::Asked(it, _) if *it == id));
}

#[test]
fn one_that_leaves_serves_what_it_has_and_takes_nothing_more() {
    let mut net = Net::new("");
    let mut all = vec![transfer(&mut net, 1000, 200_000)];
    let [near, far] = all[0].handles;
    let now = net.now;
    net.carrier(SERVER, far).leave(now);
    // Sent before this end knew that the other one leaves.
    let late = net.carrier(1000, near).ask(now, &request(), &class()).expect("a flow");
    net.run_for(DELAY * 3);
    net.expect(1000, near, |event| *event == CarrierEvent::Leaving);
    let rejected = CarrierEvent::Stopped(late, Code::REQUEST_REJECTED);
    net.expect(1000, near, |event| *event == rejected);
    assert!(!net.has(SERVER, |event| matches!(event, CarrierEvent::Asked(..))));
    let now = net.now;
    assert!(!net.carrier(1000, near).is_open());
    assert_eq!(net.carrier(1000, near).ask(now, &request(), &class()), None);
    carry(&mut net, &mut all, |_, _, _| {});
    assert!(all[0].come == noise(1000, 200_000));
}

#[test]
fn a_backlog_is_reported_to_whoever_wants_to_know() {
    for wants in [true, false] {
        let mut net = Net::new("");
        net.opening.wants_backlog = wants;
        let [near, far] = net.pair(1000);
        let now = net.now;
        net.carrier(SERVER, far).report_backlog(now, Duration::from_s(3));
        net.run_for(DELAY * 3);
        let reported = CarrierEvent::Backlog(Duration::from_s(3));
        assert_eq!(net.has(1000, |event| *event == reported), wants);
        assert!(net.carrier(1000, near).is_open());
    }
}

#[test]
fn a_caller_that_reads_frames_itself_has_them_in_order_and_resets_too() {
    let mut net = Net::new("");
    net.opening.by_frames = true;
    let [near, far] = net.pair(1000);
    let now = net.now;
    let id = net.carrier(1000, near).open_flow(now).expect("a stream");
    let fields = [Field::new("name", "value")];
    net.carrier(1000, near).enqueue_fields(now, id, &fields);
    net.carrier(1000, near).enqueue_data(now, id, b"he", Bytes::from_static(b"llo"));
    net.run_for(DELAY * 2);
    net.expect(SERVER, far, |event| *event == CarrierEvent::Opened(id));
    let carrier = net.carrier(SERVER, far);
    assert!(matches!(carrier.next_frame(id), Ok(Some(Some(Frame::Headers(_))))));
    assert_eq!(carrier.next_frame(id), Ok(Some(Some(Frame::Data(Bytes::from_static(b"hello"))))));
    assert_eq!(carrier.next_frame(id), Ok(None));
    assert_eq!((carrier.reset_of(id), carrier.unread(id)), (None, 0));
    // Reset while nobody reads.
    net.carrier(1000, near).reset(id, Code::CONNECT_ERROR);
    net.run_for(DELAY + Duration::from_ms(2));
    net.expect(SERVER, far, |event| *event == CarrierEvent::Readable(id));
    let fault = net.carrier(SERVER, far).reset_of(id);
    assert_eq!(fault, Some(FlowFault::Reset(Code::CONNECT_ERROR)));
    let carrier = net.carrier(SERVER, far);
    carrier.stop(id, Code::NO_ERROR);
    carrier.forget(id, Code::NO_ERROR);
    assert_eq!(carrier.flows(), 0);
}

#[test]
fn what_other_connections_of_a_peer_store_counts_for_each() {
    let mut net = Net::new("window = \"2 MiB\"\n");
    let handles = net.pair(1000);
    let id = net.flow(1000, handles);
    let most = net.peer.receive_window.get();
    // Bytes behind a gap are stored, unless other connections have used up the room.
    for (elsewhere, stores) in [(0, true), (most, false)] {
        net.carrier(SERVER, handles[1]).set_stored_elsewhere(elsewhere);
        net.run_for(DELAY * 2);
        net.lost_each = net.sent + 1;
        let now = net.now;
        let waits = net.carrier(1000, handles[0]).waiting(id);
        assert_eq!(waits, Some(0), "{elsewhere}");
        net.carrier(1000, handles[0]).enqueue(now, id, Bytes::from(noise(1, 20_000)));
        net.run_for(DELAY + Duration::from_ms(1));
        net.lost_each = 0;
        let _ = net.carrier(SERVER, handles[1]).take(id).expect("a sound flow");
        let stored = net.carrier(SERVER, handles[1]).stored();
        assert_eq!(stored > 10_000, stores, "{stored} beside {elsewhere}");
        net.carrier(SERVER, handles[1]).set_stored_elsewhere(0);
        net.run_for(Duration::from_s(1));
        let come = net.carrier(SERVER, handles[1]).take(id).expect("a sound flow");
        assert_eq!(come.pieces.concat(), noise(1, 20_000), "all of it comes");
    }
}
