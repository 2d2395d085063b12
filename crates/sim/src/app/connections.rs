//! The connections of cross traffic: many, short-lived, each dropped when it is over.

use super::AppContext;
use super::arrived::Arrived;
use super::exchange::{Amount, Exchange};
use crate::host::{Connect, SocketEvent};
use crate::packet::{End, FlowId};
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Duration, Instant};

/// A connection and its application's state.
#[derive(Debug)]
pub(super) struct Connection<T> {
    pub exchange: Exchange,
    pub begun: Instant,
    pub what: T,
}

/// What its application has to do on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Send a request: it is open.
    Opened,
    /// Send the next request, or end it: the response is complete.
    Complete,
    /// End it: it has failed.
    Failed,
}

/// The current connections, and the sum of the finished ones.
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

    /// Opens one over which `sender` will send; returns its place.
    pub fn open(
        &mut self,
        context: &mut AppContext<'_>,
        connect: &Connect,
        sender: End,
        what: T,
    ) -> usize {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let flow = context.connect(connect, at);
        let exchange = Exchange::new(flow, sender);
        self.slots[at as usize] = Some(Connection { exchange, begun: context.now(), what });
        self.flows += 1;
        at as usize
    }

    /// Processes an event of `end` of a connection; returns the connection's place and the
    /// application's task, if there is one.
    pub fn handle(
        &mut self,
        context: &mut AppContext<'_>,
        flow: FlowId,
        end: End,
        event: SocketEvent,
    ) -> Option<(usize, Turn)> {
        if event == SocketEvent::PeerClosed {
            context.hosts.close(flow, end);
            return None;
        }
        let at = self.find(context, flow)?;
        let turn = match event {
            SocketEvent::Connected if end == End::Opener => Turn::Opened,
            SocketEvent::Read(total) => {
                let now = context.now();
                let step = self.at(at)?.exchange.read(context.hosts, now, end, total);
                self.arrived.add(now, step.arrived);
                step.complete.map(|_| Turn::Complete)?
            }
            SocketEvent::Failed(_) => Turn::Failed,
            SocketEvent::Connected | SocketEvent::Closed | SocketEvent::PeerClosed => return None,
        };
        Some((at, turn))
    }

    /// Requests `amount` over a connection; returns whether it is complete at once.
    pub fn ask(&mut self, context: &mut AppContext<'_>, at: usize, amount: Amount) -> bool {
        let now = context.now();
        let Some(connection) = self.at(at) else { return false };
        let step = connection.exchange.ask(context.hosts, now, amount);
        self.arrived.add(now, step.arrived);
        step.complete.is_some()
    }

    /// The place of an open connection.
    fn find(&self, context: &AppContext<'_>, flow: FlowId) -> Option<usize> {
        // A place may have been reused: later events of its first owner are ignored.
        let at = context.hosts.tag(flow) as usize;
        let connection = self.slots.get(at)?.as_ref()?;
        (connection.exchange.flow == flow).then_some(at)
    }

    /// An open connection.
    pub fn at(&mut self, at: usize) -> Option<&mut Connection<T>> {
        self.slots.get_mut(at)?.as_mut()
    }

    /// Ends a connection and drops it; `complete` if it did everything it had to do.
    pub fn end(&mut self, context: &mut AppContext<'_>, at: usize, complete: bool) -> Option<T> {
        let connection = self.slots.get_mut(at)?.take()?;
        self.free.push(at as u32);
        context.hosts.close(connection.exchange.flow, End::Opener);
        if complete {
            self.complete += 1;
            self.took += context.now() - connection.begun;
        }
        Some(connection.what)
    }

    /// The totals by `end`.
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
            lateness: None,
        }
    }
}
