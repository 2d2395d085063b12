//! A thread's own line to the keeper, for its orders while it serves.
//!
//! In the usual course of a flow no answer is awaited: verdicts have none, sockets are ordered
//! before they are needed, and legs are entered into connection tracking while the thread does
//! something else. If this process has the privilege itself, or no keeper, there is no line, and
//! callers do the work themselves.

use super::descriptors;
use super::entering::{self, AnswerWatch, Entered, Entering};
use super::order::{
    BATCH, Batch, ConntrackEntry, Done, ENTRIES_MAX, ORDER_BYTES, Order, Outcome, Recipe, Setting,
    VERDICTS, Verdict,
};
use super::start::Keeper;
use nix::errno::Errno;
use nix::libc::{EACCES, EMFILE, EPERM};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::{Serialize, de::DeserializeOwned};
use socket2::Socket;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::{OnceLock, Weak};

/// More sockets are ordered when this few are left.
const FEW: usize = 16;
/// The most kinds of sockets kept in stock. Others are made one by one.
const SHELVES_MAX: usize = 4;
/// Unit: sockets taken. A kind that was not requested among this many is replaced by another.
const FORGOTTEN: u64 = 1000;
/// Unit: descriptors. The most that a thread keeps in stock.
pub const STOCK_MAX: usize = SHELVES_MAX * (FEW + BATCH);
/// The shelf number of a single socket.
const ONE: u32 = 0;
/// Timeout of an order of sockets.
const PATIENCE_MS: u16 = 5000;

/// The keeper of this process, once it has one: privileges are the process's.
static KEEPER: OnceLock<Weak<Keeper>> = OnceLock::new();

thread_local! {
    static LINE: OnceCell<Option<Rc<Line>>> = const { OnceCell::new() };
}

/// Makes all threads use this keeper.
pub(super) fn ask(keeper: Weak<Keeper>) {
    let _ = KEEPER.set(keeper);
}

/// The line of the calling thread. None where there is no keeper.
pub fn line() -> Option<Rc<Line>> {
    LINE.with(|line| line.get_or_init(|| Line::open().map(Rc::new)).clone())
}

/// A thread's line.
#[derive(Debug)]
pub struct Line {
    orders: OwnedFd,
    entering: Entering,
    supply: OwnedFd,
    stock: RefCell<Stock>,
}

/// Sockets that were made in advance, by their kind.
#[derive(Debug, Default)]
struct Stock {
    shelves: HashMap<Recipe, Shelf>,
    /// Sockets taken so far.
    taken: u64,
    /// The number of the newest shelf.
    last: u32,
}

#[derive(Debug, Default)]
struct Shelf {
    /// The keeper's name for the shelf.
    number: u32,
    sockets: Vec<Socket>,
    ordered: bool,
    /// The count of sockets taken when it was last used.
    used: u64,
}

impl Stock {
    /// The shelf of a kind. None where there is no room for one.
    fn shelf(&mut self, recipe: &Recipe) -> Option<&mut Shelf> {
        self.taken += 1;
        let taken = self.taken;
        if !self.shelves.contains_key(recipe) {
            if self.shelves.len() >= SHELVES_MAX {
                self.shelves.retain(|_, shelf| taken - shelf.used <= FORGOTTEN);
            }
            if self.shelves.len() >= SHELVES_MAX {
                return None;
            }
            self.last += 1;
            let shelf = Shelf { number: self.last, ..Shelf::default() };
            self.shelves.insert(recipe.clone(), shelf);
        }
        let shelf = self.shelves.get_mut(recipe)?;
        shelf.used = taken;
        Some(shelf)
    }
}

impl Line {
    fn open() -> Option<Self> {
        let keeper = KEEPER.get()?.upgrade()?;
        let pair = || {
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(io::Error::from)
        };
        let opened = pair().and_then(|(orders, taken)| {
            let (supply, supplied) = pair()?;
            keeper.connect(&taken, &supplied)?;
            let (entering, stock) = Default::default();
            Ok(Self { orders, entering, supply, stock })
        });
        opened
            .map_err(|error| tracing::warn!(%error, "a channel to the keeper could not be opened"))
            .ok()
    }

    /// Orders something, with the socket that it concerns, if any. Waits until it is done.
    ///
    /// # Errors
    /// The kernel's error to the keeper, or that there is no keeper any more.
    pub fn order(&self, order: &Order, about: Option<&dyn AsRawFd>) -> io::Result<Done> {
        let fd = about.map(AsRawFd::as_raw_fd);
        let outcome: Outcome = self.answered(order, fd.as_slice())?;
        outcome.map_err(io::Error::from_raw_os_error)
    }

