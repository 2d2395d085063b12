//! Holds clients' SYNs until the action for their flows is decided.
//!
//! The kernel keeps a SYN in a queue. Either it passes by, or the flow is split. To split it, the daemon opens the
//! far side, at once or (`early`) when the client has been accepted. It drops the held SYN and injects it again to
//! its own listener. If a far side refuses, its report is forwarded to the client unchanged. A repeated SYN never
//! opens a second far side.
//!
//! Invariant: every packet taken from the queue gets exactly one verdict. On any failure of this host the SYN passes
//! by: the flow is not split, but it works.
//!
//! Decision 0026.

mod attempt;
mod cookies;
mod entries;
pub mod known;
pub mod living;
mod proven;
mod repeats;
mod split;
pub mod state;

pub use entries::{Entries, Full, Met, Waiting};
pub use known::{Far, FarSide, Known};
pub use repeats::{Repeat, Repeats};
pub use state::Hold;

use crate::admission::Ticket;
use crate::ends::Ends;
use crate::intercept::conntrack::{Legs, TrackedConnection, Tracker};
use crate::intercept::{self, Injector, Origins, Queue, REFUSED, Segment, syn};
use crate::keeper::line::line;
use crate::ledger::{Ledger, Limit};
use crate::leg::{Bound, Departure, Failure, InterfaceNames, Opening, Refusal};
use crate::tunnel::error_mapping::NoFlow;
use crate::worker::Worker;
use attempt::Attempt;
use midhop_linux::nfqueue::Packet;
use midhop_linux::nft::Table;
use midhop_linux::sock_diag;
use midhop_pep::config::{Action, Plan};
use midhop_pep::policy::{Crossing, Decision, FlowKey, Route};
use midhop_tunnel::{connect::Request, target::Target};
use split::Prepared;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::{spawn_local, yield_now};
use tokio::time::{interval, sleep};

/// Interval at which waiting flows are checked.
const LOOK: Duration = Duration::from_millis(250);
/// A far side that has not answered gets a last chance when its client has retransmitted the SYN this often (after 2
/// or 3 s).
const PATIENT_REPEATS: u32 = 2;
/// Time that a far side has after its client's repeated SYN. Shorter than the time until the
/// client's next SYN.
const LAST_CHANCE: Duration = Duration::from_millis(900);

/// One queue, and what its worker needs to answer it.
#[derive(Debug)]
struct Holder {
    worker: Rc<Worker>,
    queue: AsyncFd<Queue>,
    tracker: Tracker,
    origins: Origins,
    repeats: Repeats,
    /// Opened once all packets in the queue have been read.
    prepared: RefCell<Vec<Prepared>>,
    /// Opened once the keeper has entered it, by the number of the request message.
    entering: RefCell<VecDeque<(u64, Vec<Prepared>)>>,
    names: InterfaceNames,
    table: Table,
    /// Notifies that there are verdicts to give.
    decided: Notify,
}

/// A SYN and what is known of its flow before it is decided on.
#[derive(Debug)]
struct Opener {
    /// How its client sees the flow.
    connection: TrackedConnection,
    /// How the flow leaves this host.
    departure: Departure,
    interface: Option<String>,
    class: u8,
}

/// Serves one queue until the worker stops. `waiting` is dropped once the packets in the queue would go on without
/// this process.
///
/// # Errors
/// When the runtime cannot watch the queue, or the kernel gives no channels.
pub async fn hold(
    worker: Rc<Worker>,
    queue: Queue,
    waiting: Option<Sender<Infallible>>,
) -> io::Result<()> {
    let intercept = worker.plan().intercept.clone();
    let holder = Rc::new(Holder {
        queue: queue.watch()?,
        tracker: Tracker::open(intercept.zone)?,
        origins: Origins::open(&intercept.instance)?,
        repeats: Repeats::default(),
        prepared: RefCell::default(),
        entering: RefCell::default(),
        names: InterfaceNames::default(),
        table: intercept::open_table(&intercept.instance)?,
        decided: Notify::new(),
        worker,
    });
    let mut look = interval(LOOK);
    let answers = line().map(|line| line.answers()).transpose()?;
    holder.worker.hold.watchdog.cookies(cookies::are_for_everybody());
    holder.queue.get_ref().hand_over()?;
    drop(waiting);
    loop {
        tokio::select! {
            ready = holder.queue.readable() => {
                match ready?.try_io(|queue| queue.get_ref().receive()) {
                    Ok(Ok(packets)) => {
                        packets.iter().for_each(|packet| holder.consider(packet));
                        holder.open_prepared();
                    }
                    Ok(Err(error)) => tracing::warn!(%error, "packets could not be read from the netfilter queue"),
                    Err(_would_block) => {}
                }
            },
            () = split::entered(answers.as_ref()) => holder.open_entered(),
            () = holder.decided.notified() => holder.give_verdicts(),
            _ = look.tick() => {
                holder.give_verdicts();
                holder.look();
            }
        }
    }
}

