//! A transfer of the scenario: its flows, its objects, and its measurements.
//!
//! Where a transfer may restart what a broken connection has cut short, the opener detects that, waits,
//! and sends the request again over another connection; it discards the bytes of that file that had arrived, or requests
//! those that had not.

use super::exchange::{Amount, Exchange, Moved, Step};
use super::{App, AppContext, Waits};
use crate::host::{Connect, Hosts, SocketEvent};
use crate::packet::{End, FlowId};
use crate::recorder::{ArrivalCurve, FLOWS_SHOWN, SenderCurves};
use crate::watch::Glance;
use midhop_experiment::limit::Opener;
use midhop_experiment::plan::{TransferPlan, Work};
use midhop_experiment::record::{
    FlowResult, ObjectResult, PhaseTimes, Restarts, Series, TransferResult,
};
use midhop_experiment::spec::{Connections, RestartFrom};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::{BTreeMap, BTreeSet};

/// The record's text for a flow that was cut at the end of the run.
const TIME_LIMIT: &str = "not finished when the time limit was reached";

/// A running transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    plan: TransferPlan,
    connect: Connect,
    flows: Vec<Flow>,
    /// Flows with curves of their own.
    shown: Vec<Shown>,
    objects: Vec<ObjectResult>,
    restarts: Restarts,
    /// Restarts, and their times.
    broken: BTreeMap<Instant, Vec<Attempt>>,
    /// The next object that nobody has requested.
    next_object: usize,
    /// When senders that send for a time must finish, each with its flow.
    finishes: BTreeSet<(Instant, u32)>,
    under_way: usize,
    arrived: u64,
    curve: ArrivalCurve,
    /// When handovers, and ends of drains, may hold up a flow.
    holdups: Vec<Instant>,
    /// How long flows have waited for their next payload.
    waits: Waits,
}

/// A file or object to request.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    /// The number of the connection in the transfer.
    id: u32,
    /// The object, if it is one, and when it was first requested.
    object: Option<(u32, Instant)>,
    /// How often it has restarted.
    restarts: u32,
    /// How much of it has arrived that is not requested again.
    kept: u64,
    /// When payload of it last arrived.
    progress: Option<Instant>,
}

/// One connection of the transfer.
#[derive(Debug)]
struct Flow {
    /// Its number in the transfer.
    id: u32,
    /// How often its current item has restarted.
    restarts: u32,
    /// It broke, and the item that it had cut short restarted on another connection.
    replaced: bool,
    exchange: Exchange,
    start: Instant,
    /// When the last payload arrived.
    last_byte: Option<Instant>,
    /// When everything was over.
    over: Option<Instant>,
    /// The current object and when it was requested.
    object: Option<(u32, Instant)>,
    arrived: u64,
    /// The part of it that belongs to the current item, and the part that was discarded.
    arrived_of_item: u64,
    discarded: u64,
    /// The bytes of the current item that earlier connections delivered and that are not requested
    /// again.
    kept: u64,
    /// When payload of the current item last arrived.
    progress: Option<Instant>,
    /// The sender's record at the end.
    last: Option<Last>,
    error: Option<&'static str>,
}

/// The record of a flow's sender.
#[derive(Debug, Clone, Copy)]
struct Last {
    retransmissions: u64,
    rtt_min: Option<Duration>,
    phases: PhaseTimes,
}

impl Last {
    /// The state of one end of a flow; `None` once it is gone.
    fn of(hosts: &Hosts, now: Instant, flow: FlowId, end: End) -> Option<Self> {
        let Glance { retransmissions, rtt_min, .. } = hosts.glance(flow, end)?;
        Some(Self { retransmissions, rtt_min, phases: hosts.phases(now, flow, end)? })
    }
}

/// The curves of a flow.
#[derive(Debug)]
struct Shown {
    /// Its index among the flows.
    index: u32,
    curve: ArrivalCurve,
    sender: SenderCurves,
}

impl Transfer {
    /// A transfer of the plan, over connections that `connect` describes.
    pub fn new(plan: &TransferPlan, connect: Connect, holdups: Vec<Instant>) -> Self {
        Self {
            plan: plan.clone(),
            holdups,
            connect,
            flows: Vec::new(),
            shown: Vec::new(),
            objects: Vec::new(),
            restarts: Restarts::default(),
            broken: BTreeMap::new(),
            next_object: 0,
            finishes: BTreeSet::new(),
            under_way: 0,
            arrived: 0,
            curve: ArrivalCurve::default(),
            waits: Waits::default(),
        }
    }

