//! Segments as IP packets: writes them with checksums, and validates what it reads.
//!
//! Source: RFC 791, RFC 8200, RFC 9293 §3.1–3.2, RFC 7323, RFC 2018; checksums RFC 1071.
//!
//! Invariant: no input makes [`read()`] panic, and [`read()`] reads back what [`write()`] writes.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use crate::segment::{Ecn, Flags, HEADER_SIZE, Segment, Timestamps};

mod options;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const PROTOCOL_TCP: u8 = 6;

/// Source and destination of a segment. Both are of the same family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

impl Addresses {
    /// The reverse direction.
    pub fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source }
    }
}

/// A segment read from a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its source and destination.
    pub addresses: Addresses,
    /// Header and options; its [`Segment::offset`] is 0, since no header has it.
    pub segment: Segment,
    /// Where in the packet the payload is.
    pub payload: Range<usize>,
}

/// A packet that holds no TCP segment, or a broken one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It ends before its headers do.
    #[error("the packet ends after {length} bytes, within its {header} header")]
    Short {
        /// The packet's length.
        length: usize,
        /// The header that is cut.
        header: &'static str,
    },
    /// A length field contradicts another or the packet.
    #[error("the {header} header states {stated} bytes where {there} are possible")]
    Length {
        /// The header with the length field.
        header: &'static str,
        /// The value of the field.
        stated: usize,
        /// The possible length.
        there: usize,
    },
    /// Neither IPv4 nor IPv6.
    #[error("IP version {version}; only 4 and 6 are read")]
    Version {
        /// The first four bits.
        version: u8,
    },
    /// Another protocol, or an IPv6 extension header.
    #[error("protocol {protocol} is not TCP")]
    Protocol {
        /// The header's value.
        protocol: u8,
    },
    /// A fragment: this reader does not reassemble datagrams.
    #[error("a fragment; send it with a smaller MTU, or with DF")]
    Fragment,
    /// A checksum is wrong.
    #[error("the {header} checksum does not fit; was it left to a network card's offload?")]
    Checksum {
        /// The header with the checksum.
        header: &'static str,
    },
}

/// Two addresses of different families, or a payload that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// One address is IPv4, the other IPv6.
    #[error("{source_address} and {destination} are of different families; give two of one")]
    Families {
        /// The sender.
        source_address: IpAddr,
        /// The receiver.
        destination: IpAddr,
    },
    /// A segment whose length is not that of its payload.
    #[error("the segment states {stated} bytes of payload, {there} were given")]
    Payload {
        /// The value of [`Segment::length`].
        stated: u32,
        /// The length of the given payload.
        there: usize,
    },
    /// The packet would be longer than an IP packet can be.
    #[error("{size} bytes do not fit an IP packet; cut the segment")]
    Size {
        /// Its length.
        size: usize,
    },
}

/// Appends a segment to `out` as an IP packet.
///
/// # Errors
/// Addresses or payload do not fit the segment; `out` is then unchanged.
pub fn write(
    segment: &Segment,
    addresses: Addresses,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    if u32::try_from(payload.len()) != Ok(segment.length) {
        return Err(WriteError::Payload { stated: segment.length, there: payload.len() });
    }
    let (options, used) = options::write(segment);
    let options = &options[..used];
    let tcp = HEADER_SIZE as usize + options.len() + payload.len();
    let (source, destination) = (addresses.source.ip(), addresses.destination.ip());
    let header = if source.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER };
    // IPv6 does not count its header, IPv4 does.
    let length = if source.is_ipv4() { tcp + header } else { tcp };
    let Ok(length) = u16::try_from(length) else {
        return Err(WriteError::Size { size: tcp + header });
    };
    let start = out.len();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            write_ipv4(length, segment.ecn, source, destination, out);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            write_ipv6(length, segment.ecn, source, destination, out);
        }
        _ => return Err(WriteError::Families { source_address: source, destination }),
    }
    out.extend(addresses.source.port().to_be_bytes());
    out.extend(addresses.destination.port().to_be_bytes());
    out.extend(segment.sequence.to_be_bytes());
    out.extend(segment.acknowledgment.to_be_bytes());
    // The header's length in words, in the upper half of a byte; options have at most 40 bytes.
    out.push((((HEADER_SIZE as usize + options.len()) / 4) << 4) as u8);
    out.push(segment.flags.bits());
    out.extend(segment.window.to_be_bytes());
    // Checksum and urgent pointer.
    out.extend([0; 4]);
    out.extend(options);
    out.extend(payload);
    let sum = pseudo(source, destination, tcp).add(&out[start + header..]).folded();
    out[start + header + 16..start + header + 18].copy_from_slice(&(!sum).to_be_bytes());
    Ok(())
}

