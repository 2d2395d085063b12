//! Why a flow is carried, passes by or is refused: the checks of the data plane, in its order.
//!
//! For a live flow the answer is what decided when the flow began. For any other flow it is what
//! would become of a SYN that arrives now. The administrator's forward rules are not checked here:
//! they apply to the SYN itself.

use crate::admission::Admission;
use crate::data_plane::DataPlane;
use crate::leg::Egress;
use crate::relocation::order::{self, MoveOrder, MovingWorker};
use crate::snapshot;
use crate::syn_hold::Hold;
use crate::tunnel::directory::Tunnels;
use midhop_pep::config::{Accept, Action, Match, OneOrMany, Plan, Ports};
use midhop_pep::policy::{Crossing, Decision, FlowKey, Route};
use midhop_process::configuration::matches_as_toml;
use midhop_status::control::answer::{
    FlowOutcome, LiveFlow, MoveQuery, Step, VERSION, Why, WhyQuery,
};
use midhop_status::control::render;
use midhop_status::control::serve::{Explain, MoveAnswer};
use midhop_status::snapshot::FlowSnapshot;
use midhop_units::Rate;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Answers why, from the state of a data plane.
#[derive(Debug)]
pub struct Explainer {
    plan: watch::Receiver<Arc<Plan>>,
    hold: Arc<Hold>,
    admission: Arc<Admission>,
    draining: Arc<AtomicBool>,
    flows: snapshot::Source,
    tunnels: Arc<Tunnels>,
    workers: Vec<MovingWorker>,
}

/// The answer, as far as it is known.
struct Trace {
    steps: Vec<Step>,
}

impl Trace {
    fn note(&mut self, subject: &str, finding: impl Into<String>) {
        self.add(subject, finding.into(), false);
    }

    fn decide(&mut self, subject: &str, finding: impl Into<String>) {
        self.add(subject, finding.into(), true);
    }

    fn add(&mut self, subject: &str, finding: String, decides: bool) {
        self.steps.push(Step { subject: subject.to_owned(), finding, decides });
    }

    /// An answer for a flow that is not carried.
    fn ends(self, outcome: FlowOutcome) -> Why {
        let Self { steps } = self;
        Why {
            format: VERSION,
            outcome,
            live: None,
            steps,
            client_leg: None,
            server_leg: None,
            accept: None,
        }
    }
}

impl Explainer {
    /// Creates it for a data plane, in whose network namespace it has to be.
    pub fn new(data_plane: &DataPlane, draining: Arc<AtomicBool>) -> Self {
        Self {
            plan: data_plane.plan(),
            hold: data_plane.hold().clone(),
            admission: data_plane.admission().clone(),
            draining,
            flows: snapshot::Source::of(data_plane),
            tunnels: data_plane.tunnels().clone(),
            workers: data_plane.moving_workers(),
        }
    }

    fn live(&self, query: &WhyQuery) -> Option<LiveFlow> {
        let only = |address: SocketAddr| OneOrMany(vec![address.ip().into()]);
        let port = |port: u16| {
            OneOrMany(Ports::new(port, port).filter(|_| port > 0).into_iter().collect())
        };
        let wanted = Match {
            source: only(query.client),
            source_port: port(query.client.port()),
            destination: only(query.server),
            destination_port: port(query.server.port()),
            ..Match::default()
        };
        self.flows.flows(&wanted, 1).1.pop().map(render::flow)
    }
}

