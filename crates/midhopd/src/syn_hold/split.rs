//! Splits flows: reserves their places, and opens them.
//!
//! Connection tracking has to know a leg before its first packet leaves. The legs of all flows of
//! one turn of the queue are entered together. While the keeper enters them, the worker goes on
//! with the next turn, and opens the flows when the answer arrives.

use super::{
    Asked, Bound, Decision, Entries, Far, FarSide, Holder, Known, Legs, Opener, Plan, Route,
    Ticket, TrackedConnection, Verdict, Waiting,
};
use crate::ends::Ends;
use crate::intercept::conntrack::{EntryStart, FLOWS_MAX};
use crate::keeper::entering::AnswerWatch;
use crate::keeper::line::line;
use crate::ledger::Limit;
use crate::leg;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tokio::task::spawn_local;

/// Maximum of unanswered messages to the keeper. At this number the worker waits for the answers,
/// so that the keeper always has room for them.
const MESSAGES_MAX: usize = 8;

/// A flow that has its place, and a socket for its far side.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Its SYN in the queue.
    pub packet: u32,
    /// The SYN's mark.
    pub mark: u32,
    /// The client's leg.
    pub connection: TrackedConnection,
    /// The server's leg.
    pub server: TrackedConnection,
    pub next: Next,
}

/// What is done first.
#[derive(Debug)]
pub(super) enum Next {
    /// The client is let in with this SYN. What else is known of the flow is kept until its
    /// acceptance.
    Client(Vec<u8>),
    /// The far side is opened.
    Server(Bound, Box<Known>, Ticket),
}

impl Holder {
    /// Splits a flow, or lets it pass where there is no room for it.
    pub(super) fn split(
        self: &Rc<Self>,
        plan: &Arc<Plan>,
        (decision, route): (Decision, Option<Route>),
        opener: Opener,
        waiting: Waiting,
    ) -> Option<Verdict> {
        let hold = &self.worker.hold;
        let limit = plan.limits.pending as usize;
        let target = opener.departure.ends.server;
        let is_early = is_early(plan, &decision, &hold.entries, target);
        // This is checked before anything is opened, so that a flood costs little.
        let has_place = hold.entries.has_place(&opener.connection.ends, limit, Instant::now());
        let client = opener.connection.ends.client.ip();
        let ticket = match has_place {
            true => self.worker.admission.try_enter_from(client),
            false => Err(Limit::Pending),
        };
        let ticket = match ticket {
            Ok(ticket) => ticket,
            Err(limit) => {
                self.worker.ledger.book_limit(limit);
                return Some(Verdict::PassBy);
            }
        };
        let Opener { connection, departure, interface, class } = opener;
        let mut known = Known::new(decision, interface, departure, class, Instant::now());
        let bound = match &route {
            Some(_) => None,
            None => match self.bind(plan, &known) {
                Ok(bound) => Some(bound),
                Err(error) => return Some(self.local_failure(connection.ends, &error)),
            },
        };
        let Waiting { packet, mark, .. } = waiting;
        let server = TrackedConnection { ends: known.departure.ends, mark: connection.mark };
        let full = || {
            self.worker.ledger.book_limit(Limit::Pending);
            Some(Verdict::PassBy)
        };
        if is_early {
            let is_tunneled = bound.is_none();
            known.far = bound.map(|bound| Far { side: FarSide::Bound(bound), ticket, class: 0 });
            if hold.entries.ready(connection.ends, known, limit).is_err() {
                return full();
            }
            if is_tunneled {
                return Some(self.let_in(&connection, &waiting.syn));
            }
            let next = Next::Client(waiting.syn);
            let prepared = Prepared { packet, mark, connection, server, next };
            self.prepared.borrow_mut().push(prepared);
            return None;
        }
        if hold.entries.wait(connection.ends, waiting, limit, Instant::now()).is_err() {
            return full();
        }
        match (route, bound) {
            (Some(route), _) => self.begin(connection, Asked::Tunnel(route), known, ticket),
            (None, Some(bound)) => {
                let next = Next::Server(bound, Box::new(known), ticket);
                let prepared = Prepared { packet, mark, connection, server, next };
                self.prepared.borrow_mut().push(prepared);
            }
            (None, None) => return Some(Verdict::PassBy),
        }
        None
    }

    /// Begins to open a far side.
    fn begin(
        self: &Rc<Self>,
        connection: TrackedConnection,
        asked: Asked,
        known: Known,
        ticket: Ticket,
    ) {
        let ends = connection.ends;
        tracing::trace!(?ends, "held");
        let asking = spawn_local(self.clone().ask(connection, asked, known, ticket));
        self.worker.hold.entries.asked_by(&ends, asking.abort_handle());
    }

    /// A socket for a flow's far side, with its address and port.
    pub(super) fn bind(&self, plan: &Plan, known: &Known) -> io::Result<Bound> {
        let departure = &known.departure;
        let leg =
            plan.leg(&known.decision, departure.ends.server.ip(), departure.egress.as_deref());
        leg::bind(departure, leg, known.class)
    }

