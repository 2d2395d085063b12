//! A direction's share of the leg that it feeds, where the leg's rate is known.
//!
//! The shares of a leg are counted over all workers in a few atomic numbers. Each direction that has
//! more to send than it may looks at them from time to time, tells what it wants, and paces its socket
//! by what it gets; one without a backlog is not counted and costs nothing.
//!
//! Invariant: whatever a direction has entered into a pool it takes out again, at the latest when it is
//! dropped.

use crate::leg::Backlog;
use crate::sockopt;
use midhop_pep::config::LegPlan;
use midhop_pep::share::{Demand, Demands, floor, payload};
use midhop_units::{Bytes, Duration, Rate};
use nix::libc;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A direction that moved less than this since it had no backlog is not counted yet: it is a message.
const MESSAGE_BYTES: u64 = 16 << 10;
/// A share is set anew where it differs by more than this part of it.
const STEP: u64 = 32;
/// Between two looks, within these bounds an eighth of a round trip.
const LOOK_LEAST: Duration = Duration::from_ms(20);
const LOOK_MOST: Duration = Duration::from_ms(250);
/// Looks over which it is measured what a direction takes: two round trips.
const LOOKS_MEASURED: u32 = 16;

/// The pools of all legs, by name.
#[derive(Debug, Default)]
pub struct Pools(Mutex<BTreeMap<String, Arc<Pool>>>);

impl Pools {
    /// Every leg's pool that was ever used.
    pub fn all(&self) -> BTreeMap<String, Arc<Pool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pool of a leg whose flows divide its rate.
    pub fn of(&self, leg: &LegPlan) -> Option<Arc<Pool>> {
        let rate = leg.rate.filter(|_| leg.share)?;
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = match pools.get(&leg.name) {
            Some(pool) => pool.clone(),
            None => pools.entry(leg.name.clone()).or_default().clone(),
        };
        // A leg that was reloaded keeps its flows, with the new rate.
        pool.payload.store(payload(rate).bits_per_s(), Relaxed);
        pool.floor.store(floor(rate, leg.rtt).bits_per_s(), Relaxed);
        Some(pool)
    }
}

/// What the flows of one leg want and may have. Unit of all rates: bits per second.
#[derive(Debug, Default)]
pub struct Pool {
    payload: AtomicU64,
    floor: AtomicU64,
    greedy: AtomicU64,
    limited: AtomicU64,
    limited_rate: AtomicU64,
}

impl Pool {
    fn demands(&self) -> Demands {
        Demands {
            greedy: self.greedy.load(Relaxed),
            limited: self.limited.load(Relaxed),
            limited_rate: Rate::from_bits_per_s(self.limited_rate.load(Relaxed)),
        }
    }

    fn share_among(&self, demands: Demands, demand: Demand) -> Rate {
        let of = |number: &AtomicU64| Rate::from_bits_per_s(number.load(Relaxed));
        demands.share(demand, of(&self.payload), of(&self.floor))
    }

    /// Flows that have more to send than they may.
    pub fn senders(&self) -> u64 {
        let demands = self.demands();
        demands.greedy + demands.limited
    }

    /// What each of them may send at most, if it wants all it can get.
    pub fn share(&self) -> Rate {
        self.share_for(Demand::Greedy)
    }

    /// What a flow may send that is counted.
    fn share_for(&self, demand: Demand) -> Rate {
        self.share_among(self.demands(), demand)
    }

    /// What one more flow might send.
    fn prospect(&self) -> Rate {
        let demands = self.demands();
        self.share_among(Demands { greedy: demands.greedy + 1, ..demands }, Demand::Greedy)
    }

    fn enter(&self, demand: Demand) {
        match demand {
            Demand::Greedy => {
                self.greedy.fetch_add(1, Relaxed);
            }
            Demand::Limited(rate) => {
                self.limited.fetch_add(1, Relaxed);
                self.limited_rate.fetch_add(rate.bits_per_s(), Relaxed);
            }
        }
    }

    fn leave(&self, demand: Demand) {
        match demand {
            Demand::Greedy => {
                self.greedy.fetch_sub(1, Relaxed);
            }
            Demand::Limited(rate) => {
                self.limited.fetch_sub(1, Relaxed);
                self.limited_rate.fetch_sub(rate.bits_per_s(), Relaxed);
            }
        }
    }
}

/// One direction's part in a pool.
#[derive(Debug)]
pub struct Share {
    pool: Arc<Pool>,
    /// The leg's own bound on a flow.
    most: Option<Rate>,
    period: Duration,
    /// What the socket is paced by; none: as it was opened.
    set: Option<Rate>,
    /// What is entered in the pool; none: nothing.
    demand: Option<Demand>,
    /// Unit: bytes. Moved since there was no backlog.
    moved: u64,
    backlog: Option<Measured>,
    look: Option<Pin<Box<Sleep>>>,
}