/// The verdict on a packet in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    PassBy,
    /// It passes by, and its flow is assisted.
    Assist,
    /// As `PassBy`, unless a rule may forbid it.
    Undecided,
    Drop,
}

impl Holder {
    fn consider(self: &Rc<Self>, packet: &Packet) {
        let repeated = self.worker.hold.marks.repeated();
        let verdict = match Segment::parse(&packet.bytes) {
            Some(own) if packet.mark & repeated == repeated => {
                return self
                    .own_repeat(packet, Ends { client: own.source, server: own.destination });
            }
            Some(answer) if answer.acknowledges => {
                let leaving = Ends { client: answer.destination, server: answer.source };
                self.worker.hold.entries.note_class(leaving, answer.class);
                Some(Verdict::PassBy)
            }
            // The target drops it, and counts it. A rule may still forbid it.
            Some(syn) if !syn::is_intact(&packet.bytes, &syn) => Some(Verdict::Undecided),
            Some(syn) => {
                let ends = Ends { client: syn.source, server: syn.destination };
                let entries = &self.worker.hold.entries;
                if entries.has_passed(&ends, syn.sequence, Instant::now()) {
                    Some(Verdict::PassBy)
                } else {
                    let verdict = self.opening_segment(packet, &syn);
                    if matches!(verdict, Some(Verdict::PassBy | Verdict::Assist)) {
                        // A retransmission must pass as well: the target may have answered this
                        // SYN.
                        entries.pass(ends, syn.sequence, Instant::now());
                    }
                    verdict
                }
            }
            None => Some(Verdict::Undecided),
        };
        if let Some(verdict) = verdict {
            self.answer_queue(packet.id, packet.mark, verdict);
        }
    }

    /// Handles a SYN of this host that the kernel retransmits while its client is held.
    fn own_repeat(&self, packet: &Packet, leaving: Ends) {
        match self.repeats.repeated(leaving, packet.id) {
            Repeat::Leaves => self.let_repeat(packet.id, packet.mark),
            Repeat::Waits => {}
            Repeat::Stale => self.answer_queue(packet.id, 0, Verdict::Drop),
        }
    }

    /// Handles a client's retransmitted SYN: it allows one retransmission of ours.
    fn repeat(&self, leaving: &Ends, mark: u32) {
        if let Some(packet) = self.repeats.client_repeated(leaving) {
            self.let_repeat(packet, mark);
        }
    }

    fn let_repeat(&self, packet: u32, mark: u32) {
        let marks = self.worker.hold.marks;
        if let Err(error) = self.queue.get_ref().pass(packet, Some(mark & !marks.noted)) {
            tracing::warn!(%error, "a verdict could not be sent to the netfilter queue");
        }
        self.decided.notify_one();
    }

