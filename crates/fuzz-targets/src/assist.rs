//! Agents that process packets of connections which they do not end. The ends of those may send anything.

use midhop_assist::wire::{self, Route};
use midhop_assist::{
    AckDecimation, AckDecimationSettings, AckSpacing, AckSpacingSettings, Action, Actions, Agent,
    Carried, DProxy, DProxySettings, Headed, Heading, Report, Row, Side, Snoop, SnoopSettings,
    Topic, Way, message,
};
use midhop_tcp::{Flags, SackBlock, Segment, Timestamps};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Unit: bytes of packets.
const CACHE: u64 = 20_000;

/// A packet that remembers its original header.
#[derive(Debug, Clone)]
struct Met {
    way: Route,
    segment: Segment,
    came: Segment,
    heading: Heading,
}

impl Headed for Met {
    fn heading(&self) -> Heading {
        self.heading
    }
}

impl Carried for Met {
    type Way = Route;

    fn way(&self) -> Route {
        self.way
    }

    fn segment(&self) -> &Segment {
        &self.segment
    }

    fn with(self, segment: Segment) -> Self {
        Self { segment, ..self }
    }

    fn size(&self) -> u32 {
        20 + self.segment.size()
    }
}

/// What has passed, and so may come out.
#[derive(Default)]
struct Books {
    /// What each direction acknowledged.
    acknowledged: BTreeSet<(Route, u32)>,
}

impl Books {
    fn note(&mut self, met: &Met) {
        self.acknowledged.insert((met.way, met.segment.acknowledgment));
    }

    /// Payload stays in its place, and nothing is acknowledged beyond what the packet's sender acknowledged: made-up
    /// acknowledgements have smaller numbers.
    fn check_row(&self, actions: &mut Actions<Met>) {
        for action in actions.drain() {
            if let Action::Send(met) = action {
                let (out, came) = (&met.segment, &met.came);
                assert_eq!(
                    (out.sequence, out.length, out.flags),
                    (came.sequence, came.length, came.flags)
                );
                let beyond = out.acknowledgment.wrapping_sub(came.acknowledgment);
                assert!(beyond == 0 || beyond > u32::MAX / 2, "{met:?}");
            }
        }
    }

    /// Payload stays in its place, and nothing is acknowledged that its sender has not acknowledged.
    fn check(&self, actions: &mut Actions<Met>) {
        for action in actions.drain() {
            if let Action::Send(met) = action {
                let (out, came) = (&met.segment, &met.came);
                assert_eq!((out.sequence, out.length), (came.sequence, came.length));
                assert_eq!(out.flags, came.flags);
                assert!(self.acknowledged.contains(&(met.way, out.acknowledgment)), "{met:?}");
            }
        }
    }
}

