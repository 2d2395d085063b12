//! Measures the state of the data plane at one moment. `midhop_status` shows it.

mod flows;
mod legs;
mod listing;
mod peers;
mod prefixes;
mod sources;
mod totals;

use crate::{
    admission::Admission,
    data_plane::DataPlane,
    firewall::Passed,
    ledger::{Counter, Ledger, Limit},
    prefixes::Prefixes,
    relay::Pools,
};
use legs::LegLoad;
use midhop_pep::budget::Budget;
use midhop_pep::config::Plan;
use midhop_pki::identity::Identity;
use midhop_pki::trouble::{PeerTrouble, TroubleKind};
use midhop_status::snapshot::{LegSnapshot, PeerSnapshot, Snapshot, WorkerSnapshot};
use midhop_units::{Bytes, Rate};
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
    deaths: u64,
    upgrades: u64,
}

impl Source {
    /// Creates it for the given data plane. It may outlive the data plane, and then shows the last
    /// state.
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
            deaths: data_plane.deaths(),
            upgrades: data_plane.upgrades(),
        }
    }

    /// Number of actions for assisted flows.
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
                legs::load(leg, &load, &mut waiting);
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
            data_planes_killed_total: self.deaths,
            upgrades_total: self.upgrades,
            orphaned_flows_total: named(&[
                ("adopted", sum(|ledger| &ledger.adopted)),
                ("lost", sum(|ledger| &ledger.lost)),
            ]),
            moved_flows_total: named(&[
                ("away", sum(|ledger| &ledger.moved_away)),
                ("here", sum(|ledger| &ledger.moved_here)),
                ("lost", sum(|ledger| &ledger.lost_in_moving)),
            ]),
            peers_denied_total: named(&[
                ("target", sum(|ledger| &ledger.forbidden)),
                ("limit", sum(|ledger| &ledger.excessive)),
                ("request", sum(|ledger| &ledger.unserved)),
            ]),
            claims_ignored_total: sum(|ledger| &ledger.disbelieved),
            resumptions_total: named(&[
                ("resumed", sum(|ledger| &ledger.resumed)),
                ("lost", sum(|ledger| &ledger.not_resumed)),
                ("refused", sum(|ledger| &ledger.resumptions_refused)),
            ]),
            flows_without_tunnel: sum(|ledger| &ledger.waiting_flows),
            handshakes_refused_total: self.refusals(),
            last_refusal: self.last_refusal(),
            handshakes_limited_total: named(&[
                ("retry", sum(|ledger| &ledger.retried_handshakes)),
                ("none", sum(|ledger| &ledger.dropped_handshakes)),
            ]),
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
            windows_bounded_total: sum(|ledger| &ledger.windows_bounded),
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

    /// The last of these handshakes.
    fn last_refusal(&self) -> Option<PeerTrouble> {
        let last = self.ledgers.iter().filter_map(|ledger| ledger.refusals().last);
        last.max_by_key(|trouble| trouble.at_unix_s)
    }

    /// What live flows have queued, by leg.
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

    /// Expiry times of this daemon's certificates.
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
            legs::add(leg, &book);
        }
        for (name, pool) in self.pools.all() {
            if let Some(leg) = legs.get_mut(&name) {
                leg.senders = Some(pool.senders());
                leg.share = Some(pool.share());
            }
        }
        legs
    }

    /// Every peer of the plan, and peers of earlier plans, over all workers.
    fn peers(&self, plan: &Plan) -> BTreeMap<String, PeerSnapshot> {
        let named = plan.peers.iter().map(|peer| (peer.name.clone(), PeerSnapshot::default()));
        let mut peers: BTreeMap<String, PeerSnapshot> = named.collect();
        for (name, book) in self.ledgers.iter().flat_map(|ledger| ledger.peers()) {
            peers::add(peers.entry(name).or_default(), &book);
        }
        peers
    }
}

fn named(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}
