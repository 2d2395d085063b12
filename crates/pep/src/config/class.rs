//! Classes of flows: who gets how much of a tunnel, and who goes ahead.

use super::resolve::fault;
use super::{Config, Dscp, OneOrMany, ResolveError};
use crate::{fair_queue::WEIGHT, priority::Priority};
use midhop_config::KeyPath;
use serde::{Deserialize, Serialize};

/// The heaviest that a class may be: a hundred times one of weight 1.
const WEIGHT_MAX: u32 = 100;
/// The longest name of a class, which goes with each of its flows. Unit: bytes.
const NAME_BYTES_MAX: usize = 32;

/// A class of flows. An unset key has the value of the built-in class of this name, if there is
/// one; otherwise the built-in value of class `other`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Class {
    /// The part of a full tunnel that one of its flows gets, relative to a flow of weight 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// When its flows are sent ahead of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Priority>,
    /// The DSCPs of its flows, if no rule names a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<OneOrMany<Dscp>>,
}

/// A class of flows, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClassPlan {
    /// Its name, by which the other end of a tunnel knows it.
    pub name: String,
    /// What one of its flows gets of a full tunnel.
    pub weight: u32,
    /// When its flows are sent ahead of the others.
    pub ahead: Priority,
    /// The DSCPs of its flows.
    pub dscp: Vec<Dscp>,
}

impl ClassPlan {
    /// The name of the class of all flows that belong to no other class.
    pub const OTHER: &str = "other";

    /// The name that another proxy receives; none: the class of all other flows needs no announcement.
    pub fn announced(&self) -> Option<String> {
        (self.name != Self::OTHER).then(|| self.name.clone())
    }

    fn new(name: &str, weight: u32, ahead: Priority, dscp: &[u8]) -> Self {
        let dscp = dscp.iter().copied().filter_map(Dscp::new).collect();
        Self { name: name.to_owned(), weight, ahead, dscp }
    }

    /// The classes that exist without configuration.
    ///
    /// Source: RFC 4594 §2.3 (EF: telephony, CS5: signaling, AF4x: conferences, CS6: network control),
    /// RFC 8622 (LE), RFC 4594 §3.10 (CS1: low priority).
    fn built_in() -> [Self; 3] {
        [
            Self::new("background", 1, Priority::Never, &[1, 8]),
            Self::new("interactive", WEIGHT, Priority::Always, &[46, 40, 48, 34, 36, 38]),
            Self::new(Self::OTHER, WEIGHT, Priority::AtFirst, &[]),
        ]
    }
}

impl Config {
    /// All classes; the last is [`ClassPlan::OTHER`].
    pub(super) fn resolve_classes(&self) -> Result<Vec<ClassPlan>, ResolveError> {
        let mut plans = Vec::from(ClassPlan::built_in());
        for (name, class) in &self.classes {
            let key = KeyPath::of(["classes", name.as_str()]);
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
                return fault(
                    &key,
                    format!("\"{name}\" cannot be the name of a class"),
                    format!("take 1 to {NAME_BYTES_MAX} of the characters a-z, 0-9 and -"),
                );
            }
            if let Some(weight) = class.weight.filter(|it| !(1..=WEIGHT_MAX).contains(it)) {
                return fault(
                    &key.join("weight"),
                    format!("{weight} is not between 1 and {WEIGHT_MAX}"),
                    format!("the default is {WEIGHT}"),
                );
            }
            let found = plans.iter().position(|plan| plan.name == *name);
            let at = found.unwrap_or_else(|| {
                plans.insert(0, ClassPlan::new(name, WEIGHT, Priority::AtFirst, &[]));
                0
            });
            let plan = &mut plans[at];
            plan.weight = class.weight.unwrap_or(plan.weight);
            plan.ahead = class.ahead.unwrap_or(plan.ahead);
            if let Some(dscp) = &class.dscp {
                plan.dscp.clone_from(&dscp.0);
            }
        }
        check_dscp(&plans)?;
        Ok(plans)
    }
}

