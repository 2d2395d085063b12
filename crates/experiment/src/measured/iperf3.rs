//! The output of `iperf3 --json`, version 3.1 and later.
//!
//! Received data counts, not sent data; times are the receiver's. Intervals at the start that
//! iperf3 was asked to omit are left out. Source: iperf3's own `src/iperf_api.c`; its project
//! documents no schema.

use super::{DATAGRAMS, DOWN, MeasuredError, UP};
use crate::record::{
    Environment, FlowResult, LinkResult, Record, Runner, SCHEMA, Series, TransferResult, Validity,
};
use midhop_units::{Bytes, Duration, Rate, Seed};
use serde::Deserialize;
use std::collections::BTreeMap;

/// An upper bound for the seconds of a test.
const TIME_S_MAX: f64 = 1e9;

/// The output of one test; only the needed fields.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Iperf3Report {
    start: Start,
    intervals: Vec<Interval>,
    #[serde(default)]
    end: End,
    title: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Start {
    #[serde(default)]
    connected: Vec<Connected>,
    #[serde(default)]
    version: String,
    #[serde(default)]
    system_info: String,
    timestamp: Option<Timestamp>,
    /// Of a client.
    connecting_to: Option<Peer>,
    /// Of a server.
    accepted_connection: Option<Peer>,
    test_start: Option<TestStart>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Connected {
    socket: i64,
    local_port: u16,
    remote_port: u16,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Timestamp {
    timesecs: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Peer {
    host: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct TestStart {
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    num_streams: u32,
    /// Unit: bits per second and stream; 0: as fast as possible.
    #[serde(default)]
    target_bitrate: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Interval {
    #[serde(default)]
    streams: Vec<IntervalStream>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct IntervalStream {
    socket: i64,
    end: f64,
    bits_per_second: f64,
    #[serde(default)]
    omitted: bool,
    /// Whether the printing end sends; missing before version 3.7.
    sender: Option<bool>,
    snd_cwnd: Option<f64>,
    /// Unit: microseconds.
    rtt: Option<f64>,
    retransmits: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
struct End {
    #[serde(default)]
    streams: Vec<EndStream>,
    #[serde(default)]
    sum: Sum,
    #[serde(default)]
    sum_received: Sum,
    #[serde(default)]
    sum_bidir_reverse: Sum,
    #[serde(default)]
    sum_received_bidir_reverse: Sum,
    sender_tcp_congestion: Option<String>,
    receiver_tcp_congestion: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct EndStream {
    sender: Option<Half>,
    receiver: Option<Half>,
    udp: Option<Half>,
}

/// The counts of one end of a stream.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Half {
    socket: i64,
    #[serde(default)]
    end: f64,
    #[serde(default)]
    bytes: f64,
    retransmits: Option<f64>,
    /// Unit: microseconds; 0 where it is not known.
    min_rtt: Option<f64>,
    packets: Option<f64>,
    lost_packets: Option<f64>,
    sender: Option<bool>,
}

/// The sum over the streams of one direction.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
struct Sum {
    #[serde(default)]
    end: f64,
    #[serde(default)]
    bytes: f64,
    #[serde(default)]
    packets: f64,
    #[serde(default)]
    lost_packets: f64,
}

/// The streams of one direction.
struct Way<'r> {
    /// Whether the printing end sends.
    sends: bool,
    streams: Vec<&'r EndStream>,
    received: &'r Sum,
    /// For datagrams: the counts of sent and lost ones.
    sent: &'r Sum,
    congestion: Option<&'r String>,
}

impl EndStream {
    fn any(&self) -> Option<&Half> {
        self.udp.as_ref().or(self.receiver.as_ref()).or(self.sender.as_ref())
    }
}

impl Iperf3Report {
    /// The report, if its test was completed.
    pub(super) fn whole(self) -> Result<Self, MeasuredError> {
        match &self.error {
            Some(error) => Err(MeasuredError::Iperf3Failed(error.trim().to_owned())),
            None if self.end.streams.is_empty() => Err(MeasuredError::Iperf3Empty),
            None => Ok(self),
        }
    }

    fn is_server(&self) -> bool {
        self.start.connecting_to.is_none() && self.start.accepted_connection.is_some()
    }

    fn is_udp(&self) -> bool {
        self.end.streams.iter().any(|stream| stream.udp.is_some())
    }

    /// The directions with streams: that of the test first.
    fn ways(&self) -> Vec<Way<'_>> {
        let sends = |stream: &EndStream| stream.any().and_then(|half| half.sender).unwrap_or(true);
        let end = &self.end;
        let first = end.streams.first().is_some_and(sends);
        let (own, reverse): (Vec<&EndStream>, Vec<&EndStream>) =
            end.streams.iter().partition(|stream| sends(stream) == first);
        let mut ways = vec![Way {
            sends: first,
            streams: own,
            received: &end.sum_received,
            sent: &end.sum,
            congestion: end.sender_tcp_congestion.as_ref(),
        }];
        if !reverse.is_empty() {
            ways.push(Way {
                sends: !first,
                streams: reverse,
                received: &end.sum_received_bidir_reverse,
                sent: &end.sum_bidir_reverse,
                congestion: end.receiver_tcp_congestion.as_ref(),
            });
        }
        ways
    }

    /// The report as a record.
    ///
    /// # Errors
    /// When nothing arrived, as far as the printing end knows.
    pub fn into_record(self) -> Result<Record, MeasuredError> {
        let is_udp = self.is_udp();
        let (mut transfers, mut links, mut series) = (Vec::new(), Vec::new(), Vec::new());
        for way in self.ways() {
            let direction = if way.sends == self.is_server() { DOWN } else { UP };
            let name = DATAGRAMS.iter().find(|(way, _)| is_udp && *way == direction);
            let name = name.map_or(direction, |(_, name)| name);
            let transfer = self.transfer(&way, name)?;
            if is_udp {
                links.push(datagrams(&way, direction, &transfer));
            }
            series.extend(self.series(&way, name, transfer.flows.len()));
            transfers.push(transfer);
        }
        let took = transfers.iter().map(|it| it.took).max().unwrap_or_default();
        let peer = self.start.connecting_to.as_ref().or(self.start.accepted_connection.as_ref());
        let peer = peer.map_or_else(String::new, |peer| {
            let word = if self.is_server() { "from" } else { "to" };
            format!(" {word} {}", peer.host)
        });
        let version = self.start.version.trim_start_matches("iperf").trim();
        let mut versions = BTreeMap::new();
        if !version.is_empty() {
            versions.insert("iperf3".to_owned(), version.to_owned());
        }
        // "Linux NAME 6.1.0 …"
        if let Some(kernel) = self.start.system_info.strip_prefix("Linux ") {
            let kernel = kernel.split(' ').nth(1).map(str::to_owned);
            versions.extend(kernel.map(|kernel| ("linux".to_owned(), kernel)));
        }
        let started = self.start.timestamp.as_ref().map_or(0.0, |it| it.timesecs);
        Ok(Record {
            schema: SCHEMA,
            title: self.title.clone().unwrap_or_else(|| format!("iperf3{peer}")),
            cell: self.cell(is_udp),
            seed: Seed(1),
            plan: serde_json::Value::Null,
            environment: Environment {
                runner: Runner::Iperf3.name().to_owned(),
                versions,
                started_unix_s: started as u64,
                took,
                ..Environment::default()
            },
            validity: Validity::default(),
            transfers,
            links,
            legs: Vec::new(),
            traffic: Vec::new(),
            nodes: Vec::new(),
            handovers: None,
            series,
        })
    }

    /// The options of the test that make a difference.
    fn cell(&self, is_udp: bool) -> BTreeMap<String, String> {
        let mut cell = BTreeMap::new();
        let mut set = |axis: &str, label: String| cell.insert(axis.to_owned(), label);
        if let Some(test) = &self.start.test_start {
            set("flows", test.num_streams.max(1).to_string());
            if test.target_bitrate >= 1.0 {
                let rate = Rate::from_bits_per_s(test.target_bitrate as u64);
                set("rate of each", rate.to_string());
            }
            if !is_udp && !test.protocol.is_empty() && test.protocol != "TCP" {
                set("protocol", test.protocol.clone());
            }
        }
        if let Some(congestion) = self.end.sender_tcp_congestion.as_ref().filter(|_| !is_udp) {
            set("congestion", congestion.clone());
        }
        cell
    }

    fn transfer(&self, way: &Way<'_>, name: &str) -> Result<TransferResult, MeasuredError> {
        let flows: Vec<FlowResult> =
            (0..).zip(&way.streams).filter_map(|(id, stream)| self.flow(id, stream, way)).collect();
        let (mut bytes, mut end) = (way.received.bytes, way.received.end);
        if bytes <= 0.0 && self.is_udp() {
            // Before version 3.8 there is only one sum, that of the sender.
            let arrived = 1.0 - part(way.sent.lost_packets, way.sent.packets);
            (bytes, end) = (way.sent.bytes * arrived, way.sent.end);
        }
        if bytes <= 0.0 && way.sends && self.is_server() {
            return Err(MeasuredError::Iperf3Sender);
        }
        let took = seconds(end).ok_or(MeasuredError::Iperf3Empty)?;
        let bytes = count(bytes);
        Ok(TransferResult {
            name: name.to_owned(),
            complete: true,
            took,
            bytes,
            goodput: Rate::of(bytes, took),
            limit: None,
            restarts: Default::default(),
            flows,
            objects: Vec::new(),
        })
    }

    fn flow(&self, id: u32, stream: &EndStream, way: &Way<'_>) -> Option<FlowResult> {
        let known = stream.any()?;
        let arrived = 1.0 - part(known.lost_packets.unwrap_or(0.0), known.packets.unwrap_or(0.0));
        let bytes = count(known.bytes * arrived);
        let end = seconds(known.end).unwrap_or_default();
        let connected = self.start.connected.iter().find(|it| it.socket == known.socket);
        let ports = connected.map_or((0, 0), |it| (it.local_port, it.remote_port));
        let (client_port, server_port) = if self.is_server() { (ports.1, ports.0) } else { ports };
        let sender = stream.sender.as_ref();
        let rtt = sender.and_then(|half| half.min_rtt).filter(|rtt| *rtt > 0.0);
        Some(FlowResult {
            id,
            client_port,
            server_port,
            start: Duration::ZERO,
            end,
            bytes,
            goodput: if end.is_zero() { Rate::ZERO } else { Rate::of(bytes, end) },
            hash_sent: None,
            hash_received: None,
            retransmissions: sender.and_then(|half| half.retransmits).map_or(0, |it| it as u64),
            rtt_min: rtt.and_then(|us| seconds(us / 1e6)),
            congestion: way.congestion.cloned().unwrap_or_default(),
            error: None,
            phases: None,
        })
    }

    /// The samples of the printing end: the goodput where it receives, the state of its connections
    /// where it sends. What a sender writes into its socket is not goodput, and is left out.
    fn series(&self, way: &Way<'_>, place: &str, flows: usize) -> Vec<Series> {
        let sockets: Vec<i64> =
            way.streams.iter().filter_map(|stream| Some(stream.any()?.socket)).collect();
        let intervals: Vec<Vec<&IntervalStream>> = self
            .intervals
            .iter()
            .map(|interval| {
                let counts = |it: &&IntervalStream| !it.omitted && it.sender != Some(!way.sends);
                interval.streams.iter().filter(counts).collect()
            })
            .collect();
        let mut all = Vec::new();
        let mut push = |quantity: &str, unit: &str, flow, points: Vec<(f64, f64)>| {
            let finite = |(time, value): &(f64, f64)| time.is_finite() && value.is_finite();
            let (time_s, value): (Vec<f64>, Vec<f64>) = points.into_iter().filter(finite).unzip();
            if !time_s.is_empty() {
                let (quantity, unit) = (quantity.to_owned(), unit.to_owned());
                let place = place.to_owned();
                all.push(Series { quantity, place, flow, unit, time_s, value });
            }
        };
        let of = |socket: i64, figure: &dyn Fn(&IntervalStream) -> Option<f64>| {
            let samples = intervals.iter().flatten().filter(|it| it.socket == socket);
            samples.filter_map(|it| Some((it.end, figure(it)?))).collect::<Vec<_>>()
        };
        if !way.sends {
            let sums = intervals.iter().filter(|streams| !streams.is_empty()).map(|streams| {
                let sum: f64 = streams.iter().map(|it| it.bits_per_second).sum();
                (streams[0].end, sum / 1e6)
            });
            push("goodput", "Mbit/s", None, sums.collect());
        }
        for (flow, socket) in (0..).zip(sockets) {
            if !way.sends {
                if flows > 1 {
                    let goodput = of(socket, &|it| Some(it.bits_per_second / 1e6));
                    push("goodput", "Mbit/s", Some(flow), goodput);
                }
                continue;
            }
            push("cwnd", "B", Some(flow), of(socket, &|it| it.snd_cwnd));
            push("rtt", "ms", Some(flow), of(socket, &|it| it.rtt.map(|us| us / 1e3)));
            let mut total = 0.0;
            let mut resent = of(socket, &|it| it.retransmits);
            for (_, segments) in &mut resent {
                total += *segments;
                *segments = total;
            }
            push("retransmissions", "segments", Some(flow), resent);
        }
        all
    }
}

/// The datagrams as results of a link.
fn datagrams(way: &Way<'_>, direction: &str, transfer: &TransferResult) -> LinkResult {
    let [sent, lost] = [way.sent.packets, way.sent.lost_packets].map(|packets| packets as u64);
    let drops = (lost > 0).then(|| ("loss".to_owned(), lost));
    LinkResult {
        name: "datagrams".to_owned(),
        direction: direction.to_owned(),
        packets_in: sent,
        bytes_in: way.sent.bytes as u64,
        packets_out: sent.saturating_sub(lost),
        bytes_out: transfer.bytes.get(),
        drops: drops.into_iter().collect(),
        span: transfer.took,
        ..LinkResult::default()
    }
}

fn part(count: f64, of: f64) -> f64 {
    if of > 0.0 { (count / of).clamp(0.0, 1.0) } else { 0.0 }
}

fn count(bytes: f64) -> Bytes {
    // The cast saturates: a larger number becomes the maximum, a negative one zero.
    Bytes::new(bytes as u64)
}

/// A plausible duration of a test.
fn seconds(s: f64) -> Option<Duration> {
    (s > 0.0 && s < TIME_S_MAX).then(|| Duration::from_s_f64(s))
}
