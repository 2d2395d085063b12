//! Packets that the channel loses: each on its own, in bursts counted in packets, or in bursts of time.

use crate::resolve::{DELAY_MAX, ResolveError};
use crate::stream::Stream;
use crate::written::written_as_table;
use midhop_units::{Duration, Instant, Loss, Seed};
#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::borrow::Cow;
use std::{fmt, str::FromStr};

const EXPECTED: &str = "a probability such as 0.01 or \"1 %\", or a table such as \
                        { mean = \"1 %\", burst = \"5 packets\" }";

/// The shortest mean sojourn: following a chain that changes faster would take more work than the
/// packets do.
const SOJOURN_MIN: Duration = Duration::from_us(100);

/// After a pause of so many mean cycles, the chain's state is drawn anew instead of followed.
const CYCLES_MAX: u64 = 1_000_000;

/// A loss model as written.
///
/// A number or text is the loss probability of each packet independently of others. A table is a
/// Gilbert–Elliott channel, given either by its effect (`mean`, `burst`) or by its parts:
/// `good_to_bad` and `bad_to_good` are probabilities per packet, `good` and `bad` are mean times in
/// the state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::written::Short(EXPECTED)))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct LossSpec {
    /// The loss probability of each packet, independently of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<Loss>,
    /// Mean loss over both states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Loss>,
    /// Mean length of a burst, which is a stay in the bad state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// Probability per packet of a change from the good to the bad state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good_to_bad: Option<Loss>,
    /// Probability per packet of a change from the bad to the good state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad_to_good: Option<Loss>,
    /// Mean time in the good state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<Duration>,
    /// Mean time in the bad state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad: Option<Duration>,
    /// Loss probability in the good state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_good: Option<Loss>,
    /// Loss probability in the bad state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_bad: Option<Loss>,
}
written_as_table!(LossSpec, EXPECTED);

impl FromStr for LossSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let probability = text.parse().map_err(|_| format!("\"{text}\" is not {EXPECTED}"))?;
        Ok(Self { probability: Some(probability), ..Self::default() })
    }
}

/// How long a burst of losses lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Burst {
    /// This many packets on average, regardless of the time.
    Packets(f64),
    /// This long on average, regardless of the number of packets.
    Time(Duration),
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(packets) => write!(f, "{packets} packets"),
            Self::Time(time) => time.fmt(f),
        }
    }
}

impl FromStr for Burst {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("\"{text}\" is not a burst such as \"5 packets\" or \"20 ms\"");
        match text.strip_suffix("packets") {
            Some(number) => number.trim().parse().map(Self::Packets).map_err(|_| refused()),
            None => text.parse().map(Self::Time).map_err(|_| refused()),
        }
    }
}

impl Serialize for Burst {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Burst {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The loss models of one direction as written: one, or a list of models that all apply.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct LossSpecs(pub Vec<LossSpec>);

impl<'de> Deserialize<'de> for LossSpecs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct LossVisitor;

        impl<'de> de::Visitor<'de> for LossVisitor {
            type Value = LossSpecs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{EXPECTED}, or a list of these")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LossSpecs, E> {
                text.parse().map(|one| LossSpecs(vec![one])).map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<LossSpecs, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<LossSpecs, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<LossSpecs, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LossSpecs, A::Error> {
                let one = LossSpec::deserialize(MapAccessDeserializer::new(map))?;
                Ok(LossSpecs(vec![one]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<LossSpecs, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(LossSpecs)
            }
        }

        from.deserialize_any(LossVisitor)
    }
}

crate::written::schema!(Burst, "a burst such as \"5 packets\" or \"20 ms\"");

#[cfg(feature = "schema")]
impl JsonSchema for LossSpecs {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LossSpecs".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<LossSpec>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

/// A loss model, resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LossPlan {
    /// The loss probability of each packet, independently of others.
    Bernoulli {
        /// The probability that a packet is lost.
        probability: Loss,
    },
    /// A two-state Markov chain that makes one step per packet (Gilbert 1960, Elliott 1963).
    GilbertElliottByPackets {
        /// Probability per packet of a change from the good to the bad state.
        good_to_bad: Loss,
        /// Probability per packet of a change from the bad to the good state.
        bad_to_good: Loss,
        /// Loss probability in the good state.
        loss_good: Loss,
        /// Loss probability in the bad state.
        loss_bad: Loss,
    },
    /// A two-state Markov chain in time: the duration of bursts does not depend on the load.
    GilbertElliottByTime {
        /// Mean time in the good state; times are exponential.
        good: Duration,
        /// Mean time in the bad state.
        bad: Duration,
        /// Loss probability in the good state.
        loss_good: Loss,
        /// Loss probability in the bad state.
        loss_bad: Loss,
    },
}

impl LossPlan {
    /// Whether its bursts begin and end in time, independently of what is sent.
    pub fn is_by_time(&self) -> bool {
        matches!(self, Self::GilbertElliottByTime { .. })
    }

