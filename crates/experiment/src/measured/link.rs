//! The output of `midhop meter link --json`. Each number's unit ends its key.

use super::{DATAGRAMS, DOWN, MeasuredError, UP};
use crate::plan::Plan;
use crate::record::{
    Environment, FlowResult, LinkResult, Record, Runner, SCHEMA, TransferResult, Validity,
};
use crate::scenario::Scenario;
use midhop_units::{Bytes, Duration, Rate, Seed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A rate varies if its 10th percentile is below this part of its median.
const VARIES: f64 = 0.8;
/// Above this loss, `hybla-plus` also halves its window.
const LOSS_MUCH: f64 = 0.02;

/// The results of measuring a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkReport {
    /// The far host, as it was given.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How long the measurement took.
    pub took_s: f64,
    /// How long it was allowed to take.
    #[serde(default)]
    pub time_s_max: f64,
    /// The smallest round-trip time of the idle link.
    pub rtt_min_s: f64,
    /// The median of the round-trip times.
    pub rtt_median_s: f64,
    /// Their 95th percentile.
    pub rtt_p95_s: f64,
    /// Pings sent.
    pub pings: u64,
    /// Pings without an answer.
    pub pings_lost: u64,
    /// Towards this host.
    pub down: LinkDirection,
    /// Away from this host.
    pub up: LinkDirection,
    /// What the numbers do not show, in sentences.
    pub warnings: Vec<String>,
}

/// The results for one direction.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkDirection {
    /// The rate of the link, including headers of IP and UDP, and packets that it loses behind its
    /// bottleneck.
    pub rate_bit_per_s: f64,
    /// How many packets of 1250 bytes arrived of the packet train by which the rate was measured.
    #[serde(default)]
    pub rate_packets: u64,
    /// Why the link may be faster than that; none if it was the bottleneck.
    pub rate_at_least_because: Option<String>,
    /// The 10th percentile of the rate of arrival over windows of 0.2 s; none if there were too few
    /// packets.
    pub rate_p10_bit_per_s: Option<f64>,
    /// The median of it.
    pub rate_p50_bit_per_s: Option<f64>,
    /// The 90th percentile of it.
    pub rate_p90_bit_per_s: Option<f64>,
    /// How much longer a ping took in this direction than the fastest one: the median.
    pub delay_variation_median_s: f64,
    /// The 95th percentile of it.
    pub delay_variation_p95_s: f64,
    /// The rate at which losses were counted; none if there was no time for it.
    pub loss_at_bit_per_s: Option<f64>,
    /// Packets sent at that rate.
    pub packets_sent: u64,
    /// Those that never arrived.
    pub packets_lost: u64,
    /// Lost packets, as a share of those sent.
    pub loss_ratio: f64,
    /// The lower end of its 95 % interval.
    pub loss_low_ratio: f64,
    /// The upper end of it.
    pub loss_high_ratio: f64,
    /// Mean length of a run of lost packets; none if none was lost.
    pub loss_burst_mean_packets: Option<f64>,
    /// Packets that arrived after one that was sent later, as a share of those that arrived.
    pub reordered_ratio: f64,
    /// Packets that arrived more than once, as a share of those that arrived.
    pub duplicate_ratio: f64,
    /// Packets for which the receiving host had no room, in all packet trains that are used.
    pub overflowed_packets: u64,
    /// Goodput of one TCP flow; none if it was not tried or failed.
    pub tcp_goodput_bit_per_s: Option<f64>,
    /// Payload of it that arrived.
    #[serde(default)]
    pub tcp_bytes: Option<u64>,
    /// The time that this took.
    #[serde(default)]
    pub tcp_took_s: Option<f64>,
    /// Segments that its sender retransmitted.
    #[serde(default)]
    pub tcp_retransmissions: Option<u64>,
    /// Its congestion control.
    pub tcp_congestion: Option<String>,
}

