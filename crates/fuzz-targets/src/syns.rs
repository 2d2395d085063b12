//! Decisions about held SYNs: sequences of packets, answers and time, as on a router.
//!
//! This target does with a queue of its own, in virtual time, what the daemon's worker does with its queue. The
//! code that decides (`Entries`, `Repeats`, `Segment`, the rewritten SYN) is the daemon's.

use crate::script::Script;
use midhop_pep::config::Plan;
use midhop_pep::policy::FlowKey;
use midhopd::ends::Ends;
use midhopd::intercept::{Segment, syn};
use midhopd::leg::Departure;
use midhopd::syn_hold::{Entries, Known, Met, Repeat, Repeats, Waiting};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const ACTS: usize = 400;
/// Longer than anything is remembered of a flow that was never established.
const LONG: Duration = Duration::from_secs(3600);
/// After so many repeats of its SYN, a client's flow is let through.
const PATIENT_REPEATS: u32 = 2;

/// A byte with the number of places, then acts: SYNs that arrive, far sides that answer, refuse or do neither, clients
/// that connect or do not, SYNs that the kernel repeats, packets of any content, and time.
///
/// Each packet in the queue has one verdict. No more flows wait than there are places, and no source and no
/// target has all of them. No more SYNs leave than arrived. In the end nothing is left.
pub fn syns(data: &[u8]) {
    let mut script = Script(data);
    let limit = script.below(61) + 4;
    let mut router = Router {
        entries: Entries::default(),
        repeats: Repeats::default(),
        limit,
        now: Instant::now(),
        queued: BTreeSet::new(),
        asking: HashMap::new(),
        credit: BTreeMap::new(),
        living: HashMap::new(),
        number: 0,
    };
    for _ in 0..ACTS {
        let Some(act) = script.byte() else { break };
        router.act(act, &mut script);
        router.check();
    }
    router.end();
}

struct Router {
    entries: Entries,
    repeats: Repeats,
    limit: usize,
    now: Instant,
    /// Packets without a verdict.
    queued: BTreeSet<u32>,
    /// Flows whose far side has not answered: the packet that waits.
    asking: HashMap<Ends, u32>,
    /// How many SYNs a client has repeated, less those of this host that left on its behalf.
    credit: BTreeMap<(SocketAddr, SocketAddr), i64>,
    /// The flows whose clients have connected.
    living: HashMap<Ends, Known>,
    number: u32,
}

impl Router {
    fn act(&mut self, act: u8, script: &mut Script<'_>) {
        match act % 12 {
            0..=4 => {
                let packet = packet(act, script);
                self.syn(&packet, act & 0x80 != 0);
            }
            5 => {
                if let Some(ends) = self.some(script) {
                    let waiting = self.entries.accepted(ends, known(ends, self.now));
                    self.over(ends, &waiting.expect("it asked"));
                    self.entries.learn(ends.server, true, self.now);
                    assert!(self.entries.accepts(&ends.server, LONG, self.now));
                }
            }
            6 => {
                if let Some(ends) = self.some(script) {
                    let waiting = self.entries.answered(&ends).expect("it asked");
                    self.over(ends, &waiting);
                    self.entries.learn(ends.server, false, self.now);
                }
            }
            7 => {
                let ends = ends(script);
                if self.living.remove(&ends).is_some() {
                    // A flow ends.
                    return;
                }
                // A flow that still waits for its far side is not taken.
                let known = self.entries.take(&ends, self.now);
                assert!(known.is_none() || !self.asking.contains_key(&ends));
                self.living.extend(known.map(|known| (ends, known)));
            }
            8 => {
                let Some(ends) = self.some(script) else { return };
                let packet = self.enter();
                match self.repeats.repeated(ends, packet) {
                    Repeat::Leaves => self.leave(ends, packet),
                    Repeat::Stale => self.verdict(packet),
                    // At most one waits.
                    Repeat::Waits => {}
                }
            }
            9 => self.now += Duration::from_millis(u64::from(script.short())),
            10 => self.entries.sweep(self.now),
            _ => anything(script.text()),
        }
    }