    /// Sends a message with the sockets that it concerns, and waits for its answer.
    fn answered<A: DeserializeOwned>(
        &self,
        message: &impl Serialize,
        sockets: &[RawFd],
    ) -> io::Result<A> {
        self.entering.await_all(&self.orders);
        descriptors::send(&self.orders, &serde_json::to_vec(message)?, sockets)?;
        let mut buffer = [0; 4096];
        let answer = descriptors::receive(&self.orders, &mut buffer, true)?;
        let (length, _) = answer.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(serde_json::from_slice(&buffer[..length])?)
    }

    /// Orders several things, each with the socket that it concerns, which are done in turn until one fails. Waits until they
    /// are done. Returns how many were.
    ///
    /// # Errors
    /// When nothing is known: there is no keeper any more.
    pub fn in_turn(
        &self,
        orders: &[(Order, Option<BorrowedFd<'_>>)],
    ) -> io::Result<(usize, io::Result<()>)> {
        let message: Vec<&Order> = orders.iter().map(|(order, _)| order).collect();
        let sockets: Vec<_> =
            orders.iter().filter_map(|(_, about)| about.map(|it| it.as_raw_fd())).collect();
        let outcomes: Vec<Outcome> = self.answered(&message, &sockets)?;
        let done = outcomes.iter().filter(|it| it.is_ok()).count();
        let failed = outcomes.into_iter().find_map(Result::err);
        Ok((done, failed.map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))))
    }

    /// Enters legs into connection tracking, and waits for the outcomes. Returns the outcome for each.
    ///
    /// # Errors
    /// When there is no keeper any more.
    pub fn enter(&self, entries: &[ConntrackEntry]) -> io::Result<Vec<io::Result<()>>> {
        let mut outcomes = Vec::with_capacity(entries.len());
        self.entering.await_all(&self.orders);
        for some in entries.chunks(ENTRIES_MAX) {
            entering::ask(&self.orders, some)?;
            outcomes.extend(entering::answer(&self.orders, true)?);
        }
        Ok(outcomes)
    }

    /// Requests that legs, at most [`ENTRIES_MAX`], are entered while the calling thread does something else. Returns
    /// the number by which [`Line::entered`] reports the outcomes.
    ///
    /// # Errors
    /// When there is no keeper any more.
    pub fn enter_meanwhile(&self, entries: &[ConntrackEntry]) -> io::Result<u64> {
        self.entering.ask(&self.orders, entries)
    }

    /// The next known outcome of legs to be entered meanwhile; the oldest first.
    pub fn entered(&self) -> Option<Entered> {
        self.entering.next()
    }

    /// Reads the answers that have arrived about such legs. `WouldBlock` where there is none.
    pub(super) fn take_entered(&self) -> io::Result<()> {
        self.entering.take(&self.orders)
    }

    /// Waits until the outcomes of all such legs are known.
    pub fn await_entered(&self) {
        self.entering.await_all(&self.orders);
    }

    /// Waits until such an answer has arrived while the thread waited for another one.
    pub(super) async fn came_aside(&self) {
        self.entering.came_aside().await;
    }

    /// Wakes the calling thread when answers about such legs arrive.
    ///
    /// # Errors
    /// When the runtime of the calling thread cannot watch the line.
    pub fn answers(self: &Rc<Self>) -> io::Result<AnswerWatch> {
        AnswerWatch::of(self.clone(), self.orders.try_clone()?)
    }

    /// Sends verdicts. They have no answer.
    ///
    /// # Errors
    /// When there is no keeper any more.
    pub fn verdicts(&self, verdicts: &[Verdict]) -> io::Result<()> {
        for some in verdicts.chunks(ORDER_BYTES / super::order::VERDICT_BYTES / 2) {
            let mut message = vec![VERDICTS];
            message.extend(some.iter().flat_map(|verdict| verdict.bytes()));
            descriptors::send(&self.orders, &message, &[])?;
        }
        Ok(())
    }

