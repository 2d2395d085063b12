//! `midhop meter traffic`: one end of a line of cross traffic.
//!
//! It prints a line when it is ready, reads the run's start from its standard input, works until
//! that ends, and then prints its results.

use super::serve::{print_line, resolver};
use super::start;
use crate::failure::Failure;
use anyhow::Context;
use midhop_testbed::meter::{Part, TrafficOptions, run_traffic};
use midhop_units::Seed;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};

/// Arguments of `midhop meter traffic`.
#[derive(Debug, clap::Args)]
pub struct Traffic {
    /// Which end this is.
    part: End,
    /// The cross traffic, as in a plan.
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// The address of its listening end.
    #[arg(long, value_name = "ADDRESS:PORT")]
    address: SocketAddr,
    /// The run's seed.
    #[arg(long, value_name = "N")]
    seed: u64,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum End {
    /// The end that opens connections, or sends datagrams.
    Opens,
    /// The end that listens for them.
    Listens,
}

impl Traffic {
    /// Works until standard input ends, at the end of the run.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let name = self.plan.display();
        let text = fs::read_to_string(&self.plan).with_context(|| format!("cannot read {name}"))?;
        let plan = serde_json::from_str(&text).with_context(|| format!("{name} is no traffic"))?;
        let options = TrafficOptions {
            plan,
            seed: Seed(self.seed),
            address: self.address,
            resolve: Some(resolver()),
        };
        let part = match self.part {
            End::Opens => Part::Opens,
            End::Listens => Part::Listens,
        };
        let begins = || start::read(&self.address.to_string());
        let report =
            run_traffic(options, part, io::stdin().as_fd(), begins).map_err(Failure::run)?;
        print_line(&serde_json::to_string(&report)?);
        Ok(ExitCode::SUCCESS)
    }
}