    fn sender(&self) -> End {
        match self.plan.opens {
            Opener::To => End::Listener,
            Opener::From => End::Opener,
        }
    }

    fn open_first(&mut self, context: &mut AppContext<'_>, id: u32, object: Option<u32>) {
        let object = object.map(|object| (object, context.now()));
        self.open(context, Attempt { id, object, restarts: 0, kept: 0, progress: None });
    }

    fn open(&mut self, context: &mut AppContext<'_>, attempt: Attempt) {
        let index = self.flows.len() as u32;
        let flow = context.connect(&self.connect, index);
        let start = context.now();
        let Attempt { id, object, restarts, kept, progress } = attempt;
        self.under_way += 1;
        if id < FLOWS_SHOWN {
            let (curve, sender) = (ArrivalCurve::default(), SenderCurves::default());
            self.shown.push(Shown { index, curve, sender });
        }
        self.flows.push(Flow {
            id,
            restarts,
            replaced: false,
            exchange: Exchange::new(flow, self.sender()),
            start,
            last_byte: None,
            over: None,
            object,
            arrived: 0,
            arrived_of_item: 0,
            discarded: 0,
            kept,
            progress,
            last: None,
            error: None,
        });
    }

    fn is_over(&self) -> bool {
        !self.flows.is_empty() && self.under_way == 0 && self.broken.is_empty()
    }

    /// Requests a wake-up for the next finish or restart.
    fn set_alarm(&self, context: &mut AppContext<'_>) {
        let finish = self.finishes.first().map_or(Instant::NEVER, |(at, _)| *at);
        let again = self.broken.first_key_value().map_or(Instant::NEVER, |(at, _)| *at);
        context.wake_at(finish.min(again));
    }

    fn take_object(&mut self) -> Option<u32> {
        let Work::Objects { sizes, .. } = &self.plan.work else { return None };
        let object = self.next_object;
        (object < sizes.len()).then(|| {
            self.next_object += 1;
            object as u32
        })
    }

    /// How much a flow transfers next.
    fn amount(&self, flow: &Flow) -> Amount {
        let rest = |whole: Bytes| Amount::Bytes(whole.get().saturating_sub(flow.kept));
        match &self.plan.work {
            Work::Objects { sizes, .. } => {
                let size = flow.object.and_then(|(object, _)| sizes.get(object as usize));
                rest(size.copied().unwrap_or_default())
            }
            Work::Bytes { each, .. } => rest(*each),
            Work::Time { span, .. } => Amount::Time(*span),
        }
    }

    fn ask(&mut self, context: &mut AppContext<'_>, index: usize) {
        let amount = self.amount(&self.flows[index]);
        let step = self.flows[index].exchange.ask(context.hosts, context.engine.now(), amount);
        self.follow(context, index, step);
    }

    /// Processes the result of a step of an exchange.
    fn follow(&mut self, context: &mut AppContext<'_>, index: usize, step: Step) {
        let now = context.now();
        if let Some(at) = step.finish_at {
            self.finishes.insert((at, index as u32));
            self.set_alarm(context);
        }
        let flow = &mut self.flows[index];
        if flow.replaced {
            return;
        }
        if step.arrived > 0 {
            flow.arrived += step.arrived;
            flow.arrived_of_item += step.arrived;
            flow.last_byte = Some(now);
            self.arrived += step.arrived;
            let before = flow.progress.replace(now).unwrap_or(now);
            self.waits.count(flow.id, before, now, &self.holdups);
        }
        if let Some(moved) = step.complete {
            self.complete(context, index, moved);
        }
    }

    /// An item is complete, and the end that requested it knows.
    fn complete(&mut self, context: &mut AppContext<'_>, index: usize, moved: Moved) {
        let now = context.now();
        let after_start = |at: Instant| at.saturating_since(Instant::START);
        let flow = &mut self.flows[index];
        flow.last_byte = Some(moved.last_byte);
        (flow.arrived_of_item, flow.restarts, flow.progress) = (0, 0, None);
        let kept = std::mem::take(&mut flow.kept);
        if let Some((id, asked)) = flow.object.take() {
            self.objects.push(ObjectResult {
                id,
                flow: flow.id,
                bytes: Bytes::new(moved.bytes + kept),
                start: after_start(asked),
                first_byte: after_start(moved.first_byte),
                end: after_start(moved.last_byte),
            });
        }
        let next = self.take_object();
        let persistent =
            matches!(self.plan.work, Work::Objects { connections: Connections::Persistent, .. });
        match next {
            Some(object) if persistent => {
                self.flows[index].object = Some((object, now));
                self.ask(context, index);
            }
            Some(object) => {
                self.end(context.hosts, index, now, None);
                self.open_first(context, object, Some(object));
            }
            None => self.end(context.hosts, index, now, None),
        }
    }

