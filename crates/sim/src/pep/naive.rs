//! The differences of a proxy that is naive on purpose, for comparison with others.
//!
//! It answers every SYN itself and offers the same window however much it holds, so it acknowledges data that
//! it may never deliver. It holds the data of all flows in one store. Once that is full, it resets the flow that holds
//! the most on both sides. Modelled on published descriptions of satellite proxies of the 2000s: P. Sevcik,
//! R. Wetzel, NetForecast NFR5132 (2019), "How PEP Protocols Can Hurt the User Experience", issues 3 and 4;
//! RFC 3135 §4.1.1 warns of the premature acknowledgements. Where a leg has a timer, only that
//! repairs its losses, and everything outstanding is retransmitted.
//!
//! Where each flow holds its own data, it stops reading as the real proxy does, and is like PEPsal in its options:
//! when it accepts, which connections use the configured congestion control, and whether its outgoing ones are corked.
//!
//! Differs from the real proxy only in these points: legs, their endpoints and how flows end are the same.

use super::leg::Model;
use midhop_experiment::naive::{Holds, NaiveAccept, NaivePlan};
use std::collections::BTreeMap;

/// The parts of a naive proxy.
#[derive(Debug)]
pub(super) struct Naive {
    /// The maximum of its store for all flows; `None` where each has its own. Unit: bytes.
    pub store: Option<u64>,
    /// Whether the client waits until the server has accepted.
    pub waits: bool,
    /// For connections that it accepts, and for those that it opens.
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
    /// When a leg's congestion control is not available.
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

    /// The legs of a flow over these links: the accepted one and the opened one.
    pub fn legs(&self, links: &[Option<String>; 2]) -> [Model; 2] {
        let leg = |side: &Side, link: Option<&str>| {
            let known = link.and_then(|link| side.legs.get(link));
            known.unwrap_or(&side.other).clone().over(link)
        };
        let [accepted, opened] = &self.sides;
        [leg(accepted, links[0].as_deref()), leg(opened, links[1].as_deref())]
    }
}