/// The start of a measurement.
#[derive(Debug)]
struct Measured {
    since: Instant,
    sent: u64,
    looks: u32,
}

impl Share {
    /// A direction that feeds `leg`; none where nothing is divided.
    pub fn of(leg: &LegPlan, pools: &Pools) -> Option<Box<Self>> {
        let pool = pools.of(leg)?;
        let period = leg.rtt.map_or(LOOK_LEAST, |rtt| Duration::from_ns(rtt.as_ns() / 8));
        let period = period.clamp(LOOK_LEAST, LOOK_MOST);
        Some(Box::new(Self {
            pool,
            most: leg.pacing,
            period,
            set: None,
            demand: None,
            moved: 0,
            backlog: None,
            look: None,
        }))
    }

    /// Before `bytes` are written: a direction that begins is paced by what it might have, and counted
    /// once it is more than a message.
    pub fn before_write(&mut self, bytes: usize, to: &TcpStream) {
        if self.demand.is_some() {
            return;
        }
        self.moved += bytes as u64;
        if self.moved > MESSAGE_BYTES {
            self.pool.enter(Demand::Greedy);
            self.demand = Some(Demand::Greedy);
            self.pace(self.pool.share(), to);
        } else {
            self.pace(self.pool.prospect(), to);
        }
    }

    /// Looks if it is time to, and says whether it did. `staged` bytes wait between the sockets.
    pub fn look(&mut self, cx: &mut Context<'_>, staged: usize, to: &TcpStream) -> bool {
        let due = self.look.as_mut().is_some_and(|look| look.as_mut().poll(cx).is_ready());
        if due {
            self.look = None;
            self.judge(Backlog::of(to), staged, Instant::now(), to);
        }
        due
    }

    /// Takes what was seen of the socket at `now`.
    fn judge(&mut self, backlog: Option<Backlog>, staged: usize, now: Instant, to: &TcpStream) {
        let Some(backlog) = backlog.filter(|backlog| backlog.unsent > 0 || staged > 0) else {
            self.withdraw();
            return;
        };
        let Some(demand) = self.demand else { return };
        let start = Measured { since: now, sent: backlog.sent, looks: 0 };
        let measured = self.backlog.get_or_insert(start);
        measured.looks += 1;
        let sent = Bytes::new(backlog.sent.saturating_sub(measured.sent));
        let whole = Duration::from_ns(self.period.as_ns().saturating_mul(LOOKS_MEASURED.into()));
        if measured.looks > LOOKS_MEASURED {
            let time = now.duration_since(measured.since).as_nanos();
            let time = Duration::from_ns(u64::try_from(time).unwrap_or(u64::MAX));
            let rate = Rate::of(sent, time);
            self.backlog = Some(Measured { since: now, sent: backlog.sent, looks: 0 });
            self.want(Demand::of(rate, self.set.unwrap_or(rate)));
        } else if matches!(demand, Demand::Limited(rate) if sent > rate.bytes_in(whole)) {
            // It has come up: the others learn of it before the measurement is over.
            self.backlog = Some(Measured { since: now, sent: backlog.sent, looks: 0 });
            self.want(Demand::Greedy);
        }
        self.pace(self.pool.share_for(self.demand.unwrap_or(Demand::Greedy)), to);
    }

    fn want(&mut self, demand: Demand) {
        if let Some(before) = self.demand.replace(demand) {
            self.pool.leave(before);
        }
        self.pool.enter(demand);
    }

    /// Nothing more waits to be sent.
    fn withdraw(&mut self) {
        if let Some(demand) = self.demand.take() {
            self.pool.leave(demand);
        }
        self.moved = 0;
        self.backlog = None;
        self.look = None;
    }

    fn pace(&mut self, share: Rate, to: &TcpStream) {
        let share = self.most.map_or(share, |most| share.min(most));
        let differs = self.set.is_none_or(|set| {
            set.bits_per_s().abs_diff(share.bits_per_s()) > set.bits_per_s() / STEP
        });
        if differs {
            let bytes = share.bits_per_s() / 8;
            // A socket that takes no bound is gone, which whoever writes to it will hear.
            let _ = sockopt::set_u64(to, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes);
            self.set = Some(share);
        }
    }

    /// Sets the time of the next look, while there is anything to look at.
    pub fn rest(&mut self, cx: &mut Context<'_>) {
        if self.look.is_some() || (self.moved == 0 && self.demand.is_none()) {
            return;
        }
        let look = self.look.insert(Box::pin(sleep(self.period.into())));
        // Polled once, so that it wakes this flow; a pause that is over already is seen next time.
        if look.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(test)]
mod tests;
