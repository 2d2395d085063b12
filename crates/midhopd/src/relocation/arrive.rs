//! The new place of a flow that moves: judges and restores it, and has it go on.

use super::acknowledge::OwedAcknowledgement;
use super::halt::Halt;
use super::leave::queues_between;
use super::privilege::{self, Stopped};
use super::waiting::WaitingFlow;
use crate::admission::Ticket;
use crate::ends::{Ends, Side};
use crate::flow::{carry, entered};
use crate::flow_sampler::BothLegs;
use crate::keeper::order::{PREPARED_BUFFER_MAX, PreparedSocket, Repair, SeededWindow, Stillness};
use crate::ledger::{FlowBook, FlowOrigin};
use crate::leg::{self, BoundedWindow};
use crate::relay::Stages;
use crate::relay::start::{Start, StartDirection, ahead};
use crate::syn_hold::living::Life;
use crate::worker::Worker;
use midhop_linux::sockopt;
use midhop_linux::tcp_info::TcpInfo;
use midhop_linux::tcp_repair::{Buffers, LocalEnd, Seed, TcpSnapshot, Unsent, restore};
use midhop_pep::config::{Action, LegPlan};
use midhop_pep::policy::FlowKey;
use midhop_tunnel::relocation::copies::put_back;
use midhop_tunnel::relocation::{AnnouncedFlow, Arrival, FLOW_BYTES_MAX, FlowOffer, Readiness};
use nix::libc;
use socket2::{SockRef, Socket};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use tokio::net::TcpStream;
use tokio::task::{spawn_local, yield_now};

/// Unit: bytes. What a buffer needs beside what is in its queue, which takes up to three times its length there: what had
/// not been sent has to fit as well.
const BUFFER_LEAST: u32 = 256 << 10;
const PER_BYTE: u32 = 3;

/// A flow that was announced, and whose state is to come. Its packets are dropped here. Dropping this leaves that to the
/// time-out of the sets: the old place may forward packets here still, and this host would send them on as a router.
#[derive(Debug)]
pub struct ExpectedFlow {
    worker: Rc<Worker>,
    legs: [LegPlan; 2],
    origin: FlowOrigin,
    ticket: Ticket,
    ends: Ends,
    /// None: what arrives is dropped.
    waiting: Option<WaitingFlow>,
    // Dropped last: these ends may be announced again then.
    life: Life,
}

/// A flow that is restored, and does not run. Dropping it closes its sockets, which sends nothing.
#[derive(Debug)]
pub struct RestoredFlow {
    sockets: [OwnedFd; 2],
    unsent: [Unsent; 2],
    /// The congestion windows that they get.
    windows: [Option<SeededWindow>; 2],
    /// The sizes of their buffers at the old place.
    buffers: [Buffers; 2],
    /// Whether the old place had passed an end on, up and down.
    passed_on: [bool; 2],
    owed: [Option<OwedAcknowledgement>; 2],
    // Dropped last: with the sockets there is nobody who answers a stray packet.
    expected: ExpectedFlow,
}

/// An error that is the kernel's, or the keeper's.
fn refused<E: fmt::Display>(ends: Ends, what: &'static str) -> impl Fn(E) -> Readiness {
    move |error| {
        tracing::warn!(?ends, what, %error, "an offered flow could not be restored");
        Readiness::Kernel
    }
}

/// Judges the flows that are announced, and keeps the packets of those that can go on here from now on. For the others: why
/// they cannot. Then there is nothing left of them.
pub async fn expect(
    worker: &Rc<Worker>,
    announced: &[AnnouncedFlow],
) -> Vec<Result<ExpectedFlow, Readiness>> {
    let mut expected = Vec::with_capacity(announced.len());
    for flow in announced {
        expected.push(ExpectedFlow::judged(worker, flow));
        yield_now().await;
    }
    let still: Vec<Ends> = expected.iter().flatten().map(|flow| flow.ends).collect();
    let waits = expected.iter().flatten().all(|flow| flow.waiting.is_some());
    let stillness = if waits { Stillness::Waiting } else { Stillness::Both };
    let dropped = privilege::still(&worker.plan().intercept.instance, &still, stillness);
    if let Err(error) = dropped {
        tracing::warn!(%error, "the packets of flows that a peer announced could not be dropped");
        for flow in &mut expected {
            if flow.is_ok() {
                *flow = Err(Readiness::Kernel);
            }
        }
    }
    expected
}

