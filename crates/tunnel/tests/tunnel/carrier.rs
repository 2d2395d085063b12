//! What a connection guarantees for its flows, end to end in virtual time: every byte arrives once and in order, ends
//! arrive as they were meant, and no flow blocks another.

use crate::flows::{address, class, noise, peer, request};
use bytes::Bytes;
use midhop_pep::priority::Priority;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{CarrierEvent, FlowFault, Lone, StreamId, Taken};
use midhop_tunnel::target::Target;
use midhop_units::{Duration, Instant, Seed};
use std::collections::{BTreeMap, VecDeque};

const DELAY: Duration = Duration::from_ms(30);

/// Two ends, and the datagrams in transit between them. Some are lost.
struct Wire {
    now: Instant,
    delay: Duration,
    ends: [Lone; 2],
    ways: [VecDeque<(Instant, Bytes)>; 2],
    /// About one of so many datagrams is lost; zero: none.
    lost_each: u64,
    /// Selects the lost ones: losses at equal distances could coincide with the datagrams that respond to them.
    lost_by: u64,
    /// Selects the bytes that are changed in transit; zero: none are.
    changed_by: u64,
    events: [VecDeque<CarrierEvent>; 2],
}

const NEAR: usize = 0;
const FAR: usize = 1;

impl Wire {
    fn new(lost_each: u64, more: &str) -> Self {
        let leg = "rate = \"50 Mbit/s\"\nrtt = \"60 ms\"\n";
        Self::over(DELAY, lost_each, &format!("{leg}{more}"))
    }

    /// Two ends with this delay between them; `written` is the table of their peer.
    fn over(delay: Duration, lost_each: u64, written: &str) -> Self {
        let peer = peer(written);
        #[expect(clippy::disallowed_methods, reason = "there is no other way to have an instant")]
        let epoch = std::time::Instant::now();
        let [near, far] = [1, 2].map(Seed);
        let near = Lone::connect(&peer, address(2), (epoch, near));
        let far = Lone::listen(&peer, address(1), (epoch, far));
        let ends = [near.expect("an end"), far.expect("an end")];
        let (ways, events) = Default::default();
        let mut wire = Self {
            now: Instant::START,
            delay,
            ends,
            ways,
            lost_each,
            lost_by: 1,
            changed_by: 0,
            events,
        };
        wire.run_for(delay * 10 + Duration::from_ms(200));
        for events in &mut wire.events {
            assert!(events.contains(&CarrierEvent::Connected), "{events:?}");
            assert!(events.contains(&CarrierEvent::Settled), "{events:?}");
            events.clear();
        }
        wire
    }

    /// Lets everything happen until then. Events are kept for the test.
    fn run_for(&mut self, span: Duration) {
        let until = self.now + span;
        loop {
            self.step();
            let arrivals = self.ways.iter().filter_map(|way| way.front().map(|(at, _)| *at));
            let timers: Vec<Instant> =
                self.ends.iter_mut().filter_map(Lone::poll_timeout).collect();
            let next = arrivals.chain(timers).min().unwrap_or(Instant::NEVER);
            if next > until {
                break;
            }
            self.now = next.max(self.now + Duration::from_us(1));
        }
        self.now = until;
    }

    fn step(&mut self) {
        let now = self.now;
        for to in [NEAR, FAR] {
            while self.ways[to].front().is_some_and(|(at, _)| *at <= now) {
                let (_, datagram) = self.ways[to].pop_front().expect("one");
                self.ends[to].handle_datagram(now, datagram, false);
            }
            self.ends[to].handle_timeout(now);
            self.events[to].extend(std::iter::from_fn(|| self.ends[to].poll_event(now)));
            while let Some(datagram) = self.ends[to].poll_datagram(now) {
                if !self.loses() {
                    let datagram = changed(&mut self.changed_by, datagram);
                    self.ways[1 - to].push_back((now + self.delay, datagram));
                }
            }
        }
    }

    fn loses(&mut self) -> bool {
        self.lost_each > 0 && drawn(&mut self.lost_by).is_multiple_of(self.lost_each)
    }

