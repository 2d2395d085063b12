//! TCP by hand: an end without a kernel that sends the packets that a test wants, and receives what
//! arrives.
use crate::stage::{Family, PATIENCE, Stage, nft};
use midhop_testbed::namespace::Namespace;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;
pub const ECE: u8 = 64;
pub const CWR: u8 = 128;

const TCP: u8 = 6;
const FRAGMENT: u8 = 44;
/// Extension headers of IPv6.
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const AUTHENTICATION: u8 = 51;
pub const DESTINATION: u8 = 60;
/// Interval of retransmissions while there is no response.
const AGAIN: Duration = Duration::from_millis(1000);
/// All packets that arrive at a host: `ETH_P_ALL` in network order.
const ALL: i32 = 0x0300;

/// How a packet differs from the usual ones.
#[derive(Debug, Clone, Default)]
pub struct Odd {
    /// IPv4: options, a multiple of four bytes.
    pub ip_options: Vec<u8>,
    /// IPv6: extension headers, each with its kind and its bytes. The first byte, the next header,
    /// is filled in later.
    pub headers: Vec<(u8, Vec<u8>)>,
    /// It is sent in fragments with this many bytes behind the IP header, a multiple of eight; 0 or
    /// none: whole.
    pub fragments: Option<usize>,
    /// The class of service, including the ECN bits.
    pub class: u8,
    /// TCP options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// Additional flags.
    pub flags: u8,
    /// The urgent pointer.
    pub urgent: u16,
    pub bad_checksum: bool,
    /// IPv6: the final destination, behind the addresses of its routing header.
    pub beyond: Option<IpAddr>,
}

/// A received segment.
#[derive(Debug, Clone)]
pub struct Segment {
    pub from: SocketAddr,
    pub flags: u8,
    pub sequence: u32,
    pub acknowledged: u32,
    pub bytes: Vec<u8>,
    /// IPv6: the kinds and bytes of its extension headers.
    pub headers: Vec<(u8, Vec<u8>)>,
}

impl Segment {
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// The side of the gateway on which an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Client,
    Server,
}

/// One end of a connection.
pub struct Hand {
    send: Socket,
    receive: Socket,
    pub own: SocketAddr,
    pub other: SocketAddr,
    /// The sequence number that it sends next.
    pub next: u32,
    /// The sequence number that it expects next.
    pub expected: u32,
    /// The window that it announces.
    pub window: u16,
    /// Received bytes, in order.
    pub received: Vec<u8>,
    /// Bytes received out of order.
    later: BTreeMap<u32, Vec<u8>>,
    /// Whether the other end has ended its half.
    pub ended: bool,
}

/// The address of an end without a kernel: no kernel responds there.
pub fn address(place: Place, family: Family) -> IpAddr {
    match (place, family) {
        (Place::Client, Family::V4) => [10, 0, 5, 9].into(),
        (Place::Client, Family::V6) => [0xfd00, 0, 0, 5, 0, 0, 0, 9].into(),
        (Place::Server, Family::V4) => [10, 0, 6, 9].into(),
        (Place::Server, Family::V6) => [0xfd00, 0, 0, 6, 0, 0, 0, 9].into(),
    }
}

/// Routes packets for these ends to both places, and keeps the kernels there from responding.
pub fn prepare(stage: &Stage) {
    for (place, host, device) in
        [(Place::Client, &stage.client, "lan0"), (Place::Server, &stage.server, "wan0")]
    {
        nft(host, "add table inet deaf");
        nft(host, "add chain inet deaf c { type filter hook prerouting priority -400; }");
        for family in [Family::V4, Family::V6] {
            let own = address(place, family);
            let (words, via) = match (family, place) {
                (Family::V4, Place::Client) => ("ip", family.client()),
                (Family::V6, Place::Client) => ("ip6", family.client()),
                (Family::V4, Place::Server) => ("ip", family.server()),
                (Family::V6, Place::Server) => ("ip6", family.server()),
            };
            nft(host, &format!("add rule inet deaf c {words} daddr {own} drop"));
            let which = if family == Family::V4 { "-4" } else { "-6" };
            let route = format!("{which} route add {own} via {via} dev {device}");
            let mut command = Command::new("ip");
            command.args(route.split(' ')).stdin(Stdio::null());
            let status = stage.gateway.run(|| command.status()).expect("entering").expect("ip");
            assert!(status.success(), "ip refused: {route}");
        }
    }
}

