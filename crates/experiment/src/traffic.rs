//! Cross traffic: other traffic over the links while the transfers are measured.
//!
//! ```toml
//! [traffic.others]
//! kind = "web"
//! from = "server"
//! to = "client"
//! sessions = 20
//! ```
//!
//! A table of the file becomes a [`TrafficSpec`]; checked and with its defaults filled in, it is a
//! [`TrafficPlan`]. A kind refuses keys that it does not use, so that no key is ignored silently.

mod beginnings;
mod departures;
pub mod page;

pub use beginnings::Beginnings;
pub use departures::Departures;

use crate::bounds::BYTES_MAX;
use crate::congestion::{CongestionSpec, Tuning};
use crate::limit::{Family, Opener};
use crate::own_keys::{self, Key};
use crate::plan::Crossing;
use crate::random::Random;
use crate::spec::Spec;
use midhop_config::{ConfigError, Document, KeyPath};
use midhop_units::{Bytes, Duration, Rate, Seed};
use serde::{Deserialize, Serialize};

const CONGESTION: &str = "cubic";
/// Default size of a datagram: a full packet.
const PACKET: Bytes = Bytes::new(1500);
/// Default mean times on and off.
const BURST: Duration = Duration::from_ms(500);
/// Shorter than a packet on any link where such traffic matters; and a run must end.
const BURST_MIN: Duration = Duration::from_us(10);
/// The first port on which cross traffic listens; each further line uses the next one.
const PORT_FIRST: u16 = 9000;
const FLOWS_MAX: u32 = 10_000;
/// Unit: bytes.
const UDP_HEADER: u64 = 8;
/// The name from which seeds of cross traffic are derived.
const STREAMS: &str = "traffic";

/// Cross traffic as a person writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Its kind.
    pub kind: TrafficKind,
    /// The node that sends the data.
    pub from: String,
    /// The node that receives it.
    pub to: String,
    /// When it begins, after the run's start. Default: at once.
    #[serde(default)]
    pub start: Duration,
    /// When it ends, after the run's start. Default: with the run.
    pub stop: Option<Duration>,
    /// The version of IP. Default: 4.
    #[serde(default)]
    pub family: Family,
    /// `bulk`, `web`, `arrivals`: congestion control. Default: `cubic`.
    pub congestion: Option<CongestionSpec>,
    /// `bulk`: which end opens the connections. Default: the receiver.
    pub opens: Option<Opener>,
    /// `bulk`: connections at once. Default: 1.
    pub flows: Option<u32>,
    /// `web`: users who load and read one page after another. Default: 1.
    pub sessions: Option<u32>,
    /// `constant`, `on-off`: the rate, headers included; for `on-off`, the rate of a burst.
    pub rate: Option<Rate>,
    /// `constant`, `on-off`: size of each packet, headers included. Default: 1500 B.
    pub packet: Option<Bytes>,
    /// `on-off`: mean length of a burst. Default: 500 ms.
    pub on: Option<Duration>,
    /// `on-off`: mean time between bursts. Default: 500 ms.
    pub off: Option<Duration>,
    /// `on-off`, `arrivals`: the shape of the Pareto distribution of times and sizes. Range: > 1.
    /// Default: none, times and sizes are distributed exponentially.
    pub shape: Option<f64>,
    /// `arrivals`: flows that begin in a second, on average.
    pub per_second: Option<f64>,
    /// `arrivals`: mean size of a flow.
    pub bytes: Option<Bytes>,
}

/// A kind of cross traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TrafficKind {
    /// TCP flows that send all the time, as FTP does.
    Bulk,
    /// Users who load and read one page after another.
    Web,
    /// UDP at a constant rate.
    Constant,
    /// UDP in bursts.
    OnOff,
    /// TCP flows that begin at random moments, send their bytes and end.
    Arrivals,
}

/// Cross traffic with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficPlan {
    /// Its name.
    pub name: String,
    /// The node that sends the data.
    pub from: String,
    /// The node that receives it.
    pub to: String,
    /// When it begins, after the run's start.
    pub start: Duration,
    /// When it ends, after the run's start.
    pub stop: Duration,
    /// The version of IP.
    pub family: Family,
    /// The port at which the listening end accepts it.
    pub port: u16,
    /// The links that its data crosses, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<Crossing>,
    /// Its kind.
    pub load: Load,
    /// The parameters of its congestion control; none if it has none, or one that only a kernel
    /// has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,
}

impl TrafficPlan {
    /// Its stream of random numbers in a run of `seed`, in the simulator and in the laboratory.
    pub fn random(&self, seed: Seed) -> Random {
        Random::new(seed.derive(STREAMS), &self.name)
    }

    /// The stream of one of its users.
    pub fn random_of_user(&self, seed: Seed, user: u32) -> Random {
        Random::new(seed.derive(STREAMS), &format!("{}.{user}", self.name))
    }

