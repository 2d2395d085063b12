//! One file per command.

mod arguments;
pub mod calibrate;
pub mod compare;
pub mod demo;
pub mod doctor;
pub mod formulas;
mod go_on;
pub mod lab;
pub mod manual;
pub mod meter;
pub mod orbit;
mod origin;
mod output;
mod records;
pub mod reference;
pub mod report;
pub mod reproduce;
mod scenario;
pub mod schema;
pub mod sim;

use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

/// What `midhop` can do. Each command is one module, which holds its arguments and its `run`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a page, a file and four flows over a GEO satellite, with and without the proxy
    Demo(demo::Demo),
    /// Report what this host lacks for midhop and midhopd
    Doctor(doctor::Doctor),
    /// Generate load between two hosts and measure it
    Meter(meter::Meter),
    /// Run scenarios on real kernels, or hold a lab for any program
    Lab(lab::Lab),
    /// Run scenarios in virtual time
    Sim(sim::Sim),
    /// Run scenarios on emulated machines with a Debian kernel, in virtual time
    Reference(reference::Reference),
    /// Run published studies again, and compare their results and claims with ours
    Reproduce(reproduce::Reproduce),
    /// Compare long simulated flows with the formulas that were published for them
    Formulas(formulas::CheckFormulas),
    /// Compute constellations: passes over a place, paths between two places over time, traces
    Orbit(orbit::Orbit),
    /// Show records as a table, as an HTML page with pictures, as JSON or CSV
    Report(report::Report),
    /// Compare two sets of records, and show which differences are real
    Compare(compare::Compare),
    /// Compare a preset of a link with recordings of a real one, and fit a link to them
    Calibrate(calibrate::Calibrate),
    /// Print the JSON Schema of a scenario or a study, for editors to complete and check keys
    Schema(schema::Schema),
    /// Write the man pages and shell completions, for packages
    #[command(hide = true)]
    Manual(manual::Manual),
}

impl Command {
    /// Runs the command and returns its exit code.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(command) => command.run(),
            Self::Doctor(command) => command.run(),
            Self::Meter(command) => command.run(),
            Self::Lab(command) => command.run(),
            Self::Sim(command) => command.run(),
            Self::Reference(command) => command.run(),
            Self::Reproduce(command) => command.run(),
            Self::Formulas(command) => command.run(),
            Self::Orbit(command) => command.run(),
            Self::Report(command) => command.run(),
            Self::Compare(command) => command.run(),
            Self::Calibrate(command) => command.run(),
            Self::Schema(command) => command.run(),
            Self::Manual(command) => command.run(),
        }
    }
}

/// The file of this program.
fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}