    /// Decides on a SYN; `None` if it has to wait.
    fn opening_segment(self: &Rc<Self>, packet: &Packet, segment: &Segment) -> Option<Verdict> {
        let hold = &self.worker.hold;
        let Some(opener) = self.opener(packet, segment) else {
            self.worker.ledger.book_limit(Limit::Unknown);
            return Some(Verdict::Undecided);
        };
        let plan = self.worker.plan();
        let ends = opener.connection.ends;
        let decision = plan.policy.decide(&FlowKey {
            source: ends.client,
            destination: opener.departure.ends.server,
            interface: opener.interface.as_deref(),
            peer: None,
            dscp: opener.class >> 2,
        });
        let leg = plan.leg(&decision, ends.client.ip(), opener.interface.as_deref());
        let Some(syn) = syn::rewrite(&packet.bytes, segment, ends, hold.tag(&leg.name)) else {
            return Some(Verdict::PassBy);
        };
        let (sequence, leaving) = (segment.sequence, opener.departure.ends);
        let (packet, mark) = (packet.id, packet.mark);
        let queue = self.queue.get_ref().number();
        let waiting = Waiting { sequence, queue, packet, mark, syn, leaving };
        let resting = hold.watchdog.resting(Instant::now()).is_some();
        let met = hold.entries.meet(ends, &waiting);
        if met != Met::Nothing {
            // A flow that is prepared or being entered may be the one that the SYN belongs to.
            self.settle();
        }
        match met {
            Met::Nothing => {}
            Met::Itself(repeats) => {
                self.worker.ledger.repeated_syns.add(1);
                // This applies before a last chance as well: a client that is let go may then cause
                // one SYN more than it sent.
                self.repeat(&leaving, opener.departure.mark);
                if repeats != PATIENT_REPEATS || is_strict(&plan, &decision) {
                    return Some(Verdict::Drop);
                }
                spawn_local(self.clone().let_go(ends, opener.departure.ends.server, waiting));
                return None;
            }
            Met::Older(older) => {
                // The client gave the older connection up, so no answer to its SYN is awaited.
                self.repeat(&older.leaving, opener.departure.mark);
                self.answer_queue(older.packet, 0, Verdict::Drop);
                return None;
            }
            Met::Elsewhere => {
                self.worker.ledger.repeated_syns.add(1);
                return Some(Verdict::Drop);
            }
            Met::Ready if resting && !is_strict(&plan, &decision) => {
                // The far side that was opened is reset, and this SYN goes to the same server.
                hold.entries.forget(&ends);
                self.tracker_forgets(opener.departure.ends);
                return Some(Verdict::PassBy);
            }
            Met::Ready => {
                // The injected SYN did not reach the listener, or its SYN-ACK did not reach the
                // client. The client's leg is not entered again in connection tracking: another
                // worker may accept the client at this very moment, and its entry is then beyond
                // that state.
                return Some(self.deliver(ends, &waiting.syn));
            }
            Met::Living if hold.awaited.has(&ends) => {
                // The previous process may have died before it let the client in.
                return Some(self.let_in(&opener.connection, &waiting.syn));
            }
            Met::Living => {
                self.worker.ledger.repeated_syns.add(1);
                return Some(self.answer_by_flow(ends, &waiting.syn));
            }
        }
        let (action, route) = self.course(&plan, &decision, &opener);
        match action {
            Action::Split => {
                let (connection, syn) = (opener.connection, waiting.syn.clone());
                let verdict = if resting {
                    self.worker.ledger.bypassed_by_watchdog.add(1);
                    Some(Verdict::PassBy)
                } else {
                    self.split(&plan, (decision, route), opener, waiting)
                };
                if verdict == Some(Verdict::PassBy) && is_strict(&plan, &decision) {
                    return Some(self.refuse(&connection, &syn, Refusal::Reset));
                }
                verdict
            }
            Action::Reject => {
                self.worker.ledger.rejected.add(1);
                Some(self.refuse(&opener.connection, &waiting.syn, Refusal::Reset))
            }
            Action::Bypass => {
                self.worker.ledger.bypassed_by_rule.add(1);
                Some(Verdict::PassBy)
            }
            Action::Assist => {
                self.worker.ledger.assisted.add(1);
                let lossy = |name: &str| plan.assist.interfaces.iter().any(|own| own == name);
                let comes_by_link = opener.interface.as_deref().is_some_and(lossy);
                let (sent, leaving) = (opener.connection.ends, opener.departure.ends);
                hold.translated.note(sent, leaving, comes_by_link, Instant::now());
                Some(Verdict::Assist)
            }
        }
    }