    /// The node that listens for its connections, or receives its datagrams.
    pub fn listening(&self) -> &str {
        match self.load {
            Load::Bulk { opens: Opener::From, .. } | Load::Constant { .. } | Load::OnOff { .. } => {
                &self.to
            }
            Load::Bulk { .. } | Load::Web { .. } | Load::Arrivals { .. } => &self.from,
        }
    }

    /// The other node.
    pub fn opener(&self) -> &str {
        if self.listening() == self.to { &self.from } else { &self.to }
    }

    /// The rate at which `bytes` arrived, the last of them `last` after the start of a run that
    /// ended at `end`: over the time in which it sends, and longer if data in flight arrived later.
    pub fn goodput(&self, bytes: Bytes, last: Duration, end: Duration) -> Rate {
        let span = end.min(last.max(self.stop)).saturating_sub(self.start);
        if span.is_zero() { Rate::ZERO } else { Rate::of(bytes, span) }
    }

    /// The payload of a datagram of `packet` bytes.
    pub fn payload(&self, packet: Bytes) -> Bytes {
        let ip = match self.family {
            Family::Ipv4 => 20,
            Family::Ipv6 => 40,
        };
        packet.saturating_sub(Bytes::new(ip + UDP_HEADER))
    }
}

/// Cross traffic in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Load {
    /// TCP flows that send all the time.
    Bulk {
        /// Connections at once.
        flows: u32,
        /// Congestion control.
        congestion: String,
        /// Which end opens the connections.
        opens: Opener,
    },
    /// Users who load and read one page after another.
    Web {
        /// How many.
        sessions: u32,
        /// Congestion control.
        congestion: String,
    },
    /// UDP at a constant rate.
    Constant {
        /// The rate, headers included.
        rate: Rate,
        /// Size of a packet, headers included.
        packet: Bytes,
    },
    /// UDP in bursts.
    OnOff {
        /// The rate of a burst, headers included.
        rate: Rate,
        /// Size of a packet, headers included.
        packet: Bytes,
        /// Mean length of a burst.
        on: Duration,
        /// Mean time between bursts.
        off: Duration,
        /// The shape of the Pareto distribution; none: exponential.
        shape: Option<f64>,
    },
    /// TCP flows that begin as a Poisson process.
    Arrivals {
        /// Flows that begin in a second, on average.
        per_second: f64,
        /// Mean size of a flow.
        bytes: Bytes,
        /// The shape of the Pareto distribution; none: exponential.
        shape: Option<f64>,
        /// Congestion control.
        congestion: String,
    },
}

impl Load {
    /// The congestion control that it needs.
    pub fn congestion(&self) -> Option<&str> {
        match self {
            Self::Bulk { congestion, .. }
            | Self::Web { congestion, .. }
            | Self::Arrivals { congestion, .. } => Some(congestion),
            Self::Constant { .. } | Self::OnOff { .. } => None,
        }
    }
}

/// Checks one table of cross traffic and fills in its defaults. Whether its nodes exist is checked
/// elsewhere.
///
/// # Errors
/// When a key is missing, out of range, or belongs to another kind.
pub(crate) fn resolve(
    spec: &Spec,
    name: &str,
    number: u16,
    written: &TrafficSpec,
    document: &Document,
) -> Result<TrafficPlan, ConfigError> {
    let path = KeyPath::of(["traffic", name]);
    let reader = Reader { written, path: &path, document };
    reader.only_its_own_keys()?;
    let stop = written.stop.unwrap_or(spec.duration).min(spec.duration);
    if written.start >= stop {
        let key = if written.stop.is_some() { "stop" } else { "start" };
        let hint =
            format!("it begins at {} and the run ends after {}", written.start, spec.duration);
        return Err(reader.fault(key, "it would end before it begins", Some(hint)));
    }
    let algorithm = written.congestion.as_ref().map_or(CONGESTION, |own| own.algorithm.as_str());
    let congestion = || algorithm.to_owned();
    let load = match written.kind {
        TrafficKind::Bulk => Load::Bulk {
            flows: reader.count("flows", written.flows)?,
            congestion: congestion(),
            opens: written.opens.unwrap_or_default(),
        },
        TrafficKind::Web => Load::Web {
            sessions: reader.count("sessions", written.sessions)?,
            congestion: congestion(),
        },
        TrafficKind::Constant => Load::Constant { rate: reader.rate()?, packet: reader.packet()? },
        TrafficKind::OnOff => Load::OnOff {
            rate: reader.rate()?,
            packet: reader.packet()?,
            on: reader.time("on", written.on)?,
            off: reader.time("off", written.off)?,
            shape: reader.shape()?,
        },
        TrafficKind::Arrivals => Load::Arrivals {
            per_second: reader.per_second()?,
            bytes: reader.bytes()?,
            shape: reader.shape()?,
            congestion: congestion(),
        },
    };
    Ok(TrafficPlan {
        name: name.to_owned(),
        from: written.from.clone(),
        to: written.to.clone(),
        start: written.start,
        stop,
        family: written.family,
        port: PORT_FIRST.saturating_add(number),
        route: Vec::new(),
        load,
        tuning: None,
    })
}

