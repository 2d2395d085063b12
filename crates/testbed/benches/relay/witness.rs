//! Proof that the bytes which a load counted crossed the relay that its row names.
//!
//! Two independent witnesses, read before and after each load:
//!
//! - the kernel: what a node forwards goes past the relay on it (`Ip: ForwDatagrams`). A relay's nodes
//!   forward nothing, the gateway without a relay forwards everything;
//! - midhopd's own counters (`/metrics`), at both ends of a pair. The near end relayed all bytes
//!   that the client received. The far end relayed all bytes that the near end relayed. Its tunnel
//!   sent enough packets for them. Each is an inequality that holds without any tolerance, since
//!   bytes are counted where they arrive.

use crate::Result;
use crate::load::Work;
use crate::path::Path;
use crate::relays::{ADMIN_PORT, Relay};
use midhop_testbed::namespace::Namespace;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long counters may take to be published once a load has ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest datagram of a tunnel: what the links carry. Unit: bytes.
const PACKET_BYTES_MAX: u64 = 1500;
/// Packets of connections whose sockets are gone are forwarded and answered with resets. One such
/// packet is allowed for this number of packets and connections.
const STRAYS: u64 = 100;
/// The largest packet that a node forwards in one piece. Unit: bytes.
const FORWARDED_BYTES_MAX: u64 = 65_535;

/// The counters of all witnesses at one moment.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Packets that went past the relays, on all of their nodes.
    forwarded: u64,
    /// midhopd's own counts: of a pair the near end's first.
    daemons: Vec<Counts>,
}

/// What one midhopd has counted since it started.
#[derive(Debug, Clone, Default)]
struct Counts {
    /// Relayed from clients to servers. Unit: bytes.
    up: u64,
    /// Relayed from servers to clients. Unit: bytes.
    down: u64,
    /// Flows that it took.
    flows: u64,
    /// Packets sent in tunnels.
    tunnel_packets: u64,
}

/// Reads the counters of a relay on its path.
#[derive(Clone, Copy)]
pub struct Witness<'a> {
    pub relay: Relay,
    pub path: &'a Path,
}

