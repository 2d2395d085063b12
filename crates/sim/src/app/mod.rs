//! Applications: they write into connections and read from them.
//!
//! An [`App`] receives the events of its flows, of both ends, and acts through its [`AppContext`].
//! One value for both ends makes it simple to know what was requested, but no end acts before the bytes of the
//! request or response have arrived.

mod arrivals;
mod arrived;
mod bulk;
mod connections;
mod datagrams;
mod exchange;
mod transfer;
mod web;

pub(crate) use arrivals::Arrivals;
pub(crate) use bulk::Bulk;
pub(crate) use datagrams::Datagrams;
pub(crate) use midhop_experiment::handovers::Waits;
pub(crate) use transfer::Transfer;
pub(crate) use web::Web;

use crate::engine::{Engine, Timer};
use crate::host::{Connect, Hosts, SocketEvent};
use crate::network::Network;
use crate::packet::{End, FlowId, NodeId, Packet};
use midhop_experiment::limit::Family;
use midhop_experiment::record::{Series, TrafficResult, TransferResult};
use midhop_units::Instant;
use std::fmt;

/// An application, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AppId(pub u16);

impl AppId {
    /// No application: a flow between proxies.
    pub const NOBODY: Self = Self(u16::MAX);

    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An application.
pub(crate) trait App: fmt::Debug {
    /// Its start time has come.
    fn start(&mut self, context: &mut AppContext<'_>);

    /// The time requested with [`AppContext::wake_at`] has come.
    fn handle_timeout(&mut self, _desk: &mut AppContext<'_>) {}

    /// An event of one end of one of its connections.
    fn handle(
        &mut self,
        _desk: &mut AppContext<'_>,
        _flow: FlowId,
        _end: End,
        _event: SocketEvent,
    ) {
    }

    /// A datagram of one of its flows has arrived.
    fn handle_datagram(&mut self, _desk: &mut AppContext<'_>, _flow: FlowId, _number: u64) {}

    /// Samples the state, as at `at`.
    fn sample(&mut self, _desk: &mut AppContext<'_>, _at: Instant) {}

    /// Whether it has finished; `None` for cross traffic, since no run waits for it.
    fn is_done(&self) -> Option<bool> {
        None
    }

    /// Its results by `end`, and its curves, if it is a transfer.
    fn transfer_result(&mut self, _desk: &AppContext<'_>) -> Option<(TransferResult, Vec<Series>)> {
        None
    }

    /// How long flows of it have waited for payload by `now`, if it is a transfer.
    fn waits(&self, _now: Instant) -> Waits {
        Waits::default()
    }

    /// Its totals by `end`, if it is cross traffic.
    fn traffic_result(&self, _end: Instant) -> Option<TrafficResult> {
        None
    }
}

/// An application's interface to the simulation.
#[derive(Debug)]
pub(crate) struct AppContext<'d> {
    pub(crate) engine: &'d mut Engine,
    pub(crate) network: &'d mut Network,
    pub(crate) hosts: &'d mut Hosts,
    pub(crate) app: AppId,
    pub(crate) timer: Timer,
}

impl AppContext<'_> {
    /// The time.
    pub fn now(&self) -> Instant {
        self.engine.now()
    }

    /// Requests a wake-up; the last request counts.
    pub fn wake_at(&mut self, at: Instant) {
        self.engine.set(self.timer, at);
    }

    /// Opens a connection. [`Hosts::tag`] returns `tag`.
    pub fn connect(&mut self, connect: &Connect, tag: u32) -> FlowId {
        self.hosts.connect(self.engine, self.app, connect, tag)
    }

    /// A number for a flow of datagrams.
    pub fn datagram_flow(&mut self, nodes: [NodeId; 2], port: u16, family: Family) -> FlowId {
        self.hosts.datagram_flow(self.app, nodes, port, family)
    }

    /// Sends a packet from `node`, without TCP.
    pub fn send(&mut self, node: NodeId, packet: Packet) {
        self.network.send(self.engine, node, packet);
    }
}
