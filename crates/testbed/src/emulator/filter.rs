//! ACK filtering before an emulated link: what a frame acknowledges, read from its headers.
//!
//! [`midhop_path::ack`] decides which acknowledgement may be dropped, as in the simulator.

use super::frame::{Frame, HEADER};
use midhop_assist::acknowledgement;
use midhop_assist::wire::{self, Route};
use midhop_path::Link;
use midhop_path::ack::Ack;
use midhop_units::{Bytes, Instant};

/// Lets a pure acknowledgement replace an older one of its flow that waits before `link`. Gives the
/// frame back when it has to be queued after all.
pub(super) fn thin(
    link: &mut Link<Frame>,
    now: Instant,
    frame: Frame,
    keep_blocks: bool,
) -> Option<Frame> {
    let Some((flow, ack)) = pure(frame.bytes()) else { return Some(frame) };
    let size = Bytes::new(frame.packet_len() as u64);
    // Only the youngest waiting packet of the flow may be replaced, so that the flow is not
    // reordered.
    let choose = |waiting: &Frame| {
        if wire::route(waiting.bytes().get(HEADER..)?)? != flow {
            return None;
        }
        let older = pure(waiting.bytes());
        Some(older.is_some_and(|(_, older)| ack.makes_superfluous(&older, keep_blocks)))
    };
    link.supersede(now, size, frame, choose).err()
}

/// The route and the acknowledgement of a frame that is a pure acknowledgement.
fn pure(frame: &[u8]) -> Option<(Route, Ack)> {
    let (route, segment) = wire::read(frame.get(HEADER..)?)?;
    Some((route, acknowledgement(&segment)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::frame::Frames;
    use midhop_path::Direction;
    use midhop_path::spec::DirectionSpec;
    use midhop_units::Seed;

    const TCP: u8 = 6;
    const ACK: u8 = 0b0001_0000;
    const ECE: u8 = 0b0100_0000;

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
        // Ethernet pads frames that are shorter than 60 bytes: the length is that of the packet.
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
            out.push((flow.source.port(), ack.number));
        }
        // The first was already being sent when the others came. The youngest of each flow replaced
        // the older ones.
        assert_eq!(out, [(1, 1000), (2, 20_000), (1, 20_000)]);
        assert_eq!(link.counters().dropped(midhop_path::Cause::Superseded), 37);
        link.check_invariants();
    }
}
