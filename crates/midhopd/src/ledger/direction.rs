//! What one direction of a flow has carried, and why it waits.

use super::Counter;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// Why a direction waits inside midhopd, before its bytes are written to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// For memory: all flows together have reached the limit.
    Memory = 1,
    /// For the tunnel that it goes into: its windows, or its rate.
    Tunnel = 2,
}

impl Wait {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Tunnel => "tunnel",
        }
    }
}

/// One direction of a flow.
#[derive(Debug, Default)]
pub struct DirectionBook {
    bytes: Counter,
    wait: AtomicU8,
    undelivered: Counter,
    /// Whether the other end of its tunnel confirms the bytes that it passes on.
    is_confirmed: AtomicBool,
}

impl DirectionBook {
    /// Adds bytes that were handed on.
    pub fn add(&self, bytes: u64) {
        self.bytes.add(bytes);
    }

    /// Unit: bytes. Handed on so far.
    pub fn value(&self) -> u64 {
        self.bytes.value()
    }

    /// Sets the bytes that went into the direction's tunnel and that the other end has not
    /// confirmed as passed on; none: it confirms nothing.
    pub fn set_undelivered(&self, bytes: Option<u64>) {
        self.undelivered.set(bytes.unwrap_or(0));
        self.is_confirmed.store(bytes.is_some(), Relaxed);
    }

    /// Unit: bytes. Bytes in the tunnel that are not confirmed as passed on; none: the other end
    /// confirms nothing.
    pub fn undelivered(&self) -> Option<u64> {
        self.is_confirmed.load(Relaxed).then(|| self.undelivered.value())
    }

    /// Sets why the direction waits; none: it does not wait inside midhopd.
    pub fn set_wait(&self, wait: Option<Wait>) {
        self.wait.store(wait.map_or(0, |wait| wait as u8), Relaxed);
    }

    /// Why the direction waits.
    pub fn wait(&self) -> Option<Wait> {
        let wait = self.wait.load(Relaxed);
        [Wait::Memory, Wait::Tunnel].into_iter().find(|it| *it as u8 == wait)
    }
}

/// The counters for a direction's bytes: its flow's, and those of all flows of its worker.
#[derive(Debug, Clone, Copy)]
pub struct Books<'a> {
    /// Its own.
    pub flow: &'a DirectionBook,
    pub(super) all: &'a Counter,
}

impl Books<'_> {
    /// Adds bytes that were handed on.
    pub fn add(self, bytes: u64) {
        self.flow.add(bytes);
        self.all.add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_undelivered_is_known_where_it_is_confirmed() {
        let book = DirectionBook::default();
        assert_eq!(book.undelivered(), None);
        for bytes in [Some(0), Some(7), None, Some(0)] {
            book.set_undelivered(bytes);
            assert_eq!(book.undelivered(), bytes);
        }
    }

    #[test]
    fn a_wait_is_reported_until_it_is_over() {
        let book = DirectionBook::default();
        for wait in [None, Some(Wait::Memory), Some(Wait::Tunnel), None] {
            book.set_wait(wait);
            assert_eq!(book.wait(), wait);
        }
    }
}
