//! The life cycle of one flow, in one value: taken, decided on, opened, relayed, closed, booked.

pub mod packed;

use self::packed::Packed;
use crate::admission::Ticket;
use crate::eager;
use crate::ends::{Ends, RelayOutcome, Side};
use crate::flow_sampler::BothLegs;
use crate::ledger::{FlowBook, FlowOrigin, Party};
use crate::leg::{Bound, BoundedWindow, Failure};
use crate::relay::start::Start;
use crate::relay::{Halted, Relayed, Stages};
use crate::relocation::halt::Halt;
use crate::relocation::leave::{self, Whereabouts};
use crate::survival::adopt;
use crate::survival::register::{FlowEntry, cookie_of};
use crate::syn_hold::known::{Far, FarSide, Known};
use crate::syn_hold::living::Life;
use crate::tunnel::carry::{self, Permits};
use crate::worker::Worker;
use crate::{close, leg, relay};
use midhop_pep::config::{Action, LegPlan, Plan};
use midhop_pep::policy::Route;
use midhop_tunnel::connect::Request;
use midhop_tunnel::target::Target;
use socket2::SockRef;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

/// A flow whose client has been accepted.
#[derive(Debug)]
pub struct Flow {
    worker: Rc<Worker>,
    plan: Arc<Plan>,
    client: TcpStream,
    ends: Ends,
    known: Known,
    door: Arc<LegPlan>,
}

impl Flow {
    /// A flow that interception delivered to a listener with the settings of `door`.
    ///
    /// # Errors
    /// Returns the client if no flow expects it.
    pub fn taken(
        worker: &Rc<Worker>,
        client: TcpStream,
        ends: Ends,
        door: &Arc<LegPlan>,
    ) -> Result<Self, TcpStream> {
        let Some(known) = worker.hold.entries.take(&ends, Instant::now()) else {
            return Err(client);
        };
        if let Some(noted) = &known.noted
            && let Ok(cookie) = cookie_of(&client)
        {
            noted.note_client(client.as_raw_fd(), cookie);
        }
        worker.hold.watchdog.flow_came_about(Instant::now());
        worker.ledger.flows.add(1);
        let plan = worker.plan();
        Ok(Self { worker: worker.clone(), plan, client, ends, known, door: door.clone() })
    }

    /// Runs the flow, in a task of its own.
    pub fn spawn(self) {
        match self.route() {
            Some(route) => spawn_local(self.run_through(route)),
            None => spawn_local(self.run_split()),
        };
    }

    /// The tunnel of the flow. None: the flow has no tunnel, or its far side is already open
    /// without one.
    fn route(&self) -> Option<Route> {
        match self.known.far {
            Some(Far { side: FarSide::Leg(_) | FarSide::Bound(_), .. }) => None,
            _ => self.plan.route(&self.known.decision).cloned(),
        }
    }

    /// Opens the flow's far side in a tunnel, on the thread that owns the tunnel, which then carries it.
    async fn run_through(mut self, route: Route) {
        let worker = self.worker.clone();
        let link = worker.links.borrow().get(&route.peer).cloned();
        let Some(link) = link else {
            return match self.pack() {
                Ok(packed) => match worker.tunnels.live(&route.peer, Box::new(packed)) {
                    Ok(()) => {}
                    // A reload has removed the peer.
                    Err(packed) => match Self::unpack(&worker, *packed) {
                        Ok(flow) => Box::pin(flow.run_split()).await,
                        Err(error) => {
                            tracing::warn!(%error, "a flow is reset: it could not be moved to another worker");
                        }
                    },
                },
                Err(error) => {
                    tracing::warn!(%error, "a flow is reset: it could not be moved to another worker");
                }
            };
        };
        let (stream, ticket) = match self.known.far.take() {
            Some(Far { side: FarSide::Tunnel(stream), ticket, .. }) => (*stream, ticket),
            _ => {
                let ticket = worker.admission.enter_from(self.ends.client.ip());
                // The client has been accepted: its first bytes need not wait for the response.
                match carry::begin(&self.plan, &link, &self.request()).await {
                    Ok(stream) => (stream, ticket),
                    Err(why) if route.otherwise == Action::Reject => {
                        tracing::debug!(ends = ?self.ends, ?why, "a flow is reset: its tunnel is unavailable");
                        worker.ledger.rejected.add(1);
                        return;
                    }
                    Err(why) => {
                        tracing::debug!(ends = ?self.ends, ?why, "the tunnel of a flow is unavailable: the flow continues without it");
                        drop(ticket);
                        return Box::pin(self.run_split()).await;
                    }
                }
            }
        };
        if let Err(error) = self.treat_client(0) {
            tracing::warn!(ends = ?self.ends, %error, "the leg's socket options could not be set on a client's connection");
        }
        let book = FlowBook::new(self.ends, self.client_leg().into(), Party::tunnel(&route.peer))
            .with_origin(self.origin());
        let life = self.known.life.take();
        let permits = Permits { ticket, life, of_peer: None, leaving: None };
        carry::spawn(&worker, (self.client, Side::Client), stream, book, permits);
    }

