//! Which satellites two stations use.

use crate::orbit::constellation::Constellation;
use crate::orbit::sky::{Sighting, Sky, Station, Way};
use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// How a station chooses between the satellites that it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// Keep a satellite until it sets below the mask, then use the one with the shortest path to
    /// the other end: few handovers.
    #[default]
    Keep,
    /// Always use the highest: the strongest signal. If ascending and descending satellites mix, as
    /// in a delta, the two ends may get satellites that are near each other but far apart in the
    /// grid.
    Highest,
    /// Always use the shortest path from end to end.
    Shortest,
}

impl Choice {
    /// The name in scenarios and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Highest => "highest",
            Self::Shortest => "shortest",
        }
    }
}

/// Moments at which satellites are chosen anew, and only then: every so often from a first one on.
///
/// Between them a choice stands as long as it can. What is chosen is seen until the next moment, where
/// anything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) every: Duration,
    pub(crate) first: Duration,
}

impl Slots {
    /// The first such moment after `now`.
    pub(crate) fn next(&self, now: Duration) -> Duration {
        match now.as_ns().checked_sub(self.first.as_ns()) {
            None => self.first,
            Some(since) => self.first + self.every * (since / self.every.as_ns() + 1),
        }
    }
}

/// Chooses ways between two stations.
pub(crate) struct Chooser<'c> {
    pub(crate) constellation: &'c Constellation,
    pub(crate) stations: [Station; 2],
    pub(crate) choice: Choice,
    pub(crate) slots: Option<Slots>,
    /// The constellation's time when the run begins.
    pub(crate) start: Duration,
}

impl<'c> Chooser<'c> {
    /// The sky at a time after the run's beginning.
    pub(crate) fn sky(&self, elapsed: Duration) -> Sky<'c> {
        Sky::new(self.constellation, (self.start + elapsed).as_s_f64())
    }

    /// The path at `elapsed`, when `current` was used until then. `anew` is true at the moments of
    /// the slots. `None` where there is no path.
    pub(crate) fn choose(
        &self,
        sky: &Sky<'_>,
        elapsed: Duration,
        current: Option<&Way>,
        anew: bool,
    ) -> Option<Way> {
        // Within a slot, a path is kept as long as it works.
        if self.slots.is_some() && !anew && current.is_some_and(|way| self.works(sky, way)) {
            return current.cloned();
        }
        let seen = self.stations.map(|station| sky.sightings(&station));
        let lasting = match self.slots {
            Some(slots) => self.lasting(&seen, slots.next(elapsed)),
            None => seen.clone(),
        };
        let holds = self.choice == Choice::Keep || (self.slots.is_some() && !anew);
        let kept = [0, 1].map(|end| {
            let satellite = current.filter(|_| holds)?.access()[end];
            let among = if anew { &lasting[end] } else { &seen[end] };
            among.iter().find(|sighting| sighting.satellite == satellite).copied()
        });
        // Satellites are given up only where there is no path with them: at one end first, then at
        // both.
        let free = [&lasting[0][..], &lasting[1][..]];
        let held = [0, 1].map(|end| kept[end].as_ref().map_or(free[end], std::slice::from_ref));
        [held, [held[0], free[1]], [free[0], held[1]], free, [&seen[0], &seen[1]]]
            .into_iter()
            .find_map(|ends| self.best(sky, ends))
    }

    /// Whether a path can be used now.
    fn works(&self, sky: &Sky<'_>, way: &Way) -> bool {
        sky.delay(way, &self.stations).is_some()
    }

    /// The visible satellites that will still be visible at a later moment.
    fn lasting(&self, seen: &[Vec<Sighting>; 2], until: Duration) -> [Vec<Sighting>; 2] {
        let time_s = (self.start + until).as_s_f64();
        [0, 1].map(|end| {
            let lasts = |sighting: &&Sighting| {
                let place = self.constellation.position(sighting.satellite, time_s);
                place.is_some_and(|place| {
                    self.stations[end].sights(sighting.satellite, place).is_some()
                })
            };
            seen[end].iter().filter(lasts).copied().collect()
        })
    }

    fn best(&self, sky: &Sky<'_>, [first, last]: [&[Sighting]; 2]) -> Option<Way> {
        if self.choice != Choice::Highest {
            return sky.quickest(first, last);
        }
        if !self.constellation.has_isls() {
            // One satellite serves both: the one whose lower elevation is highest.
            let common = first.iter().filter_map(|up| {
                let down = last.iter().find(|down| down.satellite == up.satellite)?;
                Some((up.satellite, up.sin_elevation.min(down.sin_elevation)))
            });
            let (satellite, _) = common.max_by(|a, b| a.1.total_cmp(&b.1))?;
            return Some(Way { satellites: vec![satellite] });
        }
        let by_elevation = |seen: &[Sighting]| {
            let mut sorted = seen.to_vec();
            sorted.sort_by(|a, b| b.sin_elevation.total_cmp(&a.sin_elevation));
            sorted
        };
        let last = by_elevation(last);
        by_elevation(first).iter().find_map(|up| {
            let up = std::slice::from_ref(up);
            // Mostly any end can be reached. Where shells are not joined, this avoids examining
            // each.
            sky.quickest(up, &last)?;
            last.iter().find_map(|down| sky.quickest(up, std::slice::from_ref(down)))
        })
    }
}
