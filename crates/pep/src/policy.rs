//! What happens to a flow: rules are tried from top to bottom, and the first match decides.
//!
//! Invariant: [`Policy::decide`] allocates nothing and depends only on its arguments, so that the same flow gets
//! the same decision in the daemon, in `midhopd check` and in a simulation.

mod nft;
mod turnback;

pub use nft::{ClientTuple, NftMatch};
pub use turnback::{Crossing, NextHop, Turnback};

use crate::config::{Accept, Action, LegPlan, Match, OneOrMany, Ports};
use ipnet::IpNet;
use serde::Serialize;
use std::net::SocketAddr;

/// What is known of a flow when its first packet arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowKey<'a> {
    /// The client.
    pub source: SocketAddr,
    /// The server.
    pub destination: SocketAddr,
    /// The interface on which the SYN arrived; none for flows requested through an explicit listener.
    pub interface: Option<&'a str>,
    /// The peer through whose tunnel it arrived; none: it did not come through a tunnel.
    pub peer: Option<&'a str>,
    /// The DSCP of the SYN.
    pub dscp: u8,
}

/// The decision about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Split, bypass or reject.
    pub action: Action,
    /// When the client's SYN is answered.
    pub accept: Accept,
    /// The number of the rule that decided, from 0; none: the default, which is to split.
    pub rule: Option<usize>,
}

/// What happens to a flow without a decision: the daemon has no room, or is not running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unjudged {
    /// It bypasses the daemon.
    Pass,
    /// Its SYN is dropped; its client may send it again.
    Drop,
}

/// The tunnel that a rule's flows take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The peer at its other end, by name.
    pub peer: String,
    /// What happens to the flows while the tunnel is not available.
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
    /// The legs that this rule overrides, complete.
    pub(crate) legs: Vec<LegPlan>,
}

/// The rules of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Policy {
    rules: Vec<PolicyRule>,
    accept: Accept,
    /// The addresses at which peers accept tunnels over TCP.
    endpoints: Vec<SocketAddr>,
}

impl Policy {
    /// Connections to `endpoints` are tunnels over TCP, and always bypassed, whatever the rules are.
    pub(crate) fn new(
        rules: Vec<PolicyRule>,
        accept: Accept,
        endpoints: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        let endpoints = endpoints.into_iter().map(canonical).collect();
        Self { rules, accept, endpoints }
    }

    /// Decides about a flow.
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

    /// Every way in which a flow's SYN may be answered. The data plane must support all of them.
    pub fn accept_modes(&self) -> impl Iterator<Item = Accept> + '_ {
        let by_rule = self
            .rules_on_the_wire()
            .filter(|rule| rule.action == Action::Split)
            .filter_map(|rule| rule.accept);
        by_rule.chain([self.accept])
    }

    /// What firewall rules may let pass before the daemon sees it. [`Policy::decide`] would bypass every flow that
    /// one of these matches. The reverse does not hold: the daemon decides about a bypass below a rule that may
    /// match the same flow.
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

    /// Which flows the firewall must stop, and which may pass, if the daemon has not decided; from top to bottom.
    /// Empty if all may pass.
    ///
    /// A flow may not pass if a rule rejects it, or if it may only go through a tunnel. Tunnels over TCP may pass.
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
    /// Matches flows to one address and port.
    fn to(endpoint: &SocketAddr) -> Option<Self> {
        let port = Ports::new(endpoint.port(), endpoint.port())?;
        Some(Self {
            destination: OneOrMany(vec![endpoint.ip().into()]),
            destination_port: OneOrMany(vec![port]),
            ..Self::default()
        })
    }

    /// Whether it matches flows to this address and port, and no others.
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

    /// Whether it matches the flow. IPv4 addresses mapped into IPv6 count as IPv4.
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

    /// Whether it may match packets that this host's firewall sees. A flow of a peer arrives inside its tunnel.
    fn is_on_the_wire(&self) -> bool {
        self.peer.is_empty()
    }

    /// Whether it is certain that no flow matches both.
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

/// An empty list matches everything.
fn limits_to<T>(list: &OneOrMany<T>, covers: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(covers)
}

/// Whether two lists have nothing in common. Prefixes either nest or are disjoint, so comparing pairs is enough for
/// them as well.
fn apart<T>(a: &OneOrMany<T>, b: &OneOrMany<T>, meet: impl Fn(&T, &T) -> bool) -> bool {
    let both_limit = !a.is_empty() && !b.is_empty();
    both_limit && !a.iter().any(|a| b.iter().any(|b| meet(a, b)))
}

#[cfg(test)]
mod tests;
