//! Attackers that send SYNs without wanting a connection, and counters of the SYNs that arrive.
use crate::stage::{Family, Stage, nft};
use midhop_testbed::namespace::Namespace;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Prefixes of spoofed sources, which the gateway routes to the client.
const SPOOFED: [&str; 2] = ["10.64.0.0/10", "fd00:64::/32"];
/// Sources on the client's host that never respond.
const DEAF: [&str; 2] = ["10.0.5.0/24", "fd00:0:0:5::/120"];
/// Targets that respond, on the server's host.
const ANSWERING: [&str; 2] = ["10.128.0.0/16", "fd00:128::/32"];
/// Targets at which no host is.
const BLACK: [&str; 2] = ["10.129.0.0/16", "fd00:129::/32"];
/// Number of ports that each source uses.
const PORTS: u64 = 60_000;
/// The port to which attackers send.
pub const PORT: u16 = 80;

/// The sources and targets of SYNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any source, one server that responds.
    ToOne,
    /// Any source, many servers that respond.
    ToMany,
    /// A source of the client's host that never responds; one server that responds.
    Abandoned,
    /// Any source, many targets at which no host is.
    BlackHoled,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ToOne, Self::ToMany, Self::Abandoned, Self::BlackHoled];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::ToOne => "spoofed, one server",
            Self::ToMany => "spoofed, many servers",
            Self::Abandoned => "abandoned, one server",
            Self::BlackHoled => "spoofed, black holes",
        }
    }
}

/// Prepares the stage: routes to sources and targets, servers that respond, and counters of what
/// arrives.
pub fn invite(stage: &Stage, family: Family) {
    let index = usize::from(family == Family::V6);
    let (client, server) = (family.client(), family.server());
    // The family of a route is that of its prefix.
    ip(&stage.gateway, &format!("route add {} via {client} dev lan0", SPOOFED[index]));
    for targets in [ANSWERING, BLACK] {
        ip(&stage.gateway, &format!("route add {} via {server} dev wan0", targets[index]));
    }
    ip(&stage.server, &format!("route add local {} dev lo", ANSWERING[index]));
    let (words, kind) = if index == 0 { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
    // These sources never respond, not even with a reset.
    let deaf = DEAF[index];
    nft(
        &stage.client,
        &format!(
            "table inet deaf {{ chain c {{ type filter hook prerouting priority -300; \
             {words} daddr {{ {}, {deaf} }} drop; }}; }}",
            SPOOFED[index]
        ),
    );
    ip(&stage.client, &format!("route add local {deaf} dev lo"));
    ip(&stage.gateway, &format!("route add {deaf} via {client} dev lan0"));
    let syn = format!("tcp flags & (fin|syn|rst|ack) == syn tcp dport {PORT}");
    let tuple = format!("{words} saddr . tcp sport . {words} daddr");
    nft(
        &stage.server,
        &format!(
            "table inet seen {{ \
               counter every {{ }}; counter again {{ }}; \
               set tuples {{ type {kind} . inet_service . {kind}; flags dynamic,timeout; timeout 10s; \
                             size 1000000; }}; \
               chain c {{ type filter hook prerouting priority -300; \
                 {syn} counter name every; \
                 {syn} {tuple} @tuples counter name again; \
                 {syn} add @tuples {{ {tuple} }}; \
                 {words} daddr {} drop; }}; }}",
            BLACK[index]
        ),
    );
}

/// A source that never responds.
fn deaf(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 0, 5, number].into(),
        Family::V6 => [0xfd00, 0, 0, 5, 0, 0, 0, u16::from(number)].into(),
    }
}

/// Number of SYNs that arrived at the server's host, and of those whose source, port and target had
/// arrived before.
pub fn arrived(stage: &Stage) -> (u64, u64) {
    (counter(&stage.server, "seen", "every"), counter(&stage.server, "seen", "again"))
}

/// The packets of a counter.
pub fn counter(namespace: &Namespace, table: &str, name: &str) -> u64 {
    let mut command = Command::new("nft");
    command.args(["list", "counter", "inet", table, name]).stdin(Stdio::null());
    let output = namespace.run(|| command.output()).expect("entering").expect("nft");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut words = text.split_whitespace().skip_while(|word| *word != "packets").skip(1);
    words.next().and_then(|word| word.parse().ok()).expect("a number of packets")
}

fn ip(namespace: &Namespace, words: &str) {
    let family = if words.contains("fd00:") { "-6" } else { "-4" };
    let mut command = Command::new("ip");
    command.arg(family).args(words.split(' ')).stdin(Stdio::null());
    let status = namespace.run(|| command.status()).expect("entering").expect("ip starts");
    assert!(status.success(), "ip refused: {words}");
}

/// A sender of SYNs.
pub struct Stranger {
    socket: Socket,
    family: Family,
    dice: u64,
}

