//! Rebuilds a held SYN as its client sent it.
//!
//! Source and destination NAT have changed its addresses by the time it is held, and it may contain IP options or
//! extension headers. The listener needs only the TCP header with its options.

use super::segment::Segment;
use crate::ends::Ends;
use midhop_assist::wire::checksum;
use std::net::{IpAddr, SocketAddr};

const TCP: u8 = 6;
const CHECKSUM: usize = 16;
const TTL: u8 = 64;

/// Returns a packet that opens a connection between `ends`, from the TCP header of `held`, without its data. The IPv4
/// identification, or the IPv6 flow label, is `tag`. `None` if `held` has no whole TCP header.
pub fn rewrite(held: &[u8], segment: &Segment, ends: Ends, tag: u16) -> Option<Vec<u8>> {
    let mut tcp = header(held, segment)?.to_vec();
    tcp[0..2].copy_from_slice(&ends.client.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&ends.server.port().to_be_bytes());
    tcp[CHECKSUM..CHECKSUM + 2].fill(0);
    let length = u16::try_from(tcp.len()).ok()?;
    let (mut packet, pseudo) = match (ends.client.ip(), ends.server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            let mut ip = vec![0x45, segment.class];
            ip.extend((length + 20).to_be_bytes());
            ip.extend(tag.to_be_bytes());
            ip.extend([0x40, 0, TTL, TCP, 0, 0]);
            ip.extend(client.octets());
            ip.extend(server.octets());
            let sum = checksum(&[&ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            (ip, [&client.octets()[..], &server.octets()].concat())
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            let mut ip = vec![0x60 | segment.class >> 4, segment.class << 4];
            ip.extend(tag.to_be_bytes());
            ip.extend(length.to_be_bytes());
            ip.extend([TCP, TTL]);
            ip.extend(client.octets());
            ip.extend(server.octets());
            (ip, [&client.octets()[..], &server.octets()].concat())
        }
        _ => return None,
    };
    let sum = checksum(&[&pseudo, &[0, TCP], &length.to_be_bytes(), &tcp]);
    tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    packet.extend(tcp);
    Some(packet)
}

/// Whether a held SYN has a correct checksum. A damaged SYN would open another flow than its client requested. A SYN
/// that was truncated on its way here counts as correct.
pub fn is_intact(held: &[u8], segment: &Segment) -> bool {
    let pseudo = match (segment.source.ip(), segment.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => [source.octets(), target.octets()].concat(),
        (IpAddr::V6(source), IpAddr::V6(target)) => [source.octets(), target.octets()].concat(),
        _ => return true,
    };
    let number = |at: usize| {
        let bytes = held.get(at..at + 2)?.try_into().ok()?;
        Some(usize::from(u16::from_be_bytes(bytes)))
    };
    let end = if segment.source.is_ipv4() { number(2) } else { number(4).map(|it| it + 40) };
    let Some(tcp) = end.and_then(|end| held.get(segment.offset..end)) else { return true };
    let Ok(length) = u16::try_from(tcp.len()) else { return true };
    checksum(&[&pseudo, &[0, TCP], &length.to_be_bytes(), tcp]) == 0
}

/// A packet of [`rewrite`] with another tag.
pub fn tagged(packet: &[u8], tag: u16) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let [first, second] = tag.to_be_bytes();
    if packet.first().is_some_and(|byte| byte >> 4 == 4) && packet.len() >= 20 {
        packet[4..6].copy_from_slice(&[first, second]);
        packet[10..12].fill(0);
        let sum = checksum(&[&packet[..20]]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else if packet.len() >= 40 {
        packet[2..4].copy_from_slice(&[first, second]);
    }
    packet
}

/// The body of an ICMP message "destination unreachable" about `packet`, from its type on. The kernel
/// writes the checksum of ICMPv6.
pub fn unreachable(packet: &[u8], server: SocketAddr, code: u8) -> Vec<u8> {
    let kind = if server.is_ipv4() { 3 } else { 1 };
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    message.extend(packet);
    if server.is_ipv4() {
        let sum = checksum(&[&message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}

/// The TCP header with its options.
fn header<'a>(held: &'a [u8], segment: &Segment) -> Option<&'a [u8]> {
    let tcp = held.get(segment.offset..)?;
    let length = usize::from(tcp.get(12)? >> 4) * 4;
    if length < 20 { None } else { tcp.get(..length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP_HEADER: [u8; 24] =
        [0x12, 0x34, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x60, 2, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xb4];

    fn ends(client: &str, server: &str) -> Ends {
        Ends {
            client: client.parse().expect("an address"),
            server: server.parse().expect("an address"),
        }
    }

    #[test]
    fn it_is_the_same_segment_between_other_ends() {
        // With IP options, which are removed, and data, which the client retransmits.
        let mut held = vec![
            0x46, 0x28, 0, 53, 0, 0, 0x40, 0, 60, TCP, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 1, 1, 1, 0,
        ];
        held.extend(TCP_HEADER);
        held.extend(b"data");
        let segment = Segment::parse(&held).expect("a SYN");
        for wanted in [ends("10.0.0.1:5", "10.0.0.2:81"), ends("[fd00::1]:5", "[fd00::2]:81")] {
            let packet = rewrite(&held, &segment, wanted, 7).expect("a packet");
            let read = Segment::parse(&packet).expect("a SYN");
            assert_eq!((read.source, read.destination), (wanted.client, wanted.server));
            assert_eq!((read.class, read.sequence), (0x28, 0x0102_0304));
            assert_eq!(packet[read.offset + 20..], TCP_HEADER[20..]);
            // The checksum over a correct segment, its checksum field included, is zero.
            let addresses = if wanted.client.is_ipv4() { &packet[12..20] } else { &packet[8..40] };
            assert_eq!(checksum(&[addresses, &[0, TCP, 0, 24], &packet[read.offset..]]), 0);
            assert!(is_intact(&packet, &read));
            assert!(is_intact(&packet[..packet.len() - 1], &read), "nobody knows");
            for at in read.offset + 4..packet.len() {
                let mut damaged = packet.clone();
                damaged[at] ^= 4;
                assert!(!is_intact(&damaged, &read), "byte {at}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_packet_can_hurt(packet in proptest::collection::vec(proptest::num::u8::ANY, 0..120)) {
            if let Some(segment) = Segment::parse(&packet) {
                let _ = rewrite(&packet, &segment, ends("10.0.0.1:5", "10.0.0.2:81"), 1);
                let _ = is_intact(&packet, &segment);
            }
        }
    }
}
