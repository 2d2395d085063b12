//! `midhop meter naive`: a deliberately naive proxy on a node of the laboratory.
//!
//! It prints a line once it intercepts connections. It works until its standard input ends, and
//! then prints its counters.

use super::serve::print_line;
use crate::failure::Failure;
use anyhow::Context;
use midhop_bpf::{Active, HyblaBounds, Parameters, resolve};
use midhop_experiment::naive::{NaiveLeg, NaivePlan};
use midhop_experiment::plan::PlannedNode;
use midhop_pep::rate_share::payload;
use midhop_testbed::naive::{self, NaiveLegOptions, NaiveOptions};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, io};

/// Arguments of `midhop meter naive`.
#[derive(Debug, clap::Args)]
pub struct Naive {
    /// Its node and its configuration, as in a plan.
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
}

impl Naive {
    /// Runs the proxy until standard input is closed, at the end of the run.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let name = self.plan.display();
        let text = fs::read_to_string(&self.plan).with_context(|| format!("cannot read {name}"))?;
        let (node, plan): (PlannedNode, NaivePlan) =
            serde_json::from_str(&text).with_context(|| format!("{name} is no naive proxy"))?;
        // Selectable while these live.
        let mut active = Vec::new();
        let mut legs = BTreeMap::new();
        for interface in &node.interfaces {
            let link = &interface.link;
            let (kept, leg) = leg(link, plan.leg(Some(link)))?;
            active.push(kept);
            legs.insert(link.clone(), leg);
        }
        let options = NaiveOptions { node, buffer: plan.buffer, legs };
        let (sender, ended) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = sender.send(());
        });
        let stop = async {
            let _ = ended.await;
        };
        let report = naive::run(&options, stop, || print_line("ready")).map_err(Failure::run)?;
        print_line(&serde_json::to_string(&report)?);
        Ok(ExitCode::SUCCESS)
    }
}

/// The options of a leg's sockets, and the value that keeps its congestion control selectable.
fn leg(link: &str, leg: &NaiveLeg) -> Result<(Active, NaiveLegOptions), Failure> {
    let asked = leg.tuning.of_kernel_leg().ok_or_else(|| {
        Failure::run(format!("no kernel has the congestion control of {link}, or its parameters"))
    })?;
    let mut parameters = Parameters {
        hybla: HyblaBounds {
            rate: asked.rate.map_or(0, |rate| rate.bits_per_s() / 8),
            start_at_rate: asked.start_at_rate,
            ..HyblaBounds::default()
        },
        ..Parameters::default()
    };
    if let Some(rtt0) = asked.rtt0 {
        parameters.rtt0 = rtt0.into();
    }
    let active = resolve(&asked.algorithm)
        .map_err(Failure::run)?
        .activate(&parameters)
        .map_err(Failure::run)?;
    let window = leg
        .window
        .ok_or_else(|| Failure::run(format!("the window of {link} has no fixed size")))?;
    let options = NaiveLegOptions {
        window,
        congestion: active.kernel_name().to_owned(),
        // The BPF program starts at the pacing rate of its socket.
        pacing: asked.rate.filter(|_| asked.start_at_rate).map(payload),
    };
    Ok((active, options))
}
