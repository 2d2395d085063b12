//! What becomes of a flow: rules from top to bottom, the first that matches decides.
//!
//! Invariant: [`Policy::decide`] allocates nothing and is a function of its arguments only, so that
//! the same flow meets the same fate in the daemon, in `midhopd check` and in a simulation.

mod nft;
mod turnback;

pub use nft::{ClientTuple, NftMatch};
pub use turnback::{Crossing, NextHop, Turnback};

use crate::config::{Accept, Action, LegPlan, Match, OneOrMany, Ports};
use ipnet::IpNet;
use serde::Serialize;
use std::net::SocketAddr;

/// What is known of a flow when its first packet is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowKey<'a> {
    /// The client.
    pub source: SocketAddr,
    /// The server.
    pub destination: SocketAddr,
    /// The interface on which the SYN came; none for flows asked for through an explicit listener.
    pub interface: Option<&'a str>,
    /// The peer by whose tunnel it came; none: by none.
    pub peer: Option<&'a str>,
    /// The DSCP of the SYN.
    pub dscp: u8,
}

/// What becomes of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Split, bypass or reject.
    pub action: Action,
    /// When the client's SYN is answered.
    pub accept: Accept,
    /// The rule that decided, from 0; none: the default, which is to split.
    pub rule: Option<usize>,
}

/// What becomes of a flow that the daemon has not decided on, for want of room or while it is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unjudged {
    /// It passes by.
    Pass,
    /// Its SYN is dropped: its client may send it again.
    Drop,
}

/// The tunnel by which a rule's flows go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The peer at its other end, by name.
    pub peer: String,
    /// What becomes of the flows while the tunnel cannot be had.
    pub otherwise: Action,
}

/// A rule, checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PolicyRule {
    #[serde(rename = "match")]
    pub(crate) matches: Match,
    pub(crate) action: Action,
    pub(crate) tunnel: Option<Route>,
    pub(crate) class: Option<String>,
    pub(crate) accept: Option<Accept>,
    /// Whole legs as they are for the flows of this rule.
    pub(crate) legs: Vec<LegPlan>,
}

/// The rules of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Policy {
    rules: Vec<PolicyRule>,
    accept: Accept,
    /// Where peers take tunnels over TCP.
    endpoints: Vec<SocketAddr>,
}

impl Policy {
    /// Tunnels over TCP to `endpoints` are never taken for flows, whatever rules say.
    pub(crate) fn new(
        rules: Vec<PolicyRule>,
        accept: Accept,
        endpoints: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        let endpoints = endpoints.into_iter().map(canonical).collect();
        Self { rules, accept, endpoints }
    }

    /// Decides about one flow.
    pub fn decide(&self, flow: &FlowKey<'_>) -> Decision {
        if self.is_endpoint(flow.destination) {
            return Decision { action: Action::Bypass, accept: self.accept, rule: None };
        }
        let rule = self.rules.iter().position(|rule| rule.matches.covers(flow));
        match rule.and_then(|number| self.rules.get(number)) {
            Some(found) => {
                Decision { action: found.action, accept: found.accept.unwrap_or(self.accept), rule }
            }
            None => Decision { action: Action::Split, accept: self.accept, rule: None },
        }
    }

    /// The flows that a rule means, by its number from 0; none: there is no such rule.
    pub fn matches(&self, rule: usize) -> Option<&Match> {
        self.rules.get(rule).map(|rule| &rule.matches)
    }

    /// Whether tunnels over TCP go to this address, which are never taken for flows.
    pub fn is_endpoint(&self, destination: SocketAddr) -> bool {
        self.endpoints.contains(&canonical(destination))
    }

