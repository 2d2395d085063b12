//! Makes the congestion controls of a plan selectable, once, before privileges are dropped.
//!
//! A configured name becomes the kernel's: "hybla" with its leg's `rtt0` and `rate` is registered as a BPF program
//! under its own name, and sockets get that name.

use crate::failure::Failure;
use crate::leg;
use midhop_bpf::{Active, Hold, HyblaBounds, Parameters, resolve_by as resolve};
use midhop_config::suggest::nearest;
use midhop_congestion::Algorithm;
use midhop_pep::config::{Fallback, LegPlan, Moves, PeerPlan, Plan, Start};
use midhop_units::{Duration, Rate};
use socket2::{Domain, Socket, Type};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The congestion controls in use, kept registered while this value lives.
#[derive(Debug, Default)]
pub struct Congestion {
    active: BTreeMap<String, Active>,
    names: CongestionNames,
    /// The congestion controls that were made selectable, by their configuration: later this process has no privilege
    /// to try them.
    known: Vec<(String, Parameters, String)>,
    /// What gives connections that move here their windows, kept registered.
    window: Option<(String, Hold)>,
}

/// Maps the kernel's names to the configured ones, for people to read.
#[derive(Debug, Clone, Default)]
pub struct CongestionNames(Arc<Mutex<BTreeMap<String, String>>>);

impl CongestionNames {
    /// The configured name for the kernel's `kernel_name`.
    pub fn configured(&self, kernel_name: String) -> String {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&kernel_name).cloned().unwrap_or(kernel_name)
    }

    fn note(&self, kernel_name: &str, configured: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(kernel_name.to_owned(), configured.to_owned());
    }
}

impl Congestion {
    /// Makes everything selectable that `plan` names, and replaces the names by the kernel's.
    ///
    /// # Errors
    /// When neither a leg's congestion control nor its fallback is available.
    pub fn activate(&mut self, plan: &mut Plan) -> Result<(), Failure> {
        plan.replace_congestion(|leg| self.kernel_name(leg).map(Some))?;
        for peer in plan.peers.iter_mut().filter(|peer| peer.fallback != Fallback::Off) {
            peer.kernel_congestion = self.of_tunnel(peer);
            if peer.committed.is_some() {
                tracing::info!(
                    peer = peer.name,
                    "peers.NAME.committed applies over UDP only: a tunnel over TCP does not have the committed rate; \
                     with fallback = \"off\" there is no tunnel over TCP"
                );
            }
        }
        plan.window_program = self.window_program(plan);
        Ok(())
    }

    /// The name of the program by which connections that move here get the congestion windows that they had.
    fn window_program(&mut self, plan: &Plan) -> Option<String> {
        if !plan.peers.iter().any(|peer| peer.moves == Moves::Accept) {
            return None;
        }
        if self.window.is_none() {
            self.window = midhop_bpf::ensure_window()
                .inspect_err(|error| {
                    tracing::info!(%error, "flows that move here begin with the congestion windows of new ones");
                })
                .ok();
        }
        self.window.as_ref().map(|(name, _)| name.clone())
    }

    /// The congestion control of a tunnel over TCP. Where the kernel does not have that of QUIC, it
    /// is one that does not take every loss for congestion. None: the kernel's default.
    fn of_tunnel(&mut self, peer: &PeerPlan) -> Option<String> {
        let own = match peer.congestion {
            // With these, pacing limits the kernel to the known rate, and its congestion control
            // searches below it.
            Algorithm::KnownRate
            | Algorithm::Pulse
            | Algorithm::BbrV3
            | Algorithm::Vivace
            | Algorithm::Xcp => None,
            algorithm => Some(algorithm.name()),
        };
        let parameters = parameters(peer.rate, peer.rtt0, Start::default());
        let found = own.into_iter().chain(["bbr", "hybla-plus"]).find_map(|name| {
            self.try_activate(name, &parameters)
                .map_err(|reason| {
                    tracing::debug!(
                        peer = peer.name,
                        name,
                        reason,
                        "congestion control is not available"
                    )
                })
                .ok()
        });
        if found.is_none() {
            tracing::info!(
                peer = peer.name,
                "over TCP the tunnel uses the kernel's default congestion control"
            );
        }
        found
    }