impl ExpectedFlow {
    fn judged(worker: &Rc<Worker>, flow: &AnnouncedFlow) -> Result<Self, Readiness> {
        let ends = Ends { client: flow.client, server: flow.server };
        let (legs, origin) = judge(worker, ends, flow.dscp)?;
        let entered = worker.admission.try_enter_from(ends.client.ip());
        let ticket = entered.map_err(|_| Readiness::Full)?;
        // Before anything is done to packets between these ends.
        let life = worker.hold.entries.begin_elsewhere(ends).ok_or(Readiness::Kernel)?;
        let waiting = worker.tunnels.waiting.wait(ends);
        Ok(Self { worker: worker.clone(), legs, origin, ticket, life, ends, waiting })
    }

    /// It stays at the old place, where it never stood still.
    pub fn forget(self) {
        let ends = self.ends;
        if let Err(error) = self.still(Stillness::None) {
            tracing::warn!(?ends, %error, "the rule that drops packets of a moving flow could not be removed");
        }
    }

    fn still(&self, stillness: Stillness) -> io::Result<()> {
        privilege::still(&self.worker.plan().intercept.instance, &[self.ends], stillness)
    }

    /// Restores its connections, with what was copied of each direction before. They send nothing: the old place may still go
    /// on with them.
    ///
    /// # Errors
    /// Why it cannot go on here. Then there is nothing left of it.
    pub fn restore(
        self,
        offer: &FlowOffer,
        copies: &[Vec<u8>; 2],
    ) -> Result<RestoredFlow, Readiness> {
        let ends = self.ends;
        let decode = |bytes: &[u8]| {
            TcpSnapshot::decode(bytes, FLOW_BYTES_MAX).map_err(|error| {
                tracing::warn!(%error, "a peer offered a flow whose state is malformed");
                Readiness::Malformed
            })
        };
        let [client, server] = &offer.connections;
        let mut states = [decode(client)?, decode(server)?];
        complete(&mut states, offer, copies)?;
        if ends_of(&states) != Some(ends) {
            return Err(Readiness::Malformed);
        }
        // Routing rules by arrival see it as they would see a flow that had begun here.
        let (worker, interface) = (&self.worker, self.origin.interface.as_deref());
        let plan = worker.plan();
        let index = plan.intercept.interfaces.iter().position(|name| Some(&**name) == interface);
        let marks = [worker.hold.marks.client, worker.hold.marks.departing(0, index)];
        let [client, server] = states;
        let passed_on = passed_on([client.local_end, server.local_end]);
        let buffers = [client.buffers, server.buffers];
        let owed = [
            OwedAcknowledgement::of(&client, Side::Client),
            OwedAcknowledgement::of(&server, Side::Server),
        ];
        let prepared = [prepared(&client, marks[0]), prepared(&server, marks[1])];
        let [for_client, for_server] =
            privilege::prepare(prepared).map_err(refused(ends, "sockets"))?;
        let one = |socket: OwnedFd, state, at: usize| {
            restore_one(socket.into(), state, &self.legs[at], plan.window_program.as_deref())
                .map_err(refused(ends, "connection"))
        };
        let (client, client_unsent, client_window) = one(for_client, client, 0)?;
        let (server, server_unsent, server_window) = one(for_server, server, 1)?;
        // Before anything is sent: the kernel would offer a window as large as these buffers still are.
        for (at, socket) in [&client, &server].into_iter().enumerate() {
            settle_buffer(ends, socket, (&self.legs[at], &buffers[at]), false);
        }
        let restored = RestoredFlow {
            sockets: [client, server],
            unsent: [client_unsent, server_unsent],
            windows: [client_window, server_window],
            buffers,
            passed_on,
            owed,
            expected: self,
        };
        // What waits is received once the flow goes on, so that it is acknowledged. If nothing can wait, it is received now, and
        // its end sends it again.
        if restored.expected.waiting.is_none() {
            let received = restored.expected.still(Stillness::Receiving);
            received.map_err(refused(ends, "packets"))?;
        }
        Ok(restored)
    }
}

