//! The headers of a TCP packet as an agent reads and writes them.
//!
//! A packet with something that no agent understands is not read, and so agents let it pass: fragments, IPv6 extension
//! headers, and segments with options other than timestamps and SACK blocks. The options of a SYN or RST do not
//! matter: agents take it only for the beginning or end of a flow.
//!
//! Source: RFC 791 §3.1, RFC 8200 §3, RFC 9293 §3.1, RFC 7323 §3, RFC 2018 §3.

use crate::Way;
use midhop_tcp::{Ecn, Flags, SackBlock, SackBlocks, Segment, Timestamps};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const TCP: u8 = 6;
/// Without options. Unit: bytes.
const IPV4_HEADER: usize = 20;
/// Unit: bytes.
const IPV6_HEADER: usize = 40;
/// Without options. Unit: bytes.
const TCP_HEADER: usize = 20;
const CHECKSUM: usize = 16;

const END: u8 = 0;
const NOTHING: u8 = 1;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The source and destination of a packet: a direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

impl Way for Route {
    fn back(self) -> Self {
        Self { source: self.destination, destination: self.source }
    }
}

/// Where the parts of a packet lie.
struct Layout {
    route: Route,
    ecn: u8,
    /// Where the TCP header begins.
    tcp: usize,
    /// Where the payload begins.
    payload: usize,
    /// Where it ends.
    end: usize,
}

/// Reads a packet from its network header on: its direction, and its TCP header. Bytes behind the packet, such as the
/// padding of a short frame, are ignored.
///
/// `None` if it is no whole TCP packet, or has something that no agent understands.
pub fn read(packet: &[u8]) -> Option<(Route, Segment)> {
    let layout = layout(packet)?;
    let header = packet.get(layout.tcp..layout.payload)?;
    let flags = Flags::from_bits(*header.get(13)?);
    let mut segment = Segment {
        sequence: number(header, 4)?,
        acknowledgment: number(header, 8)?,
        length: u32::try_from(layout.end - layout.payload).ok()?,
        window: u16::from_be_bytes(array(header, 14)?),
        flags,
        ecn: match layout.ecn {
            0 => Ecn::NotCapable,
            1 => Ecn::CapableOne,
            2 => Ecn::Capable,
            _ => Ecn::Congested,
        },
        ..Segment::default()
    };
    if !flags.contains(Flags::SYN) && !flags.contains(Flags::RST) {
        (segment.timestamps, segment.sack) = options(header.get(TCP_HEADER..)?)?;
    }
    Some((layout.route, segment))
}

/// The direction of a packet, whatever options it has; `None` if it is no whole TCP packet.
pub fn route(packet: &[u8]) -> Option<Route> {
    layout(packet).map(|layout| layout.route)
}

/// `packet` with the acknowledgment number, window, timestamps and SACK blocks of `segment`, and right checksums.
///
/// `None` if [`read`] gives none, or the blocks do not fit into its header.
pub fn write(packet: &[u8], segment: &Segment) -> Option<Vec<u8>> {
    let layout = layout(packet)?;
    let options = written(segment);
    let header = TCP_HEADER + options.len();
    let offset = u8::try_from(header / 4).ok().filter(|words| *words <= 15)?;
    let mut new = packet.get(..layout.tcp + TCP_HEADER)?.to_vec();
    new.extend(options);
    new.extend_from_slice(packet.get(layout.payload..layout.end)?);
    let (ip, tcp) = new.split_at_mut(layout.tcp);
    let length = u16::try_from(tcp.len()).ok()?;
    let whole = u16::try_from(layout.tcp).ok()?.checked_add(length)?;
    match layout.route.source {
        SocketAddr::V4(_) => {
            ip[2..4].copy_from_slice(&whole.to_be_bytes());
            ip[10..12].fill(0);
            let sum = checksum(&[ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        SocketAddr::V6(_) => ip[4..6].copy_from_slice(&length.to_be_bytes()),
    }
    tcp[8..12].copy_from_slice(&segment.acknowledgment.to_be_bytes());
    tcp[12] = offset << 4 | tcp[12] & 0x0f;
    tcp[14..16].copy_from_slice(&segment.window.to_be_bytes());
    tcp[CHECKSUM..CHECKSUM + 2].fill(0);
    let addresses = if layout.route.source.is_ipv4() { &ip[12..20] } else { &ip[8..40] };
    let sum = checksum(&[addresses, &[0, TCP], &length.to_be_bytes(), tcp]);
    tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    Some(new)
}

fn layout(packet: &[u8]) -> Option<Layout> {
    let (tcp, end, ecn, ends) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet.first()? & 0x0f) * 4;
            let fragment = u16::from_be_bytes(array(packet, 6)?) & 0x3fff;
            if header < IPV4_HEADER || fragment != 0 || *packet.get(9)? != TCP {
                return None;
            }
            let end = usize::from(u16::from_be_bytes(array(packet, 2)?));
            let ends =
                [12, 16].map(|at| array::<4>(packet, at).map(|it| Ipv4Addr::from(it).into()));
            (header, end, packet.get(1)? & 3, ends)
        }
        6 => {
            if *packet.get(6)? != TCP {
                return None;
            }
            let end = IPV6_HEADER + usize::from(u16::from_be_bytes(array(packet, 4)?));
            let ends =
                [8, 24].map(|at| array::<16>(packet, at).map(|it| Ipv6Addr::from(it).into()));
            (IPV6_HEADER, end, packet.get(1)? >> 4 & 3, ends)
        }
        _ => return None,
    };
    let [source, destination]: [Option<IpAddr>; 2] = ends;
    let header = packet.get(tcp..end)?;
    let payload = tcp + usize::from(header.get(12)? >> 4) * 4;
    if payload < tcp + TCP_HEADER || payload > end {
        return None;
    }
    let port = |at| array(header, at).map(u16::from_be_bytes);
    let route =
        Route { source: (source?, port(0)?).into(), destination: (destination?, port(2)?).into() };
    Some(Layout { route, ecn, tcp, payload, end })
}

