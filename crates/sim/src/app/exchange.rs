//! Request and response over one connection, as in the testbed's meter: the same messages, with the same
//! lengths, so that a run here puts the same number of bytes on the wire.
//!
//! ```text
//! download  opener: [preface] request             listener: accept, header, payload, end mark
//! upload    opener: [preface] request, header,    listener: accept … received
//!                   payload, end mark
//! ```
//! An end knows only how many bytes it has read; their meaning follows from their number.

use crate::host::Hosts;
use crate::packet::{End, FlowId};
use midhop_units::{Duration, Instant};

/// Opens a connection. Unit of all of these: bytes.
const PREFACE: u64 = 15;
/// Requests something: the frame's header and its JSON.
const REQUEST: u64 = 167;
/// Accepts.
const ACCEPT: u64 = 94;
/// Begins a data frame.
const HEADER: u64 = 9;
/// Ends the payload, with its hash.
const END_MARK: u64 = 67;
/// Reports after an upload what arrived.
const RECEIVED: u64 = 132;

/// The amount to transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// As much as possible in this time.
    Time(Duration),
}

/// The item that the connection transfers now.
#[derive(Debug, Clone, Copy)]
struct Item {
    amount: Amount,
    /// How much each end had read before, by [`End::index`].
    read_before: [u64; 2],
    /// The bytes that the sender writes before the payload.
    preamble: u64,
    /// The bytes that the listener must have read to know the request.
    request: u64,
    /// The listener has responded.
    answered: bool,
    /// The listener has reported that everything has arrived.
    confirmed: bool,
    /// Payload, once the sender knows it.
    length: Option<u64>,
    first_byte: Option<Instant>,
    last_byte: Option<Instant>,
    arrived: u64,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Step {
    /// Payload newly received.
    pub arrived: u64,
    /// The item is complete, and the end that requested it knows.
    pub complete: Option<Moved>,
    /// When to call [`Exchange::finish`]: the sender has begun to send for a time.
    pub finish_at: Option<Instant>,
}

/// A complete item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// Payload.
    pub bytes: u64,
    /// When its first byte arrived.
    pub first_byte: Instant,
    /// When its last byte arrived.
    pub last_byte: Instant,
}

/// A connection and its current request.
#[derive(Debug)]
pub(super) struct Exchange {
    pub flow: FlowId,
    sender: End,
    /// How much each end has read, by [`End::index`].
    read: [u64; 2],
    opened: bool,
    item: Option<Item>,
}

impl Exchange {
    /// A new connection, over which `sender` sends.
    pub fn new(flow: FlowId, sender: End) -> Self {
        Self { flow, sender, read: [0; 2], opened: false, item: None }
    }

    /// The end that sends payload.
    pub const fn sender(&self) -> End {
        self.sender
    }

    /// The opener requests `amount`, or announces it where it sends itself.
    pub fn ask(&mut self, hosts: &mut Hosts, now: Instant, amount: Amount) -> Step {
        let preface = if self.opened { 0 } else { PREFACE };
        self.opened = true;
        let request = preface + REQUEST;
        let uploads = self.sender == End::Opener;
        self.item = Some(Item {
            amount,
            read_before: self.read,
            preamble: if uploads { request + HEADER } else { ACCEPT + HEADER },
            request,
            answered: false,
            confirmed: false,
            length: None,
            first_byte: None,
            last_byte: None,
            arrived: 0,
        });
        if uploads {
            self.send(hosts, now)
        } else {
            hosts.write(self.flow, End::Opener, request);
            Step::default()
        }
    }

    /// An end has read `total` bytes since the connection began.
    pub fn read(&mut self, hosts: &mut Hosts, now: Instant, end: End, total: u64) -> Step {
        self.read[end.index()] = total;
        let Some(item) = &mut self.item else { return Step::default() };
        let mut step = Step::default();
        let of_item = total - item.read_before[end.index()];
        if end == self.sender.other() {
            let behind_preamble = of_item.saturating_sub(item.preamble);
            let payload = behind_preamble.min(item.length.unwrap_or(u64::MAX));
            step.arrived = payload.saturating_sub(item.arrived);
            if step.arrived > 0 {
                item.first_byte.get_or_insert(now);
                item.last_byte = Some(now);
                item.arrived = payload;
            }
        }
        if end == End::Listener && !item.answered && of_item >= item.request {
            item.answered = true;
            match self.sender {
                End::Listener => step.finish_at = self.send(hosts, now).finish_at,
                End::Opener => hosts.write(self.flow, End::Listener, ACCEPT),
            }
        }
        let Some(item) = &mut self.item else { return step };
        let Some(length) = item.length else { return step };
        let whole = item.preamble + length + END_MARK;
        let complete = match (self.sender, end) {
            (End::Listener, End::Opener) => of_item >= whole,
            (End::Opener, End::Listener) => {
                if of_item >= whole && !item.confirmed {
                    item.confirmed = true;
                    hosts.write(self.flow, End::Listener, RECEIVED);
                }
                false
            }
            (End::Opener, End::Opener) => of_item >= ACCEPT + RECEIVED,
            (End::Listener, End::Listener) => false,
        };
        if complete {
            step.complete = Some(Moved {
                bytes: length,
                first_byte: item.first_byte.unwrap_or(now),
                last_byte: item.last_byte.unwrap_or(now),
            });
            self.item = None;
        }
        step
    }

    /// The sender writes everything of the item, or begins to.
    fn send(&mut self, hosts: &mut Hosts, now: Instant) -> Step {
        let Some(item) = &mut self.item else { return Step::default() };
        match item.amount {
            Amount::Bytes(bytes) => {
                item.length = Some(bytes);
                hosts.write(self.flow, self.sender, item.preamble + bytes + END_MARK);
                Step::default()
            }
            Amount::Time(span) => {
                hosts.write(self.flow, self.sender, item.preamble);
                hosts.write_on(self.flow, self.sender);
                Step { finish_at: Some(now + span), ..Step::default() }
            }
        }
    }

    /// The time to send is over: everything to send is written.
    pub fn finish(&mut self, hosts: &mut Hosts) {
        if let Some(item) = self.item.as_mut().filter(|item| item.length.is_none()) {
            // A sender that has given up no longer knows how much it wrote.
            let written = hosts.write_no_more(self.flow, self.sender);
            item.length = Some(written.max(item.arrived));
            hosts.write(self.flow, self.sender, END_MARK);
        }
    }
}
