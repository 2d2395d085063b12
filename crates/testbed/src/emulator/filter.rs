//! ACK filtering before an emulated link: what a frame acknowledges, read from its headers.
//!
//! What may go is for [`midhop_path::ack`] to say, as in the simulator.

use super::frame::{Frame, HEADER};
use midhop_path::Link;
use midhop_path::ack::Ack;
use midhop_units::{Bytes, Instant};

const TCP: u8 = 6;
const FIN_SYN_RST: u8 = 0b0000_0111;
const ACK: u8 = 0b0001_0000;
const URG: u8 = 0b0010_0000;
const ECE: u8 = 0b0100_0000;
const CWR: u8 = 0b1000_0000;

/// One direction of a connection: addresses, then ports, as they stand in the packet.
type Flow = [u8; 36];

/// Lets `frame`, where it only acknowledges, take the place of one of its flow that waits before `link`;
/// gives it back when it is one to be sent after all.
pub(super) fn thin(
    link: &mut Link<Frame>,
    now: Instant,
    frame: Frame,
    keep_blocks: bool,
) -> Option<Frame> {
    let Some((flow, ack)) = pure(frame.bytes()) else { return Some(frame) };
    let size = Bytes::new(frame.packet_len() as u64);
    // The youngest packet of the flow is looked at and no other: nothing of the flow changes its order.
    let choose = |waiting: &Frame| {
        let (other, theirs) = endpoints(waiting.bytes())?;
        if other != flow {
            return None;
        }
        let older = acknowledgement(theirs);
        Some(older.is_some_and(|older| ack.makes_superfluous(&older, keep_blocks)))
    };
    link.supersede(now, size, frame, choose).err()
}

/// The flow and the acknowledgement of a frame that does nothing else.
fn pure(frame: &[u8]) -> Option<(Flow, Ack)> {
    let (flow, segment) = endpoints(frame)?;
    Some((flow, acknowledgement(segment)?))
}

/// Which flow a frame is of, and its TCP segment; none for what is no whole TCP segment.
fn endpoints(frame: &[u8]) -> Option<(Flow, &[u8])> {
    let packet = frame.get(HEADER..)?;
    let mut flow = [0; 36];
    let segment = match frame.get(12..HEADER)? {
        [0x08, 0x00] => {
            let header = usize::from(packet.first()? & 0x0f) * 4;
            let length = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
            // A fragment has no ports, or not all of the data.
            let whole = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff == 0;
            if *packet.get(9)? != TCP || !whole || header < 20 {
                return None;
            }
            flow[..8].copy_from_slice(packet.get(12..20)?);
            packet.get(header..length)?
        }
        [0x86, 0xdd] => {
            let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
            if *packet.get(6)? != TCP {
                return None;
            }
            flow[..32].copy_from_slice(packet.get(8..40)?);
            packet.get(40..40 + length)?
        }
        _ => return None,
    };
    flow[32..].copy_from_slice(segment.get(..4)?);
    Some((flow, segment))
}

