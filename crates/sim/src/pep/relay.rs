//! One direction of a flow: bytes that one end sent, on their way to the other.
//!
//! What the far side cannot take yet waits here, and until it is gone nothing more is read: the
//! sender's window closes by itself.
//!
//! A naive proxy that hoards reads on, whatever waits; that is all that makes it naive here. Others keep something
//! back for a while: what fills no segment (a cork), or all of it until it is complete (store and forward).
//!
//! Invariants: the end of the stream is passed on only after the last byte. No more waits than the
//! direction's stage, unless the proxy hoards. A direction that holds nothing may always move a little,
//! however many bytes all flows hold, so that no flow stands still for good.

use super::Shared;
use super::leg::{Keeps, Model};
use super::share::Share;
use crate::dialogue::Dialogue;
use crate::stack;
use midhop_experiment::record::LegResult;
use midhop_tcp::Endpoint;
use midhop_units::{Bytes, Duration, Instant};
use std::collections::BTreeMap;

/// How soon a direction that waits for the budget asks again.
pub(super) const WAIT: Duration = Duration::from_ms(10);
/// How long anything is kept back: of a corked connection that fills no segment (tcp(7), TCP_CORK), and of a bundle
/// since more of it came.
const KEPT: Duration = Duration::from_ms(200);

/// The bytes that all flows hold, and the most that they may.
#[derive(Debug)]
pub(super) struct Budget {
    held: u64,
    most: u64,
}

impl Budget {
    /// A budget of `most` bytes.
    pub fn new(most: u64) -> Self {
        Self { held: 0, most }
    }

    /// The bytes that all flows hold.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether flows hold all that they may.
    pub fn is_full(&self) -> bool {
        self.held >= self.most
    }

    /// One that held `before` holds so much now.
    pub fn recount(&mut self, before: u64, now: u64) {
        self.held = self.held + now - before;
    }
}

/// One end of a flow: its connection and what was written to it.
#[derive(Debug)]
pub(super) struct Leg {
    pub model: Model,
    pub endpoint: Endpoint,
    pub xcp: Dialogue,
    pub written: u64,
    /// What a full segment carries. Unit: bytes.
    pub segment: u64,
    /// The handshake is over.
    pub connected: bool,
    /// The far end sends no more.
    pub peer_closed: bool,
}

impl Leg {
    /// Adds what its connection did to the books of its leg.
    pub fn book(&self, now: Instant, books: &mut BTreeMap<String, LegResult>) {
        let link = &self.model.link;
        let fresh = || LegResult { link: link.clone(), ..LegResult::default() };
        let book = books.entry(link.clone()).or_insert_with(fresh);
        book.connections += 1;
        book.bytes += Bytes::new(self.endpoint.acknowledged());
        book.retransmissions += self.endpoint.counters().retransmissions;
        let rtt = self.endpoint.minimum_rtt();
        *book.phases.get_or_insert_default() += stack::phases(&self.endpoint, now);
        book.rtt_min = [book.rtt_min, rtt].into_iter().flatten().min();
    }
}

/// One direction.
#[derive(Debug)]
pub(super) struct RelayDirection {
    /// Read and not yet written. Unit: bytes.
    staged: u64,
    /// The end has been passed on.
    pub done: bool,
    /// What it holds, as last counted. Unit: bytes.
    pub held: u64,
    /// Handed on since the beginning. Unit: bytes.
    pub bytes: u64,
    share: Option<Share>,
    /// It waits for the budget, and asks again then.
    waiting: bool,
    waits: Instant,
    /// Since when something is kept back; never: nothing is.
    kept_since: Instant,
    /// Where segments are counted from: what was written when they last were not full.
    whole_from: u64,
    /// What may go of what is staged, since the bundle is complete. Unit: bytes.
    complete: u64,
}

impl RelayDirection {
    /// The direction that feeds a leg.
    pub fn feeding(leg: &Model) -> Self {
        Self {
            staged: 0,
            done: false,
            held: 0,
            bytes: 0,
            share: Share::of(leg),
            waiting: false,
            waits: Instant::NEVER,
            kept_since: Instant::NEVER,
            whole_from: 0,
            complete: 0,
        }
    }