impl Hand {
    /// An end at a prepared place, with this port.
    pub fn new(stage: &Stage, place: Place, family: Family, port: u16) -> Self {
        let host: &Namespace = if place == Place::Client { &stage.client } else { &stage.server };
        let domain = if family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
        // IPPROTO_RAW: packets with their own headers.
        let raw = || Socket::new_raw(domain, Type::RAW, Some(Protocol::from(255)));
        let send = host.run(raw).expect("entering").expect("a raw socket");
        let all = || Socket::new_raw(Domain::PACKET, Type::DGRAM, Some(Protocol::from(ALL)));
        let receive = host.run(all).expect("entering").expect("a packet socket");
        receive.set_recv_buffer_size(4 << 20).expect("a buffer");
        let own = SocketAddr::new(address(place, family), port);
        let nobody = SocketAddr::new(own.ip(), 0);
        Self {
            send,
            receive,
            own,
            other: nobody,
            next: 1_000_000,
            expected: 0,
            window: 60_000,
            received: Vec::new(),
            later: BTreeMap::new(),
            ended: false,
        }
    }

    /// Opens a connection: `odd` describes the SYN, and the last packet of the handshake.
    pub fn connect(&mut self, other: SocketAddr, odd: &Odd) {
        self.other = other;
        let first = self.next;
        let answer = self.insist(SYN, first, b"", odd, |segment| segment.has(SYN | ACK));
        assert_eq!(answer.acknowledged, first.wrapping_add(1), "another SYN was answered");
        self.next = first.wrapping_add(1);
        self.expected = answer.sequence.wrapping_add(1);
        self.send(ACK, self.next, b"", &Odd::default());
    }

