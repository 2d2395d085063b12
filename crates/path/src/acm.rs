//! Adaptive coding and modulation of DVB-S2: the rate follows the signal, a loop delay behind.

use crate::resolve::{RATE_MAX, ResolveError, check_number, check_time};
use crate::trace::Trace;
use crate::written::{self, Written};
use midhop_units::{Duration, Instant, Rate};
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

written::schema!(EsN0, EXPECTED_ES_N0, Trace<f64>);

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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcmSpec {
    /// Symbols per second.
    pub symbol_rate_baud: f64,
    /// Signal quality at the receiver over time, in dB.
    pub es_n0_db: EsN0,
    /// By how much the signal must exceed a MODCOD's threshold for the MODCOD to be used. Default
    /// 0.5 dB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_db: Option<f64>,
    /// By how much more the signal must exceed it before a step up. Default 0.5 dB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hysteresis_db: Option<f64>,
    /// Time from a change at the receiver to a change at the sender. Default 500 ms: two hops for
    /// the report, two until the new MODCOD arrives.
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
    /// By how much the signal must exceed a MODCOD's threshold for the MODCOD to be used.
    pub margin_db: f64,
    /// By how much more the signal must exceed it before a step up.
    pub hysteresis_db: f64,
    /// Time from a change at the receiver to a change at the sender.
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
        Rate::from_bits_per_s(
            (self.symbol_rate_baud * MODCODS[MODCODS.len() - 1].efficiency) as u64,
        )
    }
}

/// One combination of modulation and code rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modcod {
    /// The name in the standard.
    pub name: &'static str,
    /// Unit: information bits per symbol.
    pub efficiency: f64,
    /// Es/N0 from which frames are decoded almost without errors. Unit: dB.
    pub threshold_db: f64,
}

const fn modcod(name: &'static str, efficiency: f64, threshold_db: f64) -> Modcod {
    Modcod { name, efficiency, threshold_db }
}

/// The MODCODs of DVB-S2 for normal frames without pilots, by rising efficiency.
///
/// Source: ETSI EN 302 307-1, table 13 (quasi-error-free on a channel with white noise).
pub const MODCODS: [Modcod; 28] = [
    modcod("QPSK 1/4", 0.490, -2.35),
    modcod("QPSK 1/3", 0.656, -1.24),
    modcod("QPSK 2/5", 0.789, -0.30),
    modcod("QPSK 1/2", 0.989, 1.00),
    modcod("QPSK 3/5", 1.188, 2.23),
    modcod("QPSK 2/3", 1.322, 3.10),
    modcod("QPSK 3/4", 1.487, 4.03),
    modcod("QPSK 4/5", 1.587, 4.68),
    modcod("QPSK 5/6", 1.655, 5.18),
    modcod("QPSK 8/9", 1.766, 6.20),
    modcod("8PSK 3/5", 1.780, 5.50),
    modcod("QPSK 9/10", 1.789, 6.42),
    modcod("8PSK 2/3", 1.981, 6.62),
    modcod("8PSK 3/4", 2.228, 7.91),
    modcod("8PSK 5/6", 2.479, 9.35),
    modcod("16APSK 2/3", 2.637, 8.97),
    modcod("8PSK 8/9", 2.646, 10.69),
    modcod("8PSK 9/10", 2.679, 10.98),
    modcod("16APSK 3/4", 2.967, 10.21),
    modcod("16APSK 4/5", 3.166, 11.03),
    modcod("16APSK 5/6", 3.300, 11.61),
    modcod("16APSK 8/9", 3.523, 12.89),
    modcod("16APSK 9/10", 3.567, 13.13),
    modcod("32APSK 3/4", 3.703, 12.73),
    modcod("32APSK 4/5", 3.952, 13.64),
    modcod("32APSK 5/6", 4.120, 14.28),
    modcod("32APSK 8/9", 4.398, 15.69),
    modcod("32APSK 9/10", 4.453, 16.05),
];

/// The loop: what the sender uses now, from what the receiver saw a loop delay ago.
#[derive(Debug, Clone)]
pub(crate) struct Acm {
    plan: AcmPlan,
    start: Instant,
    /// Index into [`MODCODS`].
    current: usize,
    /// When the sender next receives a report of a change.
    next_report: Instant,
}

impl Acm {
    /// The link starts with the MODCOD of its first signal.
    pub(crate) fn new(plan: &AcmPlan, start: Instant) -> Self {
        let (es_n0, change) = plan.es_n0_db.0.at_instant(start, start);
        let current = best(es_n0 - plan.margin_db);
        Self { plan: plan.clone(), start, current, next_report: change + plan.loop_delay }
    }

