//! The state of the data plane at one moment: the source of both metrics and status page.
//!
//! Invariant: a counter (`…_total`) never falls while the daemon lives; everything else is a gauge.

mod flows;
mod sources;

pub use sources::{ConditionSnapshot, SourceSnapshot};

use crate::{
    admission::Admission,
    data_plane::DataPlane,
    firewall::Passed,
    ledger::{Carrier, Counter, FlowBook, Ledger, LegBook, PeerBook, Repaired},
    relay::Pools,
};
use midhop_pep::budget::Budget;
use midhop_pep::config::Plan;
use midhop_pep::source::Condition;
use midhop_units::{Bytes, Duration, Rate};
use serde::Serialize;
use sources::Sources;
use std::{cmp::Reverse, collections::BTreeMap, net::SocketAddr, sync::Arc};
use tokio::sync::watch;

/// The number of live flows that are shown.
const BUSIEST: usize = 20;

/// The sources of snapshots: what the threads of a data plane record about themselves.
#[derive(Debug, Clone)]
pub struct Source {
    ledgers: Vec<Arc<Ledger>>,
    admission: Arc<Admission>,
    budget: Arc<Budget>,
    passed: Option<Passed>,
    pools: Arc<Pools>,
    plan: watch::Receiver<Arc<Plan>>,
}

impl Source {
    /// Creates it for the given data plane. It may outlive it, and then shows the last state.
    pub fn of(data_plane: &DataPlane) -> Self {
        Self {
            ledgers: data_plane.ledgers().to_vec(),
            admission: data_plane.admission().clone(),
            budget: data_plane.budget().clone(),
            passed: data_plane.passed(),
            pools: data_plane.pools().clone(),
            plan: data_plane.plan(),
        }
    }

    /// The actions for assisted flows.
    fn assist_total(&self) -> BTreeMap<String, u64> {
        let mut total = BTreeMap::new();
        for (what, count) in self.ledgers.iter().flat_map(|ledger| ledger.assist.counts()) {
            *total.entry(what.to_owned()).or_default() += count;
        }
        total
    }

    /// Adds up the present values.
    pub fn take(&self) -> Snapshot {
        let plan = self.plan.borrow().clone();
        let live: Vec<_> = self.ledgers.iter().flat_map(|ledger| ledger.live()).collect();
        let sources = Sources::of(&plan, live.iter().map(Arc::as_ref));
        let mut peers = self.peers(&plan);
        let measured = live
            .iter()
            .filter_map(|book| Some((book.peer()?.to_owned(), sources.source(book, &peers)?)));
        let measured: Vec<_> = measured.collect();
        sources::count(measured.into_iter(), &mut peers);
        let busiest = busiest(&live, &sources, &peers);
        let sum = |count: fn(&Ledger) -> &Counter| -> u64 {
            self.ledgers.iter().map(|ledger| count(ledger).value()).sum()
        };
        Snapshot {
            flows: self.admission.flows(),
            held_syns: sum(|ledger| &ledger.held),
            buffered: Bytes::new(self.budget.held()),
            buffered_max: Bytes::new(self.budget.limit()),
            flows_max: self.admission.limit(),
            split_total: sum(|ledger| &ledger.flows),
            bypassed_by_rule_total: sum(|ledger| &ledger.bypassed_by_rule),
            bypassed_by_limit_total: sum(|ledger| &ledger.bypassed_by_limit),
            bypassed_by_watchdog_total: sum(|ledger| &ledger.bypassed_by_watchdog),
            firewall_passed_total: self.passed.as_ref().map_or_else(BTreeMap::new, |it| it.total()),
            assisted_total: sum(|ledger| &ledger.assisted),
            assist_flows: sum(|ledger| &ledger.assist.flows),
            assist_cached: Bytes::new(sum(|ledger| &ledger.assist.cached)),
            assist_total: self.assist_total(),
            rejected_total: sum(|ledger| &ledger.rejected),
            peers_denied_total: named(&[
                ("target", sum(|ledger| &ledger.forbidden)),
                ("limit", sum(|ledger| &ledger.excessive)),
            ]),
            claims_ignored_total: sum(|ledger| &ledger.disbelieved),
            refused_total: named(&[
                ("refused", sum(|ledger| &ledger.refused)),
                ("unreachable", sum(|ledger| &ledger.unreachable)),
                ("timeout", sum(|ledger| &ledger.timed_out)),
                ("local", sum(|ledger| &ledger.local_failures)),
            ]),
            ended_total: named(&[
                ("fin", sum(|ledger| &ledger.ended)),
                ("reset-client", sum(|ledger| &ledger.reset_by_client)),
                ("reset-server", sum(|ledger| &ledger.reset_by_server)),
                ("dead", sum(|ledger| &ledger.dead)),
            ]),
            up_total: Bytes::new(sum(|ledger| &ledger.bytes_up)),
            down_total: Bytes::new(sum(|ledger| &ledger.bytes_down)),
            memory_waits_total: sum(|ledger| &ledger.memory_waits),
            workers: self.workers(),
            legs: self.legs(),
            peers,
            busiest,
        }
    }