    /// Moves what can be moved now; whether anything was.
    pub fn go(&mut self, now: Instant, from: &mut Leg, to: &mut Leg, shared: &mut Shared) -> bool {
        let mut any = false;
        let hoards = to.model.hoards;
        let stage = if hoards { u64::MAX } else { to.model.shares.stage.get() };
        while !self.done {
            let kept = self.kept_back(now, from, to);
            if self.staged > kept {
                let room = to.model.room(&to.endpoint, to.written);
                let taken = to.endpoint.write((self.staged - kept).min(room));
                self.staged -= taken;
                self.complete = self.complete.saturating_sub(taken);
                to.written += taken;
                self.bytes += taken;
                any |= taken > 0;
                if self.staged > kept && !hoards {
                    break;
                }
            }
            let readable = from.endpoint.readable();
            if readable == 0 {
                if from.peer_closed && self.staged == 0 {
                    to.endpoint.close();
                    self.done = true;
                    any = true;
                }
                break;
            }
            let on_its_way = to.written > to.endpoint.acknowledged();
            if !hoards && shared.budget.is_full() && on_its_way {
                if !std::mem::replace(&mut self.waiting, true) {
                    shared.counts.memory_waits += 1;
                }
                self.waits = now + WAIT;
                break;
            }
            self.waiting = false;
            let room = stage.saturating_sub(self.staged);
            if room == 0 {
                break;
            }
            let read = from.endpoint.read(now, room.min(readable));
            self.staged += read;
            any = true;
            if to.model.keeps == Keeps::All {
                self.kept_since = Instant::NEVER;
            }
            if let Some(share) = &mut self.share {
                share.before_write(now, read, &mut to.endpoint);
            }
        }
        self.count(from, to, shared);
        any
    }

    /// What is kept back of what is staged.
    fn kept_back(&mut self, now: Instant, from: &Leg, to: &Leg) -> u64 {
        let more_may_come = !from.peer_closed || from.endpoint.readable() > 0;
        let kept = match to.model.keeps {
            Keeps::Partial if more_may_come => {
                let partial = (to.written + self.staged - self.whole_from) % to.segment;
                partial.min(self.staged)
            }
            Keeps::All if more_may_come && self.staged < to.model.shares.stage.get() => {
                self.staged - self.complete
            }
            _ => 0,
        };
        if kept > 0 && self.kept_since == Instant::NEVER {
            self.kept_since = now;
        }
        if kept > 0 && now.saturating_since(self.kept_since) < KEPT {
            return kept;
        }
        self.kept_since = Instant::NEVER;
        self.complete = self.staged;
        if kept > 0 {
            self.whole_from = to.written + self.staged;
        }
        0
    }

    /// Looks at its share, if it is time to.
    pub fn follow(&mut self, now: Instant, to: &mut Leg) {
        if self.waits <= now {
            self.waits = Instant::NEVER;
        }
        if let Some(share) = &mut self.share {
            let sent = to.written - to.endpoint.unsent().min(to.written);
            share.follow(now, self.staged, sent, &mut to.endpoint);
        }
    }

    /// When it wants to be looked at.
    pub fn due(&self) -> Instant {
        let released = match self.kept_since {
            Instant::NEVER => Instant::NEVER,
            since => since + KEPT,
        };
        self.share.as_ref().map_or(Instant::NEVER, Share::due).min(self.waits).min(released)
    }

    /// Gives back what was counted: the flow is over.
    pub fn leave(&mut self, shared: &mut Shared) {
        if let Some(share) = &mut self.share {
            share.withdraw();
        }
        shared.budget.recount(self.held, 0);
        self.held = 0;
    }

    fn count(&mut self, from: &Leg, to: &Leg, shared: &mut Shared) {
        let queued = to.written - to.endpoint.acknowledged().min(to.written);
        let held = from.endpoint.readable() + self.staged + queued;
        shared.budget.recount(self.held, held);
        self.held = held;
    }
}