impl Witness<'_> {
    /// The counters now.
    pub fn sample(&self) -> Result<Sample> {
        let asked = self.places().into_iter().filter(|_| self.relay.has_counters());
        let daemons = asked.map(counts).collect::<Result<_>>()?;
        Ok(Sample { forwarded: self.forwarded()?, daemons })
    }

    /// Packets that have gone past the relay so far.
    pub fn forwarded(&self) -> Result<u64> {
        self.places().into_iter().map(forwarded).sum()
    }

    /// The nodes on which the relay stands, of a pair the client's first.
    fn places(&self) -> Vec<&Namespace> {
        let pair = self.relay.is_pair();
        let near = pair.then_some(&self.path.terminal);
        near.into_iter().chain([&self.path.gateway]).collect()
    }

    /// Whether the work that was done since `before` went through the relay.
    ///
    /// # Errors
    /// The contradictions, with the witness of each.
    pub fn check(&self, before: &Sample, work: &Work) -> Result<()> {
        let begin = Instant::now();
        loop {
            let faults = faults(self.relay, before, &self.sample()?, work);
            if faults.is_empty() {
                return Ok(());
            }
            // Forwarded packets stay counted. Other counters may be published late.
            if begin.elapsed() > PATIENCE {
                return Err(faults.join("; ").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What contradicts that the work went through the relay.
fn faults(relay: Relay, before: &Sample, after: &Sample, work: &Work) -> Vec<String> {
    let mut faults = Vec::new();
    // Where the load ends its flows by resets, it counted them in the timed period.
    let forwarded = work.forwarded.unwrap_or(after.forwarded - before.forwarded);
    if relay == Relay::Direct {
        // Bytes and packets are counted one after the other, on a busy host a tenth of the time apart. A proxy forwards none.
        if forwarded * FORWARDED_BYTES_MAX < work.bytes / 2 {
            let bytes = work.bytes;
            faults.push(format!("the gateway forwarded {forwarded} packets for {bytes} bytes"));
        }
        return faults;
    }
    let grown: Vec<Counts> = before.daemons.iter().zip(&after.daemons).map(grown).collect();
    // midhopd holds a flow's SYN in a hook where the kernel has counted it as forwarded.
    let held = match relay {
        // The connection of the pings is not in `count`.
        Relay::HeldFloor => work.count + 1,
        _ => grown.first().map_or(0, |near| near.flows),
    };
    let strays = (work.bytes / FORWARDED_BYTES_MAX + work.count) / STRAYS + held;
    if forwarded > strays {
        faults.push(format!(
            "{forwarded} packets were forwarded past the relay (at most {strays} may) while {} bytes \
             and {} connections were counted",
            work.bytes, work.count
        ));
    }
    for (number, counts) in grown.iter().enumerate() {
        let end = if number == 0 { "near" } else { "far" };
        for (direction, counted, arrived) in
            [("up", counts.up, work.up), ("down", counts.down, work.down)]
        {
            if counted < arrived {
                faults.push(format!(
                    "{arrived} bytes arrived {direction}, of which midhopd's {end} end relayed {counted}"
                ));
            }
        }
    }
    if let Some(taken) = grown.first().map(|near| near.flows).filter(|taken| *taken < work.count) {
        faults.push(format!("of {} connections midhopd took {taken}", work.count));
    }
    if let [near, far] = &grown[..] {
        for (end, direction, sender, bytes) in
            [("near", "up", near, work.up), ("far", "down", far, work.down)]
        {
            let most = sender.tunnel_packets * PACKET_BYTES_MAX;
            if most < bytes {
                faults.push(format!(
                    "{bytes} bytes arrived {direction}, but the {end} end's tunnel sent only {} packets",
                    sender.tunnel_packets
                ));
            }
        }
    }
    faults
}

fn grown((before, after): (&Counts, &Counts)) -> Counts {
    Counts {
        up: after.up - before.up,
        down: after.down - before.down,
        flows: after.flows - before.flows,
        tunnel_packets: after.tunnel_packets - before.tunnel_packets,
    }
}

/// Packets that a node has forwarded, of IPv4.
fn forwarded(place: &Namespace) -> Result<u64> {
    let text = place.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))??;
    let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
    let (names, values) = lines.next().zip(lines.next()).ok_or("no Ip lines in net/snmp")?;
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    let found = both.find(|(name, _)| *name == "ForwDatagrams");
    Ok(found.ok_or("no ForwDatagrams in net/snmp")?.1.parse()?)
}

/// Reads the counters of the midhopd on a node.
fn counts(place: &Namespace) -> Result<Counts> {
    let mut socket = place.run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, ADMIN_PORT)))??;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let of = |metric: &str| sum(&answer, metric);
    Ok(Counts {
        up: of("midhop_relayed_bytes_total{direction=\"up\"}")?,
        down: of("midhop_relayed_bytes_total{direction=\"down\"}")?,
        flows: of("midhop_flows_started_total{action=\"split\"}")?,
        // Summed over all tunnels of the one peer; zero without a peer.
        tunnel_packets: of("midhop_peer_sent_packets_total").unwrap_or(0),
    })
}

/// All values of a metric, with or without labels.
fn sum(metrics: &str, name: &str) -> Result<u64> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let values = lines.filter(|rest| rest.starts_with([' ', '{']));
    let numbers: Vec<u64> = values
        .map(|rest| Ok(rest.rsplit(' ').next().unwrap_or("").parse()?))
        .collect::<Result<_>>()?;
    let sum = (!numbers.is_empty()).then(|| numbers.iter().sum());
    sum.ok_or_else(|| format!("midhopd has no metric {name}").into())
}
