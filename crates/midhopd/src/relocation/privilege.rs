//! The steps of a move that take privileges: done by the keeper, or here where this process has the privileges itself.

use crate::ends::Ends;
use crate::intercept::StillTables;
use crate::keeper::line::line;
use crate::keeper::order::{Order, PreparedSocket, Repair, SeededWindow, Stillness, pair};
use midhop_linux::tcp_repair::{self, Buffer, Buffers, Mode, Seed};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The kernel's mode for an order.
pub const fn mode(repair: Repair) -> Mode {
    match repair {
        Repair::On => Mode::On,
        Repair::Off => Mode::Off,
        Repair::OffWithoutProbe => Mode::OffWithoutProbe,
    }
}

/// Switches repair mode of a connection.
///
/// # Errors
/// When the kernel refuses, or there is no keeper any more.
pub fn switch(socket: &(impl AsFd + AsRawFd), repair: Repair) -> io::Result<()> {
    match line() {
        Some(line) => line.order(&Order::Repair(repair), Some(socket)).map(drop),
        None => tcp_repair::switch(socket, mode(repair)),
    }
}

/// Creates a socket for the state of a connection.
///
/// # Errors
/// As [`switch`].
pub fn prepare(prepared: &PreparedSocket) -> io::Result<OwnedFd> {
    let socket = tcp_repair::unprepared(prepared.local)?;
    match line() {
        Some(line) => line.order(&Order::Prepare(*prepared), Some(&socket)).map(drop)?,
        None => prepare_here(&socket, prepared)?,
    }
    Ok(socket)
}

/// Prepares a socket in this process.
///
/// # Errors
/// When the kernel refuses.
pub fn prepare_here(socket: &OwnedFd, prepared: &PreparedSocket) -> io::Result<()> {
    let buffer = |(bytes, locked)| Buffer { bytes, locked };
    let buffers = Buffers { receive: buffer(prepared.receive), send: buffer(prepared.send) };
    tcp_repair::prepare_socket(socket, prepared.local, &buffers)?;
    socket2::SockRef::from(socket).set_mark(prepared.mark)
}

/// Has a restored connection go on, with this congestion window if there is one.
///
/// # Errors
/// As [`switch`].
pub fn go_on(
    socket: &(impl AsFd + AsRawFd),
    end_is_sent: bool,
    window: Option<SeededWindow>,
) -> io::Result<()> {
    match line() {
        Some(line) => line.order(&Order::GoOn { end_is_sent, window }, Some(socket)).map(drop),
        None => go_on_here(socket, end_is_sent, window.as_ref()),
    }
}

/// Has a restored connection go on, by this process.
///
/// # Errors
/// When the kernel refuses, or does not have the program for the window any more: without one, what is to be sent again might
/// not leave. The connection is in repair mode still.
pub fn go_on_here(
    socket: &impl AsFd,
    end_is_sent: bool,
    window: Option<&SeededWindow>,
) -> io::Result<()> {
    if let Some(SeededWindow { program, bytes, threshold, rate }) = window {
        let [threshold, pacing_rate] = [*threshold, *rate].map(|it| it.unwrap_or(u64::MAX));
        let seed = Seed { window: *bytes, threshold, pacing_rate };
        tcp_repair::seed(socket, &seed, program)?;
    }
    tcp_repair::go_on(socket, end_is_sent)
}

/// Determines which packets of a flow of `instance` are dropped or forwarded.
///
/// # Errors
/// As [`switch`].
pub fn still(instance: &str, ends: Ends, stillness: Stillness) -> io::Result<()> {
    match line() {
        Some(line) => line.order(&Order::Still(pair(ends), stillness), None).map(drop),
        None => StillTables::open(instance)?.set(ends, stillness),
    }
}