    /// An end of a connection was informed that it was cut short.
    fn break_off(
        &mut self,
        context: &mut AppContext<'_>,
        index: usize,
        end: End,
        why: &'static str,
    ) {
        let flow = &self.flows[index];
        let again = self.plan.restarts.filter(|it| flow.over.is_none() && flow.restarts < it.most);
        let Some(again) = again else {
            return self.end(context.hosts, index, context.now(), Some(why));
        };
        // The other end only waits for a new request.
        if end != End::Opener {
            return;
        }
        self.end(context.hosts, index, context.now(), Some(why));
        let id = self.connections_planned() + self.restarts.count;
        let flow = &mut self.flows[index];
        flow.replaced = true;
        let arrived = std::mem::take(&mut flow.arrived_of_item);
        let kept = match again.from {
            RestartFrom::All => {
                flow.discarded = arrived;
                0
            }
            RestartFrom::Rest => flow.kept + arrived,
        };
        self.restarts.count += 1;
        self.restarts.discarded += Bytes::new(flow.discarded);
        let Flow { object, restarts, progress, .. } = *flow;
        let attempt = Attempt { id, object, restarts: restarts + 1, kept, progress };
        self.broken.entry(context.now() + again.after).or_default().push(attempt);
        self.set_alarm(context);
    }

    /// The number of connections if none breaks.
    fn connections_planned(&self) -> u32 {
        match &self.plan.work {
            Work::Objects { sizes, connections: Connections::New, .. } => sizes.len() as u32,
            work => work.flows(),
        }
    }

    fn end(&mut self, hosts: &mut Hosts, index: usize, now: Instant, error: Option<&'static str>) {
        let flow = &mut self.flows[index];
        if flow.over.is_some() {
            return;
        }
        flow.over = Some(now);
        flow.last = Last::of(hosts, now, flow.exchange.flow, flow.exchange.sender());
        flow.error = error;
        self.under_way -= 1;
        hosts.close(flow.exchange.flow, End::Opener);
    }

    fn flow_result(&self, flow: &Flow, hosts: &Hosts, now: Instant) -> FlowResult {
        let sender = flow.exchange.sender();
        let last = flow.last.or_else(|| Last::of(hosts, now, flow.exchange.flow, sender));
        let after_start = |at: Instant| at.saturating_since(Instant::START);
        let start = after_start(flow.start);
        let end = after_start(flow.last_byte.or(flow.over).unwrap_or(now));
        let [client_port, server_port] = hosts.ports(flow.exchange.flow);
        let unfinished = flow.over.is_none().then_some(TIME_LIMIT);
        FlowResult {
            id: flow.id,
            client_port,
            server_port,
            start,
            end,
            bytes: Bytes::new(flow.arrived - flow.discarded),
            goodput: goodput(flow.arrived - flow.discarded, end.saturating_sub(start)),
            hash_sent: None,
            hash_received: None,
            retransmissions: last.map_or(0, |last| last.retransmissions),
            rtt_min: last.and_then(|last| last.rtt_min),
            congestion: self.plan.congestion.clone(),
            error: flow.error.or(unfinished).map(str::to_owned),
            phases: last.map(|last| last.phases),
        }
    }
}

fn goodput(bytes: u64, took: Duration) -> Rate {
    if took.is_zero() { Rate::ZERO } else { Rate::of(Bytes::new(bytes), took) }
}

impl App for Transfer {
    fn start(&mut self, context: &mut AppContext<'_>) {
        match &self.plan.work {
            Work::Bytes { flows, .. } | Work::Time { flows, .. } => {
                for id in 0..*flows {
                    self.open_first(context, id, None);
                }
            }
            Work::Objects { connections, .. } => {
                let connections = *connections;
                for worker in 0..self.plan.work.flows() {
                    let object = self.take_object();
                    let id = match connections {
                        Connections::Persistent => worker,
                        Connections::New => object.unwrap_or(worker),
                    };
                    self.open_first(context, id, object);
                }
            }
        }
    }

