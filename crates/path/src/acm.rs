//! Adaptive coding and modulation of DVB-S2: the rate follows the signal, a loop delay behind.

use crate::resolve::{RATE_MAX, ResolveError, check_number, check_time};
use crate::trace::Trace;
use crate::written::{self, Written};
use midhop_units::{Duration, Rate};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;

const EXPECTED_ES_N0: &str =
    "a number of decibels, or a table such as { trace = [[\"0 s\", 12], [\"60 s\", 3.5]] }";

/// Symbol energy over noise density as written and as resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct EsN0(pub Trace<f64>);

impl FromStr for EsN0 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let decibels = text.parse().map_err(|_| format!("\"{text}\" is not {EXPECTED_ES_N0}"))?;
        Ok(Self(Trace::constant(decibels)))
    }
}

impl Written for EsN0 {
    const EXPECTED: &'static str = EXPECTED_ES_N0;

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        Trace::deserialize(table).map(Self)
    }
}

impl<'de> Deserialize<'de> for EsN0 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        written::deserialize(from)
    }
}

impl Serialize for EsN0 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.steps.as_slice() {
            [(_, only)] => only.serialize(to),
            _ => self.0.serialize(to),
        }
    }
}

/// DVB-S2 ACM as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcmSpec {
    /// Symbols per second.
    pub symbol_rate_baud: f64,
    /// Signal quality at the receiver over time, in dB.
    pub es_n0_db: EsN0,
    /// How much better than a MODCOD's threshold the signal must be to use it. Default 0.5 dB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_db: Option<f64>,
    /// How much better still before stepping up. Default 0.5 dB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hysteresis_db: Option<f64>,
    /// From a change at the receiver to a change at the sender. Default 500 ms: two hops to report,
    /// two until the new MODCOD arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_delay: Option<Duration>,
}

/// DVB-S2 ACM, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcmPlan {
    /// Symbols per second.
    pub symbol_rate_baud: f64,
    /// Signal quality at the receiver over time, in dB.
    pub es_n0_db: EsN0,
    /// How much better than a MODCOD's threshold the signal must be to use it.
    pub margin_db: f64,
    /// How much better still before stepping up.
    pub hysteresis_db: f64,
    /// From a change at the receiver to a change at the sender.
    pub loop_delay: Duration,
}

impl AcmSpec {
    pub(crate) fn resolve(&self) -> Result<AcmPlan, ResolveError> {
        let plan = AcmPlan {
            symbol_rate_baud: self.symbol_rate_baud,
            es_n0_db: self.es_n0_db.clone(),
            margin_db: self.margin_db.unwrap_or(0.5),
            hysteresis_db: self.hysteresis_db.unwrap_or(0.5),
            loop_delay: self.loop_delay.unwrap_or(Duration::from_ms(500)),
        };
        let baud_max = RATE_MAX.bits_per_s() as f64 / 5.0;
        check_number("acm.symbol_rate_baud", plan.symbol_rate_baud, 1e3..=baud_max)?;
        plan.es_n0_db.0.check("acm.es_n0_db")?;
        for es_n0 in plan.es_n0_db.0.values() {
            check_number("acm.es_n0_db", es_n0, -100.0..=100.0)?;
        }
        check_number("acm.margin_db", plan.margin_db, 0.0..=20.0)?;
        check_number("acm.hysteresis_db", plan.hysteresis_db, 0.0..=20.0)?;
        check_time("acm.loop_delay", plan.loop_delay)?;
        Ok(plan)
    }
}

impl AcmPlan {
    /// The highest rate that the best MODCOD gives.
    pub fn highest(&self) -> Rate {
        Rate::from_bits_per_s((self.symbol_rate_baud * 4.453) as u64)
    }
}
