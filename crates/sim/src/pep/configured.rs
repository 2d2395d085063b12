//! Decisions from a proxy's configuration: which flows it takes, and how their legs are made.

use super::leg::{LegContext, Model};
use super::{Place, ProxyError};
use midhop_experiment::pep::PepPlan;
use midhop_experiment::tunnel::NodeTunnels;
use midhop_pep::config::{Action, ClassPlan, LegPlan, Plan};
use midhop_pep::policy::{Decision, FlowKey};
use midhop_tunnel::cause::Cause;
use midhop_units::Duration;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The decision for a new flow.
#[derive(Debug)]
pub(super) enum Fate {
    /// It becomes two connections: the client's and the server's. `waits`: whether the client waits until the
    /// server has accepted.
    Split { waits: bool, legs: Box<[Model; 2]> },
    /// It uses a tunnel of the named peer. Whether the client waits, the leg to the client, and the flow's class.
    Tunnelled { waits: bool, peer: String, leg: Box<Model>, class: ClassPlan },
    /// A rule lets it pass.
    Bypassed,
    /// A rule refuses it.
    Rejected,
    /// There is no room for it, or no leg: it passes by.
    Unserved,
}

/// How a flow continues that has arrived through a tunnel.
#[derive(Debug)]
pub(super) enum Onwards {
    /// To its server.
    Leg(Box<Model>),
    /// Through the tunnel of the named peer.
    Tunnel(String),
}

/// A configuration as `midhopd` reads it, and its meaning in a simulation.
#[derive(Debug)]
pub(super) struct Configured {
    pub plan: Plan,
    /// The legs of the plan, as far as the simulator can model them.
    models: Vec<Model>,
    context: LegContext,
}

impl Configured {
    /// The configuration `pep`, with its `tunnels`, at a node that reaches others as in `places`, and `later` over other links
    /// too.
    ///
    /// # Errors
    /// When it is inconsistent, or needs something that a simulation does not have.
    pub fn new(
        (pep, tunnels): (&PepPlan, Option<&NodeTunnels>),
        places: &[Place],
        later: Vec<String>,
    ) -> Result<Self, ProxyError> {
        let now = places.iter().filter_map(|place| place.link.clone());
        let links: BTreeSet<_> = now.chain(later).collect();
        let mut config = pep.configuration(links);
        if let Some(tunnels) = tunnels {
            tunnels.complete(&mut config, pep, "/");
        }
        let mut plan = config.resolve().map_err(ProxyError::new)?;
        let context = LegContext::new(pep.leg_tables().clone(), &plan.legs, places);
        // Also the legs as rules change them: errors must not appear only when a flow needs them.
        let model = |leg: &LegPlan| {
            Model::of(leg, &context).map_err(|message| ProxyError::of_leg(leg, message))
        };
        plan.replace_congestion(|leg| model(leg).map(|_| leg.congestion.clone()))?;
        let models = plan.legs.iter().map(model).collect::<Result<_, _>>()?;
        Ok(Self { plan, models, context })
    }

    /// Whether it takes flows that arrive over `interface`.
    pub fn intercepts(&self, interface: &str) -> bool {
        self.plan.intercept.interfaces.iter().any(|name| name == interface)
    }

    /// Decides on the flow of `key`, whose two ends are behind `links`, with `live` flows and
    /// `pending` waiting clients. `accepts_lately`: whether its target has accepted a flow within a time. `toward`
    /// gives the link on which the route to a peer with a tunnel begins.
    pub fn fate<'t>(
        &self,
        key: &FlowKey<'_>,
        links: &[Option<String>; 2],
        live: u64,
        pending: u64,
        accepts_lately: impl FnOnce(Duration) -> bool,
        toward: impl Fn(&str) -> Option<&'t str>,
    ) -> Fate {
        let decision = self.plan.policy.decide(key);
        let [source, destination] = [key.source.ip(), key.destination.ip()];
        match decision.action {
            // A plan whose proxy repairs flows is refused.
            Action::Bypass | Action::Assist => return Fate::Bypassed,
            Action::Reject => return Fate::Rejected,
            Action::Split => {}
        }
        let limits = &self.plan.limits;
        let waits = !decision.accept.is_early(|| accepts_lately(self.plan.intercept.remember));
        if live >= u64::from(limits.flows) || (waits && pending >= u64::from(limits.pending)) {
            return Fate::Unserved;
        }
        if let Some(route) = self.plan.route(&decision) {
            let client = self.leg(&decision, source, links[0].as_deref());
            // A tunnel that would carry it back to its source does not count.
            let turns_back =
                toward(&route.peer).is_some_and(|link| links[0].as_deref() == Some(link));
            match (toward(&route.peer), route.otherwise, client) {
                (Some(_), _, Ok(leg)) if !turns_back => {
                    let class = self.plan.class(&decision, Some(key.dscp), None).clone();
                    let (peer, leg) = (route.peer.clone(), Box::new(leg));
                    return Fate::Tunnelled { waits, peer, leg, class };
                }
                (_, Action::Reject, _) => return Fate::Rejected,
                (_, Action::Bypass | Action::Assist, _) => return Fate::Bypassed,
                (_, Action::Split, _) => {}
            }
        }
        let legs = [
            self.leg(&decision, source, links[0].as_deref()),
            self.leg(&decision, destination, links[1].as_deref()),
        ];
        match legs {
            [Ok(client), Ok(server)] => Fate::Split { waits, legs: Box::new([client, server]) },
            _ => Fate::Unserved,
        }
    }

    /// Decides on a flow that the named peer requests through a tunnel: how it continues, over `link` where that is to
    /// its server, and its class.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn serve(
        &self,
        key: &FlowKey<'_>,
        link: Option<&str>,
        live: u64,
        class: Option<&str>,
    ) -> Result<(Onwards, ClassPlan), Cause> {
        let decision = self.plan.policy.decide(key);
        if decision.action == Action::Reject {
            return Err(Cause::NotAllowed);
        }
        if live >= u64::from(self.plan.limits.flows) {
            return Err(Cause::Full);
        }
        let class = self.plan.class(&decision, None, class).clone();
        if let Some(route) = self.plan.route(&decision) {
            return Ok((Onwards::Tunnel(route.peer.clone()), class));
        }
        let leg = self.leg(&decision, key.destination.ip(), link).map_err(|_| Cause::Failed)?;
        Ok((Onwards::Leg(Box::new(leg)), class))
    }

    /// The model of a leg, with the changes of the decision's rule.
    fn leg(
        &self,
        decision: &Decision,
        address: IpAddr,
        link: Option<&str>,
    ) -> Result<Model, String> {
        let own = self.plan.leg_of(address, link);
        let leg = self.plan.leg(decision, address, link);
        let at = self.plan.legs.iter().position(|it| it.name == own.name).unwrap_or_default();
        let model = match std::ptr::eq(own, leg) {
            true => self.models[at].clone(),
            false => Model::of(leg, &self.context)?,
        };
        Ok(model.over(link))
    }
}
