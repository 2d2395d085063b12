//! Times at which the link is down.

use crate::resolve::{DELAY_MAX, ResolveError, check_positive_time, check_time, check_time_in};
use midhop_units::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// An outage, once or repeated. Times count from the start of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// When it first begins.
    pub start: Duration,
    /// How long it lasts.
    pub length: Duration,
    /// The time from one beginning to the next. Default: it happens once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// Whether packets wait in the queue until the link is up again (`true`) or are sent and lost
    /// (`false`, the default: a transmitter seldom knows that its signal is not received).
    #[serde(default)]
    pub hold: bool,
}

impl Outage {
    pub(crate) fn check(&self) -> Result<(), ResolveError> {
        check_positive_time("outages.length", self.length)?;
        check_time("outages.start", self.start)?;
        if let Some(every) = self.every {
            check_time_in("outages.every", every, Duration::from_ms(1)..=DELAY_MAX)?;
            if every <= self.length {
                return Err(ResolveError::out_of_range(
                    "outages.every",
                    every,
                    format!("must be longer than the outage itself, {}", self.length),
                ));
            }
        }
        Ok(())
    }
}

/// The outages of one kind, held or lossy, on the link's clock.
#[derive(Debug, Clone)]
pub(crate) struct Outages {
    outages: Vec<Outage>,
    start: Instant,
    /// A time over which nothing changes, from a moment up to another, and whether the link is down
    /// then. The links of an orbit have hundreds of outages, and most packets meet none.
    known: (Instant, Instant, bool),
}

impl Outages {
    /// The outages of `outages` that hold packets, or those that lose them.
    pub(crate) fn new(outages: &[Outage], hold: bool, start: Instant) -> Self {
        let outages = outages.iter().filter(|outage| outage.hold == hold).copied().collect();
        Self { outages, start, known: (start, start, false) }
    }

    /// Whether there are none at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.outages.is_empty()
    }

    /// Whether the link is down at `now`, and when that may change.
    pub(crate) fn at(&self, now: Instant) -> (bool, Instant) {
        let elapsed = now.saturating_since(self.start).as_ns();
        let mut down = false;
        let mut until = Instant::NEVER;
        for outage in &self.outages {
            let (begin, end) = outage.last_begun_or_first(elapsed);
            let next = match outage.every {
                _ if elapsed < begin => begin,
                _ if elapsed < end => end,
                Some(every) => begin.saturating_add(every.as_ns()),
                None => continue,
            };
            down |= (begin..end).contains(&elapsed);
            until = until.min(self.start + Duration::from_ns(next));
        }
        (down, until)
    }

    /// Whether an outage falls into the time from `began` to `finished`, excluding `finished`.
    pub(crate) fn overlap(&mut self, began: Instant, finished: Instant) -> bool {
        let past = finished.max(began + Duration::from_ns(1));
        let (from, until, _) = self.known;
        if began < from || past > until {
            let (down, until) = self.at(began);
            self.known = (began, until, down);
        }
        let (_, until, down) = self.known;
        if past <= until || down { down } else { self.any_within(began, finished) }
    }

    /// [`Outages::overlap`], by examining each.
    fn any_within(&self, began: Instant, finished: Instant) -> bool {
        let began = began.saturating_since(self.start).as_ns();
        let finished = finished.saturating_since(self.start).as_ns().max(began + 1);
        self.outages.iter().any(|outage| {
            let (begin, end) = outage.last_begun_or_first(finished - 1);
            begin < finished && end > began
        })
    }
}

impl Outage {
    /// Beginning and end of the occurrence that began last before `elapsed`, or of the first.
    fn last_begun_or_first(&self, elapsed: u64) -> (u64, u64) {
        let first = self.start.as_ns();
        let rounds = match self.every {
            Some(every) => elapsed.saturating_sub(first) / every.as_ns(),
            None => 0,
        };
        let begin = first + rounds * self.every.map_or(0, Duration::as_ns);
        (begin, begin.saturating_add(self.length.as_ns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn comes_and_goes_at_its_times() {
        let once = Outage {
            start: Duration::from_ms(10),
            length: Duration::from_ms(5),
            every: None,
            hold: true,
        };
        let again = Outage { every: Some(Duration::from_ms(20)), ..once };
        let once = Outages::new(&[once], true, at(100));
        let again = Outages::new(&[again], true, at(100));
        for (ms, down, next_once, next_again) in [
            (100, false, at(110), at(110)),
            (110, true, at(115), at(115)),
            (114, true, at(115), at(115)),
            (115, false, Instant::NEVER, at(130)),
            (129, false, Instant::NEVER, at(130)),
        ] {
            assert_eq!(once.at(at(ms)), (down, next_once), "{ms} ms");
            assert_eq!(again.at(at(ms)), (down, next_again), "{ms} ms");
        }
        assert_eq!(again.at(at(131)), (true, at(135)));
    }

    #[test]
    fn whatever_is_sent_during_an_outage_touches_it() {
        let outage = Outage {
            start: Duration::from_ms(10),
            length: Duration::from_ms(5),
            every: Some(Duration::from_ms(20)),
            hold: false,
        };
        let mut outages = Outages::new(&[outage], false, at(0));
        for (began, finished, touched) in [
            (0, 10, false),
            (0, 11, true),
            (10, 10, true),
            (12, 13, true),
            (14, 20, true),
            (15, 15, false),
            (15, 30, false),
            (15, 31, true),
            (0, 50, true),
        ] {
            assert_eq!(outages.overlap(at(began), at(finished)), touched, "{began}–{finished}");
        }
    }

    proptest! {
        #[test]
        fn what_is_remembered_changes_no_answer(
            outages in prop::collection::vec((0u64..60, 1u64..10, prop::option::of(11u64..40)), 0..5),
            packets in prop::collection::vec((0u64..12, 0u64..12), 1..40),
            start in 0u64..20,
        ) {
            let outages: Vec<Outage> = outages
                .into_iter()
                .map(|(start, length, every)| Outage {
                    start: Duration::from_ns(start),
                    length: Duration::from_ns(length),
                    every: every.map(Duration::from_ns),
                    hold: false,
                })
                .collect();
            let start = Instant::from_ns(start);
            let mut remembering = Outages::new(&outages, false, start);
            let mut began = start;
            for (gap, length) in packets {
                began = began + Duration::from_ns(gap);
                let finished = began + Duration::from_ns(length);
                let expected = Outages::new(&outages, false, start).any_within(began, finished);
                prop_assert_eq!(remembering.overlap(began, finished), expected);
                began = finished;
            }
        }
    }
}