/// Whether the old place had passed an end on, up and down. It must not be passed on again: a far end that has all of it
/// and ends as well closes its connection at any moment.
fn passed_on([to_client, to_server]: [LocalEnd; 2]) -> [bool; 2] {
    [to_server, to_client].map(|end| end != LocalEnd::Open)
}

/// Puts back what was left out of states.
fn complete(
    [client, server]: &mut [TcpSnapshot; 2],
    offer: &FlowOffer,
    copies: &[Vec<u8>; 2],
) -> Result<(), Readiness> {
    let Some([up, down]) = &offer.left_out else { return Ok(()) };
    put_back(queues_between(client, server), up, &copies[0])
        .and_then(|()| put_back(queues_between(server, client), down, &copies[1]))
        .map_err(|_| Readiness::Malformed)?;
    for state in [client, server] {
        state.check(FLOW_BYTES_MAX).map_err(|_| Readiness::Malformed)?;
    }
    Ok(())
}

/// The ends of a flow whose connections are these. None: they are not those of one flow that can be at another place.
fn ends_of([client, server]: &[TcpSnapshot; 2]) -> Option<Ends> {
    let ends = Ends { client: client.remote, server: server.remote };
    let is_mirrored = (client.local, server.local) == (ends.server, ends.client);
    // An end is passed on once nothing of its stream waits.
    let passes = |from: &TcpSnapshot, to: &TcpSnapshot| {
        to.local_end == LocalEnd::Open || (from.remote_ended && from.receive.unread.is_empty())
    };
    (is_mirrored && passes(client, server) && passes(server, client)).then_some(ends)
}

/// Whether this daemon would split such a flow, and how it would.
fn judge(worker: &Worker, ends: Ends, dscp: u8) -> Result<([LegPlan; 2], FlowOrigin), Readiness> {
    let plan = worker.plan();
    let towards = |end: std::net::SocketAddr| worker.routes().towards(end.ip());
    let arrival = towards(ends.client).ok_or(Readiness::Route)?;
    let departure = towards(ends.server).ok_or(Readiness::Route)?;
    if !plan.intercept.interfaces.iter().any(|name| **name == *arrival) {
        return Err(Readiness::Route);
    }
    for end in [ends.client, ends.server] {
        if worker.routes().is_own(end.ip()).unwrap_or(true) {
            return Err(Readiness::Route);
        }
    }
    let decision = plan.policy.decide(&FlowKey {
        source: ends.client,
        destination: ends.server,
        interface: Some(&arrival),
        peer: None,
        dscp,
    });
    let is_endpoint = plan.policy.is_endpoint(ends.server);
    if decision.action != Action::Split || plan.route(&decision).is_some() || is_endpoint {
        return Err(Readiness::Policy);
    }
    let client = plan.leg(&decision, ends.client.ip(), Some(&arrival)).clone();
    let server = plan.leg(&decision, ends.server.ip(), Some(&departure)).clone();
    let interface = Some((&*arrival).into());
    Ok(([client, server], FlowOrigin { rule: decision.rule, interface, dscp }))
}

/// The window that a connection had, which it gets here as well.
fn seed_of(state: &TcpSnapshot, program: &str) -> Option<SeededWindow> {
    let Seed { window, threshold, pacing_rate } = state.seed()?;
    let [threshold, rate] =
        [threshold, pacing_rate].map(|it| Some(it).filter(|it| *it != u64::MAX));
    Some(SeededWindow { program: program.to_owned(), bytes: window, threshold, rate })
}

/// The socket for a state.
fn prepared(state: &TcpSnapshot, mark: u32) -> PreparedSocket {
    let buffer = |bytes: u32, queued: usize| {
        let queued = u32::try_from(queued).unwrap_or(u32::MAX);
        let needed = queued.saturating_mul(PER_BYTE).saturating_add(BUFFER_LEAST);
        bytes.max(needed).min(PREPARED_BUFFER_MAX)
    };
    let (buffers, send) = (state.buffers, &state.send);
    PreparedSocket {
        local: state.local,
        mark,
        receive: (
            buffer(buffers.receive.bytes, state.receive.unread.len()),
            buffers.receive.locked,
        ),
        send: (
            buffer(buffers.send.bytes, send.sent.len() + send.unsent.len()),
            buffers.send.locked,
        ),
    }
}

