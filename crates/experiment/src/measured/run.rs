//! The output of `midhop meter run --json`.

use crate::record::{Environment, Record, Runner, SCHEMA, Series, TransferResult, Validity};
use midhop_path::Direction;
use midhop_units::{Duration, Number, Seed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a run of the meter measured.
///
/// All times count from the run's epoch. Times of the far end are exact if both ends read one clock
/// ([`MeterReport::clock_shared`]). Otherwise the far end's series are placed as if its part of a
/// flow had begun with the SYN (it began up to 1.5 round trips later), and the end of an upload is
/// the moment at which the server's report of it arrived (half a round trip late).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeterReport {
    /// The far host, as it was given; none in reports of versions that did not keep it.
    #[serde(default)]
    pub host: Option<String>,
    /// Its port.
    #[serde(default)]
    pub port: Option<u16>,
    /// The direction of the payload: `down`, to this host, or `up`.
    #[serde(default)]
    pub direction: Option<Direction>,
    /// The transfer, its flows and its objects. Objects that did not arrive are left out.
    pub transfer: TransferResult,
    /// `goodput` of all flows together (`flow` is none), then of each flow: payload that reached the
    /// receiver in the interval that ends at the given time. From the sending end of each flow:
    /// `cwnd`, `in_flight` and `outstanding` in bytes, `rtt`, `retransmissions` (segments since the flow's
    /// start), `delivery_rate`, `pacing_rate`.
    pub series: Vec<Series>,
    /// The times of at least 10 ms in which flows got no payload, if they were requested (`--gaps`):
    /// of those that end within 100 ms the longest. A connection that restarts an item belongs to
    /// the flow that it continues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    /// Whether client and server read the same clock.
    pub clock_shared: bool,
    /// What is missing from the report, in sentences.
    pub warnings: Vec<String>,
}

/// A time in which a flow got no payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gap {
    /// The flow.
    pub flow: u32,
    /// When payload arrived before it.
    #[serde(rename = "from_s", with = "Number::<Duration>")]
    pub from: Duration,
    /// When payload arrived again, or the flow was over.
    #[serde(rename = "to_s", with = "Number::<Duration>")]
    pub to: Duration,
}

impl MeterReport {
    /// Whether everything that was requested arrived unchanged.
    pub fn is_complete(&self) -> bool {
        self.transfer.complete
    }

    /// The JSON Schema: every key and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> schemars::Schema {
        super::schema_of::<Self>()
    }

    /// The report as a record.
    pub fn into_record(self) -> Record {
        let host = self.host.map_or_else(String::new, |host| format!(" to {host}"));
        let mut cell = BTreeMap::new();
        // A page opens as many connections as it needs: their number is a result.
        if self.transfer.objects.is_empty() {
            cell.insert("flows".to_owned(), flows(&self.transfer).to_string());
        }
        let named = |name: &&str| !name.is_empty();
        let mut congestion: Vec<&str> =
            self.transfer.flows.iter().map(|flow| flow.congestion.as_str()).filter(named).collect();
        congestion.sort_unstable();
        congestion.dedup();
        if !congestion.is_empty() {
            cell.insert("congestion".to_owned(), congestion.join(" and "));
        }
        Record {
            schema: SCHEMA,
            title: format!("midhop meter run{host}"),
            cell,
            seed: Seed(1),
            plan: serde_json::Value::Null,
            environment: Environment {
                runner: Runner::Meter.name().to_owned(),
                took: self.transfer.took,
                ..Environment::default()
            },
            validity: Validity::default(),
            transfers: vec![self.transfer],
            links: Vec::new(),
            legs: Vec::new(),
            traffic: Vec::new(),
            nodes: Vec::new(),
            handovers: None,
            series: self.series,
        }
    }
}

/// The flows, without those that broke and were replaced.
fn flows(transfer: &TransferResult) -> usize {
    transfer.flows.len().saturating_sub(transfer.restarts.count as usize)
}
