//! The steps of a move that take privileges: done by the keeper, or here where this process has the privileges itself.
//!
//! Steps that follow each other are one message to the keeper: waiting for its answer costs more than most steps.

use crate::ends::Ends;
use crate::intercept::StillTables;
use crate::keeper::line::line;
use crate::keeper::order::{
    self, Order, PreparedSocket, Repair, STILL_MAX, SeededWindow, Stillness, pair,
};
use midhop_linux::tcp_repair::{self, Buffer, Buffers, Mode, Seed};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The kernel's mode for an order.
pub const fn mode(repair: Repair) -> Mode {
    match repair {
        Repair::On => Mode::On,
        Repair::Off => Mode::Off,
        Repair::OffWithoutProbe => Mode::OffWithoutProbe,
    }
}

/// Some steps were taken, and one failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Stopped {
    /// How many steps were taken.
    pub done: usize,
    /// Why the next one was not.
    #[source]
    pub error: io::Error,
}

impl From<Stopped> for io::Error {
    fn from(stopped: Stopped) -> Self {
        stopped.error
    }
}

/// A step, and the socket that it concerns.
type Step<'a> = (Order, Option<BorrowedFd<'a>>);

/// Takes steps in turn for an instance, until one fails.
fn take(instance: &str, steps: &[Step<'_>]) -> Result<(), Stopped> {
    if let Some(line) = line() {
        let (done, outcome) = line.in_turn(steps).map_err(|error| Stopped { done: 0, error })?;
        return outcome.map_err(|error| Stopped { done, error });
    }
    for (done, (order, about)) in steps.iter().enumerate() {
        take_here(instance, order, *about).map_err(|error| Stopped { done, error })?;
    }
    Ok(())
}

/// Takes a step in this process.
fn take_here(instance: &str, step: &Order, about: Option<BorrowedFd<'_>>) -> io::Result<()> {
    match (step, about) {
        (Order::Repair(repair), Some(socket)) => tcp_repair::switch(socket, mode(*repair)),
        (Order::Prepare(prepared), Some(socket)) => prepare_here(socket, prepared),
        (Order::GoOn { end_is_sent, window }, Some(socket)) => {
            go_on_here(socket, *end_is_sent, window.as_ref())
        }
        (Order::Still(flows, stillness), _) => {
            let flows: Vec<Ends> = flows.iter().copied().map(order::ends).collect();
            StillTables::open(instance)?.set(&flows, *stillness)
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Has a flow stand still: nothing arrives for its sockets, they send nothing, and their states can be taken. What arrives is
/// forwarded to `neighbour`, if there is one.
///
/// # Errors
/// When the kernel refuses, or there is no keeper any more.
pub fn freeze(
    instance: &str,
    ends: Ends,
    sockets: [&impl AsFd; 2],
    neighbour: Option<IpAddr>,
) -> Result<(), Stopped> {
    let [client, server] = sockets.map(|socket| Some(socket.as_fd()));
    let still = |stillness| (Order::Still(vec![pair(ends)], stillness), None);
    // What arrives first, so that the last acknowledgements still leave.
    take(
        instance,
        &[
            still(Stillness::Arriving(neighbour)),
            (Order::Repair(Repair::On), client),
            (Order::Repair(Repair::On), server),
            still(Stillness::Leaving),
        ],
    )
}

/// Switches repair mode of a connection.
///
/// # Errors
/// As [`freeze`].
pub fn switch(socket: &impl AsFd, repair: Repair) -> io::Result<()> {
    Ok(take("", &[(Order::Repair(repair), Some(socket.as_fd()))])?)
}

/// Creates sockets for the states of a flow's connections.
///
/// # Errors
/// As [`freeze`].
pub fn prepare(prepared: [PreparedSocket; 2]) -> io::Result<[OwnedFd; 2]> {
    let [client, server] = prepared;
    let sockets = [tcp_repair::unprepared(client.local)?, tcp_repair::unprepared(server.local)?];
    let [for_client, for_server] = sockets.each_ref().map(|socket| Some(socket.as_fd()));
    take("", &[(Order::Prepare(client), for_client), (Order::Prepare(server), for_server)])?;
    Ok(sockets)
}

/// Prepares a socket in this process.
///
/// # Errors
/// When the kernel refuses.
pub fn prepare_here(socket: impl AsFd, prepared: &PreparedSocket) -> io::Result<()> {
    let buffer = |(bytes, locked)| Buffer { bytes, locked };
    let buffers = Buffers { receive: buffer(prepared.receive), send: buffer(prepared.send) };
    tcp_repair::prepare_socket(&socket, prepared.local, &buffers)?;
    socket2::SockRef::from(&socket).set_mark(prepared.mark)
}

/// How a restored connection goes on.
#[derive(Debug)]
pub struct Going<'a> {
    /// It.
    pub socket: &'a OwnedFd,
    /// Whether this end's FIN had been sent.
    pub end_is_sent: bool,
    /// Its congestion window, if it gets one.
    pub window: Option<SeededWindow>,
}

/// Has restored connections go on, one after the other.
///
/// # Errors
/// As [`freeze`].
pub fn go_on(connections: [Going<'_>; 2]) -> Result<(), Stopped> {
    let steps = connections.map(|Going { socket, end_is_sent, window }| {
        (Order::GoOn { end_is_sent, window }, Some(socket.as_fd()))
    });
    take("", &steps)
}

/// Has a restored connection go on, by this process.
///
/// # Errors
/// When the kernel refuses, or does not have the program for the window any more: without one, what is to be sent again might
/// not leave. The connection is in repair mode still.
pub fn go_on_here(
    socket: impl AsFd,
    end_is_sent: bool,
    window: Option<&SeededWindow>,
) -> io::Result<()> {
    if let Some(SeededWindow { program, bytes, threshold, rate }) = window {
        let [threshold, pacing_rate] = [*threshold, *rate].map(|it| it.unwrap_or(u64::MAX));
        let seed = Seed { window: *bytes, threshold, pacing_rate };
        tcp_repair::seed(&socket, &seed, program)?;
    }
    tcp_repair::go_on(&socket, end_is_sent)
}

/// Determines which packets of flows of `instance` are dropped or forwarded.
///
/// # Errors
/// As [`freeze`]. Some flows may have it then.
pub fn still(instance: &str, flows: &[Ends], stillness: Stillness) -> io::Result<()> {
    for some in flows.chunks(STILL_MAX) {
        let some = some.iter().copied().map(pair).collect();
        take(instance, &[(Order::Still(some, stillness), None)])?;
    }
    Ok(())
}
