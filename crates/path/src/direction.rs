//! The two directions of a link.

use midhop_units::Seed;
use serde::{Deserialize, Serialize};

/// The direction of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Towards the link's first node, the user's side.
    Down,
    /// Towards the link's second node.
    Up,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Down, Self::Up];

    /// The name in scenarios and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
        }
    }

    /// The seed of this direction of a link whose own is `link`.
    pub(crate) fn seed(self, link: Seed) -> Seed {
        link.derive(self.name())
    }
}
