//! Continues the flows of a data plane that was killed.

mod streams;

use super::awaited::AwaitedFlow;
use super::inherited::Inherited;
use super::register::{FlowEntry, Record, Region, cookie_of, name_of, now_ns};
use crate::ends::{Ends, Side};
use crate::flow::{carry, entered};
use crate::flow_sampler::BothLegs;
use crate::keeper::order::{Repair, Stillness};
use crate::ledger::{FlowBook, FlowOrigin};
use crate::leg::BoundedWindow;
use crate::relay::Stages;
use crate::relay::start::{Lost, after_death};
use crate::relocation::halt::Halt;
use crate::relocation::privilege;
use crate::worker::Worker;
use midhop_linux::tcp_repair;
use midhop_pep::config::{LegPlan, Plan};
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::task::yield_now;

/// Has the sockets of a flow go on that the process before had frozen to move it away.
fn thaw(
    worker: &Worker,
    entry: &FlowEntry,
    record: &Record,
    sockets: [&OwnedFd; 2],
) -> io::Result<()> {
    let repair = if record.leaves { Repair::OffWithoutProbe } else { Repair::Off };
    let mut is_still = record.leaves || record.is_still;
    for socket in sockets {
        if tcp_repair::is_on(socket)? {
            is_still = true;
            privilege::switch(socket, repair)?;
        }
    }
    if is_still {
        let instance = &worker.plan().intercept.instance;
        privilege::still(instance, &[record.ends], Stillness::None)?;
        entry.note_still(false);
    }
    Ok(())
}

/// Flows that are adopted before those that have been adopted move on.
const BATCH: usize = 16;

/// A flow that another process has left, with its sockets as far as they are there.
struct InheritedFlow {
    entry: FlowEntry,
    record: Record,
    sockets: [Option<OwnedFd>; 2],
}

/// Continues the flows of a worker's region. Those in whose sockets bytes wait go first, and none waits until all are
/// adopted.
pub async fn adopt_all(worker: &Rc<Worker>, left: Vec<(FlowEntry, Record)>, inherited: &Inherited) {
    let left = left.into_iter().map(|(entry, record)| {
        let sockets = [Side::Client, Side::Server].map(|side| socket_of(&record, side, inherited));
        InheritedFlow { entry, record, sockets }
    });
    let (mut live, mut lost) = (0_u64, 0_u64);
    for (number, flow) in waiting_first(left.collect()).into_iter().enumerate() {
        if number % BATCH == BATCH - 1 {
            yield_now().await;
        }
        let ends = flow.record.ends;
        let adopted = match flow.record.stream.clone() {
            Some(stream) => streams::adopt(worker, flow, stream),
            None => adopt(worker, flow, inherited),
        };
        match adopted {
            Ok(()) => live += 1,
            Err(error) => {
                lost += 1;
                tracing::warn!(?ends, %error, "a flow of the previous data plane could not be continued");
            }
        }
    }
    if worker.tunnels.resumable_flows.adopted() {
        worker.store.forget();
    }
    worker.ledger.adopted.add(live);
    worker.ledger.lost.add(lost);
    if live + lost > 0 {
        tracing::info!(live, lost, "flows of the previous data plane are continued");
    }
}

/// The flows, first those of which a socket has something to read.
fn waiting_first(left: Vec<InheritedFlow>) -> Vec<InheritedFlow> {
    let sockets = left.iter().flat_map(|flow| &flow.sockets).flatten();
    let mut asked: Vec<_> =
        sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
    if poll(&mut asked, PollTimeout::ZERO).is_err() {
        // The order does not matter to what is continued.
        return left;
    }
    let mut has_some = asked.iter().map(|asked| asked.any() == Some(true));
    let waits: Vec<bool> = left
        .iter()
        .map(|flow| {
            let sockets = flow.sockets.iter().flatten();
            sockets.fold(false, |waits, _| has_some.next() == Some(true) || waits)
        })
        .collect();
    let (first, later): (Vec<_>, Vec<_>) =
        left.into_iter().zip(waits).partition(|(_, waits)| *waits);
    first.into_iter().chain(later).map(|(flow, _)| flow).collect()
}

