//! Reports of two D-Proxies to each other, as UDP datagrams of their own.
//!
//! After the headers of IP and UDP: the kind, three bytes of zero, source and destination address of the flow's
//! direction, its ports, and the two sequence numbers.

use crate::wire::{Route, checksum};
use crate::{Report, Topic};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
/// Port of both agents.
const PORT: u16 = 7;
const TTL: u8 = 64;
/// The topics, by their numbers from 1 on.
const TOPICS: [Topic; 4] = [Topic::Wanted, Topic::Lacking, Topic::Arrived, Topic::Resent];
/// A report without its addresses. Unit: bytes.
const BARE: usize = 16;

/// A report on a flow's direction, as bytes. Both addresses are of one family, else it is `None`.
pub fn encode(route: Route, report: Report) -> Option<Vec<u8>> {
    let number = TOPICS.iter().position(|topic| *topic == report.topic)?;
    let mut body = vec![u8::try_from(number + 1).ok()?, 0, 0, 0];
    match (route.source.ip(), route.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            body.extend([source.octets(), destination.octets()].concat());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            body.extend([source.octets(), destination.octets()].concat());
        }
        _ => return None,
    }
    body.extend(route.source.port().to_be_bytes());
    body.extend(route.destination.port().to_be_bytes());
    body.extend(report.from.to_be_bytes());
    body.extend(report.to.to_be_bytes());
    Some(body)
}

/// The report in `body`, if [`encode`] may have written that.
pub fn decode(body: &[u8]) -> Option<(Route, Report)> {
    let width = match body.len().checked_sub(BARE)? {
        8 => 4,
        32 => 16,
        _ => return None,
    };
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = body.get(at..at + width)?;
        <[u8; 4]>::try_from(bytes)
            .map(|it| Ipv4Addr::from(it).into())
            .or_else(|_| <[u8; 16]>::try_from(bytes).map(|it| Ipv6Addr::from(it).into()))
            .ok()
    };
    let port = |at: usize| Some(u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?));
    let number = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let ports = 4 + 2 * width;
    let [source, destination] = [(4, ports), (4 + width, ports + 2)]
        .map(|(at, its)| Some(SocketAddr::new(address(at)?, port(its)?)));
    let route = Route { source: source?, destination: destination? };
    let [kind, 0, 0, 0] = *body.first_chunk()? else { return None };
    let topic = *TOPICS.get(usize::from(kind).checked_sub(1)?)?;
    Some((route, Report { topic, from: number(ports + 4)?, to: number(ports + 8)? }))
}

/// A packet from one agent to the other, from its network header on; `None` if not all addresses are of one family.
pub fn write(source: IpAddr, destination: IpAddr, route: Route, report: Report) -> Option<Vec<u8>> {
    if source.is_ipv4() != route.source.is_ipv4() {
        return None;
    }
    let body = encode(route, report)?;
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
    // A sum of zero is sent as all ones, because zero means that there is no checksum (RFC 768).
    let sum = if sum == 0 { u16::MAX } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    packet.extend(udp);
    Some(packet)
}

/// The report in a packet to `destination`, if [`write()`] may have written that.
pub fn read(packet: &[u8], destination: IpAddr) -> Option<(Route, Report)> {
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
    let length = UDP_HEADER + BARE + 2 * width;
    if word(0)? != PORT || word(2)? != PORT || usize::from(word(4)?) != length || udp.len() < length
    {
        return None;
    }
    let addresses = if width == 4 { &packet[12..20] } else { &packet[8..40] };
    let (udp, size) = (&udp[..length], (length as u16).to_be_bytes());
    if checksum(&[addresses, &[0, UDP], &size, udp]) != 0 {
        return None;
    }
    decode(&udp[UDP_HEADER..])
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
            topic in prop::sample::select(TOPICS.to_vec()),
            (from, to) in any::<(u32, u32)>(),
            ports in any::<[u16; 2]>(),
            damaged in prop::option::of((any::<prop::sample::Index>(), 1_u8..)),
        ) {
            let [one, other] = agents(v6);
            let route = Route { source: (other, ports[0]).into(), destination: (one, ports[1]).into() };
            let report = Report { topic, from, to };
            let mut packet = write(one, other, route, report).expect("of one family");
            prop_assert_eq!(packet.len(), if v6 { 96 } else { 52 });
            prop_assert_eq!(read(&packet, other), Some((route, report)));
            prop_assert_eq!(read(&packet, one), None);
            prop_assert_eq!(read(&packet, agents(!v6)[1]), None);
            for length in 0..packet.len() {
                prop_assert_eq!(read(&packet[..length], other), None);
            }
            // The bytes that UDP's checksum covers.
            if let Some((at, flip)) = damaged {
                let at = at.index(packet.len() - if v6 { 40 } else { 20 });
                let at = packet.len() - 1 - at;
                packet[at] ^= flip;
                prop_assert_eq!(read(&packet, other), None, "byte {}", at);
            }
        }
    }
}