    /// A flow that was requested and granted: its stream, which has one ID at both ends.
    fn flow(&mut self) -> StreamId {
        let asked = self.ends[NEAR].carrier().ask(self.now, &request(), &class()).expect("a flow");
        let is = |event: &CarrierEvent| matches!(event, CarrierEvent::Asked(id, request) if *id == asked && request.target == Target::Address(address(80)));
        self.wait_for(FAR, is);
        self.ends[FAR].carrier().grant(self.now, asked, &class());
        self.wait_for(NEAR, |event| *event == CarrierEvent::Granted(asked));
        asked
    }

    fn wait_for(&mut self, end: usize, is: impl Fn(&CarrierEvent) -> bool) -> CarrierEvent {
        for _ in 0..10_000 {
            if let Some(at) = self.events[end].iter().position(&is) {
                return self.events[end].remove(at).expect("it is there");
            }
            self.run_for(Duration::from_ms(1));
        }
        let last: Vec<_> = self.events[end].iter().rev().take(20).collect();
        panic!("it does not happen at end {end}, whose last events are {last:?}");
    }

    /// Sends bytes of a flow from one end while the other takes them. Returns what arrived.
    fn carry(&mut self, id: StreamId, from: usize, bytes: &[u8]) -> Vec<u8> {
        let mut left = Bytes::copy_from_slice(bytes);
        let mut come = Vec::new();
        let mut finished = false;
        for _ in 0..200_000 {
            while self.ends[from].carrier().waiting(id) == Some(0) && !left.is_empty() {
                let piece = left.split_to(left.len().min(10_000));
                self.ends[from].carrier().enqueue(self.now, id, piece);
            }
            if left.is_empty() && self.ends[from].carrier().waiting(id) == Some(0) && !finished {
                self.ends[from].carrier().finish(self.now, id);
                finished = true;
            }
            let Taken { pieces, ended } =
                self.ends[1 - from].carrier().take(id).expect("a sound flow");
            come.extend(pieces.concat());
            if ended {
                return come;
            }
            self.run_for(Duration::from_ms(1));
        }
        panic!("{} of {} bytes have come", come.len(), bytes.len());
    }
}

