//! Congestion control as written in a scenario: a name, or a table with parameters of the
//! algorithm.
//!
//! ```toml
//! congestion = "cubic"
//! congestion = { algorithm = "cubic", slow_start = "search", initial_window = 20 }
//! ```
//!
//! The written form is a [`CongestionSpec`]; with every default filled in, it is a [`Tuning`]. A
//! key that the algorithm does not use is refused. A name alone may be that of an algorithm that
//! only some kernel has; it then has no tuning.

mod proxy;
mod resolve;
mod settings;

pub use proxy::ProxyLeg;
pub(crate) use proxy::check_legs;
pub(crate) use resolve::{Leg, resolve, resolve_for_proxy};
pub use settings::KernelLeg;

use midhop_congestion::dvegas::DVegasThresholds;
use midhop_congestion::hybla::{HyblaSettings, ReferenceFlow};
use midhop_congestion::known_rate::KnownRateBounds;
use midhop_congestion::vegas::VegasThresholds;
use midhop_congestion::xcp::XcpSettings;
use midhop_units::{Bytes, Duration, Loss, Rate};
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

const EXPECTED: &str = "a name such as \"cubic\", or a table such as \
                        { algorithm = \"cubic\", slow_start = \"search\" }";

/// Congestion control as a person writes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(transform = midhop_path::Short(EXPECTED)))]
pub struct CongestionSpec {
    /// The algorithm by its name.
    pub algorithm: String,
    /// How the first slow start ends: `classic`, `hystart`, `hystart++`, `search`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<String>,
    /// How a connection begins: `burst`, `initial-spreading`, `careful-resume`, `jump`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opening: Option<String>,
    /// The window before anything is acknowledged. Unit: segments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_window: Option<u32>,
    /// Whether segments leave at the algorithm's rate instead of as acknowledgements arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing: Option<bool>,
    /// `careful-resume`: the data that an earlier connection delivered in a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_window: Option<Bytes>,
    /// `careful-resume`: the smallest round-trip time of that connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_rtt: Option<Duration>,
    /// `jump`, `known-rate`, `hybla-plus`: the known rate; `xcp`: the rate that it requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// `jump`, `careful-resume`: the largest window after a jump.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_max: Option<Bytes>,
    /// `hybla`, `hybla-plus`, `hybla-linux`: the round-trip time of the flow it imitates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt0: Option<Duration>,
    /// `hybla-plus`: the factor by which the window may grow per round in slow start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_max: Option<f64>,
    /// `hybla-plus`: the share of segments that may be lost without the window being halved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_tolerance: Option<Loss>,
    /// `hybla-plus`: whether it starts at the known rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_at_rate: Option<bool>,
    /// `vegas`, `dvegas`: the window grows if fewer segments than this are queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<u32>,
    /// `vegas`, `dvegas`: the window shrinks if more segments than this are queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<u32>,
    /// `vegas`, `dvegas`: slow start ends if more segments than this are queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<u32>,
    /// `dvegas`: the terminal's queue is drained at once if it holds more segments than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `dvegas`: whether the sender, a host or a proxy, gets reports of the queue at its own first link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_feedback: Option<bool>,
    /// `xcp`: whether a loss leaves the window as it is (P-XCP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_on_loss: Option<bool>,
    /// `known-rate`: the link whose rate is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// `known-rate`: the window in products of rate and round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<f64>,
    /// `known-rate`: the longest queueing delay that may last for a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_max: Option<Duration>,
    /// `known-rate`: the largest part of a round's data that the channel may lose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_max: Option<Loss>,
    /// `known-rate`: whether the sender keeps to the rate whatever happens to its packets, and no
    /// window bounds the outstanding data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_loop: Option<bool>,
    /// `known-rate`: whether the rate is trusted (default); if not, a path that contradicts it is
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl From<&str> for CongestionSpec {
    fn from(algorithm: &str) -> Self {
        Self { algorithm: algorithm.to_owned(), ..Self::default() }
    }
}

impl CongestionSpec {
    /// The keys that are written besides the algorithm's, in the order of the fields.
    fn keys(&self) -> Vec<String> {
        /// A table, also where a name would do.
        struct Table<'s>(&'s CongestionSpec);

        impl Serialize for Table<'_> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                // The inherent function that `remote` derives, not the trait's.
                CongestionSpec::serialize(self.0, to)
            }
        }

        let written = toml::Table::try_from(Table(self)).unwrap_or_default();
        written.into_iter().map(|(key, _)| key).filter(|key| key != "algorithm").collect()
    }

    /// Whether it is only a name.
    fn is_name(&self) -> bool {
        *self == Self::from(self.algorithm.as_str())
    }
}

impl<'de> Deserialize<'de> for CongestionSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> de::Visitor<'de> for Either {
            type Value = CongestionSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<CongestionSpec, E> {
                Ok(name.into())
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<CongestionSpec, A::Error> {
                // The inherent function that `remote` derives, not the trait's.
                CongestionSpec::deserialize(MapAccessDeserializer::new(map))
            }
        }

        from.deserialize_any(Either)
    }
}

impl Serialize for CongestionSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.is_name() { to.serialize_str(&self.algorithm) } else { Self::serialize(self, to) }
    }
}

/// An algorithm of ours with all its parameters, including the defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// The algorithm by its name.
    pub algorithm: String,
    /// How the first slow start ends; none where the algorithm has a rule of its own.
    pub slow_start: Option<String>,
    /// What is sent before anything is known of the path.
    pub opening: OpeningPlan,
    /// The window before anything is acknowledged. Unit: segments.
    pub initial_window: u32,
    /// Whether segments leave at the algorithm's rate.
    pub pacing: bool,
    /// The parameters that only this algorithm has.
    pub own: Own,
}