/// What a segment acknowledges that does nothing else: no data, no SYN, FIN or RST.
fn acknowledgement(segment: &[u8]) -> Option<Ack> {
    let header = usize::from(segment.get(12)? >> 4) * 4;
    let flags = *segment.get(13)?;
    if flags & ACK == 0 || flags & (FIN_SYN_RST | URG) != 0 || segment.len() != header {
        return None;
    }
    let congestion = (flags & ECE != 0, flags & CWR != 0);
    let mut ack = Ack::new(number(segment.get(8..12)?)?, None, congestion);
    let mut options = segment.get(20..header)?;
    let mut blocks: &[u8] = &[];
    while let [kind, rest @ ..] = options {
        match kind {
            0 => break,
            1 => options = rest,
            _ => {
                let length = usize::from(*rest.first()?);
                let told = options.get(2..length)?;
                match kind {
                    5 => blocks = told,
                    8 => ack.timestamp = Some(number(told.get(..4)?)?),
                    // Who says something else may mean it.
                    _ => return None,
                }
                options = &options[length..];
            }
        }
    }
    let block = |block: &[u8]| number(&block[..4]).zip(number(&block[4..]));
    ack.with_blocks(blocks.chunks_exact(8).filter_map(block))
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::frame::Frames;
    use midhop_path::Direction;
    use midhop_path::spec::DirectionSpec;
    use midhop_units::Seed;

    /// An acknowledgement over IPv4 from a port, with a timestamp and SACK blocks.
    fn frame(port: u16, acknowledged: u32, blocks: &[(u32, u32)], data: usize) -> Vec<u8> {
        let mut options = vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 3];
        if !blocks.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
            for (start, end) in blocks {
                options.extend(start.to_be_bytes());
                options.extend(end.to_be_bytes());
            }
        }
        let header = 20 + options.len();
        let mut bytes = vec![2; 12];
        bytes.extend([0x08, 0x00, 0x45, 0]);
        bytes.extend(((20 + header + data) as u16).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(port.to_be_bytes());
        bytes.extend([0x14, 0x51, 0, 0, 0, 1]);
        bytes.extend(acknowledged.to_be_bytes());
        bytes.extend([(header as u8 / 4) << 4, ACK, 1, 0, 0, 0, 0, 0]);
        bytes.extend(options);
        bytes.extend(vec![0; data]);
        bytes
    }

    #[test]
    fn what_only_acknowledges_is_read_from_its_headers() {
        let (_, ack) = pure(&frame(1, 5000, &[(7000, 8000)], 0)).expect("an acknowledgement");
        assert_eq!((ack.number, ack.timestamp, ack.blocks()), (5000, Some(9), &[(7000, 8000)][..]));
        assert_eq!(pure(&frame(1, 5000, &[], 1)), None, "data");
        let with = |place: usize, byte: u8| {
            let mut bytes = frame(1, 5000, &[], 0);
            bytes[place] = byte;
            pure(&bytes)
        };
        let tcp = HEADER + 20;
        assert_eq!(with(tcp + 13, ACK | 1), None, "FIN");
        assert_eq!(with(tcp + 13, 0b10), None, "SYN");
        assert_eq!(with(tcp + 22, 28), None, "an option of another kind");
        assert_eq!(with(HEADER + 9, 17), None, "UDP");
        assert_eq!(with(HEADER + 6, 0x20), None, "a fragment");
        assert_eq!(with(tcp + 13, ACK | ECE).expect("an echo").1.congestion, (true, false));
        // Ethernet pads what is shorter than 60 bytes: the length is the packet's.
        let mut padded = frame(1, 5000, &[], 0);
        padded.extend([0; 6]);
        assert!(pure(&padded).is_some());
        for length in 0..padded.len() {
            let _ = pure(&padded[..length]);
        }
    }

    #[test]
    fn the_newest_acknowledgement_of_a_flow_waits_in_the_place_of_the_one_before() {
        let spec: DirectionSpec =
            toml::from_str("rate = \"60 kbit/s\"\ndelay = \"1 ms\"\nqueue = \"100 packets\"")
                .expect("a direction");
        let plan = spec.resolve(midhop_units::Duration::ZERO).expect("a direction");
        let mut link = Link::new(&plan, Direction::Up, Seed(1), Instant::START);
        let frames = Frames::new(1500);
        let send = |link: &mut Link<Frame>, port, acknowledged| {
            let bytes = frame(port, acknowledged, &[], 0);
            let mut frame = frames.take();
            frame.room()[..bytes.len()].copy_from_slice(&bytes);
            frame.set_len(bytes.len());
            let now = Instant::START;
            if let Some(frame) = thin(link, now, frame, false) {
                link.handle_input(now, Bytes::new(frame.packet_len() as u64), frame);
            }
        };
        for step in 1..=20 {
            send(&mut link, 1, step * 1000);
            send(&mut link, 2, step * 1000);
        }
        let end = Instant::START + midhop_units::Duration::from_s(1);
        link.handle_timeout(end);
        let mut out = Vec::new();
        while let Some(arrival) = link.poll_output(end) {
            let (flow, ack) = pure(arrival.packet.bytes()).expect("an acknowledgement");
            out.push((flow[33], ack.number));
        }
        // The first was being sent when the others came; of each flow the youngest waited.
        assert_eq!(out, [(1, 1000), (2, 20_000), (1, 20_000)]);
        assert_eq!(link.counters().dropped(midhop_path::Cause::Superseded), 37);
        link.check_invariants();
    }
}
