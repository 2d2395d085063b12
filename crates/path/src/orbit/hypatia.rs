//! Reads the state of a satellite network from a directory that Hypatia's `satgenpy` has written.
//!
//! | file | a line |
//! |---|---|
//! | `tles.txt` | first `planes satellites-per-plane`, then per satellite a name and its two lines |
//! | `isls.txt` | `satellite satellite` |
//! | `ground_stations.txt` | `number,name,latitude,longitude,elevation in m,x,y,z` |
//! | `description.txt` | `max_gsl_length_m=…`, `max_isl_length_m=…` |
//! | `dynamic_state_…/fstate_T.txt` | `node,destination,next node,interface,interface`, at T ns, only what changed |
//!
//! Nodes are numbered satellites first, then ground stations. Source: Kassing et al., "Exploring
//! the Internet from Space with Hypatia", IMC 2020, and the generator's own output. Times there are
//! in nanoseconds since the epoch of the elements. A ground link is limited by its length, not by
//! an elevation.

use crate::orbit::earth::Site;
use crate::orbit::sky::Way;
use std::collections::BTreeMap;

/// A line that does not match its file's format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: \"{text}\" is not {expected}")]
pub struct HypatiaError {
    /// Which file.
    pub file: &'static str,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The text of the line.
    pub text: String,
    /// What is expected there.
    pub expected: &'static str,
}

/// A place with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct GroundStation {
    /// Its name.
    pub name: String,
    /// Its location.
    pub site: Site,
}

/// Maximum lengths of links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Description {
    /// Between the ground and a satellite. Unit: km.
    pub ground_link_km_max: f64,
    /// Between satellites. Unit: km.
    pub isl_km_max: f64,
}

/// Reads the lines of a file that are not empty, each with `read`.
fn lines<T>(
    file: &'static str,
    text: &str,
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, HypatiaError> {
    let full = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    full.map(|(number, line)| {
        read(line.trim()).ok_or_else(|| HypatiaError {
            file,
            line: number + 1,
            text: line.chars().take(80).collect(),
            expected,
        })
    })
    .collect()
}

/// Checks that `tles.txt` has as many satellites as its first line announces, and returns the text:
/// what follows that line is two-line elements. Forwarding numbers satellites by their order, so a
/// missing one would shift all others.
///
/// # Errors
/// When the first line is no pair of numbers, or another number of satellites follows.
pub fn elements(text: &str) -> Result<&str, HypatiaError> {
    let fault = |line: usize, text: String, expected| HypatiaError {
        file: "tles.txt",
        line,
        text,
        expected,
    };
    let header = text.lines().next().unwrap_or_default();
    let numbers = header.split_whitespace().map(|number| number.parse::<u32>().ok());
    let numbers: Option<Vec<u32>> = numbers.collect();
    let expected = "planes and satellites of each plane, such as \"32 16\"";
    let wrong = || fault(1, header.chars().take(80).collect(), expected);
    let [planes, satellites] = numbers.ok_or_else(wrong)?[..] else { return Err(wrong()) };
    let there = text.lines().filter(|line| line.starts_with("2 ")).count();
    if u64::from(planes) * u64::from(satellites) == there as u64 {
        return Ok(text);
    }
    let text = format!("{planes} {satellites}, and {there} satellites follow");
    Err(fault(1, text, "how many satellites there are"))
}

/// Reads `isls.txt`: pairs of satellites.
///
/// # Errors
/// When a line is no pair of two different numbers.
pub fn isls(text: &str) -> Result<Vec<[u32; 2]>, HypatiaError> {
    lines("isls", text, "a pair of two different satellites such as \"0 1\"", |line| {
        let (one, other) = line.split_once(char::is_whitespace)?;
        let ends = [one.parse().ok()?, other.trim().parse().ok()?];
        (ends[0] != ends[1]).then_some(ends)
    })
}

/// Reads `ground_stations.txt`, or its shorter form without coordinates in space.
///
/// # Errors
/// When a line has no name and place.
pub fn ground_stations(text: &str) -> Result<Vec<GroundStation>, HypatiaError> {
    let expected = "number,name,latitude,longitude,elevation";
    lines("ground_stations.txt", text, expected, |line| {
        let columns: Vec<&str> = line.split(',').collect();
        let [_, name, latitude, longitude, elevation, ..] = columns[..] else { return None };
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        let site = Site {
            altitude_m: number(elevation)?,
            ..Site::at(number(latitude)?, number(longitude)?)
        };
        site.check("ground_stations.txt").ok()?;
        matches!(columns.len(), 5 | 8).then(|| GroundStation { name: name.to_owned(), site })
    })
}

/// Reads `description.txt`.
///
/// # Errors
/// When a line is no length, or one of the two is missing.
pub fn description(text: &str) -> Result<Description, HypatiaError> {
    let file = "description.txt";
    let expected = "max_gsl_length_m=… or max_isl_length_m=…";
    let read = lines(file, text, expected, |line| {
        let (key, value) = line.split_once('=')?;
        let metres: f64 = value.trim().parse().ok()?;
        (metres > 0.0 && metres.is_finite()).then(|| (key.trim().to_owned(), metres / 1e3))
    })?;
    let lengths: BTreeMap<String, f64> = read.into_iter().collect();
    let length = |key: &str| {
        lengths.get(key).copied().ok_or_else(|| HypatiaError {
            file,
            line: 0,
            text: key.to_owned(),
            expected: "there",
        })
    };
    Ok(Description {
        ground_link_km_max: length("max_gsl_length_m")?,
        isl_km_max: length("max_isl_length_m")?,
    })
}

/// The next hop for each node and destination, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForwardingState {
    next: BTreeMap<(u32, u32), Option<u32>>,
}

