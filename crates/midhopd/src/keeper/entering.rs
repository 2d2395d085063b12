//! Legs that are being entered into connection tracking while the requesting thread does something else.
//!
//! The keeper answers in the order of the requests, and answers to other orders arrive on the same line. So these
//! answers are read before an answer to another order is awaited.

use super::descriptors;
use super::line::Line;
use super::order::{ConntrackEntry, ENTRIES, ENTRIES_MAX};
use crate::watched;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::sync::Notify;

/// The outcome for each leg of one message.
pub type Outcomes = io::Result<Vec<io::Result<()>>>;

/// The number of a message with legs, and its outcomes.
pub type Entered = (u64, Outcomes);

/// The messages of one thread.
#[derive(Debug, Default)]
pub(super) struct Entering {
    /// The number of the last message.
    last: Cell<u64>,
    /// The numbers of unanswered messages.
    asked: RefCell<VecDeque<u64>>,
    come: RefCell<VecDeque<Entered>>,
    /// Notifies that an answer arrived while another one was awaited.
    aside: Notify,
}

impl Entering {
    /// Requests that legs are entered. Returns the number of the message.
    pub fn ask(&self, orders: &OwnedFd, entries: &[ConntrackEntry]) -> io::Result<u64> {
        ask(orders, entries)?;
        self.last.set(self.last.get() + 1);
        self.asked.borrow_mut().push_back(self.last.get());
        Ok(self.last.get())
    }

    /// Returns the oldest answer.
    pub fn next(&self) -> Option<Entered> {
        self.come.borrow_mut().pop_front()
    }

    /// Reads one answer, if there is one.
    pub fn take(&self, orders: &OwnedFd) -> io::Result<()> {
        if self.asked.borrow().is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match answer(orders, false) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            outcomes => {
                self.file(outcomes);
                Ok(())
            }
        }
    }

    /// Waits for all answers.
    pub fn await_all(&self, orders: &OwnedFd) {
        while !self.asked.borrow().is_empty() {
            self.file(answer(orders, true));
            self.aside.notify_one();
        }
    }

    pub async fn came_aside(&self) {
        self.aside.notified().await;
    }

    fn file(&self, outcomes: Outcomes) {
        if let Some(number) = self.asked.borrow_mut().pop_front() {
            self.come.borrow_mut().push_back((number, outcomes));
        }
    }
}

/// Sends legs, at most [`ENTRIES_MAX`].
pub(super) fn ask(orders: &OwnedFd, entries: &[ConntrackEntry]) -> io::Result<()> {
    debug_assert!(entries.len() <= ENTRIES_MAX, "{} legs in one message", entries.len());
    let mut message = vec![ENTRIES];
    message.extend(entries.iter().flat_map(ConntrackEntry::bytes));
    descriptors::send(orders, &message, &[])
}

/// Reads the outcomes for the legs of a message.
pub(super) fn answer(orders: &OwnedFd, wait: bool) -> Outcomes {
    let mut buffer = [0; 4 * ENTRIES_MAX];
    let answer = descriptors::receive(orders, &mut buffer, wait)?;
    let (length, _) = answer.ok_or(io::ErrorKind::BrokenPipe)?;
    let (numbers, _) = buffer[..length].as_chunks();
    let outcome = |number: &[u8; 4]| match i32::from_le_bytes(*number) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    };
    Ok(numbers.iter().map(outcome).collect())
}

/// Wakes its thread when answers about legs arrive.
#[derive(Debug)]
pub struct AnswerWatch {
    line: Rc<Line>,
    orders: AsyncFd<OwnedFd>,
}

impl AnswerWatch {
    pub(super) fn of(line: Rc<Line>, orders: OwnedFd) -> io::Result<Self> {
        Ok(Self { line, orders: watched::watch(orders, Interest::READABLE)? })
    }

    /// Waits until there is an answer.
    pub async fn come(&self) {
        loop {
            tokio::select! {
                () = self.line.came_aside() => return,
                ready = self.orders.readable() => {
                    // Without a runtime there is no task to wake.
                    let Ok(mut ready) = ready else { return pending().await };
                    match self.line.take_entered() {
                        Ok(()) => return,
                        // Without a keeper the daemon ends, and the line stays readable.
                        Err(_) if ready.ready().is_read_closed() => return pending().await,
                        Err(_) => ready.clear_ready_matching(Ready::READABLE),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Ends;
    use crate::keeper::order::ENTRY_BYTES;
    use nix::libc::EEXIST;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    fn line() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .expect("a pair")
    }

    fn legs(count: u16) -> Vec<ConntrackEntry> {
        let end = |port| ([10, 0, 0, 1], port).into();
        let entry = |port| ConntrackEntry {
            to_server: true,
            ends: Ends { client: end(port), server: end(80) },
            mark: 0,
        };
        (1..=count).map(entry).collect()
    }

    /// A keeper that has entered all legs of a message but the first.
    fn keep(far: &OwnedFd) {
        let mut buffer = [0; 1 << 13];
        let come = descriptors::receive(far, &mut buffer, false).expect("a message");
        let count = (come.expect("a message").0 - 1) / ENTRY_BYTES;
        let numbers = (0..count).map(|leg| if leg == 0 { EEXIST } else { 0 });
        let answer: Vec<u8> = numbers.flat_map(i32::to_le_bytes).collect();
        descriptors::send(far, &answer, &[]).expect("room");
    }

    fn refused(outcomes: &Outcomes) -> Vec<Option<i32>> {
        let number = |leg: &io::Result<()>| leg.as_ref().err().and_then(io::Error::raw_os_error);
        outcomes.as_ref().expect("an answer").iter().map(number).collect()
    }

    #[test]
    fn answers_are_matched_by_the_order_of_questions() {
        let ((near, far), entering) = (line(), Entering::default());
        let nothing = |entering: &Entering| {
            let taken = entering.take(&near).expect_err("nothing has come");
            assert_eq!(taken.kind(), io::ErrorKind::WouldBlock);
        };
        nothing(&entering);
        let [first, second] = [2, 3].map(|count| entering.ask(&near, &legs(count)).expect("room"));
        nothing(&entering);
        keep(&far);
        entering.take(&near).expect("one has come");
        nothing(&entering);
        keep(&far);
        entering.await_all(&near);
        // The answer to another order is not about legs.
        descriptors::send(&far, b"{}", &[]).expect("room");
        nothing(&entering);
        let (number, outcomes) = entering.next().expect("the first");
        assert_eq!((number, refused(&outcomes)), (first, vec![Some(EEXIST), None]));
        let (number, outcomes) = entering.next().expect("the second");
        assert_eq!((number, refused(&outcomes)), (second, vec![Some(EEXIST), None, None]));
        assert!(entering.next().is_none());
    }

    #[test]
    fn nothing_is_waited_for_without_a_keeper() {
        let ((near, far), entering) = (line(), Entering::default());
        let asked = entering.ask(&near, &legs(1)).expect("room");
        drop(far);
        entering.await_all(&near);
        let (number, outcomes) = entering.next().expect("an end");
        assert_eq!((number, outcomes.is_err()), (asked, true));
        assert!(entering.ask(&near, &legs(1)).is_err());
    }
}
