//! Legs at one moment, and what waits to be sent into them.

use crate::ends::Side;
use crate::ledger::{FlowBook, LegBook, Wait};
use midhop_pep::config::Plan;
use midhop_status::snapshot::LegSnapshot;
use midhop_units::{Bytes, Duration, Rate};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Adds what one worker has booked. Round-trip times are weighted by their number of samples.
pub(super) fn add(leg: &mut LegSnapshot, book: &LegBook) {
    if let Some(rtt) = book.rtt_us.map(Duration::from_us) {
        let share = book.samples as f64 / (leg.rtt_samples_total + book.samples).max(1) as f64;
        let before = leg.rtt.unwrap_or(rtt);
        leg.rtt = Some(before.scale(1.0 - share) + rtt.scale(share));
    }
    let least = book.rtt_min_us.map(Duration::from_us);
    leg.rtt_min = leg.rtt_min.into_iter().chain(least).min();
    leg.rtt_samples_total += book.samples;
    leg.connections += book.connections;
    leg.sent_total += Bytes::new(book.sent);
    leg.received_total += Bytes::new(book.received);
    leg.retransmissions_total += book.retransmissions;
    leg.sent_segments_total += book.segments.sent;
    leg.received_segments_total += book.segments.received;
    leg.out_of_order_segments_total += book.segments.out_of_order;
}

/// Adds the load of the leg's flows.
pub(super) fn load(leg: &mut LegSnapshot, load: &LegLoad, waiting: &mut BTreeMap<String, u64>) {
    leg.queued_bytes = load.queued;
    // If the leg's rate is divided, a queue waits for its share of the rate.
    let own = if leg.share.is_some() { "rate" } else { "path" };
    let found = [
        ("window", load.by_window),
        (own, load.by_path),
        (Wait::Memory.name(), load.by_memory),
        (Wait::Tunnel.name(), load.by_tunnel),
    ];
    for (why, count) in found {
        if count > 0 {
            *leg.waiting.entry(why).or_default() += count;
            *waiting.entry(why.to_owned()).or_default() += count;
        }
    }
}

/// A leg of which only the name is known: a tunnel, which has its peer's rates.
pub(super) fn of_peer(name: &str, plan: &Plan) -> LegSnapshot {
    let peer = plan.peers.iter().find(|peer| peer.name == name);
    LegSnapshot {
        rate_bit_per_s: peer.and_then(|peer| peer.rate).map(Rate::bits_per_s),
        rate_in_bit_per_s: peer.and_then(|peer| peer.rate_in).map(Rate::bits_per_s),
        ..LegSnapshot::default()
    }
}

/// What waits to be sent into one leg.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LegLoad {
    /// Unit: bytes.
    pub queued: u64,
    /// Connections whose far end's window is closed.
    pub by_window: u64,
    /// Connections that send as fast as they are allowed to.
    pub by_path: u64,
    /// Directions that wait for memory.
    pub by_memory: u64,
    /// Directions for which the tunnel has no room now.
    pub by_tunnel: u64,
}

/// What live flows have queued, by leg. Only sampled numbers are read, a few per flow, and the
/// kernel is not queried.
pub(super) fn loads(live: &[Arc<FlowBook>]) -> BTreeMap<String, LegLoad> {
    let mut loads: BTreeMap<&str, LegLoad> = BTreeMap::new();
    for book in live {
        for side in [Side::Client, Side::Server] {
            let (party, at) = (book.party(side), book.measured(side));
            let queued = if party.is_tunnel { 0 } else { at.queued.value() };
            let wait = book.towards(side).wait();
            if queued == 0 && wait.is_none() {
                continue;
            }
            let load = loads.entry(&party.name).or_default();
            load.queued += queued;
            match wait {
                Some(Wait::Memory) => load.by_memory += 1,
                Some(Wait::Tunnel) => load.by_tunnel += 1,
                None if at.waits_for_window() => load.by_window += 1,
                None => load.by_path += 1,
            }
        }
    }
    loads.into_iter().map(|(name, load)| (name.to_owned(), load)).collect()
}
