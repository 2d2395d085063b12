//! Applications: what writes into connections and reads from them.
//!
//! An [`App`] is told what happens to its flows, at both of their ends, and acts through its [`Desk`].
//! Both ends being one value makes it simple to know what was asked for, but no end acts on anything
//! before the bytes that say it have arrived.

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
    /// No application: what is between proxies.
    pub const NOBODY: Self = Self(u16::MAX);

    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An application.
pub(crate) trait App: fmt::Debug {
    /// Its time has come to begin.
    fn start(&mut self, desk: &mut Desk<'_>);

    /// The time that it asked for with [`Desk::wake_at`] has come.
    fn handle_timeout(&mut self, _desk: &mut Desk<'_>) {}

    /// Something happened to one end of one of its connections.
    fn handle(&mut self, _desk: &mut Desk<'_>, _flow: FlowId, _end: End, _event: SocketEvent) {}

    /// A datagram of one of its flows has arrived.
    fn handle_datagram(&mut self, _desk: &mut Desk<'_>, _flow: FlowId, _number: u64) {}

    /// Time to note how things stand, as at `at`.
    fn sample(&mut self, _desk: &mut Desk<'_>, _at: Instant) {}

    /// Whether it has done all that it was to do; none of cross traffic, for which no run waits.
    fn is_done(&self) -> Option<bool> {
        None
    }

    /// What it achieved by `end`, and its curves, if it is a transfer.
    fn transfer_result(&mut self, _desk: &Desk<'_>) -> Option<(TransferResult, Vec<Series>)> {
        None
    }

    /// What it did by `end`, if it is cross traffic.
    fn traffic_result(&self, _end: Instant) -> Option<TrafficResult> {
        None
    }
}

/// Where an application meets the world.
#[derive(Debug)]
pub(crate) struct Desk<'d> {
    pub(crate) engine: &'d mut Engine,
    pub(crate) network: &'d mut Network,
    pub(crate) hosts: &'d mut Hosts,
    pub(crate) app: AppId,
    pub(crate) timer: Timer,
}

impl Desk<'_> {
    /// The time.
    pub fn now(&self) -> Instant {
        self.engine.now()
    }

    /// Asks to be woken; the last wish counts.
    pub fn wake_at(&mut self, at: Instant) {
        self.engine.set(self.timer, at);
    }

    /// Opens a connection. `tag` comes back with [`Hosts::tag`].
    pub fn connect(&mut self, connect: &Connect, tag: u32) -> FlowId {
        self.hosts.connect(self.engine, self.app, connect, tag)
    }

    /// Numbers a flow of datagrams.
    pub fn datagram_flow(&mut self, nodes: [NodeId; 2], port: u16, family: Family) -> FlowId {
        self.hosts.datagram_flow(self.app, nodes, port, family)
    }

    /// Sends a packet from `node`, past all TCP.
    pub fn send(&mut self, node: NodeId, packet: Packet) {
        self.network.send(self.engine, node, packet);
    }
}