fn write_ipv4(length: u16, ecn: Ecn, from: Ipv4Addr, to: Ipv4Addr, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0x45, ecn_bits(ecn)]);
    out.extend(length.to_be_bytes());
    // No identification; do not fragment (RFC 6864 §4.1).
    out.extend([0, 0, 0x40, 0]);
    out.extend([64, PROTOCOL_TCP, 0, 0]);
    out.extend(from.octets());
    out.extend(to.octets());
    let sum = Sum::default().add(&out[start..]).folded();
    out[start + 10..start + 12].copy_from_slice(&(!sum).to_be_bytes());
}

fn write_ipv6(length: u16, ecn: Ecn, from: Ipv6Addr, to: Ipv6Addr, out: &mut Vec<u8>) {
    out.extend([0x60, ecn_bits(ecn) << 4, 0, 0]);
    out.extend(length.to_be_bytes());
    out.extend([PROTOCOL_TCP, 64]);
    out.extend(from.octets());
    out.extend(to.octets());
}

/// Reads a TCP segment from an IP packet. Bytes behind the packet's own length are padding.
///
/// # Errors
/// The packet holds no segment that this endpoint can use.
pub fn read(packet: &[u8]) -> Result<Packet, ReadError> {
    let short = |header| ReadError::Short { length: packet.len(), header };
    let first = packet.first().ok_or(short("IP"))?;
    let network = match first >> 4 {
        4 => read_ipv4(packet)?,
        6 => read_ipv6(packet)?,
        version => return Err(ReadError::Version { version }),
    };
    let tcp = &packet[network.body.clone()];
    let header: &[u8; HEADER_SIZE as usize] = tcp.first_chunk().ok_or(short("TCP"))?;
    let offset = usize::from(header[12] >> 4) * 4;
    if !(header.len()..=tcp.len()).contains(&offset) {
        return Err(ReadError::Length { header: "TCP", stated: offset, there: tcp.len() });
    }
    let (source, destination) = (network.source, network.destination);
    if pseudo(source, destination, tcp.len()).add(tcp).folded() != 0xffff {
        return Err(ReadError::Checksum { header: "TCP" });
    }
    let short_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let word_at = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let mut segment = Segment {
        sequence: word_at(4),
        acknowledgment: word_at(8),
        // A packet has at most 65,575 bytes.
        length: (tcp.len() - offset) as u32,
        window: short_at(14),
        flags: Flags::from_bits(header[13]),
        ecn: network.ecn,
        ..Segment::default()
    };
    options::read(&tcp[header.len()..offset], &mut segment);
    Ok(Packet {
        addresses: Addresses {
            source: SocketAddr::new(source, short_at(0)),
            destination: SocketAddr::new(destination, short_at(2)),
        },
        segment,
        payload: network.body.start + offset..network.body.end,
    })
}

/// The fields of the IP header.
struct Network {
    source: IpAddr,
    destination: IpAddr,
    ecn: Ecn,
    body: Range<usize>,
}

fn read_ipv4(packet: &[u8]) -> Result<Network, ReadError> {
    let short = ReadError::Short { length: packet.len(), header: "IPv4" };
    let header: &[u8; IPV4_HEADER] = packet.first_chunk().ok_or(short)?;
    let length = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if length < header.len() || length > packet.len() {
        return Err(ReadError::Length { header: "IPv4", stated: length, there: packet.len() });
    }
    if total < length || total > packet.len() {
        return Err(ReadError::Length { header: "IPv4", stated: total, there: packet.len() });
    }
    if Sum::default().add(&packet[..length]).folded() != 0xffff {
        return Err(ReadError::Checksum { header: "IPv4" });
    }
    // More fragments, or not the first.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(ReadError::Fragment);
    }
    if header[9] != PROTOCOL_TCP {
        return Err(ReadError::Protocol { protocol: header[9] });
    }
    let address = |at: usize| {
        Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).into()
    };
    Ok(Network {
        source: address(12),
        destination: address(16),
        ecn: ecn_of(header[1]),
        body: length..total,
    })
}

