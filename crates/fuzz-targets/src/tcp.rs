//! Our own TCP: packets from a wire, and a peer that sends anything.

use midhop_congestion::{Law, build};
use midhop_tcp::wire::{self, WriteError};
use midhop_tcp::{
    Ecn, Endpoint, Flags, LossDetection, SackBlock, Segment, Settings, SynOptions, Timestamps,
};
use midhop_units::{Bytes, Duration, Instant};

/// A packet: what is read of it can be written, and is then read as the same.
pub fn packet(data: &[u8]) {
    let Ok(packet) = wire::read(data) else { return };
    let payload = &data[packet.payload.clone()];
    let mut bytes = Vec::new();
    match wire::write(&packet.segment, packet.addresses, payload, &mut bytes) {
        // Our padding may take more room than theirs.
        Err(WriteError::Size { .. }) => assert!(data.len() > 65_000),
        Err(error) => panic!("{error}"),
        Ok(()) => {
            let again = wire::read(&bytes).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((again.addresses, again.segment), (packet.addresses, packet.segment));
            assert_eq!(&bytes[again.payload], payload);
        }
    }
}

const RECORD: usize = 16;
const OUR_FIRST: u32 = 0xffff_f000;
const THEIR_FIRST: u32 = 0xffff_fe00;

/// An endpoint and its peer: a byte of settings, then records of 16 bytes, each a segment close to the
/// expected one, or an act of the application or the clock.
///
/// Every count stays true, and the endpoint stops sending on its own.
pub fn endpoint(data: &[u8]) {
    let Some((&choice, input)) = data.split_first() else { return };
    let on = |bit: u8| choice & (1 << bit) != 0;
    let settings = Settings {
        sack: on(0),
        timestamps: on(1),
        ecn: on(2),
        loss_detection: if on(3) { LossDetection::DupThresh } else { LossDetection::Rack },
        receive_buffer: Bytes::new(if on(4) { 3_000 } else { 300_000 }),
        send_buffer: Bytes::new(40_000),
        prr: on(5),
        nagle: on(6),
        ..Settings::default()
    };
    let congestion = midhop_congestion::Settings {
        mss: settings.segment_payload(),
        ..midhop_congestion::Settings::of(Law::Reno)
    };
    let Ok(control) = build(&congestion) else { return };
    let mut end = if on(7) {
        Endpoint::listen(settings, control, OUR_FIRST)
    } else {
        Endpoint::connect(settings, control, OUR_FIRST)
    };
    let mut now = Instant::START;
    settle(&mut end, now);
    end.handle_segment(now, &opening(on(7)));
    settle(&mut end, now);
    for record in input.chunks_exact(RECORD) {
        let amount = u64::from(u16::from_le_bytes([record[1], record[2]]));
        match record[0] & 7 {
            0 => {
                now = now + Duration::from_ms(amount);
                end.handle_timeout(now);
            }
            1 => {
                end.write(amount);
            }
            2 => {
                end.read(now, amount);
            }
            3 if record[0] & 0xf0 == 0xf0 => end.close(),
            _ => {
                let segment = segment(record);
                if let Some(place) = end.placement(&segment) {
                    assert!(place.skip + place.length <= u64::from(segment.length));
                }
                end.handle_segment(now, &segment);
            }
        }
        settle(&mut end, now);
    }
}

fn settle(end: &mut Endpoint, now: Instant) {
    check(end);
    let mut sent = 0;
    while end.poll_transmit(now).is_some() {
        check(end);
        sent += 1;
        // None of our windows lets more out at once.
        assert!(sent < 1_000, "it never stops sending");
    }
    while end.poll_event().is_some() {}
}

fn check(end: &Endpoint) {
    if let Err(broken) = end.check_invariants() {
        panic!("{broken}");
    }
}

/// The peer's SYN, or its answer to ours.
fn opening(listens: bool) -> Segment {
    Segment {
        sequence: THEIR_FIRST,
        acknowledgment: if listens { 0 } else { OUR_FIRST.wrapping_add(1) },
        window: 50_000,
        flags: if listens { Flags::SYN } else { Flags::SYN | Flags::ACK },
        timestamps: Some(Timestamps { value: 7, echo: 0 }),
        syn: SynOptions { mss: Some(1000), window_scale: Some(3), sack_permitted: true },
        ..Segment::default()
    }
}

/// A segment with numbers close to those that matter.
fn segment(record: &[u8]) -> Segment {
    let short = |at: usize| u32::from(u16::from_le_bytes([record[at], record[at + 1]]));
    let mut segment = Segment {
        sequence: THEIR_FIRST.wrapping_add(1).wrapping_add(short(1)).wrapping_sub(512),
        acknowledgment: OUR_FIRST.wrapping_add(1).wrapping_add(short(3)),
        length: short(5) % 1500,
        window: (short(7) & 0xffff) as u16,
        flags: Flags::from_bits(record[9] | Flags::ACK.bits()),
        ecn: if record[0] & 8 == 0 { Ecn::NotCapable } else { Ecn::Congested },
        timestamps: (record[0] & 16 == 0)
            .then(|| Timestamps { value: 7 + u32::from(record[10]), echo: u32::from(record[11]) }),
        ..Segment::default()
    };
    let base = segment.acknowledgment;
    for pair in record[12..16].chunks_exact(2).filter(|pair| pair[1] > 0) {
        let start = base.wrapping_add(u32::from(pair[0]) * 100);
        let end = start.wrapping_add(u32::from(pair[1]) * 100);
        segment.sack.push(SackBlock { start, end });
    }
    segment
}