/// Whether each DSCP stands for one class.
fn check_dscp(plans: &[ClassPlan]) -> Result<(), ResolveError> {
    for (number, plan) in plans.iter().enumerate() {
        for dscp in &plan.dscp {
            if let Some(other) = plans[..number].iter().find(|other| other.dscp.contains(dscp)) {
                return fault(
                    &KeyPath::of(["classes", other.name.as_str(), "dscp"]),
                    format!("DSCP {} is that of class \"{}\" already", dscp.value(), plan.name),
                    format!("set classes.{}.dscp to those that it is to keep", plan.name),
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Plan;
    use crate::policy::FlowKey;

    fn plan(text: &str) -> Plan {
        Plan::read("test.toml", text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The class of a flow to a port with a DSCP, whose peer asked for some class.
    fn class_of<'a>(plan: &'a Plan, port: u16, dscp: u8, asked: Option<&str>) -> &'a str {
        let flow = FlowKey {
            source: ([10, 0, 0, 1], 1000).into(),
            destination: ([10, 0, 0, 2], port).into(),
            interface: None,
            peer: None,
            dscp,
        };
        &plan.class(&plan.policy.decide(&flow), Some(dscp), asked).name
    }

    #[test]
    fn a_class_is_the_rule_s_or_the_dscp_s_or_what_was_asked_for() {
        let plan = plan(
            "[classes.voice]\nahead = \"always\"\ndscp = 44\n\
             [[rules]]\nmatch.destination_port = 22\nclass = \"interactive\"\n\
             [[rules]]\nmatch.destination_port = 23\naction = \"bypass\"\n",
        );
        for (port, dscp, asked, class) in [
            (22, 0, None, "interactive"),
            (22, 1, Some("voice"), "interactive"),
            (80, 46, None, "interactive"),
            (80, 1, None, "background"),
            (80, 44, None, "voice"),
            (80, 0, None, "other"),
            (80, 0, Some("voice"), "voice"),
            (80, 0, Some("other"), "other"),
            (80, 0, Some("unknown"), "other"),
        ] {
            assert_eq!(class_of(&plan, port, dscp, asked), class, "{port} {dscp} {asked:?}");
        }
    }

    #[test]
    fn what_is_built_in_may_be_changed_piece_by_piece() {
        let plan = plan(
            "[classes.interactive]\nweight = 40\n[classes.background]\ndscp = []\n\
             [classes.other]\nahead = \"never\"\n[classes.bulk]\ndscp = \"le\"\n",
        );
        let classes: Vec<_> = plan
            .classes
            .iter()
            .map(|it| (it.name.as_str(), it.weight, it.ahead, it.dscp.len()))
            .collect();
        assert_eq!(
            classes,
            [
                ("bulk", 10, Priority::AtFirst, 1),
                ("background", 1, Priority::Never, 0),
                ("interactive", 40, Priority::Always, 6),
                ("other", 10, Priority::Never, 0),
            ]
        );
    }

    #[test]
    fn what_makes_no_class_is_refused_by_its_key() {
        for (text, key) in [
            ("[classes.A]\n", "classes.A"),
            ("[classes.a]\nweight = 0\n", "classes.a.weight"),
            ("[classes.a]\nweight = 101\n", "classes.a.weight"),
            ("[classes.a]\ndscp = \"ef\"\n", "classes.a.dscp"),
            ("[classes.a]\nahead = \"often\"\n", "classes.a.ahead"),
            ("[[rules]]\nclass = \"a\"\n", "rules.0.class"),
            ("[[rules]]\naction = \"bypass\"\nclass = \"other\"\n", "rules.0.class"),
        ] {
            let error = Plan::read("test.toml", text).expect_err(text);
            assert_eq!(error.key.as_deref(), Some(key), "{error}");
        }
    }
}