    /// The long-term share of lost packets.
    pub fn mean(&self) -> Loss {
        let mix = |bad: f64, loss_good: Loss, loss_bad: Loss| {
            let mean = (1.0 - bad) * loss_good.probability() + bad * loss_bad.probability();
            Loss::new(mean).unwrap_or(Loss::ALL)
        };
        match *self {
            Self::Bernoulli { probability } => probability,
            Self::GilbertElliottByPackets { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                let (p, r) = (good_to_bad.probability(), bad_to_good.probability());
                mix(p / (p + r), loss_good, loss_bad)
            }
            Self::GilbertElliottByTime { good, bad, loss_good, loss_bad } => {
                let (good, bad) = (good.as_s_f64(), bad.as_s_f64());
                mix(bad / (good + bad), loss_good, loss_bad)
            }
        }
    }
}

impl LossSpec {
    /// `None` where it never loses a packet.
    pub(crate) fn resolve(&self) -> Result<Option<LossPlan>, ResolveError> {
        let by_packets = self.good_to_bad.is_some() || self.bad_to_good.is_some();
        let by_time = self.good.is_some() || self.bad.is_some();
        let by_effect = self.mean.is_some() || self.burst.is_some();
        let states = self.loss_good.is_some() || self.loss_bad.is_some();
        let one_form = "give either `probability`, or `mean` and `burst`, or `good_to_bad` and \
                        `bad_to_good`, or `good` and `bad`";
        let forms = [self.probability.is_some(), by_effect, by_packets, by_time];
        match forms.iter().filter(|form| **form).count() {
            0 => return Err(ResolveError::missing("loss.probability", one_form)),
            1 => {}
            _ if by_packets && by_time => {
                return Err(ResolveError::conflict("loss.good_to_bad", "loss.good", one_form));
            }
            _ if by_effect => {
                return Err(ResolveError::conflict("loss.mean", "loss.probability", one_form));
            }
            _ => return Err(ResolveError::conflict("loss.probability", "loss.good", one_form)),
        }
        let loss_good = self.loss_good.unwrap_or(Loss::NONE);
        let loss_bad = self.loss_bad.unwrap_or(Loss::ALL);
        if loss_bad < loss_good {
            return Err(ResolveError::out_of_range(
                "loss.loss_bad",
                loss_bad,
                format!("must be at least loss_good, {loss_good}"),
            ));
        }
        if let Some(probability) = self.probability {
            if states {
                return Err(ResolveError::conflict(
                    "loss.probability",
                    "loss.loss_bad",
                    "a loss of each packet by itself has no states",
                ));
            }
            let never = probability == Loss::NONE;
            return Ok((!never).then_some(LossPlan::Bernoulli { probability }));
        }
        let plan = if by_packets {
            LossPlan::GilbertElliottByPackets {
                good_to_bad: required(self.good_to_bad, "loss.good_to_bad", one_form)?,
                bad_to_good: required(self.bad_to_good, "loss.bad_to_good", one_form)?,
                loss_good,
                loss_bad,
            }
        } else if by_time {
            LossPlan::GilbertElliottByTime {
                good: required(self.good, "loss.good", one_form)?,
                bad: required(self.bad, "loss.bad", one_form)?,
                loss_good,
                loss_bad,
            }
        } else {
            let mean = required(self.mean, "loss.mean", one_form)?;
            let burst = required(self.burst, "loss.burst", one_form)?;
            if mean == Loss::NONE && loss_good == Loss::NONE {
                return Ok(None);
            }
            from_effect(mean, burst, loss_good, loss_bad)?
        };
        plan.check().map(|()| Some(plan))
    }
}

impl LossPlan {
    fn check(&self) -> Result<(), ResolveError> {
        match *self {
            Self::Bernoulli { .. } => Ok(()),
            Self::GilbertElliottByPackets { good_to_bad, bad_to_good, .. } => {
                for (key, probability) in
                    [("loss.good_to_bad", good_to_bad), ("loss.bad_to_good", bad_to_good)]
                {
                    if probability == Loss::NONE {
                        let hint = "must be above 0 %: the channel would never change its state";
                        return Err(ResolveError::out_of_range(key, probability, hint));
                    }
                }
                Ok(())
            }
            Self::GilbertElliottByTime { good, bad, .. } => {
                for (key, sojourn) in [("loss.good", good), ("loss.bad", bad)] {
                    if !(SOJOURN_MIN..=DELAY_MAX).contains(&sojourn) {
                        let hint = format!("must be between {SOJOURN_MIN} and {DELAY_MAX}");
                        return Err(ResolveError::out_of_range(key, sojourn, hint));
                    }
                }
                Ok(())
            }
        }
    }
}

/// The chain with this mean loss and this mean duration of the bad state.
fn from_effect(
    mean: Loss,
    burst: Burst,
    loss_good: Loss,
    loss_bad: Loss,
) -> Result<LossPlan, ResolveError> {
    if !(loss_good < mean && mean < loss_bad) {
        let hint = format!("must lie between loss_good, {loss_good}, and loss_bad, {loss_bad}");
        return Err(ResolveError::out_of_range("loss.mean", mean, hint));
    }
    let bad_share = (mean.probability() - loss_good.probability())
        / (loss_bad.probability() - loss_good.probability());
    let bad_to_good_share = bad_share / (1.0 - bad_share);
    match burst {
        Burst::Packets(packets) => {
            let leave = 1.0 / packets;
            let refused = |hint: String| ResolveError::out_of_range("loss.burst", burst, hint);
            let bad_to_good = Loss::new(leave)
                .ok_or_else(|| refused("must be at least one packet".to_owned()))?;
            let good_to_bad = Loss::new(leave * bad_to_good_share).ok_or_else(|| {
                refused(format!("is too short for a mean loss of {mean}: lengthen it"))
            })?;
            Ok(LossPlan::GilbertElliottByPackets { good_to_bad, bad_to_good, loss_good, loss_bad })
        }
        Burst::Time(bad) => {
            let good = bad.scale(1.0 / bad_to_good_share);
            Ok(LossPlan::GilbertElliottByTime { good, bad, loss_good, loss_bad })
        }
    }
}

fn required<T>(value: Option<T>, key: &'static str, hint: &str) -> Result<T, ResolveError> {
    value.ok_or_else(|| ResolveError::missing(key, hint))
}

/// One way of losing packets at work.
#[derive(Debug, Clone)]
pub(crate) struct LossProcess {
    plan: LossPlan,
    /// Decides each packet.
    packets: Stream,
    /// Decides when the state changes; apart from `packets`, so that bursts by time come at the same
    /// times whatever is sent.
    states: Stream,
    bad: bool,
    /// By time: when the state changes next.
    change: Instant,
}

impl LossProcess {
    /// The chains of one direction, whose seed is `seed`.
    pub(crate) fn all(plans: &[LossPlan], start: Instant, seed: Seed) -> Vec<Self> {
        let process = |(index, plan): (usize, &LossPlan)| {
            Self::new(plan, start, seed.derive(&format!("loss.{index}")))
        };
        plans.iter().enumerate().map(process).collect()
    }

