//! One live flow: its ends, what it has carried, and what was measured of it.

use super::{Counter, DirectionBook, LegBook, SideBook, Speed};
use crate::ends::{Ends, Side};
use crate::leg::Sample;
use crate::prefixes::PrefixBook;
use midhop_pep::config::{Keepalive, LegPlan};
use midhop_pep::policy::FlowKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The party on one side of a flow: a leg, or a tunnel.
#[derive(Debug, Clone)]
pub struct Party {
    /// Its name.
    pub name: Box<str>,
    /// The keep-alive settings by which a dead end is detected.
    pub keepalive: Keepalive,
    /// Whether it is a tunnel.
    pub is_tunnel: bool,
}

impl Party {
    /// The tunnel to a peer, which keeps itself alive.
    pub fn tunnel(peer: &str) -> Self {
        let keepalive = Keepalive { count: 0, ..Keepalive::default() };
        Self { name: peer.into(), keepalive, is_tunnel: true }
    }
}

impl From<&LegPlan> for Party {
    fn from(leg: &LegPlan) -> Self {
        Self { name: leg.name.as_str().into(), keepalive: leg.keepalive.clone(), is_tunnel: false }
    }
}

/// How a flow came to be carried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowOrigin {
    /// The rule that decided, from 0, in the plan that the flow began with; none: the default.
    pub rule: Option<usize>,
    /// The interface on which it arrived; none: it was requested, here or by a peer.
    pub interface: Option<Box<str>>,
    /// The DSCP of its SYN.
    pub dscp: u8,
}

/// One live flow.
#[derive(Debug)]
pub struct FlowBook {
    /// Its addresses.
    pub ends: Ends,
    /// The party towards the client.
    pub client_leg: Party,
    /// The party towards the server.
    pub server_leg: Party,
    /// How it came to be carried.
    pub origin: FlowOrigin,
    /// When both sides were open.
    pub since: Instant,
    /// From client to server.
    pub up: DirectionBook,
    /// From server to client.
    pub down: DirectionBook,
    /// Measurements of the end on this side of the tunnel, if the flow goes through one.
    pub source: SourceBook,
    /// Unit: bytes. The part of `up` that its legs' books include; changed under their lock only.
    settled_up: Counter,
    /// The same of `down`.
    settled_down: Counter,
    /// How fast it is.
    pub speed: Speed,
    /// What was measured on the client's side, and on the server's.
    sides: [SideBook; 2],
    /// The counters of its client's prefix.
    pub(super) prefix: Arc<PrefixBook>,
}

impl FlowBook {
    /// A flow that begins.
    pub fn new(ends: Ends, client_leg: Party, server_leg: Party) -> Self {
        Self {
            ends,
            client_leg,
            server_leg,
            origin: FlowOrigin::default(),
            since: Instant::now(),
            up: DirectionBook::default(),
            down: DirectionBook::default(),
            source: SourceBook::default(),
            settled_up: Counter::default(),
            settled_down: Counter::default(),
            speed: Speed::default(),
            sides: Default::default(),
            prefix: Arc::default(),
        }
    }

    /// The same, with how the flow came to be carried.
    #[must_use]
    pub fn with_origin(self, origin: FlowOrigin) -> Self {
        Self { origin, ..self }
    }

    /// The flow as the policy's rules match it.
    pub fn key(&self) -> FlowKey<'_> {
        FlowKey {
            source: self.ends.client,
            destination: self.ends.server,
            interface: self.origin.interface.as_deref(),
            peer: self.client_leg.is_tunnel.then_some(&*self.client_leg.name),
            dscp: self.origin.dscp,
        }
    }

    /// The party on one side.
    pub fn party(&self, side: Side) -> &Party {
        match side {
            Side::Client => &self.client_leg,
            Side::Server => &self.server_leg,
        }
    }

    /// The measurements of one side, if it is not a tunnel.
    pub fn measured(&self, side: Side) -> &SideBook {
        match side {
            Side::Client => &self.sides[0],
            Side::Server => &self.sides[1],
        }
    }

    /// The direction towards one side.
    pub fn towards(&self, side: Side) -> &DirectionBook {
        match side {
            Side::Client => &self.down,
            Side::Server => &self.up,
        }
    }

    /// The peer whose tunnel the flow goes through, if it does.
    pub fn peer(&self) -> Option<&str> {
        let party = [&self.client_leg, &self.server_leg].into_iter().find(|it| it.is_tunnel)?;
        Some(&party.name)
    }

    /// Adds the bytes since the last call to its legs' books, and its prefix's: each byte once, for any caller.
    pub(super) fn settle(&self, legs: &mut BTreeMap<String, LegBook>) {
        let fresh = |count: &DirectionBook, settled: &Counter| {
            let now = count.value();
            let fresh = now.saturating_sub(settled.value());
            settled.set(now);
            fresh
        };
        let up = fresh(&self.up, &self.settled_up);
        let down = fresh(&self.down, &self.settled_down);
        self.prefix.up.add(up);
        self.prefix.down.add(down);
        for (party, sent, received) in [(&self.client_leg, down, up), (&self.server_leg, up, down)]
        {
            if let Some(leg) = legs.get_mut(&*party.name) {
                leg.sent += sent;
                leg.received += received;
            }
        }
    }
}

/// Measurements of the end that a tunnel's flow has on this side.
#[derive(Debug, Default)]
pub struct SourceBook {
    /// Unit: microseconds. Smoothed round-trip time; 0: not measured yet.
    pub rtt_us: Counter,
    /// Unit: bit/s. Its send rate between the last two samples.
    pub rate: Counter,
    /// Segments received from it.
    pub segments: Counter,
    /// Of these, those that came out of order.
    pub out_of_order: Counter,
    /// Unit: bytes. Received up to the last sample.
    received: Counter,
    /// Unit: microseconds. The flow's age at the last sample.
    age_us: Counter,
}

impl SourceBook {
    pub(super) fn follow(&self, sample: &Sample, age: Duration) {
        /// Minimum time for which a rate is computed. Unit: microseconds.
        const SPAN_US: u64 = 200_000;
        self.rtt_us.set(u64::from(sample.rtt_us));
        self.segments.set(u64::from(sample.segments));
        self.out_of_order.set(u64::from(sample.out_of_order));
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let passed_us = age_us.saturating_sub(self.age_us.value());
        if passed_us < SPAN_US {
            return;
        }
        let fresh = sample.received.saturating_sub(self.received.value());
        self.rate.set(fresh.saturating_mul(8_000_000).checked_div(passed_us).unwrap_or(0));
        self.received.set(sample.received);
        self.age_us.set(age_us);
    }
}
