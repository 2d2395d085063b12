//! What is different in a proxy that is naive on purpose, for comparison with those that are not.
//!
//! It answers every SYN itself, offers the same window however much it holds, and so acknowledges what
//! it may never deliver. What it holds of all flows has one store; once that is full, the flow that holds
//! the most is reset on both sides. Modelled after what is said of satellite proxies of the 2000s: P. Sevcik,
//! R. Wetzel, NetForecast NFR5132 (2019), "How PEP Protocols Can Hurt the User Experience", issues 3 and 4;
//! RFC 3135 §4.1.1 warns of the premature acknowledgements. Where a leg has a timer, nothing but that
//! repairs its losses, and all that is outstanding is sent again.
//!
//! Where each flow holds its own, it stops reading as the proxy proper does, and is like PEPsal in what it is told to be:
//! when it answers, whose congestion control is whose, and whether what it opens is corked.
//!
//! Differs from the proxy proper in these alone: legs, their endpoints and how flows end are the same.

use super::leg::Model;
use midhop_experiment::naive::{Holds, NaiveAccept, NaivePlan};
use std::collections::BTreeMap;

/// What a naive proxy is made of.
#[derive(Debug)]
pub(super) struct Naive {
    /// What its store holds at most of all flows; none where each has its own. Unit: bytes.
    pub store: Option<u64>,
    /// Whether the client waits until the server has accepted.
    pub waits: bool,
    /// Of connections that it accepts, and of those that it opens.
    sides: [Side; 2],
}

/// The legs of one side, by link.
#[derive(Debug)]
struct Side {
    legs: BTreeMap<String, Model>,
    other: Model,
}

impl Naive {
    /// The proxy that `plan` describes.
    ///
    /// # Errors
    /// When a leg's congestion control is not to be had.
    pub fn new(plan: &NaivePlan) -> Result<Self, String> {
        let side = |opens: bool| {
            let model = |name: &str, leg| Model::of_naive(name, leg, plan, opens);
            let legs = plan.legs.iter().map(|(name, leg)| Ok((name.clone(), model(name, leg)?)));
            let legs = legs.collect::<Result<_, String>>()?;
            Ok::<_, String>(Side { legs, other: model("other", &plan.other)? })
        };
        Ok(Self {
            store: (plan.holds == Holds::All).then(|| plan.buffer.get()),
            waits: plan.accept == NaiveAccept::AfterConnect,
            sides: [side(false)?, side(true)?],
        })
    }

    /// The legs of a flow over these links: the one that it accepts, and the one that it opens.
    pub fn legs(&self, links: &[Option<String>; 2]) -> [Model; 2] {
        let leg = |side: &Side, link: Option<&str>| {
            let known = link.and_then(|link| side.legs.get(link));
            known.unwrap_or(&side.other).clone().over(link)
        };
        let [accepted, opened] = &self.sides;
        [leg(accepted, links[0].as_deref()), leg(opened, links[1].as_deref())]
    }
}
