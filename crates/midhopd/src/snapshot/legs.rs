//! Legs at one moment, and what waits to be sent into them.

use crate::ends::Side;
use crate::ledger::{FlowBook, LegBook};
use midhop_pep::config::Plan;
use midhop_units::{Bytes, Duration, Number, Rate};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One leg at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct LegSnapshot {
    /// Congestion control by name; empty: the kernel's default.
    pub congestion: String,
    /// Live connections.
    pub connections: u64,
    /// Bytes sent into the leg.
    #[serde(rename = "sent_bytes_total", with = "Number::<Bytes>")]
    pub sent_total: Bytes,
    /// Bytes received from the leg.
    #[serde(rename = "received_bytes_total", with = "Number::<Bytes>")]
    pub received_total: Bytes,
    /// Segments retransmitted, as the kernel counted them.
    pub retransmissions_total: u64,
    /// Segments with data sent, again or for the first time; of a tunnel, packets. Retransmissions are a part of these.
    pub sent_segments_total: u64,
    /// Segments with data received.
    pub received_segments_total: u64,
    /// Of those received, what came out of order: after a loss on the way here, or overtaken.
    pub out_of_order_segments_total: u64,
    /// What the link carries away from this host, where that is configured.
    pub rate_bit_per_s: Option<u64>,
    /// What it carries towards this host.
    pub rate_in_bit_per_s: Option<u64>,
    /// The fastest that one flow may send into it.
    pub flow_rate_bit_per_s: Option<u64>,
    /// What waits in this host's sockets to be sent into it, as last sampled.
    pub queued_bytes: u64,
    /// Connections of which something waits, by what for (`window`, `rate`, `path`).
    pub waiting: BTreeMap<&'static str, u64>,
    /// Smoothed round-trip time over recent samples of its connections; none before the first.
    #[serde(rename = "rtt_s", with = "Number::<Option<Duration>>")]
    pub rtt: Option<Duration>,
    /// The shortest round-trip time seen.
    #[serde(rename = "rtt_min_s", with = "Number::<Option<Duration>>")]
    pub rtt_min: Option<Duration>,
    /// Round-trip times sampled.
    pub rtt_samples_total: u64,
    /// Where its rate is divided: flows that have more to send into it than they may.
    pub senders: Option<u64>,
    /// What each of them may send at most.
    #[serde(rename = "share_bit_per_s", with = "Number::<Option<Rate>>")]
    pub share: Option<Rate>,
}

impl LegSnapshot {
    /// Adds what one worker has booked. Round-trip times are weighed by how often each was sampled.
    pub(super) fn add(&mut self, book: &LegBook) {
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
        self.sent_segments_total += book.segments.sent;
        self.received_segments_total += book.segments.received;
        self.out_of_order_segments_total += book.segments.out_of_order;
    }

    /// Takes what waits of its flows.
    pub(super) fn load(&mut self, load: &LegLoad, waiting: &mut BTreeMap<String, u64>) {
        self.queued_bytes = load.queued;
        // What has to wait where the leg's rate is divided waits for its part of it.
        let own = if self.share.is_some() { "rate" } else { "path" };
        for (why, count) in [("window", load.by_window), (own, load.by_path)] {
            if count > 0 {
                *self.waiting.entry(why).or_default() += count;
                *waiting.entry(why.to_owned()).or_default() += count;
            }
        }
    }
}

/// A leg of which only its name is known: a tunnel's, which has its peer's rates.
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
    /// Connections that send as fast as they may.
    pub by_path: u64,
}

/// What waits of live flows, by leg. It reads what was sampled, two numbers a flow, and asks no kernel.
pub(super) fn loads(live: &[Arc<FlowBook>]) -> BTreeMap<String, LegLoad> {
    let mut loads: BTreeMap<&str, LegLoad> = BTreeMap::new();
    for book in live {
        for side in [Side::Client, Side::Server] {
            let (party, at) = (book.party(side), book.measured(side));
            let queued = at.queued.value();
            if party.is_tunnel || queued == 0 {
                continue;
            }
            let load = loads.entry(&party.name).or_default();
            load.queued += queued;
            match at.waits_for_window() {
                true => load.by_window += 1,
                false => load.by_path += 1,
            }
        }
    }
    loads.into_iter().map(|(name, load)| (name.to_owned(), load)).collect()
}