    /// Decides the action for a flow, and its tunnel. A tunnel that would carry the flow back to
    /// where it comes from does not count. This host then splits the flow alone, if it also leaves
    /// by an interface that is intercepted.
    fn course(&self, plan: &Plan, decision: &Decision, opener: &Opener) -> (Action, Option<Route>) {
        let Some(route) = plan.route(decision) else { return (decision.action, None) };
        let (arrival, departure) =
            (opener.interface.as_deref(), opener.departure.egress.as_deref());
        let (Some(arrival), Some(departure)) = (arrival, departure) else {
            return (decision.action, Some(route.clone()));
        };
        let client = opener.connection.ends.client.ip();
        let server = opener.departure.ends.server.ip();
        let crossing = Crossing { client, server, arrival, departure };
        let Some(turnback) = self.worker.turns_back(plan, &route.peer, &crossing) else {
            return (decision.action, Some(route.clone()));
        };
        let otherwise = plan.instead_of_turning_back(route, departure);
        let (ends, peer) = (opener.connection.ends, &route.peer);
        tracing::debug!(
            ?ends,
            peer,
            ?turnback,
            ?otherwise,
            "a tunnel is not used: it would carry the flow back"
        );
        (otherwise, None)
    }

    /// What is known of a SYN; `None` where it was translated and the original is not known.
    fn opener(&self, packet: &Packet, segment: &Segment) -> Option<Opener> {
        let marks = self.worker.hold.marks;
        let ends = Ends { client: segment.source, server: segment.destination };
        let noted = packet.mark & marks.noted != 0;
        let connection = match self.origins.of(packet, ends, noted) {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(?ends, %error, "a flow passes by: its addresses before translation are unknown");
                return None;
            }
        };
        let name = |index| self.names.of(index).map(|name| name.to_string());
        let (interface, egress) = (name(packet.interface), name(packet.egress));
        let intercepted = &self.worker.plan().intercept.interfaces;
        let index = intercepted.iter().position(|own| Some(own) == interface.as_ref());
        let departure = Departure { ends, mark: marks.departing(packet.mark, index), egress };
        Some(Opener { connection, departure, interface, class: segment.class })
    }

    fn tracker_forgets(&self, leaving: Ends) {
        if self.worker.hold.tracked.load(Relaxed) {
            self.tracker.forget_server(leaving);
        }
    }

    /// Gives a far side a last chance: our own SYN is retransmitted together with its client's.
    /// Then the attempt ends and the client's SYN passes by, since it may reach a server that ours
    /// does not.
    async fn let_go(self: Rc<Self>, ends: Ends, target: SocketAddr, again: Waiting) {
        sleep(LAST_CHANCE).await;
        let hold = &self.worker.hold;
        let Some((waiting, attempt)) = hold.entries.let_go(&ends) else {
            return self.answer_queue(again.packet, again.mark, Verdict::Drop);
        };
        tracing::debug!(?ends, "a flow passes by: its server does not respond");
        let now = Instant::now();
        hold.entries.learn(target, false, now);
        hold.watchdog.silent(target, now);
        self.worker.ledger.bypassed_by_watchdog.add(1);
        self.answer_queue(waiting.packet, 0, Verdict::Drop);
        // Answers to the client's own SYN must not meet our socket.
        while attempt.as_ref().is_some_and(|attempt| !attempt.is_finished()) {
            yield_now().await;
        }
        self.tracker_forgets(waiting.leaving);
        hold.entries.pass(again.leaving, again.sequence, Instant::now());
        self.answer_queue(again.packet, again.mark, Verdict::PassBy);
    }

    /// Has the watchdog check the firewall's counters while flows wait for their handshakes.
    fn look(&self) {
        let hold = &self.worker.hold;
        let now = Instant::now();
        hold.watchdog.cookies(cookies::are_for_everybody());
        hold.entries.sweep(now);
        hold.awaited.sweep(now);
        if hold.entries.counts() == (0, 0) || !hold.watchdog.is_due(now, LOOK / 2) {
            return;
        }
        match intercept::handshakes(&self.table) {
            Ok(counted) => hold.watchdog.counted(counted, now),
            Err(error) => tracing::debug!(%error, "the firewall's counters cannot be read"),
        }
    }

    /// Waits for the far side's answer and forwards it to the client.
    async fn ask(
        self: Rc<Self>,
        connection: TrackedConnection,
        asked: Asked,
        known: Known,
        ticket: Ticket,
    ) {
        let worker = &self.worker;
        let held = Held::new(&worker.ledger);
        let attempt = Attempt::new(self.clone(), known.departure.ends);
        let answer = self.answer(&connection, asked, &known).await;
        drop(attempt);
        drop(held);
        let ends = connection.ends;
        let target = known.departure.ends.server;
        let mark = known.departure.mark;
        let (waiting, verdict) = match answer {
            Ok(side) => {
                worker.hold.entries.learn(target, true, Instant::now());
                let class = worker.hold.entries.take_class(&known.departure.ends);
                let noted = match &side {
                    FarSide::Leg(server) => {
                        let record = || known.opening(&worker.plan(), ends, server, class);
                        worker.hold.awaited.enter(record)
                    }
                    FarSide::Bound(_) | FarSide::Tunnel(_) => None,
                };
                let far = Some(Far { side, ticket, class });
                let known = Known { far, noted, since: Instant::now(), ..known };
                let Some(waiting) = worker.hold.entries.accepted(ends, known) else { return };
                let verdict = self.let_in(&connection, &waiting.syn);
                (waiting, verdict)
            }
            Err(failure) => {
                let Some(waiting) = worker.hold.entries.answered(&ends) else { return };
                worker.hold.entries.learn(target, false, Instant::now());
                self.tracker_forgets(known.departure.ends);
                let verdict = match failure.refusal {
                    Some(refusal) => {
                        tracing::debug!(?ends, error = %failure.error, "the far side refused a flow");
                        worker.ledger.book_failure(&failure);
                        self.refuse(&connection, &waiting.syn, refusal)
                    }
                    None => self.local_failure(ends, &failure.error),
                };
                (waiting, verdict)
            }
        };
        self.answer_queue(waiting.packet, mark, verdict);
    }

    /// Waits until the far side has answered.
    async fn answer(
        &self,
        connection: &TrackedConnection,
        asked: Asked,
        known: &Known,
    ) -> Result<FarSide, Failure> {
        let worker = &self.worker;
        let opening = match asked {
            Asked::Leg(opening) => opening,
            Asked::Tunnel(route) => {
                let plan = worker.plan();
                let target = Target::Address(known.departure.ends.server);
                let class = plan.class(&known.decision, Some(known.class >> 2), None).announced();
                let request =
                    Request { target, client: Some(connection.ends.client), class, hops: 0 };
                let why = match worker.tunnels.open(&route.peer, request).await {
                    Ok(stream) => return Ok(FarSide::Tunnel(Box::new(stream))),
                    Err(NoFlow::Refused(failure)) => return Err(failure),
                    Err(NoFlow::Unavailable(why)) => io::Error::other(why),
                };
                let ends = connection.ends;
                tracing::debug!(?ends, error = %why, otherwise = ?route.otherwise, "the tunnel of a flow is unavailable");
                match route.otherwise {
                    Action::Split => {
                        let bound = self.bind(&plan, known)?;
                        if worker.hold.tracked.load(Relaxed) {
                            let TrackedConnection { ends: client, mark } = *connection;
                            let server = TrackedConnection { ends: known.departure.ends, mark };
                            let entered = self.tracker.enter_both(&[Legs { client, server }])?;
                            entered.into_iter().collect::<io::Result<()>>()?;
                        }
                        bound.connect_once()?
                    }
                    // The client's SYN then passes by. No rule can have `otherwise = "assist"`.
                    Action::Bypass | Action::Assist => return Err(why.into()),
                    Action::Reject => {
                        return Err(Failure { error: why, refusal: Some(Refusal::Reset) });
                    }
                }
            }
        };
        Ok(FarSide::Leg(opening.finish().await?.into_std()?))
    }

    /// Delivers a SYN to its listener.
    fn let_in(&self, connection: &TrackedConnection, syn: &[u8]) -> Verdict {
        self.enter_client(connection);
        self.deliver(connection.ends, syn)
    }

    /// Has the kernel answer a SYN: by a connection of these ends, or else by the listener.
    fn deliver(&self, ends: Ends, syn: &[u8]) -> Verdict {
        let server = ends.server.ip();
        if let Err(error) = self.injector().and_then(|injector| injector.open_client(syn, server)) {
            tracing::warn!(?ends, %error, "a held SYN could not be delivered to the daemon's socket");
        }
        Verdict::Drop
    }

    /// Has the flow's connection to the client answer a SYN. Its entry in connection tracking stays
    /// as it is. If the connection is gone because the flow ends, the SYN is dropped, since no flow
    /// would expect the client at the listener. The client's next SYN opens another flow.
    fn answer_by_flow(&self, ends: Ends, syn: &[u8]) -> Verdict {
        match sock_diag::is_connected(ends.server, ends.client) {
            Ok(true) => self.deliver(ends, syn),
            Ok(false) => Verdict::Drop,
            Err(error) => {
                tracing::debug!(?ends, %error, "a SYN is dropped: the kernel does not report whether its connection exists");
                Verdict::Drop
            }
        }
    }

    /// Sends a client the refusal that the far side sent.
    fn refuse(&self, connection: &TrackedConnection, syn: &[u8], refusal: Refusal) -> Verdict {
        let Ends { client, server } = connection.ends;
        let sent = match refusal {
            Refusal::Silence => return Verdict::Drop,
            Refusal::Reset => {
                self.enter_client(connection);
                let syn = syn::tagged(syn, REFUSED);
                self.injector().and_then(|injector| injector.reset(&syn, server.ip()))
            }
            Refusal::Unreachable(code) => {
                self.enter_client(connection);
                let error = syn::unreachable(syn, server, code);
                self.injector().and_then(|injector| injector.error(&error, client.ip()))
            }
        };
        if let Err(error) = sent {
            tracing::debug!(ends = ?connection.ends, %error, "a refusal could not be sent to a client");
        }
        Verdict::Drop
    }

    /// Enters the client's leg in connection tracking. It has no mark: the administrator's rules use the connection's
    /// mark for the route by which the flow leaves.
    fn enter_client(&self, connection: &TrackedConnection) {
        let hold = &self.worker.hold;
        let ends = connection.ends;
        if hold.tracked.load(Relaxed)
            && let Err(error) = self.tracker.enter_client(&TrackedConnection { ends, mark: 0 })
        {
            tracing::debug!(?ends, %error, "a client's connection could not be entered in connection tracking");
        }
    }

    fn injector(&self) -> io::Result<&Injector> {
        self.worker.hold.injector.as_deref().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Lets the flow pass by when this host lacks a port, a descriptor or memory, or when another socket on this host
    /// has the flow's address and port.
    fn local_failure(&self, ends: Ends, error: &io::Error) -> Verdict {
        let taken = [io::ErrorKind::AddrNotAvailable, io::ErrorKind::AddrInUse];
        if taken.contains(&error.kind()) {
            tracing::debug!(?ends, %error, "a flow passes by: its far side cannot be opened");
        } else {
            tracing::warn!(?ends, %error, "a flow passes by: its far side cannot be opened");
        }
        self.worker.ledger.book_limit(Limit::Host);
        Verdict::PassBy
    }

    fn answer_queue(&self, packet: u32, mark: u32, verdict: Verdict) {
        let queue = self.queue.get_ref();
        let outcome = match verdict {
            Verdict::Undecided => queue.pass(packet, Some(mark & !self.worker.hold.marks.all())),
            Verdict::PassBy => {
                let marks = self.worker.hold.marks;
                queue.pass(packet, Some(mark & !marks.all() | marks.released()))
            }
            Verdict::Assist => {
                let marks = self.worker.hold.marks;
                queue.pass(packet, Some(mark & !marks.all() | marks.assisted()))
            }
            Verdict::Drop => queue.drop(packet),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a verdict could not be sent to the netfilter queue");
        }
        if queue.is_due() {
            self.decided.notify_one();
        }
    }

    /// Sends all verdicts of one turn together.
    fn give_verdicts(&self) {
        if let Err(error) = self.queue.get_ref().give() {
            tracing::warn!(%error, "verdicts could not be sent to the netfilter queue");
        }
    }
}

/// A held SYN, as the ledger counts it.
struct Held<'a>(&'a Ledger);

impl<'a> Held<'a> {
    fn new(ledger: &'a Ledger) -> Self {
        ledger.held.add(1);
        Self(ledger)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.sub(1);
    }
}

/// How a far side is opened.
#[derive(Debug)]
enum Asked {
    Leg(Opening),
    Tunnel(Route),
}

/// Whether the flow must follow its rule or be refused.
fn is_strict(plan: &Plan, decision: &Decision) -> bool {
    plan.route(decision).is_some_and(|route| route.otherwise == Action::Reject)
}
