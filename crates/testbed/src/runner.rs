//! Executes a plan and makes its record.
//!
//! ```text
//! build the network → modems, proxies, servers, programs → carry frames → clients → wait → take down → record
//! ```
//! Several runs may be executed at once, each in a thread of its own. Invariant: the failure of a
//! run does not affect another.

mod assemble;
mod execute;
mod fault;
mod handovers;
mod meters;
mod modems;
mod naive;
mod traffic;
mod tunnels;
mod worker;

pub use execute::{Programs, execute, load_average, start_programs, start_proxies};
pub use modems::{Modems, start_modems};
pub use naive::{NaiveProxies, start_naive_proxies};

use crate::lab::{LabError, Links, ProxyError};
use midhop_experiment::plan::Plan;
use midhop_experiment::record::{LinkResult, Record};
use midhop_units::Duration;
use std::io;
use std::path::PathBuf;

/// Why a run gave no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The network could not be built, or a link stopped.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A proxy did not start, or ended.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// A meter did not start, or gave no report.
    #[error("the meter on {node} {what}")]
    Meter {
        /// Its node.
        node: String,
        /// What went wrong, with its errors.
        what: String,
    },
    /// A tunnel between two proxies did not open, or could not be monitored.
    #[error("the proxy on {node} {what}")]
    Tunnel {
        /// Its node.
        node: String,
        /// What went wrong.
        what: String,
    },
    /// A file or process could not be made.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Somebody asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Options of runs.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// A directory for files of the runs; each run removes its own at its end.
    pub scratch: PathBuf,
    /// The program that has the `meter` command; usually this one.
    pub program: PathBuf,
    /// Whether the process has root's rights over the machine, for the record.
    pub privileged: bool,
    /// What carries frames over the links.
    pub links: Links,
    /// The smallest lateness that makes a run invalid, see [`lateness_bound`].
    pub lateness: Duration,
}

/// Lateness (99th percentile) above which a link's run is invalid where the plan's round trip is
/// short.
pub const LATENESS: Duration = Duration::from_ms(1);
/// How long an emulator may stand still in a run in all. Shorter delays show in the lateness of packets.
const STOOD_STILL_MAX: Duration = Duration::from_s(1);

/// The largest 99th percentile of lateness on a link with which a run is valid: `least`, or 1 % of
/// the path's round trip where that is more. Less lateness changes the ACK clock no more than
/// another seed does.
pub fn lateness_bound(least: Duration, path_rtt: Duration) -> Duration {
    least.max(path_rtt / 100)
}

/// Whether a link of `record` was late by more than [`lateness_bound`] allows, or its emulator
/// stood still for too long. A repetition on a less busy machine may be in time.
pub fn late(plan: &Plan, record: &Record, least: Duration) -> bool {
    !lateness_faults(plan, &record.links, least).is_empty()
}

/// Whether a run is invalid only for its [lateness](late).
pub fn only_late(plan: &Plan, record: &Record, least: Duration) -> bool {
    let of_lateness = lateness_faults(plan, &record.links, least);
    let faults = &record.validity.faults;
    !faults.is_empty() && faults.iter().all(|fault| of_lateness.contains(fault))
}

/// A sentence for each way in which a link was late.
fn lateness_faults(plan: &Plan, links: &[LinkResult], least: Duration) -> Vec<String> {
    let mut faults = Vec::new();
    for result in links {
        let path_rtt = plan.link(&result.name).map_or(Duration::ZERO, |link| link.path_rtt);
        let bound = lateness_bound(least, path_rtt);
        let late = result.lateness.as_ref().filter(|lateness| lateness.p99 > bound);
        faults.extend(late.map(|lateness| {
            format!(
                "1 % of packets left {} ({}) more than {:.3} ms late; {:.3} ms are allowed",
                result.name,
                result.direction,
                lateness.p99.as_ms_f64(),
                bound.as_ms_f64(),
            )
        }));
        faults.extend(stood_still(result, bound).map(|(time, allowed)| {
            format!(
                "the emulator of {} ({}) stood still for {:.1} s; {:.1} s are allowed",
                result.name,
                result.direction,
                time.as_s_f64(),
                allowed.as_s_f64(),
            )
        }));
    }
    faults
}

/// How long the emulator of a link stood still in all, and how long is allowed; none within that.
/// The lateness does not include packets that the emulator never received.
fn stood_still(result: &LinkResult, bound: Duration) -> Option<(Duration, Duration)> {
    let time = result.lateness.as_ref()?.stood_still;
    let allowed = bound.max(STOOD_STILL_MAX);
    (time > allowed).then_some((time, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::record::Lateness;
    use midhop_path::Direction;
    use midhop_path::counters::Counters;

    #[test]
    fn an_emulator_that_stood_still_is_late_though_no_packet_shows_it() {
        let (name, counters, span) = ("link", Counters::default(), Duration::from_s(30));
        let after = |time| {
            let lateness = Some(Lateness { stood_still: time, ..Lateness::default() });
            let counted = LinkResult::counted(name, Direction::Down, &counters, span);
            stood_still(&LinkResult { lateness, ..counted }, LATENESS)
        };
        assert_eq!(after(Duration::from_ms(900)), None);
        assert_eq!(after(Duration::from_s(3)), Some((Duration::from_s(3), STOOD_STILL_MAX)));
    }

    #[test]
    fn the_bound_is_a_hundredth_of_a_long_path() {
        assert_eq!(lateness_bound(LATENESS, Duration::from_ms(600)), Duration::from_ms(6));
        assert_eq!(lateness_bound(LATENESS, Duration::from_ms(20)), LATENESS);
    }
}
