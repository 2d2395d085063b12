//! Some of the live flows at one moment.

use super::sources::Sources;
use crate::ends::Side;
use crate::ledger::{FlowBook, Wait};
use midhop_status::snapshot::{FlowSnapshot, LegSnapshot, PeerSnapshot, SideSnapshot};
use midhop_units::{Bytes, Duration};
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// The number of live flows that are shown.
const BUSIEST: usize = 20;

/// The state of the parts that flows go through.
pub(super) struct Context<'a> {
    pub sources: &'a Sources<'a>,
    pub peers: &'a BTreeMap<String, PeerSnapshot>,
    pub legs: &'a BTreeMap<String, LegSnapshot>,
}

/// The fastest of the live flows. For each of the others only four numbers are read.
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
        // These are read before the accepted bytes, which may grow meanwhile.
        let [to_server, to_client] = [Side::Server, Side::Client].map(|to| undelivered(book, to));
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
            up_waits_for: self.wait(book, Side::Server),
            down_waits_for: self.wait(book, Side::Client),
            up_undelivered_bytes: to_server,
            down_undelivered_bytes: to_client,
            to_client: side(book, Side::Client),
            to_server: side(book, Side::Server),
            tunnel: book.peer().map(str::to_owned),
            rule: book.origin.rule,
            interface: book.origin.interface.as_deref().map(str::to_owned),
            source: self.sources.source(book, self.peers),
        }
    }

    /// Why a direction towards a side waits: for memory or room in a tunnel, without which nothing
    /// more is read. Otherwise, why its socket's queue waits.
    fn wait(&self, book: &FlowBook, side: Side) -> Option<&'static str> {
        let (party, at) = (book.party(side), book.measured(side));
        let in_queue = || {
            let divided = self.legs.get(&*party.name).is_some_and(|leg| leg.share.is_some());
            let why = match (at.waits_for_window(), divided) {
                (true, _) => "window",
                (false, true) => "rate",
                (false, false) => "path",
            };
            (!party.is_tunnel && at.queued.value() > 0).then_some(why)
        };
        book.towards(side).wait().map(Wait::name).or_else(in_queue)
    }
}

/// Unit: bytes. Accepted for one side, and not known to have arrived there.
fn undelivered(book: &FlowBook, to: Side) -> Option<u64> {
    if book.party(to).is_tunnel {
        return book.towards(to).undelivered();
    }
    let at = book.measured(to);
    (at.rtt_us.value() > 0).then(|| at.queued.value() + at.in_flight.value())
}

fn side(book: &FlowBook, side: Side) -> Option<SideSnapshot> {
    let at = book.measured(side);
    let rtt_us = at.rtt_us.value();
    if book.party(side).is_tunnel || rtt_us == 0 {
        return None;
    }
    Some(SideSnapshot {
        rtt_s: Duration::from_us(rtt_us).as_s_f64(),
        queued_bytes: at.queued.value(),
        in_flight_bytes: at.in_flight.value(),
        sent_segments: at.sent.value(),
        retransmitted_segments: at.resent.value(),
    })
}