fn read_ipv6(packet: &[u8]) -> Result<Network, ReadError> {
    let short = ReadError::Short { length: packet.len(), header: "IPv6" };
    let header: &[u8; IPV6_HEADER] = packet.first_chunk().ok_or(short)?;
    let body = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let there = packet.len() - header.len();
    if body > there {
        return Err(ReadError::Length { header: "IPv6", stated: body, there });
    }
    if header[6] != PROTOCOL_TCP {
        return Err(ReadError::Protocol { protocol: header[6] });
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets).into()
    };
    Ok(Network {
        source: address(8),
        destination: address(24),
        ecn: ecn_of(header[1] >> 4),
        body: header.len()..header.len() + body,
    })
}

fn ecn_bits(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::NotCapable => 0,
        Ecn::CapableOne => 1,
        Ecn::Capable => 2,
        Ecn::Congested => 3,
    }
}

fn ecn_of(traffic_class: u8) -> Ecn {
    match traffic_class & 3 {
        0 => Ecn::NotCapable,
        1 => Ecn::CapableOne,
        2 => Ecn::Capable,
        _ => Ecn::Congested,
    }
}

/// The Internet checksum (RFC 1071): a sum of 16-bit words in ones' complement.
#[derive(Debug, Clone, Copy, Default)]
struct Sum(u64);

impl Sum {
    fn add(mut self, bytes: &[u8]) -> Self {
        let mut words = bytes.chunks_exact(2);
        for word in &mut words {
            self.0 += u64::from(u16::from_be_bytes([word[0], word[1]]));
        }
        if let [last] = words.remainder() {
            self.0 += u64::from(*last) << 8;
        }
        self
    }

    fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }
}