/// Why a flow cannot be continued.
#[derive(Debug, thiserror::Error)]
enum NotAdopted {
    #[error("its socket has been closed")]
    Closed,
    #[error("it was moving to another machine, and may be there")]
    Leaving,
    #[error("the configuration has no such leg any more")]
    NoLeg,
    #[error("the configuration has no such peer any more, or does not resume its flows")]
    NoPeer,
    #[error("there is no shared memory for its buffered bytes")]
    NoStore,
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn adopt(
    worker: &Rc<Worker>,
    left: InheritedFlow,
    inherited: &Inherited,
) -> Result<(), NotAdopted> {
    let InheritedFlow { entry, record, sockets: [client, server] } = left;
    let (client, server) = client.zip(server).ok_or(NotAdopted::Closed)?;
    thaw(worker, &entry, &record, [&client, &server])?;
    if record.leaves {
        // Dropping its sockets resets it.
        return Err(NotAdopted::Leaving);
    }
    let pipes = record.pipes.map(|pipe| {
        let (source, sink) = pipe?;
        inherited.take(source, is_pipe).zip(inherited.take(sink, is_pipe))
    });
    let plan = worker.plan();
    let leg = |side: Side| leg_of(&plan, record.legs[side as usize]).ok_or(NotAdopted::NoLeg);
    let (client_leg, server_leg) = (leg(Side::Client)?, leg(Side::Server)?);
    let start = after_death(&client, &server, pipes, record.ahead, &entry, &worker.relay_context)?;
    let client = TcpStream::from_std(client.into())?;
    let server = TcpStream::from_std(server.into())?;
    let Record { ends, interface, rule, dscp, .. } = record;
    let origin = FlowOrigin { rule, interface, dscp };
    let book = FlowBook::new(ends, client_leg.into(), server_leg.into()).with_origin(origin);
    let stages = Stages::of(client_leg, server_leg, &worker.relay_context);
    let ticket = worker.admission.enter_from(ends.client.ip());
    let life = worker.hold.entries.revive(ends);
    let start = crate::relay::start::Start { entry: Some(Rc::new(entry)), ..start };
    let windows = [(&client, client_leg), (&server, server_leg)]
        .map(|(socket, leg)| BoundedWindow::adopted(leg, socket, &worker.relay_context));
    let legs = BothLegs { client, server, windows, halt: Halt::default() };
    carry(worker, legs, book, stages, start, (ticket, Some(life)));
    Ok(())
}

/// Serves a client that no flow of this process expects, if a previous process had opened its far
/// side. Returns whether it had.
pub fn serve_awaited(worker: &Rc<Worker>, client: TcpStream, ends: &Ends) -> bool {
    let Some(flow) = worker.hold.awaited.take(ends) else { return false };
    begin(worker, client, flow);
    true
}

/// Serves clients that the previous process had accepted.
pub fn serve_accepted(worker: &Rc<Worker>) {
    for (client, flow) in worker.hold.awaited.accepted() {
        match TcpStream::from_std(client) {
            Ok(client) => begin(worker, client, flow),
            Err(error) => {
                tracing::warn!(%error, "a flow of the previous data plane could not be continued");
            }
        }
    }
}

/// Relays a flow whose far side a previous process had opened. Not one byte of it has been moved.
fn begin(worker: &Rc<Worker>, client: TcpStream, flow: AwaitedFlow) {
    let ends = flow.record.ends;
    match try_begin(worker, client, flow) {
        Ok(()) => worker.ledger.adopted.add(1),
        Err(error) => {
            worker.ledger.lost.add(1);
            tracing::warn!(?ends, %error, "a flow of the previous data plane could not be continued");
        }
    }
}

fn try_begin(worker: &Rc<Worker>, client: TcpStream, flow: AwaitedFlow) -> Result<(), NotAdopted> {
    let AwaitedFlow { server, record, life } = flow;
    let server = TcpStream::from_std(server)?;
    let plan = worker.plan();
    let leg = |side: Side| leg_of(&plan, record.legs[side as usize]).ok_or(NotAdopted::NoLeg);
    let (client_leg, server_leg) = (leg(Side::Client)?, leg(Side::Server)?);
    let Record { ends, interface, rule, dscp, answered, .. } = record;
    crate::leg::set_class(&client, ends.client, answered)?;
    worker.hold.watchdog.flow_came_about(Instant::now());
    worker.ledger.flows.add(1);
    let origin = FlowOrigin { rule, interface, dscp };
    let book = FlowBook::new(ends, client_leg.into(), server_leg.into()).with_origin(origin);
    let stages = Stages::of(client_leg, server_leg, &worker.relay_context);
    let windows = [client_leg, server_leg].map(|leg| BoundedWindow::new(Some(leg)));
    let ticket = worker.admission.enter_from(ends.client.ip());
    let legs = BothLegs { client, server, windows, halt: Halt::default() };
    let start = entered(worker, &legs, &book, [0, 0]);
    carry(worker, legs, book, stages, start, (ticket, Some(life)));
    Ok(())
}

fn leg_of(plan: &Plan, name: u64) -> Option<&LegPlan> {
    plan.legs.iter().find(|leg| name_of(&leg.name) == name)
}

/// The cookie is checked, because descriptors are used again: this number may belong to something
/// else by now.
fn socket_of(record: &Record, side: Side, inherited: &Inherited) -> Option<OwnedFd> {
    let (number, cookie) = (record.sockets[side as usize], record.cookies[side as usize]);
    inherited.take(number, |it| cookie_of(it).ok() == Some(cookie))
}

fn is_pipe(descriptor: BorrowedFd<'_>) -> bool {
    fcntl(descriptor, FcntlArg::F_GETPIPE_SZ).is_ok()
}

/// Enters a flow that begins.
///
/// # Errors
/// When the kernel reports no cookies for its sockets.
pub fn enter(
    region: &Rc<Region>,
    legs: &BothLegs,
    book: &FlowBook,
    ahead: [u64; 2],
) -> io::Result<Option<FlowEntry>> {
    let BothLegs { client, server, .. } = legs;
    Ok(region.enter(&Record {
        ends: book.ends,
        sockets: [client.as_raw_fd(), server.as_raw_fd()],
        cookies: [cookie_of(client)?, cookie_of(server)?],
        pipes: [None, None],
        legs: [name_of(&book.client_leg.name), name_of(&book.server_leg.name)],
        interface: book.origin.interface.clone(),
        rule: book.origin.rule,
        dscp: book.origin.dscp,
        ahead,
        began: now_ns(),
        answered: 0,
        stream: None,
        leaves: false,
        is_still: false,
    }))
}
