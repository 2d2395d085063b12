//! The measurements of one run. Simulator and testbed use the same form.
//!
//! Quantities are numbers in base units, and the unit ends the key. Only the plan has them as
//! scenario files write them: it is configuration, and is read back as such.

use crate::handovers::HandoversResult;
use midhop_path::{Counters, Direction};
use midhop_units::{Bytes, Duration, Number, Rate, Seed};
#[cfg(feature = "schema")]
use schemars::Schema;
#[cfg(feature = "schema")]
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// The version of the form below; raised when a key or its meaning changes.
pub const SCHEMA: u32 = 2;

/// One run: its plan, its environment and its results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Record {
    /// The version of this format.
    pub schema: u32,
    /// The title of the scenario.
    pub title: String,
    /// The position of this run on each `vary` axis: axis → label, as the scenario writes it.
    /// Shape: one entry per axis.
    pub cell: BTreeMap<String, String>,
    /// The seed of every random draw in this run.
    pub seed: Seed,
    /// The resolved plan with every default. It is configuration: quantities are text as in
    /// scenario files ("600 ms"). Null in records that a sweep prints: its files contain the plan.
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Map<String, Value>>"))]
    pub plan: Value,
    /// What ran it.
    pub environment: Environment,
    /// Whether the results are valid, and if not, why.
    pub validity: Validity,
    /// What each transfer achieved, in the order of their names.
    pub transfers: Vec<TransferResult>,
    /// The results of each direction of each link.
    pub links: Vec<LinkResult>,
    /// The results of each proxy on each of its legs; empty without proxies, or if none could be
    /// observed.
    pub legs: Vec<LegResult>,
    /// The results of cross traffic, in the order of the names; empty without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficResult>,
    /// What happened to packets at nodes rather than on links; only nodes where something happened.
    /// Empty in the lab, whose kernels do not report it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeResult>,
    /// The results of handovers; none without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handovers: Option<HandoversResult>,
    /// Samples over time.
    pub series: Vec<Series>,
}

impl Record {
    /// The JSON Schema of a record: every key and its meaning.
    #[cfg(feature = "schema")]
    pub fn schema() -> Schema {
        let settings = SchemaSettings::default().for_serialize();
        let mut schema = settings.into_generator().into_root_schema_for::<Self>();
        let version = schema.pointer_mut("/properties/schema").and_then(Value::as_object_mut);
        if let Some(version) = version {
            version.insert("const".to_owned(), SCHEMA.into());
        }
        schema
    }

    /// The record as JSON, on one line.
    ///
    /// # Errors
    /// Never for a record whose plan came from [`crate::Plan::to_json`].
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Reads a record as [`Record::to_json`] writes it.
    ///
    /// # Errors
    /// When the text is no record of this [`SCHEMA`].
    pub fn from_json(text: &str) -> Result<Self, ReadRecordError> {
        #[derive(Deserialize)]
        struct Shape {
            schema: u32,
        }
        let Shape { schema } = serde_json::from_str(text)?;
        if schema != SCHEMA {
            return Err(ReadRecordError::Schema { found: schema });
        }
        Ok(serde_json::from_str(text)?)
    }
}

/// Why a text is no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadRecordError {
    /// It is not JSON, or not of this shape.
    #[error("not a record: {0}")]
    Json(#[from] serde_json::Error),
    /// Another release wrote it.
    #[error("the record has version {found}, this release reads version {SCHEMA}")]
    Schema {
        /// The version it has.
        found: u32,
    },
}

impl ReadRecordError {
    /// What the user can do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Json(_) => "a record is what `midhop sim run --json` prints, one a line",
            Self::Schema { .. } => {
                "run the scenario again, or read the record with the release that wrote it"
            }
        }
    }
}

