//! A proxy between two endpoints, without any network: how flows end, wait and are refused.

use super::*;
use crate::agent::Action;
use crate::stack;
use midhop_congestion::{Law, Settings, build};
use midhop_experiment::limit::Family;
use midhop_tcp::{Cause, Endpoint, Event, State};
use midhop_units::Duration;
use std::collections::BTreeSet;

const DELAY: Duration = Duration::from_ms(5);
const CLIENT: usize = 0;
const SERVER: usize = 2;

/// Client, proxy, server, and the packets between them.
struct Rig {
    proxy: Proxy,
    ends: [Endpoint; 2],
    events: [Vec<Event>; 2],
    /// Whether an end reads received data.
    reads: [bool; 2],
    read: [u64; 2],
    /// The end no longer exists.
    deaf: [bool; 2],
    now: Instant,
    wire: Vec<(Instant, usize, Packet)>,
    resets: u32,
    dropped: u32,
}

fn endpoint(dials: bool) -> Endpoint {
    let control = build(&Settings::of(Law::Cubic)).expect("cubic");
    let settings = stack::settings(&TcpPlan::default(), Family::Ipv4);
    if dials {
        Endpoint::connect(settings, control, 77)
    } else {
        Endpoint::listen(settings, control, 4_000_000_000)
    }
}

impl Rig {
    fn new(table: &str) -> Self {
        let table = table.parse::<toml::Table>().expect("TOML");
        let pep = PepPlan::try_from(table).expect("a configuration");
        Self::with(|places| {
            Proxy::new(NodeId(1), "box", (&pep, None), (places, Vec::new()), Seed(1))
        })
    }

    fn with(proxy: impl FnOnce(Vec<Place>) -> Result<Proxy, ProxyError>) -> Self {
        let place = |host: u8, link: Option<&str>| Place {
            addresses: [IpAddr::from([10, 0, 0, host]), IpAddr::from([10, 0, 0, host])],
            link: link.map(str::to_owned),
            answers_xcp: false,
        };
        let places = vec![place(1, Some("near")), place(2, None), place(3, Some("far"))];
        Self {
            proxy: proxy(places).unwrap_or_else(|error| panic!("{error}")),
            ends: [endpoint(true), endpoint(false)],
            events: [Vec::new(), Vec::new()],
            reads: [true; 2],
            read: [0; 2],
            deaf: [false; 2],
            now: Instant::START,
            wire: Vec::new(),
            resets: 0,
            dropped: 0,
        }
    }

