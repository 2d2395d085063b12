//! The TCP of hosts, where a scenario configures it differently from that of a current Linux host.
//!
//! ```toml
//! [tcp]                       # of all hosts
//! packet = "1024 B"
//! sack = false
//!
//! [nodes.client]
//! tcp = { receive_buffer = "64 KiB", window_scaling = false }
//! ```
//!
//! A host's own keys take precedence over those of all hosts. It is the TCP of the whole host: of
//! its transfers, its cross traffic, and its proxy's legs. Congestion control is not part of it:
//! that belongs to each transfer.

use crate::bounds::MTU;
use crate::limit::{Family, Framing};
use midhop_config::{ConfigError, Document, KeyPath};
use midhop_units::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// The smallest packet: over IPv6 it leaves an MSS of 88 bytes, which has room for all options.
const PACKET_MIN: u64 = 148;
/// The largest window that can be offered (RFC 7323 §2.3).
const BUFFER_MAX: Bytes = Bytes::new(1 << 30);
/// No acknowledgement waits longer (RFC 9293 §3.8.6.3).
const ACK_TIMEOUT_MAX: Duration = Duration::from_ms(500);
const SEGMENTS_MAX: u32 = 1000;

/// A host's TCP as a person writes it. A missing key has the value for all hosts, otherwise that of
/// Linux.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TcpSpec {
    /// The largest packet that it sends and accepts, headers included. Range: 148 to 1500 B.
    /// Default: 1500 B.
    pub packet: Option<Bytes>,
    /// Selective acknowledgements, if the other end supports them too. Without them, losses are
    /// repaired as in NewReno. Default: yes.
    pub sack: Option<bool>,
    /// Without `sack`: whether a recovery repairs one gap after another (NewReno), or ends after
    /// the first (Reno). Default: yes.
    pub newreno: Option<bool>,
    /// Timestamps, if the other end supports them too. Default: yes.
    pub timestamps: Option<bool>,
    /// Windows of more than 64 KiB, if the other end supports them too. Default: yes.
    pub window_scaling: Option<bool>,
    /// Explicit congestion notification, if the other end supports it too. Default: no.
    pub ecn: Option<bool>,
    /// The window that it offers when all data are read. Default: one that grows with the data that
    /// are read, as in Linux.
    pub receive_buffer: Option<Bytes>,
    /// Data that it may hold until they are acknowledged. Default: a few windows, as in Linux.
    pub send_buffer: Option<Bytes>,
    /// How acknowledgements are delayed; `false`: not at all. Default: as in Linux.
    pub delayed_ack: Option<DelayedAckSpec>,
    /// How losses are detected with selective acknowledgements. Default: `rack`.
    pub loss_detection: Option<LossDetection>,
    /// Whether the first two duplicate acknowledgements allow new data to be sent (RFC 3042).
    /// Default: yes.
    pub limited_transmit: Option<bool>,
    /// Whether a reduction is spread over its round trip (RFC 9937). Default: yes.
    pub prr: Option<bool>,
    /// The minimum of the retransmission timeout. Default: `linux`.
    pub rto: Option<Rto>,
    /// Whether timeouts and recoveries found to be spurious are undone. Default: yes.
    pub undo: Option<bool>,
    /// Whether the window is reset after an idle period (RFC 5681 §4.1). Default: no.
    pub restart_after_idle: Option<bool>,
    /// Whether the next connection to the same host begins with the slow-start threshold of one
    /// that ended, as in Linux before `tcp_no_ssthresh_metrics_save`. Default: no.
    pub threshold_cache: Option<bool>,
}

/// How acknowledgements are delayed, as a person writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "true, false, or a table such as { segments = 4 }")]
pub enum DelayedAckSpec {
    /// As in Linux, or not at all.
    Switch(bool),
    /// In numbers.
    Table(DelayedAckTable),
}

/// How acknowledgements are delayed, in numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DelayedAckTable {
    /// The most full segments that one acknowledgement covers. Range: 1 to 1000. Default: 2.
    pub segments: Option<u32>,
    /// How long it waits for further segments. Range: up to 500 ms. Default: 40 ms.
    pub timeout: Option<Duration>,
    /// Segments at the start of a connection that are each acknowledged at once. Default: 16.
    pub quick: Option<u32>,
}

/// How losses are detected with selective acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LossDetection {
    /// By time, at the tail by a probe (RFC 8985).
    #[default]
    Rack,
    /// By time, without probes.
    RackWithoutProbe,
    /// By count: three later segments have arrived (RFC 6675).
    DupThresh,
}