/// What is sent before anything is known of the path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum OpeningPlan {
    /// The initial window at once.
    Burst,
    /// The initial window over the first round trip.
    InitialSpreading,
    /// Half of what an earlier connection had, once the path is confirmed to be the same (RFC
    /// 9959).
    CarefulResume {
        /// The data that this connection delivered in a round trip.
        saved_window: Bytes,
        /// Its smallest round-trip time.
        saved_rtt: Duration,
        /// The largest jump.
        window_max: Bytes,
    },
    /// What a known rate carries in a round trip.
    Jump {
        /// The rate.
        rate: Rate,
        /// The largest jump.
        window_max: Bytes,
    },
}

/// The parameters that only one algorithm has: those of its law, and what a plan holds of them in
/// another form or in addition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Own {
    /// No parameters.
    Nothing,
    /// Hybla's as its paper has it.
    Hybla(ReferenceFlow),
    /// That of Hybla with bounds and a tolerance.
    HyblaPlus(HyblaSettings),
    /// Hybla's as Linux computes it.
    HyblaLinux(ReferenceFlow),
    /// Vegas'.
    Vegas(VegasThresholds),
    /// DVegas'.
    DVegas {
        /// Its thresholds.
        #[serde(flatten)]
        own: DVegasThresholds,
        /// Whether the sender gets reports of the queue at its own first link.
        queue_feedback: bool,
    },
    /// XCP's.
    Xcp(XcpSettings),
    /// Those of a flow whose leg has a known rate.
    KnownRate {
        /// The link; all flows of known rate that a node sends over it share its rate.
        link: String,
        /// The rate at which the sender may send.
        rate: Rate,
        /// The rate at which the receiver may send.
        rate_back: Rate,
        /// How far the rate is trusted.
        #[serde(flatten)]
        bounds: KnownRateBounds,
    },
}

impl Own {
    /// The round-trip time of the flow that Hybla imitates.
    pub fn rtt0(&self) -> Option<Duration> {
        match self {
            Self::Hybla(own) | Self::HyblaLinux(own) => Some(own.rtt0),
            Self::HyblaPlus(own) => Some(own.rtt0),
            _ => None,
        }
    }

    /// Whether a sender gets reports of the queue at its own first link.
    pub fn has_queue_feedback(&self) -> bool {
        matches!(self, Self::DVegas { queue_feedback: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_congestion::Algorithm;
    use serde_json::json;

    #[test]
    fn every_key_of_an_algorithm_can_be_written() {
        for algorithm in Algorithm::ALL {
            for key in algorithm.description().keys {
                let text = format!("algorithm = \"{algorithm}\"\n{key} = []");
                let error =
                    toml::from_str::<CongestionSpec>(&text).expect_err("no key takes a list");
                assert!(!error.message().contains("unknown field"), "{algorithm}: {error}");
            }
        }
    }

    /// Records are compared by this form.
    #[test]
    fn the_form_in_a_plan_is_that_of_earlier_records() {
        let known = |rate: Rate| Own::KnownRate {
            link: "satellite".to_owned(),
            rate,
            rate_back: Rate::from_mbit_per_s(5),
            bounds: KnownRateBounds::default(),
        };
        let dvegas = Own::DVegas { own: DVegasThresholds::default(), queue_feedback: true };
        for (own, form) in [
            (Own::Nothing, json!({ "kind": "nothing" })),
            (Own::Hybla(ReferenceFlow::default()), json!({ "kind": "hybla", "rtt0": "25 ms" })),
            (
                Own::HyblaLinux(ReferenceFlow::default()),
                json!({ "kind": "hybla-linux", "rtt0": "25 ms" }),
            ),
            (
                Own::HyblaPlus(HyblaSettings::default()),
                json!({ "kind": "hybla-plus", "rtt0": "25 ms", "growth_max_q10": 4096,
                    "loss_tolerance_q16": 1311, "rate": null, "start_at_rate": false }),
            ),
            (
                Own::Vegas(VegasThresholds::default()),
                json!({ "kind": "vegas", "alpha": 2, "beta": 4, "gamma": 1 }),
            ),
            (
                dvegas,
                json!({ "kind": "d-vegas", "thresholds": { "alpha": 2, "beta": 4, "gamma": 1 },
                    "limit": 16, "queue_feedback": true }),
            ),
            (
                Own::Xcp(XcpSettings::default()),
                json!({ "kind": "xcp", "rate": null, "keep_on_loss": false }),
            ),
            (
                known(Rate::from_mbit_per_s(20)),
                json!({ "kind": "known-rate", "link": "satellite", "rate": "20 Mbit/s",
                    "rate_back": "5 Mbit/s", "window_percent": 150, "queue_max": "100 ms",
                    "loss_percent_max": 20, "open_loop": false }),
            ),
        ] {
            assert_eq!(serde_json::to_value(&own).expect("JSON"), form);
            assert_eq!(serde_json::from_value::<Own>(form).expect("it reads back"), own);
        }
    }

    #[test]
    fn what_is_written_is_found_beside_the_name() {
        let text = "initial_window = 20\nalgorithm = \"vegas\"\nalpha = 3";
        let spec: CongestionSpec = toml::from_str(text).expect("a table");
        assert_eq!(spec.keys(), ["initial_window", "alpha"]);
        assert_eq!(CongestionSpec::from("vegas").keys(), [""; 0]);
    }
}