    /// The request to the peer at the other end of the tunnel.
    fn request(&self) -> Request {
        let class =
            self.plan.class(&self.known.decision, Some(self.known.class >> 2), None).announced();
        Request {
            target: Target::Address(self.known.departure.ends.server),
            client: Some(self.ends.client),
            class,
            hops: 0,
        }
    }

    fn origin(&self) -> FlowOrigin {
        FlowOrigin {
            rule: self.known.decision.rule,
            interface: self.known.interface.as_deref().map(Into::into),
            dscp: self.known.class >> 2,
        }
    }

    /// Takes the flow off its thread, before its first byte has been moved.
    fn pack(self) -> io::Result<Packed> {
        let Self { plan, client, ends, known, door, .. } = self;
        Ok(Packed { plan, client: client.into_std()?, ends, known, door })
    }

    /// Continues a flow on the thread of `worker`.
    ///
    /// # Errors
    /// When the thread's event loop does not take the client's socket.
    pub fn unpack(worker: &Rc<Worker>, packed: Packed) -> io::Result<Self> {
        let Packed { plan, client, ends, known, door } = packed;
        let client = TcpStream::from_std(client)?;
        Ok(Self { worker: worker.clone(), plan, client, ends, known, door })
    }

    /// Opens the flow's far side on a leg of this daemon, and starts relaying.
    async fn run_split(mut self) {
        let (server, class, ticket) = match self.known.far.take() {
            Some(Far { side: FarSide::Leg(stream), class, ticket }) => {
                match TcpStream::from_std(stream) {
                    Ok(server) => (server, class, ticket),
                    Err(error) => {
                        tracing::warn!(ends = ?self.ends, %error, "a flow is reset: its connection to the server could not be used");
                        return;
                    }
                }
            }
            early => {
                let (bound, ticket) = match early {
                    Some(Far { side: FarSide::Bound(bound), ticket, .. }) => (Some(bound), ticket),
                    _ => (None, self.worker.admission.enter_from(self.ends.client.ip())),
                };
                let leaving = self.known.departure.ends;
                match self.open(bound).await {
                    Ok(server) => {
                        let entries = &self.worker.hold.entries;
                        entries.learn(leaving.server, true, Instant::now());
                        (server, entries.take_class(&leaving), ticket)
                    }
                    Err(failure) => {
                        self.worker.hold.entries.learn(leaving.server, false, Instant::now());
                        tracing::debug!(ends = ?self.ends, error = %failure.error, "a connection to a server could not be opened");
                        self.worker.ledger.book_failure(&failure);
                        // Dropping the client's socket resets it.
                        return;
                    }
                }
            }
        };
        if let Err(error) = self.treat_client(class) {
            tracing::warn!(ends = ?self.ends, %error, "the leg's socket options could not be set on a client's connection");
        }
        let (client_leg, server_leg) = (self.client_leg(), self.server_leg());
        let book = FlowBook::new(self.ends, client_leg.into(), server_leg.into())
            .with_origin(self.origin());
        let stages = Stages::of(client_leg, server_leg, &self.worker.relay_context);
        let windows = [client_leg, server_leg].map(|leg| BoundedWindow::new(Some(leg)));
        let Self { worker, client, known, .. } = self;
        let legs = BothLegs { client, server, windows, halt: Halt::default() };
        let start = entered(&worker, &legs, &book, [0, 0]);
        // From here on it is a live flow, and no longer a flow that is being opened.
        drop(known.noted);
        carry(&worker, legs, book, stages, start, (ticket, known.life));
    }

    /// Opens the far side of a client that was accepted early.
    async fn open(&self, bound: Option<Bound>) -> Result<TcpStream, Failure> {
        let bound = match bound {
            Some(bound) => bound,
            None => leg::bind(&self.known.departure, self.server_leg(), self.known.class)?,
        };
        let opening = bound.connect()?;
        tokio::select! {
            answer = opening.finish() => answer,
            // If the client goes away, the attempt ends.
            error = relay::broken(&self.client) => Err(error.into()),
        }
    }

    fn client_leg(&self) -> &LegPlan {
        let interface = self.known.interface.as_deref();
        self.plan.leg(&self.known.decision, self.ends.client.ip(), interface)
    }

    fn server_leg(&self) -> &LegPlan {
        let departure = &self.known.departure;
        self.plan.leg(&self.known.decision, departure.ends.server.ip(), departure.egress.as_deref())
    }