/// Software and machine under a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Environment {
    /// What ran it, a [`Runner`] by name: `sim`, `lab`, `reference` or `ns3`.
    pub runner: String,
    /// Version of each part: `midhop`, `midhopd`, `linux`, …
    pub versions: BTreeMap<String, String>,
    /// Processors that the run could use.
    pub processors: u32,
    /// The machine's one-minute load average when the run began.
    pub load: f64,
    /// Whether the run had root in the initial user namespace.
    pub privileged: bool,
    /// When the run began. Unit: seconds since 1970-01-01T00:00:00Z.
    pub started_unix_s: u64,
    /// How long the run took in real time.
    #[serde(rename = "took_s", with = "Number::<Duration>")]
    pub took: Duration,
}

/// What can run a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    /// The simulator, in virtual time.
    #[default]
    Sim,
    /// The laboratory: this machine's kernel on links that we emulate.
    Lab,
    /// An emulated machine with another kernel, whose own netem carries the links, in virtual time.
    Reference,
    /// ns-3, in virtual time.
    Ns3,
    /// `midhop meter`, between two hosts, without a plan.
    Meter,
    /// iperf3, between two hosts, without a plan.
    Iperf3,
}

impl Runner {
    /// What measured a record; by default, the laboratory.
    pub fn of(record: &Record) -> Self {
        let all = [Self::Sim, Self::Reference, Self::Ns3, Self::Meter, Self::Iperf3];
        all.into_iter().find(|it| it.name() == record.environment.runner).unwrap_or(Self::Lab)
    }

    /// The name in records and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Lab => "lab",
            Self::Reference => "reference",
            Self::Ns3 => "ns3",
            Self::Meter => "meter",
            Self::Iperf3 => "iperf3",
        }
    }

    /// The place of a run, for texts.
    pub const fn place(self) -> &'static str {
        match self {
            Self::Sim => "in the simulator",
            Self::Lab => "in the laboratory",
            Self::Reference => "on the reference kernel",
            Self::Ns3 => "in ns-3",
            Self::Meter => "by midhop meter",
            Self::Iperf3 => "by iperf3",
        }
    }

    /// The verb for its figures.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Sim => "simulated",
            Self::Lab => "measured",
            Self::Reference => "measured on the reference kernel",
            Self::Ns3 => "simulated by ns-3",
            Self::Meter => "measured by midhop meter",
            Self::Iperf3 => "measured by iperf3",
        }
    }

    /// Whether it runs plans, whose seeds, cells and limits are meaningful.
    pub const fn runs_plans(self) -> bool {
        !matches!(self, Self::Meter | Self::Iperf3)
    }
}

/// Whether a run's results are valid.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Validity {
    /// One sentence for each thing that went wrong; empty in a valid run.
    pub faults: Vec<String>,
}

impl Validity {
    /// Whether there were no faults.
    pub fn is_valid(&self) -> bool {
        self.faults.is_empty()
    }
}

/// One transfer of the scenario: all its flows together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TransferResult {
    /// The transfer's name in the scenario.
    pub name: String,
    /// Whether everything that was requested arrived before the run's end.
    pub complete: bool,
    /// Time from the first SYN to the last byte.
    #[serde(rename = "took_s", with = "Number::<Duration>")]
    pub took: Duration,
    /// Payload that arrived, without what was discarded because it was transferred again.
    #[serde(with = "Number::<Bytes>")]
    pub bytes: Bytes,
    /// That payload over the time it took, all flows together.
    #[serde(rename = "goodput_bit_per_s", with = "Number::<Rate>")]
    pub goodput: Rate,
    /// The physical limit of this transfer, and how near the transfer came to it.
    pub limit: Option<LimitResult>,
    /// How often a file or object began again because its connection was cut short.
    #[serde(default, skip_serializing_if = "Restarts::is_none")]
    pub restarts: Restarts,
    /// One per connection.
    pub flows: Vec<FlowResult>,
    /// One per object of a page; empty for other transfers.
    pub objects: Vec<ObjectResult>,
}

