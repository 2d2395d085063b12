//! When a place on the ground sees satellites, and how long it sees none.

use crate::orbit::constellation::Constellation;
use crate::orbit::sky::{Sky, Station};
use midhop_units::Duration;

/// The time resolution of rising and setting.
const TICK: Duration = Duration::from_ms(1);

/// One satellite above the mask, from its rising to its setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pass {
    /// Its number in the constellation.
    pub satellite: u32,
    /// When it rises above the mask, after the beginning; zero where it was above it already.
    pub rise: Duration,
    /// When it sets below the mask; the end of the search where it is still above it.
    pub set: Duration,
    /// Whether rising and setting both lie within the search.
    pub whole: bool,
    /// The highest sampled elevation. Unit: degrees.
    pub elevation_max_deg: f64,
}

impl Pass {
    /// How long it lasts within the search.
    pub fn length(&self) -> Duration {
        self.set - self.rise
    }
}

/// The passes over a station within `duration` from `start`, ordered by their rising. The sky is
/// sampled every `step`; a shorter pass may be missed.
pub fn passes(
    constellation: &Constellation,
    station: &Station,
    start: Duration,
    duration: Duration,
    step: Duration,
    progress: &mut dyn FnMut(Duration),
) -> Vec<Pass> {
    let sight = |satellite: u32, elapsed: Duration| {
        let place = constellation.position(satellite, (start + elapsed).as_s_f64())?;
        station.sights(satellite, place)
    };
    // The moment after `low` up to `high` at which the satellite becomes visible, or stops being
    // visible.
    let edge = |satellite: u32, mut low: Duration, mut high: Duration, seen: bool| {
        while high.saturating_sub(low) > TICK {
            let middle = low + (high - low) / 2;
            if sight(satellite, middle).is_some() == seen { high = middle } else { low = middle }
        }
        high
    };
    let mut open: Vec<Option<Pass>> = vec![None; constellation.len()];
    let mut passes = Vec::new();
    let mut before: Option<Duration> = None;
    let mut now = Duration::ZERO;
    loop {
        let sky = Sky::new(constellation, (start + now).as_s_f64());
        let mut seen = sky.sightings(station).into_iter().peekable();
        for (number, pass) in (0u32..).zip(open.iter_mut()) {
            let sighting = seen.next_if(|sighting| sighting.satellite == number);
            match (sighting, pass.as_mut()) {
                (Some(sighting), Some(pass)) => {
                    pass.elevation_max_deg = pass.elevation_max_deg.max(sighting.elevation_deg());
                }
                (Some(sighting), None) => {
                    let rise = before.map_or(now, |before| edge(number, before, now, true));
                    *pass = Some(Pass {
                        satellite: number,
                        rise,
                        set: now,
                        whole: before.is_some(),
                        elevation_max_deg: sighting.elevation_deg(),
                    });
                }
                (None, Some(found)) => {
                    let low = before.unwrap_or(now).max(found.rise);
                    passes.push(Pass { set: edge(number, low, now, false), ..*found });
                    *pass = None;
                }
                (None, None) => {}
            }
        }
        progress(now);
        if now >= duration {
            break;
        }
        before = Some(now);
        now = (now + step).min(duration);
    }
    passes.extend(open.into_iter().flatten().map(|pass| Pass {
        set: duration,
        whole: false,
        ..pass
    }));
    passes.sort_by_key(|pass| (pass.rise, pass.satellite));
    passes
}

/// Times within `duration` without any of the passes, which are sorted by their rising.
pub fn gaps(passes: &[Pass], duration: Duration) -> Vec<(Duration, Duration)> {
    let mut gaps = Vec::new();
    let mut covered = Duration::ZERO;
    for pass in passes {
        if pass.rise > covered {
            gaps.push((covered, pass.rise));
        }
        covered = covered.max(pass.set);
    }
    if covered < duration {
        gaps.push((covered, duration));
    }
    gaps
}
