//! The path between two stations over time: delays, handovers, gaps.
//!
//! The sky is computed at every step. Where the path at the end of a step is not the one at its
//! beginning, the moment of the change is found by bisection to the millisecond, and so on from
//! there until the end of the step. A path that changes and changes back within one step is not
//! noticed.

use crate::orbit::choice::Chooser;
use crate::orbit::sky::{Way, WayDelay};
use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// The time resolution of changes.
const TICK: Duration = Duration::from_ms(1);
/// The most changes of the path in a step that are distinguished; more would be too close to have
/// an effect.
const CHANGES_PER_STEP_MAX: u32 = 64;

/// One of the links of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Hop {
    /// From the first station to its satellite.
    User,
    /// Between satellites.
    Isl,
    /// From the second station's satellite to the station.
    Feeder,
}

impl Hop {
    /// The name in scenarios and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Isl => "isl",
            Self::Feeder => "feeder",
        }
    }
}

/// A change of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// Time after the run's beginning.
    pub at: Duration,
    /// The path before it; `None` if there was none.
    pub before: Option<Way>,
    /// The path after it; `None` if there is none.
    pub after: Option<Way>,
    /// The delays at that moment on both paths, if the old one still works.
    pub delays: [Option<WayDelay>; 2],
    /// The delay at that moment between the satellite that is left and the one that takes over, at
    /// the first station and at the second; `None` if the satellite does not change, or there is no
    /// path.
    pub over: [Option<Duration>; 2],
}

impl Handover {
    /// The links that changed. Where the satellites at both ends stay and only the path between
    /// them changes, that is [`Hop::Isl`].
    pub fn hops(&self) -> Vec<Hop> {
        let (Some(before), Some(after)) = (&self.before, &self.after) else {
            return vec![Hop::User, Hop::Feeder];
        };
        let ([up, down], [new_up, new_down]) = (before.access(), after.access());
        let mut hops = Vec::new();
        if up != new_up {
            hops.push(Hop::User);
        }
        if down != new_down {
            hops.push(Hop::Feeder);
        }
        if hops.is_empty() && before != after {
            hops.push(Hop::Isl);
        }
        hops
    }
}

/// Two stations and the sky between them, over the time of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journey {
    /// How long it was followed.
    pub duration: Duration,
    /// The path at the beginning.
    pub first: Option<Way>,
    /// Every change of the path.
    pub handovers: Vec<Handover>,
    /// The delays at each step and at each change; `None` if there is no path.
    pub samples: Vec<(Duration, Option<WayDelay>)>,
}

impl Journey {
    /// The beginning and end of each time without a path.
    pub fn gaps(&self) -> Vec<(Duration, Duration)> {
        let mut gaps = Vec::new();
        let mut since = self.first.is_none().then_some(Duration::ZERO);
        for handover in &self.handovers {
            match (&handover.after, since) {
                (None, None) => since = Some(handover.at),
                (Some(_), Some(begin)) => {
                    gaps.push((begin, handover.at));
                    since = None;
                }
                _ => {}
            }
        }
        gaps.extend(since.map(|begin| (begin, self.duration)));
        gaps
    }

    /// Whether there is a path at any time.
    pub fn connects(&self) -> bool {
        self.samples.iter().any(|(_, delay)| delay.is_some())
    }
}

/// Follows the path for `duration` in steps of `step`. `progress` is called with the time so far.
pub(crate) fn follow(
    chooser: &Chooser<'_>,
    duration: Duration,
    step: Duration,
    progress: &mut dyn FnMut(Duration),
) -> Journey {
    let sky = chooser.sky(Duration::ZERO);
    let first = chooser.choose(&sky, Duration::ZERO, None, true);
    let delay = first.as_ref().and_then(|way| sky.delay(way, &chooser.stations));
    let mut journey = Journey {
        duration,
        first: first.clone(),
        handovers: Vec::new(),
        samples: vec![(Duration::ZERO, delay)],
    };
    let mut way = first;
    let mut now = Duration::ZERO;
    while now < duration {
        let next_step = step * (now.as_ns() / step.as_ns() + 1);
        let slot = chooser.slots.map(|slots| slots.next(now));
        let next = next_step.min(duration).min(slot.unwrap_or(Duration::MAX));
        let chosen_anew = slot == Some(next);
        // A slot's path ends just before the next slot begins.
        let until = if chosen_anew { next.saturating_sub(TICK).max(now) } else { next };
        way = changes(chooser, &mut journey, way, now, until);
        let sky = chooser.sky(next);
        if chosen_anew {
            let new = chooser.choose(&sky, next, way.as_ref(), true);
            if new != way {
                note(chooser, &mut journey, next, way, new.clone());
                way = new;
            }
        }
        let delay = way.as_ref().and_then(|way| sky.delay(way, &chooser.stations));
        sample(&mut journey, next, delay);
        now = next;
        progress(now);
    }
    journey
}

