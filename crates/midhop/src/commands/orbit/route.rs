//! `midhop orbit route`.

use super::arguments::{WayArguments, read, refused};
use super::progress::OrbitProgress;
use crate::failure::Failure;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use midhop_path::orbit::hypatia::ForwardingState;
use midhop_path::orbit::sky::{Way, WayDelay};
use midhop_path::orbit::{Constellation, Hop, Journey, OrbitPlan};
use midhop_units::{Duration, Number};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The width of the delay's curve. Unit: characters.
const CURVE_WIDTH: usize = 72;
/// From low to high.
const CURVE: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Arguments of `midhop orbit route`.
#[derive(Debug, clap::Args)]
pub struct Route {
    #[command(flatten)]
    pub followed: Followed,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A path over time.
#[derive(Debug, clap::Args)]
pub struct Followed {
    #[command(flatten)]
    pub way: WayArguments,
    /// Use the paths that Hypatia's forwarding state (dynamic_state*/fstate_*.txt) has chosen
    #[arg(long, requires = "hypatia")]
    forwarding: bool,
}

impl Followed {
    /// Computes the path.
    pub fn follow(&self) -> anyhow::Result<(OrbitPlan, Constellation, Journey)> {
        let (plan, constellation) = self.way.spec()?.resolve().map_err(refused)?;
        let duration = self.way.sky.duration;
        if self.forwarding && self.way.sky.hypatia().is_none() {
            return Err(Failure::usage("--forwarding goes with --hypatia").into());
        }
        if let Some(directory) = self.way.sky.hypatia().filter(|_| self.forwarding) {
            let numbers = self.way.station_numbers()?;
            let stations = self.way.sky.stations()?.len();
            let ways = forwarded(directory, &constellation, stations, numbers, plan.start)?;
            let journey = plan.replay(&constellation, &ways, duration);
            return Ok((plan, constellation, journey));
        }
        let mut progress = OrbitProgress::new(duration);
        let journey = plan
            .follow(&constellation, duration, &mut |at| progress.reached(at))
            .map_err(refused)?;
        Ok((plan, constellation, journey))
    }
}

/// The paths between two ground stations by the forwarding state in a directory, in the order of
/// time, counted from `start`.
fn forwarded(
    directory: &Path,
    constellation: &Constellation,
    stations: usize,
    [from, to]: [u32; 2],
    start: Duration,
) -> anyhow::Result<Vec<(Duration, Option<Way>)>> {
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(directory)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("dynamic_state") {
            for file in fs::read_dir(entry.path())?.flatten() {
                let name = file.file_name().to_string_lossy().into_owned();
                let time = name.strip_prefix("fstate_").and_then(|rest| rest.strip_suffix(".txt"));
                let Some(time) = time else { continue };
                let time = time.parse().map_err(|_| {
                    let message = format!("the name of {} has no time", file.path().display());
                    Failure::usage(message).hint("files are called fstate_T.txt, T in nanoseconds")
                })?;
                files.push((time, file.path()));
            }
        }
    }
    if files.is_empty() {
        let hint = "generate it with Hypatia, or leave --forwarding out to have ways chosen here";
        let message = format!("{} has no dynamic_state*/fstate_*.txt", directory.display());
        return Err(Failure::usage(message).hint(hint).into());
    }
    files.sort();
    let satellites = constellation.len() as u32;
    let nodes = satellites.saturating_add(u32::try_from(stations).unwrap_or(u32::MAX));
    let joined: BTreeSet<[u32; 2]> = constellation
        .isls()
        .iter()
        .flat_map(|isl| [isl.ends, [isl.ends[1], isl.ends[0]]])
        .collect();
    let mut state = ForwardingState::default();
    let mut ways: Vec<(Duration, Option<Way>)> = Vec::new();
    for (time_ns, file) in files {
        let error = |error| Failure::usage(format!("{}: {error}", file.display()));
        state.apply(&read(&file)?, nodes).map_err(error)?;
        let way = state.way(satellites, from, to);
        let pairs = way.iter().flat_map(|way| way.satellites.windows(2));
        if let Some(pair) = pairs.into_iter().find(|pair| !joined.contains(*pair)) {
            let message = format!("{} forwards from {} to {}", file.display(), pair[0], pair[1]);
            let hint = "isls.txt has no link between them; both must come from one generation";
            return Err(Failure::usage(message).hint(hint).into());
        }
        // The state before the run's beginning is still valid at it.
        let at = Duration::from_ns(time_ns).saturating_sub(start);
        match ways.last_mut() {
            Some(last) if last.0 == at => last.1 = way,
            Some(last) if last.1 == way => {}
            _ => ways.push((at, way)),
        }
    }
    Ok(ways)
}

