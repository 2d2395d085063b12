//! The connections of cross traffic: many, short-lived, each forgotten when it is over.

use super::Desk;
use super::arrived::Arrived;
use super::exchange::Exchange;
use crate::host::Connect;
use crate::packet::{End, FlowId};
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Duration, Instant};

/// A connection and what its application knows of it.
#[derive(Debug)]
pub(super) struct Connection<T> {
    pub exchange: Exchange,
    pub begun: Instant,
    pub what: T,
}

/// The connections under way, and the sum of those that are over.
#[derive(Debug)]
pub(super) struct Connections<T> {
    slots: Vec<Option<Connection<T>>>,
    free: Vec<u32>,
    flows: u64,
    complete: u64,
    took: Duration,
    arrived: Arrived,
}

impl<T> Connections<T> {
    /// None yet.
    pub fn new() -> Self {
        let (slots, free) = (Vec::new(), Vec::new());
        Self { slots, free, flows: 0, complete: 0, took: Duration::ZERO, arrived: Arrived::new() }
    }

    /// Opens one over which `sender` will send; gives its place.
    pub fn open(&mut self, desk: &mut Desk<'_>, connect: &Connect, sender: End, what: T) -> usize {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let flow = desk.connect(connect, at);
        let exchange = Exchange::new(flow, sender);
        self.slots[at as usize] = Some(Connection { exchange, begun: desk.now(), what });
        self.flows += 1;
        at as usize
    }

    /// The place of a connection that is under way.
    pub fn find(&self, desk: &Desk<'_>, flow: FlowId) -> Option<usize> {
        // A place may have been given on: what still comes of its first owner is nobody's business.
        let at = desk.hosts.tag(flow) as usize;
        let connection = self.slots.get(at)?.as_ref()?;
        (connection.exchange.flow == flow).then_some(at)
    }

    /// A connection that is under way.
    pub fn at(&mut self, at: usize) -> Option<&mut Connection<T>> {
        self.slots.get_mut(at)?.as_mut()
    }

    /// Counts payload that arrives now.
    pub fn count(&mut self, now: Instant, payload: u64) {
        self.arrived.add(now, payload);
    }

    /// Ends a connection and forgets it; `complete` where it did all that it was to do.
    pub fn end(&mut self, desk: &mut Desk<'_>, at: usize, complete: bool) -> Option<T> {
        let connection = self.slots.get_mut(at)?.take()?;
        self.free.push(at as u32);
        desk.hosts.close(connection.exchange.flow, End::Opener);
        if complete {
            self.complete += 1;
            self.took += desk.now() - connection.begun;
        }
        Some(connection.what)
    }

    /// What they all did by `end`.
    pub fn result(&self, plan: &TrafficPlan, end: Instant) -> TrafficResult {
        TrafficResult {
            name: plan.name.clone(),
            flows: self.flows,
            complete: self.complete,
            bytes: self.arrived.bytes(),
            goodput: self.arrived.goodput(plan, end),
            packets_sent: 0,
            packets_received: 0,
            flow_time_mean: (self.complete > 0).then(|| self.took / self.complete),
        }
    }
}
