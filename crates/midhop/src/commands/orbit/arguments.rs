//! The options for constellation, places and time.

use crate::failure::Failure;
use midhop_path::orbit::hypatia::{self, Description, GroundStation};
use midhop_path::orbit::{
    Choice, Constellation, ConstellationSpec, ConstellationTable, OrbitError, OrbitPlan, OrbitSpec,
    Site,
};
use midhop_units::Duration;
use std::fs;
use std::path::{Path, PathBuf};

/// The constellation, in one of three forms.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// A constellation by name; `midhop orbit list` shows them
    #[arg(long, value_name = "NAME")]
    constellation: Option<String>,
    /// Satellites by their two-line elements, with or without lines of names
    #[arg(long, value_name = "FILE")]
    tle: Option<PathBuf>,
    /// A network that Hypatia has generated: tles.txt, isls.txt, description.txt, ground_stations.txt
    #[arg(long, value_name = "DIR")]
    hypatia: Option<PathBuf>,
}

/// The constellation and the time.
#[derive(Debug, clap::Args)]
pub struct SkyArguments {
    #[command(flatten)]
    source: Source,
    /// Time 0 for two-line elements, in UTC [default: the newest of the elements]
    #[arg(long, value_name = "TIME")]
    epoch: Option<String>,
    /// Use no satellite below this elevation, in degrees
    #[arg(long, value_name = "DEGREES", value_parser = mask, allow_negative_numbers = true)]
    mask: Option<f64>,
    /// Begin this long after time 0
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub start: Duration,
    /// The length of the time to examine
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = some_time)]
    pub duration: Duration,
    /// Interval at which the sky is examined; changes are found to the millisecond in any case
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub step: Duration,
}

/// Two places and how the path between them is chosen.
#[derive(Debug, clap::Args)]
pub struct WayArguments {
    #[command(flatten)]
    pub sky: SkyArguments,
    /// Where the path begins: latitude,longitude[,altitude in m], or a ground station of --hypatia
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    from: String,
    /// Where the path ends
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    to: String,
    /// How satellites are chosen: keep, highest or shortest
    #[arg(long, value_name = "RULE", value_parser = choice, default_value = "keep")]
    choice: Choice,
    /// Choose satellites anew only at this interval; 0s: whenever one must change [default: the
    /// constellation's]
    #[arg(long, value_name = "TIME")]
    every: Option<Duration>,
    /// When they are first chosen anew
    #[arg(long, value_name = "TIME")]
    first: Option<Duration>,
    /// How long a handover interrupts a link to the ground
    #[arg(long, value_name = "TIME", default_value = "0s")]
    interruption: Duration,
    /// Packets wait during breaks instead of being lost
    #[arg(long)]
    hold: bool,
}

fn mask(text: &str) -> Result<f64, String> {
    let degrees = text.parse().ok().filter(|degrees| (0.0..=89.0).contains(degrees));
    degrees.ok_or_else(|| "an elevation from 0 to 89 degrees".to_owned())
}

fn some_time(text: &str) -> Result<Duration, String> {
    let time: Duration = text.parse().map_err(|error| format!("{error}"))?;
    if time.is_zero() { Err("more than no time at all".to_owned()) } else { Ok(time) }
}

fn choice(text: &str) -> Result<Choice, String> {
    [Choice::Keep, Choice::Highest, Choice::Shortest]
        .into_iter()
        .find(|choice| choice.name() == text)
        .ok_or_else(|| "one of keep, highest, shortest".to_owned())
}

impl SkyArguments {
    fn constellation(&self) -> Result<ConstellationSpec, Failure> {
        let Source { constellation, tle, hypatia } = &self.source;
        if let Some(name) = constellation {
            if self.epoch.is_some() {
                return Err(Failure::usage("--epoch goes with --tle or --hypatia"));
            }
            return Ok(ConstellationSpec::Named(name.clone()));
        }
        let mut table = ConstellationTable {
            epoch: self.epoch.clone(),
            mask_deg: self.mask,
            ..ConstellationTable::default()
        };
        if let Some(directory) = hypatia {
            let Description { ground_link_km_max, isl_km_max } =
                hypatia::description(&read(&directory.join("description.txt"))?)
                    .map_err(Failure::usage)?;
            let elements = read(&directory.join("tles.txt"))?;
            table.tle = Some(hypatia::elements(&elements).map_err(Failure::usage)?.to_owned());
            table.isls = Some(read(&directory.join("isls.txt"))?);
            table.isl_km_max = Some(isl_km_max);
            table.ground_link_km_max = Some(ground_link_km_max);
            // There, only the length limits ground links.
            table.mask_deg = Some(self.mask.unwrap_or(0.0));
        } else if let Some(file) = tle {
            table.tle = Some(read(file)?);
        }
        Ok(ConstellationSpec::Table(Box::new(table)))
    }