/// Files and objects that began again over a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Restarts {
    /// How often.
    pub count: u32,
    /// The payload of them that had arrived by then and was discarded.
    #[serde(rename = "discarded_bytes", with = "Number::<Bytes>")]
    pub discarded: Bytes,
}

impl Restarts {
    /// Whether there were none.
    pub fn is_none(&self) -> bool {
        self.count == 0
    }
}

/// A transfer compared with its physical limit. If a link on its path varies, the limit is that of
/// the values drawn in this run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitResult {
    /// The largest goodput that the path allows, without headers and losses. If a link varies: for
    /// a transfer that sends for a time, the mean from the first byte that can arrive to the last;
    /// otherwise the mean to the earliest possible end.
    #[serde(rename = "goodput_bit_per_s", with = "Number::<Rate>")]
    pub goodput: Rate,
    /// The shortest time that the transfer can take without a handshake over the long leg. If a
    /// link varies: the time until the earliest moment at which a complete file or page could have
    /// arrived.
    #[serde(rename = "time_s", with = "Number::<Duration>")]
    pub time: Duration,
    /// Ideal time divided by measured time. Range: 0 to 1 in a correct run.
    pub efficiency: f64,
    /// Payload that the path, with the values drawn, could have carried from the first SYN to the
    /// last byte; none if no link on the path varies.
    #[serde(
        rename = "drawn_bytes",
        with = "Number::<Option<Bytes>>",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub drawn: Option<Bytes>,
}

/// One TCP connection, as its ends saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowResult {
    /// Number of the flow in its transfer, from 0.
    pub id: u32,
    /// The opening end's port.
    pub client_port: u16,
    /// The listening end's port.
    pub server_port: u16,
    /// When its SYN left, after the run's start.
    #[serde(rename = "start_s", with = "Number::<Duration>")]
    pub start: Duration,
    /// When its last byte arrived, after the run's start.
    #[serde(rename = "end_s", with = "Number::<Duration>")]
    pub end: Duration,
    /// Payload that arrived.
    #[serde(with = "Number::<Bytes>")]
    pub bytes: Bytes,
    /// Payload over time.
    #[serde(rename = "goodput_bit_per_s", with = "Number::<Rate>")]
    pub goodput: Rate,
    /// Hash (XXH3-128, hexadecimal) of the bytes as the sender wrote them; none in an incomplete flow.
    pub hash_sent: Option<String>,
    /// Hash of the bytes as the receiver read them.
    pub hash_received: Option<String>,
    /// Segments that the sending end retransmitted. Behind a PEP: on its own leg only.
    pub retransmissions: u64,
    /// Smallest round-trip time that the sending end measured.
    #[serde(rename = "rtt_min_s", with = "Number::<Option<Duration>>")]
    pub rtt_min: Option<Duration>,
    /// The sending end's congestion control, as the kernel names it.
    pub congestion: String,
    /// What ended the flow early, if something did.
    pub error: Option<String>,
    /// How long its sender was in each phase; none if that could not be observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseTimes>,
}

/// How long senders were in each phase of their congestion control while they had data in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseTimes {
    /// Searching for the path's capacity from below: slow start, or what an algorithm has instead.
    #[serde(rename = "slow_start_s", with = "Number::<Duration>")]
    pub slow_start: Duration,
    /// Following the algorithm's law.
    #[serde(rename = "avoidance_s", with = "Number::<Duration>")]
    pub avoidance: Duration,
    /// Repairing losses without a timeout (fast recovery), or reducing the window for a mark.
    #[serde(rename = "recovery_s", with = "Number::<Duration>")]
    pub recovery: Duration,
    /// After a retransmission timeout, until the data that were in flight then have arrived.
    #[serde(rename = "loss_s", with = "Number::<Duration>")]
    pub loss: Duration,
}