struct Reader<'r> {
    written: &'r TrafficSpec,
    path: &'r KeyPath,
    document: &'r Document,
}

impl Reader<'_> {
    fn fault(&self, key: &str, message: impl Into<String>, hint: Option<String>) -> ConfigError {
        self.document.fault(&self.path.join(key), message.into(), hint)
    }

    fn missing(&self, key: &str, example: &str) -> ConfigError {
        let message = format!("`{key}` is missing");
        self.document.fault(self.path, message, Some(format!("such as {key} = {example}")))
    }

    fn only_its_own_keys(&self) -> Result<(), ConfigError> {
        use TrafficKind::{Arrivals, Bulk, Constant, OnOff, Web};
        let written = self.written;
        let keys: [Key<'_, TrafficKind>; 11] = [
            ("congestion", written.congestion.is_some(), &[Bulk, Web, Arrivals]),
            ("opens", written.opens.is_some(), &[Bulk]),
            ("flows", written.flows.is_some(), &[Bulk]),
            ("sessions", written.sessions.is_some(), &[Web]),
            ("rate", written.rate.is_some(), &[Constant, OnOff]),
            ("packet", written.packet.is_some(), &[Constant, OnOff]),
            ("on", written.on.is_some(), &[OnOff]),
            ("off", written.off.is_some(), &[OnOff]),
            ("shape", written.shape.is_some(), &[OnOff, Arrivals]),
            ("per_second", written.per_second.is_some(), &[Arrivals]),
            ("bytes", written.bytes.is_some(), &[Arrivals]),
        ];
        match own_keys::foreign(&written.kind, &keys) {
            None => Ok(()),
            Some((key, own)) => {
                let message = "this kind of traffic has no such key";
                Err(self.fault(key, message, Some(own_keys::hint(&own))))
            }
        }
    }

    fn count(&self, key: &str, written: Option<u32>) -> Result<u32, ConfigError> {
        let count = written.unwrap_or(1);
        if (1..=FLOWS_MAX).contains(&count) {
            return Ok(count);
        }
        let hint = Some(format!("1 to {FLOWS_MAX}"));
        Err(self.fault(key, format!("{count} at once are impossible"), hint))
    }

    fn rate(&self) -> Result<Rate, ConfigError> {
        match self.written.rate {
            None => Err(self.missing("rate", "\"2 Mbit/s\"")),
            Some(Rate::ZERO) => Err(self.fault("rate", "nothing would be sent", None)),
            Some(rate) => Ok(rate),
        }
    }

    fn packet(&self) -> Result<Bytes, ConfigError> {
        let packet = self.written.packet.unwrap_or(PACKET);
        if (64..=PACKET.get()).contains(&packet.get()) {
            return Ok(packet);
        }
        let hint = Some(format!("64 B to {PACKET}, headers included"));
        Err(self.fault("packet", format!("packets of {packet} are impossible"), hint))
    }

    fn time(&self, key: &str, written: Option<Duration>) -> Result<Duration, ConfigError> {
        let time = written.unwrap_or(BURST);
        if time < BURST_MIN {
            let hint =
                format!("{BURST_MIN} or more; for traffic without pauses use kind = \"constant\"");
            return Err(self.fault(key, format!("a mean of {time} is too short"), Some(hint)));
        }
        Ok(time)
    }

    fn shape(&self) -> Result<Option<f64>, ConfigError> {
        match self.written.shape {
            Some(shape) if !(shape > 1.0 && shape.is_finite()) => {
                let hint =
                    Some("more than 1, or there is no mean; 1.2 to 1.9 as a rule".to_owned());
                Err(self.fault("shape", format!("{shape} is no shape of a Pareto law"), hint))
            }
            shape => Ok(shape),
        }
    }

    fn per_second(&self) -> Result<f64, ConfigError> {
        match self.written.per_second {
            None => Err(self.missing("per_second", "5.0")),
            Some(number) if number > 0.0 && number <= 1e5 => Ok(number),
            Some(number) => {
                let hint = Some("more than 0, at most 100000".to_owned());
                Err(self.fault(
                    "per_second",
                    format!("{number} flows a second are impossible"),
                    hint,
                ))
            }
        }
    }

    fn bytes(&self) -> Result<Bytes, ConfigError> {
        match self.written.bytes {
            None => Err(self.missing("bytes", "\"100 kB\"")),
            Some(Bytes::ZERO) => Err(self.fault("bytes", "nothing would be sent", None)),
            Some(bytes) if bytes > BYTES_MAX => {
                let hint = Some(format!("at most {BYTES_MAX}"));
                Err(self.fault("bytes", format!("{bytes} are impossible"), hint))
            }
            Some(bytes) => Ok(bytes),
        }
    }
}
