//! Constellations that scenarios can name.

use crate::orbit::constellation::Constellation;
use crate::orbit::isl::IslRules;
use crate::orbit::walker::{Pattern, Shell};
use midhop_units::Duration;

/// A named constellation.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstellationPreset {
    /// Its name in a scenario: `constellation = "iridium"`.
    pub name: &'static str,
    /// A short description.
    pub description: &'static str,
    /// The source of its numbers, and differences between sources.
    pub source: &'static str,
    /// Its shells, with the links within each.
    pub shells: Vec<(Shell, IslRules)>,
    /// The elevation below which no satellite is used.
    pub mask_deg: f64,
    /// When satellites are chosen anew, for a system with fixed slots: the period and the first
    /// moment.
    pub slots: Option<(Duration, Duration)>,
}

impl ConstellationPreset {
    /// The constellation itself.
    pub fn constellation(&self) -> Constellation {
        Constellation::walker(self.name, &self.shells, self.mask_deg)
    }

    /// The number of satellites.
    pub fn satellites(&self) -> u32 {
        self.shells.iter().map(|(shell, _)| shell.planes * shell.satellites).sum()
    }
}

/// Every constellation, in the order to show them.
pub fn all() -> Vec<ConstellationPreset> {
    vec![
        iridium(),
        teledesic(),
        oneweb(),
        starlink_1(),
        starlink_2016(),
        kuiper_630(),
        kuiper(),
        telesat_1015(),
        telesat_2016(),
        onboard_study(),
    ]
}

/// The constellation called `name`.
pub fn find(name: &str) -> Option<ConstellationPreset> {
    all().into_iter().find(|preset| preset.name == name)
}

/// A shell whose planes are each shifted by half a gap against the one before: the commonest
/// choice.
fn shell(pattern: Pattern, altitude_km: f64, tilt: f64, planes: u32, satellites: u32) -> Shell {
    Shell {
        pattern,
        altitude_km,
        inclination_deg: tilt,
        planes,
        satellites,
        phasing: f64::from(planes) / 2.0,
        node_spacing_deg: None,
    }
}

fn delta(altitude_km: f64, tilt: f64, planes: u32, satellites: u32) -> (Shell, IslRules) {
    (shell(Pattern::Delta, altitude_km, tilt, planes, satellites), IslRules::default())
}

fn iridium() -> ConstellationPreset {
    let shell = Shell { node_spacing_deg: Some(31.6), ..shell(Pattern::Star, 780.0, 86.4, 6, 11) };
    let isl = IslRules { latitude_threshold_deg: 60.0, ..IslRules::default() };
    ConstellationPreset {
        name: "iridium",
        description: "66 satellites in a star at 780 km, four ISLs, none across the seam",
        source: "ns-2's sat-iridium.tcl after Pattan, Satellite-Based Global Cellular \
                 Communications, 1997: planes 31.6° apart with a seam of 22°, elevation 8.2°, links \
                 between planes rest above 60°",
        shells: vec![(shell, isl)],
        mask_deg: 8.2,
        slots: None,
    }
}

fn teledesic() -> ConstellationPreset {
    let shell =
        Shell { node_spacing_deg: Some(15.0), ..shell(Pattern::Star, 1375.0, 84.7, 12, 24) };
    let isl = IslRules {
        reach: 2,
        cross_seam: true,
        latitude_threshold_deg: 60.0,
        ..IslRules::default()
    };
    ConstellationPreset {
        name: "teledesic",
        description: "the 288 satellites once planned, in a star at 1375 km, eight ISLs, one of them \
                      across the seam",
        source: "ns-2's sat-teledesic.tcl and table II of a study that uses it: elevation 40°, links \
                 between planes rest above 60°. The table says that planes are not shifted against \
                 each other, the script shifts every other by half a gap; we follow the script",
        shells: vec![(shell, isl)],
        mask_deg: 40.0,
        slots: None,
    }
}

fn oneweb() -> ConstellationPreset {
    ConstellationPreset {
        name: "oneweb",
        description: "720 satellites in a star at 1200 km, bent pipe",
        source: "OneWeb's first filing with the FCC, 2016: 18 planes of 40, 87.9°; no ISLs. Sources \
                 give 50° or 55° as least elevation; with 55° gaps open at the equator, so 50°",
        shells: vec![(shell(Pattern::Star, 1200.0, 87.9, 18, 40), IslRules::bent_pipe())],
        mask_deg: 50.0,
        slots: None,
    }
}