impl LinkDirection {
    /// What the numbers of this direction do not show.
    pub fn warnings(&self, way: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.is_known() {
            return warnings;
        }
        let mbit = |rate: f64| format!("{:.3} Mbit/s", rate / 1e6);
        if let Some(why) = &self.rate_at_least_because {
            let rate = mbit(self.rate_bit_per_s);
            warnings.push(format!("{way}: the link carries at least {rate}: {why}"));
        }
        if let (Some(low), Some(median), Some(high)) =
            (self.rate_p10_bit_per_s, self.rate_p50_bit_per_s, self.rate_p90_bit_per_s)
            && low < VARIES * median
        {
            warnings.push(format!(
                "{way}: the rate varies from {} to {}; a leg whose `rate` is above what there is builds a queue, \
                 one below it wastes the rest",
                mbit(low),
                mbit(high)
            ));
        }
        if self.overflowed_packets > 0 {
            warnings.push(format!(
                "{way}: the receiving host had no room for {} packets; they count as lost",
                self.overflowed_packets
            ));
        }
        if self.loss_at_bit_per_s.is_none() {
            warnings.push(format!("{way}: losses were not counted: there was no time left"));
        } else if self.loss_ratio > LOSS_MUCH {
            warnings.push(format!(
                "{way}: so many losses slow TCP of every kind; a tunnel between two midhopd repairs them"
            ));
        }
        warnings
    }
}

/// The duration of a link's scenario's TCP transfers, one for each direction.
const TRANSFER_S: u64 = 3;
/// Size of the packets of a train. Unit: bytes.
const PACKET: f64 = 1250.0;

impl LinkReport {
    /// The JSON Schema: every key and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> schemars::Schema {
        super::schema_of::<Self>()
    }

    /// The link as a plan with a TCP flow each way, `down` and `up`, for the physical limit over
    /// it.
    ///
    /// # Errors
    /// When the numbers do not make a valid link.
    pub fn plan(&self) -> Result<Plan, MeasuredError> {
        let refused = |error: &dyn std::fmt::Display| MeasuredError::Link(error.to_string());
        let scenario = Scenario::parse("link", &self.scenario()).map_err(|it| refused(&it))?;
        let plans = scenario.plans().map_err(|it| refused(&it))?;
        plans.into_iter().next().ok_or_else(|| refused(&"there is no plan"))
    }

    /// The link as a scenario with all digits: a rounded number would be no limit.
    fn scenario(&self) -> String {
        let mut text = format!(
            "title = \"a measured link\"\nduration = \"60 s\"\n[nodes]\nhere = {{}}\nthere = {{}}\n\
             [links.link]\nbetween = [\"here\", \"there\"]\ndelay = \"{} us\"\n",
            (self.rtt_min_s * 1e6 / 2.0) as u64
        );
        for (key, way) in [(DOWN, &self.down), (UP, &self.up)] {
            if way.is_known() {
                let (rate, loss) = (way.rate_bit_per_s.ceil() as u64, way.loss_ratio);
                let _ = writeln!(text, "{key} = {{ rate = \"{rate} bit/s\", loss = {loss} }}");
            }
        }
        let known = |key: &str| if key == DOWN { self.down.is_known() } else { self.up.is_known() };
        for (key, from, to, opens) in [(DOWN, "there", "here", "to"), (UP, "here", "there", "from")]
        {
            if !known(key) {
                continue;
            }
            let _ = writeln!(
                text,
                "[transfers.{key}]\nfrom = \"{from}\"\nto = \"{to}\"\nseconds = {TRANSFER_S}\nopens = \"{opens}\""
            );
        }
        text
    }

    /// The report as a record. For each direction it has the datagrams by which the rate was
    /// measured and, if there was one, the TCP flow, each compared with the link's limit.
    ///
    /// # Errors
    /// When the numbers do not make a valid link.
    pub fn into_record(self) -> Result<Record, MeasuredError> {
        let plan = self.plan()?;
        let ways = [(DOWN, &self.down), (UP, &self.up)];
        let mut transfers = Vec::new();
        for (direction, way) in ways {
            if let Some(tcp) = way.tcp(direction).filter(|_| way.is_known()) {
                let planned = plan.transfer(direction);
                let limit = planned.and_then(|it| it.limit_result(true, tcp.bytes, tcp.took));
                transfers.push(TransferResult { limit, ..tcp });
            }
        }
        for ((_, way), (_, name)) in ways.into_iter().zip(DATAGRAMS) {
            if way.is_known() {
                transfers.push(way.datagrams(name));
            }
        }
        let json = plan.to_json().map_err(|error| MeasuredError::Link(error.to_string()))?;
        Ok(Record {
            schema: SCHEMA,
            title: format!("link to {}", self.host),
            cell: BTreeMap::new(),
            seed: Seed(1),
            plan: json,
            environment: Environment {
                runner: Runner::Meter.name().to_owned(),
                took: time(self.took_s),
                ..Environment::default()
            },
            validity: Validity::default(),
            links: ways
                .into_iter()
                .filter(|(_, way)| way.loss_at_bit_per_s.is_some())
                .map(|(direction, way)| way.counted(direction))
                .collect(),
            transfers,
            legs: Vec::new(),
            traffic: Vec::new(),
            nodes: Vec::new(),
            handovers: None,
            series: Vec::new(),
        })
    }
}