    /// Returns a socket of a kind.
    ///
    /// # Errors
    /// The kernel's error to the keeper, or that the keeper does not answer.
    pub fn socket(&self, recipe: &Recipe) -> io::Result<Socket> {
        let mut stock = self.stock.borrow_mut();
        let Some(shelf) = stock.shelf(recipe) else {
            self.ask_for(ONE, recipe, 1)?;
            loop {
                if let (ONE, made) = self.unpack(&mut stock)? {
                    return made?.pop().ok_or_else(exhausted);
                }
            }
        };
        let number = shelf.number;
        if shelf.sockets.len() <= FEW && !shelf.ordered {
            self.ask_for(number, recipe, BATCH)?;
            shelf.ordered = true;
        }
        if let Some(socket) = shelf.sockets.pop() {
            if shelf.sockets.len() <= FEW {
                while self.has_come(PollTimeout::ZERO)? {
                    let (_, made) = self.unpack(&mut stock)?;
                    made?;
                }
            }
            return Ok(socket);
        }
        loop {
            let (come, made) = self.unpack(&mut stock)?;
            made?;
            if come == number {
                let shelf = stock.shelves.get_mut(recipe);
                return shelf.and_then(|shelf| shelf.sockets.pop()).ok_or_else(exhausted);
            }
        }
    }

    fn ask_for(&self, shelf: u32, recipe: &Recipe, count: usize) -> io::Result<()> {
        let batch = Batch { shelf, count, recipe: recipe.clone() };
        descriptors::send(&self.supply, &serde_json::to_vec(&batch)?, &[])
    }

    fn has_come(&self, patience: PollTimeout) -> io::Result<bool> {
        loop {
            let mut waits = [PollFd::new(self.supply.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waits, patience) {
                Err(Errno::EINTR) => {}
                come => return Ok(come? > 0),
            }
        }
    }

    /// Waits for sockets and puts them on their shelf, if they have one. Returns the shelf number they were made for,
    /// and the sockets without a shelf, or why there are none.
    fn unpack(&self, stock: &mut Stock) -> io::Result<(u32, io::Result<Vec<Socket>>)> {
        if !self.has_come(PollTimeout::from(PATIENCE_MS))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut buffer = [0; 8];
        let come = descriptors::receive(&self.supply, &mut buffer, false)?;
        let (length, sockets) = come.ok_or(io::ErrorKind::BrokenPipe)?;
        if length != buffer.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let [a, b, c, d, e, f, g, h] = buffer;
        let (number, error) = (u32::from_le_bytes([a, b, c, d]), i32::from_le_bytes([e, f, g, h]));
        let mut sockets: Vec<Socket> = sockets.into_iter().map(Socket::from).collect();
        if let Some(shelf) = stock.shelves.values_mut().find(|shelf| shelf.number == number) {
            shelf.ordered = false;
            shelf.sockets.append(&mut sockets);
        }
        let made = if error == 0 { Ok(sockets) } else { Err(io::Error::from_raw_os_error(error)) };
        Ok((number, made))
    }
}

/// Sockets arrived without descriptors: this process has no free descriptor.
fn exhausted() -> io::Error {
    io::Error::from_raw_os_error(EMFILE)
}

/// Sets an option of a socket. `own` does so where this process has the privilege.
///
/// # Errors
/// The kernel's error, to this process or to its keeper.
pub fn set(
    socket: &impl AsRawFd,
    setting: impl FnOnce() -> Setting,
    own: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    match own() {
        Err(error) if error.raw_os_error() == Some(EPERM) => match line() {
            Some(line) => line.order(&Order::Set(setting()), Some(socket)).map(drop),
            None => Err(error),
        },
        outcome => outcome,
    }
}

/// Binds a socket to an address with any port.
///
/// # Errors
/// The kernel's error, to this process or to its keeper.
pub fn bind(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    match socket.bind(&address.into()) {
        Err(error) if error.raw_os_error() == Some(EACCES) => match line() {
            Some(line) => line.order(&Order::Bind(address), Some(socket)).map(drop),
            None => Err(error),
        },
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(mark: u32) -> Recipe {
        let (congestion, fallback, receive, send) = Default::default();
        Recipe { v4: true, mark, congestion, fallback, receive, send }
    }

    #[test]
    fn kinds_that_nobody_asks_for_make_room() {
        let mut stock = Stock::default();
        let kinds = u32::try_from(SHELVES_MAX).expect("a few");
        let numbers: Vec<_> =
            (0..kinds).map(|mark| stock.shelf(&recipe(mark)).expect("room").number).collect();
        assert!(!numbers.contains(&ONE), "a shelf is not taken for what has none");
        assert!(stock.shelf(&recipe(kinds)).is_none(), "there are enough");
        for _ in 0..=FORGOTTEN {
            stock.shelf(&recipe(0)).expect("it is there");
        }
        let next = stock.shelf(&recipe(kinds)).expect("room").number;
        assert!(!numbers.contains(&next), "what comes late for another is not its own");
        assert_eq!(stock.shelf(&recipe(0)).expect("it is there").number, numbers[0]);
    }
}
