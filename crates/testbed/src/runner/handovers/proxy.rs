//! A proxy during a handover: orders by its command line, and its connections.

use crate::lab::find_daemon;
use crate::namespace::Namespace;
use crate::runner::RunError;
use crate::runner::fault::io_error;
use midhop_experiment::pep::PepPlan;
use midhop_linux::sock_diag::{Diag, destroy};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// What is sooner than this is now: the command would find it past.
const LEAD: Duration = Duration::from_millis(200);

/// The two ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Ends {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
}

/// What `midhopd flows --json` prints, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct Flows {
    flows: Vec<Ends>,
}

/// What `midhopd move --json` prints, as far as it is needed here.
#[derive(Debug, Deserialize)]
pub(super) struct Moved {
    pub(super) moved: u64,
    pub(super) lost: u64,
    pub(super) state_bytes: u64,
    pub(super) state_frozen_bytes: u64,
    pub(super) stayed: BTreeMap<String, u64>,
}

/// A proxy whose flows are handed over.
#[derive(Debug)]
pub(super) struct Proxied {
    node: String,
    socket: PathBuf,
    file: PathBuf,
    /// Its configuration, and the same with a rule by which all flows bypass it.
    texts: [String; 2],
    drains: bool,
}

impl Proxied {
    /// The proxy of `node`, whose configuration and control socket are in `directory`.
    pub(super) fn new(node: &str, pep: &PepPlan, directory: &Path) -> Result<Self, RunError> {
        let file = directory.join(format!("{node}.toml"));
        let socket = directory.join(format!("{node}.sock"));
        let fault = || io_error(format!("read the configuration of the proxy on {node}"));
        let text = fs::read_to_string(&file).map_err(fault())?;
        let draining = pep.draining(&text).map_err(|error| fault()(io::Error::other(error)))?;
        Ok(Self { node: node.to_owned(), socket, file, texts: [text, draining], drains: false })
    }

    /// Lets new flows bypass it, or not.
    pub(super) fn drain(&mut self, drains: bool) -> Result<(), RunError> {
        if drains == self.drains {
            return Ok(());
        }
        let text = &self.texts[usize::from(drains)];
        let fault = io_error(format!("write the configuration of the proxy on {}", self.node));
        fs::write(&self.file, text).map_err(fault)?;
        let _: serde_json::Value = self.request(&["reload"])?;
        self.drains = drains;
        Ok(())
    }

    /// Its live flows.
    pub(super) fn flows(&self) -> Result<BTreeSet<Ends>, RunError> {
        let answer: Flows = self.request(&["flows", "--limit", "0"])?;
        Ok(answer.flows.into_iter().collect())
    }

    /// Begins to move all that can move to a peer. They go on until `at`, if it is still to come.
    pub(super) fn begin_to_move(&self, peer: &str, at: SystemTime) -> Result<Moving, RunError> {
        let at = rfc3339(at);
        let is_to_come = SystemTime::now() + LEAD < SystemTime::UNIX_EPOCH + at.1;
        let mut arguments = vec!["move", "--flows", "all", "--to", peer];
        if is_to_come {
            arguments.extend(["--at", &at.0]);
        }
        let (mut command, action) = self.command(&arguments)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(io_error(action.clone()))?;
        Ok(Moving { child, action })
    }

    fn request<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T, RunError> {
        let (mut command, action) = self.command(arguments)?;
        answer(&command.output().map_err(io_error(action.clone()))?, action)
    }

    /// A command, and what it is called in errors.
    fn command(&self, arguments: &[&str]) -> Result<(Command, String), RunError> {
        let mut command = Command::new(find_daemon()?);
        command.args(arguments).arg("--json").env("MIDHOPD_SOCKET", &self.socket);
        Ok((command, format!("run midhopd {} for {}", arguments.join(" "), self.node)))
    }
}

/// A command that moves flows.
#[derive(Debug)]
pub(super) struct Moving {
    child: Child,
    action: String,
}

impl Moving {
    /// Waits for its outcome.
    pub(super) fn outcome(self) -> Result<Moved, RunError> {
        let output = self.child.wait_with_output().map_err(io_error(self.action.clone()))?;
        answer(&output, self.action)
    }
}

/// What a command has printed. A move of which some flows stayed has an exit code of its own.
fn answer<T: DeserializeOwned>(output: &Output, action: String) -> Result<T, RunError> {
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        io_error(action)(io::Error::other(errors))
    })
}

/// A moment as RFC 3339 has it, in UTC, cut to microseconds, and the time since the epoch.
fn rfc3339(at: SystemTime) -> (String, Duration) {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years begin in March, so that the leap day is their last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = since.subsec_micros();
    let text =
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z");
    (text, since)
}

/// Resets `flows` of the proxy on a node, and returns how many of them there still were.
pub(super) fn reset(namespace: &Namespace, flows: &BTreeSet<Ends>) -> Result<u64, RunError> {
    let fault = || io_error(format!("reset flows on {}", namespace.name()));
    let reset = || -> io::Result<u64> {
        let mut found = Vec::new();
        Diag::open()?.dump(|socket| found.push(socket))?;
        let mut gone = BTreeSet::new();
        for socket in found {
            let (own, other) = (socket.local, socket.remote);
            let sides = [Ends { client: other, server: own }, Ends { client: own, server: other }];
            let Some(ends) = sides.into_iter().find(|ends| flows.contains(ends)) else { continue };
            match destroy(own, other, socket.cookie) {
                Ok(()) => gone.insert(ends),
                // It has ended by itself.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) => return Err(error),
            };
        }
        Ok(gone.len() as u64)
    };
    let done = namespace.run(reset).map_err(|error| fault()(io::Error::other(error)))?;
    done.map_err(fault())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_others_read_them() {
        for (since_us, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_001, "2000-02-29T00:00:00.000001Z"),
            (951_868_799_999_999, "2000-02-29T23:59:59.999999Z"),
            (1_709_251_199_500_000, "2024-02-29T23:59:59.500000Z"),
            (1_772_323_200_000_000, "2026-03-01T00:00:00.000000Z"),
            (4_102_444_799_000_000, "2099-12-31T23:59:59.000000Z"),
        ] {
            let since = Duration::from_micros(since_us);
            assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + since), (text.to_owned(), since));
        }
    }
}