    /// The chain starts in its steady state.
    pub(crate) fn new(plan: &LossPlan, start: Instant, seed: Seed) -> Self {
        let mut own = Self {
            plan: plan.clone(),
            packets: Stream::new(seed, "packets"),
            states: Stream::new(seed, "states"),
            bad: false,
            change: Instant::NEVER,
        };
        match own.plan {
            LossPlan::Bernoulli { .. } => {}
            LossPlan::GilbertElliottByPackets { good_to_bad, bad_to_good, .. } => {
                let (p, r) = (good_to_bad.probability(), bad_to_good.probability());
                own.bad = own.states.uniform() < p / (p + r);
            }
            LossPlan::GilbertElliottByTime { good, bad, .. } => {
                let (good_s, bad_s) = (good.as_s_f64(), bad.as_s_f64());
                own.bad = own.states.uniform() < bad_s / (good_s + bad_s);
                own.change = start + own.states.exponential(if own.bad { bad } else { good });
            }
        }
        own
    }

    /// Whether the packet sent at `now` is lost. Times must not go backwards.
    pub(crate) fn loses(&mut self, now: Instant) -> bool {
        let probability = match self.plan {
            LossPlan::Bernoulli { probability } => probability,
            LossPlan::GilbertElliottByPackets { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                let here = if self.bad { loss_bad } else { loss_good };
                let leave = if self.bad { bad_to_good } else { good_to_bad };
                self.bad ^= self.states.strikes(leave);
                here
            }
            LossPlan::GilbertElliottByTime { good, bad, loss_good, loss_bad } => {
                let cycle = good.saturating_add(bad);
                if now.saturating_since(self.change) / CYCLES_MAX > cycle {
                    // Nothing was sent for so long that the chain's earlier state has no influence.
                    let bad_share = bad.as_s_f64() / cycle.as_s_f64();
                    self.bad = self.states.uniform() < bad_share;
                    self.change = now;
                }
                self.turn(now, good, bad);
                if self.bad { loss_bad } else { loss_good }
            }
        };
        self.packets.strikes(probability)
    }

    /// For bursts in time: the share of packets that is lost at `now`, and until when. `None` for a
    /// chain that advances per packet. Times must not go backwards.
    pub(crate) fn share(&mut self, now: Instant) -> Option<(Loss, Instant)> {
        let LossPlan::GilbertElliottByTime { good, bad, loss_good, loss_bad } = self.plan else {
            return None;
        };
        self.turn(now, good, bad);
        Some((if self.bad { loss_bad } else { loss_good }, self.change))
    }

    /// The state at `now` of a chain in time.
    fn turn(&mut self, now: Instant, good: Duration, bad: Duration) {
        while now >= self.change {
            self.bad = !self.bad;
            let stay = self.states.exponential(if self.bad { bad } else { good });
            self.change = self.change + stay;
        }
    }
}

#[cfg(test)]
#[path = "loss/tests.rs"]
mod tests;
