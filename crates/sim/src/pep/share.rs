//! A direction's share of the leg that it feeds, where the leg's rate is known.
//!
//! As in the daemon: who has more to send than it may is counted, looks at the pool from time to time,
//! tells what it wants, and is paced by what it gets; who has no backlog is not counted.
//!
//! Invariant: whatever a direction has entered into a pool it takes out again, at the latest with
//! [`Share::withdraw`].

use super::leg::Model;
use midhop_pep::config::LegPlan;
use midhop_pep::share::{Demand, Demands, floor, payload};
use midhop_tcp::Endpoint;
use midhop_units::{Bytes, Duration, Instant, Rate};

/// A direction that moved less than this since it had no backlog is not counted yet: it is a message.
const MESSAGE_BYTES: u64 = 16 << 10;
/// A share is set anew where it differs by more than this part of it.
const STEP: u64 = 32;
/// Between two looks, within these bounds an eighth of a round trip.
const LOOK_LEAST: Duration = Duration::from_ms(20);
const LOOK_MOST: Duration = Duration::from_ms(250);
/// Looks over which it is measured what a direction takes: two round trips.
const LOOKS_MEASURED: u32 = 16;

/// The pools of all legs, in their order.
#[derive(Debug)]
pub(super) struct Pools(Vec<Pool>);

/// What the flows of one leg want and may have.
#[derive(Debug, Clone, Copy, Default)]
struct Pool {
    payload: Rate,
    floor: Rate,
    demands: Demands,
}

impl Pools {
    /// A pool for each leg; legs whose rate is not divided never use theirs.
    pub fn of(legs: &[LegPlan]) -> Self {
        let pool = |leg: &LegPlan| Pool {
            payload: leg.rate.map_or(Rate::ZERO, payload),
            floor: leg.rate.map_or(Rate::ZERO, |rate| floor(rate, leg.rtt)),
            demands: Demands::default(),
        };
        Self(legs.iter().map(pool).collect())
    }
}

impl Pool {
    /// What a flow may send that is counted.
    fn share(&self, demand: Demand) -> Rate {
        self.demands.share(demand, self.payload, self.floor)
    }

    /// What one more flow might send.
    fn prospect(&self) -> Rate {
        let more = Demands { greedy: self.demands.greedy + 1, ..self.demands };
        more.share(Demand::Greedy, self.payload, self.floor)
    }

    fn enter(&mut self, demand: Demand) {
        match demand {
            Demand::Greedy => self.demands.greedy += 1,
            Demand::Limited(rate) => {
                self.demands.limited += 1;
                let sum = self.demands.limited_rate.bits_per_s() + rate.bits_per_s();
                self.demands.limited_rate = Rate::from_bits_per_s(sum);
            }
        }
    }

    fn leave(&mut self, demand: Demand) {
        match demand {
            Demand::Greedy => self.demands.greedy -= 1,
            Demand::Limited(rate) => {
                self.demands.limited -= 1;
                let rest = self.demands.limited_rate.bits_per_s() - rate.bits_per_s();
                self.demands.limited_rate = Rate::from_bits_per_s(rest);
            }
        }
    }
}

/// One direction's part in a pool.
#[derive(Debug)]
pub(super) struct Share {
    /// The leg's place among the legs.
    leg: usize,
    /// The leg's own bound on a flow.
    most: Option<Rate>,
    period: Duration,
    /// What the connection is paced by; none: as it was opened.
    set: Option<Rate>,
    /// What is entered in the pool; none: nothing.
    demand: Option<Demand>,
    /// Unit: bytes. Moved since there was no backlog.
    moved: u64,
    measured: Option<Measured>,
    look: Instant,
}

/// The start of a measurement.
#[derive(Debug, Clone, Copy)]
struct Measured {
    since: Instant,
    /// What had left by then. Unit: bytes.
    sent: u64,
    looks: u32,
}

impl Share {
    /// A direction that feeds `leg`; none where nothing is divided.
    pub fn of(leg: &Model) -> Option<Self> {
        let period = leg.rtt.map_or(LOOK_LEAST, |rtt| Duration::from_ns(rtt.as_ns() / 8));
        leg.divides().then(|| Self {
            leg: leg.at,
            most: leg.pacing,
            period: period.clamp(LOOK_LEAST, LOOK_MOST),
            set: None,
            demand: None,
            moved: 0,
            measured: None,
            look: Instant::NEVER,
        })
    }

    /// When [`Share::follow`] wants to be called.
    pub fn due(&self) -> Instant {
        self.look
    }

    /// Before `bytes` are written: a direction that begins is paced by what it might have, and counted
    /// once it is more than a message.
    pub fn before_write(&mut self, now: Instant, bytes: u64, to: &mut Endpoint, pools: &mut Pools) {
        if self.demand.is_some() {
            return;
        }
        let pool = &mut pools.0[self.leg];
        self.moved += bytes;
        let share = if self.moved > MESSAGE_BYTES {
            pool.enter(Demand::Greedy);
            self.demand = Some(Demand::Greedy);
            pool.share(Demand::Greedy)
        } else {
            pool.prospect()
        };
        self.pace(share, to);
        if self.look == Instant::NEVER {
            self.look = now + self.period;
        }
    }

    /// Looks, if it is time to. `staged` bytes wait between the legs, `sent` have left.
    pub fn follow(
        &mut self,
        now: Instant,
        staged: u64,
        sent: u64,
        to: &mut Endpoint,
        pools: &mut Pools,
    ) {
        if self.look > now {
            return;
        }
        if to.unsent() == 0 && staged == 0 {
            return self.withdraw(pools);
        }
        self.look = now + self.period;
        let Some(demand) = self.demand else { return };
        let start = Measured { since: now, sent, looks: 0 };
        let measured = self.measured.get_or_insert(start);
        let moved = Bytes::new(sent - measured.sent);
        let whole = Duration::from_ns(self.period.as_ns() * u64::from(LOOKS_MEASURED));
        measured.looks += 1;
        if measured.looks > LOOKS_MEASURED {
            let rate = Rate::of(moved, now.saturating_since(measured.since));
            self.measured = Some(start);
            self.want(Demand::of(rate, self.set.unwrap_or(rate)), pools);
        } else if matches!(demand, Demand::Limited(rate) if moved > rate.bytes_in(whole)) {
            // It has come up: the others learn of it before the measurement is over.
            self.measured = Some(start);
            self.want(Demand::Greedy, pools);
        }
        let demand = self.demand.unwrap_or(Demand::Greedy);
        self.pace(pools.0[self.leg].share(demand), to);
    }

    fn want(&mut self, demand: Demand, pools: &mut Pools) {
        if let Some(before) = self.demand.replace(demand) {
            pools.0[self.leg].leave(before);
        }
        pools.0[self.leg].enter(demand);
    }

    /// Nothing more waits to be sent.
    pub fn withdraw(&mut self, pools: &mut Pools) {
        if let Some(demand) = self.demand.take() {
            pools.0[self.leg].leave(demand);
        }
        self.moved = 0;
        self.measured = None;
        self.look = Instant::NEVER;
    }

    fn pace(&mut self, share: Rate, to: &mut Endpoint) {
        let share = self.most.map_or(share, |most| share.min(most));
        let differs = self.set.is_none_or(|set| {
            set.bits_per_s().abs_diff(share.bits_per_s()) > set.bits_per_s() / STEP
        });
        if differs {
            to.congestion_control().on_share(share);
            self.set = Some(share);
        }
    }
}
