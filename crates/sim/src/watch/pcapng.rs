//! Packets in pcapng files, one for each end of each link, as a capture at that interface would see them.
//! Another file per link holds what the link dropped, each packet with its cause as a comment.
//!
//! A capture has the headers of each packet, and its whole length; the payload, which does not exist, is
//! cut off. Times count from the run's start, in nanoseconds.
//!
//! Source: draft-ietf-opsawg-pcapng; link type 101, raw IP.

use super::{Sight, Watcher};
use crate::hop::Hop;
use crate::packet::{Body, Packet, UDP_HEADER};
use midhop_experiment::Plan;
use midhop_experiment::limit::Family;
use midhop_path::Direction;
use midhop_tcp::wire::{self, Addresses};
use midhop_units::Instant;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const RAW_IP: u16 = 101;
const OPTION_COMMENT: u16 = 1;
const OPTION_NAME: u16 = 2;
const OPTION_FLAGS: u16 = 2;
const OPTION_RESOLUTION: u16 = 9;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// The largest packet.
const PACKET_MAX: usize = 1 << 16;

/// Captures on both ends of every link.
#[derive(Debug)]
pub struct Captures {
    /// By the number of the node.
    addresses: Vec<[IpAddr; 2]>,
    /// By the link's name: at its first node, at its second, and what it dropped.
    links: BTreeMap<String, [File; 3]>,
    packet: Vec<u8>,
    fault: Option<io::Error>,
}

/// The output of captures.
struct File(Box<dyn Write>);

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("File")
    }
}

impl Captures {
    /// Captures of the links of `plan`. `open` gets the name of each capture, such as
    /// `satellite@gateway` or `satellite.dropped`, and returns its output.
    ///
    /// # Errors
    /// When an output cannot be opened or written to.
    pub fn new(
        plan: &Plan,
        mut open: impl FnMut(&str) -> io::Result<Box<dyn Write>>,
    ) -> io::Result<Self> {
        let none = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let addresses = plan.nodes.iter().map(|node| {
            let own = node.interfaces.first();
            own.map_or(none, |own| [own.ipv4.into(), own.ipv6.into()])
        });
        let mut links = BTreeMap::new();
        for link in &plan.links {
            let mut file = |name: String| {
                let mut out = open(&name)?;
                out.write_all(&opening(&name))?;
                io::Result::Ok(File(out))
            };
            let [first, second] = &link.between;
            let files = [
                file(format!("{}@{first}", link.name))?,
                file(format!("{}@{second}", link.name))?,
                file(format!("{}.dropped", link.name))?,
            ];
            links.insert(link.name.clone(), files);
        }
        Ok(Self { addresses: addresses.collect(), links, packet: Vec::new(), fault: None })
    }

    fn capture(
        &mut self,
        now: Instant,
        hop: &Hop,
        sight: Sight,
        packet: &Packet,
    ) -> io::Result<()> {
        let family = usize::from(packet.family == Family::Ipv6);
        let place = |node: usize, port| {
            self.addresses.get(node).map(|both| SocketAddr::new(both[family], port))
        };
        let (Some(source), Some(destination)) = (
            place(packet.source.index(), packet.ports[0]),
            place(packet.destination.index(), packet.ports[1]),
        ) else {
            return Ok(());
        };
        let addresses = Addresses { source, destination };
        self.packet.clear();
        match &packet.body {
            Body::Segment(segment) => {
                static PAYLOAD: [u8; PACKET_MAX] = [0; PACKET_MAX];
                let payload = PAYLOAD.get(..segment.length as usize).unwrap_or_default();
                wire::write(segment, addresses, payload, &mut self.packet)
                    .map_err(io::Error::other)?;
                self.packet.truncate(self.packet.len() - payload.len());
            }
            Body::Datagram(_) | Body::Report(_) | Body::Tunnel(_) => {
                udp_headers(addresses, packet.size, &mut self.packet);
            }
        }
        let Some(files) = self.links.get_mut(&hop.name) else { return Ok(()) };
        // Down leads to the first node.
        let (from, to) = match hop.way {
            Direction::Down => (1, 0),
            Direction::Up => (0, 1),
        };
        let (file, flags, comment) = match sight {
            Sight::Entered => (from, OUTBOUND, None),
            Sight::Left => (to, INBOUND, None),
            Sight::Dropped(cause) => (2, 0, Some(format!("{}: {cause}", hop.way.name()))),
        };
        let mut options = Vec::new();
        if let Some(comment) = comment {
            option(&mut options, OPTION_COMMENT, comment.as_bytes());
        }
        option(&mut options, OPTION_FLAGS, &flags.to_le_bytes());
        option(&mut options, 0, &[]);
        let mut body = Vec::with_capacity(20 + self.packet.len() + options.len() + 3);
        let ns = now.as_ns();
        for word in [0, (ns >> 32) as u32, ns as u32, self.packet.len() as u32, packet.size] {
            body.extend(word.to_le_bytes());
        }
        body.extend(&self.packet);
        pad(&mut body);
        body.extend(options);
        files[file].0.write_all(&block(ENHANCED_PACKET, &body))
    }
}