    /// A SYN arrives, and is processed as by the worker.
    fn syn(&mut self, packet: &[u8], is_early: bool) {
        let segment = Segment::parse(packet).expect("it was made so");
        assert!(!segment.acknowledges);
        let number = self.enter();
        let ends = Ends { client: segment.source, server: segment.destination };
        if self.entries.has_passed(&ends, segment.sequence, self.now) {
            return self.verdict(number);
        }
        let syn = syn::rewrite(packet, &segment, ends, 1).expect("a whole header");
        let again = Segment::parse(&syn).expect("a SYN of ours");
        assert_eq!(
            (again.source, again.destination, again.sequence, again.class),
            (segment.source, segment.destination, segment.sequence, segment.class)
        );
        let sequence = segment.sequence;
        let waiting = Waiting { sequence, queue: 0, packet: number, mark: 0, syn, leaving: ends };
        match self.entries.meet(ends, &waiting) {
            Met::Nothing => assert!(!self.living.contains_key(&ends), "a second far side"),
            Met::Living => {
                assert!(self.living.contains_key(&ends), "nobody is there to answer");
                return self.verdict(number);
            }
            Met::Itself(repeats) => {
                assert!(self.asking.contains_key(&ends));
                self.client_repeats(ends);
                if repeats == PATIENT_REPEATS {
                    let (waiting, _) = self.entries.let_go(&ends).expect("it waits");
                    self.over(ends, &waiting);
                    self.entries.pass(ends, sequence, self.now);
                    assert!(self.entries.has_passed(&ends, sequence, self.now));
                }
                return self.verdict(number);
            }
            Met::Older(older) => {
                self.client_repeats(ends);
                assert_eq!(self.asking.insert(ends, number), Some(older.packet));
                return self.verdict(older.packet);
            }
            Met::Elsewhere => panic!("there is one queue"),
            Met::Ready => {
                assert!(!self.asking.contains_key(&ends));
                return self.verdict(number);
            }
        }
        assert!(!self.asking.contains_key(&ends), "a SYN that waits was forgotten");
        let has_place = self.entries.has_place(&ends, self.limit, self.now);
        if !has_place {
            self.entries.pass(ends, sequence, self.now);
            return self.verdict(number);
        }
        if is_early {
            let ready = self.entries.ready(ends, known(ends, self.now), self.limit);
            assert!(ready.is_ok(), "it had a place");
            return self.verdict(number);
        }
        assert!(self.entries.wait(ends, waiting, self.limit, self.now).is_ok(), "it had a place");
        self.asking.insert(ends, number);
        self.repeats.begin(ends);
        self.credit.insert((ends.client, ends.server), 0);
    }

    fn client_repeats(&mut self, ends: Ends) {
        *self.credit.entry((ends.client, ends.server)).or_default() += 1;
        if let Some(packet) = self.repeats.client_repeated(&ends) {
            self.leave(ends, packet);
        }
    }

    /// A repeated SYN of this host leaves.
    fn leave(&mut self, ends: Ends, packet: u32) {
        let credit = self.credit.entry((ends.client, ends.server)).or_default();
        *credit -= 1;
        assert!(*credit >= 0, "more SYNs left than came");
        self.verdict(packet);
    }

    /// The daemon no longer waits for the far side of a flow.
    fn over(&mut self, ends: Ends, waiting: &Waiting) {
        assert_eq!(self.asking.remove(&ends), Some(waiting.packet), "another SYN waited");
        self.verdict(waiting.packet);
        if let Some(packet) = self.repeats.end(&ends) {
            self.verdict(packet);
        }
        self.credit.remove(&(ends.client, ends.server));
    }

    fn enter(&mut self) -> u32 {
        self.number += 1;
        self.queued.insert(self.number);
        self.number
    }

    fn verdict(&mut self, packet: u32) {
        assert!(self.queued.remove(&packet), "a second verdict on packet {packet}");
    }

    /// One of the flows that wait for their far side: the one that the script names, or the first.
    fn some(&self, script: &mut Script<'_>) -> Option<Ends> {
        let named = ends(script);
        if self.asking.contains_key(&named) {
            return Some(named);
        }
        self.asking.iter().min_by_key(|(_, packet)| **packet).map(|(ends, _)| *ends)
    }

    fn check(&self) {
        let (asking, ready) = self.entries.counts();
        assert_eq!(asking, self.asking.len());
        assert!(asking + ready <= self.limit, "{asking} + {ready} of {}", self.limit);
        // At most one repeat waits beside each SYN.
        assert!(self.queued.len() >= asking && self.queued.len() <= 2 * asking);
        let part = |parts: usize| (self.limit / parts).max(4).min(self.limit);
        let (mut sources, mut targets) = (BTreeMap::new(), BTreeMap::new());
        for ends in self.asking.keys() {
            *sources.entry(source(ends.client.ip())).or_insert(0_usize) += 1;
            *targets.entry(ends.server.ip()).or_insert(0_usize) += 1;
        }
        assert!(sources.values().all(|count| *count <= part(8)), "one source has too much");
        assert!(targets.values().all(|count| *count <= part(4)), "one target has too much");
    }

