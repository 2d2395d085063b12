//! How one end handles the datagrams that it receives: which it keeps, and which it answers.
//!
//! Invariant: whoever sends the datagrams, memory is bounded, and no answer is longer than the
//! datagram that it answers.

use super::estimate::{Arrived, TrainArrival};
use super::message::Sent;
use super::train::{PACKET, PACKETS_MAX, Train};
use super::wire::{Datagram, Kind, Token};
use std::time::Instant;

/// Most pings of a session: the limit of answers, and of answers that are kept.
const PINGS_MAX: usize = 2_000;

/// The answer to one ping. Each time is of the clock of the end that took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pong {
    pub(super) number: u32,
    pub(super) ping_sent_ns: u64,
    pub(super) ping_received_ns: u64,
    pub(super) sent_ns: u64,
    pub(super) at_ns: u64,
}

/// How a datagram was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receipt {
    /// When the kernel received it. Clock: `CLOCK_REALTIME`.
    pub(super) at_ns: u64,
    /// Datagrams that the socket had no room for so far, where the kernel reports it.
    pub(super) overflowed: Option<u32>,
    /// The moment on the clock that waits use.
    pub(super) now: Instant,
}

#[derive(Debug)]
pub(super) struct Inbox {
    token: Token,
    /// Whether this end answers pings and hellos: true at the server.
    answers: bool,
    /// The expected train; packets of others are ignored.
    train: Option<Train>,
    arrivals: Vec<TrainArrival>,
    /// When its last packet arrived.
    last: Option<Instant>,
    pings: usize,
    pongs: Vec<Pong>,
    seen: bool,
    overflowed: u32,
    overflowed_before: u32,
    received_bytes: u64,
}

impl Inbox {
    pub(super) fn new(token: Token, answers: bool) -> Self {
        Self {
            token,
            answers,
            train: None,
            arrivals: Vec::new(),
            last: None,
            pings: 0,
            pongs: Vec::new(),
            seen: false,
            overflowed: 0,
            overflowed_before: 0,
            received_bytes: 0,
        }
    }

    /// Whether anything was received from the far end.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }

    /// The answers to pings so far.
    pub(super) fn pongs(&self) -> &[Pong] {
        &self.pongs
    }

    /// Packets of trains so far, headers included. Unit: bytes.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Handles a datagram that was received, and gives the answer to it, if any.
    pub(super) fn take(&mut self, bytes: &[u8], receipt: Receipt) -> Option<Datagram> {
        let datagram = Datagram::decode(bytes).filter(|read| read.token == self.token)?;
        self.seen = true;
        self.overflowed = receipt.overflowed.unwrap_or(self.overflowed);
        let answer = Datagram { number: datagram.number, ..Datagram::new(self.token, Kind::Pong) };
        match datagram.kind {
            Kind::Train => {
                self.received_bytes = self.received_bytes.saturating_add(PACKET);
                let awaited = self.train.is_some_and(|train| train.id == datagram.train);
                if awaited && self.arrivals.len() < PACKETS_MAX as usize {
                    self.last = Some(receipt.now);
                    self.arrivals.push(TrainArrival {
                        number: datagram.number,
                        sent_ns: datagram.sent_ns,
                        at_ns: receipt.at_ns,
                    });
                }
                None
            }
            Kind::Hello | Kind::Ping if self.answers && self.pings < PINGS_MAX => {
                self.pings += 1;
                Some(if datagram.kind == Kind::Hello {
                    Datagram { kind: Kind::Seen, ..answer }
                } else {
                    let (ping_received_ns, ping_sent_ns) = (receipt.at_ns, datagram.sent_ns);
                    Datagram { ping_received_ns, ping_sent_ns, ..answer }
                })
            }
            Kind::Pong if !self.answers && self.pongs.len() < PINGS_MAX => {
                self.pongs.push(Pong {
                    number: datagram.number,
                    ping_sent_ns: datagram.ping_sent_ns,
                    ping_received_ns: datagram.ping_received_ns,
                    sent_ns: datagram.sent_ns,
                    at_ns: receipt.at_ns,
                });
                None
            }
            _ => None,
        }
    }

    /// Discards earlier arrivals, and expects `train`.
    pub(super) fn expect(&mut self, train: Train) {
        self.train = Some(train);
        self.arrivals = Vec::new();
        self.overflowed_before = self.overflowed;
    }

    /// How many packets of the expected train have arrived.
    pub(super) fn arrivals(&self) -> usize {
        self.arrivals.len()
    }

    /// When the last one arrived.
    pub(super) fn last(&self) -> Option<Instant> {
        self.last
    }

    /// Evaluates the arrivals of the expected train, of which the packets in `sent` were sent, and
    /// expects none any more.
    pub(super) fn collect(&mut self, sent: Sent) -> Arrived {
        let most = self.train.take().map_or(0, |train| train.packets);
        let arrivals = std::mem::take(&mut self.arrivals);
        let overflowed = self.overflowed.wrapping_sub(self.overflowed_before);
        Arrived::of(&arrivals, sent.packets.min(most), u64::from(overflowed))
    }
}
