//! Local repair of flows that are not split, as written.

use super::{Action, OneOrMany, ResolveError};
use crate::config::resolve::{check_interfaces, fault};
use midhop_assist::SnoopSettings;
use midhop_config::KeyPath;
use midhop_units::{Bytes, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How flows are repaired that a rule assists: both ends keep their one connection, and what is lost beyond this host is
/// sent again from here, where it is seen to be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Assist {
    /// Interfaces beyond which segments get lost: what leaves by them is cached. None: no rule may assist.
    pub interfaces: OneOrMany<String>,
    /// What may be cached of all flows together, in packets' bytes.
    pub cache: Bytes,
    /// How many later segments must have arrived, or duplicate acknowledgements come, until a segment counts as lost.
    pub threshold: u64,
    /// The least that its own timer waits.
    pub timer_min: Duration,
    /// How often a segment is sent again before its source is left to it.
    pub resends: u32,
    /// Of how many directions of flows there may be a state.
    pub flows: usize,
    /// A flow of which nothing has passed for so long is forgotten.
    pub idle: Duration,
}

impl Default for Assist {
    fn default() -> Self {
        let agent = SnoopSettings::default();
        Self {
            interfaces: OneOrMany::default(),
            cache: Bytes::new(16_000_000),
            threshold: agent.threshold,
            timer_min: agent.timer_min,
            resends: agent.resends,
            flows: agent.flows,
            idle: agent.idle,
        }
    }
}

impl Assist {
    /// Whether flows may be assisted.
    pub fn is_on(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// Checks every number.
    pub(super) fn check(&self) -> Result<(), ResolveError> {
        let key = KeyPath::of(["assist"]);
        check_interfaces(&key.join("interfaces"), &self.interfaces)?;
        let zeros = [
            ("cache", self.cache == Bytes::ZERO),
            ("threshold", self.threshold == 0),
            ("flows", self.flows == 0),
            ("idle", self.idle.is_zero()),
        ];
        match zeros.into_iter().find(|(_, zero)| *zero) {
            Some((name, _)) => fault(
                &key.join(name),
                "nothing could be repaired with that",
                "leave it out for its default, or leave `interfaces` out to assist no flow",
            ),
            None => Ok(()),
        }
    }

    /// Checks what a rule wants of it.
    pub(super) fn check_rule(&self, key: &KeyPath, action: Action) -> Result<(), ResolveError> {
        if action == Action::Assist && !self.is_on() {
            return fault(
                &key.join("action"),
                "it is not said beyond which interface flows are to be repaired",
                "add [assist] with interfaces = \"NAME\", the one towards the link that loses packets",
            );
        }
        Ok(())
    }
}