impl PhaseTimes {
    /// The difference to an earlier value, `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            slow_start: self.slow_start.saturating_sub(before.slow_start),
            avoidance: self.avoidance.saturating_sub(before.avoidance),
            recovery: self.recovery.saturating_sub(before.recovery),
            loss: self.loss.saturating_sub(before.loss),
        }
    }

    /// The sum.
    pub fn total(&self) -> Duration {
        self.slow_start + self.avoidance + self.recovery + self.loss
    }
}

impl AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: Self) {
        self.slow_start += other.slow_start;
        self.avoidance += other.avoidance;
        self.recovery += other.recovery;
        self.loss += other.loss;
    }
}

/// One object of a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectResult {
    /// Number of the object in its page, from 0.
    pub id: u32,
    /// The flow that carried it.
    pub flow: u32,
    /// Its size.
    #[serde(with = "Number::<Bytes>")]
    pub bytes: Bytes,
    /// When it was requested, after the run's start.
    #[serde(rename = "start_s", with = "Number::<Duration>")]
    pub start: Duration,
    /// When its first byte arrived.
    #[serde(rename = "first_byte_s", with = "Number::<Duration>")]
    pub first_byte: Duration,
    /// When its last byte arrived.
    #[serde(rename = "end_s", with = "Number::<Duration>")]
    pub end: Duration,
}

/// One direction of a link over the whole run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinkResult {
    /// The link's name in the scenario.
    pub name: String,
    /// `down` (towards the first node of `between`) or `up`.
    pub direction: String,
    /// Packets handed to the link.
    pub packets_in: u64,
    /// Bytes handed to the link.
    pub bytes_in: u64,
    /// Packets that left the link.
    pub packets_out: u64,
    /// Bytes that left the link.
    pub bytes_out: u64,
    /// Packets that were dropped or lost, by cause (`queue`, `loss`, `outage`, `aqm`, …).
    pub drops: BTreeMap<String, u64>,
    /// Packets that AQM marked instead of dropping them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub marks: u64,
    /// Bytes that its sender transmitted on the channel, whether lost there or not: the capacity
    /// used.
    pub bytes_sent: u64,
    /// Bytes that its sender could have transmitted in that time at the rates drawn, including
    /// during breaks that lose packets; none if the rate does not vary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Time from the run's start to the moment at which these counts were taken.
    #[serde(rename = "span_s", with = "Number::<Duration>")]
    pub span: Duration,
    /// Largest queue seen.
    pub queue_bytes_max: u64,
    /// How late packets left the emulator; none in the simulator.
    pub lateness: Option<Lateness>,
    /// Processor time that the emulation took; none in the simulator.
    #[serde(rename = "cpu_s", with = "Number::<Option<Duration>>")]
    pub cpu: Option<Duration>,
}

impl LinkResult {
    /// The result of one direction by a link's own counts, `span` after the run's start. The
    /// emulator's lateness and its cost are not included.
    pub fn counted(
        name: impl Into<String>,
        direction: Direction,
        counters: &Counters,
        span: Duration,
    ) -> Self {
        let drops = counters.drops().filter(|(_, count)| *count > 0);
        Self {
            name: name.into(),
            direction: direction.name().to_owned(),
            packets_in: counters.packets_in,
            bytes_in: counters.bytes_in.get(),
            packets_out: counters.packets_out,
            bytes_out: counters.bytes_out.get(),
            drops: drops.map(|(cause, count)| (cause.to_owned(), count)).collect(),
            marks: counters.marks,
            bytes_sent: counters.bytes_sent.get(),
            capacity_bytes: None,
            span,
            queue_bytes_max: counters.queue_bytes_max.get(),
            lateness: None,
            cpu: None,
        }
    }
}