    /// Each worker's part of the tunnels.
    fn workers(&self) -> Vec<WorkerSnapshot> {
        let of = |ledger: &Arc<Ledger>| WorkerSnapshot {
            tunnels: ledger.tunnels(),
            datagrams_total: ledger.datagrams.value(),
            handed_datagrams_total: ledger.handed_datagrams.value(),
        };
        self.ledgers.iter().map(of).collect()
    }

    /// Every leg of the plan, used or not, over all workers.
    fn legs(&self) -> BTreeMap<String, LegSnapshot> {
        let plan = self.plan.borrow().clone();
        let mut legs: BTreeMap<String, LegSnapshot> = BTreeMap::new();
        for leg in &plan.legs {
            let congestion = leg.congestion.clone().unwrap_or_default();
            legs.insert(leg.name.clone(), LegSnapshot { congestion, ..LegSnapshot::default() });
        }
        for (name, book) in self.ledgers.iter().flat_map(|ledger| ledger.legs()) {
            legs.entry(name).or_default().add(&book);
        }
        for (name, pool) in self.pools.all() {
            if let Some(leg) = legs.get_mut(&name) {
                leg.senders = Some(pool.senders());
                leg.share = Some(pool.share());
            }
        }
        legs
    }

    /// Every peer of the plan, and those that were of an earlier one, over all workers.
    fn peers(&self, plan: &Plan) -> BTreeMap<String, PeerSnapshot> {
        let named = plan.peers.iter().map(|peer| (peer.name.clone(), PeerSnapshot::default()));
        let mut peers: BTreeMap<String, PeerSnapshot> = named.collect();
        for (name, book) in self.ledgers.iter().flat_map(|ledger| ledger.peers()) {
            peers.entry(name).or_default().add(&book);
        }
        peers
    }
}

/// The live flows that have moved most bytes.
fn busiest(
    live: &[Arc<FlowBook>],
    sources: &Sources<'_>,
    peers: &BTreeMap<String, PeerSnapshot>,
) -> Vec<FlowSnapshot> {
    let mut live: Vec<_> = live.iter().collect();
    live.sort_by_cached_key(|book| Reverse(book.up.value() + book.down.value()));
    live.truncate(BUSIEST);
    live.into_iter().map(|book| FlowSnapshot::of(book, sources, peers)).collect()
}

fn named(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// One worker's part of the tunnels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WorkerSnapshot {
    /// Those that are open on it.
    pub tunnels: u64,
    /// Datagrams received on its sockets.
    pub datagrams_total: u64,
    /// Those of them that belonged to other workers' connections, and were handed to those.
    pub handed_datagrams_total: u64,
}