    fn handle_timeout(&mut self, context: &mut AppContext<'_>) {
        let now = context.now();
        while let Some(&(at, index)) = self.finishes.first().filter(|(at, _)| *at <= now) {
            self.finishes.remove(&(at, index));
            self.flows[index as usize].exchange.finish(context.hosts);
        }
        while let Some(due) = self.broken.first_entry().filter(|due| *due.key() <= now) {
            for attempt in due.remove() {
                self.open(context, attempt);
            }
        }
        self.set_alarm(context);
    }

    fn handle(&mut self, context: &mut AppContext<'_>, flow: FlowId, end: End, event: SocketEvent) {
        let index = context.hosts.tag(flow) as usize;
        let now = context.now();
        match event {
            SocketEvent::Connected if end == End::Opener => self.ask(context, index),
            SocketEvent::Connected => {}
            SocketEvent::Read(total) => {
                let step = self.flows[index].exchange.read(context.hosts, now, end, total);
                self.follow(context, index, step);
            }
            SocketEvent::PeerClosed => context.hosts.close(flow, end),
            SocketEvent::Closed => {}
            SocketEvent::Failed(why) => self.break_off(context, index, end, why),
        }
    }

    fn sample(&mut self, context: &mut AppContext<'_>, at: Instant) {
        if self.flows.is_empty() || (self.is_over() && self.curve.is_up_to(self.arrived)) {
            return;
        }
        self.curve.push(at, self.arrived);
        for Shown { index, curve, sender } in &mut self.shown {
            let flow = &self.flows[*index as usize];
            if flow.over.is_some() && curve.is_up_to(flow.arrived) {
                continue;
            }
            curve.push(at, flow.arrived);
            if let Some(glance) = context.hosts.glance(flow.exchange.flow, flow.exchange.sender()) {
                sender.push(at, &glance);
            }
        }
    }

    fn waits(&self, now: Instant) -> Waits {
        let live = self.flows.iter().filter(|flow| flow.over.is_none());
        let live = live.filter_map(|flow| Some((flow.id, flow.progress?)));
        let broken = self.broken.values().flatten();
        let broken = broken.filter_map(|attempt| Some((attempt.id, attempt.progress?)));
        let mut waits = self.waits.clone();
        for (id, since) in live.chain(broken) {
            waits.count(id, since, now, &self.holdups);
        }
        waits
    }

    fn is_done(&self) -> Option<bool> {
        Some(self.is_over())
    }

    fn transfer_result(
        &mut self,
        context: &AppContext<'_>,
    ) -> Option<(TransferResult, Vec<Series>)> {
        let now = context.now();
        let flows: Vec<FlowResult> =
            self.flows.iter().map(|flow| self.flow_result(flow, context.hosts, now)).collect();
        self.objects.sort_by_key(|object| object.id);
        let all_there = match &self.plan.work {
            Work::Objects { sizes, .. } => self.objects.len() == sizes.len(),
            Work::Bytes { flows: wanted, .. } | Work::Time { flows: wanted, .. } => {
                self.flows.iter().filter(|flow| !flow.replaced).count() == *wanted as usize
            }
        };
        let start = flows.iter().map(|flow| flow.start).min().unwrap_or(Duration::ZERO);
        let end = flows.iter().map(|flow| flow.end).max().unwrap_or(start);
        let took = end.saturating_sub(start);
        let bytes = Bytes::new(self.arrived) - self.restarts.discarded;
        let well = |(flow, result): (&Flow, &FlowResult)| flow.replaced || result.error.is_none();
        let complete =
            all_there && self.broken.is_empty() && self.flows.iter().zip(&flows).all(well);
        let name = &self.plan.name;
        let id = |shown: &Shown| Some(self.flows[shown.index as usize].id);
        let mut series: Vec<Series> = self.curve.series(name, None).into_iter().collect();
        let shown = || self.shown.iter();
        series.extend(shown().filter_map(|it| it.curve.series(name, id(it))));
        series.extend(shown().flat_map(|it| it.sender.series(name, id(it))));
        let result = TransferResult {
            name: name.clone(),
            complete,
            took,
            bytes,
            goodput: goodput(bytes.get(), took),
            restarts: self.restarts,
            // The record knows what the links drew.
            limit: None,
            flows,
            objects: std::mem::take(&mut self.objects),
        };
        Some((result, series))
    }
}