/// The timestamps and SACK blocks; `None` if there is another option, or one is truncated.
fn options(mut options: &[u8]) -> Option<(Option<Timestamps>, SackBlocks)> {
    let (mut timestamps, mut sack) = (None, SackBlocks::default());
    while let [kind, rest @ ..] = options {
        match *kind {
            END => break,
            NOTHING => options = rest,
            kind => {
                let length = usize::from(*rest.first()?);
                let body = options.get(2..length)?;
                match (kind, body.len()) {
                    (TIMESTAMPS, 8) => {
                        timestamps =
                            Some(Timestamps { value: number(body, 0)?, echo: number(body, 4)? });
                    }
                    (SACK, 8 | 16 | 24 | 32) => {
                        for block in body.chunks_exact(8) {
                            let (start, end) = (number(block, 0)?, number(block, 4)?);
                            sack.push(SackBlock { start, end });
                        }
                    }
                    _ => return None,
                }
                options = &options[length..];
            }
        }
    }
    Some((timestamps, sack))
}

/// The options of a segment, padded to words as Linux does.
fn written(segment: &Segment) -> Vec<u8> {
    let mut options = Vec::new();
    if let Some(stamps) = segment.timestamps {
        options.extend([NOTHING, NOTHING, TIMESTAMPS, 10]);
        options.extend(stamps.value.to_be_bytes());
        options.extend(stamps.echo.to_be_bytes());
    }
    if !segment.sack.is_empty() {
        let length = 2 + 8 * u8::try_from(segment.sack.len()).unwrap_or(0);
        options.extend([NOTHING, NOTHING, SACK, length]);
        for block in segment.sack.iter() {
            options.extend(block.start.to_be_bytes());
            options.extend(block.end.to_be_bytes());
        }
    }
    options
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// The Internet checksum (RFC 1071) of pieces of even length, but for the last.
pub fn checksum(pieces: &[&[u8]]) -> u16 {
    let words = pieces.iter().flat_map(|piece| piece.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of one family with these options and this payload, without checksums.
    fn packet(v6: bool, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let header = TCP_HEADER + options.len();
        let length = u16::try_from(header + payload.len()).expect("a short one");
        let mut packet = if v6 {
            let mut ip = vec![0x60, 0x20, 0, 0];
            ip.extend(length.to_be_bytes());
            ip.extend([TCP, 64]);
            ip.extend([0xfd; 16]);
            ip.extend([0xfe; 16]);
            ip
        } else {
            let mut ip = vec![0x45, 2];
            ip.extend((length + 20).to_be_bytes());
            ip.extend([0, 7, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            ip
        };
        packet.extend([0x12, 0x34, 0, 80, 0, 0, 0, 9, 0, 0, 0, 5]);
        packet.extend([(header as u8 / 4) << 4, flags, 1, 0, 0, 0, 0, 0]);
        packet.extend(options);
        packet.extend(payload);
        packet
    }

    /// The sum over a segment and its pseudo-header; zero if the checksum is right.
    fn sum(packet: &[u8]) -> u16 {
        let layout = layout(packet).expect("a packet");
        let addresses = if layout.tcp == 20 { &packet[12..20] } else { &packet[8..40] };
        let tcp = &packet[layout.tcp..layout.end];
        checksum(&[addresses, &[0, TCP], &(tcp.len() as u16).to_be_bytes(), tcp])
    }

    #[test]
    fn a_packet_of_either_family_is_read_and_written() {
        let stamps = [1, 1, 8, 10, 0, 0, 0, 3, 0, 0, 0, 4];
        let blocks = [&stamps[..], &[1, 1, 5, 10, 0, 0, 0, 7, 0, 0, 0, 8]].concat();
        for v6 in [false, true] {
            let whole = packet(v6, 0x10, &blocks, b"odd");
            let padded = [&whole[..], &[0; 6]].concat();
            let (route, segment) = read(&padded).expect("a segment");
            assert_eq!((route.source.port(), route.destination.port()), (0x1234, 80));
            assert_eq!(route.back().source, route.destination);
            assert_eq!((segment.sequence, segment.acknowledgment, segment.length), (9, 5, 3));
            assert_eq!((segment.window, segment.ecn), (256, Ecn::Capable));
            assert_eq!(segment.timestamps, Some(Timestamps { value: 3, echo: 4 }));
            assert_eq!(segment.sack.as_slice(), [SackBlock { start: 7, end: 8 }]);

            let mut changed = Segment { acknowledgment: 77, window: 3, ..segment };
            changed.sack = SackBlocks::default();
            changed.timestamps = Some(Timestamps { value: 5, echo: 6 });
            let new = write(&padded, &changed).expect("a packet");
            assert_eq!(new.len(), whole.len() - 12);
            assert_eq!(read(&new), Some((route, changed)));
            assert_eq!((sum(&new), &new[new.len() - 3..]), (0, &b"odd"[..]));
            assert!(v6 || checksum(&[&new[..20]]) == 0);
        }
    }

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    }

    #[test]
    fn what_no_agent_knows_is_not_read() {
        let plain = packet(false, 0x10, &[], b"data");
        assert!(read(&plain).is_some());
        // TCP Fast Open's cookie, an option that is cut short, a length below its own header's.
        for options in [&[34, 4, 1, 2][..], &[8, 10, 0, 0], &[8, 1, 0, 0]] {
            assert_eq!(read(&packet(false, 0x10, options, b"")), None);
        }
        assert!(read(&packet(false, 0x02, &[34, 4, 1, 2], b"")).is_some(), "a SYN's do not matter");
        for (at, byte) in [(6, 0x20), (7, 1), (9, 17), (0, 0x44), (0, 0x55), (3, 200), (32, 0x40)] {
            let mut other = plain.clone();
            other[at] = byte;
            assert_eq!(read(&other), None, "byte {at}");
        }
        let mut extended = packet(true, 0x10, &[], b"data");
        extended[6] = 0;
        assert_eq!(read(&extended), None, "a hop-by-hop header");
    }

    proptest! {
        #[test]
        fn no_packet_can_hurt(
            head in prop::sample::select(vec![0x45_u8, 0x46, 0x60, 0x00]),
            mut packet in prop::collection::vec(any::<u8>(), 1..120),
        ) {
            packet[0] = head;
            if packet.len() > 9 {
                packet[if head == 0x60 { 6 } else { 9 }] = TCP;
            }
            if let Some((_, segment)) = read(&packet) {
                let new = write(&packet, &segment);
                if let Some(new) = new.filter(|_| !segment.flags.contains(Flags::SYN)) {
                    prop_assert_eq!(sum(&new), 0);
                }
            }
        }

        #[test]
        fn what_is_written_is_read_again(
            v6 in any::<bool>(),
            acknowledgment in any::<u32>(),
            window in any::<u16>(),
            stamps in prop::option::of((any::<u32>(), any::<u32>())),
            blocks in prop::collection::vec((any::<u32>(), any::<u32>()), 0..4),
            payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let before = packet(v6, 0x18, &[], &payload);
            let mut segment = read(&before).expect("a segment").1;
            segment.acknowledgment = acknowledgment;
            segment.window = window;
            segment.timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
            let room = if stamps.is_some() { 3 } else { 4 };
            for &(start, end) in blocks.iter().take(room) {
                segment.sack.push(SackBlock { start, end });
            }
            let after = write(&before, &segment).expect("it fits");
            prop_assert_eq!(read(&after).expect("a segment").1, segment);
            prop_assert_eq!(sum(&after), 0);
            prop_assert_eq!(&after[after.len() - payload.len()..], &payload[..]);
        }
    }
}
