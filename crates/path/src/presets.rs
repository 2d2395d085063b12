//! Links that scenarios can name.

use crate::aqm::{AqmKind, AqmSpec};
use crate::delay::LinkDelay;
use crate::loss::{Burst, LossSpec, LossSpecs};
use crate::orbit::earth::{GRAVITY_KM3_S2, LIGHT_KM_S, RADIUS_KM};
use crate::queue::QueueSpec;
use crate::rate::LinkRate;
use crate::reconfiguration::ReconfigurationSpec;
use crate::spec::DirectionSpec;
use crate::switch::Switch;
use crate::trace::Trace;
use midhop_units::{Duration, Loss, Rate};

/// A named link.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// Its name in a scenario: `preset = "geo"`.
    pub name: &'static str,
    /// The kind of link.
    pub description: &'static str,
    /// The source of its numbers.
    pub source: &'static str,
    /// Towards the user.
    pub down: DirectionSpec,
    /// From the user.
    pub up: DirectionSpec,
}

/// No preset has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no preset \"{name}\": {}", self.hint())]
pub struct UnknownPreset {
    /// The name as written.
    pub name: String,
    /// The preset with the most similar name, if any is near.
    pub nearest: Option<&'static str>,
}

impl UnknownPreset {
    fn hint(&self) -> String {
        match self.nearest {
            Some(nearest) => format!("did you mean \"{nearest}\"?"),
            None => {
                let names: Vec<_> = all().iter().map(|preset| preset.name).collect();
                format!("known are {}", names.join(", "))
            }
        }
    }
}

/// Every preset, in the order to show them.
pub fn all() -> Vec<Preset> {
    vec![geo(), starlink(), starlink_leocc(), leo_bent_pipe(), ntn_phone()]
}

/// The preset called `name`.
///
/// # Errors
/// When there is none; the error names the nearest.
pub fn find(name: &str) -> Result<Preset, UnknownPreset> {
    let all = all();
    match all.iter().position(|preset| preset.name == name) {
        Some(index) => Ok(all[index].clone()),
        None => {
            let likeness = |known: &str| strsim::jaro_winkler(known, name);
            let nearest = all
                .iter()
                .map(|preset| preset.name)
                .filter(|known| likeness(known) > 0.75)
                .max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            Err(UnknownPreset { name: name.to_owned(), nearest })
        }
    }
}

/// A direction with a constant rate.
fn direction(rate: Rate, delay: LinkDelay) -> DirectionSpec {
    DirectionSpec {
        rate: Some(LinkRate::Constant(rate)),
        delay: Some(delay),
        ..DirectionSpec::default()
    }
}

fn geo() -> Preset {
    let delay = LinkDelay::Constant(Duration::from_ms(300));
    Preset {
        name: "geo",
        description: "terminal to gateway over a geostationary satellite: 600 ms round trip, \
                      20 Mbit/s down, 5 Mbit/s up",
        source: "3GPP TR 38.821: 541 ms round trip over the bent pipe at 10° elevation; framing and \
                 scheduling bring what users measure to 600 ms (Kosek et al., IFIP Networking 2022: \
                 608 ms, 20 Mbit/s)",
        down: direction(Rate::from_mbit_per_s(20), delay.clone()),
        up: direction(Rate::from_mbit_per_s(5), delay),
    }
}

fn starlink() -> Preset {
    let one_way = |rate: u64| {
        let long_event = LossSpec {
            good: Some(Duration::from_s(120)),
            bad: Some(Duration::from_ms(100)),
            ..LossSpec::default()
        };
        let short_bursts = LossSpec {
            mean: Loss::new(0.004),
            burst: Some(Burst::Packets(1.2)),
            ..LossSpec::default()
        };
        let delay = LinkDelay::Constant(Duration::from_us(12_500));
        DirectionSpec {
            queue: Some(QueueSpec::Time(Duration::from_ms(175))),
            aqm: Some(AqmSpec {
                kind: AqmKind::Codel,
                target: Some(Duration::from_ms(40)),
                interval: Some(Duration::from_ms(200)),
                update: None,
                burst: None,
            }),
            loss: Some(LossSpecs(vec![short_bursts, long_event])),
            reconfiguration: Some(Switch::On(ReconfigurationSpec {
                every: Some(Duration::from_s(15)),
                first: Some(Duration::from_s(12)),
                added_delay_max: Some(Duration::from_ms(15)),
                rate_sigma: Some(0.25),
                rate_factor_min: Some(0.28),
                rate_factor_max: Some(1.7),
                interruption_min: Some(Duration::from_ms(20)),
                interruption_max: Some(Duration::from_ms(150)),
                lossy_share: Loss::new(0.5),
            })),
            ..direction(Rate::from_mbit_per_s(rate), delay)
        }
    };
    Preset {
        name: "starlink",
        description: "a Starlink-like terminal: 25–55 ms round trip, 178 Mbit/s down, 17 Mbit/s up \
                      in the median, everything drawn anew every 15 s with a break of 20–150 ms",
        source: "Michel et al., IMC 2022 (rates, round-trip times, loss); Mohan et al., WWW 2024, \
                 and others (15 s reconfiguration at :12, :27, :42, :57); the distributions within \
                 these bounds are ours",
        down: one_way(178),
        up: one_way(17),
    }
}