/// Gives a socket a state, and the settings of its leg here. `program` gives connections their windows.
fn restore_one(
    socket: Socket,
    mut state: TcpSnapshot,
    leg: &LegPlan,
    program: Option<&str>,
) -> io::Result<(OwnedFd, Unsent, Option<SeededWindow>)> {
    leg::settle(&socket, leg)?;
    follow_leg(&mut state, &socket, leg)?;
    // It gets that of the state, or keeps its own if that is not to be had.
    let congestion = [&state.options.congestion_control, &congestion_of(&socket)?];
    let keeps = congestion.into_iter().all(|name| midhop_bpf::keeps_window(name));
    let window = program.filter(|_| keeps).and_then(|program| seed_of(&state, program));
    let pacing = state.options.pacing_rate_max;
    // Whether the old place's packets have arrived is not known, and waiting for it takes longer than sending them again.
    let rate = |window: &SeededWindow| window.rate.map_or(pacing, |rate| rate.min(pacing));
    let again = window.as_ref().map_or(0, |window| state.send_again(rate(window)));
    let unsent = restore(&socket, &state).map_err(io::Error::other)?.sent_before(again);
    Ok((socket.into(), unsent, window))
}

/// The name of a socket's congestion control.
fn congestion_of(socket: &Socket) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// What is policy is this place's.
fn follow_leg(state: &mut TcpSnapshot, socket: &Socket, leg: &LegPlan) -> io::Result<()> {
    let options = &mut state.options;
    if leg.congestion.is_some() {
        options.congestion_control = congestion_of(socket)?;
    }
    let number = |name| {
        let value = sockopt::read_int(socket, libc::IPPROTO_TCP, name)?;
        Ok::<_, io::Error>(u32::try_from(value).unwrap_or(0))
    };
    options.unsent_low_water = number(libc::TCP_NOTSENT_LOWAT)?;
    options.user_timeout_ms = number(libc::TCP_USER_TIMEOUT)?;
    options.pacing_rate_max = match leg.pacing {
        Some(rate) => rate.bits_per_s() / 8,
        None => u64::MAX,
    };
    Ok(())
}

/// Has flows pass that were restored: their packets are not dropped any more.
///
/// # Errors
/// When the kernel refuses, or there is no keeper any more.
pub fn lift(worker: &Worker, flows: &[&RestoredFlow]) -> io::Result<()> {
    still(worker, flows, Stillness::None)
}

/// Has their packets dropped again.
///
/// # Errors
/// As [`lift`].
pub fn drop_packets(worker: &Worker, flows: &[&RestoredFlow]) -> io::Result<()> {
    still(worker, flows, Stillness::Both)
}

fn still(worker: &Worker, flows: &[&RestoredFlow], stillness: Stillness) -> io::Result<()> {
    let ends: Vec<Ends> = flows.iter().map(|flow| flow.expected.ends).collect();
    privilege::still(&worker.plan().intercept.instance, &ends, stillness)
}

impl RestoredFlow {
    /// It goes on here, in a task of its own. Its packets pass already.
    pub fn go_on(self) -> Arrival {
        let Self { sockets, unsent, windows, buffers, passed_on, owed, expected } = self;
        let lost = |error: &io::Error, arrival| {
            tracing::warn!(ends = ?expected.ends, %error, "a restored flow could not be continued");
            arrival
        };
        let [client_window, server_window] = windows;
        let going = |at: usize, window| privilege::Going {
            socket: &sockets[at],
            end_is_sent: unsent[at].is_end_sent(),
            window,
        };
        match privilege::go_on([going(0, client_window), going(1, server_window)]) {
            Ok(()) => {}
            Err(Stopped { done: 0, error }) => {
                // Closing it sends nothing if it is still in repair mode. What it received may be acknowledged since its packets
                // pass, and the old place does not have it.
                let is_untouched = |socket| {
                    let received = TcpInfo::of(socket).is_ok_and(|info| info.received_bytes == 0);
                    received && midhop_linux::tcp_repair::is_on(socket).is_ok_and(|is_on| is_on)
                };
                let arrival = if sockets.iter().all(is_untouched) {
                    let _ = expected.still(Stillness::Both);
                    Arrival::Discarded
                } else {
                    Arrival::Lost
                };
                return lost(&error, arrival);
            }
            Err(Stopped { error, .. }) => {
                // So that it is reset, too.
                let _ = privilege::switch(&sockets[1], Repair::OffWithoutProbe);
                return lost(&error, Arrival::Lost);
            }
        }
        let [client, server] = sockets.map(|socket| TcpStream::from_std(socket.into()));
        let (client, server) = match (client, server) {
            (Ok(client), Ok(server)) => (client, server),
            (Err(error), _) | (_, Err(error)) => return lost(&error, Arrival::Lost),
        };
        let ExpectedFlow { worker, legs, origin, ticket, life, ends, waiting } = expected;
        for owed in owed.iter().flatten() {
            if let Err(error) = owed.send(&worker) {
                tracing::debug!(?ends, %error, "an acknowledgement that a moved flow owed was not sent");
            }
        }
        waiting.iter().for_each(WaitingFlow::pass);
        drop(waiting);
        worker.ledger.moved_here.add(1);
        let windows = [(&client, &legs[0]), (&server, &legs[1])]
            .map(|(socket, leg)| BoundedWindow::adopted(leg, socket, &worker.relay_context));
        let both = BothLegs { client, server, windows, halt: Halt::default() };
        let left = (unsent, buffers, passed_on);
        spawn_local(relay(worker, ends, both, left, legs, origin, (ticket, life)));
        Arrival::GoesOn
    }
}

