//! What is different in a proxy that is naive on purpose, for comparison with those that are not.
//!
//! It answers every SYN itself, offers the same window however much it holds, and so acknowledges what
//! it may never deliver. What it holds of all flows has one store; once that is full, the flow that holds
//! the most is reset on both sides. Modelled after what is said of satellite proxies of the 2000s: P. Sevcik,
//! R. Wetzel, NetForecast NFR5132 (2019), "How PEP Protocols Can Hurt the User Experience", issues 3 and 4;
//! RFC 3135 §4.1.1 warns of the premature acknowledgements. Where a leg has a timer, nothing but that
//! repairs its losses, and all that is outstanding is sent again.
//!
//! Differs from the proxy proper in these alone: legs, their endpoints and how flows end are the same.

use super::leg::Model;
use midhop_experiment::naive::NaivePlan;
use std::collections::BTreeMap;

/// What a naive proxy is made of.
#[derive(Debug)]
pub(super) struct Naive {
    /// What its store holds at most. Unit: bytes.
    pub buffer: u64,
    legs: BTreeMap<String, Model>,
    other: Model,
}

impl Naive {
    /// The proxy that `plan` describes.
    ///
    /// # Errors
    /// When a leg's congestion control is not to be had.
    pub fn new(plan: &NaivePlan) -> Result<Self, String> {
        let legs =
            plan.legs.iter().map(|(name, leg)| Ok((name.clone(), Model::of_naive(name, leg)?)));
        Ok(Self {
            buffer: plan.buffer.get(),
            legs: legs.collect::<Result<_, String>>()?,
            other: Model::of_naive("other", &plan.other)?,
        })
    }

    /// The leg of connections over `link`.
    pub fn leg(&self, link: Option<&str>) -> Model {
        let known = link.and_then(|link| self.legs.get(link));
        known.unwrap_or(&self.other).clone().at(0, link)
    }
}
