//! `midhop meter`: a load generator for any two hosts.

mod link;
mod naive;
mod run;
mod serve;
mod start;
mod table;
mod traffic;

use crate::failure::Failure;
use midhop_bpf::{Active, Algorithm, Parameters, Resolution};
use std::process::ExitCode;

/// Arguments of `midhop meter`.
#[derive(Debug, clap::Args)]
pub struct Meter {
    #[command(subcommand)]
    command: MeterCommand,
}

#[derive(Debug, clap::Subcommand)]
enum MeterCommand {
    /// Serve any number of clients at once, until interrupted.
    Serve(serve::Serve),
    /// Move payload to or from a host that serves, and report the goodput.
    Run(Box<run::MeterRun>),
    /// Measure round trip, rate and loss of the link to a host that serves; print keys for midhopd.
    Link(link::MeterLink),
    /// Be one end of cross traffic, as started by `midhop lab run`.
    #[command(hide = true)]
    Traffic(traffic::Traffic),
    /// Be a naive proxy on a node, as started by `midhop lab run`.
    #[command(hide = true)]
    Naive(naive::Naive),
}

impl Meter {
    /// Serves or runs.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            MeterCommand::Serve(serve) => serve.run(),
            MeterCommand::Run(run) => run.run(),
            MeterCommand::Link(link) => link.run(),
            MeterCommand::Traffic(traffic) => traffic.run(),
            MeterCommand::Naive(naive) => naive.run(),
        }
    }
}

/// Makes a congestion control selectable, such as `cubic` or `hybla,rtt0=50ms`. The name is valid
/// while the value lives.
fn activate(asked: &str) -> Result<Active, Failure> {
    let (name, setting) =
        asked.split_once(',').map_or((asked, None), |(name, it)| (name, Some(it)));
    let resolution = midhop_bpf::resolve(name).map_err(Failure::run)?;
    let mut parameters = Parameters::default();
    if let Some(setting) = setting {
        let refused = |what: &str| Failure::usage(format!("congestion control {asked:?}: {what}"));
        let rtt0 = setting.strip_prefix("rtt0=").ok_or_else(|| {
            refused("only `rtt0` can be set").hint("such as hybla,rtt0=50ms".to_owned())
        })?;
        if !matches!(
            resolution,
            Resolution::Program(Algorithm::Hybla | Algorithm::HyblaPlus | Algorithm::HyblaLinux)
        ) {
            return Err(refused("only hybla, hybla-plus and our hybla-linux take `rtt0`"));
        }
        let rtt0: midhop_units::Duration =
            rtt0.parse().map_err(|error| refused(&format!("{error}")))?;
        parameters.rtt0 = rtt0.into();
    }
    resolution.activate(&parameters).map_err(Failure::run)
}

/// A runtime whose sockets all belong to the calling thread's network namespace.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run(format!("cannot start the threads: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_an_algorithm_lacks_is_refused() {
        for (asked, reason) in [
            ("hybla,rtt=50ms", "only `rtt0`"),
            ("cubic,rtt0=50ms", "take `rtt0`"),
            ("hybla,rtt0=soon", "soon"),
            ("no-such-thing,rtt0=50ms", "no-such-thing"),
        ] {
            let error = activate(asked).expect_err(asked);
            assert!(error.to_string().contains(reason), "{asked}: {error}");
        }
        assert!(activate("reno").is_ok());
    }
}