    /// The MODCOD that the sender uses at `now`, and when it next receives a report of a change.
    pub(crate) fn at(&mut self, now: Instant) -> (Modcod, Instant) {
        if let Some(period) = self.plan.es_n0_db.0.repeat {
            // Full periods of the trace leave the choice as it was after the period before.
            let periods = now.saturating_since(self.next_report).as_ns() / period.as_ns();
            self.next_report = self.next_report + period * periods.saturating_sub(2);
        }
        while now >= self.next_report {
            let seen = self.next_report - self.plan.loop_delay;
            let (es_n0, change) = self.plan.es_n0_db.0.at_instant(self.start, seen);
            let allowed = best(es_n0 - self.plan.margin_db);
            let surely_allowed = best(es_n0 - self.plan.margin_db - self.plan.hysteresis_db);
            // A more robust MODCOD at once, a more efficient one only with enough margin.
            let holds = es_n0 - self.plan.margin_db >= MODCODS[self.current].threshold_db;
            let kept = if holds { self.current.min(allowed) } else { allowed };
            self.current = kept.max(surely_allowed);
            self.next_report = change + self.plan.loop_delay;
        }
        (MODCODS[self.current], self.next_report)
    }

    /// The rate of a MODCOD.
    pub(crate) fn rate(&self, modcod: Modcod) -> Rate {
        Rate::from_bits_per_s((self.plan.symbol_rate_baud * modcod.efficiency) as u64)
    }

    /// Whether the receiver can decode at `now`.
    pub(crate) fn decodable(&mut self, now: Instant) -> bool {
        self.decodable_until(now).0
    }

    /// [`Acm::decodable`], and when that may change.
    pub(crate) fn decodable_until(&mut self, now: Instant) -> (bool, Instant) {
        let (modcod, report) = self.at(now);
        let (es_n0_db, change) = self.plan.es_n0_db.0.at_instant(self.start, now);
        (es_n0_db >= modcod.threshold_db, report.min(change))
    }
}

/// Index of the most efficient MODCOD that this signal decodes; the most robust one if none.
fn best(es_n0_db: f64) -> usize {
    MODCODS.iter().rposition(|modcod| modcod.threshold_db <= es_n0_db).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(steps: &[(u64, f64)]) -> AcmPlan {
        let steps = steps.iter().map(|(s, db)| (Duration::from_s(*s), *db)).collect();
        AcmSpec {
            symbol_rate_baud: 1e7,
            es_n0_db: EsN0(Trace { steps, repeat: None }),
            margin_db: None,
            hysteresis_db: None,
            loop_delay: None,
        }
        .resolve()
        .expect("a plan")
    }

    fn at_ms(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn the_table_rises_and_spans_the_published_rates() {
        assert!(MODCODS.is_sorted_by(|a, b| a.efficiency < b.efficiency));
        let acm = Acm::new(&plan(&[(0, 0.0)]), Instant::START);
        assert_eq!(acm.rate(MODCODS[0]), Rate::from_bits_per_s(4_900_000));
        assert_eq!(acm.rate(MODCODS[27]), Rate::from_bits_per_s(44_530_000));
        assert_eq!(plan(&[(0, 0.0)]).highest(), Rate::from_bits_per_s(44_530_000));
    }

    #[test]
    fn the_best_decodable_is_chosen_even_where_thresholds_cross() {
        for (es_n0, name) in [
            (-9.0, "QPSK 1/4"),
            (-2.35, "QPSK 1/4"),
            (1.0, "QPSK 1/2"),
            (5.6, "8PSK 3/5"),
            (9.0, "16APSK 2/3"),
            (12.8, "32APSK 3/4"),
            (40.0, "32APSK 9/10"),
        ] {
            assert_eq!(MODCODS[best(es_n0)].name, name, "{es_n0} dB");
        }
    }

    #[test]
    fn a_fade_is_noticed_one_loop_late() {
        let mut acm = Acm::new(&plan(&[(0, 10.0), (5, 4.0)]), Instant::START);
        // 10 dB less the margin of 0.5: 16APSK 2/3 at 8.97 dB.
        assert_eq!(acm.at(at_ms(4_999)), (MODCODS[15], at_ms(5_500)));
        assert!(acm.decodable(at_ms(4_999)));
        assert!(!acm.decodable(at_ms(5_000)));
        assert!(!acm.decodable(at_ms(5_499)));
        assert_eq!(acm.at(at_ms(5_500)).0.name, "QPSK 2/3");
        assert!(acm.decodable(at_ms(5_500)));
    }

    #[test]
    fn stepping_up_needs_more_than_staying() {
        // QPSK 3/4 needs 4.03 dB: with margin 4.53, and 5.03 to step up to it.
        let mut acm = Acm::new(&plan(&[(0, 4.0), (5, 4.9), (10, 5.1), (15, 4.6)]), Instant::START);
        assert_eq!(acm.at(at_ms(0)).0.name, "QPSK 2/3");
        assert_eq!(acm.at(at_ms(6_000)).0.name, "QPSK 2/3");
        assert_eq!(acm.at(at_ms(11_000)).0.name, "QPSK 3/4");
        assert_eq!(acm.at(at_ms(16_000)).0.name, "QPSK 3/4");
    }
}
