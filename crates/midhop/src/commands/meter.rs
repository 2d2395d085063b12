//! `midhop meter`: a load generator for any two hosts.

mod run;
mod serve;
mod table;
mod traffic;

use crate::failure::Failure;
use midhop_bpf::{Active, Parameters};
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
    /// Move payload to or from a host that serves, and report how fast it went.
    Run(Box<run::Run>),
    /// Be one end of a line of cross traffic, as `midhop lab run` starts it.
    #[command(hide = true)]
    Traffic(traffic::Traffic),
}

impl Meter {
    /// Serves or runs.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            MeterCommand::Serve(serve) => serve.run(),
            MeterCommand::Run(run) => run.run(),
            MeterCommand::Traffic(traffic) => traffic.run(),
        }
    }
}

/// Makes a congestion control selectable; the name is good for as long as the value lives.
fn activate(name: &str) -> Result<Active, Failure> {
    midhop_bpf::resolve(name)
        .map_err(Failure::run)?
        .activate(&Parameters::default())
        .map_err(Failure::run)
}

/// A runtime whose sockets are all of the calling thread's network namespace.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run(format!("cannot start the threads: {error}")))
}