    fn end(mut self) {
        let left: Vec<Ends> = self.asking.keys().copied().collect();
        for ends in left {
            let waiting = self.entries.answered(&ends).expect("it waits");
            self.over(ends, &waiting);
        }
        assert!(self.queued.is_empty(), "packets wait for ever: {:?}", self.queued);
        // Each sweep removes some.
        (0..4).for_each(|_| self.entries.sweep(self.now + LONG));
        assert_eq!(self.entries.counts(), (0, 0));
    }
}

/// Any bytes as a packet: if they can be read, they can be written again.
fn anything(packet: &[u8]) {
    let Some(segment) = Segment::parse(packet) else { return };
    let ends = Ends { client: segment.source, server: segment.destination };
    if let Some(written) = syn::rewrite(packet, &segment, ends, 7) {
        let again = Segment::parse(&written).expect("a packet of ours");
        assert_eq!(
            (again.source, again.destination, again.sequence, again.acknowledges),
            (segment.source, segment.destination, segment.sequence, segment.acknowledges)
        );
        let tagged = syn::tagged(&written, 9);
        assert_eq!(tagged.len(), written.len());
        assert!(Segment::parse(&tagged).is_some());
    }
}

/// A flow among a few sources and targets, so that they meet.
fn ends(script: &mut Script<'_>) -> Ends {
    let (client, server) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
    let (source, port) = (client >> 4, 1000 + u16::from(client & 15));
    let address = |net: u16, host: u8| -> IpAddr {
        if server & 128 == 0 {
            [10, net as u8, 0, host].into()
        } else {
            // Two hosts of one network each.
            Ipv6Addr::new(0xfd00, net, 0, u16::from(host >> 1), 0, 0, 0, u16::from(host & 1)).into()
        }
    };
    Ends { client: (address(1, source), port).into(), server: (address(2, server & 31), 80).into() }
}

/// A SYN with options of either header.
fn packet(act: u8, script: &mut Script<'_>) -> Vec<u8> {
    let Ends { client, server } = ends(script);
    let (sequence, more) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
    let options = usize::from(more & 7) * 4;
    let mut tcp = Vec::new();
    tcp.extend(client.port().to_be_bytes());
    tcp.extend(server.port().to_be_bytes());
    // Sequence numbers wrap, and are few.
    tcp.extend(u32::from(sequence & 3).wrapping_sub(2).to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend([(((20 + options) / 4) << 4) as u8, 2, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend((0..options).map(|at| (at as u8).wrapping_mul(more)));
    // Data in the SYN.
    tcp.extend(std::iter::repeat_n(7, usize::from(act >> 4 & 7)));
    let mut packet = Vec::new();
    match (client.ip(), server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            let header = 20 + usize::from(more >> 3 & 7) * 4;
            packet.extend([0x40 | (header / 4) as u8, more]);
            packet.extend(((header + tcp.len()) as u16).to_be_bytes());
            packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            packet.extend(client.octets());
            packet.extend(server.octets());
            packet.resize(header, 1);
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            let headers = usize::from(more >> 3 & 3);
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(((headers * 8 + tcp.len()) as u16).to_be_bytes());
            packet.extend([if headers > 0 { 60 } else { 6 }, 64]);
            packet.extend(client.octets());
            packet.extend(server.octets());
            for left in (0..headers).rev() {
                packet.extend([if left > 0 { 60 } else { 6 }, 0, 1, 4, 0, 0, 0, 0]);
            }
        }
        _ => {}
    }
    packet.extend(tcp);
    packet
}

/// The address range that counts as one source.
fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

fn known(ends: Ends, since: Instant) -> Known {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    let text = "[intercept]\ninterfaces = \"lan0\"\n";
    let plan = PLAN.get_or_init(|| Plan::read("fuzz.toml", text).expect("a plan"));
    let key = FlowKey {
        source: ends.client,
        destination: ends.server,
        interface: None,
        peer: None,
        dscp: 0,
    };
    let departure = Departure { ends, mark: 0, egress: None };
    Known::new(plan.policy.decide(&key), None, departure, 0, since)
}
