//! Engines that run a sweep or a study elsewhere: a Ray cluster, through the Python package.

use crate::failure::Failure;
use midhop_campaign::Build;
use midhop_testbed::signals::Interrupts;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The interpreter for the package, looked up in `PATH`.
const PYTHON: &str = "python3";
/// Interval at which interrupts are checked while the package runs.
const LOOK: Duration = Duration::from_millis(50);
/// How long the package may take to end after an interrupt: it may be in a call that no signal
/// interrupts.
const ENDING: Duration = Duration::from_secs(10);

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine(String);

impl Engine {
    /// `ray`, `ray://HOST:PORT` or `HOST:PORT`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_address =
            |it: &str| it.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if text == "ray" || is_address(text) {
            return Ok(Self(text.to_owned()));
        }
        Err("there are ray, ray://HOST:PORT and HOST:PORT".to_owned())
    }

    /// Replaces this process by the program that runs the sweep with these `arguments` there: it
    /// handles signals and gives the exit code. Returns only with an error.
    pub fn take_over(&self, arguments: Vec<OsString>) -> anyhow::Error {
        if let Err(failure) = check() {
            return failure.into();
        }
        Failure::run(format!("cannot start {PYTHON}"))
            .because(self.command("sweep", arguments).exec())
            .into()
    }

    /// Runs the study with these `arguments` there, until it is over or `interrupts` is set. Its
    /// records are kept, and failures are on standard error. Returns the exit code where it was not
    /// completed.
    pub fn run_study(
        &self,
        arguments: Vec<OsString>,
        interrupts: &Interrupts,
    ) -> anyhow::Result<Option<u8>> {
        // A terminal's Ctrl-C reaches this program, which passes it on once.
        let mut child = self
            .command("study", arguments)
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::run(format!("cannot start {PYTHON}")).because(error))?;
        let pid = i32::try_from(child.id()).map(Pid::from_raw)?;
        let status = std::thread::scope(|scope| {
            let (ended, end) = channel();
            scope.spawn(move || {
                // The receiver is gone only during a panic.
                let _ = ended.send(child.wait());
            });
            let mut asked = None;
            loop {
                if let Ok(status) = end.recv_timeout(LOOK) {
                    return status;
                }
                if !interrupts.is_set() {
                    continue;
                }
                let since = *asked.get_or_insert_with(|| {
                    let _ = kill(pid, Signal::SIGINT);
                    Instant::now()
                });
                if since.elapsed() > ENDING {
                    let _ = kill(pid, Signal::SIGKILL);
                }
            }
        });
        let status: ExitStatus =
            status.map_err(|error| Failure::run(format!("{PYTHON} was lost")).because(error))?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok((!status.success()).then(|| code.unwrap_or(crate::failure::RUN)))
    }

    /// The package with a command of its own.
    fn command(&self, name: &str, arguments: Vec<OsString>) -> Command {
        let mut command = Command::new(PYTHON);
        command.args(["-m", "midhop", name, "--engine", &self.0]).args(arguments);
        command
    }

    /// The build of the package that runs there.
    pub fn build(&self) -> anyhow::Result<Build> {
        let text = check()?;
        let build = text.lines().last().and_then(Build::parse);
        let unknown = || Failure::run(format!("{PYTHON} has a package midhop of unknown build"));
        Ok(build.ok_or_else(|| unknown().hint(INSTALL))?)
    }
}

const INSTALL: &str = "pip install 'midhop[ray]' into the environment whose python3 comes first in PATH; \
                       without --engine, all processors here are used";

/// Checks for a Python with the package and with Ray. Returns its output, the build of the package.
fn check() -> Result<String, Failure> {
    let print = "import midhop._native, ray; print(midhop._native.build())";
    let tried = Command::new(PYTHON).args(["-c", print]).output();
    let output = tried.map_err(|error: io::Error| {
        let message = match error.kind() {
            ErrorKind::NotFound => format!("there is no {PYTHON}, which runs things on a cluster"),
            _ => format!("cannot start {PYTHON}, which runs things on a cluster"),
        };
        Failure::run(message).because(error).hint(INSTALL)
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let why = text.lines().last().unwrap_or("it gives no reason").to_owned();
    let message = format!("{PYTHON} cannot run things on a cluster");
    Err(Failure::run(message).because(why).hint(INSTALL))
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_ray_or_an_address() {
        for text in ["ray", "ray://head:10001", "10.0.0.1:6379", "[fd00::1]:6379"] {
            assert_eq!(Engine::parse(text), Ok(Engine(text.to_owned())));
        }
        for text in ["", "dask", "ray:", "ray://head", "head:port"] {
            assert!(Engine::parse(text).is_err(), "{text}");
        }
    }
}
