//! One direction of a flow: bytes from one end, on their way to the other.
//!
//! Data that the far side cannot take yet waits here, and nothing more is read before it is gone: the
//! sender's window closes by itself.
//!
//! A naive proxy that hoards reads on in any case; this is its only difference here. Others hold data
//! back for a while: less than a full segment (a cork), or everything until it is complete (store and forward).
//!
//! Invariants: the end of the stream is forwarded only after the last byte. The waiting data never exceeds the
//! direction's stage, unless the proxy hoards. A direction that holds nothing may always move a little,
//! however many bytes all flows hold, so that no flow stalls for good.

use super::Shared;
use super::leg::{Keeps, Model};
use super::share::Share;
use crate::dialogue::Dialogue;
use crate::stack;
use midhop_experiment::record::{LegResult, PhaseTimes};
use midhop_pep::budget::{self, Budget, BudgetPart};
use midhop_pep::relay::{Direction, Step, Turn};
use midhop_tcp::Endpoint;
use midhop_units::{Bytes, Duration, Instant};
use std::collections::BTreeMap;
use std::sync::Arc;

/// In virtual time no other work waits for a worker.
pub(super) const TURN: Turn = Turn::new(u64::MAX);
/// How long data is held back: less than a full segment of a corked connection (tcp(7), TCP_CORK), and a bundle
/// since its last byte arrived.
const KEPT: Duration = Duration::from_ms(200);

/// One end of a flow: its connection and the bytes written to it.
#[derive(Debug)]
pub(super) struct Leg {
    pub model: Model,
    pub endpoint: Endpoint,
    pub xcp: Dialogue,
    pub written: u64,
    /// The payload of a full segment. Unit: bytes.
    pub segment: u64,
    /// The handshake is over.
    pub connected: bool,
    /// The far end has ended its stream.
    pub peer_closed: bool,
    /// The counts that an earlier proxy has already recorded.
    pub booked: Booked,
}

/// The recorded counts of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Booked {
    bytes: u64,
    retransmissions: u64,
    phases: PhaseTimes,
}

impl Leg {
    /// Adds its connection's counts to those of its leg.
    pub fn book(&self, now: Instant, books: &mut BTreeMap<String, LegResult>) {
        let link = &self.model.link;
        let fresh = || LegResult { link: link.clone(), ..LegResult::default() };
        let book = books.entry(link.clone()).or_insert_with(fresh);
        let fresh = self.counted(now);
        book.connections += 1;
        book.bytes += Bytes::new(fresh.bytes - self.booked.bytes);
        book.retransmissions += fresh.retransmissions - self.booked.retransmissions;
        let rtt = self.endpoint.minimum_rtt();
        *book.phases.get_or_insert_default() += fresh.phases.since(&self.booked.phases);
        book.rtt_min = [book.rtt_min, rtt].into_iter().flatten().min();
    }

    fn counted(&self, now: Instant) -> Booked {
        Booked {
            bytes: self.endpoint.acknowledged(),
            retransmissions: self.endpoint.counters().retransmissions,
            phases: stack::phases(&self.endpoint, now),
        }
    }

    /// Marks its counts so far as recorded by a proxy.
    pub fn mark_booked(&mut self, now: Instant) {
        self.booked = self.counted(now);
    }

    /// Moves it to a leg of another proxy. The connection keeps its congestion control.
    pub fn settle_at(&mut self, model: Model) {
        self.endpoint.congestion_control().cap(model.pacing);
        self.model = model;
    }
}

/// One direction.
#[derive(Debug)]
pub(super) struct RelayDirection {
    pub state: Direction,
    /// Read and not yet written. Unit: bytes.
    staged: u64,
    /// How much it holds, as last counted.
    pub held: BudgetPart,
    share: Option<Share>,
    /// The next try, while it waits for the budget.
    waits: Instant,
    /// Since when data is held back; `NEVER`: nothing is.
    kept_since: Instant,
    /// The start for counting segments: the bytes written when they last were not full.
    whole_from: u64,
    /// The part of the staged data that may go, since the bundle is complete. Unit: bytes.
    complete: u64,
}

impl RelayDirection {
    /// The direction that feeds a leg, where `budget` limits what flows hold.
    pub fn feeding(leg: &Model, budget: &Arc<Budget>) -> Self {
        Self {
            state: Direction::default(),
            staged: 0,
            held: BudgetPart::new(budget.clone()),
            share: Share::of(leg),
            waits: Instant::NEVER,
            kept_since: Instant::NEVER,
            whole_from: 0,
            complete: 0,
        }
    }

