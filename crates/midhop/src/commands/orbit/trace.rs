//! `midhop orbit trace`.

use super::route::Followed;
use super::satellites::by_satellites;
use crate::failure::Failure;
use clap::ValueEnum;
use midhop_experiment::handovers::HandoverSpec;
use midhop_experiment::spec::{NodeSpec, Spec, TransferSpec};
use midhop_path::LinkSpec;
use midhop_path::orbit::{Journey, OrbitPlan, Part};
use midhop_path::rate::LinkRate;
use midhop_units::{Duration, Rate, Seed};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// The nodes on the ground.
pub const USER: &str = "user";
pub const GATEWAY: &str = "gateway";

/// Arguments of `midhop orbit trace`.
#[derive(Debug, clap::Args)]
pub struct Trace {
    #[command(flatten)]
    followed: Followed,
    /// What to write
    #[arg(long, value_name = "FORM", default_value = "link")]
    form: Form,
    /// The rate of the links in the scenario
    #[arg(long, value_name = "RATE", default_value = "20Mbit/s")]
    rate: Rate,
    /// Write to a file instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A scenario of user and gateway with one link
    Link,
    /// A scenario with the first and the last satellite as nodes, and three links
    Hops,
    /// A scenario with each first and each last satellite as a node, with handovers between them
    Handovers,
    /// A line per sample: seconds, nanoseconds of user link, ISLs and feeder link
    Csv,
}

impl Trace {
    /// The trace in the requested form.
    pub fn run(self) -> anyhow::Result<String> {
        let (plan, constellation, journey) = self.followed.follow()?;
        let text = match self.form {
            Form::Csv => csv(&journey),
            Form::Link => {
                written(&plan, by_parts(&plan, &journey, self.rate, &[("orbit", Part::Whole)]))?
            }
            Form::Hops => {
                let parts = [("user", Part::User), ("isl", Part::Isl), ("feeder", Part::Feeder)];
                written(&plan, by_parts(&plan, &journey, self.rate, &parts))?
            }
            Form::Handovers => {
                written(&plan, by_satellites(&plan, &constellation, &journey, self.rate)?)?
            }
        };
        let Some(out) = &self.out else { return Ok(text) };
        fs::write(out, text)
            .map_err(|error| Failure::run(format!("cannot write {}: {error}", out.display())))?;
        eprintln!("wrote {}", out.display());
        Ok(String::new())
    }
}

fn csv(journey: &Journey) -> String {
    let mut text = "time_s,user_ns,isl_ns,feeder_ns\n".to_owned();
    for (time, delay) in &journey.samples {
        let _ = match delay {
            Some(delay) => writeln!(
                text,
                "{:.3},{},{},{}",
                time.as_s_f64(),
                delay.user.as_ns(),
                delay.isl.as_ns(),
                delay.feeder.as_ns()
            ),
            None => writeln!(text, "{:.3},,,", time.as_s_f64()),
        };
    }
    text
}

/// A scenario whose links are the parts of the path, one after the other.
fn by_parts(plan: &OrbitPlan, journey: &Journey, rate: Rate, parts: &[(&str, Part)]) -> Spec {
    let inner = ["first-satellite", "last-satellite"];
    let mut nodes = vec![USER];
    nodes.extend(&inner[..parts.len() - 1]);
    nodes.push(GATEWAY);
    let links = parts.iter().zip(nodes.windows(2)).map(|((name, part), ends)| {
        let link = LinkSpec {
            between: [ends[0].to_owned(), ends[1].to_owned()],
            rate: Some(LinkRate::Constant(rate)),
            delay: Some(journey.delay(*part)),
            outages: Some(journey.outages(*part, plan.interruption, plan.hold)),
            ..LinkSpec::default()
        };
        ((*name).to_owned(), link)
    });
    let nodes = nodes.iter().map(|name| (*name).to_owned());
    download(plan, journey, nodes.collect(), links.collect(), Vec::new())
}

/// A scenario in which the gateway sends a file to the user during the whole run.
pub fn download(
    plan: &OrbitPlan,
    journey: &Journey,
    nodes: BTreeSet<String>,
    links: BTreeMap<String, LinkSpec>,
    handovers: Vec<HandoverSpec>,
) -> Spec {
    let download = TransferSpec {
        from: GATEWAY.to_owned(),
        to: USER.to_owned(),
        objects: None,
        bytes: None,
        seconds: Some((journey.duration.as_s_f64() - 1.0).max(0.1)),
        flows: None,
        connections: None,
        parallel: None,
        congestion: None,
        restarts: None,
        restart_after: None,
        restart_from: None,
        start: Duration::ZERO,
        opens: Default::default(),
        family: Default::default(),
    };
    Spec {
        tcp: None,
        title: format!("{}: {} to {}", plan.constellation, plan.from, plan.to),
        duration: journey.duration,
        seeds: 1,
        seed: Seed(1),
        nodes: nodes.into_iter().map(|name| (name, NodeSpec::default())).collect(),
        links,
        agents: BTreeMap::new(),
        peps: BTreeMap::new(),
        naive: BTreeMap::new(),
        traffic: BTreeMap::new(),
        transfers: BTreeMap::from([("download".to_owned(), download)]),
        handovers,
        run: None,
    }
}

/// A scenario as a file.
fn written(plan: &OrbitPlan, spec: Spec) -> anyhow::Result<String> {
    let mut text = format!(
        "# The way over {} as `midhop orbit trace` computed it, from {} of its time on.\n",
        plan.constellation, plan.start
    );
    text.push_str(&toml::to_string(&spec)?);
    Ok(text)
}
