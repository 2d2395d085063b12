//! Keeps clients' SYNs waiting until the far side has answered, so that refused stays refused.
//!
//! The kernel holds the SYN in a queue. Meanwhile the flow's far side is dialled; what it says is
//! told to the kernel as the SYN's verdict, and the finished connection waits here until the client,
//! let in by that verdict, is accepted. A repeated SYN never dials twice.
//!
//! Invariant: every packet taken from the queue gets exactly one verdict. Whatever goes wrong on
//! this host lets the SYN pass by: the flow is then not split, but it lives.

use crate::admission::Ticket;
use crate::flow::Ends;
use crate::intercept::{Marks, Packet, Queue, Segment};
use crate::leg::{self, Failure, Opening, Refusal};
use crate::tunnel::{stream::Stream, told::NoFlow};
use crate::worker::Worker;
use midhop_pep::config::{Accept, Action, Plan};
use midhop_pep::policy::{Decision, FlowKey, Route};
use midhop_tunnel::{connect::Request, target::Target};
use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_local;
use tokio::time::interval;

/// How long a client that was let in may take to complete its handshake: longer than any kernel
/// repeats its SYN-ACK.
const PATIENCE: Duration = Duration::from_secs(75);
/// How often those are looked for that did not.
const SWEEP: Duration = Duration::from_secs(5);

/// What is known of a flow whose SYN was seen, for whoever accepts its client.
#[derive(Debug)]
pub struct Known {
    /// What the policy said.
    pub decision: Decision,
    /// The interface on which the SYN came.
    pub interface: Option<String>,
    /// The SYN's class of service.
    pub class: u8,
    /// The far side, if it was asked first, and the flow's place.
    pub far: Option<Far>,
    since: Instant,
}

/// A far side that has accepted.
#[derive(Debug)]
pub struct Far {
    /// How it is reached.
    pub side: FarSide,
    /// The flow's place among the flows.
    pub ticket: Ticket,
    /// The class of service in which it answered.
    pub class: u8,
}

/// How a far side is reached.
#[derive(Debug)]
pub enum FarSide {
    /// By a connection, to be registered by the worker that accepts the client.
    Leg(TcpStream),
    /// By a stream of a tunnel, which lives on the worker that owns the tunnel.
    Tunnel(Box<Stream>),
}

#[derive(Debug)]
enum Entry {
    /// The far side has not answered; the packet waits in the queue.
    Asking { sequence: u32, packet: u32, class: u8 },
    /// The client may come.
    Known(Known),
}

/// The flows between their SYN and their acceptance, of all workers: the kernel may deliver a client
/// to another worker than the one that saw its SYN.
#[derive(Debug, Default)]
pub struct Held {
    entries: Mutex<HashMap<Ends, Entry>>,
    classes: Mutex<HashMap<Ends, u8>>,
}

impl Known {
    /// What is known of a flow whose SYN passed no queue.
    pub fn unseen(plan: &Plan, ends: Ends, class: u8) -> Self {
        let decision = plan.policy.decide(&FlowKey {
            source: ends.client,
            destination: ends.server,
            interface: None,
            dscp: class >> 2,
        });
        Self { decision, interface: None, class, far: None, since: Instant::now() }
    }
}

/// Servers' classes that wait to be passed on; more than this many are forgotten.
const CLASSES: usize = 4096;

impl Held {
    /// Hands over what is known of a flow whose client has been accepted.
    pub fn take(&self, ends: &Ends) -> Option<Known> {
        let mut entries = self.entries();
        match entries.remove(ends)? {
            Entry::Known(known) => Some(known),
            asking @ Entry::Asking { .. } => {
                // The client cannot have been let in by this entry: it stays.
                entries.insert(*ends, asking);
                None
            }
        }
    }