/// See [`leg::settle_buffer`]. A flow whose buffers stay large goes on.
fn settle_buffer(ends: Ends, socket: impl AsFd, (leg, before): (&LegPlan, &Buffers), sends: bool) {
    if let Err(error) = leg::settle_buffer(socket, leg, before, sends) {
        tracing::debug!(?ends, %error, "a buffer of a flow that moved here stays as large as it was needed");
    }
}

/// Sends what the old place had not sent, then relays.
async fn relay(
    worker: Rc<Worker>,
    ends: Ends,
    legs: BothLegs,
    (unsent, buffers, passed_on): ([Unsent; 2], [Buffers; 2], [bool; 2]),
    plans: [LegPlan; 2],
    origin: FlowOrigin,
    (ticket, life): (Ticket, Life),
) {
    let [to_client, to_server] = unsent;
    // The buffers are large enough for it, so that only a kernel without memory has it wait.
    let sent = tokio::try_join!(send(&legs.client, to_client), send(&legs.server, to_server));
    for (at, socket) in [&legs.client, &legs.server].into_iter().enumerate() {
        settle_buffer(ends, socket, (&plans[at], &buffers[at]), true);
    }
    let from = sent.and_then(|_| ahead(&legs.client, &legs.server));
    let start = match from {
        Ok(from) => {
            let [client, server] = &plans;
            let book = FlowBook::new(ends, client.into(), server.into()).with_origin(origin);
            let start = match worker.region {
                Some(_) => entered(&worker, &legs, &book, from),
                None => Start::default(),
            };
            let left = passed_on.map(|done| StartDirection { piped: None, done });
            Some((book, Start { left: Some(left.into()), ..start }))
        }
        Err(error) => {
            // It is reset: its sockets are dropped.
            tracing::debug!(?ends, %error, "a flow was aborted while it moved here");
            None
        }
    };
    let Some((book, start)) = start else {
        worker.ledger.lost_in_moving.add(1);
        return;
    };
    let stages = Stages::of(&plans[0], &plans[1], &worker.relay_context);
    carry(&worker, legs, book, stages, start, (ticket, Some(life)));
}

async fn send(socket: &TcpStream, mut unsent: Unsent) -> io::Result<()> {
    loop {
        // As the kernel has it, and not the event loop: nothing else writes.
        if unsent.send(socket)? {
            return Ok(());
        }
        let full = || -> io::Result<()> { Err(io::ErrorKind::WouldBlock.into()) };
        let _ = socket.try_io(tokio::io::Interest::WRITABLE, full);
        socket.writable().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_the_old_place_has_passed_on_is_not_passed_on_again() {
        for end in [LocalEnd::Unsent, LocalEnd::Sent, LocalEnd::Acknowledged] {
            assert_eq!(passed_on([LocalEnd::Open, end]), [true, false], "of the client: {end:?}");
            assert_eq!(passed_on([end, LocalEnd::Open]), [false, true], "of the server: {end:?}");
        }
        assert_eq!(passed_on([LocalEnd::Open; 2]), [false; 2]);
    }
}