/// Follows paths that the caller has chosen, each from its moment on, in the order of time. A path
/// that does not work at its moment counts as none.
pub(crate) fn replay(
    chooser: &Chooser<'_>,
    ways: &[(Duration, Option<Way>)],
    duration: Duration,
    step: Duration,
) -> Journey {
    let at = |moment: Duration| {
        let way = ways.partition_point(|(from, _)| *from <= moment);
        let way = ways[..way].last().and_then(|(_, way)| way.clone())?;
        let delay = chooser.sky(moment).delay(&way, &chooser.stations)?;
        Some((way, delay))
    };
    let mut moments: Vec<Duration> = ways.iter().map(|(from, _)| *from).collect();
    moments.extend((0..=duration.as_ns() / step.as_ns()).map(|number| step * number));
    moments.push(duration);
    moments.retain(|moment| *moment <= duration);
    moments.sort();
    moments.dedup();
    let first = at(Duration::ZERO).map(|(way, _)| way);
    let mut way = first.clone();
    let mut journey = Journey { duration, first, handovers: Vec::new(), samples: Vec::new() };
    for moment in moments {
        let now = at(moment);
        let (new, delay) = (now.as_ref().map(|now| now.0.clone()), now.map(|now| now.1));
        if new != way {
            note(chooser, &mut journey, moment, way, new.clone());
            way = new;
        }
        sample(&mut journey, moment, delay);
    }
    journey
}

/// Finds and records the changes after `begin` up to `end`; returns the path at `end`.
fn changes(
    chooser: &Chooser<'_>,
    journey: &mut Journey,
    mut way: Option<Way>,
    begin: Duration,
    end: Duration,
) -> Option<Way> {
    let at = |moment: Duration, way: &Option<Way>| {
        chooser.choose(&chooser.sky(moment), moment, way.as_ref(), false)
    };
    let mut begin = begin;
    for _ in 0..CHANGES_PER_STEP_MAX {
        if begin >= end || at(end, &way) == way {
            return way;
        }
        let (mut before, mut after) = (begin, end);
        while after.saturating_sub(before) > TICK {
            // On whole ticks, so that the steps of the search do not affect the result.
            let middle = before.as_ns() + (after - before).as_ns() / 2;
            let middle = Duration::from_ns(middle - middle % TICK.as_ns()).max(before + TICK);
            if at(middle, &way) == way { before = middle } else { after = middle }
        }
        let new = at(after, &way);
        note(chooser, journey, after, way, new.clone());
        (way, begin) = (new, after);
    }
    way
}

fn note(
    chooser: &Chooser<'_>,
    journey: &mut Journey,
    at: Duration,
    before: Option<Way>,
    after: Option<Way>,
) {
    let sky = chooser.sky(at);
    let delay = |way: &Option<Way>| way.as_ref().and_then(|way| sky.delay(way, &chooser.stations));
    let delays = [delay(&before), delay(&after)];
    sample(journey, at, delays[1]);
    let ends = before.as_ref().zip(after.as_ref()).map(|(a, b)| (a.access(), b.access()));
    let over = [0, 1].map(|end| {
        let (left, taken) = ends.map(|(left, taken)| (left[end], taken[end]))?;
        if left == taken { None } else { sky.between(left, taken) }
    });
    journey.handovers.push(Handover { at, before, after, delays, over });
}

fn sample(journey: &mut Journey, at: Duration, delay: Option<WayDelay>) {
    match journey.samples.last_mut() {
        Some(last) if last.0 == at => last.1 = delay,
        _ => journey.samples.push((at, delay)),
    }
}
