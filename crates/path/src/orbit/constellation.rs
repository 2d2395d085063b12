//! Satellites, the links between them, and the minimum elevation at which they are used.

use crate::orbit::coverage_deg;
use crate::orbit::earth::Figure;
use crate::orbit::elements::{self, ElementsError, Orbiter};
use crate::orbit::isl::{self, Isl, IslRules, Seam};
use crate::orbit::vector::Vector;
use crate::orbit::walker::{self, Circle, Shell};
use sgp4::chrono::NaiveDateTime;

/// Satellites and their links.
#[derive(Debug, Clone)]
pub struct Constellation {
    name: String,
    motion: Motion,
    names: Vec<String>,
    isls: Vec<Isl>,
    /// For each satellite the numbers of its links.
    links: Vec<Vec<u32>>,
    seams: Vec<Seam>,
    mask_deg: f64,
    /// The longest ground link, which files of other simulators give.
    ground_link_km_max: f64,
}

#[derive(Debug, Clone)]
enum Motion {
    Circles { shells: Vec<Shell>, orbits: Vec<Circle> },
    Elements { orbiters: Vec<Orbiter>, epoch: NaiveDateTime },
}

impl Constellation {
    /// Shells of circular orbits, each with its links, used above a minimum elevation.
    ///
    /// The shells must have passed their checks: [`crate::orbit::OrbitSpec::resolve`] does them.
    pub(crate) fn walker(name: &str, shells: &[(Shell, IslRules)], mask_deg: f64) -> Self {
        let (mut orbits, mut isls, mut seams) = (Vec::new(), Vec::new(), Vec::new());
        let mut names = Vec::new();
        for (index, (shell, rules)) in shells.iter().enumerate() {
            let first = orbits.len() as u32;
            orbits.extend(shell.orbits());
            let (own, seam) = isl::grid(shell, rules, first);
            isls.extend(own);
            seams.extend(seam);
            // Planes and places count from 1.
            let prefix = if shells.len() > 1 { format!("{}/", index + 1) } else { String::new() };
            for plane in 1..=shell.planes {
                names
                    .extend((1..=shell.satellites).map(|place| format!("{prefix}{plane}-{place}")));
            }
        }
        let shells = shells.iter().map(|(shell, _)| shell.clone()).collect();
        let motion = Motion::Circles { shells, orbits };
        Self::new(name, motion, names, isls, seams, mask_deg)
    }

    /// The satellites of a list of two-line elements, without links. Time counts from `epoch` (UTC,
    /// such as `2026-03-01T12:00:00Z`); without it from the newest of the elements.
    ///
    /// # Errors
    /// When the elements or the epoch cannot be read.
    pub fn from_elements(
        name: &str,
        text: &str,
        epoch: Option<&str>,
        mask_deg: f64,
    ) -> Result<Self, ElementsError> {
        let orbiters = elements::read(text)?;
        let newest = orbiters.iter().map(|orbiter| orbiter.epoch).max();
        let newest = newest.ok_or(ElementsError::Empty)?;
        let epoch = match epoch {
            Some(text) => elements::moment_near(text, newest)?,
            None => newest,
        };
        let names = orbiters.iter().map(|orbiter| orbiter.name.clone()).collect();
        let motion = Motion::Elements { orbiters, epoch };
        Ok(Self::new(name, motion, names, Vec::new(), Vec::new(), mask_deg))
    }

    fn new(
        name: &str,
        motion: Motion,
        names: Vec<String>,
        isls: Vec<Isl>,
        seams: Vec<Seam>,
        mask_deg: f64,
    ) -> Self {
        let links = vec![Vec::new(); names.len()];
        let name = name.to_owned();
        let ground_link_km_max = f64::INFINITY;
        let mut own = Self {
            name,
            motion,
            names,
            isls: Vec::new(),
            links,
            seams,
            mask_deg,
            ground_link_km_max,
        };
        own.join(isls);
        own
    }

