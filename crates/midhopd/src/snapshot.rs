//! What the data plane is doing, at one moment: the source of metrics and status page alike.
//!
//! Invariant: a counter (`…_total`) never falls while the daemon lives; everything else is a gauge.

use crate::{
    admission::Admission,
    daemon::DataPlane,
    ledger::{Count, Ledger},
    relay::Budget,
};
use midhop_units::{Bytes, Duration};
use serde::Serialize;
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

/// Where snapshots are taken from: what the threads of a data plane keep about themselves.
#[derive(Debug, Clone)]
pub struct Source {
    ledgers: Vec<Arc<Ledger>>,
    admission: Arc<Admission>,
    budget: Arc<Budget>,
}

impl Source {
    /// The given data plane's; it may outlive it, and then shows the last that was.
    pub fn of(data_plane: &DataPlane) -> Self {
        Self {
            ledgers: data_plane.ledgers().to_vec(),
            admission: data_plane.admission().clone(),
            budget: data_plane.budget().clone(),
        }
    }

    /// Adds up what there is now.
    pub fn take(&self) -> Snapshot {
        let sum = |count: fn(&Ledger) -> &Count| -> u64 {
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
            rejected_total: sum(|ledger| &ledger.rejected),
            up_total: Bytes::new(sum(|ledger| &ledger.bytes_up)),
            down_total: Bytes::new(sum(|ledger| &ledger.bytes_down)),
            ..Snapshot::default()
        }
    }
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
    /// Flows that have been split, whatever became of them.
    pub split_total: u64,
    /// Flows that were let pass by a rule. Those that the firewall lets pass are not seen.
    pub bypassed_by_rule_total: u64,
    /// Flows that were let pass because a limit was reached.
    pub bypassed_by_limit_total: u64,
    /// Flows that a rule refused.
    pub rejected_total: u64,
    /// Flows whose far side refused or could not be reached, by what it said
    /// (`refused`, `unreachable`, `timeout`, `local`).
    pub refused_total: BTreeMap<String, u64>,
    /// Flows that have ended, by how (`fin`, `reset-client`, `reset-server`, `dead`, `drained`, …).
    pub ended_total: BTreeMap<String, u64>,
    /// Bytes moved from clients to servers.
    pub up_total: Bytes,
    /// Bytes moved from servers to clients.
    pub down_total: Bytes,
    /// Each leg by name.
    pub legs: BTreeMap<String, LegSnapshot>,
    /// Some of the live flows, those that moved most first.
    pub busiest: Vec<FlowSnapshot>,
}

/// One leg at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LegSnapshot {
    /// Congestion control in use; empty where no flow has used the leg yet.
    pub congestion: String,
    /// Live connections.
    pub connections: u64,
    /// Bytes sent into the leg.
    pub sent_total: Bytes,
    /// Bytes received from the leg.
    pub received_total: Bytes,
    /// Segments sent again, as the kernel counted them.
    pub retransmissions_total: u64,
    /// Smoothed round-trip time over recent samples of its connections; none before the first.
    pub rtt: Option<Duration>,
    /// The shortest round-trip time seen.
    pub rtt_min: Option<Duration>,
    /// Round-trip times sampled.
    pub rtt_samples_total: u64,
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
}