impl Explain for Explainer {
    fn plan(&self) -> Arc<Plan> {
        self.plan.borrow().clone()
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    fn flows(&self, wanted: &Match, limit: usize) -> (u64, Vec<FlowSnapshot>) {
        self.flows.flows(wanted, limit)
    }

    fn passing(&self) -> Option<String> {
        if self.is_draining() {
            return Some("the daemon is ending".to_owned());
        }
        if let Some(reason) = self.hold.watchdog.resting(Instant::now()) {
            return Some(format!("{reason}; {}", reason.hint()));
        }
        let full = self.admission.is_full() || self.admission.is_gate_shut();
        full.then(|| {
            format!(
                "limits.flows: {} of {} places are taken",
                self.admission.flows(),
                self.admission.limit()
            )
        })
    }

    fn report_rate(&self, peer: &str, rate: Rate, valid: Duration) {
        self.tunnels.reported.put(peer, rate, valid);
    }

    fn relocate(&self, query: MoveQuery) -> MoveAnswer {
        let (outcome, answer) = oneshot::channel();
        let MoveQuery { matches: wanted, to: peer, still_in_ms } = query;
        let still_at = Instant::now() + Duration::from_millis(still_in_ms).min(order::AHEAD_MAX);
        let workers = self.workers.clone();
        let asked = MoveOrder { peer, wanted, still_at, workers, outcome };
        if let Err(refused) = self.tunnels.relocate(Box::new(asked)) {
            let MoveOrder { peer, outcome, .. } = *refused;
            let known = self.plan().peers.iter().any(|it| it.name == peer);
            let refusal = match known {
                true => order::refusal(
                    format!("this host opens no tunnel to {peer}"),
                    &format!("set `peers.{peer}.address`: who moves flows opens the tunnel"),
                ),
                false => order::refusal(
                    format!("no peer is called \"{peer}\""),
                    "`midhopd peers` lists those that there are",
                ),
            };
            let _ = outcome.send(Err(refusal));
        }
        answer
    }

    fn explain(&self, query: &WhyQuery) -> io::Result<Why> {
        let plan = self.plan();
        match self.live(query) {
            Some(flow) => Ok(explain_live(&plan, flow)),
            None => {
                Ok(Inquiry { state: self, plan: &plan, egress: Egress::open()? }.explain(query))
            }
        }
    }
}

/// What would become of a flow that begins now.
struct Inquiry<'a> {
    state: &'a Explainer,
    plan: &'a Plan,
    egress: Egress,
}

impl Inquiry<'_> {
    fn explain(&self, query: &WhyQuery) -> Why {
        let plan = self.plan;
        let mut trace = Trace { steps: Vec::new() };
        let Some((arrival, departure)) = self.ways(query, &mut trace) else {
            return trace.ends(FlowOutcome::NotIntercepted);
        };
        if let Some(why) = self.state.passing() {
            trace.decide("state", format!("new flows pass by: {why}"));
            return trace.ends(FlowOutcome::Bypass);
        }
        let decision = plan.policy.decide(&FlowKey {
            source: query.client,
            destination: query.server,
            interface: Some(&arrival),
            peer: None,
            dscp: query.dscp,
        });
        let tunnel = plan.route(&decision);
        let endpoint = plan.policy.is_endpoint(query.server);
        let finding = if endpoint {
            "the server is where a peer takes tunnels over TCP, which always passes by".to_owned()
        } else {
            rule(plan, decision.rule)
        };
        let decides = tunnel.is_none();
        trace.add(&rule_key(decision.rule), finding, decides && decision.action != Action::Split);
        match decision.action {
            Action::Bypass => return trace.ends(FlowOutcome::Bypass),
            Action::Assist => return trace.ends(FlowOutcome::Assist),
            Action::Reject => return trace.ends(FlowOutcome::Reject),
            Action::Split => {}
        }
        let crossing = Crossing {
            client: query.client.ip(),
            server: query.server.ip(),
            arrival: &arrival,
            departure: &departure,
        };
        let through = match tunnel {
            None => None,
            Some(route) => match self.through(route, &crossing, &mut trace) {
                Ok(peer) => Some(peer),
                Err(Action::Split) => None,
                Err(Action::Reject) => return trace.ends(FlowOutcome::Reject),
                Err(Action::Bypass | Action::Assist) => return trace.ends(FlowOutcome::Bypass),
            },
        };
        let server_leg = match &through {
            Some(peer) => peer.clone(),
            None => {
                trace.decide("split", "nothing keeps it from being split here");
                plan.leg(&decision, query.server.ip(), Some(&departure)).name.clone()
            }
        };
        let client_leg = plan.leg(&decision, query.client.ip(), Some(&arrival)).name.clone();
        let accept = self.accept(&decision, query.server);
        Why {
            client_leg: Some(client_leg),
            server_leg: Some(server_leg),
            accept: Some(accept),
            ..trace.ends(if through.is_some() { FlowOutcome::Tunnel } else { FlowOutcome::Split })
        }
    }

    /// The interfaces by which the flow arrives and leaves; none where this daemon does not see it.
    fn ways(&self, query: &WhyQuery, trace: &mut Trace) -> Option<(String, String)> {
        let route = |address: SocketAddr| self.egress.towards(address.ip().to_canonical());
        if self.egress.is_own(query.server.ip()).unwrap_or(false) {
            trace.decide(
                "routes",
                format!("{} is an address of this host: nothing is forwarded", query.server.ip()),
            );
            return None;
        }
        let arrival = match &query.interface {
            Some(name) => name.clone(),
            None => match route(query.client) {
                Some(name) => {
                    trace.note(
                        "routes",
                        format!("{} is behind {name}, by the route to it", query.client.ip()),
                    );
                    name.to_string()
                }
                None => {
                    trace.decide(
                        "routes",
                        format!("there is no route to {}; name its interface", query.client.ip()),
                    );
                    return None;
                }
            },
        };
        let Some(departure) = route(query.server) else {
            trace.decide(
                "routes",
                format!("there is no route to {}: it is not forwarded", query.server.ip()),
            );
            return None;
        };
        trace.note("routes", format!("{} is reached by {departure}", query.server.ip()));
        let key = "intercept.interfaces";
        if !self.plan.intercept.interfaces.contains(&arrival) {
            let listed = self.plan.intercept.interfaces.join(", ");
            let listed = if listed.is_empty() { "no interface".to_owned() } else { listed };
            trace.decide(key, format!("{arrival} is not among them ({listed})"));
            return None;
        }
        trace.note(key, format!("{arrival} is one of them"));
        Some((arrival, departure.to_string()))
    }

    /// The peer of a flow's tunnel.
    ///
    /// # Errors
    /// What becomes of the flow instead.
    fn through(
        &self,
        route: &Route,
        crossing: &Crossing<'_>,
        trace: &mut Trace,
    ) -> Result<String, Action> {
        let Route { peer, otherwise } = route;
        let key = format!("peers.{peer}");
        let address = self.plan.peers.iter().find(|it| it.name == *peer).and_then(|it| it.address);
        let turnback = address.and_then(|address| {
            crossing.turns_back(address.ip(), |to| self.egress.next_hop(to.to_canonical()))
        });
        if turnback.is_some() {
            let instead = self.plan.instead_of_turning_back(route, crossing.departure);
            trace.decide(
                &key,
                format!(
                    "its tunnel would carry the flow back to where it comes from: {}",
                    verb(instead)
                ),
            );
            return Err(instead);
        }
        if self.state.flows.is_reachable(peer) {
            trace.decide(&key, "its tunnel is open");
            return Ok(peer.clone());
        }
        trace.decide(
            &key,
            format!("its tunnel is not open; `otherwise` of the rule: {}", verb(*otherwise)),
        );
        Err(*otherwise)
    }

    fn accept(&self, decision: &Decision, server: SocketAddr) -> String {
        let remember = self.plan.intercept.remember;
        let lately = || self.state.hold.entries.accepts(&server, remember.into(), Instant::now());
        let text = match (decision.accept, decision.accept.is_early(lately)) {
            (Accept::Early, _) => "at once (early)",
            (Accept::AfterConnect, _) => "once the far side has accepted (after-connect)",
            (Accept::Learned, true) => "at once: the target has accepted lately (learned)",
            (Accept::Learned, false) => {
                "once the far side has accepted: the target has not lately (learned)"
            }
        };
        text.to_owned()
    }
}