/// The next number of a sequence without a pattern.
fn drawn(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

/// A datagram as a path that changes bytes delivers it. Without encryption, QUIC accepts the changed bytes.
fn changed(state: &mut u64, datagram: Bytes) -> Bytes {
    if *state == 0 {
        return datagram;
    }
    let mut bytes = datagram.to_vec();
    let mut next = || drawn(state) as usize;
    if next().is_multiple_of(3) {
        for _ in 0..=next() % 4 {
            let at = next() % bytes.len();
            bytes[at] = next() as u8;
        }
    }
    bytes.into()
}

#[test]
fn every_byte_arrives_once_and_in_order_whatever_is_lost() {
    for lost_each in [0, 7, 50] {
        for repair in ["off", "auto"] {
            let mut wire = Wire::new(lost_each, &format!("repair = \"{repair}\"\n"));
            let id = wire.flow();
            let (up, down) = (noise(lost_each, 300_000), noise(99, 500_000));
            assert!(wire.carry(id, NEAR, &up) == up, "up, 1 of {lost_each} lost, {repair}");
            assert!(wire.carry(id, FAR, &down) == down, "down, 1 of {lost_each} lost, {repair}");
            for end in [NEAR, FAR] {
                wire.wait_for(end, |event| *event == CarrierEvent::Delivered(id));
                assert_eq!(wire.ends[end].carrier().take_end(id), Ok(true));
                wire.ends[end].carrier().forget(id, Code::NO_ERROR);
                assert_eq!(wire.ends[end].carrier().flows(), 0);
            }
        }
    }
}

/// There may be room for the first bytes of a grant only. The rest must not wait for another grant.
#[test]
fn a_grant_arrives_however_little_room_an_upload_leaves() {
    let (pool, all) = (200_000, 2 << 20);
    for upload in pool - 24..pool {
        let mut wire = Wire::new(0, "congestion = \"cubic\"\n");
        let id = wire.flow();
        wire.ends[NEAR].carrier().set_windows(pool as u64, 64 << 20);
        // As many bytes arrive as were granted at first.
        wire.ends[FAR].carrier().enqueue(wire.now, id, Bytes::from(vec![7; all]));
        wire.run_for(Duration::from_s(2));
        wire.ends[NEAR].carrier().enqueue(wire.now, id, Bytes::from(vec![8; upload]));
        let mut taken = 0;
        for _ in 0..2000 {
            let some = wire.ends[NEAR].carrier().take(id).expect("a sound flow");
            taken += some.pieces.concat().len();
            wire.run_for(Duration::from_ms(1));
        }
        assert_eq!(taken, all, "behind an upload of {upload} bytes in a pool of {pool}");
    }
}

#[test]
fn a_refusal_has_its_cause_and_leaves_nothing() {
    let mut wire = Wire::new(0, "");
    for cause in Cause::all() {
        let id = wire.ends[NEAR].carrier().ask(wire.now, &request(), &class()).expect("a flow");
        wire.ends[NEAR].carrier().enqueue(
            wire.now,
            id,
            Bytes::from_static(b"what the client sends at once"),
        );
        wire.wait_for(FAR, |event| matches!(event, CarrierEvent::Asked(..)));
        wire.ends[FAR].carrier().deny(wire.now, id, cause);
        let denied = CarrierEvent::Broken(id, FlowFault::Denied(cause));
        wire.wait_for(NEAR, |event| *event == denied);
        wire.ends[NEAR].carrier().forget(id, Code::NO_ERROR);
        wire.wait_for(FAR, |event| *event == CarrierEvent::Delivered(id));
        wire.ends[FAR].carrier().forget(id, Code::NO_ERROR);
        assert_eq!(wire.ends.each_mut().map(|end| end.carrier().flows()), [0, 0], "{cause:?}");
        wire.run_for(Duration::from_ms(200));
        wire.events.iter_mut().for_each(VecDeque::clear);
    }
}

#[test]
fn whoever_breaks_off_reaches_the_other_end_and_what_was_cut_is_no_end() {
    let mut wire = Wire::new(0, "");
    let broken = wire.flow();
    wire.ends[FAR].carrier().forget(broken, Code::CONNECT_ERROR);
    wire.wait_for(NEAR, |event| *event == CarrierEvent::Stopped(broken, Code::CONNECT_ERROR));
    let fault = wire.ends[NEAR].carrier().take(broken);
    assert_eq!(fault, Err(FlowFault::Reset(Code::CONNECT_ERROR)));

    let cut = wire.flow();
    wire.ends[NEAR].carrier().enqueue(wire.now, cut, Bytes::from_static(b"as far as this"));
    wire.ends[NEAR].carrier().cut(cut);
    wire.wait_for(NEAR, |event| *event == CarrierEvent::Delivered(cut));
    assert_eq!(
        wire.ends[FAR].carrier().take(cut),
        Err(FlowFault::Cut),
        "no end of the flow has come"
    );
}

#[test]
fn a_reader_that_stands_still_holds_up_no_other_and_holds_no_more_than_its_credit() {
    let mut wire = Wire::new(0, "window = \"2 MiB\"\n");
    let stuck: Vec<StreamId> = (0..4).map(|_| wire.flow()).collect();
    let piece = Bytes::from(vec![7; 60_000]);
    for _ in 0..3000 {
        for id in &stuck {
            if wire.ends[FAR].carrier().waiting(*id) == Some(0) {
                wire.ends[FAR].carrier().enqueue(wire.now, *id, piece.clone());
            }
        }
        wire.run_for(Duration::from_ms(1));
    }
    // The bytes that were granted at first, and those that may be in flight.
    for id in &stuck {
        let held = wire.ends[NEAR].carrier().held(*id);
        assert!((1 << 20..=2 << 20).contains(&held), "{held} bytes of {id}");
    }
    let id = wire.flow();
    let begun = wire.now;
    let object = noise(3, 400_000);
    assert!(wire.carry(id, FAR, &object) == object);
    assert!(wire.now - begun < Duration::from_s(1), "{} beside those", wire.now - begun);
}

/// A quarter of 7,000 datagrams in flight is lost: more gaps than QUIC's library permits for a stream.
#[test]
fn a_flow_that_nobody_reads_ends_no_tunnel_whatever_the_link_loses() {
    let leg = "rate = \"140 Mbit/s\"\nrtt = \"600 ms\"\ncongestion = \"known-rate\"\nwindow = \"16 MiB\"\n";
    let mut wire = Wire::over(Duration::from_ms(300), 0, leg);
    let stuck = wire.flow();
    wire.lost_each = 4;
    let object = noise(5, 40_000_000);
    let mut left = Bytes::from(object.clone());
    let mut fill = |wire: &mut Wire| {
        while wire.ends[FAR].carrier().waiting(stuck) == Some(0) && !left.is_empty() {
            let piece = left.split_to(left.len().min(60_000));
            wire.ends[FAR].carrier().enqueue(wire.now, stuck, piece);
        }
        left.len()
    };
    for _ in 0..5_000 {
        fill(&mut wire);
        wire.run_for(Duration::from_ms(2));
    }
    assert!(fill(&mut wire) > 0, "more is sent than may wait");
    let is_lost = |event: &CarrierEvent| matches!(event, CarrierEvent::Lost(_));
    assert!(!wire.events.iter().flatten().any(is_lost), "{:?}", wire.events);
    let id = wire.flow();
    let short = noise(3, 1_000_000);
    assert!(wire.carry(id, FAR, &short) == short, "the other flow's bytes");
    let mut come = Vec::new();
    while come.len() < object.len() {
        fill(&mut wire);
        let taken = wire.ends[NEAR].carrier().take(stuck).expect("a sound flow");
        come.extend(taken.pieces.concat());
        wire.run_for(Duration::from_ms(2));
        assert!(wire.now < Instant::START + Duration::from_s(300), "{} bytes", come.len());
    }
    assert!(come == object, "every byte arrives, however late");
}

#[test]
fn many_flows_take_turns_and_leave_nothing() {
    let mut wire = Wire::new(40, "");
    let ids: Vec<StreamId> = (0..300).map(|_| wire.flow()).collect();
    let mut left: BTreeMap<StreamId, u32> = ids.iter().map(|id| (*id, 4)).collect();
    let mut come: BTreeMap<StreamId, usize> = BTreeMap::new();
    let piece = Bytes::from(vec![1; 5000]);
    while come.values().sum::<usize>() < 300 * 20_000 {
        for (id, left) in &mut left {
            match (wire.ends[FAR].carrier().waiting(*id), *left) {
                (Some(0), 0) => drop(wire.ends[FAR].carrier().release_turn(*id)),
                (Some(0), _) => {
                    *left -= 1;
                    wire.ends[FAR].carrier().enqueue(wire.now, *id, piece.clone());
                }
                _ => {}
            }
        }
        for id in &ids {
            let taken = wire.ends[NEAR].carrier().take(*id).expect("a sound flow");
            *come.entry(*id).or_default() += taken.pieces.iter().map(Bytes::len).sum::<usize>();
        }
        wire.run_for(Duration::from_ms(5));
        assert!(wire.now < Instant::START + Duration::from_s(100), "{come:?}");
    }
    for id in ids {
        for end in [NEAR, FAR] {
            wire.ends[end].carrier().forget(id, Code::CONNECT_ERROR);
        }
    }
    wire.run_for(Duration::from_s(2));
    assert_eq!(wire.ends.each_mut().map(|end| end.carrier().flows()), [0, 0]);
}

/// Flows that go ahead use all of the room by which they may exceed the pool. Each of them gets its part of the room
/// that becomes free, and so does each other flow. The ends are called seldom, as on a busy host.
#[test]
fn flows_that_go_ahead_leave_each_other_and_all_others_their_parts() {
    for (rtt, each, bursts) in
        [(300, 150, 16), (300, 20, 1), (100, 150, 1), (100, 60, 16), (40, 20, 16)]
    {
        let leg = format!("rate = \"5 Mbit/s\"\nrtt = \"{rtt} ms\"\n");
        let mut wire = Wire::over(Duration::from_ms(rtt / 2), 0, &leg);
        let ids: Vec<StreamId> = (0..6).map(|_| wire.flow()).collect();
        let (others, ahead) = ids.split_at(4);
        let mut class = class();
        class.ahead = Priority::Always;
        for id in ahead {
            wire.ends[FAR].carrier().join(*id, &class);
        }
        let piece = Bytes::from(vec![1; 64 << 10]);
        let mut come: BTreeMap<StreamId, usize> = BTreeMap::new();
        let (start, span) = (wire.now, Duration::from_s(3));
        while wire.now < start + span * 4 {
            for _ in 0..bursts {
                for id in &ids {
                    if wire.ends[FAR].carrier().waiting(*id) == Some(0) {
                        wire.ends[FAR].carrier().enqueue(wire.now, *id, piece.clone());
                    }
                }
                wire.run_for(Duration::from_us(10));
            }
            for id in &ids {
                let taken = wire.ends[NEAR].carrier().take(*id).expect("a sound flow");
                *come.entry(*id).or_default() += taken.pieces.iter().map(Bytes::len).sum::<usize>();
            }
            let begins = wire.now < start + span;
            wire.run_for(Duration::from_ms(each));
            if begins && wire.now >= start + span {
                come.clear();
            }
        }
        let least = |ids: &[StreamId]| ids.iter().map(|id| come[id]).min().unwrap_or(0);
        let most = others.iter().map(|id| come[id]).max().unwrap_or(0);
        println!("{rtt} ms, called each {each} ms, {bursts} bursts: {come:?}");
        assert!(least(ahead) > most / 2, "one that goes ahead stands still: {come:?}");
        assert!(least(others) > most / 3, "another one stands still: {come:?}");
    }
}

#[test]
fn a_connection_that_nothing_passes_is_lost_after_its_timeout() {
    let mut wire = Wire::new(0, "timeout = \"20 s\"\nkeepalive = \"5 s\"\n");
    let id = wire.flow();
    wire.run_for(Duration::from_s(60));
    let is_lost = |event: &CarrierEvent| matches!(event, CarrierEvent::Lost(_));
    assert!(!wire.events.iter().flatten().any(is_lost), "it is asked whether it lives");
    wire.lost_each = 1;
    wire.run_for(Duration::from_s(14));
    assert!(!wire.events.iter().flatten().any(is_lost), "a silence of less than its timeout");
    wire.run_for(Duration::from_s(7));
    assert!(wire.events.iter().all(|events| events.iter().any(is_lost)), "{:?}", wire.events);
    assert_eq!(wire.ends[NEAR].carrier().ask(wire.now, &request(), &class()), None);
    wire.ends[NEAR].carrier().forget(id, Code::CONNECT_ERROR);
}

/// A faulty peer: whatever it sends, this end ends a flow or the connection, and never panics.
#[test]
fn a_peer_s_nonsense_ends_no_more_than_its_connection() {
    let mut lost = 0;
    for seed in 1..200 {
        let mut wire = Wire::new(0, "repair = \"auto\"\n");
        let ids: Vec<StreamId> = (0..3).map(|_| wire.flow()).collect();
        wire.changed_by = seed;
        for round in 0..40 {
            for id in &ids {
                for end in [NEAR, FAR] {
                    if wire.ends[end].carrier().waiting(*id) == Some(0) {
                        wire.ends[end].carrier().enqueue(
                            wire.now,
                            *id,
                            Bytes::from_static(&[7; 3000]),
                        );
                    }
                    if wire.ends[end].carrier().take(*id).is_err() {
                        wire.ends[end].carrier().forget(*id, Code::CONNECT_ERROR);
                    }
                }
            }
            if round == 20 && wire.ends[NEAR].carrier().waiting(ids[0]) == Some(0) {
                wire.ends[NEAR].carrier().finish(wire.now, ids[0]);
                let _ = wire.ends[NEAR].carrier().ask(wire.now, &request(), &class());
            }
            wire.run_for(Duration::from_ms(20));
        }
        let is_lost = |event: &CarrierEvent| matches!(event, CarrierEvent::Lost(_));
        lost += usize::from(wire.events.iter().flatten().any(is_lost));
    }
    assert!(lost > 50, "hardly any of it was understood: {lost} connections ended");
}