impl Stranger {
    /// Creates one on the client's host.
    pub fn new(stage: &Stage, family: Family, seed: u64) -> Self {
        let domain = if family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
        // IPPROTO_RAW: packets with their own headers.
        let open = || Socket::new_raw(domain, Type::RAW, Some(Protocol::from(255)));
        let socket = stage.client.run(open).expect("entering").expect("a raw socket");
        Self { socket, family, dice: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// Sends this many SYNs a second for some time, each with its own source, port and target.
    /// Returns their number. A machine that is too slow sends fewer.
    pub fn flood(&mut self, kind: Kind, rate: u64, time: Duration) -> u64 {
        let (begin, mut sent) = (Instant::now(), 0);
        while begin.elapsed() < time {
            let due = rate * u64::try_from(begin.elapsed().as_millis()).expect("a time") / 1000;
            // SYNs that could not be sent in time are not sent in one burst later.
            for number in 0..due.saturating_sub(sent).min(rate / 50) {
                let (source, target) = self.ends(kind, sent + number);
                self.send(source, target).expect("a SYN");
            }
            sent += due.saturating_sub(sent).min(rate / 50);
            sleep(Duration::from_millis(1));
        }
        sent
    }

    /// Source and target of SYN `number`. No source uses a port twice, up to 15 million SYNs of
    /// sources that never respond, and far more of the others.
    fn ends(&mut self, kind: Kind, number: u64) -> (SocketAddr, SocketAddr) {
        let port = 1024 + u16::try_from(number % PORTS).expect("a port");
        let round = (number / PORTS) as u32;
        // The factor is odd, so in other rounds a port has other sources.
        let low = round.wrapping_mul(0x9e37_79b1) ^ u32::from(port).wrapping_mul(0x85eb_ca6b);
        let source = match (kind, self.family) {
            (Kind::Abandoned, family) => deaf(family, round as u8),
            (_, Family::V4) => Ipv4Addr::from_bits(0x0a40_0000 | low & 0x003f_ffff).into(),
            // Each in a prefix of its own.
            (_, Family::V6) => {
                let [high, middle] = [(low >> 16) as u16, low as u16];
                Ipv6Addr::from([0xfd00, 0x64, high, middle, 0, 0, 0, 1]).into()
            }
        };
        let spread = self.roll();
        let [high, middle] = [(spread >> 24) as u8, (spread >> 16) as u8];
        let is_black = kind == Kind::BlackHoled;
        let target = match (kind, self.family) {
            (Kind::ToOne | Kind::Abandoned, Family::V4) => [10, 128, 0, 1].into(),
            (Kind::ToOne | Kind::Abandoned, Family::V6) => [0xfd00, 0x128, 0, 0, 0, 0, 0, 1].into(),
            (_, Family::V4) => IpAddr::from([10, if is_black { 129 } else { 128 }, high, middle]),
            (_, Family::V6) => {
                let net = if is_black { 0x129 } else { 0x128 };
                [0xfd00, net, 0, 0, 0, 0, u16::from(high), u16::from(middle)].into()
            }
        };
        (SocketAddr::new(source, port), SocketAddr::new(target, PORT))
    }

    /// Sends one SYN.
    ///
    /// # Errors
    /// When the kernel does not send it.
    pub fn send(&self, source: SocketAddr, target: SocketAddr) -> io::Result<()> {
        let packet = syn(source, target);
        let to = SockAddr::from(SocketAddr::new(target.ip(), 0));
        match self.socket.send_to(&packet, &to) {
            // The device's queue is full: the network drops what it cannot carry.
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    fn roll(&mut self) -> u32 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 32) as u32
    }
}

/// A SYN without options.
fn syn(source: SocketAddr, target: SocketAddr) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(20);
    tcp.extend(source.port().to_be_bytes());
    tcp.extend(target.port().to_be_bytes());
    tcp.extend([1, 2, 3, 4, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let (mut packet, pseudo) = match (source.ip(), target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            // The kernel fills in the length and the header's checksum.
            let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
            ip.extend(source.octets());
            ip.extend(target.octets());
            (ip, [&source.octets()[..], &target.octets()].concat())
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let mut ip = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
            ip.extend(source.octets());
            ip.extend(target.octets());
            (ip, [&source.octets()[..], &target.octets()].concat())
        }
        _ => unreachable!("one family"),
    };
    let words = [&pseudo[..], &[0, 6, 0, 20], &tcp].concat();
    let mut sum: u32 =
        words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    tcp[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet.extend(tcp);
    packet
}

/// Number of TCP sockets of a namespace, in any state.
pub fn sockets(namespace: &Namespace) -> u64 {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let text = namespace.run(|| [read("sockstat"), read("sockstat6")]).expect("entering");
    let mut count = 0;
    for text in text.into_iter().flatten() {
        for line in text.lines().filter(|line| line.starts_with("TCP")) {
            let words: Vec<_> = line.split_whitespace().collect();
            let of =
                |name| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
            count += of("inuse").and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    count
}

/// Unit: KiB. The resident memory of a process.
pub fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}