/// What decided about a live flow.
fn explain_live(plan: &Plan, flow: LiveFlow) -> Why {
    let mut trace = Trace { steps: Vec::new() };
    match &flow.interface {
        Some(name) => trace.note("intercept.interfaces", format!("it arrived by {name}")),
        None => trace.note("origin", "it was requested, here or by a peer"),
    }
    let number = flow.rule.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    let text = match number {
        Some(number) if plan.policy.matches(number).is_none() => {
            "a rule that a reload has removed since".to_owned()
        }
        number => rule(plan, number),
    };
    trace.add(&rule_key(number), text, flow.tunnel.is_none());
    let outcome = match &flow.tunnel {
        Some(peer) => {
            trace.decide(&format!("peers.{peer}"), "its tunnel carries the flow");
            FlowOutcome::Tunnel
        }
        None => FlowOutcome::Split,
    };
    let (client_leg, server_leg) = (flow.client_leg.clone(), flow.server_leg.clone());
    Why {
        live: Some(flow),
        client_leg: Some(client_leg),
        server_leg: Some(server_leg),
        ..trace.ends(outcome)
    }
}

fn rule_key(number: Option<usize>) -> String {
    number.map_or_else(|| "rules".to_owned(), |number| format!("rules.{number}"))
}

/// A rule in one line, as the configuration has it.
fn rule(plan: &Plan, number: Option<usize>) -> String {
    let Some(number) = number else { return "none matches: the default is to split".to_owned() };
    let written = plan.policy.matches(number).map(matches_as_toml).unwrap_or_default();
    let written = written.trim().replace('\n', ", ");
    if written.is_empty() {
        "it matches every flow".to_owned()
    } else {
        format!("it matches: {written}")
    }
}

fn verb(action: Action) -> &'static str {
    match action {
        Action::Split => "it is split here",
        Action::Bypass => "it passes by",
        Action::Assist => "it passes by, and its losses are repaired",
        Action::Reject => "it is refused",
    }
}