/// The minimum of the retransmission timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Rto {
    /// 200 ms above the smoothed round-trip time.
    #[default]
    Linux,
    /// One second in total (RFC 6298).
    Rfc6298,
}

/// A host's TCP with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpPlan {
    /// The largest packet. Unit: bytes.
    pub packet: u32,
    /// Selective acknowledgements.
    pub sack: bool,
    /// NewReno's recovery, without selective acknowledgements.
    #[serde(default = "yes")]
    pub newreno: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// Window scaling.
    pub window_scaling: bool,
    /// Explicit congestion notification.
    pub ecn: bool,
    /// The window that it offers when all data are read; none: it grows with the data that are
    /// read.
    pub receive_buffer: Option<Bytes>,
    /// Data that it may hold until they are acknowledged; none: a few windows.
    pub send_buffer: Option<Bytes>,
    /// How acknowledgements are delayed.
    pub delayed_ack: DelayedAckPlan,
    /// How losses are detected with selective acknowledgements.
    pub loss_detection: LossDetection,
    /// Limited transmit.
    pub limited_transmit: bool,
    /// Proportional rate reduction.
    pub prr: bool,
    /// The minimum of the retransmission timeout.
    pub rto: Rto,
    /// Whether spurious timeouts and recoveries are undone.
    pub undo: bool,
    /// Whether the window is reset after an idle period.
    pub restart_after_idle: bool,
    /// Whether slow-start thresholds are remembered by host.
    #[serde(default)]
    pub threshold_cache: bool,
}

/// How acknowledgements are delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayedAckPlan {
    /// The most full segments that one acknowledgement covers.
    pub segments: u32,
    /// How long it waits for further segments.
    pub timeout: Duration,
    /// Segments at the start of a connection that are each acknowledged at once.
    pub quick: u32,
}

impl Default for DelayedAckPlan {
    fn default() -> Self {
        Self { segments: 2, timeout: Duration::from_ms(40), quick: 16 }
    }
}

impl Default for TcpPlan {
    fn default() -> Self {
        Self {
            packet: MTU,
            sack: true,
            newreno: true,
            timestamps: true,
            window_scaling: true,
            ecn: false,
            receive_buffer: None,
            send_buffer: None,
            delayed_ack: DelayedAckPlan::default(),
            loss_detection: LossDetection::default(),
            limited_transmit: true,
            prr: true,
            rto: Rto::default(),
            undo: true,
            restart_after_idle: false,
            threshold_cache: false,
        }
    }
}

impl TcpPlan {
    /// Whether it is that of a current Linux host.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// How a stream between two such hosts is cut into packets.
    pub fn framing(&self, other: &Self, family: Family) -> Framing {
        let mtu = self.packet.min(other.packet);
        Framing { mtu, family, timestamps: self.timestamps && other.timestamps }
    }
}

impl TcpSpec {
    /// The same, with missing values taken from `all`.
    fn over(&self, all: &Self) -> Self {
        let Self { packet, sack, newreno, timestamps, window_scaling, ecn, .. } = self;
        Self {
            packet: packet.or(all.packet),
            sack: sack.or(all.sack),
            newreno: newreno.or(all.newreno),
            timestamps: timestamps.or(all.timestamps),
            window_scaling: window_scaling.or(all.window_scaling),
            ecn: ecn.or(all.ecn),
            receive_buffer: self.receive_buffer.or(all.receive_buffer),
            send_buffer: self.send_buffer.or(all.send_buffer),
            delayed_ack: self.delayed_ack.clone().or_else(|| all.delayed_ack.clone()),
            loss_detection: self.loss_detection.or(all.loss_detection),
            limited_transmit: self.limited_transmit.or(all.limited_transmit),
            prr: self.prr.or(all.prr),
            rto: self.rto.or(all.rto),
            undo: self.undo.or(all.undo),
            restart_after_idle: self.restart_after_idle.or(all.restart_after_idle),
            threshold_cache: self.threshold_cache.or(all.threshold_cache),
        }
    }
}

