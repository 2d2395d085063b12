//! The sky at one moment: who sees whom, and the fastest path through it.

use crate::orbit::constellation::Constellation;
use crate::orbit::earth::{Ground, Site, delay, radians};
use crate::orbit::vector::Vector;
use midhop_units::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A place on the ground that uses satellites.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Station {
    ground: Ground,
    sin_mask: f64,
    mask_deg: f64,
    reach_km: f64,
}

/// A satellite that a station sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sighting {
    /// Its number in the constellation.
    pub satellite: u32,
    /// The sine of its elevation.
    pub sin_elevation: f64,
    /// The propagation delay to it.
    pub delay: Duration,
}

impl Sighting {
    /// Its elevation. Unit: degrees.
    pub fn elevation_deg(&self) -> f64 {
        libm::asin(self.sin_elevation.clamp(-1.0, 1.0)).to_degrees()
    }
}

impl Station {
    /// A station at `site` that uses satellites of `constellation`.
    pub fn new(site: &Site, constellation: &Constellation) -> Self {
        let mask_deg = site.mask_deg.unwrap_or(constellation.mask_deg());
        Self {
            ground: site.ground(constellation.figure()),
            sin_mask: libm::sin(radians(mask_deg)),
            mask_deg,
            reach_km: constellation.ground_link_km_max(),
        }
    }

    /// The elevation below which it uses no satellite. Unit: degrees.
    pub fn mask_deg(&self) -> f64 {
        self.mask_deg
    }

    /// The satellite as seen from here, if it is high enough.
    pub fn sights(&self, number: u32, place: Vector) -> Option<Sighting> {
        let sin_elevation = self.ground.sin_elevation(place);
        if sin_elevation < self.sin_mask {
            return None;
        }
        let km = self.ground.position.distance(place);
        (km <= self.reach_km).then(|| Sighting {
            satellite: number,
            sin_elevation,
            delay: delay(km),
        })
    }

    /// The elevation of a point, whether it can be used or not. Unit: degrees.
    pub fn elevation_deg(&self, place: Vector) -> f64 {
        self.ground.elevation_deg(place)
    }
}

/// A path through the sky: the satellites that it uses, from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The satellites in order; a single one where packets go up to and down from the same.
    pub satellites: Vec<u32>,
}

impl Way {
    /// The first satellite and the last.
    pub fn access(&self) -> [u32; 2] {
        let first = self.satellites.first().copied().unwrap_or(u32::MAX);
        [first, self.satellites.last().copied().unwrap_or(first)]
    }
}

/// The delay of each part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WayDelay {
    /// From the first station to its satellite.
    pub user: Duration,
    /// Between satellites, all links together.
    pub isl: Duration,
    /// From the last satellite to the second station.
    pub feeder: Duration,
}

impl WayDelay {
    /// The whole path.
    pub fn total(&self) -> Duration {
        self.user + self.isl + self.feeder
    }
}

/// The position of every satellite at one moment.
pub struct Sky<'c> {
    constellation: &'c Constellation,
    places: Vec<Option<Vector>>,
    /// Links across seams that work now, by either end.
    across: BTreeMap<u32, Vec<(u32, Duration)>>,
}

impl<'c> Sky<'c> {
    /// The sky at a time.
    pub fn new(constellation: &'c Constellation, time_s: f64) -> Self {
        let places = constellation.positions(time_s);
        let mut across: BTreeMap<u32, Vec<(u32, Duration)>> = BTreeMap::new();
        for seam in constellation.seams() {
            for last in seam.last.clone() {
                let place = |number: u32| places[number as usize];
                let Some(here) = place(last) else { continue };
                let nearest = seam
                    .first
                    .clone()
                    .filter_map(|first| Some((first, place(first)?)))
                    .min_by(|a, b| here.distance(a.1).total_cmp(&here.distance(b.1)));
                let Some((first, there)) = nearest else { continue };
                if let Some(km) = seam.isl([last, first]).length_km(here, there) {
                    across.entry(last).or_default().push((first, delay(km)));
                    across.entry(first).or_default().push((last, delay(km)));
                }
            }
        }
        Self { constellation, places, across }
    }

    /// The satellites that a station may use, by their numbers.
    pub fn sightings(&self, station: &Station) -> Vec<Sighting> {
        let numbered = (0u32..).zip(&self.places);
        numbered.filter_map(|(number, place)| station.sights(number, (*place)?)).collect()
    }

