//! The state of the data plane at one moment: the source of both metrics and status page.
//!
//! Invariant: a counter (`…_total`) never falls while the daemon lives; everything else is a gauge.

mod flows;
pub mod history;
mod legs;
mod listing;
mod prefixes;
mod sources;

pub use flows::{FlowSnapshot, SideSnapshot};
pub use legs::LegSnapshot;
pub use prefixes::PrefixSnapshot;
pub use sources::{ConditionSnapshot, SourceSnapshot};

use crate::{
    admission::Admission,
    data_plane::DataPlane,
    firewall::Passed,
    ledger::{Carrier, Counter, Ledger, Limit, PeerBook, Repaired},
    prefixes::Prefixes,
    relay::Pools,
    tunnel::identity::Identity,
    tunnel::trouble::{PeerTrouble, TroubleKind},
};
use legs::LegLoad;
use midhop_pep::budget::Budget;
use midhop_pep::config::Plan;
use midhop_pep::source::Condition;
use midhop_units::{Bytes, Duration, Number, Rate};
use schemars::JsonSchema;
use serde::Serialize;
use sources::Sources;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::watch;

/// The sources of snapshots: what the threads of a data plane record about themselves.
#[derive(Debug, Clone)]
pub struct Source {
    ledgers: Vec<Arc<Ledger>>,
    admission: Arc<Admission>,
    budget: Arc<Budget>,
    passed: Option<Passed>,
    pools: Arc<Pools>,
    plan: watch::Receiver<Arc<Plan>>,
    prefixes: Arc<Prefixes>,
    identity: Option<watch::Receiver<Arc<Identity>>>,
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
            prefixes: data_plane.prefixes().clone(),
            identity: data_plane.identity(),
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
        let mut legs = self.legs(&plan);
        let mut waiting = named(&[
            ("far-side", 0),
            ("window", 0),
            ("rate", 0),
            ("path", 0),
            ("memory", 0),
            ("tunnel", 0),
        ]);
        for (name, load) in legs::loads(&live) {
            if let Some(leg) = legs.get_mut(&name) {
                leg.load(&load, &mut waiting);
            }
        }
        let busiest = flows::busiest(
            &live,
            &flows::Context { sources: &sources, peers: &peers, legs: &legs },
        );
        let sum = |count: fn(&Ledger) -> &Counter| -> u64 {
            self.ledgers.iter().map(|ledger| count(ledger).value()).sum()
        };
        waiting.insert("far-side".to_owned(), sum(|ledger| &ledger.held));
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
            limits_reached_total: self.limits(),
            waiting,
            source_prefixes: prefixes::all(&self.prefixes),
            certificates_expire_unix_s: self.certificates(),
            firewall_passed_total: self.passed.as_ref().map_or_else(BTreeMap::new, |it| it.total()),
            assisted_total: sum(|ledger| &ledger.assisted),
            assist_flows: sum(|ledger| &ledger.assist.flows),
            assist_cached: Bytes::new(sum(|ledger| &ledger.assist.cached)),
            assist_total: self.assist_total(),
            rejected_total: sum(|ledger| &ledger.rejected),
            peers_denied_total: named(&[
                ("target", sum(|ledger| &ledger.forbidden)),
                ("limit", sum(|ledger| &ledger.excessive)),
                ("request", sum(|ledger| &ledger.unserved)),
            ]),
            claims_ignored_total: sum(|ledger| &ledger.disbelieved),
            handshakes_refused_total: self.refusals(),
            last_refusal: self.last_refusal(),
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
            legs,
            peers,
            busiest,
        }
    }

    /// Handshakes that this end refused, by reason.
    fn refusals(&self) -> BTreeMap<String, u64> {
        let zeros = TroubleKind::REFUSALS.map(|kind| (kind.name(), 0));
        let mut total = named(&zeros);
        for (reason, count) in self.ledgers.iter().flat_map(|ledger| ledger.refusals().counts) {
            *total.entry(reason.to_owned()).or_default() += count;
        }
        total
    }

    /// The last of them.
    fn last_refusal(&self) -> Option<PeerTrouble> {
        let last = self.ledgers.iter().filter_map(|ledger| ledger.refusals().last);
        last.max_by_key(|trouble| trouble.at_unix_s)
    }

    /// What waits of live flows, by leg.
    fn loads(&self) -> BTreeMap<String, LegLoad> {
        let live: Vec<_> = self.ledgers.iter().flat_map(|ledger| ledger.live()).collect();
        legs::loads(&live)
    }

    /// Flows that each limit let pass by.
    fn limits(&self) -> BTreeMap<String, u64> {
        let count = |limit: Limit| -> u64 {
            self.ledgers.iter().map(|ledger| ledger.limits.of(limit).value()).sum()
        };
        Limit::ALL.into_iter().map(|limit| (limit.name().to_owned(), count(limit))).collect()
    }

    /// The ends of this daemon's certificates.
    fn certificates(&self) -> BTreeMap<String, i64> {
        let until = self.identity.as_ref().map_or([None; 2], |identity| identity.borrow().until);
        let named = ["own", "authority"].into_iter().zip(until);
        named.filter_map(|(name, until)| Some((name.to_owned(), until?))).collect()
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
    fn legs(&self, plan: &Plan) -> BTreeMap<String, LegSnapshot> {
        let mut legs: BTreeMap<String, LegSnapshot> = BTreeMap::new();
        for leg in &plan.legs {
            let congestion = leg.congestion.clone().unwrap_or_default();
            let bits = |rate: Rate| rate.bits_per_s();
            let at = LegSnapshot {
                congestion,
                rate_bit_per_s: leg.rate.map(bits),
                rate_in_bit_per_s: leg.rate_in.map(bits),
                flow_rate_bit_per_s: leg.pacing.map(bits),
                ..LegSnapshot::default()
            };
            legs.insert(leg.name.clone(), at);
        }
        for (name, book) in self.ledgers.iter().flat_map(|ledger| ledger.legs()) {
            let leg = legs.entry(name).or_insert_with_key(|name| legs::of_peer(name, plan));
            leg.add(&book);
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

fn named(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// One worker's part of the tunnels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WorkerSnapshot {
    /// Those that are open on it.
    pub tunnels: u64,
    /// Datagrams received on its sockets.
    pub datagrams_total: u64,
    /// Those of them that belonged to other workers' connections, and were handed to those.
    pub handed_datagrams_total: u64,
}

/// The data plane at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Live flows.
    pub flows: u64,
    /// Clients that wait for the far side to answer.
    pub held_syns: u64,
    /// Bytes that flows hold now.
    #[serde(rename = "buffered_bytes", with = "Number::<Bytes>")]
    pub buffered: Bytes,
    /// Bytes that flows may hold together.
    #[serde(rename = "buffered_max_bytes", with = "Number::<Bytes>")]
    pub buffered_max: Bytes,
    /// Flows that may live at a time.
    pub flows_max: u64,
    /// Flows that have been split, whatever their end.
    pub split_total: u64,
    /// Flows that were let pass by a rule that the firewall cannot follow.
    pub bypassed_by_rule_total: u64,
    /// Flows that were let pass because a limit was reached.
    pub bypassed_by_limit_total: u64,
    /// Of these, those that each limit let pass (`flows`, `source`, `pending`, `host`, `unknown`).
    pub limits_reached_total: BTreeMap<String, u64>,
    /// Who waits now, by what for: clients for the `far-side`; sides of flows for the far end's `window`, for their part
    /// of a leg's `rate`, or for the `path`'s congestion control.
    pub waiting: BTreeMap<String, u64>,
    /// Clients, by source prefix; the last of them are counted together as `other`.
    pub source_prefixes: BTreeMap<String, PrefixSnapshot>,
    /// Until when this daemon's `own` certificate and its `authority`'s are valid.
    pub certificates_expire_unix_s: BTreeMap<String, i64>,
    /// Flows that were let pass because flows did not come about here, or their far side did not answer.
    pub bypassed_by_watchdog_total: u64,
    /// SYNs that the firewall let pass on its own, by why (`multipath`, `signed`, `routing_header`, `rule`, `limit`); one that its client sent again counts again.
    pub firewall_passed_total: BTreeMap<String, u64>,
    /// Flows that were let pass by a rule that has them repaired.
    pub assisted_total: u64,
    /// Directions of assisted flows that have a state.
    pub assist_flows: u64,
    /// Size of their cache.
    #[serde(rename = "assist_cached_bytes", with = "Number::<Bytes>")]
    pub assist_cached: Bytes,
    /// What was done for them: segments sent again, acknowledgements kept back, …
    pub assist_total: BTreeMap<String, u64>,
    /// Flows that a rule refused.
    pub rejected_total: u64,
    /// Flows and connections that peers were denied, by why.
    pub peers_denied_total: BTreeMap<String, u64>,
    /// Flows that peers asked for in the name of clients that are not theirs.
    pub claims_ignored_total: u64,
    /// Handshakes that this end refused because of the certificate or the name asked for, by reason.
    pub handshakes_refused_total: BTreeMap<String, u64>,
    /// The last of them.
    pub last_refusal: Option<PeerTrouble>,
    /// Flows whose far side refused or could not be reached, by what it said
    /// (`refused`, `unreachable`, `timeout`, `local`).
    pub refused_total: BTreeMap<String, u64>,
    /// Flows that have ended, by how (`fin`, `reset-client`, `reset-server`, `dead`, `drained`, …).
    pub ended_total: BTreeMap<String, u64>,
    /// Bytes moved from clients to servers.
    #[serde(rename = "up_bytes_total", with = "Number::<Bytes>")]
    pub up_total: Bytes,
    /// Bytes moved from servers to clients.
    #[serde(rename = "down_bytes_total", with = "Number::<Bytes>")]
    pub down_total: Bytes,
    /// How often a direction had to wait because all flows together held the limit.
    pub memory_waits_total: u64,
    /// Each worker, by its number.
    pub workers: Vec<WorkerSnapshot>,
    /// Each leg by name.
    pub legs: BTreeMap<String, LegSnapshot>,
    /// Each peer by name.
    pub peers: BTreeMap<String, PeerSnapshot>,
    /// Some of the live flows, the fastest first, and of equals those that moved most.
    pub busiest: Vec<FlowSnapshot>,
}

/// The tunnels to one peer at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct PeerSnapshot {
    /// Open tunnels; 0: the peer cannot be reached, or has not come.
    pub tunnels: u64,
    /// Those of them that are over TCP.
    pub tcp_tunnels: u64,
    /// The carrier of new flows, with the reason, at the end that opens tunnels.
    pub carrier: Option<Carrier>,
    /// Smoothed round-trip time of one of them.
    #[serde(rename = "rtt_s", with = "Number::<Option<Duration>>")]
    pub rtt: Option<Duration>,
    /// The shortest seen.
    #[serde(rename = "rtt_min_s", with = "Number::<Option<Duration>>")]
    pub rtt_min: Option<Duration>,
    /// What may be in flight.
    #[serde(rename = "window_bytes", with = "Number::<Bytes>")]
    pub window: Bytes,
    /// The send rate of one of them, headers included; none: only the window limits it.
    #[serde(rename = "rate_bit_per_s", with = "Number::<Option<Rate>>")]
    pub rate: Option<Rate>,
    /// What is in flight.
    #[serde(rename = "in_flight_bytes", with = "Number::<Bytes>")]
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
    #[serde(rename = "protected_bytes_total", with = "Number::<Bytes>")]
    pub protected_total: Bytes,
    /// Bytes of repairs, and of reports of losses.
    #[serde(rename = "repair_bytes_total", with = "Number::<Bytes>")]
    pub repair_total: Bytes,
    /// The part of the datagrams to it that is lost lately, before repairs; none where it is not counted.
    #[serde(rename = "loss_ratio")]
    pub loss: Option<f64>,
    /// Until when the certificates are valid that it showed last.
    pub certificate_expires_unix_s: Option<i64>,
    /// The last failure between it and this end; none: there was none.
    pub failure: Option<PeerTrouble>,
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
        self.certificate_expires_unix_s =
            book.certificate_until.or(self.certificate_expires_unix_s);
        let failures = self.failure.take().into_iter().chain(book.trouble.clone());
        self.failure = failures.max_by_key(|trouble| trouble.at_unix_s);
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