    /// Gives the client's socket the class in which the server responded. Also gives it the settings of its leg,
    /// where they differ from its listener's because of a rule, or because the plan has changed.
    fn treat_client(&self, class: u8) -> io::Result<()> {
        leg::set_class(&self.client, self.ends.client, class)?;
        let wanted = self.client_leg();
        if *wanted == *self.door {
            return Ok(());
        }
        leg::settings(&SockRef::from(&self.client), wanted)
    }
}

/// Enters a new flow in the register, so that it outlives this process.
pub fn entered(worker: &Rc<Worker>, legs: &BothLegs, book: &FlowBook, ahead: [u64; 2]) -> Start {
    let entered = worker.region.as_ref().map(|region| adopt::enter(region, legs, book, ahead));
    match entered.transpose() {
        Ok(entry) => Start { entry: entry.flatten().map(Rc::new), ..Start::default() },
        Err(error) => {
            tracing::debug!(ends = ?book.ends, %error, "a flow could not be registered, and is lost if this process dies");
            Start::default()
        }
    }
}

/// Relays the bytes of a flow whose two sides are open, until it ends. It runs in a task of its
/// own, so that the resources of opening are freed now. The parts in `held` are held until the end.
pub fn carry(
    worker: &Rc<Worker>,
    legs: BothLegs,
    book: FlowBook,
    stages: Stages,
    start: Start,
    held: (Ticket, Option<Life>),
) {
    let book = worker.ledger.open(book);
    eager::spawn(carry_to_end(worker.clone(), legs, book, stages, start, held));
}

async fn carry_to_end(
    worker: Rc<Worker>,
    legs: BothLegs,
    book: Arc<FlowBook>,
    stages: Stages,
    start: Start,
    held: (Ticket, Option<Life>),
) {
    let mut entry = start.entry.clone();
    let sampled = worker.sampler.add(&book, legs);
    let legs = sampled.sides();
    let linger = worker.plan().limits.linger.into();
    let carried = match relay::relay(legs, stages, start, &book, &worker.relay_context, linger)
        .await
    {
        Relayed::Ended(carried) => carried,
        // Few flows ever move: moving takes memory only then.
        Relayed::Halted(halted) => {
            match Box::pin(stand_still((&worker, linger), legs, &book, halted, &mut entry)).await {
                Some(carried) => carried,
                None => {
                    worker.ledger.leave(&book);
                    return drop((sampled, held));
                }
            }
        }
    };
    let last = [(Side::Client, &legs.client), (Side::Server, &legs.server)]
        .map(|(side, stream)| worker.ledger.sample(&book, side, stream));
    if let Err(broken) = &carried.outcome {
        tracing::debug!(ends = ?book.ends, by = ?broken.side, error = %broken.error, "a flow was aborted");
        // Both sockets are reset at once. After an orderly end the entry stays, because the next
        // process would have to wait for the far ends as this one does.
        entry = None;
    }
    // None only while the sampler still holds them, which lasts no longer than one sample.
    if let Some(BothLegs { client, server, .. }) = sampled.release() {
        let departed =
            close::close(client, server, last, &carried, linger, &worker.coarse_timer).await;
        // A process that finds the entry continues the flow, so it goes before the sockets.
        drop(entry);
        drop(departed);
    }
    worker.ledger.close(&book, &carried);
    drop(held);
}

/// Offers a flow that stands still to another machine, and relays it on if it stays. None: it has moved.
async fn stand_still(
    (worker, linger): (&Worker, Duration),
    legs: &BothLegs,
    book: &FlowBook,
    mut halted: Box<Halted>,
    entry: &mut Option<Rc<FlowEntry>>,
) -> Option<RelayOutcome> {
    loop {
        let Halted { stages, left } = match leave::leave(worker, legs, book, halted, entry).await {
            Whereabouts::Stays(halted) => *halted,
            Whereabouts::Gone => return None,
            Whereabouts::Reset => return Some(leave::reset()),
        };
        let start = Start { entry: entry.clone(), broke: None, left: Some(left.into()) };
        match relay::relay(legs, stages, start, book, &worker.relay_context, linger).await {
            Relayed::Ended(carried) => return Some(carried),
            Relayed::Halted(again) => halted = again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<A, B, C, D, E, F, G>(_: fn(A, B, C, D, E, F) -> G) -> usize {
        size_of::<G>()
    }

    #[test]
    fn an_idle_flow_is_small() {
        // The task of a flow; its two sockets' registrations and its book add less than 1 KiB. Some 64 bytes are for where it
        // is asked to stand still.
        assert!(bytes_of(carry_to_end) <= 2112, "{} bytes", bytes_of(carry_to_end));
    }
}
