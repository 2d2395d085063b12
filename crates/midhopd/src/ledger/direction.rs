//! What one direction of a flow has carried, and what it waits for.

use super::Counter;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// What a direction waits for inside midhopd, before its bytes are written to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Memory: all flows together hold what they may.
    Memory = 1,
    /// The tunnel that it goes into: its windows, or its rate.
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
    /// Whether the other end of its tunnel confirms what it passes on.
    is_confirmed: AtomicBool,
}

impl DirectionBook {
    /// So many bytes more were handed on.
    pub fn add(&self, bytes: u64) {
        self.bytes.add(bytes);
    }

    /// Unit: bytes. What was handed on.
    pub fn value(&self) -> u64 {
        self.bytes.value()
    }

    /// So many bytes went into its tunnel, whose other end has not confirmed them as passed on; none: it confirms nothing.
    pub fn set_undelivered(&self, bytes: Option<u64>) {
        self.undelivered.set(bytes.unwrap_or(0));
        self.is_confirmed.store(bytes.is_some(), Relaxed);
    }

    /// Unit: bytes. What went into its tunnel, and is not confirmed as passed on; none where nobody confirms that.
    pub fn undelivered(&self) -> Option<u64> {
        self.is_confirmed.load(Relaxed).then(|| self.undelivered.value())
    }

    /// From now on it waits for this, or for nothing here.
    pub fn set_wait(&self, wait: Option<Wait>) {
        self.wait.store(wait.map_or(0, |wait| wait as u8), Relaxed);
    }

    /// What it waits for.
    pub fn wait(&self) -> Option<Wait> {
        let wait = self.wait.load(Relaxed);
        [Wait::Memory, Wait::Tunnel].into_iter().find(|it| *it as u8 == wait)
    }
}

/// Where a direction's bytes are booked: with its flow, and with all flows of its worker.
#[derive(Debug, Clone, Copy)]
pub struct Books<'a> {
    /// Its own.
    pub flow: &'a DirectionBook,
    pub(super) all: &'a Counter,
}

impl Books<'_> {
    /// So many bytes more were handed on.
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
