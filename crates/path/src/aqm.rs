//! Which packets are dropped before the queue is full.

use crate::codel::CodelPlan;
use crate::pie::PiePlan;
use crate::resolve::{ResolveError, check_positive_time, check_time, check_time_in};
use crate::written::written_as_table;
use midhop_units::Duration;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

const EXPECTED: &str = "\"none\", \"codel\", \"pie\", \"xcp\", or a table such as \
                        { kind = \"codel\", target = \"5 ms\", interval = \"100 ms\" }";

/// The algorithm of active queue management.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AqmKind {
    /// Drop-tail alone.
    None,
    /// Controlled delay, RFC 8289.
    Codel,
    /// Proportional integral controller enhanced, RFC 8033.
    Pie,
    /// Drop-tail, with a router that gives feedback to XCP's senders.
    Xcp,
}

/// Active queue management as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::written::Short(EXPECTED)))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AqmSpec {
    /// The algorithm.
    pub kind: AqmKind,
    /// The target of the waiting time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Duration>,
    /// CoDel: how long the waiting time must stay above target before the first drop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// PIE: the interval at which the drop probability is updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Duration>,
    /// PIE: how long a burst may pass without drops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Duration>,
}
written_as_table!(AqmSpec, EXPECTED);

impl FromStr for AqmSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = match text {
            "none" => AqmKind::None,
            "codel" => AqmKind::Codel,
            "pie" => AqmKind::Pie,
            "xcp" => AqmKind::Xcp,
            _ => return Err(format!("\"{text}\" is not {EXPECTED}")),
        };
        Ok(Self { kind, target: None, interval: None, update: None, burst: None })
    }
}

/// Active queue management, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AqmPlan {
    /// Drop-tail alone.
    None,
    /// RFC 8289.
    Codel(CodelPlan),
    /// RFC 8033.
    Pie(PiePlan),
    /// Drop-tail: the router beside the queue is the caller's.
    Xcp,
}

impl AqmSpec {
    pub(crate) fn resolve(&self) -> Result<AqmPlan, ResolveError> {
        let foreign = |given: Option<Duration>, key: &'static str, hint: &str| match given {
            Some(_) => Err(ResolveError::conflict(key, "aqm.kind", hint)),
            None => Ok(()),
        };
        if self.kind != AqmKind::Codel {
            foreign(self.interval, "aqm.interval", "only CoDel has an interval")?;
        }
        if self.kind != AqmKind::Pie {
            foreign(self.update, "aqm.update", "only PIE has an update time")?;
            foreign(self.burst, "aqm.burst", "only PIE has a burst allowance")?;
        }
        Ok(match self.kind {
            AqmKind::None => {
                foreign(self.target, "aqm.target", "drop-tail has no target")?;
                AqmPlan::None
            }
            AqmKind::Xcp => {
                foreign(self.target, "aqm.target", "XCP empties the queue")?;
                AqmPlan::Xcp
            }
            AqmKind::Codel => {
                let default = CodelPlan::default();
                let plan = CodelPlan {
                    target: self.target.unwrap_or(default.target),
                    interval: self.interval.unwrap_or(default.interval),
                };
                check_positive_time("aqm.target", plan.target)?;
                check_positive_time("aqm.interval", plan.interval)?;
                AqmPlan::Codel(plan)
            }
            AqmKind::Pie => {
                let default = PiePlan::default();
                let plan = PiePlan {
                    target: self.target.unwrap_or(default.target),
                    update: self.update.unwrap_or(default.update),
                    burst: self.burst.unwrap_or(default.burst),
                };
                check_positive_time("aqm.target", plan.target)?;
                check_time_in(
                    "aqm.update",
                    plan.update,
                    Duration::from_us(100)..=Duration::from_s(10),
                )?;
                check_time("aqm.burst", plan.burst)?;
                AqmPlan::Pie(plan)
            }
        })
    }
}