impl ForwardingState {
    /// Applies the changes of an `fstate_T.txt` of a network of `nodes` satellites and ground
    /// stations.
    ///
    /// # Errors
    /// When a line does not consist of five numbers, or names an unknown node.
    pub fn apply(&mut self, text: &str, nodes: u32) -> Result<(), HypatiaError> {
        let expected =
            "five numbers: node,destination,next node,interface,interface of nodes that there are";
        let node = |number: i64| u32::try_from(number).ok().filter(|node| *node < nodes);
        let changes = lines("fstate", text, expected, |line| {
            let numbers: Option<Vec<i64>> =
                line.split(',').map(|number| number.trim().parse().ok()).collect();
            let [from, destination, next, _, _] = numbers?[..] else { return None };
            // -1: the packet is dropped here.
            let next = if next == -1 { None } else { Some(node(next)?) };
            Some(((node(from)?, node(destination)?), next))
        })?;
        self.next.extend(changes);
        Ok(())
    }

    /// The path of packets between two ground stations, given by their numbers among ground
    /// stations, over `satellites` satellites; `None` where they are dropped, run in a loop, or
    /// pass another ground station.
    pub fn way(&self, satellites: u32, from: u32, to: u32) -> Option<Way> {
        let destination = satellites.checked_add(to)?;
        let mut node = satellites.checked_add(from)?;
        let mut way = Vec::new();
        loop {
            node = *self.next.get(&(node, destination))?.as_ref()?;
            if node == destination {
                return (!way.is_empty()).then_some(Way { satellites: way });
            }
            if node >= satellites || way.len() >= satellites as usize {
                return None;
            }
            way.push(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_they_are_written() {
        assert_eq!(isls("0 1\n1 2\n"), Ok(vec![[0, 1], [1, 2]]));
        let stations = "0,Tokyo,35.6895,139.69171,0.0,-3954843.5,3354935.1,3700263.8\n";
        let stations = ground_stations(stations).expect("a station");
        assert_eq!(stations[0].name, "Tokyo");
        assert_eq!(stations[0].site, Site::at(35.6895, 139.69171));
        let lengths = "max_gsl_length_m=1089686.4181956202\nmax_isl_length_m=5016591.2330984278\n";
        let lengths = description(lengths).expect("lengths");
        assert!((lengths.isl_km_max - 5016.591).abs() < 0.001, "{lengths:?}");
        for (error, line) in [
            (isls("0 1\n1").map(|_| ()), 2),
            (isls("0 0").map(|_| ()), 1),
            (ground_stations("0,Tokyo,35,139").map(|_| ()), 1),
            (ground_stations("0,Tokyo,95,139,0").map(|_| ()), 1),
            (description("max_gsl_length_m=1").map(|_| ()), 0),
            (description("max_gsl_length_m=-1").map(|_| ()), 1),
            (description("max_gsl_length_m=inf\nmax_isl_length_m=1").map(|_| ()), 1),
            (ForwardingState::default().apply("1,2,3", 5), 1),
            (ForwardingState::default().apply("0,4,1,0,0\n0,4,5,0,0", 5), 2),
            (ForwardingState::default().apply("0,4,-2,0,0", 5), 1),
            (elements("").map(|_| ()), 1),
            (elements("1 two\n").map(|_| ()), 1),
            (elements("1 2\nA\n1 \n2 \n").map(|_| ()), 1),
        ] {
            assert_eq!(error.expect_err("refused").line, line);
        }
    }

    #[test]
    fn forwarding_is_followed_from_change_to_change() {
        // Three satellites, ground stations 3 and 4.
        let mut state = ForwardingState::default();
        state.apply("3,4,0,0,4\n0,4,1,0,1\n1,4,4,4,0\n2,4,4,4,0\n", 5).expect("a state");
        assert_eq!(state.way(3, 0, 1), Some(Way { satellites: vec![0, 1] }));
        assert_eq!(state.way(3, 1, 0), None, "nothing is said about the way back");
        state.apply("0,4,2,1,0\n", 5).expect("a change");
        assert_eq!(state.way(3, 0, 1), Some(Way { satellites: vec![0, 2] }));
        state.apply("2,4,0,1,0\n", 5).expect("a change");
        assert_eq!(state.way(3, 0, 1), None, "a circle");
        state.apply("2,4,-1,-1,-1\n", 5).expect("a change");
        assert_eq!(state.way(3, 0, 1), None, "dropped");
    }
}
