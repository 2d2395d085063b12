//! Some of the live flows at one moment.

use super::sources::Sources;
use super::{LegSnapshot, PeerSnapshot, SourceSnapshot};
use crate::ends::Side;
use crate::ledger::FlowBook;
use midhop_units::{Bytes, Duration, Number};
use schemars::JsonSchema;
use serde::Serialize;
use std::{cmp::Reverse, collections::BTreeMap, net::SocketAddr, sync::Arc};

/// The number of live flows that are shown.
const BUSIEST: usize = 20;

/// One live flow.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
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
    #[serde(rename = "age_s", with = "Number::<Duration>")]
    pub age: Duration,
    /// From client to server.
    #[serde(rename = "up_bytes", with = "Number::<Bytes>")]
    pub up: Bytes,
    /// From server to client.
    #[serde(rename = "down_bytes", with = "Number::<Bytes>")]
    pub down: Bytes,
    /// Its speed from client to server over the last second or so.
    pub up_bit_per_s: u64,
    /// Its speed from server to client.
    pub down_bit_per_s: u64,
    /// The most that its faster direction may have now: the least of what the leg carries that it comes by, of the part
    /// of a flow in the rate of the leg that it goes by (all of it, where that is not divided), and of that leg's bound
    /// on a flow. None where nothing is configured.
    pub limit_bit_per_s: Option<u64>,
    /// What it has of that.
    pub limit_ratio: Option<f64>,
    /// Its socket towards the client; none where that side is a tunnel, or was not sampled yet.
    pub to_client: Option<SideSnapshot>,
    /// Its socket towards the server.
    pub to_server: Option<SideSnapshot>,
    /// The peer whose tunnel it goes through.
    pub tunnel: Option<String>,
    /// The rule that decided, from 0, in the plan that it began with; none: the default.
    pub rule: Option<usize>,
    /// The interface on which it arrived; none: it was requested, here or by a peer.
    pub interface: Option<String>,
    /// Its end on this side of a tunnel, where it goes through one.
    pub source: Option<SourceSnapshot>,
}

/// One socket of a flow, as last sampled.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SideSnapshot {
    /// Smoothed round-trip time.
    pub rtt_s: f64,
    /// Written into it, and not sent yet.
    pub queued_bytes: u64,
    /// Sent, and neither acknowledged nor thought lost.
    pub in_flight_bytes: u64,
    /// Segments with data sent, again or for the first time.
    pub sent_segments: u64,
    /// Of these, those that were sent again.
    pub retransmitted_segments: u64,
    /// What that which waits here waits for: the far end's `window`, its part of the leg's `rate`, or the `path`.
    pub waits_for: Option<&'static str>,
}

/// What is known of all that flows go through.
pub(super) struct Context<'a> {
    pub sources: &'a Sources<'a>,
    pub peers: &'a BTreeMap<String, PeerSnapshot>,
    pub legs: &'a BTreeMap<String, LegSnapshot>,
}

/// The fastest of the live flows. All others cost a look at four numbers each, whatever their order.
pub(super) fn busiest(live: &[Arc<FlowBook>], context: &Context<'_>) -> Vec<FlowSnapshot> {
    let key = |book: &FlowBook| {
        let speed = book.speed.up.value() + book.speed.down.value();
        Reverse((speed, book.up.value() + book.down.value()))
    };
    // A flow's numbers change meanwhile: each is read once.
    let mut live: Vec<_> = live.iter().map(|book| (key(book), book)).collect();
    if live.len() > BUSIEST {
        live.select_nth_unstable_by_key(BUSIEST - 1, |(key, _)| *key);
        live.truncate(BUSIEST);
    }
    live.sort_by_key(|(key, _)| *key);
    live.into_iter().map(|(_, book)| context.flow(book)).collect()
}

impl Context<'_> {
    /// Unit: bit/s. What a flow may have at most from one leg to another.
    fn limit(&self, from: &str, to: &str) -> Option<u64> {
        let from = self.legs.get(from).and_then(|leg| leg.rate_in_bit_per_s);
        let to = self.legs.get(to).into_iter().flat_map(|leg| {
            let divided = leg.share.map(|share| share.bits_per_s());
            [divided.or(leg.rate_bit_per_s), leg.flow_rate_bit_per_s]
        });
        to.chain([from]).flatten().min()
    }

    /// One live flow.
    pub(super) fn flow(&self, book: &FlowBook) -> FlowSnapshot {
        let [up, down] = [&book.speed.up, &book.speed.down].map(|speed| speed.value());
        let (from, to) = match up > down {
            true => (&book.client_leg, &book.server_leg),
            false => (&book.server_leg, &book.client_leg),
        };
        let limit = self.limit(&from.name, &to.name);
        FlowSnapshot {
            client: book.ends.client,
            server: book.ends.server,
            client_leg: book.client_leg.name.to_string(),
            server_leg: book.server_leg.name.to_string(),
            age: Duration::from_ms(u64::try_from(book.since.elapsed().as_millis()).unwrap_or(0)),
            up: Bytes::new(book.up.value()),
            down: Bytes::new(book.down.value()),
            up_bit_per_s: up,
            down_bit_per_s: down,
            limit_bit_per_s: limit,
            limit_ratio: limit
                .filter(|most| *most > 0)
                .map(|most| up.max(down) as f64 / most as f64),
            to_client: self.side(book, Side::Client),
            to_server: self.side(book, Side::Server),
            tunnel: book.peer().map(str::to_owned),
            rule: book.origin.rule,
            interface: book.origin.interface.as_deref().map(str::to_owned),
            source: self.sources.source(book, self.peers),
        }
    }

    fn side(&self, book: &FlowBook, side: Side) -> Option<SideSnapshot> {
        let (party, at) = (book.party(side), book.measured(side));
        let rtt_us = at.rtt_us.value();
        if party.is_tunnel || rtt_us == 0 {
            return None;
        }
        let queued = at.queued.value();
        let divided = self.legs.get(&*party.name).is_some_and(|leg| leg.share.is_some());
        let waits = match (at.waits_for_window(), divided) {
            (true, _) => "window",
            (false, true) => "rate",
            (false, false) => "path",
        };
        Some(SideSnapshot {
            rtt_s: Duration::from_us(rtt_us).as_s_f64(),
            queued_bytes: queued,
            in_flight_bytes: at.in_flight.value(),
            sent_segments: at.sent.value(),
            retransmitted_segments: at.resent.value(),
            waits_for: (queued > 0).then_some(waits),
        })
    }
}
