//! A cache holds no more memory than it counts, however small the segments are.

use midhop_assist::{
    Actions, Carried, DProxy, DProxySettings, Side, Snoop, SnoopSettings, Way, place,
};
use midhop_tcp::{Flags, Segment};
use midhop_testkit::allocations::{Counting, held};
use midhop_units::{Bytes, Duration, Instant};
use std::sync::Arc;

#[global_allocator]
static COUNTING: Counting = Counting;

const ALL: Bytes = Bytes::new(1 << 30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Line(bool);

impl Way for Line {
    fn back(self) -> Self {
        Self(!self.0)
    }
}

/// A packet with its bytes, and about as much other memory as a packet from a kernel takes.
#[derive(Debug, Clone)]
struct Sample {
    segment: Segment,
    bytes: Arc<Vec<u8>>,
    _beside: [u64; 12],
}

impl Sample {
    /// The segment with one byte of the stream.
    fn of(number: u32) -> Self {
        let segment =
            Segment { sequence: number, length: 1, flags: Flags::ACK, ..Segment::default() };
        Self { segment, bytes: vec![0; 41].into(), _beside: [0; 12] }
    }
}

impl Carried for Sample {
    type Way = Line;

    fn way(&self) -> Line {
        Line(true)
    }

    fn segment(&self) -> &Segment {
        &self.segment
    }

    fn with(self, segment: Segment) -> Self {
        Self { segment, ..self }
    }

    fn size(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    fn room(&self) -> u64 {
        u64::from(self.size()) + place::<Self>()
    }
}

/// Gives an agent 20,000 of these segments, and compares the size that it counts at the end with the memory that it has
/// allocated.
fn counts_what_it_holds<A>(
    mut agent: A,
    number: impl Fn(u32) -> u32,
    give: impl Fn(&mut A, Instant, Sample, &mut Actions<Sample>),
    cached: impl Fn(&A) -> Bytes,
) {
    let mut actions = Actions::default();
    let before = held();
    for count in 0..20_000 {
        let now = Instant::START + Duration::from_us(u64::from(count));
        give(&mut agent, now, Sample::of(number(count)), &mut actions);
        drop(actions.drain());
    }
    let grown = u64::try_from(held() - before).expect("something is kept");
    let counted = cached(&agent).get();
    assert!((grown..4 * grown).contains(&counted), "{grown} bytes are held, {counted} counted");
}

#[test]
fn a_snoop_counts_what_it_holds() {
    let settings = SnoopSettings { cache: ALL, ..SnoopSettings::default() };
    counts_what_it_holds(
        Snoop::new(settings),
        |count| count,
        |agent, now, packet, actions| agent.handle_packet(now, packet, true, actions),
        Snoop::cached,
    );
}

#[test]
fn a_d_proxy_counts_what_it_holds_before_the_link_and_behind_it() {
    for side in [Side::Before, Side::Behind] {
        let settings = DProxySettings { cache: ALL, held: ALL, ..DProxySettings::default() };
        counts_what_it_holds(
            DProxy::new(settings),
            // The second is missing.
            |count| count + u32::from(count > 0),
            |agent, now, packet, actions| agent.handle_packet(now, packet, side, actions),
            DProxy::cached,
        );
    }
}