/// The result of `midhop calibrate` for the first half of the recording in
/// `scenarios/measured/starlink-leocc`.
fn starlink_leocc() -> Preset {
    let starlink = starlink();
    let one_way = |own: DirectionSpec, rate: Rate, loss: f64| DirectionSpec {
        rate: Some(LinkRate::Constant(rate)),
        delay: Some(LinkDelay::Constant(Duration::from_ms(10))),
        loss: Loss::new(loss).map(|probability| {
            let loss = LossSpec { probability: Some(probability), ..LossSpec::default() };
            LossSpecs(vec![loss])
        }),
        reconfiguration: Some(Switch::On(ReconfigurationSpec {
            every: Some(Duration::from_s(15)),
            first: Some(Duration::from_us(8_550_000)),
            added_delay_max: Some(Duration::from_us(1_900)),
            rate_sigma: Some(0.198),
            rate_factor_min: Some(0.748),
            rate_factor_max: Some(1.209),
            interruption_min: Some(Duration::from_ms(60)),
            interruption_max: Some(Duration::from_ms(120)),
            lossy_share: Some(Loss::NONE),
        })),
        ..own
    };
    Preset {
        name: "starlink-leocc",
        description: "one recorded Starlink link: 20–24 ms round trip, 50 Mbit/s down in the median of \
                      slots of 15 s, each with a break of 60–120 ms that holds packets",
        source: "fitted to the first 60 s of LeoReplayer's sample (LeoCC, SIGCOMM 2025), five slots: \
                 delay and rate down; losses as its authors advise (0.01 % down, 0.2 % up); the rate up \
                 was not recorded and is that of `starlink`, as are queue and CoDel",
        down: one_way(starlink.down, Rate::from_bits_per_s(50_050_000), 1e-4),
        up: one_way(starlink.up, Rate::from_mbit_per_s(17), 2e-3),
    }
}

fn leo_bent_pipe() -> Preset {
    let delay = LinkDelay::Trace(pass_delays(600.0, 30.0, Duration::from_s(5)));
    Preset {
        name: "leo-bent-pipe",
        description: "terminal to gateway over one transparent satellite at 600 km: the delay of \
                      each pass falls and rises again with the slant range, 20 Mbit/s down, \
                      5 Mbit/s up",
        source: "geometry over a spherical Earth as in 3GPP TR 38.821 (25.77 ms round trip at 10°), \
                 passes through the zenith down to 30°, terminal and gateway side by side; rates of \
                 Kosek et al., IFIP Networking 2022",
        down: direction(Rate::from_mbit_per_s(20), delay.clone()),
        up: direction(Rate::from_mbit_per_s(5), delay),
    }
}

fn ntn_phone() -> Preset {
    let user_link = |rate: Rate| DirectionSpec {
        queue: Some(QueueSpec::Packets(100)),
        ..direction(rate, LinkDelay::Constant(Duration::from_us(8_190)))
    };
    Preset {
        name: "ntn-phone",
        description: "a phone's direct link to a satellite at 1200 km: 2 Mbit/s down, 60 kbit/s up, \
                      8.2 ms one way; give `loss` = 0.05 % or 0.5 % for half of the study's rates",
        source: "Park et al., Strategically Positioning On-Board PEPs in LEO-based NTN: Table I \
                 (rates, 1200 km, 20° elevation, hence 2455 km); queue of 100 packets as in ns-3",
        down: user_link(Rate::from_mbit_per_s(2)),
        up: user_link(Rate::from_bits_per_s(60_000)),
    }
}

/// One-way delays over a transparent satellite in passes through the zenith, with both hops equally
/// long.
///
/// The Earth does not turn in this model. After each pass, the next satellite rises in the same
/// place.
fn pass_delays(altitude_km: f64, mask_deg: f64, step: Duration) -> Trace<Duration> {
    let orbit_km = RADIUS_KM + altitude_km;
    let mask = mask_deg.to_radians();
    let coverage = f64::acos(RADIUS_KM * mask.cos() / orbit_km) - mask;
    let angular_speed = f64::sqrt(GRAVITY_KM3_S2 / orbit_km.powi(3));
    let pass_s = 2.0 * coverage / angular_speed;
    let steps = (pass_s / step.as_s_f64()) as u64;
    let delay_at = |time: Duration| {
        let angle = angular_speed * time.as_s_f64() - coverage;
        let slant_km = f64::sqrt(
            RADIUS_KM.powi(2) + orbit_km.powi(2) - 2.0 * RADIUS_KM * orbit_km * angle.cos(),
        );
        Duration::from_us((2.0 * slant_km / LIGHT_KM_S * 1e6).round() as u64)
    };
    let steps = (0..steps).map(|index| (step * index, delay_at(step * index))).collect();
    Trace { steps, repeat: Some(Duration::from_ms((pass_s * 1e3) as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_run_and_names_its_source() {
        for preset in all() {
            for direction in [&preset.down, &preset.up] {
                let rtt = direction.delay_min() * 2;
                direction.resolve(rtt).unwrap_or_else(|error| panic!("{}: {error}", preset.name));
            }
            assert!(!preset.source.is_empty() && !preset.description.is_empty());
            assert_eq!(find(preset.name), Ok(preset));
        }
    }

    #[test]
    fn geo_takes_600_ms_there_and_back() {
        let geo = find("geo").expect("a preset");
        assert_eq!(geo.down.delay_min() + geo.up.delay_min(), Duration::from_ms(600));
    }

    #[test]
    fn slant_ranges_agree_with_the_standard() {
        // TR 38.821: 25.77 ms round trip over both hops at 600 km and 10°; 8.0 ms in the zenith.
        let pass = pass_delays(600.0, 10.0, Duration::from_s(1));
        let rising = pass.steps[0].1.as_ms_f64() * 2.0;
        assert!((rising - 25.77).abs() < 0.01, "{rising}");
        let highest = pass.values().min().expect("steps").as_ms_f64() * 2.0;
        assert!((highest - 8.006).abs() < 0.01, "{highest}");
        // The longest pass of a satellite at 600 km above 10° takes 510 s.
        let period = pass.repeat.expect("a period").as_s_f64();
        assert!((period - 510.0).abs() < 1.0, "{period}");
    }
}
