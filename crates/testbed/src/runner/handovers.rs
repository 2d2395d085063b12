//! Handovers of a run: at their times, routes change, and live flows of the proxy that is left are
//! moved, reset, or stay there.
//!
//! ```text
//! moved     the node that takes over drops what it would forward of their segments → new routes
//!           everywhere → `midhopd move`
//! reset     the node that takes over answers their segments with resets → new routes everywhere → once
//!           the host has a link again, its flows are reset
//! drained   `midhopd reload` with a rule that lets new flows bypass → new routes, except for live
//!           flows → what is left after the drain is reset
//! anchored  new routes everywhere, except for live flows
//! ```
//! A link carries nothing while no route leads over it: its emulator knows the handovers, too.
//!
//! Invariant: handovers begin at their times, in their order. One that is late is a fault of the
//! run.
//!
//! Decision 0066.

mod diversion;
mod proxy;
mod strays;

use super::RunError;
use super::fault::io_error;
use crate::emulator::scheduling;
use crate::lab::{LabError, Network};
use crate::namespace::{Namespace, NamespaceError};
use diversion::{both_ways, divert};
use midhop_experiment::handovers::{Freezes, HandoverPlan, HandoversResult, LiveFlows, Moment};
use midhop_experiment::plan::{Plan, Route};
use midhop_units::{Bytes, Duration, Instant};
use proxy::{Ends, Proxied};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time;

/// The least lateness of a handover that is a fault.
const LATE: Duration = Duration::from_ms(100);

/// What is done at a time.
#[derive(Debug)]
enum Step {
    /// New flows bypass the proxy that will be left.
    Drain(usize),
    /// A handover takes place.
    HandOver(usize),
    /// Flows of the proxy on a node are reset.
    Reset(String, BTreeSet<Ends>),
}

/// The handovers of a run, in a thread of their own. Dropping the value ends it.
#[derive(Debug)]
pub(super) struct Handovers {
    /// Dropped to end the thread.
    running: Sender<()>,
    thread: JoinHandle<Result<Outcome, RunError>>,
}

/// What all handovers of a run did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) result: HandoversResult,
    pub(super) faults: Vec<String>,
}

impl Handovers {
    /// Starts the handovers of `plan`, whose run begins at `epoch`; none when it has none. One that
    /// begins later than `lateness` is a fault. The configurations and control sockets of its proxies are in `directory`.
    ///
    /// # Errors
    /// When there is no thread for them.
    pub(super) fn start(
        plan: &Plan,
        network: &Network,
        directory: &Path,
        epoch: Instant,
        lateness: Duration,
    ) -> Result<Option<Self>, RunError> {
        if plan.handovers.is_empty() {
            return Ok(None);
        }
        let mut conductor = Conductor::new(plan, network, directory, epoch)?;
        conductor.late = LATE.max(lateness);
        let (running, ends) = channel();
        let work = move || conductor.run(&ends).map(|()| conductor.outcome());
        let thread = std::thread::Builder::new().name("handovers".to_owned()).spawn(work);
        let thread = thread.map_err(io_error("start the thread of handovers"))?;
        Ok(Some(Self { running, thread }))
    }