/// The TCP of a host with the keys `own` where all hosts have `all`, both as written.
///
/// # Errors
/// When an amount is out of range, or a key is not used.
pub(crate) fn resolve(
    node: &str,
    own: Option<&TcpSpec>,
    all: Option<&TcpSpec>,
    document: &Document,
) -> Result<TcpPlan, ConfigError> {
    let everywhere = KeyPath::of(["tcp"]);
    let (none, here) = (TcpSpec::default(), KeyPath::of(["nodes", node, "tcp"]));
    if let Some(all) = all {
        Reader { written: all, path: &everywhere, document }.check()?;
    }
    if let Some(own) = own {
        Reader { written: own, path: &here, document }.check()?;
    }
    let written = own.unwrap_or(&none).over(all.unwrap_or(&none));
    let path = if own.is_some() { &here } else { &everywhere };
    Reader { written: &written, path, document }.fits_together()?;
    let plan = TcpPlan::default();
    let packet = written.packet.and_then(|packet| u32::try_from(packet.get()).ok());
    Ok(TcpPlan {
        packet: packet.unwrap_or(plan.packet),
        sack: written.sack.unwrap_or(plan.sack),
        newreno: written.newreno.unwrap_or(plan.newreno),
        timestamps: written.timestamps.unwrap_or(plan.timestamps),
        window_scaling: written.window_scaling.unwrap_or(plan.window_scaling),
        ecn: written.ecn.unwrap_or(plan.ecn),
        receive_buffer: written.receive_buffer,
        send_buffer: written.send_buffer,
        delayed_ack: written.delayed_ack.as_ref().map_or(plan.delayed_ack, DelayedAckSpec::plan),
        loss_detection: written.loss_detection.unwrap_or(plan.loss_detection),
        limited_transmit: written.limited_transmit.unwrap_or(plan.limited_transmit),
        prr: written.prr.unwrap_or(plan.prr),
        rto: written.rto.unwrap_or(plan.rto),
        undo: written.undo.unwrap_or(plan.undo),
        restart_after_idle: written.restart_after_idle.unwrap_or(plan.restart_after_idle),
        threshold_cache: written.threshold_cache.unwrap_or(plan.threshold_cache),
    })
}

impl DelayedAckSpec {
    fn plan(&self) -> DelayedAckPlan {
        let plan = DelayedAckPlan::default();
        match self {
            Self::Switch(true) => plan,
            Self::Switch(false) => {
                DelayedAckPlan { segments: 1, timeout: Duration::ZERO, quick: 0 }
            }
            Self::Table(table) => DelayedAckPlan {
                segments: table.segments.unwrap_or(plan.segments),
                timeout: table.timeout.unwrap_or(plan.timeout),
                quick: table.quick.unwrap_or(plan.quick),
            },
        }
    }
}

struct Reader<'r> {
    written: &'r TcpSpec,
    path: &'r KeyPath,
    document: &'r Document,
}

impl Reader<'_> {
    fn refuse(&self, key: &str, message: String, hint: &str) -> ConfigError {
        self.document.fault(&self.path.join(key), message, Some(hint.to_owned()))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let Some(packet) = self.written.packet
            && !(PACKET_MIN..=u64::from(MTU)).contains(&packet.get())
        {
            let hint = format!("{PACKET_MIN} B to {MTU} B, headers included");
            return Err(self.refuse(
                "packet",
                format!("packets of {packet} are impossible"),
                &hint,
            ));
        }
        let buffers = [
            ("receive_buffer", self.written.receive_buffer),
            ("send_buffer", self.written.send_buffer),
        ];
        for (key, buffer) in buffers {
            let Some(buffer) = buffer else { continue };
            if buffer.get() < PACKET_MIN || buffer > BUFFER_MAX {
                let hint = format!("{PACKET_MIN} B to {BUFFER_MAX}");
                return Err(self.refuse(key, format!("a buffer of {buffer} is impossible"), &hint));
            }
        }
        let Some(DelayedAckSpec::Table(table)) = &self.written.delayed_ack else { return Ok(()) };
        if let Some(segments) = table.segments.filter(|it| !(1..=SEGMENTS_MAX).contains(it)) {
            let message = format!("an acknowledgement cannot answer {segments} segments");
            let hint = format!("1 to {SEGMENTS_MAX}");
            return Err(self.refuse("delayed_ack", message, &hint));
        }
        if let Some(timeout) = table.timeout.filter(|it| *it > ACK_TIMEOUT_MAX) {
            let message = format!("an acknowledgement may not wait for {timeout}");
            let hint = format!("at most {ACK_TIMEOUT_MAX} (RFC 9293)");
            return Err(self.refuse("delayed_ack", message, &hint));
        }
        Ok(())
    }

    /// Whether the keys of this host and those of all hosts fit together.
    fn fits_together(&self) -> Result<(), ConfigError> {
        if self.written.loss_detection.is_some() && self.written.sack == Some(false) {
            let message = "without `sack` losses are found as NewReno does".to_owned();
            return Err(self.refuse("loss_detection", message, "leave one of the two out"));
        }
        if self.written.newreno.is_some() && self.written.sack != Some(false) {
            let message = "it acts without selective acknowledgements only".to_owned();
            return Err(self.refuse("newreno", message, "add sack = false"));
        }
        Ok(())
    }
}

fn yes() -> bool {
    true
}