    /// Every way in which some flow's SYN may be answered: what the data plane must be ready for.
    pub fn accept_modes(&self) -> impl Iterator<Item = Accept> + '_ {
        let by_rule = self
            .rules_on_the_wire()
            .filter(|rule| rule.action == Action::Split)
            .filter_map(|rule| rule.accept);
        by_rule.chain([self.accept])
    }

    /// What firewall rules may let pass before the daemon sees it: every flow that one of these
    /// matches would be bypassed by [`Policy::decide`] as well. The reverse does not hold: a bypass
    /// below a rule that may match the same flow is left to the daemon.
    pub fn firewall_bypasses(&self) -> Vec<NftMatch> {
        let mut passed_over: Vec<&Match> = Vec::new();
        let mut bypasses: Vec<NftMatch> =
            self.endpoints.iter().filter_map(Match::to).flat_map(|to| NftMatch::of(&to)).collect();
        for rule in self.rules_on_the_wire() {
            let first = passed_over.iter().all(|above| above.excludes(&rule.matches));
            if rule.action == Action::Bypass && first {
                bypasses.extend(NftMatch::of(&rule.matches));
            } else if rule.action != Action::Bypass {
                passed_over.push(&rule.matches);
            }
        }
        bypasses
    }

    /// What the firewall has to stop where the daemon has not decided: from top to bottom, which flows may
    /// pass then and which may not. Empty where all may.
    ///
    /// A flow may not pass that a rule rejects, or that goes by a tunnel or not at all. Tunnels over TCP may.
    pub fn firewall_stops(&self) -> Vec<(NftMatch, Unjudged)> {
        let strict = |rule: &PolicyRule| {
            let otherwise = rule.tunnel.as_ref().map(|route| route.otherwise);
            rule.action == Action::Reject || otherwise == Some(Action::Reject)
        };
        let rules: Vec<_> = self.rules_on_the_wire().collect();
        let Some(last) = rules.iter().rposition(|rule| strict(rule)) else { return Vec::new() };
        let endpoints = self.endpoints.iter().filter_map(Match::to);
        let tunnels = endpoints.flat_map(|to| NftMatch::of(&to)).map(|to| (to, Unjudged::Pass));
        let stops = rules[..=last].iter().flat_map(|rule| {
            let unjudged = if strict(rule) { Unjudged::Drop } else { Unjudged::Pass };
            NftMatch::of(&rule.matches).into_iter().map(move |found| (found, unjudged))
        });
        tunnels.chain(stops).collect()
    }

    fn rules_on_the_wire(&self) -> impl Iterator<Item = &PolicyRule> {
        self.rules.iter().filter(|rule| rule.matches.is_on_the_wire())
    }

    pub(crate) fn route(&self, decision: &Decision) -> Option<&Route> {
        self.rules.get(decision.rule?)?.tunnel.as_ref()
    }

    pub(crate) fn class(&self, decision: &Decision) -> Option<&str> {
        self.rules.get(decision.rule?)?.class.as_deref()
    }

    pub(crate) fn leg_override(&self, decision: &Decision, leg: &str) -> Option<&LegPlan> {
        let rule = self.rules.get(decision.rule?)?;
        rule.legs.iter().find(|own| own.name == leg)
    }

    pub(crate) fn overridden_legs_mut(&mut self) -> impl Iterator<Item = &mut LegPlan> {
        self.rules.iter_mut().flat_map(|rule| &mut rule.legs)
    }
}

impl Match {
    /// Flows to one address and port.
    fn to(endpoint: &SocketAddr) -> Option<Self> {
        let port = Ports::new(endpoint.port(), endpoint.port())?;
        Some(Self {
            destination: OneOrMany(vec![endpoint.ip().into()]),
            destination_port: OneOrMany(vec![port]),
            ..Self::default()
        })
    }

    /// Whether it means flows to one address and port, and no others.
    pub(crate) fn is_only(&self, endpoint: SocketAddr) -> bool {
        let same = |to: Self| {
            let has_all = |own: &OneOrMany<IpNet>| own.iter().all(|it| to.destination.contains(it));
            !self.destination.is_empty()
                && has_all(&self.destination)
                && !self.destination_port.is_empty()
                && self.destination_port.iter().all(|it| to.destination_port.contains(it))
        };
        Self::to(&canonical(endpoint)).is_some_and(same)
    }

    /// Whether the flow is meant. IPv4 addresses mapped into IPv6 count as IPv4.
    pub fn covers(&self, flow: &FlowKey<'_>) -> bool {
        let source = flow.source.ip().to_canonical();
        let destination = flow.destination.ip().to_canonical();
        limits_to(&self.source, |prefix| prefix.contains(&source))
            && limits_to(&self.destination, |prefix| prefix.contains(&destination))
            && limits_to(&self.source_port, |ports| ports.contain(flow.source.port()))
            && limits_to(&self.destination_port, |ports| ports.contain(flow.destination.port()))
            && limits_to(&self.interface, |name| flow.interface == Some(name.as_str()))
            && limits_to(&self.peer, |name| flow.peer == Some(name.as_str()))
            && limits_to(&self.dscp, |dscp| dscp.value() == flow.dscp)
    }

    /// Whether a flow may be meant whose packets this host's firewall sees: one of a peer comes by its tunnel.
    fn is_on_the_wire(&self) -> bool {
        self.peer.is_empty()
    }

    /// Whether surely no flow is meant by both.
    fn excludes(&self, other: &Self) -> bool {
        apart(&self.source, &other.source, |a, b| a.contains(b) || b.contains(a))
            || apart(&self.destination, &other.destination, |a, b| a.contains(b) || b.contains(a))
            || apart(&self.source_port, &other.source_port, |a, b| a.overlap(*b))
            || apart(&self.destination_port, &other.destination_port, |a, b| a.overlap(*b))
            || apart(&self.interface, &other.interface, |a, b| a == b)
            || apart(&self.peer, &other.peer, |a, b| a == b)
            || apart(&self.dscp, &other.dscp, |a, b| a == b)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An empty list means everything.
fn limits_to<T>(list: &OneOrMany<T>, covers: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(covers)
}

/// Whether two lists have nothing in common. Prefixes nest or are apart, so for them, too, it is
/// enough to compare pairs.
fn apart<T>(a: &OneOrMany<T>, b: &OneOrMany<T>, meet: impl Fn(&T, &T) -> bool) -> bool {
    let both_limit = !a.is_empty() && !b.is_empty();
    both_limit && !a.iter().any(|a| b.iter().any(|b| meet(a, b)))
}

#[cfg(test)]
mod tests;
