//! One flow's part in the rate of the leg that it sends into.
//!
//! A flow that begins is paced at the rate that it might get, and counted once it is more than a message. While it
//! has a backlog, it checks the pool from time to time, enters its demand, and is paced at its share. A flow
//! without a backlog is not counted and costs nothing.
//!
//! Invariant: a flow removes whatever it has entered into a pool, at the latest when it is dropped.

use super::{Demand, Pool};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::sync::Arc;

/// A flow that moved less than this since it last had no backlog is a message, and not counted yet.
const MESSAGE: Bytes = Bytes::new(16 << 10);
/// A pace is updated if it differs by more than this part.
const STEP: u64 = 32;
/// The time between two checks is an eighth of a round trip, within these bounds.
const LOOK_LEAST: Duration = Duration::from_ms(20);
const LOOK_MOST: Duration = Duration::from_ms(250);
/// So many checks make one measurement of what a flow takes: two round trips.
const LOOKS_MEASURED: u32 = 16;

/// One flow's part in a pool.
#[derive(Debug)]
pub struct Member {
    pool: Arc<Pool>,
    /// The leg's own limit for a flow.
    most: Option<Rate>,
    period: Duration,
    /// Its present pace; none: the one with which it was opened.
    set: Option<Rate>,
    /// Its demand in the pool; none: it is not counted.
    demand: Option<Demand>,
    /// Bytes moved since it last had no backlog.
    moved: Bytes,
    measured: Option<Measured>,
}

/// The start of a measurement.
#[derive(Debug, Clone, Copy)]
struct Measured {
    since: Instant,
    /// What had been sent by then.
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

    /// The time between two checks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Whether no checks are necessary.
    pub fn is_idle(&self) -> bool {
        self.moved == Bytes::ZERO && self.demand.is_none()
    }

    /// To be called before `bytes` are written. Returns the new pace, if it changes.
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

    /// Checks the pool. The flow has a backlog, and has sent `sent` of all that it ever wrote. Returns the new
    /// pace, if it changes.
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
            // It takes more than its demand: enter that now, before the measurement is over.
            self.measured = Some(start);
            self.want(Demand::Greedy);
        }
        self.pace(self.pool.share_for(self.demand.unwrap_or(Demand::Greedy)))
    }

    /// The backlog is gone.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 95 % of 20 Mbit/s.
    const ALL: Rate = Rate::from_mbit_per_s(19);
    const HALF: Rate = Rate::from_bits_per_s(9_500_000);
    const BULK: Bytes = Bytes::new(64 << 10);

    struct Leg(Arc<Pool>);

    impl Leg {
        fn new() -> Self {
            let pool = Arc::new(Pool::default());
            pool.set_rate(Rate::from_mbit_per_s(20), Some(Duration::from_ms(600)));
            Self(pool)
        }

        fn member(&self) -> Member {
            Member::new(self.0.clone(), Some(Duration::from_ms(600)), None)
        }
    }

    fn at(looks: u32) -> Instant {
        Instant::START + Duration::from_ms(75) * u64::from(looks)
    }

    #[test]
    fn those_with_a_backlog_divide_the_leg() {
        let leg = Leg::new();
        let (mut first, mut second) = (leg.member(), leg.member());
        assert!(first.is_idle());
        assert_eq!((first.before_write(BULK), leg.0.senders()), (Some(ALL), 1));
        assert_eq!(first.before_write(BULK), None, "its pace is known");
        let prospect = second.before_write(Bytes::new(100));
        assert_eq!((prospect, leg.0.senders()), (Some(HALF), 1), "a message has a prospect");
        assert_eq!((second.before_write(BULK), leg.0.senders()), (None, 2));
        assert_eq!(first.look(at(1), Bytes::ZERO), Some(HALF));
        drop(second);
        assert_eq!((first.look(at(2), Bytes::ZERO), leg.0.senders()), (Some(ALL), 1));
        first.withdraw();
        assert_eq!((first.is_idle(), leg.0.senders()), (true, 0));
        assert_eq!(first.look(at(3), Bytes::ZERO), None, "who has nothing to send is not counted");
    }

    #[test]
    fn what_a_far_end_does_not_take_is_left_to_others() {
        let leg = Leg::new();
        let (mut slow, mut other) = (leg.member(), leg.member());
        slow.before_write(BULK);
        assert_eq!(other.before_write(BULK), Some(HALF));
        // 200 kB/s over sixteen checks of 75 ms each.
        for look in 0..=LOOKS_MEASURED {
            slow.look(at(look), Bytes::new(15_000 * u64::from(look)));
        }
        let twice = Rate::from_bits_per_s(2 * 8 * 200_000);
        let left = Rate::from_bits_per_s(ALL.bits_per_s() - twice.bits_per_s());
        assert_eq!(other.look(at(0), Bytes::ZERO), Some(left), "twice what it took is kept for it");
        // Up to that much over two round trips changes nothing; one byte more does.
        let sent = |more: u64| Bytes::new(240_000 + 480_000 + more);
        slow.look(at(LOOKS_MEASURED + 1), sent(0));
        assert_eq!(other.look(at(1), Bytes::ZERO), None);
        slow.look(at(LOOKS_MEASURED + 2), sent(1));
        assert_eq!(other.look(at(2), Bytes::ZERO), Some(HALF), "it takes all that it may again");
    }

    #[test]
    fn no_flow_is_paced_above_the_leg_s_own_bound() {
        let most = Rate::from_mbit_per_s(8);
        let mut member = Member::new(Leg::new().0, None, Some(most));
        assert_eq!(member.before_write(BULK), Some(most));
        assert_eq!(member.period(), LOOK_LEAST);
    }
}