/// The data plane at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// Live flows.
    pub flows: u64,
    /// Clients that wait for the far side to answer.
    pub held_syns: u64,
    /// Bytes that flows hold now.
    pub buffered: Bytes,
    /// Bytes that flows may hold together.
    pub buffered_max: Bytes,
    /// Flows that may live at a time.
    pub flows_max: u64,
    /// Flows that have been split, whatever their end.
    pub split_total: u64,
    /// Flows that were let pass by a rule that the firewall cannot follow.
    pub bypassed_by_rule_total: u64,
    /// Flows that were let pass because a limit was reached.
    pub bypassed_by_limit_total: u64,
    /// Flows that were let pass because flows did not come about here, or their far side did not answer.
    pub bypassed_by_watchdog_total: u64,
    /// SYNs that the firewall let pass on its own, by why (`multipath`, `signed`, `rule`, `limit`); one that its client sent again counts again.
    pub firewall_passed_total: BTreeMap<String, u64>,
    /// Flows that were let pass by a rule that has them repaired.
    pub assisted_total: u64,
    /// Directions of assisted flows that have a state.
    pub assist_flows: u64,
    /// Size of their cache.
    pub assist_cached: Bytes,
    /// What was done for them: segments sent again, acknowledgements kept back, …
    pub assist_total: BTreeMap<String, u64>,
    /// Flows that a rule refused.
    pub rejected_total: u64,
    /// Flows and connections that peers were denied, by why.
    pub peers_denied_total: BTreeMap<String, u64>,
    /// Flows that peers asked for in the name of clients that are not theirs.
    pub claims_ignored_total: u64,
    /// Flows whose far side refused or could not be reached, by what it said
    /// (`refused`, `unreachable`, `timeout`, `local`).
    pub refused_total: BTreeMap<String, u64>,
    /// Flows that have ended, by how (`fin`, `reset-client`, `reset-server`, `dead`, `drained`, …).
    pub ended_total: BTreeMap<String, u64>,
    /// Bytes moved from clients to servers.
    pub up_total: Bytes,
    /// Bytes moved from servers to clients.
    pub down_total: Bytes,
    /// How often a direction had to wait because all flows together held the limit.
    pub memory_waits_total: u64,
    /// Each worker, by its number.
    pub workers: Vec<WorkerSnapshot>,
    /// Each leg by name.
    pub legs: BTreeMap<String, LegSnapshot>,
    /// Each peer by name.
    pub peers: BTreeMap<String, PeerSnapshot>,
    /// Some of the live flows, those that moved most first.
    pub busiest: Vec<FlowSnapshot>,
}

/// One leg at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LegSnapshot {
    /// Congestion control by name; empty: the kernel's default.
    pub congestion: String,
    /// Live connections.
    pub connections: u64,
    /// Bytes sent into the leg.
    pub sent_total: Bytes,
    /// Bytes received from the leg.
    pub received_total: Bytes,
    /// Segments retransmitted, as the kernel counted them.
    pub retransmissions_total: u64,
    /// Smoothed round-trip time over recent samples of its connections; none before the first.
    pub rtt: Option<Duration>,
    /// The shortest round-trip time seen.
    pub rtt_min: Option<Duration>,
    /// Round-trip times sampled.
    pub rtt_samples_total: u64,
    /// Where its rate is divided: flows that have more to send into it than they may.
    pub senders: Option<u64>,
    /// What each of them may send at most.
    pub share: Option<Rate>,
}

impl LegSnapshot {
    /// Adds what one worker has booked. Round-trip times are weighed by how often each was sampled.
    fn add(&mut self, book: &LegBook) {
        if let Some(rtt) = book.rtt_us.map(Duration::from_us) {
            let share = book.samples as f64 / (self.rtt_samples_total + book.samples).max(1) as f64;
            let before = self.rtt.unwrap_or(rtt);
            self.rtt = Some(before.scale(1.0 - share) + rtt.scale(share));
        }
        let least = book.rtt_min_us.map(Duration::from_us);
        self.rtt_min = self.rtt_min.into_iter().chain(least).min();
        self.rtt_samples_total += book.samples;
        self.connections += book.connections;
        self.sent_total += Bytes::new(book.sent);
        self.received_total += Bytes::new(book.received);
        self.retransmissions_total += book.retransmissions;
    }
}