#[derive(Serialize)]
struct Answer<'a> {
    /// It is configuration: its quantities are text as in scenario files.
    orbit: &'a OrbitPlan,
    #[serde(rename = "duration_s", with = "Number::<Duration>")]
    duration: Duration,
    first: Vec<&'a str>,
    #[serde(rename = "delay_min_s", with = "Number::<Option<Duration>>")]
    delay_min: Option<Duration>,
    #[serde(rename = "delay_max_s", with = "Number::<Option<Duration>>")]
    delay_max: Option<Duration>,
    handovers: Vec<Change<'a>>,
    gaps: Vec<Gap>,
    samples: Vec<Sample>,
}

/// A time without a path, in the form of JSON.
#[derive(Serialize)]
pub struct Gap {
    #[serde(rename = "from_s", with = "Number::<Duration>")]
    from: Duration,
    #[serde(rename = "until_s", with = "Number::<Duration>")]
    until: Duration,
}

impl From<(Duration, Duration)> for Gap {
    fn from((from, until): (Duration, Duration)) -> Self {
        Self { from, until }
    }
}

#[derive(Serialize)]
struct Change<'a> {
    #[serde(rename = "time_s", with = "Number::<Duration>")]
    time: Duration,
    links: Vec<Hop>,
    from: Vec<&'a str>,
    to: Vec<&'a str>,
    #[serde(rename = "delay_before_s", with = "Number::<Option<Duration>>")]
    delay_before: Option<Duration>,
    #[serde(rename = "delay_after_s", with = "Number::<Option<Duration>>")]
    delay_after: Option<Duration>,
}

#[derive(Serialize)]
struct Sample {
    #[serde(rename = "time_s", with = "Number::<Duration>")]
    time: Duration,
    #[serde(rename = "user_s", with = "Number::<Option<Duration>>")]
    user: Option<Duration>,
    #[serde(rename = "isl_s", with = "Number::<Option<Duration>>")]
    isl: Option<Duration>,
    #[serde(rename = "feeder_s", with = "Number::<Option<Duration>>")]
    feeder: Option<Duration>,
}

impl Route {
    /// The path as a curve and a table, or as JSON.
    pub fn run(self) -> anyhow::Result<String> {
        let (plan, constellation, journey) = self.followed.follow()?;
        if self.json {
            let answer = answer(&plan, &constellation, &journey);
            return Ok(serde_json::to_string_pretty(&answer)? + "\n");
        }
        Ok(as_text(&plan, &constellation, &journey))
    }
}

fn names<'c>(constellation: &'c Constellation, way: Option<&Way>) -> Vec<&'c str> {
    let satellites = way.map_or(&[][..], |way| &way.satellites);
    satellites.iter().map(|satellite| constellation.satellite(*satellite)).collect()
}

fn answer<'a>(
    plan: &'a OrbitPlan,
    constellation: &'a Constellation,
    journey: &Journey,
) -> Answer<'a> {
    let delays = || journey.samples.iter().filter_map(|(_, delay)| Some(delay.as_ref()?.total()));
    let total = |delay: &Option<WayDelay>| delay.as_ref().map(WayDelay::total);
    Answer {
        orbit: plan,
        duration: journey.duration,
        first: names(constellation, journey.first.as_ref()),
        delay_min: delays().min(),
        delay_max: delays().max(),
        handovers: journey
            .handovers
            .iter()
            .map(|handover| Change {
                time: handover.at,
                links: handover.hops(),
                from: names(constellation, handover.before.as_ref()),
                to: names(constellation, handover.after.as_ref()),
                delay_before: total(&handover.delays[0]),
                delay_after: total(&handover.delays[1]),
            })
            .collect(),
        gaps: journey.gaps().into_iter().map(Gap::from).collect(),
        samples: journey
            .samples
            .iter()
            .map(|(time, delay)| Sample {
                time: *time,
                user: delay.map(|delay| delay.user),
                isl: delay.map(|delay| delay.isl),
                feeder: delay.map(|delay| delay.feeder),
            })
            .collect(),
    }
}