    /// The class of service in which a server answered whose client had been accepted before; 0
    /// where it has none of its own.
    pub fn take_class(&self, ends: &Ends) -> u8 {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner).remove(ends).unwrap_or(0)
    }

    fn note_class(&self, ends: Ends, answered: u8) {
        if let Some(Entry::Asking { class, .. }) = self.entries().get_mut(&ends) {
            *class = answered;
            return;
        }
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        if classes.len() >= CLASSES {
            classes.clear();
        }
        classes.insert(ends, answered);
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Ends, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one queue until the worker stops.
///
/// # Errors
/// When the runtime cannot watch the queue.
pub async fn hold(worker: Rc<Worker>, queue: Queue) -> io::Result<()> {
    let queue = Rc::new(queue.watch()?);
    let mut sweep = interval(SWEEP);
    loop {
        tokio::select! {
            ready = queue.readable() => match ready?.try_io(|queue| queue.get_ref().receive()) {
                Ok(Ok(packets)) => {
                    for packet in packets {
                        consider(&worker, &queue, &packet);
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "packets of the queue were not seen"),
                Err(_would_block) => {}
            },
            _ = sweep.tick() => {
                let mut entries = worker.held.entries();
                entries.retain(|_, entry| match entry {
                    Entry::Asking { .. } => true,
                    Entry::Known(known) => known.since.elapsed() < PATIENCE,
                });
            }
        }
    }
}

/// What becomes of a packet in the queue.
enum Verdict {
    PassBy,
    LetIn,
    Drop,
    Refuse(Refusal),
}

fn consider(worker: &Rc<Worker>, queue: &Rc<AsyncFd<Queue>>, packet: &Packet) {
    let verdict = match Segment::parse(&packet.headers) {
        Some(answer) if answer.acknowledges => {
            let ends = Ends { client: answer.destination, server: answer.source };
            worker.held.note_class(ends, answer.class);
            Some(Verdict::PassBy)
        }
        Some(syn) => opening_segment(worker, queue, packet, &syn),
        None => Some(Verdict::PassBy),
    };
    if let Some(verdict) = verdict {
        say(worker, queue.get_ref(), packet.id, verdict);
    }
}

/// Decides on a SYN; `None` if it has to wait.
fn opening_segment(
    worker: &Rc<Worker>,
    queue: &Rc<AsyncFd<Queue>>,
    packet: &Packet,
    syn: &Segment,
) -> Option<Verdict> {
    let ends = Ends { client: syn.source, server: syn.destination };
    match worker.held.entries().get_mut(&ends) {
        Some(Entry::Asking { sequence, .. }) if *sequence == syn.sequence => {
            worker.ledger.repeated_syns.add(1);
            return Some(Verdict::Drop);
        }
        Some(Entry::Asking { sequence, packet: waiting, .. }) => {
            // The client gave up and began anew: the old SYN has nobody to answer to.
            say(worker, queue.get_ref(), *waiting, Verdict::Drop);
            (*sequence, *waiting) = (syn.sequence, packet.id);
            return None;
        }
        Some(Entry::Known(_)) => return Some(Verdict::LetIn),
        None => {}
    }
    let plan = worker.plan();
    let interface = leg::name_of(packet.interface).map(|name| name.to_string());
    let decision = plan.policy.decide(&FlowKey {
        source: ends.client,
        destination: ends.server,
        interface: interface.as_deref(),
        dscp: syn.class >> 2,
    });
    let since = Instant::now();
    let known = Known { decision, interface, class: syn.class, far: None, since };
    let room = (worker.held.entries().len() as u64) < u64::from(plan.limits.pending);
    match (decision.action, decision.accept) {
        (Action::Split, Accept::Early) => {
            if !room || worker.admission.is_full() {
                worker.ledger.bypassed_by_limit.add(1);
                return Some(Verdict::PassBy);
            }
            worker.held.entries().insert(ends, Entry::Known(known));
            Some(Verdict::LetIn)
        }
        (Action::Split, Accept::AfterConnect) => {
            let Some(ticket) = room.then(|| worker.admission.try_enter()).flatten() else {
                worker.ledger.bypassed_by_limit.add(1);
                return Some(Verdict::PassBy);
            };
            let way = match plan.route(&decision) {
                Some(route) => Way::Tunnel(route.clone()),
                None => match dial(worker, &plan, ends, &known) {
                    Ok(opening) => Way::Leg(opening),
                    Err(error) => return Some(local_failure(worker, ends, &error)),
                },
            };
            let (sequence, packet) = (syn.sequence, packet.id);
            let asking = Entry::Asking { sequence, packet, class: 0 };
            worker.held.entries().insert(ends, asking);
            worker.ledger.held.add(1);
            spawn_local(ask(worker.clone(), queue.clone(), ends, way, known, ticket));
            None
        }
        (Action::Reject, _) => {
            worker.ledger.rejected.add(1);
            Some(Verdict::Refuse(Refusal::Reset))
        }
        (Action::Bypass, _) => {
            worker.ledger.bypassed_by_rule.add(1);
            Some(Verdict::PassBy)
        }
    }
}

/// How a far side is asked.
enum Way {
    Leg(Opening),
    Tunnel(Route),
}

/// Starts to connect to a flow's server.
fn dial(worker: &Worker, plan: &Plan, ends: Ends, known: &Known) -> io::Result<Opening> {
    let egress = worker.egress(plan, ends);
    let leg = plan.leg(&known.decision, ends.server.ip(), egress.as_deref());
    leg::dial(ends, leg, known.class, true)
}

/// Waits until the far side has answered.
async fn answer(worker: &Worker, ends: Ends, way: Way, known: &Known) -> Result<FarSide, Failure> {
    let opening = match way {
        Way::Leg(opening) => opening,
        Way::Tunnel(route) => {
            let target = Target::Address(ends.server);
            let class = worker.plan().class(&known.decision, Some(known.class >> 2), None).told();
            let request = Request { target, client: Some(ends.client), class, hops: 0 };
            let why = match worker.tunnels.open(&route.peer, request).await {
                Ok(stream) => return Ok(FarSide::Tunnel(Box::new(stream))),
                Err(NoFlow::Refused(failure)) => return Err(failure),
                Err(NoFlow::Unavailable(why)) => io::Error::other(why),
            };
            tracing::debug!(?ends, error = %why, otherwise = ?route.otherwise, "no tunnel");
            match route.otherwise {
                Action::Split => dial(worker, &worker.plan(), ends, known)?,
                Action::Bypass => return Err(why.into()),
                Action::Reject => {
                    return Err(Failure { error: why, refusal: Some(Refusal::Reset) });
                }
            }
        }
    };
    Ok(FarSide::Leg(opening.finish().await?.into_std()?))
}

/// Waits for the far side's answer and gives it to the client.
async fn ask(
    worker: Rc<Worker>,
    queue: Rc<AsyncFd<Queue>>,
    ends: Ends,
    way: Way,
    known: Known,
    ticket: Ticket,
) {
    let answer = answer(&worker, ends, way, &known).await;
    worker.ledger.held.sub(1);
    let mut entries = worker.held.entries();
    let Some(Entry::Asking { packet, class, .. }) = entries.remove(&ends) else { return };
    let verdict = match answer {
        Ok(side) => {
            let far = Some(Far { side, ticket, class });
            let known = Known { far, since: Instant::now(), ..known };
            entries.insert(ends, Entry::Known(known));
            Verdict::LetIn
        }
        Err(failure) => match failure.refusal {
            Some(refusal) => {
                tracing::debug!(?ends, error = %failure.error, "the far side did not accept");
                worker.ledger.book_failure(&failure);
                Verdict::Refuse(refusal)
            }
            None => local_failure(&worker, ends, &failure.error),
        },
    };
    drop(entries);
    say(&worker, queue.get_ref(), packet, verdict);
}

/// For want of a port, a descriptor or memory here, the flow passes by.
fn local_failure(worker: &Worker, ends: Ends, error: &io::Error) -> Verdict {
    if error.kind() == io::ErrorKind::AddrNotAvailable || error.kind() == io::ErrorKind::AddrInUse {
        // This very flow is there already, and this is a repetition of its first packet.
        return Verdict::LetIn;
    }
    tracing::warn!(?ends, %error, "a flow passes by: its far side cannot be opened");
    worker.ledger.bypassed_by_limit.add(1);
    Verdict::PassBy
}

fn say(worker: &Worker, queue: &Queue, packet: u32, verdict: Verdict) {
    let marks = Marks::new(worker.plan().intercept.mark);
    let outcome = match verdict {
        Verdict::PassBy => queue.pass(packet, None),
        Verdict::LetIn => queue.pass(packet, Some(marks.approved)),
        Verdict::Drop | Verdict::Refuse(Refusal::Silence) => queue.drop(packet),
        Verdict::Refuse(Refusal::Reset) => queue.pass(packet, Some(marks.reset)),
        Verdict::Refuse(Refusal::Unreachable(code)) => {
            queue.pass(packet, Some(marks.unreachable + u32::from(code)))
        }
    };
    if let Err(error) = outcome {
        tracing::warn!(%error, "a verdict was not taken");
    }
}