    /// Adds links between its satellites.
    pub(crate) fn join(&mut self, isls: Vec<Isl>) {
        for isl in isls {
            let number = self.isls.len() as u32;
            for end in isl.ends {
                self.links[end as usize].push(number);
            }
            self.isls.push(isl);
        }
    }

    /// Limits the length of ground links.
    pub(crate) fn bound_ground_links(&mut self, km: f64) {
        self.ground_link_km_max = km;
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of satellites.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether it has no satellite, which is true of no constellation made here.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name of a satellite: the one in its elements, or its plane and its place in the plane.
    pub fn satellite(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("?", String::as_str)
    }

    /// The fixed links between satellites. Links across a seam change over time and are not among
    /// them.
    pub fn isls(&self) -> &[Isl] {
        &self.isls
    }

    /// Whether any two satellites are ever joined.
    pub fn has_isls(&self) -> bool {
        !self.isls.is_empty() || !self.seams.is_empty()
    }

    /// The elevation below which no satellite is used, unless a site has its own.
    pub fn mask_deg(&self) -> f64 {
        self.mask_deg
    }

    pub(crate) fn ground_link_km_max(&self) -> f64 {
        self.ground_link_km_max
    }

    pub(crate) fn links(&self, satellite: u32) -> &[u32] {
        &self.links[satellite as usize]
    }

    pub(crate) fn seams(&self) -> &[Seam] {
        &self.seams
    }

    /// The figure of the Earth for these satellites: elements refer to the ellipsoid, ideal shells
    /// to a sphere.
    pub fn figure(&self) -> Figure {
        match self.motion {
            Motion::Circles { .. } => Figure::Sphere,
            Motion::Elements { .. } => Figure::Wgs84,
        }
    }

    /// The highest northern or southern latitude from which a satellite is ever seen above the
    /// mask. Unit: degrees.
    pub fn latitude_max_deg(&self, mask_deg: f64) -> f64 {
        let reached = |highest: f64, altitude_km: f64| {
            let highest = highest.min(180.0 - highest);
            (highest + coverage_deg(altitude_km, mask_deg)).min(90.0)
        };
        match &self.motion {
            Motion::Circles { shells, .. } => {
                shells.iter().map(|shell| shell.latitude_max_deg(mask_deg)).fold(0.0, f64::max)
            }
            Motion::Elements { orbiters, .. } => orbiters
                .iter()
                .map(|orbiter| reached(orbiter.inclination_deg, orbiter.altitude_km))
                .fold(0.0, f64::max),
        }
    }

    /// The position of every satellite at a time, in Earth-fixed coordinates. None for a satellite
    /// that has decayed by then according to the theory.
    pub fn positions(&self, time_s: f64) -> Vec<Option<Vector>> {
        match &self.motion {
            Motion::Circles { orbits, .. } => {
                let turn = walker::against_rotation(time_s);
                orbits.iter().map(|orbit| Some(orbit.inertial(time_s).turned(turn))).collect()
            }
            Motion::Elements { orbiters, epoch } => {
                let turn = elements::against_sidereal_time(*epoch, time_s);
                let place = |orbiter: &Orbiter| orbiter.inertial(*epoch, time_s);
                orbiters.iter().map(|orbiter| Some(place(orbiter)?.turned(turn))).collect()
            }
        }
    }

    /// The position of one satellite at a time.
    pub fn position(&self, satellite: u32, time_s: f64) -> Option<Vector> {
        match &self.motion {
            Motion::Circles { orbits, .. } => {
                let orbit = orbits.get(satellite as usize)?;
                Some(orbit.inertial(time_s).turned(walker::against_rotation(time_s)))
            }
            Motion::Elements { orbiters, epoch } => {
                let place = orbiters.get(satellite as usize)?.inertial(*epoch, time_s)?;
                Some(place.turned(elements::against_sidereal_time(*epoch, time_s)))
            }
        }
    }
}