fn no_time(time: &Duration) -> bool {
    time.is_zero()
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// All connections of a proxy over one of its links, as the proxy's kernel reported them.
///
/// Its [`Series`] have the place `NODE.LINK`, with the quantities and units of a sender.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegResult {
    /// The proxy's node.
    pub node: String,
    /// The link that its connections use.
    pub link: String,
    /// The node at the other end, if this is a tunnel to another proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// Connections observed, including the one over which the meter fetches the far end's log.
    pub connections: u64,
    /// Payload that the other end of the leg has acknowledged.
    #[serde(with = "Number::<Bytes>")]
    pub bytes: Bytes,
    /// Segments that the proxy retransmitted.
    pub retransmissions: u64,
    /// Smallest round-trip time that a connection measured.
    #[serde(rename = "rtt_min_s", with = "Number::<Option<Duration>>")]
    pub rtt_min: Option<Duration>,
    /// How long all senders of the proxy together were in each phase; none if that could not be
    /// observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseTimes>,
}

impl LegResult {
    /// The fault of a tunnel that should have carried flows and did not: they took another path,
    /// and the figures mislead.
    pub fn unused(&self) -> Option<String> {
        let far = self.tunnel.as_ref().filter(|_| self.connections == 0)?;
        Some(format!("no flow went by the tunnel from {} to {far}", self.node))
    }

    /// The place of its series.
    pub fn place(&self) -> String {
        format!("{}.{}", self.node, self.link)
    }
}

/// One line of cross traffic over the whole run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrafficResult {
    /// Its name in the scenario.
    pub name: String,
    /// Flows that began.
    pub flows: u64,
    /// Flows that sent all their data.
    pub complete: u64,
    /// Payload that arrived.
    #[serde(with = "Number::<Bytes>")]
    pub bytes: Bytes,
    /// Payload over the time from its start to its stop, or to its last arrival if that was later.
    #[serde(rename = "goodput_bit_per_s", with = "Number::<Rate>")]
    pub goodput: Rate,
    /// Datagrams sent; zero over TCP.
    pub packets_sent: u64,
    /// Datagrams that arrived; zero over TCP.
    pub packets_received: u64,
    /// Mean duration of complete flows; none if no flow is complete.
    #[serde(rename = "flow_time_mean_s", with = "Number::<Option<Duration>>")]
    pub flow_time_mean: Option<Duration>,
    /// How late its datagrams left; none over TCP and in the simulator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
}

/// What happened to packets at a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeResult {
    /// Its name.
    pub node: String,
    /// Packets that were dropped there, by cause (`no-route`, …).
    pub drops: BTreeMap<String, u64>,
    /// Counters of the agent there, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
}

/// How late packets left the emulator, compared with their scheduled times.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lateness {
    /// Packets measured.
    pub packets: u64,
    /// Median.
    #[serde(rename = "p50_s", with = "Number::<Duration>")]
    pub p50: Duration,
    /// 99th percentile.
    #[serde(rename = "p99_s", with = "Number::<Duration>")]
    pub p99: Duration,
    /// Worst.
    #[serde(rename = "max_s", with = "Number::<Duration>")]
    pub max: Duration,
    /// Total time for which the emulator stood still, as detected by its clock, which ticks every
    /// 100 ms. Packets that it did not handle in that time are not counted above.
    #[serde(
        rename = "stood_still_s",
        with = "Number::<Duration>",
        default,
        skip_serializing_if = "no_time"
    )]
    pub stood_still: Duration,
}

/// One quantity over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Series {
    /// The sampled quantity: `goodput`, `cwnd`, `rtt`, `queue`, …
    pub quantity: String,
    /// Where it was sampled: the name of a transfer, a link or a proxy's leg.
    pub place: String,
    /// The flow to which it belongs; none for all flows together.
    pub flow: Option<u32>,
    /// Unit of the values, as printed on an axis.
    pub unit: String,
    /// The times of the samples. Unit: seconds after the run's start. Shape: `[sample]`.
    pub time_s: Vec<f64>,
    /// The values. Shape: `[sample]`.
    pub value: Vec<f64>,
}