fn as_text(plan: &OrbitPlan, constellation: &Constellation, journey: &Journey) -> String {
    let mut text = format!(
        "{} ({} satellites), {} to {}, {} from second {}, choice: {}",
        plan.constellation,
        plan.satellites,
        plan.from,
        plan.to,
        journey.duration,
        seconds(plan.start),
        plan.choice.name()
    );
    let _ = match (plan.every, plan.first) {
        (Some(every), Some(first)) => writeln!(text, " every {every}, first at {first}"),
        _ => writeln!(text),
    };
    let known: Vec<&WayDelay> =
        journey.samples.iter().filter_map(|(_, delay)| delay.as_ref()).collect();
    let mean = |part: &dyn Fn(&WayDelay) -> Duration| {
        let sum: f64 = known.iter().map(|delay| part(delay).as_ms_f64()).sum();
        sum / known.len().max(1) as f64
    };
    let total = |delay: &&WayDelay| delay.total();
    if let (Some(least), Some(most)) =
        (known.iter().map(total).min(), known.iter().map(total).max())
    {
        let _ = writeln!(
            text,
            "one way {:.2} to {:.2} ms, mean {:.2} (user {:.2}, ISLs {:.2}, feeder {:.2})",
            least.as_ms_f64(),
            most.as_ms_f64(),
            mean(&WayDelay::total),
            mean(&|delay| delay.user),
            mean(&|delay| delay.isl),
            mean(&|delay| delay.feeder),
        );
        let _ = writeln!(text, "{}", curve(journey, least, most));
    }
    let mut rows = table(&["at s", "link", "from", "to", "before ms", "after ms"]);
    for handover in &journey.handovers {
        let hops = handover.hops();
        let links: Vec<&str> = hops.iter().map(|hop| hop.name()).collect();
        let label = match (&handover.before, &handover.after) {
            (_, None) => "lost".to_owned(),
            (None, _) => "found".to_owned(),
            _ => links.join("+"),
        };
        let ends = |way: Option<&Way>| {
            let all = names(constellation, way);
            match (&hops[..], &all[..]) {
                (_, []) => "-".to_owned(),
                ([Hop::User], [first, ..]) => (*first).to_owned(),
                ([Hop::Feeder], [.., last]) => (*last).to_owned(),
                ([Hop::Isl], inner) => format!("{} hops", inner.len() - 1),
                (_, [only]) => (*only).to_owned(),
                (_, [first, .., last]) => format!("{first}, {last}"),
            }
        };
        let ms = |delay: &Option<WayDelay>| {
            delay
                .map_or_else(|| "-".to_owned(), |delay| format!("{:.2}", delay.total().as_ms_f64()))
        };
        rows.add_row([
            seconds(handover.at),
            label,
            ends(handover.before.as_ref()),
            ends(handover.after.as_ref()),
            ms(&handover.delays[0]),
            ms(&handover.delays[1]),
        ]);
    }
    for column in [0, 4, 5] {
        if let Some(column) = rows.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if !journey.handovers.is_empty() {
        let _ = writeln!(text, "{rows}");
    }
    let count = |hop| journey.handovers.iter().filter(|h| h.hops().contains(&hop)).count();
    let gaps: Duration = journey.gaps().iter().map(|(begin, end)| *end - *begin).sum();
    let _ = writeln!(
        text,
        "changes: user link {}, feeder link {}, between satellites {}; without any way {} s",
        count(Hop::User),
        count(Hop::Feeder),
        count(Hop::Isl),
        seconds(gaps)
    );
    text
}

/// The delay over time, one character per interval; blank where there is no path.
fn curve(journey: &Journey, least: Duration, most: Duration) -> String {
    let width = most.saturating_sub(least).as_ns().max(1) as f64;
    let mut line = String::new();
    for column in 0..CURVE_WIDTH {
        let at = journey.duration.scale((column as f64 + 0.5) / CURVE_WIDTH as f64);
        let sample = journey.samples.partition_point(|(time, _)| *time <= at);
        let delay = journey.samples[..sample].last().and_then(|(_, delay)| delay.as_ref());
        line.push(delay.map_or(' ', |delay| {
            let share = delay.total().saturating_sub(least).as_ns() as f64 / width;
            CURVE[((share * CURVE.len() as f64) as usize).min(CURVE.len() - 1)]
        }));
    }
    line
}

/// A time in seconds, to the millisecond.
pub fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_s_f64())
}

/// A table without lines.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head.iter().copied());
    table
}