/// The pseudo-header that the TCP checksum covers.
fn pseudo(source: IpAddr, destination: IpAddr, tcp: usize) -> Sum {
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Sum::default().add(&source.octets()).add(&destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Sum::default().add(&source.octets()).add(&destination.octets())
        }
        _ => Sum::default(),
    };
    Sum(sum.0 + u64::from(PROTOCOL_TCP) + (tcp as u64 & 0xffff) + (tcp as u64 >> 16))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::segment::{SackBlock, SackBlocks, SynOptions};

    /// A SYN of Linux 6.18, captured by a packet socket.
    const SYN: [u8; 60] = [
        0x45, 0x00, 0x00, 0x3c, 0xcc, 0xf9, 0x40, 0x00, 0x40, 0x06, 0xe9, 0xbe, 0xc0, 0x00, 0x02,
        0x01, 0xc0, 0x00, 0x02, 0x02, 0x84, 0x32, 0x00, 0x50, 0x04, 0x27, 0x77, 0xbb, 0x00, 0x00,
        0x00, 0x00, 0xa0, 0x02, 0xfa, 0xf0, 0x68, 0x66, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4, 0x04,
        0x02, 0x08, 0x0a, 0xbc, 0x50, 0xa3, 0xec, 0x00, 0x00, 0x00, 0x00, 0x01, 0x03, 0x03, 0x0a,
    ];

    fn blocks() -> impl Strategy<Value = SackBlocks> {
        prop::collection::vec(any::<(u32, u32)>(), 0..4).prop_map(|blocks| {
            let mut sack = SackBlocks::default();
            for (start, end) in blocks {
                sack.push(SackBlock { start, end });
            }
            sack
        })
    }

    fn segments() -> impl Strategy<Value = Segment> {
        let header = (any::<u32>(), any::<u32>(), any::<u16>(), any::<u8>(), 0..4_u8);
        let syn = (any::<Option<u16>>(), prop::option::of(0..15_u8), any::<bool>());
        let timestamps = any::<Option<(u32, u32)>>();
        (header, timestamps, blocks(), syn).prop_map(|(header, timestamps, sack, syn)| {
            let (sequence, acknowledgment, window, flags, ecn) = header;
            let flags = Flags::from_bits(flags);
            let opens = flags.contains(Flags::SYN);
            let (mss, window_scale, sack_permitted) = syn;
            Segment {
                sequence,
                acknowledgment,
                window,
                flags,
                ecn: ecn_of(ecn),
                timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                sack: if opens { SackBlocks::default() } else { sack },
                syn: if opens {
                    SynOptions { mss, window_scale, sack_permitted }
                } else {
                    SynOptions::default()
                },
                ..Segment::default()
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            segment in segments(),
            payload in prop::collection::vec(any::<u8>(), 0..200),
            six in any::<bool>(),
            padding in 0..7_usize,
        ) {
            let segment = Segment { length: payload.len() as u32, ..segment };
            let addresses = if six {
                Addresses {
                    source: "[2001:db8::1]:443".parse().unwrap(),
                    destination: "[fd00::9]:50000".parse().unwrap(),
                }
            } else {
                Addresses {
                    source: "10.0.0.1:443".parse().unwrap(),
                    destination: "192.0.2.9:50000".parse().unwrap(),
                }
            };
            let mut bytes = Vec::new();
            write(&segment, addresses, &payload, &mut bytes).unwrap();
            prop_assert_eq!(bytes.len(), segment.size() as usize + if six { 40 } else { 20 });
            let whole = bytes.len();
            bytes.extend(vec![0; padding]);
            let packet = read(&bytes).unwrap();
            prop_assert_eq!(packet.addresses, addresses);
            prop_assert_eq!(packet.segment, segment);
            prop_assert_eq!(&bytes[packet.payload], &payload[..]);
            // Each flipped bit is detected, or is in a field that is not read.
            for at in 0..whole {
                bytes[at] ^= 0x10;
                if let Ok(other) = read(&bytes) {
                    prop_assert!(six && at < 8, "byte {at} changed, and {:?} was read", other);
                }
                bytes[at] ^= 0x10;
            }
            for cut in 0..whole {
                prop_assert!(read(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn nothing_makes_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = 0x60;
                let _ = read(&bytes);
            }
            let mut segment = Segment::default();
            options::read(&bytes, &mut segment);
        }
    }

    #[test]
    fn a_linux_syn_is_understood() {
        let mut bytes = SYN;
        let packet = read(&bytes).unwrap();
        assert_eq!(packet.addresses.source, "192.0.2.1:33842".parse().unwrap());
        assert_eq!(packet.segment.flags, Flags::SYN);
        assert_eq!(packet.segment.window, 64240);
        let syn = SynOptions { mss: Some(1460), window_scale: Some(10), sack_permitted: true };
        assert_eq!(packet.segment.syn, syn);
        assert_eq!(packet.segment.timestamps, Some(Timestamps { value: 0xbc50_a3ec, echo: 0 }));
        assert_eq!(packet.payload, 60..60);
        bytes[30] ^= 1;
        assert_eq!(read(&bytes), Err(ReadError::Checksum { header: "TCP" }));
        bytes[8] ^= 1;
        assert_eq!(read(&bytes), Err(ReadError::Checksum { header: "IPv4" }));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let four = Addresses {
            source: "10.0.0.1:1".parse().unwrap(),
            destination: "10.0.0.2:2".parse().unwrap(),
        };
        let mixed = Addresses { destination: "[::1]:2".parse().unwrap(), ..four };
        let mut out = vec![1, 2, 3];
        let segment = Segment { length: 2, ..Segment::default() };
        let expected = WriteError::Payload { stated: 2, there: 3 };
        assert_eq!(write(&segment, four, &[0; 3], &mut out), Err(expected));
        assert!(write(&segment, mixed, &[0; 2], &mut out).is_err());
        let large = Segment { length: 65_500, ..Segment::default() };
        let error = write(&large, four, &vec![0; 65_500], &mut out);
        assert_eq!(error, Err(WriteError::Size { size: 65_540 }));
        assert_eq!(out, [1, 2, 3]);
    }
}