    /// Waits for a SYN of any connection. It is not answered yet.
    pub fn wait_for_syn(&mut self) -> Segment {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "nobody came");
            let Some(segment) = self.listen(AGAIN) else { continue };
            if segment.has(SYN) && !segment.has(ACK) {
                self.other = segment.from;
                self.expected = segment.sequence.wrapping_add(1);
                return segment;
            }
        }
    }

    /// Accepts a connection, and waits until the client is connected.
    pub fn accept(&mut self) {
        self.accept_oddly(&Odd { options: vec![2, 4, 5, 0xb4], ..Odd::default() });
    }

    /// The same, with a SYN-ACK that `odd` describes.
    pub fn accept_oddly(&mut self, odd: &Odd) {
        self.wait_for_syn();
        self.answer(odd);
    }

    /// Answers the SYN that was received.
    pub fn answer(&mut self, odd: &Odd) {
        let first = self.next;
        let segment = self.insist(SYN | ACK, first, b"", odd, |segment| {
            segment.has(ACK) && !segment.has(SYN) && segment.acknowledged == first.wrapping_add(1)
        });
        self.next = first.wrapping_add(1);
        self.take(&segment);
    }

    /// Sends bytes, in order, until they are acknowledged.
    pub fn send_data(&mut self, bytes: &[u8], odd: &Odd) {
        self.send_data_at(self.next, bytes, odd);
    }

    /// Sends bytes at a sequence number, until they are acknowledged.
    pub fn send_data_at(&mut self, at: u32, bytes: &[u8], odd: &Odd) {
        let end = at.wrapping_add(bytes.len() as u32);
        self.next = end;
        self.insist(ACK | PSH, at, bytes, odd, |segment| is_before(end, segment.acknowledged));
    }

    /// Sends a FIN, until it is acknowledged.
    pub fn end(&mut self) {
        let at = self.next;
        let end = at.wrapping_add(1);
        self.next = end;
        self.insist(FIN | ACK, at, b"", &Odd::default(), |segment| {
            is_before(end, segment.acknowledged)
        });
    }

    /// Receives until this many bytes have arrived, or the end, and acknowledges them.
    pub fn receive_data(&mut self, count: usize) {
        let begin = Instant::now();
        while self.received.len() < count && !self.ended {
            assert!(begin.elapsed() < PATIENCE, "only {} bytes came", self.received.len());
            if let Some(segment) = self.listen(AGAIN) {
                self.take(&segment);
                self.acknowledge();
            }
        }
    }

    /// Receives until the other end has ended its half.
    pub fn receive_end(&mut self) {
        self.receive_data(usize::MAX);
    }

    /// Receives until the other end resets the connection.
    pub fn receive_reset(&mut self) {
        let begin = Instant::now();
        while !self.listen(AGAIN).is_some_and(|segment| segment.has(RST)) {
            assert!(begin.elapsed() < PATIENCE, "no reset came");
        }
    }

    pub fn acknowledge(&self) {
        self.send(ACK, self.next, b"", &Odd::default());
    }

    pub fn reset(&self) {
        self.send(RST | ACK, self.next, b"", &Odd::default());
    }

    /// Sends until a response arrives. Other segments are taken as well.
    fn insist(
        &mut self,
        flags: u8,
        at: u32,
        bytes: &[u8],
        odd: &Odd,
        answers: impl Fn(&Segment) -> bool,
    ) -> Segment {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "no answer to {flags:#x} with {odd:?}");
            self.send(flags, at, bytes, odd);
            let sent = Instant::now();
            while let Some(left) = AGAIN.checked_sub(sent.elapsed()) {
                let Some(segment) = self.listen(left) else { break };
                assert!(!segment.has(RST), "a reset in answer to {flags:#x} with {odd:?}");
                if !segment.has(SYN) {
                    self.take(&segment);
                    if segment.has(FIN) || !segment.bytes.is_empty() {
                        self.acknowledge();
                    }
                }
                if answers(&segment) {
                    return segment;
                }
            }
        }
    }

    /// Puts received bytes in order.
    pub fn take(&mut self, segment: &Segment) {
        if !segment.bytes.is_empty() {
            self.later.insert(segment.sequence, segment.bytes.clone());
        }
        while let Some((at, bytes)) = self.later.pop_first() {
            let known = self.expected.wrapping_sub(at);
            if known > 1 << 31 {
                self.later.insert(at, bytes);
                break;
            }
            if let Some(fresh) = bytes.get(known as usize..) {
                self.received.extend_from_slice(fresh);
                self.expected = self.expected.wrapping_add(fresh.len() as u32);
            }
        }
        let end = segment.sequence.wrapping_add(segment.bytes.len() as u32);
        if segment.has(FIN) && end == self.expected && !self.ended {
            self.ended = true;
            self.expected = self.expected.wrapping_add(1);
        }
    }

    /// The next segment of the connection; none: none arrived in this time.
    pub fn listen(&self, patience: Duration) -> Option<Segment> {
        let begin = Instant::now();
        let mut packet = vec![0; 70_000];
        loop {
            let left = patience.checked_sub(begin.elapsed())?.max(Duration::from_millis(1));
            self.receive.set_read_timeout(Some(left)).expect("a timeout");
            let Ok(count) = (&self.receive).read(&mut packet) else { continue };
            let Some((segment, to)) = read(&packet[..count]) else { continue };
            let is_ours = self.other.port() == 0 || segment.from == self.other;
            if to == self.own && is_ours {
                return Some(segment);
            }
        }
    }

    /// Sends one segment.
    pub fn send(&self, flags: u8, at: u32, bytes: &[u8], odd: &Odd) {
        let acknowledged = if flags & ACK == 0 { 0 } else { self.expected };
        let flags = flags | odd.flags | if odd.urgent > 0 { URG } else { 0 };
        let mut tcp = Vec::new();
        tcp.extend(self.own.port().to_be_bytes());
        tcp.extend(self.other.port().to_be_bytes());
        tcp.extend(at.to_be_bytes());
        tcp.extend(acknowledged.to_be_bytes());
        tcp.extend([((5 + odd.options.len() / 4) << 4) as u8, flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(odd.urgent.to_be_bytes());
        tcp.extend(&odd.options);
        tcp.extend(bytes);
        let end = odd.beyond.unwrap_or(self.other.ip());
        let sum = checksum(self.own.ip(), end, &tcp) ^ u16::from(odd.bad_checksum);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        for packet in packets(self.own.ip(), self.other.ip(), &tcp, odd, at as u16) {
            let to = SockAddr::from(SocketAddr::new(self.other.ip(), 0));
            self.send.send_to(&packet, &to).expect("a packet");
        }
    }
}

/// Whether a sequence number is not after another.
fn is_before(one: u32, other: u32) -> bool {
    other.wrapping_sub(one) < 1 << 31
}

/// The IP packets that carry a segment.
fn packets(from: IpAddr, to: IpAddr, tcp: &[u8], odd: &Odd, number: u16) -> Vec<Vec<u8>> {
    let size = odd.fragments.filter(|size| *size > 0);
    let pieces: Vec<&[u8]> = tcp.chunks(size.unwrap_or(tcp.len())).collect();
    let mut at = 0;
    let mut packets = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let more = index + 1 < pieces.len();
        let mut packet = Vec::new();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // Only the first fragment has the options that are not copied.
                let header = 20 + odd.ip_options.len();
                packet.extend([0x40 | (header / 4) as u8, odd.class]);
                packet.extend(((header + piece.len()) as u16).to_be_bytes());
                packet.extend((number | 1).to_be_bytes());
                let flags = if odd.fragments.is_some() { 0 } else { 0x4000 };
                let offset = (at / 8) as u16 | if more { 0x2000 } else { flags };
                packet.extend(offset.to_be_bytes());
                packet.extend([64, TCP, 0, 0]);
                packet.extend(from.octets());
                packet.extend(to.octets());
                packet.extend(&odd.ip_options);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut headers = odd.headers.clone();
                if odd.fragments.is_some() {
                    let offset = (at as u16 & !7) | u16::from(more);
                    let [high, low] = offset.to_be_bytes();
                    let [one, two] = number.to_be_bytes();
                    headers.push((FRAGMENT, vec![0, 0, high, low, 0, 1, one, two]));
                }
                let kinds: Vec<u8> = headers.iter().map(|(kind, _)| *kind).chain([TCP]).collect();
                let length: usize = headers.iter().map(|(_, bytes)| bytes.len()).sum();
                packet.extend([0x60 | odd.class >> 4, odd.class << 4, 0, 0]);
                packet.extend(((length + piece.len()) as u16).to_be_bytes());
                packet.extend([kinds[0], 64]);
                packet.extend(from.octets());
                packet.extend(to.octets());
                for ((_, bytes), next) in headers.iter().zip(&kinds[1..]) {
                    packet.push(*next);
                    packet.extend(&bytes[1..]);
                }
            }
            _ => unreachable!("both are of one family"),
        }
        at += piece.len();
        packet.extend(*piece);
        packets.push(packet);
    }
    packets
}