impl Watcher for Captures {
    fn see(&mut self, now: Instant, hop: &Hop, sight: Sight, packet: &Packet) {
        if self.fault.is_none() {
            self.fault = self.capture(now, hop, sight, packet).err();
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.fault.take() {
            Some(fault) => Err(fault),
            None => self.links.values_mut().flatten().try_for_each(|file| file.0.flush()),
        }
    }
}

/// The beginning of a file: its section, and its one interface.
fn opening(interface: &str) -> Vec<u8> {
    let mut section = Vec::new();
    section.extend(BYTE_ORDER.to_le_bytes());
    section.extend([1, 0, 0, 0]);
    // The length is unknown.
    section.extend(u64::MAX.to_le_bytes());
    let mut own = Vec::new();
    own.extend(RAW_IP.to_le_bytes());
    own.extend([0; 6]);
    option(&mut own, OPTION_NAME, interface.as_bytes());
    // Nanoseconds.
    option(&mut own, OPTION_RESOLUTION, &[9]);
    option(&mut own, 0, &[]);
    [block(SECTION_HEADER, &section), block(INTERFACE, &own)].concat()
}

/// A block: its kind, its length before and behind it.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (12 + body.len() as u32).to_le_bytes();
    [&kind.to_le_bytes()[..], &length, body, &length].concat()
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out);
}

/// Everything is aligned to words.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The headers of a datagram of `size` bytes in all, whose payload is zeros.
fn udp_headers(addresses: Addresses, size: u32, out: &mut Vec<u8>) {
    const UDP: u8 = 17;
    let fold = |words: &[u8]| {
        let sum: u32 = words
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let mut pseudo = Vec::new();
    let length = match (addresses.source.ip(), addresses.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            out.extend([0x45, 0]);
            out.extend((size as u16).to_be_bytes());
            out.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
            out.extend(source.octets());
            out.extend(destination.octets());
            let sum = !fold(out);
            out[10..12].copy_from_slice(&sum.to_be_bytes());
            pseudo.extend(&out[12..20]);
            size.saturating_sub(20) as u16
        }
        (source, destination) => {
            let length = size.saturating_sub(40) as u16;
            out.extend([0x60, 0, 0, 0]);
            out.extend(length.to_be_bytes());
            out.extend([UDP, 64]);
            for address in [source, destination] {
                let octets = match address {
                    IpAddr::V6(address) => address.octets(),
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                };
                out.extend(octets);
            }
            pseudo.extend(&out[8..40]);
            length
        }
    };
    pseudo.extend([0, UDP]);
    pseudo.extend(length.to_be_bytes());
    let start = out.len();
    out.extend(addresses.source.port().to_be_bytes());
    out.extend(addresses.destination.port().to_be_bytes());
    out.extend(length.to_be_bytes());
    pseudo.extend(&out[start..]);
    // Zero stands for no checksum.
    let sum = !fold(&pseudo);
    out.extend(if sum == 0 { u16::MAX } else { sum }.to_be_bytes());
    debug_assert_eq!(out.len() - start, UDP_HEADER as usize);
}