    /// Advances time until `done`, for at most a minute.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let limit = self.now + Duration::from_s(60);
        self.settle();
        while !done(self) {
            let next = self.wire.iter().map(|(at, ..)| *at).min();
            let ends = self.ends.iter().filter_map(Endpoint::poll_timeout);
            let next = next.into_iter().chain(ends).chain(self.proxy.poll_timeout()).min();
            let next = next.unwrap_or_else(|| panic!("{what}: nothing more would ever happen"));
            assert!(
                next <= limit,
                "{what}: not within a minute: {:?} {:?}",
                self.events,
                self.read
            );
            self.now = self.now.max(next);
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.now;
        for end in &mut self.ends {
            if end.poll_timeout().is_some_and(|at| at <= now) {
                end.handle_timeout(now);
            }
        }
        let mut actions = Actions::default();
        if self.proxy.poll_timeout().is_some_and(|at| at <= now) {
            self.proxy.handle_timeout(now, &mut actions);
        }
        while let Some(at) = self.wire.iter().position(|(at, ..)| *at <= now) {
            let (_, to, packet) = self.wire.remove(at);
            if to == 1 {
                self.proxy.handle_packet(now, packet, &mut actions);
            } else if let Body::Segment(segment) = packet.body {
                self.resets += u32::from(segment.flags.contains(Flags::RST));
                if !self.deaf[to / 2] {
                    self.ends[to / 2].handle_segment(now, &segment);
                }
            }
        }
        self.proxy.check_invariants();
        for action in actions.take() {
            match action {
                Action::Send(packet) => {
                    self.wire.push((now + DELAY, packet.destination.index(), packet));
                }
                Action::Drop(..) => self.dropped += 1,
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        let now = self.now;
        for side in [0, 1] {
            loop {
                while let Some(segment) = self.ends[side].poll_transmit(now) {
                    let nodes = [NodeId(0), NodeId(2)];
                    let packet = Packet {
                        flow: FlowId(0),
                        source: nodes[side],
                        ports: if side == 0 { [10_000, 7000] } else { [7000, 10_000] },
                        family: Family::Ipv4,
                        towards: if side == 0 { End::Listener } else { End::Opener },
                        destination: nodes[1 - side],
                        maker: nodes[side],
                        size: 20 + segment.size(),
                        xcp: Xcp::default(),
                        body: Body::Segment(segment),
                    };
                    self.wire.push((now + DELAY, 1, packet));
                }
                let Some(event) = self.ends[side].poll_event() else { break };
                self.events[side].push(event);
                if self.reads[side] {
                    self.read[side] += self.ends[side].read(now, u64::MAX);
                }
            }
        }
    }

    fn reported(&self, side: usize, event: Event) -> bool {
        self.events[side / 2].contains(&event)
    }

    fn connect(&mut self) {
        self.until("the handshakes", |rig| {
            rig.reported(CLIENT, Event::Connected) && rig.reported(SERVER, Event::Connected)
        });
    }

    fn count(&self, name: &str) -> u64 {
        self.proxy.counts().iter().find(|(it, _)| *it == name).map_or(0, |(_, count)| *count)
    }
}

#[test]
fn the_client_is_accepted_once_the_server_has_or_at_once() {
    let mut patient = Rig::new("");
    patient.until("the client", |rig| rig.reported(CLIENT, Event::Connected));
    // Four wires: to the server and back, and to the client and back.
    assert_eq!(patient.now, Instant::START + DELAY * 4);
    let mut early = Rig::new("intercept.accept = \"early\"");
    early.until("the client", |rig| rig.reported(CLIENT, Event::Connected));
    assert_eq!(early.now, Instant::START + DELAY * 2);
    assert!(!early.reported(SERVER, Event::Connected));
    early.connect();
}

#[test]
fn a_client_waits_only_for_servers_that_have_not_accepted_lately() {
    let start = Instant::START + Duration::from_s(60);
    let target = ServerPlace { node: NodeId(2), port: 7000, family: Family::Ipv4 };
    let rig = |accepted: Option<u64>| {
        let mut rig = Rig::new("intercept = { accept = \"learned\", remember = \"30 s\" }");
        rig.now = start;
        if let Some(ago) = accepted {
            rig.proxy.shared.answered.learn(target, true, start - Duration::from_s(ago));
        }
        rig
    };
    for (accepted, wires) in [(None, 4), (Some(30), 4), (Some(29), 2)] {
        let mut rig = rig(accepted);
        rig.until("the client", |rig| rig.reported(CLIENT, Event::Connected));
        assert_eq!(rig.now, start + DELAY * wires, "{accepted:?}");
        rig.connect();
        let answered = &rig.proxy.shared.answered;
        assert!(answered.accepts(&target, |at| at > start), "it has accepted again");
    }
    let mut refused = rig(Some(1));
    refused.ends[1].close();
    refused.until("the reset", |rig| rig.resets > 0);
    let answered = &refused.proxy.shared.answered;
    assert!(!answered.accepts(&target, |_| true), "it is known for nothing any more");
}

#[test]
fn a_half_closed_flow_goes_on_the_other_way_and_ends_in_order() {
    let mut rig = Rig::new("");
    rig.connect();
    rig.ends[0].write(100_000);
    rig.ends[0].close();
    rig.until("the request", |rig| rig.reported(SERVER, Event::PeerClosed));
    assert_eq!((rig.read[1], rig.ends[1].state()), (100_000, State::CloseWait));
    rig.ends[1].write(300_000);
    rig.until("the answer", |rig| rig.read[0] == 300_000);
    assert!(!rig.reported(CLIENT, Event::PeerClosed));
    rig.ends[1].close();
    rig.until("the end", |rig| {
        rig.reported(CLIENT, Event::Closed) && rig.reported(SERVER, Event::Closed)
    });
    rig.until("the books", |rig| rig.count("flows-ended") == 1);
    assert_eq!((rig.resets, rig.count("flows-ended"), rig.count("flows-reset")), (0, 1, 0));
    assert_eq!((rig.count("bytes-up"), rig.count("bytes-down")), (100_000, 300_000));
}

#[test]
fn a_reset_is_carried_to_the_other_end() {
    for side in [CLIENT, SERVER] {
        let mut rig = Rig::new("");
        rig.connect();
        rig.ends[1].write(50_000);
        rig.until("some data", |rig| rig.read[0] > 0);
        rig.ends[side / 2].abort();
        let other = SERVER - side;
        rig.until("the reset", |rig| rig.reported(other, Event::Reset(Cause::Peer)));
        assert_eq!(rig.count("flows-reset"), 1);
        assert!(rig.proxy.flows[0].is_none(), "both legs are gone");
    }
}

/// A segment of no connection: an acknowledgement with a byte of data.
fn late(side: usize) -> Packet {
    let segment =
        Segment { sequence: 1, length: 1, window: 1000, flags: Flags::ACK, ..Segment::default() };
    let ports = [10_000, 7000];
    let (own, other) = (side / 2, 1 - side / 2);
    Packet {
        flow: FlowId(0),
        source: NodeId(side as u16),
        ports: [ports[own], ports[other]],
        family: Family::Ipv4,
        towards: [End::Listener, End::Opener][own],
        destination: NodeId((SERVER - side) as u16),
        maker: NodeId(side as u16),
        size: 20 + segment.size(),
        xcp: Xcp::default(),
        body: Body::Segment(segment),
    }
}

/// As on a kernel: `crates/midhopd/tests/midhopd/late.rs`.
#[test]
fn late_segments_go_to_the_leg_that_waits_or_to_the_far_end() {
    let meets = |rig: &mut Rig, side| {
        let mut actions = Actions::default();
        rig.proxy.handle_packet(rig.now, late(side), &mut actions);
        rig.proxy.check_invariants();
        actions.take()
    };
    let mut rig = Rig::new("");
    rig.connect();
    rig.ends[1].abort();
    rig.until("the reset", |rig| rig.reported(CLIENT, Event::Reset(Cause::Peer)));
    for side in [CLIENT, SERVER] {
        assert_eq!(meets(&mut rig, side), [Action::Send(late(side))]);
    }
    // In order, the client first: the leg towards the server waits for late segments.
    let mut rig = Rig::new("");
    rig.connect();
    rig.ends[0].close();
    rig.until("the client's end", |rig| rig.reported(SERVER, Event::PeerClosed));
    rig.ends[1].close();
    rig.until("the end", |rig| {
        rig.reported(CLIENT, Event::Closed) && rig.reported(SERVER, Event::Closed)
    });
    rig.until("the books", |rig| rig.count("flows-ended") == 1);
    rig.until("the last acknowledgement", |rig| rig.wire.is_empty());
    assert!(rig.proxy.flows[0].is_some(), "one leg waits");
    let answers = meets(&mut rig, SERVER);
    let to_server = |action: &Action| matches!(action, Action::Send(packet) if packet.maker == NodeId(1) && packet.destination == NodeId(2));
    assert!(answers.iter().all(to_server), "{answers:?}");
    assert_eq!(meets(&mut rig, CLIENT), [Action::Send(late(CLIENT))]);
}

#[test]
fn what_the_far_side_refuses_is_refused() {
    let mut rig = Rig::new("");
    rig.ends[1].close();
    rig.until("the refusal", |rig| rig.reported(CLIENT, Event::Reset(Cause::Refused)));
    assert_eq!(rig.count("flows-refused"), 1);
    assert!(rig.proxy.flows[0].is_none());
    let mut ruled = Rig::new("[[rules]]\naction = \"reject\"\nmatch.destination_port = 7000\n");
    ruled.until("the refusal", |rig| rig.reported(CLIENT, Event::Reset(Cause::Refused)));
    assert_eq!((ruled.count("flows-rejected"), ruled.dropped), (1, 1));
}

#[test]
fn rules_and_limits_let_flows_pass_untouched() {
    for table in [
        "[[rules]]\naction = \"bypass\"\nmatch.source = \"10.0.0.0/24\"\n",
        "intercept.interfaces = \"far\"",
        "intercept.accept = \"early\"\n[limits]\nflows = 1\n",
    ] {
        let mut rig = Rig::new(table);
        if table.contains("limits") {
            rig.proxy.shared.counts.live = 1;
        }
        rig.connect();
        assert_eq!(rig.count("flows"), 0, "{table}");
    }
}

#[test]
fn who_does_not_read_closes_windows_all_the_way_and_loses_nothing() {
    let mut rig = Rig::new("legs.near.buffer = \"64 KiB\"\nlegs.far.buffer = \"64 KiB\"");
    rig.reads[0] = false;
    rig.connect();
    let total = 80 << 20;
    assert_eq!(rig.ends[1].write(total), total);
    let before = rig.now;
    while rig.now < before + Duration::from_s(40) {
        let now = rig.now;
        rig.until("time", |rig| rig.now > now);
    }
    let peer = rig.ends[1].peer_window();
    assert_eq!((peer.get(), rig.resets), (0, 0), "the server's window is closed");
    let flow = rig.proxy.flows[0].as_deref().expect("it lives");
    let held = either!(flow, flow => flow.held_bytes());
    assert!(held <= 200 << 10, "{held} bytes held");
    rig.reads[0] = true;
    rig.read[0] += rig.ends[0].read(rig.now, u64::MAX);
    rig.until("the rest", |rig| rig.read[0] == total);
    assert_eq!(rig.resets, 0);
}

#[test]
fn a_spent_budget_slows_flows_down_and_stops_none() {
    let table = "[limits]\nmemory = \"512 KiB\"\nflow_buffer = \"256 KiB\"\n\
        [legs.near]\nbuffer = \"4 MiB\"\n";
    let mut rig = Rig::new(table);
    // Other flows hold as much already as the budget allows.
    rig.proxy.shared.budget = Arc::new(Budget::new(1));
    rig.connect();
    rig.ends[1].write(1_000_000);
    rig.until("all of it", |rig| rig.read[0] == 1_000_000);
    assert!(rig.count("memory-waits") > 0);
    assert_eq!(rig.resets, 0);
}

/// A naive proxy with a store of so many bytes, from a scenario in which it stands between two links.
fn naive(buffer: u64) -> Rig {
    let text = format!(
        "title = \"t\"\nduration = \"1 s\"\n[nodes]\na = {{}}\nb = {{ pep = \"box\" }}\nc = {{}}\n\
         [links.near]\nbetween = [\"a\", \"b\"]\n[links.far]\nbetween = [\"b\", \"c\"]\n\
         [naive.box]\nbuffer = \"{buffer} B\"\nlegs.far.window = \"20000 B\"\n"
    );
    let scenario = midhop_experiment::Scenario::parse("t.toml", &text);
    let plans = scenario.and_then(|scenario| scenario.plans()).unwrap_or_else(|it| panic!("{it}"));
    Rig::with(|places| Proxy::naive(NodeId(1), "box", &plans[0].naive["box"], places, Seed(1)))
}

#[test]
fn a_naive_proxy_acknowledges_what_it_holds_until_its_store_is_full() {
    let buffer = 300_000;
    let mut rig = naive(buffer);
    rig.reads[0] = false;
    rig.connect();
    rig.ends[1].write(80 << 20);
    let mut windows = BTreeSet::new();
    while !rig.reported(SERVER, Event::Reset(Cause::Peer)) {
        let (now, before) = (rig.now, rig.ends[1].acknowledged());
        rig.until("time", |rig| rig.now > now);
        if rig.ends[1].acknowledged() > before {
            windows.insert(rig.ends[1].peer_window().get());
        }
    }
    // An acknowledgement leaves before the acknowledged data is read.
    assert!(windows.first() >= Some(&(20_000 - 2 * 1448)), "never less: {windows:?}");
    let acknowledged = rig.ends[1].acknowledged();
    rig.until("the client's end", |rig| rig.reported(CLIENT, Event::Reset(Cause::Peer)));
    let arrived = rig.ends[0].readable();
    // Data that has arrived at the client stays in the store until the client has acknowledged it.
    assert!(acknowledged > arrived + buffer / 2, "{acknowledged} acknowledged, {arrived} arrived");
    assert!(acknowledged <= arrived + buffer + 20_000, "{acknowledged} and {arrived}");
    assert_eq!((rig.count("flows-reset-store-full"), rig.count("flows-reset")), (1, 0));
    assert!(rig.proxy.flows[0].is_none(), "both legs are gone");
}

#[test]
fn a_store_that_is_large_enough_resets_nobody() {
    let mut rig = naive(8 << 20);
    rig.reads[0] = false;
    rig.connect();
    let total = 5 << 20;
    rig.ends[1].write(total);
    rig.ends[1].close();
    rig.until("all acknowledged", |rig| rig.ends[1].acknowledged() >= total);
    assert!(rig.ends[0].readable() < total, "long before all has arrived");
    rig.reads[0] = true;
    rig.read[0] += rig.ends[0].read(rig.now, u64::MAX);
    rig.until("the end", |rig| rig.reported(CLIENT, Event::PeerClosed));
    assert_eq!((rig.read[0], rig.resets), (total, 0));
    assert_eq!(rig.count("flows-reset-store-full"), 0);
}
