//! Makes the congestion controls that a plan names selectable, once, before privileges are dropped.
//!
//! A configured name becomes the kernel's: "hybla" with its leg's `rtt0` and `rate` is registered as
//! a BPF program under a name of its own, and that name is what sockets are given.

use crate::failure::Failure;
use midhop_bpf::{Active, HyblaBounds, Parameters, resolve};
use midhop_pep::config::{LegPlan, Plan};
use std::collections::BTreeMap;

/// The congestion controls in use, kept registered while this value lives.
#[derive(Debug, Default)]
pub struct Congestion {
    active: BTreeMap<String, Active>,
}

impl Congestion {
    /// Makes everything selectable that `plan` names, and names it as the kernel does.
    ///
    /// # Errors
    /// When a leg's congestion control is not to be had, and neither is its fallback.
    pub fn activate(&mut self, plan: &mut Plan) -> Result<(), Failure> {
        plan.replace_congestion(|leg| self.kernel_name(leg).map(Some))
    }

    fn kernel_name(&mut self, leg: &LegPlan) -> Result<String, Failure> {
        let Some(wanted) = &leg.congestion else { return Ok(String::new()) };
        let refused = match self.try_activate(wanted, leg) {
            Ok(name) => return Ok(name),
            Err(reason) => reason,
        };
        let failure = |name: &str, reason: &str| {
            Failure::run(format!("leg \"{}\" cannot have \"{name}\": {reason}", leg.name))
        };
        let Some(fallback) = &leg.fallback else {
            return Err(failure(wanted, &refused)
                .hint(format!("or set legs.{}.fallback, such as \"cubic\"", leg.name)));
        };
        let name = self.try_activate(fallback, leg).map_err(|reason| failure(fallback, &reason))?;
        tracing::warn!(leg = leg.name, wanted, fallback, reason = refused, "fallback taken");
        Ok(name)
    }

    /// The kernel's name of `name`, made selectable, or why it is not.
    fn try_activate(&mut self, name: &str, leg: &LegPlan) -> Result<String, String> {
        let parameters = parameters(leg);
        let active = resolve(name)
            .map_err(|error| error.to_string())?
            .activate(&parameters)
            .map_err(|error| error.to_string())?;
        let kernel_name = active.kernel_name().to_owned();
        self.active.entry(kernel_name.clone()).or_insert(active);
        Ok(kernel_name)
    }
}

fn parameters(leg: &LegPlan) -> Parameters {
    let mut parameters = Parameters {
        hybla: HyblaBounds {
            rate: leg.rate.map_or(0, |rate| rate.bits_per_s() / 8),
            ..HyblaBounds::default()
        },
        ..Parameters::default()
    };
    if let Some(rtt0) = leg.rtt0 {
        parameters.rtt0 = rtt0.into();
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        Plan::read("test.toml", text).expect("valid")
    }

    #[test]
    fn the_kernels_own_keep_their_names() {
        let mut plan = plan("[legs.sat0]\ncongestion = \"reno\"\n[legs.lan0]");
        Congestion::default().activate(&mut plan).expect("every kernel has reno");
        let named: Vec<_> = plan.legs.iter().map(|leg| leg.congestion.as_deref()).collect();
        assert_eq!(named, [None, Some("reno"), None]);
    }

    #[test]
    fn what_is_not_to_be_had_falls_back_or_fails_with_the_legs_name() {
        let mut with = plan("[legs.sat0]\ncongestion = \"no-such\"\nfallback = \"reno\"");
        Congestion::default().activate(&mut with).expect("every kernel has reno");
        assert_eq!(with.legs[0].congestion.as_deref(), Some("reno"));
        let mut without = plan("[legs.sat0]\ncongestion = \"no-such\"");
        let failure = Congestion::default().activate(&mut without).expect_err("unknown");
        assert!(failure.to_string().contains("leg \"sat0\" cannot have \"no-such\""), "{failure}");
        assert!(failure.hint_text().is_some_and(|hint| hint.contains("legs.sat0.fallback")));
    }
}
