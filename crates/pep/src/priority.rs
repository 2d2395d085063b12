//! The priority of flows: limits how much they send ahead of the flows that wait for their turns.
//!
//! A flow that has sent nothing for a while may send at once: its first bytes, and as many more as its class allows.
//! All flows of a kind share an allowance. It grows by each byte that is written in turns and shrinks by each byte
//! that goes ahead. So urgent flows can delay the others, and never starve them: at least one of three bytes is
//! written in turns.

use serde::{Deserialize, Serialize};

/// When the flows of a class are sent ahead of others.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Ahead"))]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// With all their data.
    Always,
    /// With their first data, and with the first data after a pause.
    #[default]
    AtFirst,
    /// With no more than a short request and its answer.
    Never,
}

/// What every flow may send ahead after a rest, whatever its class: a question. Unit: bytes.
const QUESTION_BYTES: u64 = 4 << 10;
/// What a flow may send ahead that does so at first only. Unit: bytes.
const FIRST_BYTES: u64 = 64 << 10;
/// The most that all flows of a kind may send ahead at once. Unit: bytes.
const ALLOWANCE_BYTES: u64 = 1 << 20;

impl Priority {
    /// What a flow may send ahead after a rest. Unit: bytes.
    fn bytes(self) -> u64 {
        match self {
            Self::Always => u64::MAX,
            Self::AtFirst => FIRST_BYTES,
            Self::Never => QUESTION_BYTES,
        }
    }
}

/// What all flows of a tunnel may still send ahead.
#[derive(Debug)]
pub struct PriorityAllowance {
    always: u64,
    at_first: u64,
}

impl Default for PriorityAllowance {
    fn default() -> Self {
        Self { always: ALLOWANCE_BYTES, at_first: ALLOWANCE_BYTES }
    }
}

impl PriorityAllowance {
    /// Whether a flow may go ahead that has `sent` so many bytes ahead since it rested. Unit: bytes.
    pub fn lets(&self, priority: Priority, sent: u64) -> bool {
        sent < QUESTION_BYTES || (sent < priority.bytes() && *self.of(priority) > 0)
    }

    /// Whether a flow that is no longer urgent may go ahead again without a rest.
    pub fn lets_again(&self, priority: Priority) -> bool {
        priority == Priority::Always && self.always >= ALLOWANCE_BYTES / 2
    }

    /// Books bytes that went ahead. Unit: bytes.
    pub fn spend(&mut self, priority: Priority, bytes: u64) {
        let kind = match priority {
            Priority::Always => &mut self.always,
            Priority::AtFirst | Priority::Never => &mut self.at_first,
        };
        *kind = kind.saturating_sub(bytes);
    }

    /// Books bytes that were written in turns. Unit: bytes.
    pub fn earn(&mut self, bytes: u64) {
        for kind in [&mut self.always, &mut self.at_first] {
            *kind = kind.saturating_add(bytes).min(ALLOWANCE_BYTES);
        }
    }

    fn of(&self, priority: Priority) -> &u64 {
        match priority {
            Priority::Always => &self.always,
            Priority::AtFirst | Priority::Never => &self.at_first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_goes_ahead_as_far_as_it_may() {
        let allowance = PriorityAllowance::default();
        for (priority, most) in [(Priority::Never, 4 << 10), (Priority::AtFirst, 64 << 10)] {
            assert!(
                allowance.lets(priority, most - 1) && !allowance.lets(priority, most),
                "{priority:?}"
            );
        }
        assert!(allowance.lets(Priority::Always, 1 << 40));
    }

    /// Flows that always want to go ahead, and others that want the same link.
    #[test]
    fn what_goes_ahead_starves_nobody() {
        for flows in
            [&[Priority::Always][..], &[Priority::AtFirst], &[Priority::Always, Priority::AtFirst]]
        {
            let mut allowance = PriorityAllowance::default();
            let (mut ahead, mut in_turns) = (0, 0);
            for _ in 0..10_000 {
                // Each time a new flow, which sends as much as it may.
                for &kind in flows {
                    if allowance.lets(kind, QUESTION_BYTES) {
                        allowance.spend(kind, 32 << 10);
                        ahead += 32 << 10;
                    }
                }
                allowance.earn(32 << 10);
                in_turns += 32 << 10;
            }
            let most =
                in_turns * flows.len() + flows.len() * (ALLOWANCE_BYTES as usize + (32 << 10));
            assert!(ahead <= most, "{flows:?}: {ahead} ahead, {in_turns} in turns");
        }
    }

    #[test]
    fn a_question_goes_ahead_even_when_the_allowance_is_spent() {
        let mut allowance = PriorityAllowance::default();
        allowance.spend(Priority::AtFirst, u64::MAX);
        assert!(
            allowance.lets(Priority::AtFirst, 100) && !allowance.lets(Priority::AtFirst, 4 << 10)
        );
        assert!(allowance.lets(Priority::Always, 1 << 20), "the other kind has its own");
        allowance.spend(Priority::Always, u64::MAX);
        assert!(!allowance.lets_again(Priority::Always));
        allowance.earn(ALLOWANCE_BYTES);
        assert!(allowance.lets_again(Priority::Always) && !allowance.lets_again(Priority::AtFirst));
    }
}