fn starlink_1() -> ConstellationPreset {
    ConstellationPreset {
        name: "starlink-1",
        description: "Starlink's first shell: 1584 satellites at 550 km, four ISLs, satellites \
                      chosen anew every 15 s",
        source: "Kassing et al., Hypatia, IMC 2020 (72 planes of 22, 53°, elevation 25°, every other \
                 plane shifted); choice at :12, :27, :42 and :57 after Tanveer et al., CoNEXT 2023",
        shells: vec![delta(550.0, 53.0, 72, 22)],
        mask_deg: 25.0,
        slots: Some((Duration::from_s(15), Duration::from_s(12))),
    }
}

fn starlink_2016() -> ConstellationPreset {
    ConstellationPreset {
        name: "starlink-2016",
        description: "Starlink as first filed: 4425 satellites in five shells from 1110 to 1325 km",
        source: "SpaceX's filing with the FCC of 2016, as the ns-3 module ns-3-leo has it; least \
                 elevation 40° as filed. What flies is lower: starlink-1",
        shells: vec![
            delta(1150.0, 53.0, 32, 50),
            delta(1110.0, 53.8, 32, 50),
            delta(1130.0, 74.0, 8, 50),
            delta(1275.0, 81.0, 5, 75),
            delta(1325.0, 70.0, 6, 75),
        ],
        mask_deg: 40.0,
        slots: None,
    }
}

fn kuiper_630() -> ConstellationPreset {
    ConstellationPreset {
        name: "kuiper-630",
        description: "Kuiper's first shell: 1156 satellites at 630 km, four ISLs",
        source: "Kassing et al., Hypatia, IMC 2020: 34 planes of 34, 51.9°; least elevation 30° \
                 there, 35° as filed with the FCC, which we take",
        shells: vec![delta(630.0, 51.9, 34, 34)],
        mask_deg: 35.0,
        slots: None,
    }
}

fn kuiper() -> ConstellationPreset {
    ConstellationPreset {
        name: "kuiper",
        description: "all three shells of Kuiper: 3236 satellites at 630, 610 and 590 km",
        source: "Kuiper's filing with the FCC, 2019: 34 × 34 at 51.9°, 36 × 36 at 42°, 28 × 28 at \
                 33°, least elevation 35°; no links between shells",
        shells: vec![
            delta(630.0, 51.9, 34, 34),
            delta(610.0, 42.0, 36, 36),
            delta(590.0, 33.0, 28, 28),
        ],
        mask_deg: 35.0,
        slots: None,
    }
}

fn telesat_1015() -> ConstellationPreset {
    ConstellationPreset {
        name: "telesat-1015",
        description: "Telesat's polar shell: 351 satellites at 1015 km, four ISLs",
        source: "Kassing et al., Hypatia, IMC 2020: 27 planes of 13, 98.98°, elevation 10°, nodes \
                 over the full circle as there. A second shell at 1325 km and 50.9° is left out",
        shells: vec![delta(1015.0, 98.98, 27, 13)],
        mask_deg: 10.0,
        slots: None,
    }
}

fn telesat_2016() -> ConstellationPreset {
    ConstellationPreset {
        name: "telesat-2016",
        description: "Telesat as first filed: 72 satellites at 1000 km and 45 at 1248 km",
        source: "Telesat's filing with the FCC of 2016, as the ns-3 module ns-3-leo has it: 6 planes \
                 of 12 at 99.5° in a star, 5 of 9 at 37.4°, least elevation 20° as filed",
        shells: vec![
            (shell(Pattern::Star, 1000.0, 99.5, 6, 12), IslRules::default()),
            delta(1248.0, 37.4, 5, 9),
        ],
        mask_deg: 20.0,
        slots: None,
    }
}

fn onboard_study() -> ConstellationPreset {
    ConstellationPreset {
        name: "onboard-study",
        description: "512 satellites at 1200 km and 120 at 1180 km, inclined by only 20° and 30°",
        source: "Park et al., Strategically Positioning On-Board PEPs in LEO-based NTN, table I: 32 \
                 planes of 16 and 12 of 10, elevation 20°. With these inclinations nobody north of \
                 47° sees a satellite, although the study connects Germany and New York; delays of \
                 its figures must come from another geometry",
        shells: vec![delta(1200.0, 20.0, 32, 16), delta(1180.0, 30.0, 12, 10)],
        mask_deg: 20.0,
        slots: None,
    }
}
