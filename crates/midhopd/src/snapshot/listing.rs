//! The live flows that a query selects, one by one.

use super::Source;
use super::flows::Context;
use super::sources::Sources;
use crate::ledger::Ledger;
use midhop_pep::config::Match;
use midhop_status::snapshot::FlowSnapshot;
use std::cmp::Reverse;
use std::sync::Arc;

impl Source {
    /// Returns the number of live flows that `wanted` covers, and at most `limit` of them: those
    /// that moved the most bytes, in descending order.
    pub fn flows(&self, wanted: &Match, limit: usize) -> (u64, Vec<FlowSnapshot>) {
        let plan = self.plan.borrow().clone();
        let live: Vec<_> = self.ledgers.iter().flat_map(|ledger| ledger.live()).collect();
        // The share of a source depends on all of its peer's flows.
        let sources = Sources::of(&plan, live.iter().map(Arc::as_ref));
        let (peers, legs) = (self.peers(&plan), self.legs(&plan));
        let context = Context { sources: &sources, peers: &peers, legs: &legs };
        let mut matching: Vec<_> = live.iter().filter(|book| wanted.covers(&book.key())).collect();
        let count = matching.len() as u64;
        matching.sort_by_cached_key(|book| Reverse(book.up.value() + book.down.value()));
        matching.truncate(limit);
        (count, matching.into_iter().map(|book| context.flow(book)).collect())
    }

    /// Whether a tunnel to this peer is open.
    pub fn is_reachable(&self, peer: &str) -> bool {
        let open = |ledger: &Arc<Ledger>| {
            ledger.peers().get(peer).is_some_and(|book| !book.open.is_empty())
        };
        self.ledgers.iter().any(open)
    }
}