    /// Moves all data that can be moved now; returns whether any was.
    pub fn go(&mut self, now: Instant, from: &mut Leg, to: &mut Leg, shared: &mut Shared) -> bool {
        let mut any = false;
        let hoards = to.model.hoards;
        loop {
            let kept = self.kept_back(now, from, to);
            let must_wait = || {
                let on_its_way = || to.written > to.endpoint.acknowledged();
                !hoards && from.endpoint.readable() > 0 && shared.budget.must_wait(on_its_way)
            };
            match self.state.step(self.staged > kept, TURN, must_wait) {
                Step::Write => {
                    any |= self.write(kept, to) > 0;
                    // A hoarding proxy reads on in any case.
                    if self.staged > kept && !(hoards && self.read(now, from, to) > 0) {
                        break;
                    }
                    any = true;
                }
                Step::Read => {
                    if self.read(now, from, to) > 0 {
                        any = true;
                    } else if from.peer_closed && from.endpoint.readable() == 0 {
                        self.state.end();
                    } else {
                        break;
                    }
                }
                Step::End => {
                    to.endpoint.close();
                    self.state.finish();
                    any = true;
                }
                Step::Wait { begins } => {
                    shared.counts.memory_waits += u64::from(begins);
                    self.waits = now + budget::LOOK_AGAIN;
                    break;
                }
                Step::Cut | Step::Yield | Step::Done => break,
            }
        }
        self.count(from, to);
        any
    }

    /// Reads as much as there is room for. Unit: bytes.
    fn read(&mut self, now: Instant, from: &mut Leg, to: &mut Leg) -> u64 {
        let stage = if to.model.hoards { u64::MAX } else { to.model.shares.stage.get() };
        let room = stage.saturating_sub(self.staged).min(from.endpoint.readable());
        if room == 0 {
            return 0;
        }
        let read = from.endpoint.read(now, room);
        self.staged += read;
        if to.model.keeps == Keeps::All {
            self.kept_since = Instant::NEVER;
        }
        if let Some(share) = &mut self.share {
            share.before_write(now, read, &mut to.endpoint);
        }
        read
    }

    /// Writes as much as there is room for, except data that is held back. Unit: bytes.
    fn write(&mut self, kept: u64, to: &mut Leg) -> u64 {
        let room = to.model.room(&to.endpoint, to.written);
        let taken = to.endpoint.write((self.staged - kept).min(room));
        self.staged -= taken;
        self.complete = self.complete.saturating_sub(taken);
        to.written += taken;
        self.state.count(taken);
        taken
    }

    /// The part of the staged data that is held back.
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

    /// Updates its share, if it is time to.
    pub fn follow(&mut self, now: Instant, to: &mut Leg) {
        if self.waits <= now {
            self.waits = Instant::NEVER;
        }
        if let Some(share) = &mut self.share {
            let sent = to.written - to.endpoint.unsent().min(to.written);
            share.follow(now, self.staged, sent, &mut to.endpoint);
        }
    }

    /// The time of its next call.
    pub fn due(&self) -> Instant {
        let released = match self.kept_since {
            Instant::NEVER => Instant::NEVER,
            since => since + KEPT,
        };
        self.share.as_ref().map_or(Instant::NEVER, Share::due).min(self.waits).min(released)
    }

    /// Read and not yet written. Unit: bytes.
    pub fn staged(&self) -> u64 {
        self.staged
    }

    /// Moves it to feed `to` at another proxy, whose `budget` limits what flows hold.
    pub fn settle_at(&mut self, now: Instant, to: &mut Leg, budget: &Arc<Budget>) {
        self.held = BudgetPart::new(budget.clone());
        self.share = Share::of(&to.model);
        let waiting = self.staged + to.endpoint.unsent();
        if let Some(share) = self.share.as_mut().filter(|_| waiting > 0) {
            share.before_write(now, waiting, &mut to.endpoint);
        }
    }

    /// For tests: checks that all that was read is written, or waits.
    ///
    /// # Panics
    /// When a byte is lost, or doubled.
    pub fn check_invariants(&self, from: &Leg, to: &Leg) {
        let read = from.endpoint.received() - from.endpoint.readable();
        assert_eq!(read, self.state.moved() + self.staged, "read, and written or waiting");
        assert_eq!(to.written, self.state.moved(), "written, and counted");
    }

    /// Releases its counted bytes: the flow is over.
    pub fn leave(&mut self) {
        if let Some(share) = &mut self.share {
            share.withdraw();
        }
        self.held.set(0);
    }

    fn count(&mut self, from: &Leg, to: &Leg) {
        let queued = to.written - to.endpoint.acknowledged().min(to.written);
        self.held.set(from.endpoint.readable() + self.staged + queued);
    }
}
