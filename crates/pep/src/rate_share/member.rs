//! One flow's part in the rate of the leg that it sends into.
//!
//! A flow that begins is paced by what it might have, and counted once it is more than a message. While it has a backlog it
//! looks at the pool from time to time, says what it wants, and is paced by what it gets; one without a backlog is not counted
//! and costs nothing.
//!
//! Invariant: whatever a flow has entered into a pool it takes out again, at the latest when it is dropped.

use super::{Demand, Pool};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::sync::Arc;

/// A flow that moved less than this since it had no backlog is not counted yet: it is a message.
const MESSAGE: Bytes = Bytes::new(16 << 10);
/// A pace is set anew where it differs by more than this part of it.
const STEP: u64 = 32;
/// Between two looks, within these bounds an eighth of a round trip.
const LOOK_LEAST: Duration = Duration::from_ms(20);
const LOOK_MOST: Duration = Duration::from_ms(250);
/// Looks over which it is measured what a flow takes: two round trips.
const LOOKS_MEASURED: u32 = 16;

/// One flow's part in a pool.
#[derive(Debug)]
pub struct Member {
    pool: Arc<Pool>,
    /// The leg's own bound on a flow.
    most: Option<Rate>,
    period: Duration,
    /// What it is paced by; none: as it was opened.
    set: Option<Rate>,
    /// What is entered in the pool; none: nothing.
    demand: Option<Demand>,
    /// Moved since there was no backlog.
    moved: Bytes,
    measured: Option<Measured>,
}

/// The start of a measurement.
#[derive(Debug, Clone, Copy)]
struct Measured {
    since: Instant,
    /// What had left by then.
    sent: Bytes,
    looks: u32,
}

impl Member {
    /// A flow of a leg whose flows divide `pool`. A round trip over the leg takes `rtt`, and no flow may send more than `most`.
    pub fn new(pool: Arc<Pool>, rtt: Option<Duration>, most: Option<Rate>) -> Self {
        let period = rtt.map_or(LOOK_LEAST, |rtt| Duration::from_ns(rtt.as_ns() / 8));
        Self {
            pool,
            most,
            period: period.clamp(LOOK_LEAST, LOOK_MOST),
            set: None,
            demand: None,
            moved: Bytes::ZERO,
            measured: None,
        }
    }

    /// How long after one look the next is due.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Whether there is nothing to look at.
    pub fn is_idle(&self) -> bool {
        self.moved == Bytes::ZERO && self.demand.is_none()
    }

    /// Before `bytes` are written: what the flow is paced by from now on, where that changes.
    pub fn before_write(&mut self, bytes: Bytes) -> Option<Rate> {
        if self.demand.is_some() {
            return None;
        }
        self.moved += bytes;
        if self.moved > MESSAGE {
            self.pool.enter(Demand::Greedy);
            self.demand = Some(Demand::Greedy);
            self.pace(self.pool.share())
        } else {
            self.pace(self.pool.prospect())
        }
    }

    /// Looks at the pool; the flow has a backlog, and `sent` so much of all that it ever wrote. Gives what it is paced by from
    /// now on, where that changes.
    pub fn look(&mut self, now: Instant, sent: Bytes) -> Option<Rate> {
        let demand = self.demand?;
        let start = Measured { since: now, sent, looks: 0 };
        let measured = self.measured.get_or_insert(start);
        measured.looks += 1;
        let moved = sent.saturating_sub(measured.sent);
        let whole = Duration::from_ns(self.period.as_ns().saturating_mul(LOOKS_MEASURED.into()));
        if measured.looks > LOOKS_MEASURED {
            let rate = Rate::of(moved, now.saturating_since(measured.since));
            self.measured = Some(start);
            self.want(Demand::of(rate, self.set.unwrap_or(rate)));
        } else if matches!(demand, Demand::Limited(rate) if moved > rate.bytes_in(whole)) {
            // It has come up: the others learn of it before the measurement is over.
            self.measured = Some(start);
            self.want(Demand::Greedy);
        }
        self.pace(self.pool.share_for(self.demand.unwrap_or(Demand::Greedy)))
    }

    /// Nothing more waits to be sent.
    pub fn withdraw(&mut self) {
        if let Some(demand) = self.demand.take() {
            self.pool.leave(demand);
        }
        self.moved = Bytes::ZERO;
        self.measured = None;
    }

    fn want(&mut self, demand: Demand) {
        if let Some(before) = self.demand.replace(demand) {
            self.pool.leave(before);
        }
        self.pool.enter(demand);
    }

    fn pace(&mut self, share: Rate) -> Option<Rate> {
        let share = self.most.map_or(share, |most| share.min(most));
        let differs = self.set.is_none_or(|set| {
            set.bits_per_s().abs_diff(share.bits_per_s()) > set.bits_per_s() / STEP
        });
        differs.then(|| {
            self.set = Some(share);
            share
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.withdraw();
    }
}