impl LinkDirection {
    /// Whether a rate was found: there may have been too little time.
    pub fn is_known(&self) -> bool {
        self.rate_bit_per_s > 0.0
    }

    /// The TCP flow as a transfer called `name`.
    fn tcp(&self, name: &str) -> Option<TransferResult> {
        let goodput = rate(self.tcp_goodput_bit_per_s?);
        let bytes = Bytes::new(self.tcp_bytes?);
        let took = time(self.tcp_took_s?);
        let flow = FlowResult {
            id: 0,
            client_port: 0,
            server_port: 0,
            start: Duration::ZERO,
            end: took,
            bytes,
            goodput,
            hash_sent: None,
            hash_received: None,
            retransmissions: self.tcp_retransmissions.unwrap_or(0),
            rtt_min: None,
            congestion: self.tcp_congestion.clone().unwrap_or_default(),
            error: None,
            phases: None,
        };
        Some(transfer(name, bytes, took, goodput, vec![flow]))
    }

    /// The train by which the rate was measured, as a transfer called `name`: its packets, and the
    /// time that they take at the rate of arrival.
    fn datagrams(&self, name: &str) -> TransferResult {
        let arrived = self.rate_bit_per_s * (1.0 - self.loss_ratio);
        let bytes = self.rate_packets as f64 * PACKET;
        let took = if arrived > 0.0 { bytes * 8.0 / arrived } else { 0.0 };
        transfer(name, Bytes::new(bytes as u64), time(took), rate(arrived), Vec::new())
    }

    /// The packets by which losses were counted, as results of a link.
    fn counted(&self, direction: &str) -> LinkResult {
        let lost = (self.packets_lost > 0).then(|| ("loss".to_owned(), self.packets_lost));
        let received = self.packets_sent.saturating_sub(self.packets_lost);
        let bytes = |packets: u64| (packets as f64 * PACKET) as u64;
        LinkResult {
            name: "datagrams".to_owned(),
            direction: direction.to_owned(),
            packets_in: self.packets_sent,
            bytes_in: bytes(self.packets_sent),
            packets_out: received,
            bytes_out: bytes(received),
            drops: lost.into_iter().collect(),
            ..LinkResult::default()
        }
    }
}

fn transfer(
    name: &str,
    bytes: Bytes,
    took: Duration,
    goodput: Rate,
    flows: Vec<FlowResult>,
) -> TransferResult {
    TransferResult {
        name: name.to_owned(),
        complete: true,
        took,
        bytes,
        goodput,
        limit: None,
        restarts: Default::default(),
        flows,
        objects: Vec::new(),
    }
}

fn rate(bit_per_s: f64) -> Rate {
    Rate::from_bits_per_s(bit_per_s as u64)
}

fn time(s: f64) -> Duration {
    if s.is_finite() && s > 0.0 { Duration::from_s_f64(s) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_noted() {
        let way = LinkDirection {
            rate_bit_per_s: 5e6,
            rate_at_least_because: Some("because".to_owned()),
            rate_p10_bit_per_s: Some(2e6),
            rate_p50_bit_per_s: Some(5e6),
            rate_p90_bit_per_s: Some(6e6),
            overflowed_packets: 3,
            ..LinkDirection::default()
        };
        let text = way.warnings("down").join("\n");
        for part in [
            "at least 5.000 Mbit/s: because",
            "from 2.000 Mbit/s to 6.000",
            "no room for 3",
            "not counted",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}