    /// Opens what was prepared, once connection tracking knows its legs.
    pub(super) fn open_prepared(self: &Rc<Self>) {
        let mut prepared = self.prepared.take();
        if !self.worker.hold.tracked.load(Relaxed) {
            return prepared.into_iter().for_each(|one| self.open(one));
        }
        while !prepared.is_empty() {
            let later = prepared.split_off(prepared.len().min(FLOWS_MAX));
            self.enter(prepared);
            prepared = later;
        }
    }

    /// Opens all flows that are prepared or are being entered, and waits for the keeper if
    /// necessary.
    pub(super) fn settle(self: &Rc<Self>) {
        self.open_prepared();
        if let Some(line) = line() {
            line.await_entered();
        }
        self.open_entered();
    }

    /// Enters the legs of flows into connection tracking. They are opened when that is done.
    fn enter(self: &Rc<Self>, prepared: Vec<Prepared>) {
        match self.tracker.enter_meanwhile(&legs(&prepared)) {
            Ok(EntryStart::Done(outcomes)) => self.open_all(prepared, outcomes),
            Ok(EntryStart::Asked(number)) => {
                self.entering.borrow_mut().push_back((number, prepared));
                if self.entering.borrow().len() >= MESSAGES_MAX {
                    self.settle();
                }
            }
            Err(error) => self.give_up_all(prepared, &error),
        }
    }

    /// Opens what has been entered by now.
    pub(super) fn open_entered(self: &Rc<Self>) {
        while let Some((number, outcomes)) = line().and_then(|line| line.entered()) {
            // The answer to a request of a holder that has failed belongs to no flow any more.
            let is_own = self.entering.borrow().front().is_some_and(|(own, _)| *own == number);
            let Some((_, prepared)) =
                is_own.then(|| self.entering.borrow_mut().pop_front()).flatten()
            else {
                continue;
            };
            match outcomes {
                Ok(outcomes) => {
                    let outcomes = self.tracker.note(&legs(&prepared), outcomes);
                    self.open_all(prepared, outcomes);
                }
                Err(error) => self.give_up_all(prepared, &error),
            }
        }
    }

    fn open_all(self: &Rc<Self>, prepared: Vec<Prepared>, entered: Vec<io::Result<()>>) {
        for (one, entered) in prepared.into_iter().zip(entered) {
            match entered {
                Ok(()) => self.open(one),
                Err(error) => self.give_up(&one, &error),
            }
        }
    }

    fn give_up_all(&self, prepared: Vec<Prepared>, error: &io::Error) {
        prepared.iter().for_each(|one| self.give_up(one, error));
    }

    fn open(self: &Rc<Self>, one: Prepared) {
        let entries = &self.worker.hold.entries;
        let ends = one.connection.ends;
        match one.next {
            Next::Client(syn) => {
                let verdict = self.let_in(&one.connection, &syn);
                self.answer_queue(one.packet, one.mark, verdict);
            }
            Next::Server(bound, known, ticket) => match bound.connect_once() {
                Ok(opening) => self.begin(one.connection, Asked::Leg(opening), *known, ticket),
                Err(error) => {
                    self.tracker_forgets(one.server.ends);
                    self.pass_by(
                        entries.answered(&ends).map(|it| it.packet),
                        one.mark,
                        ends,
                        &error,
                    );
                }
            },
        }
    }

    /// Lets a flow pass by if connection tracking does not take its legs.
    fn give_up(&self, one: &Prepared, error: &io::Error) {
        let ends = one.connection.ends;
        let entries = &self.worker.hold.entries;
        let packet = match one.next {
            Next::Client(_) => {
                entries.forget(&ends);
                Some(one.packet)
            }
            Next::Server(..) => entries.answered(&ends).map(|it| it.packet),
        };
        self.pass_by(packet, one.mark, ends, error);
    }

    /// The same, for the SYN that waits now: a later SYN may have taken the first one's place.
    fn pass_by(&self, packet: Option<u32>, mark: u32, ends: Ends, error: &io::Error) {
        let verdict = self.local_failure(ends, error);
        if let Some(packet) = packet {
            self.answer_queue(packet, mark, verdict);
        }
    }
}

/// Waits until an answer of the keeper arrives.
pub(super) async fn entered(answers: Option<&AnswerWatch>) {
    match answers {
        Some(answers) => answers.come().await,
        None => pending().await,
    }
}

fn legs(prepared: &[Prepared]) -> Vec<Legs> {
    let legs = |one: &Prepared| Legs { client: one.connection.ends, server: one.server };
    prepared.iter().map(legs).collect()
}

/// Whether a flow's client is accepted before its far side has answered.
fn is_early(plan: &Plan, decision: &Decision, entries: &Entries, target: SocketAddr) -> bool {
    let lately = || entries.accepts(&target, plan.intercept.remember.into(), Instant::now());
    decision.accept.is_early(lately)
}