    /// The directory of a network that Hypatia has generated.
    pub fn hypatia(&self) -> Option<&Path> {
        self.source.hypatia.as_deref()
    }

    /// The ground stations of that network.
    pub fn stations(&self) -> Result<Vec<GroundStation>, Failure> {
        let Some(directory) = self.hypatia() else { return Ok(Vec::new()) };
        hypatia::ground_stations(&read(&directory.join("ground_stations.txt"))?)
            .map_err(Failure::usage)
    }

    fn site(&self, option: &str, text: &str) -> Result<Site, Failure> {
        let numbers: Option<Vec<f64>> =
            text.split(',').map(|number| number.trim().parse().ok()).collect();
        let site = match numbers.as_deref() {
            Some([latitude, longitude]) => Site::at(*latitude, *longitude),
            Some([latitude, longitude, altitude_m]) => {
                Site { altitude_m: *altitude_m, ..Site::at(*latitude, *longitude) }
            }
            _ => {
                let stations = self.stations()?;
                let found = stations.into_iter().find(|station| station.name == text);
                let hint = "write it as 51.4,10.5 (degrees north and east), or as a name of \
                            ground_stations.txt with --hypatia";
                let message = format!("\"{text}\" of {option} is no place");
                found.ok_or_else(|| Failure::usage(message).hint(hint))?.site
            }
        };
        Ok(Site { mask_deg: self.mask, ..site })
    }

    /// The constellation and a place under it.
    pub fn resolve(
        &self,
        option: &str,
        place: &str,
    ) -> Result<(OrbitPlan, Constellation), Failure> {
        let site = self.site(option, place)?;
        self.orbit(site, site)?.resolve().map_err(|error| {
            let message = error.to_string().replace("`orbit.from`", option);
            Failure::usage(in_options(message))
        })
    }

    fn orbit(&self, from: Site, to: Site) -> Result<OrbitSpec, Failure> {
        Ok(OrbitSpec {
            constellation: self.constellation()?,
            from,
            to,
            start: Some(self.start),
            part: None,
            choice: None,
            every: None,
            first: None,
            interruption: None,
            hold: None,
            step: Some(self.step),
        })
    }
}

impl WayArguments {
    /// The orbit in the form of a scenario.
    pub fn spec(&self) -> Result<OrbitSpec, Failure> {
        let from = self.sky.site("--from", &self.from)?;
        let to = self.sky.site("--to", &self.to)?;
        Ok(OrbitSpec {
            choice: Some(self.choice),
            every: self.every,
            first: self.first,
            interruption: Some(self.interruption),
            hold: Some(self.hold),
            ..self.sky.orbit(from, to)?
        })
    }

    /// The numbers of both places among the ground stations of --hypatia, found by name.
    pub fn station_numbers(&self) -> Result<[u32; 2], Failure> {
        let stations = self.sky.stations()?;
        let number = |text: &str| {
            let found = stations.iter().position(|station| station.name == text);
            found.and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
                Failure::usage(format!("\"{text}\" is no ground station of the network"))
                    .hint("its forwarding knows ground stations only; name two of them")
            })
        };
        Ok([number(&self.from)?, number(&self.to)?])
    }
}

/// The error for an orbit that is refused, with the names of options.
pub fn refused(error: OrbitError) -> Failure {
    Failure::usage(in_options(error.to_string()))
}

/// Replaces the keys of a scenario in a message by the options and files from which they come here.
fn in_options(message: String) -> String {
    const KEYS: [(&str, &str); 9] = [
        ("`orbit.from`", "--from"),
        ("`orbit.to`", "--to"),
        ("`orbit.start`", "--start"),
        ("`orbit.step`", "--step"),
        ("`orbit.every`", "--every"),
        ("`orbit.first`", "--first"),
        ("`orbit.interruption`", "--interruption"),
        ("`orbit.constellation.isls`", "a link of isls.txt"),
        ("`orbit.constellation.isl_km_max`", "max_isl_length_m, in km,"),
    ];
    KEYS.into_iter().fold(message, |message, (key, option)| message.replace(key, option))
}

/// Reads a text file.
pub fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))
}