/// A segment, and its receiver.
fn read(packet: &[u8]) -> Option<(Segment, SocketAddr)> {
    let mut headers = Vec::new();
    let (from, to, tcp): (IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&TCP) => {
            let from: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            let header = usize::from(packet[0] & 15) * 4;
            let whole = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            // A super-packet of the kernel may be too long for the length field.
            let whole = if whole == 0 { packet.len() } else { whole };
            (from.into(), to.into(), packet.get(header..whole)?)
        }
        6 => {
            let from: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            let whole = if length == 0 { packet.len() } else { 40 + length };
            let (mut kind, mut at) = (*packet.get(6)?, 40);
            while kind != TCP {
                let length = usize::from(*packet.get(at + 1)?);
                let length = match kind {
                    HOP_BY_HOP | ROUTING | DESTINATION => length * 8 + 8,
                    AUTHENTICATION => length * 4 + 8,
                    _ => return None,
                };
                let header = packet.get(at..at + length)?;
                headers.push((kind, header.to_vec()));
                (kind, at) = (header[0], at + length);
            }
            (from.into(), to.into(), packet.get(at..whole)?)
        }
        _ => return None,
    };
    let short = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
    let segment = Segment {
        from: SocketAddr::new(from, short(0)?),
        flags: *tcp.get(13)?,
        sequence: long(4)?,
        acknowledged: long(8)?,
        bytes: tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?.to_vec(),
        headers,
    };
    Some((segment, SocketAddr::new(to, short(2)?)))
}

/// The checksum (RFC 1071) of a segment and its pseudo-header.
fn checksum(from: IpAddr, to: IpAddr, tcp: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => bytes.extend([from.octets(), to.octets()].concat()),
        (IpAddr::V6(from), IpAddr::V6(to)) => bytes.extend([from.octets(), to.octets()].concat()),
        _ => unreachable!("both are of one family"),
    }
    bytes.extend([0, TCP]);
    bytes.extend((tcp.len() as u16).to_be_bytes());
    bytes.extend(tcp);
    let words = bytes.chunks(2);
    let sum: u64 = words
        .map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |low| u64::from(*low)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !(folded as u16)
}
