//! The headers of a TCP segment, as far as they identify the flow that it opens.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const TCP: u8 = 6;
const HOP_BY_HOP: u8 = 0;
const DESTINATION: u8 = 60;
const ACK: u8 = 0x10;

/// Fields from the headers of a SYN or SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// The class of service: DSCP and ECN bits, as in the header.
    pub class: u8,
    /// The sequence number: for a SYN the initial one.
    pub sequence: u32,
    /// Whether it acknowledges something: a SYN-ACK, if it is a SYN.
    pub acknowledges: bool,
    /// Where the TCP header begins.
    pub offset: usize,
}

impl Segment {
    /// Parses a packet from its network header on. `None` unless the packet is a first fragment
    /// with the whole TCP header. IPv6 headers of options are skipped. Behind any other it is
    /// `None` as well: with a routing header, the destination may be an intermediate node.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => None,
        }
    }

    fn parse_v4(packet: &[u8]) -> Option<Self> {
        let header = usize::from(packet.first()? & 0xf) * 4;
        let fragment = u16::from_be_bytes(array(packet, 6)?) & 0x1fff;
        if header < 20 || fragment != 0 || *packet.get(9)? != TCP {
            return None;
        }
        let source = Ipv4Addr::from(array::<4>(packet, 12)?);
        let destination = Ipv4Addr::from(array::<4>(packet, 16)?);
        let class = *packet.get(1)?;
        Self::parse_tcp(packet, header, source.into(), destination.into(), class)
    }

    fn parse_v6(packet: &[u8]) -> Option<Self> {
        let [first, second] = array(packet, 0)?;
        let class = first << 4 | second >> 4;
        let source = Ipv6Addr::from(array::<16>(packet, 8)?);
        let destination = Ipv6Addr::from(array::<16>(packet, 24)?);
        let mut next = *packet.get(6)?;
        let mut offset = 40;
        while next != TCP {
            if ![HOP_BY_HOP, DESTINATION].contains(&next) {
                return None;
            }
            next = *packet.get(offset)?;
            offset += usize::from(*packet.get(offset + 1)?) * 8 + 8;
        }
        Self::parse_tcp(packet, offset, source.into(), destination.into(), class)
    }

    fn parse_tcp(
        packet: &[u8],
        offset: usize,
        source: IpAddr,
        destination: IpAddr,
        class: u8,
    ) -> Option<Self> {
        let header = packet.get(offset..)?;
        Some(Self {
            offset,
            source: (source, u16::from_be_bytes(array(header, 0)?)).into(),
            destination: (destination, u16::from_be_bytes(array(header, 2)?)).into(),
            class,
            sequence: u32::from_be_bytes(array(header, 4)?),
            acknowledges: header.get(13)? & ACK != 0,
        })
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(flags: u8) -> Vec<u8> {
        let mut header = vec![0x12, 0x34, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, flags];
        header.resize(20, 0);
        header
    }

    #[test]
    fn both_families_are_read() {
        let mut v4 =
            vec![0x45, 0xb8, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        v4.extend(tcp(0x02));
        let segment = Segment::parse(&v4).expect("a SYN");
        assert_eq!(segment.source, "10.0.0.1:4660".parse().expect("an address"));
        assert_eq!(segment.destination, "10.0.0.2:80".parse().expect("an address"));
        assert_eq!((segment.class, segment.sequence), (0xb8, 0x0102_0304));
        assert!(!segment.acknowledges);

        let mut v6 = vec![0x6b, 0x80, 0, 0, 0, 28, DESTINATION, 64];
        v6.extend([0xfd; 16]);
        v6.extend([0xfe; 16]);
        v6.extend([TCP, 0, 1, 4, 0, 0, 0, 0]);
        v6.extend(tcp(0x12));
        let segment = Segment::parse(&v6).expect("a SYN-ACK");
        assert_eq!(segment.class, 0xb8);
        assert!(segment.acknowledges && segment.source.is_ipv6());
        for (kind, name) in [(43, "routing"), (51, "authentication")] {
            v6[6] = kind;
            assert_eq!(Segment::parse(&v6), None, "{name}");
        }
    }

    #[test]
    fn a_later_fragment_is_no_segment() {
        let mut v4 = vec![0x45, 0, 0, 40, 0, 0, 0, 1, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        v4.extend(tcp(0x02));
        assert_eq!(Segment::parse(&v4), None);
    }

    proptest::proptest! {
        #[test]
        fn no_packet_can_hurt(packet in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
            let _ = Segment::parse(&packet);
        }
    }
}
