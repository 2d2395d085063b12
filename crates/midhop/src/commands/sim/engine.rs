//! Engines that run a sweep elsewhere: a cluster of Ray's, which the Python package drives.

use crate::failure::Failure;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What the package drives clusters with; its first word stands in `PATH`.
const PYTHON: &str = "python3";

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

    /// Becomes the program that runs the sweep of these `arguments` there: signals and the exit code are its own from
    /// then on. It comes back only with why that cannot be.
    pub fn take_over(&self, arguments: Vec<OsString>) -> anyhow::Error {
        if let Err(failure) = check() {
            return failure.into();
        }
        let mut command = Command::new(PYTHON);
        command.args(["-m", "midhop", "sweep", "--engine", &self.0]).args(arguments);
        Failure::run(format!("cannot start {PYTHON}")).because(command.exec()).into()
    }
}

/// Whether there is a Python with the package and with Ray.
fn check() -> Result<(), Failure> {
    let hint = "pip install 'midhop[ray]' into the environment whose python3 comes first in PATH; \
                without --engine, all processors here are used";
    let tried = Command::new(PYTHON).args(["-c", "import midhop._native, ray"]).output();
    let output = tried.map_err(|error| {
        let message = match error.kind() {
            ErrorKind::NotFound => format!("there is no {PYTHON}, which runs a sweep on a cluster"),
            _ => format!("cannot start {PYTHON}, which runs a sweep on a cluster"),
        };
        Failure::run(message).because(error).hint(hint)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let why = text.lines().last().unwrap_or("it gives no reason").to_owned();
    Err(Failure::run(format!("{PYTHON} cannot run a sweep on a cluster")).because(why).hint(hint))
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