    /// The names, now and after changes.
    pub fn names(&self) -> CongestionNames {
        self.names.clone()
    }

    fn kernel_name(&mut self, leg: &LegPlan) -> Result<String, Failure> {
        let Some(wanted) = &leg.congestion else { return Ok(String::new()) };
        let parameters = parameters(leg.rate, leg.rtt0, leg.start);
        let refused = match self.try_activate(wanted, &parameters) {
            Ok(name) => return Ok(name),
            Err(reason) => reason,
        };
        let failure = |name: &str, reason: &str| {
            Failure::run(format!("leg \"{}\" cannot have \"{name}\": {reason}", leg.name))
        };
        let Some(fallback) = &leg.fallback else {
            let fallback = format!("set legs.{}.fallback, such as \"cubic\"", leg.name);
            return Err(failure(wanted, &refused).hint(match meant(wanted) {
                Some(meant) => format!("did you mean `{meant}`? Or {fallback}"),
                None => format!("or {fallback}"),
            }));
        };
        let name = self
            .try_activate(fallback, &parameters)
            .map_err(|reason| failure(fallback, &reason))?;
        tracing::warn!(
            leg = leg.name,
            wanted,
            fallback,
            reason = refused,
            "the leg's congestion control is not available: its fallback is used"
        );
        Ok(name)
    }

    /// The kernel's name of `name`, made selectable, or why it is not.
    fn try_activate(&mut self, name: &str, parameters: &Parameters) -> Result<String, String> {
        let known = self.known.iter().find(|known| known.0 == name && known.1 == *parameters);
        if let Some((_, _, kernel_name)) = known {
            return Ok(kernel_name.clone());
        }
        let active = resolve(name, available)
            .map_err(|error| error.to_string())?
            .activate(parameters)
            .map_err(|error| error.to_string())?;
        let kernel_name = active.kernel_name().to_owned();
        self.names.note(&kernel_name, name);
        self.active.entry(kernel_name.clone()).or_insert(active);
        self.known.push((name.to_owned(), parameters.clone(), kernel_name.clone()));
        Ok(kernel_name)
    }
}

/// The algorithm whose name is nearest to `name`, as a suggestion. None if `name` is itself that of
/// an algorithm. A kernel may have an algorithm of this name all the same.
pub fn meant(name: &str) -> Option<&'static str> {
    let known = Algorithm::from_name(name).is_some();
    nearest(name, Algorithm::names()).filter(|_| !known)
}

/// Whether sockets may have a congestion control: set by the keeper, where it takes a privilege.
fn available(name: &str) -> bool {
    let scratch = Socket::new(Domain::IPV4, Type::STREAM, None)
        .or_else(|_| Socket::new(Domain::IPV6, Type::STREAM, None));
    scratch.is_ok_and(|scratch| leg::congestion(&scratch, name).is_ok())
}

fn parameters(rate: Option<Rate>, rtt0: Option<Duration>, start: Start) -> Parameters {
    let mut parameters = Parameters {
        hybla: HyblaBounds {
            rate: rate.map_or(0, |rate| rate.bits_per_s() / 8),
            start_at_rate: start == Start::Rate,
            ..HyblaBounds::default()
        },
        ..Parameters::default()
    };
    if let Some(rtt0) = rtt0 {
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
    fn people_read_the_names_that_they_wrote() {
        let names = CongestionNames::default();
        names.note("mhypls_e06ef832", "hybla-plus");
        assert_eq!(names.configured("mhypls_e06ef832".to_owned()), "hybla-plus");
        assert_eq!(names.configured("bbr".to_owned()), "bbr");
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
