//! Reports of two D-Proxies to each other, as UDP datagrams of their own.
//!
//! After the headers of IP and UDP: the kind, three bytes of zero, source and destination address of the flow's
//! direction, its ports, and the two sequence numbers.

use crate::Repair;
use crate::wire::{Route, checksum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
/// Port of both agents.
const PORT: u16 = 7;
const TTL: u8 = 64;
const WANTED: u8 = 1;
const LACKING: u8 = 2;

/// A packet from one agent to the other, from its network header on. All addresses are of one family, else it is `None`.
pub fn write(source: IpAddr, destination: IpAddr, route: Route, repair: Repair) -> Option<Vec<u8>> {
    let (kind, from, to) = match repair {
        Repair::Wanted { from, to } => (WANTED, from, to),
        Repair::Lacking { from, to } => (LACKING, from, to),
    };
    let mut body = vec![kind, 0, 0, 0];
    for end in [route.source, route.destination] {
        match (source, end.ip()) {
            (IpAddr::V4(_), IpAddr::V4(address)) => body.extend(address.octets()),
            (IpAddr::V6(_), IpAddr::V6(address)) => body.extend(address.octets()),
            _ => return None,
        }
    }
    body.extend(route.source.port().to_be_bytes());
    body.extend(route.destination.port().to_be_bytes());
    body.extend(from.to_be_bytes());
    body.extend(to.to_be_bytes());

    let length = u16::try_from(UDP_HEADER + body.len()).ok()?;
    let mut udp = Vec::new();
    for field in [PORT, PORT, length, 0] {
        udp.extend(field.to_be_bytes());
    }
    udp.extend(body);
    let (mut packet, addresses) = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let addresses = [source.octets(), destination.octets()].concat();
            let mut ip = vec![0x45, 0];
            ip.extend((length + 20).to_be_bytes());
            ip.extend([0, 0, 0x40, 0, TTL, UDP, 0, 0]);
            ip.extend(&addresses);
            let sum = checksum(&[&ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            (ip, addresses)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let addresses = [source.octets(), destination.octets()].concat();
            let mut ip = vec![0x60, 0, 0, 0];
            ip.extend(length.to_be_bytes());
            ip.extend([UDP, TTL]);
            ip.extend(&addresses);
            (ip, addresses)
        }
        _ => return None,
    };
    let sum = checksum(&[&addresses, &[0, UDP], &length.to_be_bytes(), &udp]);
    // All ones stand for zero, which would say that there is none (RFC 768).
    let sum = if sum == 0 { u16::MAX } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    packet.extend(udp);
    Some(packet)
}

/// The report in a packet to `destination`, if it is one of [`write()`].
pub fn read(packet: &[u8], destination: IpAddr) -> Option<(Route, Repair)> {
    let (header, width) = match destination {
        IpAddr::V4(address) => {
            let is_own = packet.get(16..20)? == address.octets();
            (packet.first() == Some(&0x45) && packet[9] == UDP && is_own).then_some((20, 4))?
        }
        IpAddr::V6(address) => {
            let is_own = packet.get(24..40)? == address.octets();
            (packet[0] >> 4 == 6 && packet[6] == UDP && is_own).then_some((40, 16))?
        }
    };
    let udp = packet.get(header..)?;
    let word = |at: usize| Some(u16::from_be_bytes(udp.get(at..at + 2)?.try_into().ok()?));
    let length = UDP_HEADER + 4 + 2 * width + 12;
    if word(0)? != PORT || word(2)? != PORT || usize::from(word(4)?) != length || udp.len() < length
    {
        return None;
    }
    let addresses = if width == 4 { &packet[12..20] } else { &packet[8..40] };
    let (udp, size) = (&udp[..length], (length as u16).to_be_bytes());
    if checksum(&[addresses, &[0, UDP], &size, udp]) != 0 {
        return None;
    }
    let body = &udp[UDP_HEADER..];
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = body.get(at..at + width)?;
        <[u8; 4]>::try_from(bytes)
            .map(|it| Ipv4Addr::from(it).into())
            .or_else(|_| <[u8; 16]>::try_from(bytes).map(|it| Ipv6Addr::from(it).into()))
            .ok()
    };
    let ports = UDP_HEADER + 4 + 2 * width;
    let ends = [(4, ports), (4 + width, ports + 2)];
    let [source, destination] =
        ends.map(|(at, port)| Some(SocketAddr::new(address(at)?, word(port)?)));
    let number = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let (from, to) = (number(8 + 2 * width)?, number(12 + 2 * width)?);
    let repair = match body[0] {
        WANTED => Repair::Wanted { from, to },
        LACKING => Repair::Lacking { from, to },
        _ => return None,
    };
    Some((Route { source: source?, destination: destination? }, repair))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agents(v6: bool) -> [IpAddr; 2] {
        let texts = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        texts.map(|text| text.parse().expect("an address"))
    }

    proptest! {
        #[test]
        fn reports_are_read_as_they_were_written(
            v6 in any::<bool>(),
            wanted in any::<bool>(),
            (from, to) in any::<(u32, u32)>(),
            ports in any::<[u16; 2]>(),
            damaged in prop::option::of((any::<prop::sample::Index>(), 1_u8..)),
        ) {
            let [one, other] = agents(v6);
            let route = Route { source: (other, ports[0]).into(), destination: (one, ports[1]).into() };
            let repair =
                if wanted { Repair::Wanted { from, to } } else { Repair::Lacking { from, to } };
            let mut packet = write(one, other, route, repair).expect("of one family");
            prop_assert_eq!(packet.len(), if v6 { 96 } else { 52 });
            prop_assert_eq!(read(&packet, other), Some((route, repair)));
            prop_assert_eq!(read(&packet, one), None);
            prop_assert_eq!(read(&packet, agents(!v6)[1]), None);
            for length in 0..packet.len() {
                prop_assert_eq!(read(&packet[..length], other), None);
            }
            // What UDP's checksum covers.
            if let Some((at, flip)) = damaged {
                let at = at.index(packet.len() - if v6 { 40 } else { 20 });
                let at = packet.len() - 1 - at;
                packet[at] ^= flip;
                prop_assert_eq!(read(&packet, other), None, "byte {}", at);
            }
        }
    }
}