    /// One satellite as seen from a station, if the station may use it.
    pub fn sighting(&self, station: &Station, satellite: u32) -> Option<Sighting> {
        station.sights(satellite, (*self.places.get(satellite as usize)?)?)
    }

    /// The highest elevation at which a station sees any satellite, whether it may use it or not.
    /// Unit: degrees.
    pub fn elevation_max_deg(&self, station: &Station) -> f64 {
        let all = self.places.iter().flatten().map(|place| station.elevation_deg(*place));
        all.fold(-90.0, f64::max)
    }

    /// The links of a satellite that work now, and their delays.
    pub fn neighbours(&self, satellite: u32) -> impl Iterator<Item = (u32, Duration)> + '_ {
        let isls = self.constellation.isls();
        let fixed = self.constellation.links(satellite).iter().filter_map(move |&number| {
            let isl = &isls[number as usize];
            let other = if isl.ends[0] == satellite { isl.ends[1] } else { isl.ends[0] };
            let (here, there) = (self.places[satellite as usize]?, self.places[other as usize]?);
            Some((other, delay(isl.length_km(here, there)?)))
        });
        let across = self.across.get(&satellite).into_iter().flatten().copied();
        fixed.chain(across)
    }

    /// The fastest path that begins with one of `first` and ends with one of `last` (Dijkstra). Of
    /// paths with the same delay to the nanosecond, the one over lower numbers is taken.
    pub fn quickest(&self, first: &[Sighting], last: &[Sighting]) -> Option<Way> {
        let mut arrival = vec![Duration::MAX; self.places.len()];
        let mut before = vec![u32::MAX; self.places.len()];
        let down: BTreeMap<u32, Duration> =
            last.iter().map(|sighting| (sighting.satellite, sighting.delay)).collect();
        let mut open = BinaryHeap::new();
        for sighting in first {
            arrival[sighting.satellite as usize] = sighting.delay;
            open.push(Reverse((sighting.delay, sighting.satellite)));
        }
        let mut best: Option<(Duration, u32)> = None;
        while let Some(Reverse((so_far, satellite))) = open.pop() {
            if best.is_some_and(|(total, _)| total <= so_far) {
                break;
            }
            if so_far > arrival[satellite as usize] {
                continue;
            }
            if let Some(&hop) = down.get(&satellite) {
                let total = (so_far + hop, satellite);
                best = Some(best.map_or(total, |best| best.min(total)));
            }
            for (other, hop) in self.neighbours(satellite) {
                let (there, known) = (so_far + hop, &mut arrival[other as usize]);
                if there < *known {
                    *known = there;
                    before[other as usize] = satellite;
                    open.push(Reverse((there, other)));
                }
            }
        }
        let mut satellites = vec![best?.1];
        while let Some(&earlier) = satellites.last().map(|last| &before[*last as usize]) {
            if earlier == u32::MAX {
                break;
            }
            satellites.push(earlier);
        }
        satellites.reverse();
        Some(Way { satellites })
    }

    /// The current delay of a path; `None` where it is broken: a link is inactive, or an end is not
    /// visible.
    pub fn delay(&self, way: &Way, stations: &[Station; 2]) -> Option<WayDelay> {
        let [first, last] = way.access();
        Some(WayDelay {
            user: self.sighting(&stations[0], first)?.delay,
            isl: self.along(way)?,
            feeder: self.sighting(&stations[1], last)?.delay,
        })
    }

    /// The delay of the fastest path from one satellite to another, by links between satellites;
    /// `None` where there is no path.
    pub fn between(&self, from: u32, to: u32) -> Option<Duration> {
        let at = |satellite| [Sighting { satellite, sin_elevation: 1.0, delay: Duration::ZERO }];
        self.along(&self.quickest(&at(from), &at(to))?)
    }

    /// The delay of all links between the satellites of a path; `None` where one of them is
    /// inactive.
    fn along(&self, way: &Way) -> Option<Duration> {
        let mut all = Duration::ZERO;
        for pair in way.satellites.windows(2) {
            all += self.neighbours(pair[0]).find(|(other, _)| *other == pair[1])?.1;
        }
        Some(all)
    }
}