    /// Ends them and reports what they did.
    ///
    /// # Errors
    /// When one could not be done.
    pub(super) fn finish(self) -> Result<Outcome, RunError> {
        drop(self.running);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Does what is due.
struct Conductor {
    plan: Plan,
    nodes: BTreeMap<String, Namespace>,
    proxies: BTreeMap<String, Proxied>,
    moments: Vec<Moment>,
    /// Shape: states of the links in use × nodes × routes. State 0 is the beginning, the others
    /// follow the moments.
    routes: Vec<Vec<Vec<Route>>>,
    /// The state whose routes each node has.
    states: Vec<usize>,
    steps: BTreeMap<(Duration, u64), Step>,
    sequence: u64,
    epoch: Instant,
    /// Flows that are diverted at a node, and the node of each one's proxy.
    diverted: BTreeMap<String, BTreeMap<Ends, String>>,
    /// A handover that begins later is a fault.
    late: Duration,
    freezes: Vec<Duration>,
    outcome: Outcome,
}

impl Conductor {
    fn new(
        plan: &Plan,
        network: &Network,
        directory: &Path,
        epoch: Instant,
    ) -> Result<Self, RunError> {
        let nodes = network.nodes().map(|(name, node)| (name.to_owned(), node.clone())).collect();
        let mut proxies = BTreeMap::new();
        for node in &plan.nodes {
            let Some(pep) = node.pep.as_ref().and_then(|pep| plan.peps.get(pep)) else { continue };
            proxies.insert(node.name.clone(), Proxied::new(&node.name, pep, directory)?);
        }
        let mut own = Self {
            plan: plan.clone(),
            nodes,
            proxies,
            moments: plan.timeline().moments().to_vec(),
            routes: plan.routes(),
            states: vec![0; plan.nodes.len()],
            steps: BTreeMap::new(),
            sequence: 0,
            epoch,
            diverted: BTreeMap::new(),
            late: LATE,
            freezes: Vec::new(),
            outcome: Outcome::default(),
        };
        for number in 0..own.moments.len() {
            let (at, handover) = (own.moments[number].at, own.handover(number));
            if handover.flows == LiveFlows::Drained {
                own.plan_step(at.saturating_sub(handover.announced), Step::Drain(number));
            }
            own.plan_step(at, Step::HandOver(number));
        }
        Ok(own)
    }

    fn handover(&self, moment: usize) -> HandoverPlan {
        self.plan.handovers[self.moments[moment].handover].clone()
    }

    fn plan_step(&mut self, at: Duration, step: Step) {
        self.sequence += 1;
        self.steps.insert((at, self.sequence), step);
    }

    /// The time since the start of the run.
    fn now(&self) -> Duration {
        scheduling::now().saturating_since(self.epoch)
    }

    /// Does each step at its time, until the run ends.
    fn run(&mut self, ends: &Receiver<()>) -> Result<(), RunError> {
        while let Some((&(at, _), _)) = self.steps.first_key_value() {
            let left = (self.epoch + at).saturating_since(scheduling::now());
            if ends.recv_timeout(left.into()) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
            let Some((_, step)) = self.steps.pop_first() else { return Ok(()) };
            match step {
                Step::Drain(moment) => {
                    let from = self.handover(moment).from;
                    self.proxies.get_mut(&from).map_or(Ok(()), |it| it.drain(true))?;
                }
                Step::HandOver(moment) => self.hand_over(moment)?,
                Step::Reset(node, flows) => self.reset(&node, &flows)?,
            }
        }
        // A closed channel is all that comes.
        let _ = ends.recv();
        Ok(())
    }

    fn hand_over(&mut self, moment: usize) -> Result<(), RunError> {
        let handover = self.handover(moment);
        let HandoverPlan { from, to, flows, outage, drain, .. } = &handover;
        let at = self.moments[moment].at;
        let late = self.now().saturating_sub(at);
        if late > self.late {
            let fault = format!("the handover at {at} began {late} late");
            self.outcome.faults.push(fault);
        }
        self.outcome.result.count += 1;
        if let Some(proxy) = self.proxies.get_mut(to) {
            proxy.drain(false)?;
        }
        let back_at = at.saturating_add(*outage);
        match flows {
            _ if !self.proxies.contains_key(from) => self.find_ways(moment, |_| true)?,
            LiveFlows::Moved if self.proxies.contains_key(to) => {
                // The ends' segments take the new routes from now on, as those of a terminal do whose satellite has set. What
                // comes to the new proxy before its flow does would go on to the other end, which has another connection.
                let live = self.live_at(from)?;
                self.find_ways(moment, |node| node == to)?;
                self.strays(to, from, moment + 1, &live, Namespace::drop_strays)?;
                self.find_ways(moment, |_| true)?;
                self.move_flows(from, to)?;
                if let Some(namespace) = self.nodes.get(to) {
                    namespace.forget_strays().map_err(LabError::from)?;
                }
                // What could not move has no proxy on its path any more.
                let live = self.live_at(from)?;
                self.reset_strays(to, from, moment + 1, &live)?;
                self.reset_later(from, back_at, live);
            }
            LiveFlows::Moved | LiveFlows::Reset => {
                // First, the strays: what is exchanged between a client and a server whose connections are not each
                // other's makes them answer with acknowledgements, of which a kernel sends two in a second (RFC 5961
                // section 7). Then none is left for the challenge of a reset that is not next in sequence.
                let live = self.live_at(from)?;
                self.reset_strays(to, from, moment + 1, &live)?;
                self.find_ways(moment, |_| true)?;
                self.reset_later(from, back_at, live);
            }
            LiveFlows::Drained | LiveFlows::Anchored => {
                let live = self.live_at(from)?;
                self.chain(&handover, &live)?;
                self.find_ways(moment, |_| true)?;
                if *flows == LiveFlows::Drained {
                    self.plan_step(at.saturating_add(*drain), Step::Reset(from.clone(), live));
                }
            }
        }
        Ok(())
    }

    /// Gives nodes the routes from a moment on.
    fn find_ways(&mut self, moment: usize, of: impl Fn(&str) -> bool) -> Result<(), RunError> {
        let state = moment + 1;
        for (number, planned) in self.plan.nodes.iter().enumerate() {
            let before = self.states[number];
            if before == state || !of(&planned.name) {
                continue;
            }
            self.states[number] = state;
            let hops = |state: usize| -> Vec<(IpAddr, IpAddr)> {
                self.routes[state][number].iter().map(|route| (route.to, route.via)).collect()
            };
            if let Some(node) = self.nodes.get(&planned.name) {
                node.change_routes(&hops(before), &hops(state)).map_err(LabError::from)?;
            }
        }
        Ok(())
    }

    fn live_at(&self, node: &str) -> Result<BTreeSet<Ends>, RunError> {
        self.proxies.get(node).map_or_else(|| Ok(BTreeSet::new()), Proxied::flows)
    }

    fn move_flows(&mut self, from: &str, to: &str) -> Result<(), RunError> {
        let tunnels = self.plan.node(from).and_then(|node| node.tunnels.as_ref());
        let peer = tunnels.and_then(|all| all.peers.iter().find(|peer| peer.node == to));
        let (Some(peer), Some(proxy)) = (peer, self.proxies.get(from)) else { return Ok(()) };
        let begun = time::Instant::now();
        let outcome = match proxy.move_flows(&peer.name) {
            Ok(outcome) => outcome,
            // They stay, as if none could move.
            Err(error) => {
                self.outcome.faults.push(error.to_string());
                return Ok(());
            }
        };
        let took = Duration::from(begun.elapsed());
        self.freezes.extend((0..outcome.moved).map(|_| took));
        let result = &mut self.outcome.result;
        result.flows_moved += outcome.moved;
        result.flows_reset += outcome.lost;
        result.state_bytes += Bytes::new(outcome.state_bytes);
        result.state_frozen_bytes += Bytes::new(outcome.state_frozen_bytes);
        for (reason, count) in outcome.stayed {
            let fault = format!("{count} flows could not move from {from} to {to}: {reason}");
            self.outcome.faults.push(fault);
        }
        Ok(())
    }

    /// Resets the flows of `node`, once the host has a link again: before, it would not receive that.
    fn reset_later(&mut self, node: &str, at: Duration, flows: BTreeSet<Ends>) {
        if !flows.is_empty() {
            self.plan_step(at, Step::Reset(node.to_owned(), flows));
        }
    }

    /// Has `node` answer segments of the ends of flows with resets that it would forward. The proxy on `home` has, or had,
    /// these flows, and its own segments pass.
    ///
    /// A reset that is not next in sequence is challenged (RFC 5961 section 3.2): segments before it may be lost. The
    /// challenge goes by the new routes, and only who has no such connection answers it.
    fn reset_strays(
        &self,
        node: &str,
        home: &str,
        state: usize,
        flows: &BTreeSet<Ends>,
    ) -> Result<(), RunError> {
        self.strays(node, home, state, flows, Namespace::reset_strays)
    }

    /// Has `node` do `treat` with such segments.
    fn strays(
        &self,
        node: &str,
        home: &str,
        state: usize,
        flows: &BTreeSet<Ends>,
        treat: impl Fn(&Namespace, &[(&str, SocketAddr, SocketAddr)]) -> Result<(), NamespaceError>,
    ) -> Result<(), RunError> {
        let known = self.plan.nodes.iter().position(|planned| planned.name == node);
        let (Some(number), Some(namespace)) = (known, self.nodes.get(node)) else { return Ok(()) };
        let ways = strays::ways(&self.plan, number, &self.routes[state][number], home, flows);
        Ok(treat(namespace, &ways).map_err(LabError::from)?)
    }

    fn reset(&mut self, node: &str, flows: &BTreeSet<Ends>) -> Result<(), RunError> {
        for (number, planned) in self.plan.nodes.iter().enumerate() {
            // Nodes that divert packets of these flows here.
            let Some(diverted) = self.diverted.get(&planned.name) else { continue };
            let own: BTreeSet<Ends> =
                flows.iter().filter(|flow| diverted.contains_key(flow)).copied().collect();
            self.reset_strays(&planned.name, node, self.states[number], &own)?;
        }
        if let Some(namespace) = self.nodes.get(node) {
            self.outcome.result.flows_reset += proxy::reset(namespace, flows)?;
        }
        Ok(())
    }

    /// Has the node that takes over divert packets of flows to the node that is left, whose proxy has
    /// them, or that diverts them to the proxy that has them.
    fn chain(&mut self, handover: &HandoverPlan, live: &BTreeSet<Ends>) -> Result<(), RunError> {
        let HandoverPlan { from, to, .. } = handover;
        let earlier = self.diverted.get(from).cloned().unwrap_or_default();
        let earlier = earlier.into_iter().filter(|(_, home)| home != to);
        let own = live.iter().map(|flow| (*flow, from.clone()));
        let all: BTreeMap<Ends, String> = earlier.chain(own).collect();
        let known = self.diverted.entry(to.clone()).or_default();
        let new: Vec<Ends> = all.keys().filter(|flow| !known.contains_key(flow)).copied().collect();
        known.extend(all);
        self.outcome.result.flows_chained += live.len() as u64;
        if let Some(home) = self.nodes.get(from) {
            home.mark_own(&both_ways(live)).map_err(LabError::from)?;
        }
        match (self.nodes.get(to), self.plan.node(to), handover.over.as_ref()) {
            (Some(namespace), Some(planned), Some(way)) => {
                divert(&self.plan, namespace, planned, way.link(), &new)
            }
            _ => Ok(()),
        }
    }

    fn outcome(&mut self) -> Outcome {
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.result.freeze = Freezes::of(std::mem::take(&mut self.freezes));
        outcome
    }
}
