//! The sender's window of datagrams, and their repairs.

use super::WINDOW_MAX;
use super::field::{add_multiple, coefficient};
use super::wire::{self, NUMBERS, Repair, SOURCE_LEN};
use bytes::{BufMut, Bytes, BytesMut};
use midhop_units::Instant;
use std::collections::VecDeque;

/// The last datagrams, as many as a repair may cover.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    /// With their headers, and when each was taken.
    window: VecDeque<(Bytes, Instant)>,
    /// The number of the next datagram.
    next: u32,
    /// Repairs made, modulo their indices.
    repairs: u8,
}

impl Encoder {
    /// Numbers a datagram and keeps it for repairs.
    pub fn take(&mut self, now: Instant, datagram: &[u8]) -> Bytes {
        let written = wire::source(self.next, datagram);
        self.next = (self.next + 1) % NUMBERS;
        if self.window.len() == WINDOW_MAX {
            self.window.pop_front();
        }
        self.window.push_back((written.clone(), now));
        written
    }

    /// Drops all but the newest `count_max`, and those taken before `since`; keeps at least `count_min`.
    pub fn narrow(&mut self, since: Instant, count_max: usize, count_min: usize) {
        let excess = self.window.len().saturating_sub(count_max);
        self.window.drain(..excess);
        let is_old = |(_, at): &(Bytes, Instant)| *at < since;
        while self.window.len() > count_min && self.window.front().is_some_and(is_old) {
            self.window.pop_front();
        }
    }

    /// Protects later datagrams separately from earlier ones.
    pub fn begin_again(&mut self) {
        self.window.clear();
    }

    /// How many datagrams the next repair covers.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// The size of the next repair. Unit: bytes.
    pub fn repair_len(&self) -> usize {
        let longest = self.window.iter().map(|(datagram, _)| datagram.len() - SOURCE_LEN).max();
        wire::REPAIR_LEN + wire::LENGTH_LEN + longest.unwrap_or(0)
    }

    /// The next repair: a sum of the window, different each time.
    pub fn repair(&mut self) -> Option<Repair> {
        let count = u8::try_from(self.window.len()).ok().filter(|count| *count > 0)?;
        let first = (self.next + NUMBERS - u32::from(count)) % NUMBERS;
        let index = self.repairs % 128;
        self.repairs = self.repairs.wrapping_add(1);
        let mut sum = BytesMut::zeroed(self.repair_len() - wire::REPAIR_LEN);
        for ((datagram, _), number) in self.window.iter().zip(first..) {
            let datagram = &datagram[SOURCE_LEN..];
            add_symbol(&mut sum, datagram, coefficient(index, number % NUMBERS));
        }
        Some(Repair { first, count, index, symbol: sum.freeze() })
    }
}

/// Adds a datagram's symbol, multiplied by `factor`: its length, and the datagram.
pub(super) fn add_symbol(sum: &mut [u8], datagram: &[u8], factor: u8) {
    let mut length = [0; wire::LENGTH_LEN];
    (&mut length[..]).put_u16(u16::try_from(datagram.len()).unwrap_or(u16::MAX));
    let (head, rest) = sum.split_at_mut(wire::LENGTH_LEN.min(sum.len()));
    add_multiple(head, &length, factor);
    add_multiple(rest, datagram, factor);
}
