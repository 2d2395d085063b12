//! A scenario in which each satellite that the path uses first or last is a node.
//!
//! The user and the gateway leave one satellite and take the next. There is one link between a
//! first and a last satellite that were in use together, whatever satellites are between them.
//! There is also one between a satellite and its successor, for state that moves. Before and after
//! the time in which a link was in use, its delay is constant.

use super::trace::{GATEWAY, USER, download};
use crate::failure::Failure;
use midhop_experiment::handovers::{HandoverSpec, LiveFlows};
use midhop_experiment::spec::Spec;
use midhop_path::LinkSpec;
use midhop_path::delay::LinkDelay;
use midhop_path::orbit::sky::Way;
use midhop_path::orbit::{Constellation, Journey, OrbitPlan};
use midhop_path::rate::LinkRate;
use midhop_path::trace::Trace;
use midhop_units::{Duration, Rate};
use std::collections::BTreeMap;

/// Unit: characters. A link's name consists of two such names and a prefix, and has at most 15.
const SHORT: usize = 5;

/// The links of a scenario by name: their nodes, and their delay from certain moments on.
type Links = BTreeMap<String, ([String; 2], Vec<(Duration, Duration)>)>;

/// The scenario of a path.
///
/// # Errors
/// When there are times without a path.
pub fn by_satellites(
    plan: &OrbitPlan,
    constellation: &Constellation,
    journey: &Journey,
    rate: Rate,
) -> Result<Spec, Failure> {
    let name = |satellite: u32| short_name(constellation, satellite);
    let mut links = Links::new();
    for (begin, end, way) in stretches(journey)? {
        let [first, last] = way.access().map(name);
        for (time, delay) in &journey.samples {
            let Some(delay) = delay.filter(|_| (begin..end).contains(time)) else { continue };
            note(&mut links, Ends::User(&first), *time, delay.user);
            note(&mut links, Ends::Feeder(&last), *time, delay.feeder);
            if first != last {
                note(&mut links, Ends::Satellites([&first, &last]), *time, delay.isl);
            }
        }
    }
    let mut handovers = Vec::new();
    for change in &journey.handovers {
        let both = change.before.as_ref().zip(change.after.as_ref());
        let Some([before, after]) = both.map(|(a, b)| [a.access(), b.access()]) else { continue };
        for end in [0, 1] {
            let [from, to] = [name(before[end]), name(after[end])];
            if from == to {
                continue;
            }
            let joins = [Ends::Satellites([&from, &to]), Ends::Satellites([&to, &from])];
            if let Some(over) = change.over[end]
                && !joins.iter().any(|ends| links.contains_key(&ends.link()))
            {
                note(&mut links, Ends::Satellites([&from, &to]), Duration::ZERO, over);
            }
            let [leaves, takes] = [&from, &to].map(|satellite| match end {
                0 => Ends::User(satellite).link(),
                _ => Ends::Feeder(satellite).link(),
            });
            handovers.push(HandoverSpec {
                at: change.at,
                every: None,
                from: node_name(&from),
                to: node_name(&to),
                leaves,
                takes,
                announced: None,
                flows: LiveFlows::default(),
                over: None,
                outage: Some(plan.interruption).filter(|it| !it.is_zero()),
                drain: None,
                state: None,
            });
        }
    }
    let nodes = links.values().flat_map(|(between, _)| between.clone()).collect();
    let links = links.into_iter().map(|(name, (between, delays))| {
        let (rate, delay) = (Some(LinkRate::Constant(rate)), Some(delay(delays)));
        (name, LinkSpec { between, rate, delay, ..LinkSpec::default() })
    });
    Ok(download(plan, journey, nodes, links.collect(), handovers))
}

/// The ends of a link, by the short names of satellites.
enum Ends<'a> {
    User(&'a str),
    Feeder(&'a str),
    Satellites([&'a str; 2]),
}

impl Ends<'_> {
    /// The link's name, which is that of an interface and has to be short.
    fn link(&self) -> String {
        match self {
            Self::User(first) => format!("user-{first}"),
            Self::Feeder(last) => format!("feeder-{last}"),
            Self::Satellites(both) => format!("isl-{}", both.join("-")),
        }
    }

    fn nodes(&self) -> [String; 2] {
        match self {
            Self::User(first) => [USER.to_owned(), node_name(first)],
            Self::Feeder(last) => [node_name(last), GATEWAY.to_owned()],
            Self::Satellites(both) => both.map(node_name),
        }
    }
}

/// The times in which one path was in use: begin and end.
fn stretches(journey: &Journey) -> Result<Vec<(Duration, Duration, &Way)>, Failure> {
    let mut begin = (Duration::ZERO, journey.first.as_ref());
    let mut all = Vec::new();
    let changes = journey.handovers.iter().map(|change| (change.at, change.after.as_ref()));
    for next in changes.chain([(Duration::MAX, None)]) {
        let (at, Some(way)) = begin else {
            let hint = "`midhop orbit route` lists the times without a path; choose others by --start and --duration";
            let message = format!("there is no path from {} on: no satellite takes over", begin.0);
            return Err(Failure::usage(message).hint(hint));
        };
        all.push((at, next.0, way));
        begin = next;
    }
    Ok(all)
}

/// The delay of a link from a moment on.
fn note(links: &mut Links, ends: Ends<'_>, from: Duration, delay: Duration) {
    let (_, delays) = links.entry(ends.link()).or_insert_with(|| (ends.nodes(), Vec::new()));
    // The first delay counts from the beginning of the run.
    let from = if delays.is_empty() { Duration::ZERO } else { from };
    if delays.last().is_none_or(|(_, last)| *last != delay) {
        delays.push((from, delay));
    }
}

fn delay(steps: Vec<(Duration, Duration)>) -> LinkDelay {
    match &steps[..] {
        [(_, always)] => LinkDelay::Constant(*always),
        _ => LinkDelay::Trace(Trace { steps, repeat: None }),
    }
}

/// A satellite's own name if a link's name has room for two of them, otherwise its number.
fn short_name(constellation: &Constellation, satellite: u32) -> String {
    let name = constellation.satellite(satellite);
    let is_short =
        name.len() <= SHORT && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if is_short { name.to_ascii_lowercase() } else { satellite.to_string() }
}

fn node_name(satellite: &str) -> String {
    format!("sat-{satellite}")
}
