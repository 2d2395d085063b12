//! Delay that differs from packet to packet, packets that are overtaken, packets that arrive twice.

use crate::resolve::{ResolveError, check_positive_time, check_time};
use crate::written::written_as_table;
use midhop_units::{Duration, Loss};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

const EXPECTED_JITTER: &str = "\"none\", a time such as \"5 ms\" (uniform from zero to it), or a \
     table such as { kind = \"normal\", mean = \"5 ms\", deviation = \"1 ms\" }";
const EXPECTED_REORDER: &str =
    "\"none\", a probability such as \"1 %\", or a table { probability = \"1 %\", by = \"5 ms\" }";

/// How long an overtaken packet is held back unless the scenario says so.
const REORDER_BY: Duration = Duration::from_ms(5);

/// The distribution of jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum JitterKind {
    /// No jitter.
    None,
    /// Uniform from zero to `max`.
    Uniform,
    /// Normal with `mean` and `deviation`, cut off below zero.
    Normal,
    /// Exponential with `mean`.
    Exponential,
}

/// Jitter as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::written::Short(EXPECTED_JITTER)))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct JitterSpec {
    /// Which distribution.
    pub kind: JitterKind,
    /// Uniform: the maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Duration>,
    /// Normal, exponential: the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Duration>,
    /// Normal: the standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation: Option<Duration>,
}
written_as_table!(JitterSpec, EXPECTED_JITTER);

impl FromStr for JitterSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let none = Self { kind: JitterKind::None, max: None, mean: None, deviation: None };
        if text == "none" {
            return Ok(none);
        }
        let max = text.parse().map_err(|_| format!("\"{text}\" is not {EXPECTED_JITTER}"))?;
        Ok(Self { kind: JitterKind::Uniform, max: Some(max), ..none })
    }
}

/// The time that is added to the propagation delay of each packet. It is never negative: the
/// propagation delay is the minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum JitterPlan {
    /// Nothing.
    None,
    /// Uniform from zero to `max`.
    Uniform {
        /// The maximum.
        max: Duration,
    },
    /// Normal, cut off below zero.
    Normal {
        /// The mean before the cut.
        mean: Duration,
        /// The standard deviation before the cut.
        deviation: Duration,
    },
    /// Exponential.
    Exponential {
        /// The mean.
        mean: Duration,
    },
}

impl JitterSpec {
    pub(crate) fn resolve(&self) -> Result<JitterPlan, ResolveError> {
        let needs = |value: Option<Duration>, key: &'static str| {
            let value = value.ok_or_else(|| {
                ResolveError::missing(key, "this distribution is not complete without it")
            })?;
            check_positive_time(key, value).map(|()| value)
        };
        let foreign = |value: Option<Duration>, key: &'static str| match value {
            Some(_) => {
                Err(ResolveError::conflict(key, "jitter.kind", "this distribution does not use it"))
            }
            None => Ok(()),
        };
        let Self { kind, max, mean, deviation } = *self;
        if kind != JitterKind::Uniform {
            foreign(max, "jitter.max")?;
        }
        if !matches!(kind, JitterKind::Normal | JitterKind::Exponential) {
            foreign(mean, "jitter.mean")?;
        }
        if kind != JitterKind::Normal {
            foreign(deviation, "jitter.deviation")?;
        }
        Ok(match kind {
            JitterKind::None => JitterPlan::None,
            JitterKind::Uniform if max == Some(Duration::ZERO) => JitterPlan::None,
            JitterKind::Uniform => JitterPlan::Uniform { max: needs(max, "jitter.max")? },
            JitterKind::Normal => JitterPlan::Normal {
                mean: needs(mean, "jitter.mean")?,
                deviation: needs(deviation, "jitter.deviation")?,
            },
            JitterKind::Exponential => {
                JitterPlan::Exponential { mean: needs(mean, "jitter.mean")? }
            }
        })
    }
}

/// Packets that others overtake, as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::written::Short(EXPECTED_REORDER)))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ReorderSpec {
    /// The share of packets that are held back.
    pub probability: Loss,
    /// How long they are held back while others pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Duration>,
}
written_as_table!(ReorderSpec, EXPECTED_REORDER);

impl FromStr for ReorderSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self { probability: Loss::NONE, by: None });
        }
        let probability =
            text.parse().map_err(|_| format!("\"{text}\" is not {EXPECTED_REORDER}"))?;
        Ok(Self { probability, by: None })
    }
}

/// Packets that others overtake, resolved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReorderPlan {
    /// The share of packets that are held back.
    pub probability: Loss,
    /// How long they are held back while others pass.
    pub by: Duration,
}

impl ReorderSpec {
    /// `None` where nothing is held back.
    pub(crate) fn resolve(&self) -> Result<Option<ReorderPlan>, ResolveError> {
        let by = self.by.unwrap_or(REORDER_BY);
        check_time("reorder.by", by)?;
        let never = self.probability == Loss::NONE || by.is_zero();
        Ok((!never).then_some(ReorderPlan { probability: self.probability, by }))
    }
}
