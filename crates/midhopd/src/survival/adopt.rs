//! Goes on with the flows of a data plane that was killed.

use super::inherited::Inherited;
use super::register::{FlowEntry, Record, Region, name_of};
use crate::ends::Side;
use crate::flow::carry;
use crate::ledger::{FlowBook, FlowOrigin};
use crate::leg::BoundedWindow;
use crate::relay::Stages;
use crate::relay::start::{Lost, after_death};
use crate::watch::BothLegs;
use crate::worker::Worker;
use midhop_linux::sockopt;
use midhop_pep::config::{LegPlan, Plan};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use tokio::net::TcpStream;

/// Goes on with the flows of a worker's region.
pub fn adopt_all(worker: &Rc<Worker>, left: Vec<(FlowEntry, Record)>, inherited: &Inherited) {
    let (mut live, mut lost) = (0_u64, 0_u64);
    for (entry, record) in left {
        let ends = record.ends;
        match adopt(worker, entry, record, inherited) {
            Ok(()) => live += 1,
            Err(error) => {
                lost += 1;
                tracing::warn!(?ends, %error, "a flow does not go on");
            }
        }
    }
    worker.ledger.adopted.add(live);
    worker.ledger.lost.add(lost);
    if live + lost > 0 {
        tracing::info!(live, lost, "flows of the data plane that was killed go on");
    }
}

/// Why a flow does not go on.
#[derive(Debug, thiserror::Error)]
enum NotAdopted {
    #[error("its socket has been closed")]
    Closed,
    #[error("the configuration has no such leg any more")]
    NoLeg,
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn adopt(
    worker: &Rc<Worker>,
    entry: FlowEntry,
    record: Record,
    inherited: &Inherited,
) -> Result<(), NotAdopted> {
    // Descriptors are used again: its own may be another flow's by now.
    let socket = |side: Side| {
        let (number, cookie) = (record.sockets[side as usize], record.cookies[side as usize]);
        inherited.take(number, |it| cookie_of(it).ok() == Some(cookie))
    };
    let (client, server) = (socket(Side::Client), socket(Side::Server));
    let (client, server) = client.zip(server).ok_or(NotAdopted::Closed)?;
    let pipes = record.pipes.map(|pipe| {
        let (source, sink) = pipe?;
        inherited.take(source, is_pipe).zip(inherited.take(sink, is_pipe))
    });
    let plan = worker.plan();
    let leg = |side: Side| leg_of(&plan, record.legs[side as usize]).ok_or(NotAdopted::NoLeg);
    let (client_leg, server_leg) = (leg(Side::Client)?, leg(Side::Server)?);
    let start = after_death(&client, &server, pipes, record.ahead, &entry, &worker.desk)?;
    let client = TcpStream::from_std(client.into())?;
    let server = TcpStream::from_std(server.into())?;
    let Record { ends, interface, rule, dscp, .. } = record;
    let origin = FlowOrigin { rule, interface, dscp };
    let book = FlowBook::new(ends, client_leg.into(), server_leg.into()).with_origin(origin);
    let stages = Stages::of(client_leg, server_leg, &worker.desk);
    let ticket = worker.admission.enter_from(ends.client.ip());
    let life = worker.hold.entries.revive(ends);
    let start = crate::relay::start::Start { entry: Some(Rc::new(entry)), ..start };
    let windows = [(&client, client_leg), (&server, server_leg)]
        .map(|(socket, leg)| BoundedWindow::adopted(leg, socket, &worker.desk));
    carry(worker, BothLegs { client, server, windows }, book, stages, start, (ticket, Some(life)));
    Ok(())
}

fn leg_of(plan: &Plan, name: u64) -> Option<&LegPlan> {
    plan.legs.iter().find(|leg| name_of(&leg.name) == name)
}

fn is_pipe(descriptor: BorrowedFd<'_>) -> bool {
    fcntl(descriptor, FcntlArg::F_GETPIPE_SZ).is_ok()
}

/// The kernel's name of a socket, which it never uses again.
///
/// # Errors
/// When it is no socket.
pub fn cookie_of(socket: impl AsFd) -> io::Result<u64> {
    let mut room = [0; 8];
    sockopt::read(socket, libc::SOL_SOCKET, libc::SO_COOKIE, &mut room)?;
    Ok(u64::from_ne_bytes(room))
}

/// Enters a flow that begins.
///
/// # Errors
/// When the kernel does not name its sockets.
pub fn enter(
    region: &Rc<Region>,
    legs: &BothLegs,
    book: &FlowBook,
    ahead: [u64; 2],
) -> io::Result<Option<FlowEntry>> {
    let BothLegs { client, server, .. } = legs;
    let clock = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    let nanoseconds = std::time::Duration::from(clock).as_nanos();
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
        began: u64::try_from(nanoseconds).unwrap_or(u64::MAX),
    }))
}
