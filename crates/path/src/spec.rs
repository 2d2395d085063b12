//! A link as a person writes it in a scenario.
//!
//! ```toml
//! [links.satellite]
//! between = ["terminal", "gateway"]
//! preset = "geo"
//! loss = "0.1 %"                                    # both directions
//! down = { rate = "20 Mbit/s", queue = "1.5 BDP" }  # towards the first node
//! up = { rate = "5 Mbit/s" }                        # towards the second
//! ```
//!
//! What a direction sets takes precedence over what the link sets for both, and that over the
//! preset. A key replaces the whole value of the layer below; tables are not merged.
//!
//! Decision 0002.

use crate::acm::AcmSpec;
use crate::aqm::AqmSpec;
use crate::dama::DamaSpec;
use crate::delay::LinkDelay;
use crate::jitter::{JitterSpec, ReorderSpec};
use crate::loss::LossSpecs;
use crate::orbit::OrbitSpec;
use crate::outage::Outage;
use crate::plan::{DirectionPlan, LinkPlan};
use crate::presets::{self, UnknownPreset};
use crate::queue::QueueSpec;
use crate::rate::LinkRate;
use crate::reconfiguration::ReconfigurationSpec;
use crate::resolve::ResolveError;
use crate::switch::Switch;
use midhop_units::{Duration, Loss};
use serde::{Deserialize, Serialize};

/// Writes the keys of a direction once: a direction has them, and a link has them for both its
/// directions. (`#[serde(flatten)]` would do so too, but then unknown keys pass unseen.)
macro_rules! direction_keys {
    ($($(#[doc = $doc:literal])* $key:ident: $type:ty,)*) => {
        /// One direction of a link as written. Every key may be left out.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub struct DirectionSpec {
            $(
                $(#[doc = $doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $key: Option<$type>,
            )*
        }

        impl DirectionSpec {
            /// This direction, with missing keys taken from `base`.
            #[must_use]
            pub fn merge_over(&self, base: &Self) -> Self {
                Self { $($key: self.$key.as_ref().or(base.$key.as_ref()).cloned(),)* }
            }
        }

        /// A link as written: `[links.NAME]` of a scenario.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub struct LinkSpec {
            /// The two nodes that the link connects; `down` is the direction towards the first.
            // Here only because the keys of one table must be known in one place: this crate knows no nodes.
            pub between: [String; 2],
            /// The preset, from which missing keys take their values.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub preset: Option<String>,
            /// The constellation over which the link leads: it determines delay and outages.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub orbit: Option<OrbitSpec>,
            $(
                $(#[doc = $doc])*
                ///
                /// For both directions.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $key: Option<$type>,
            )*
            /// The direction towards the first node.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub down: Option<DirectionSpec>,
            /// The direction towards the second node.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub up: Option<DirectionSpec>,
        }

        impl LinkSpec {
            /// The keys that hold for both directions.
            pub fn both(&self) -> DirectionSpec {
                DirectionSpec { $($key: self.$key.clone(),)* }
            }
        }
    };
}

direction_keys! {
    /// The rate of the link. Default: unlimited.
    rate: LinkRate,
    /// One-way propagation delay. Default: none.
    delay: LinkDelay,
    /// The limit of the queue. Default: 1 BDP of the path, at least 15 kB (64 MiB without a rate).
    queue: QueueSpec,
    /// Which packets are dropped before the queue is full. Default: none.
    aqm: AqmSpec,
    /// Packets that the channel loses. Default: none.
    loss: LossSpecs,
    /// The share of bits that the channel inverts; a packet with such a bit is lost. Range 0 to
    /// 0.5, default 0.
    bit_error_rate: f64,
    /// Times at which the link is down. Default: none.
    outages: Vec<Outage>,
    /// Delay that varies from packet to packet; their order is kept. Default: none.
    jitter: JitterSpec,
    /// Packets that others overtake. Default: none.
    reorder: ReorderSpec,
    /// If the delay falls by at least this at once, packets sent later overtake those in flight.
    /// Default: they never do; they wait until those have arrived.
    overtaking: Duration,
    /// The share of packets that arrive twice. Default: none.
    duplicate: Loss,
    /// DVB-S2 adaptive coding and modulation. Default: none.
    acm: Switch<AcmSpec>,
    /// DVB-RCS2 capacity on demand. Default: none.
    dama: Switch<DamaSpec>,
    /// New assignment of satellites at fixed times. Default: none.
    reconfiguration: Switch<ReconfigurationSpec>,
}

impl DirectionSpec {
    /// Makes every default visible and refuses what cannot be run.
    ///
    /// `path_rtt` is the round-trip time of the whole path that the link is part of. Queues in BDP
    /// and the default queue are computed from it.
    ///
    /// # Errors
    /// When a value is impossible, lacks another one, or contradicts it.
    pub fn resolve(&self, path_rtt: Duration) -> Result<DirectionPlan, ResolveError> {
        DirectionPlan::new(self, path_rtt)
    }

    /// The shortest delay of any packet: the shortest propagation delay.
    pub fn delay_min(&self) -> Duration {
        self.delay.as_ref().map_or(Duration::ZERO, LinkDelay::shortest)
    }
}

/// Why a link as written is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No preset has this name.
    #[error(transparent)]
    Preset(#[from] UnknownPreset),
    /// Its orbit has not been turned into a delay: [`LinkSpec::with_orbit`] does.
    #[error("the way over `orbit` has not been computed")]
    OrbitOpen,
    /// A direction cannot be run. Its keys may stand in the link, the direction or the preset.
    #[error("direction `{direction}`: {source}")]
    Direction {
        /// `down` or `up`.
        direction: &'static str,
        /// What is wrong there.
        source: ResolveError,
    },
}

impl LinkSpec {
    /// Both directions, `down` first, with preset and common keys filled in but no defaults.
    ///
    /// # Errors
    /// When the preset is unknown.
    pub fn directions(&self) -> Result<[DirectionSpec; 2], UnknownPreset> {
        let base = match &self.preset {
            Some(name) => {
                let preset = presets::find(name)?;
                [preset.down, preset.up]
            }
            None => [DirectionSpec::default(), DirectionSpec::default()],
        };
        let both = self.both();
        let [base_down, base_up] = base.map(|base| both.merge_over(&base));
        let layer = |own: &Option<DirectionSpec>, base: DirectionSpec| match own {
            Some(own) => own.merge_over(&base),
            None => base,
        };
        Ok([layer(&self.down, base_down), layer(&self.up, base_up)])
    }

    /// The shortest round-trip time of propagation over this link alone.
    ///
    /// # Errors
    /// When the preset is unknown.
    pub fn rtt_min(&self) -> Result<Duration, UnknownPreset> {
        let [down, up] = self.directions()?;
        Ok(down.delay_min().saturating_add(up.delay_min()))
    }

    /// Makes every default of both directions visible and refuses what cannot be run.
    ///
    /// # Errors
    /// When the preset is unknown or a direction cannot be run.
    pub fn resolve(&self, path_rtt: Duration) -> Result<LinkPlan, LinkError> {
        if self.orbit.is_some() {
            return Err(LinkError::OrbitOpen);
        }
        let [down, up] = self.directions()?;
        let resolve = |direction: &'static str, spec: DirectionSpec| {
            spec.resolve(path_rtt).map_err(|source| LinkError::Direction { direction, source })
        };
        Ok(LinkPlan {
            preset: self.preset.clone(),
            down: resolve("down", down)?,
            up: resolve("up", up)?,
        })
    }
}

#[cfg(test)]
#[path = "spec/tests.rs"]
mod tests;