/// The tunnels to one peer at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PeerSnapshot {
    /// Open tunnels; 0: the peer cannot be reached, or has not come.
    pub tunnels: u64,
    /// Those of them that are over TCP.
    pub tcp_tunnels: u64,
    /// The carrier of new flows, with the reason, at the end that opens tunnels.
    pub carrier: Option<Carrier>,
    /// Smoothed round-trip time of one of them.
    pub rtt: Option<Duration>,
    /// The shortest seen.
    pub rtt_min: Option<Duration>,
    /// What may be in flight.
    pub window: Bytes,
    /// The send rate of one of them, headers included; none: only the window limits it.
    pub rate: Option<Rate>,
    /// What is in flight.
    pub in_flight: Bytes,
    /// Flows in its tunnels.
    pub streams: u64,
    /// Tunnels that this end has closed because the peer broke a rule.
    pub violations_total: u64,
    /// Packets sent to it.
    pub sent_packets_total: u64,
    /// Packets of these that were lost.
    pub lost_packets_total: u64,
    /// Datagrams sent to it that repair others.
    pub repairs_sent_total: u64,
    /// Datagrams from it that were lost, and recovered by repairs.
    pub repaired_total: u64,
    /// Bytes sent to it that repairs may cover.
    pub protected_total: Bytes,
    /// Bytes of repairs, and of reports of losses.
    pub repair_total: Bytes,
    /// The part of the datagrams to it that is lost lately, before repairs; none where it is not counted.
    pub loss: Option<f64>,
    /// Its flows, by condition: the four are always there once a tunnel was measured.
    pub conditions: BTreeMap<&'static str, ConditionSnapshot>,
}

impl PeerSnapshot {
    /// Adds what one worker has booked.
    fn add(&mut self, book: &PeerBook) {
        self.sent_packets_total += book.sent_packets;
        self.lost_packets_total += book.lost_packets;
        self.carrier = book.carrier.or(self.carrier);
        self.violations_total += book.violations;
        self.add_repaired(&book.repaired);
        for tunnel in book.open.values() {
            let time = |time: std::time::Duration| {
                Duration::from_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            };
            self.tunnels += 1;
            self.tcp_tunnels += u64::from(tunnel.is_tcp);
            self.rtt = Some(time(tunnel.rtt));
            self.rtt_min = self.rtt_min.into_iter().chain([time(tunnel.rtt_min)]).min();
            for condition in Condition::ALL {
                self.conditions.entry(condition.name()).or_default();
            }
            self.window += tunnel.window;
            self.rate = tunnel.rate.or(self.rate);
            self.in_flight += tunnel.in_flight;
            self.streams += tunnel.streams;
            self.sent_packets_total += tunnel.sent_packets;
            self.lost_packets_total += tunnel.lost_packets;
            self.add_repaired(&tunnel.repaired);
        }
    }

    fn add_repaired(&mut self, repaired: &Repaired) {
        self.repairs_sent_total += repaired.sent;
        self.repaired_total += repaired.given_back;
        self.protected_total += repaired.protected;
        self.repair_total += repaired.added;
        if repaired.protected > Bytes::ZERO {
            self.loss = Some(repaired.missed);
        }
    }

    /// What repairs add to what they cover; none where nothing is covered.
    pub fn repair_overhead(&self) -> Option<f64> {
        let protected = self.protected_total.get();
        (protected > 0).then(|| self.repair_total.get() as f64 / protected as f64)
    }
}

/// One live flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowSnapshot {
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The leg towards the client.
    pub client_leg: String,
    /// The leg towards the server.
    pub server_leg: String,
    /// Since the client's SYN.
    pub age: Duration,
    /// From client to server.
    pub up: Bytes,
    /// From server to client.
    pub down: Bytes,
    /// The peer whose tunnel it goes through.
    pub tunnel: Option<String>,
    /// The rule that decided, from 0, in the plan that it began with; none: the default.
    pub rule: Option<usize>,
    /// The interface on which it arrived; none: it was requested, here or by a peer.
    pub interface: Option<String>,
    /// Its end on this side of a tunnel, where it goes through one.
    pub source: Option<SourceSnapshot>,
}