/// Packets of three flows, in order: each is some bytes of `data`.
///
/// The cache and held packets stay within their sizes, segments come out unchanged, and no acknowledgement is invented.
/// Raw packets are read as if a kernel had sent them: what is read can be written, and is then read as the same.
pub fn assist(data: &[u8]) {
    if let [0xff, packet @ ..] = data {
        return raw(packet);
    }
    let mut snoop = Snoop::new(SnoopSettings {
        cache: Bytes::new(CACHE),
        threshold: 2,
        timer_min: Duration::from_ms(1),
        resends: 2,
        judges_queue: data.first().is_some_and(|byte| byte & 1 == 1),
        flows: 3,
        idle: Duration::from_ms(300),
    });
    let mut half = DProxy::new(DProxySettings {
        cache: Bytes::new(CACHE),
        held: Bytes::new(CACHE),
        hold: Duration::from_ms(30),
        requests: 2,
        judges_queue: data.first().is_some_and(|byte| byte & 2 == 2),
        flows: 3,
        idle: Duration::from_ms(300),
    });
    let thinner =
        AckDecimation::new(AckDecimationSettings { keep_one_in: 3, hold: Duration::from_ms(20) });
    let spacer = AckSpacing::new(AckSpacingSettings {
        rate: Some(Rate::from_bits_per_s(500_000)),
        rebuild: Some(Bytes::new(536)),
        delay_max: Duration::from_ms(40),
        waiting_max: 4,
    });
    let mut row: Row<Met> =
        [Agent::Decimation(thinner), Agent::Spacing(spacer)].into_iter().collect();
    let mut now = Instant::START + Duration::from_s(1);
    let (mut books, mut actions) = (Books::default(), Actions::default());
    for op in data.chunks_exact(8) {
        let [kind, time, sequence, acknowledgment, length, first, second, stamp] = *op else {
            continue;
        };
        now = now + Duration::from_ms(u64::from(time));
        let end = |port: u8| SocketAddr::from(([10, 0, 0, port], 80));
        let sent = Route { source: end(kind >> 6), destination: end(9) };
        let way = if kind & 1 == 0 { sent } else { sent.back() };
        // Close to where sequence numbers wrap.
        let place = |byte: u8| (u32::MAX - 60_000).wrapping_add(u32::from(byte) * 500);
        if kind & 0x3e == 0x3e {
            let topics = [Topic::Wanted, Topic::Lacking, Topic::Arrived, Topic::Resent];
            let topic = topics[usize::from(length) % topics.len()];
            let report = Report { topic, from: place(first), to: place(second) };
            half.handle_report(now, way, report, &mut actions);
        } else {
            let flags = match kind >> 1 & 7 {
                0 => Flags::ACK | Flags::FIN,
                1 => Flags::RST,
                2 => Flags::SYN | Flags::ACK,
                3 => Flags::ACK | Flags::ECE,
                _ => Flags::ACK,
            };
            let mut segment = Segment {
                sequence: place(sequence),
                acknowledgment: place(acknowledgment),
                length: u32::from(length) * 10,
                window: u16::from(stamp & 3),
                flags,
                timestamps: (stamp & 4 != 0)
                    .then(|| Timestamps { value: u32::from(stamp), echo: u32::from(time) }),
                ..Segment::default()
            };
            if first != second {
                segment.sack.push(SackBlock { start: place(first), end: place(second) });
                segment.sack.push(SackBlock { start: place(second), end: place(sequence) });
            }
            let heading = if kind & 1 == 0 { Heading::Out } else { Heading::In };
            let met = Met { way, segment, came: segment, heading };
            row.handle_packet(now, met.clone(), &mut actions);
            books.check_row(&mut actions);
            books.note(&met);
            snoop.handle_packet(now, met.clone(), kind & 0x10 == 0, &mut actions);
            books.check(&mut actions);
            let side = if kind & 0x20 == 0 { Side::Before } else { Side::Behind };
            half.handle_packet(now, met.clone(), side, &mut actions);
            if stamp & 0xf0 == 0 {
                snoop.handle_drop(&met);
                half.handle_drop(&met);
            }
        }
        books.check(&mut actions);
        if snoop.poll_timeout().is_some_and(|due| due <= now) {
            snoop.handle_timeout(now, &mut actions);
            assert!(snoop.poll_timeout().is_none_or(|due| due > now), "a timer that does not rest");
        }
        // Snoop's retransmissions carry the latest acknowledgement of their sender, which may be later than the
        // original one.
        books.check(&mut actions);
        if row.poll_timeout().is_some_and(|due| due <= now) {
            row.handle_timeout(now, &mut actions);
            books.check_row(&mut actions);
        }
        if half.poll_timeout().is_some_and(|due| due <= now) {
            half.handle_timeout(now, &mut actions);
        }
        books.check(&mut actions);
        snoop.check_invariants();
        half.check_invariants();
        assert!(snoop.cached().get() <= CACHE && snoop.flows() <= 3);
    }
}

/// Bytes that a kernel passed on as a packet.
fn raw(packet: &[u8]) {
    for own in ["10.0.0.1", "fd00::1"] {
        let _ = message::read(packet, own.parse().expect("an address"));
    }
    if let Some((route, report)) = message::decode(packet) {
        assert_eq!(message::encode(route, report).as_deref(), Some(packet));
    }
    let Some((route, segment)) = wire::read(packet) else { return };
    let opens = segment.flags.contains(Flags::SYN) || segment.flags.contains(Flags::RST);
    if let Some(written) = wire::write(packet, &segment).filter(|_| !opens) {
        assert_eq!(wire::read(&written), Some((route, segment)));
    }
}
