//! A value that changes in steps over time.

use crate::resolve::ResolveError;
use midhop_units::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// The most steps a trace may have: two hours at ten steps a second, with room to spare.
pub(crate) const STEPS_MAX: usize = 100_000;
/// The shortest mean time between changes: a link that changes faster than it sends packets would
/// take more work than the packets.
const STEP_MIN: Duration = Duration::from_us(10);

/// A step function of time: `steps[i].1` holds from `steps[i].0` until the next step.
///
/// Times count from the start of the link. After the last step its value stays, or, with `repeat`,
/// the trace starts again every `repeat`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Trace<T> {
    /// When each value begins, and the value. The first begins at zero; times rise strictly.
    #[serde(rename = "trace")]
    pub steps: Vec<(Duration, T)>,
    /// The period after which the trace starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Duration>,
}

impl<T: Copy> Trace<T> {
    /// A value that never changes.
    pub fn constant(value: T) -> Self {
        Self { steps: vec![(Duration::ZERO, value)], repeat: None }
    }

    /// The value at `elapsed` after the start, and when it changes next, counted from the start, if
    /// ever.
    ///
    /// # Panics
    /// On a trace without steps, which [`Trace::check`] refuses.
    pub fn at(&self, elapsed: Duration) -> (T, Option<Duration>) {
        let (round_start, within) = match self.repeat {
            Some(period) => {
                let within = elapsed.as_ns() % period.as_ns();
                (elapsed.as_ns() - within, within)
            }
            None => (0, elapsed.as_ns()),
        };
        let next = self.steps.partition_point(|(begin, _)| begin.as_ns() <= within);
        let change = self.steps.get(next).map(|step| step.0).or(self.repeat);
        let change = change.map(|at| Duration::from_ns(round_start).saturating_add(at));
        (self.steps[next - 1].1, change)
    }

    /// [`Trace::at`] on a clock on which the link started at `start`; [`Instant::NEVER`] when the
    /// value does not change again.
    pub(crate) fn at_instant(&self, start: Instant, now: Instant) -> (T, Instant) {
        let (value, change) = self.at(now.saturating_since(start));
        (value, change.map_or(Instant::NEVER, |after| start + after))
    }

    /// The values, in order.
    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.steps.iter().map(|step| step.1)
    }

    /// Refuses a trace that has no value at some time, goes backwards or is far too long.
    pub(crate) fn check(&self, key: &'static str) -> Result<(), ResolveError> {
        let refused = |reason: &str| Err(ResolveError::trace(key, reason));
        match self.steps.first() {
            None => return refused("has no steps: give at least [\"0 s\", value]"),
            Some((begin, _)) if !begin.is_zero() => {
                return refused("begins after zero: its first step must be at \"0 s\"");
            }
            Some(_) => {}
        }
        if self.steps.len() > STEPS_MAX {
            return refused("has more than 100000 steps: thin it out or shorten it");
        }
        if !self.steps.is_sorted_by(|a, b| a.0 < b.0) {
            return refused("goes backwards: each step must begin after the one before");
        }
        let last = self.steps[self.steps.len() - 1].0;
        match self.repeat {
            Some(period) if period <= last => {
                refused("repeats before its last step: make `repeat` longer than the last time")
            }
            Some(period) if period / (self.steps.len() as u64) < STEP_MIN => {
                refused("changes more often than every 10 us: make `repeat` longer")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_ms(ms)
    }

    #[test]
    fn holds_its_last_value_or_starts_again() {
        let steps = vec![(ms(0), 'a'), (ms(10), 'b')];
        let once = Trace { steps: steps.clone(), repeat: None };
        assert_eq!(once.at(ms(9)), ('a', Some(ms(10))));
        assert_eq!(once.at(ms(10)), ('b', None));
        let again = Trace { steps, repeat: Some(ms(15)) };
        assert_eq!(again.at(ms(14)), ('b', Some(ms(15))));
        assert_eq!(again.at(ms(15)), ('a', Some(ms(25))));
        assert_eq!(again.at(ms(40)), ('b', Some(ms(45))));
    }

    #[test]
    fn impossible_traces_are_refused() {
        for (steps, repeat) in [
            (vec![], None),
            (vec![(ms(1), 0)], None),
            (vec![(ms(0), 0), (ms(5), 1), (ms(5), 2)], None),
            (vec![(ms(0), 0), (ms(5), 1)], Some(ms(5))),
            (vec![(ms(0), 0)], Some(ms(0))),
            (vec![(ms(0), 0)], Some(Duration::from_us(9))),
        ] {
            let trace = Trace { steps, repeat };
            assert!(trace.check("rate").is_err(), "{trace:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn the_next_change_is_later_and_is_one(
            gaps in prop::collection::vec(1u64..50, 1..8),
            repeat in prop::option::of(1u64..50),
            at in 0u64..500,
        ) {
            let mut begin = 0;
            let mut steps = vec![(ms(0), 0usize)];
            for (value, gap) in gaps.iter().enumerate() {
                begin += gap;
                steps.push((ms(begin), value + 1));
            }
            let trace = Trace { steps, repeat: repeat.map(|extra| ms(begin + extra)) };
            prop_assert!(trace.check("delay").is_ok());
            let (value, change) = trace.at(ms(at));
            if let Some(change) = change {
                prop_assert!(change > ms(at));
                prop_assert_ne!(trace.at(change).0, value);
                let before = change.saturating_sub(Duration::from_ns(1));
                prop_assert_eq!(trace.at(before).0, value);
            }
        }
    }
}
