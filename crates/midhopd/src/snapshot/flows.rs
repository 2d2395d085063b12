//! Live flows, one by one.

use super::sources::Sources;
use super::{FlowSnapshot, PeerSnapshot, Source};
use crate::ledger::{FlowBook, Ledger};
use midhop_pep::config::Match;
use midhop_pep::policy::FlowKey;
use midhop_units::{Bytes, Duration};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Source {
    /// The live flows that `wanted` covers, those that moved most bytes first, at most `limit` of them, and how many
    /// there are.
    pub fn flows(&self, wanted: &Match, limit: usize) -> (u64, Vec<FlowSnapshot>) {
        let plan = self.plan.borrow().clone();
        let live: Vec<_> = self.ledgers.iter().flat_map(|ledger| ledger.live()).collect();
        // The share of a source depends on all of its peer's flows.
        let sources = Sources::of(&plan, live.iter().map(Arc::as_ref));
        let peers = self.peers(&plan);
        let mut matching: Vec<_> = live.iter().filter(|book| wanted.covers(&key(book))).collect();
        let count = matching.len() as u64;
        matching.sort_by_cached_key(|book| Reverse(book.up.value() + book.down.value()));
        matching.truncate(limit);
        let shown = matching.into_iter().map(|book| FlowSnapshot::of(book, &sources, &peers));
        (count, shown.collect())
    }

    /// Whether a tunnel to this peer is open.
    pub fn is_reachable(&self, peer: &str) -> bool {
        let open = |ledger: &Arc<Ledger>| {
            ledger.peers().get(peer).is_some_and(|book| !book.open.is_empty())
        };
        self.ledgers.iter().any(open)
    }
}

/// A live flow as rules see it.
fn key(book: &FlowBook) -> FlowKey<'_> {
    FlowKey {
        source: book.ends.client,
        destination: book.ends.server,
        interface: book.origin.interface.as_deref(),
        peer: book.client_leg.is_tunnel.then_some(&*book.client_leg.name),
        dscp: book.origin.dscp,
    }
}

impl FlowSnapshot {
    /// One live flow, with what is known of its source.
    pub(super) fn of(
        book: &FlowBook,
        sources: &Sources<'_>,
        peers: &BTreeMap<String, PeerSnapshot>,
    ) -> Self {
        Self {
            client: book.ends.client,
            server: book.ends.server,
            client_leg: book.client_leg.name.to_string(),
            server_leg: book.server_leg.name.to_string(),
            age: Duration::from_ms(u64::try_from(book.since.elapsed().as_millis()).unwrap_or(0)),
            up: Bytes::new(book.up.value()),
            down: Bytes::new(book.down.value()),
            tunnel: book.peer().map(str::to_owned),
            rule: book.origin.rule,
            interface: book.origin.interface.as_deref().map(str::to_owned),
            source: sources.source(book, peers),
        }
    }
}
