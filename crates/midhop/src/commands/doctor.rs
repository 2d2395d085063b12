//! `midhop doctor`: checks whether this host has what `midhop` needs, and then runs `midhopd
//! doctor`.

use super::lab::session::Isolated;
use super::output;
use anyhow::Context;
use midhop_bpf::{Parameters, resolve};
use midhop_testbed::lab::find_daemon;
use midhop_workbench::processors;
use std::error::Error;
use std::process::{Command, ExitCode};

/// The congestion controls that the demo and the guides use.
const CONGESTION: [&str; 4] = ["cubic", "bbr", "hybla", "hybla-plus"];

/// Arguments of `midhop doctor`.
#[derive(Debug, clap::Args)]
pub struct Doctor {}

/// What was found of one subject.
struct Finding {
    sign: &'static str,
    subject: String,
    detail: String,
    remedy: Option<&'static str>,
}

impl Finding {
    fn yes(subject: &str, detail: impl Into<String>) -> Self {
        Self { sign: "✓", subject: subject.to_owned(), detail: detail.into(), remedy: None }
    }

    fn no(subject: &str, detail: impl Into<String>, remedy: &'static str) -> Self {
        let (subject, detail) = (subject.to_owned(), detail.into());
        Self { sign: "✗", subject, detail, remedy: Some(remedy) }
    }

    fn shown(&self, width: usize) -> String {
        let line = format!("{} {:width$}  {}\n", self.sign, self.subject, self.detail);
        let remedy = self.remedy.map(|it| format!("  {:width$}  → {it}\n", ""));
        line + &remedy.unwrap_or_default()
    }
}

impl Doctor {
    /// Checks and prints. Exit code 1 when the laboratory or midhopd would not run here.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut findings =
            vec![Finding::yes("simulator", format!("needs nothing; {} processors", processors()))];
        let daemon = find_daemon();
        findings.push(match &daemon {
            Ok(path) => Finding::yes("midhopd", path.display().to_string()),
            Err(error) => Finding::no(
                "midhopd",
                error.to_string(),
                "proxies are simulated all the same (midhop sim run); put midhopd beside midhop or into PATH",
            ),
        });
        let mut works = daemon.is_ok();
        let mut findings_of_daemon = String::new();
        // Before the namespaces are entered: it checks the host.
        if let Ok(daemon) = &daemon {
            let output = Command::new(daemon).arg("doctor").output();
            let output = output.with_context(|| format!("cannot start {}", daemon.display()))?;
            works &= output.status.success();
            findings_of_daemon =
                format!("\nmidhopd doctor:\n{}", String::from_utf8_lossy(&output.stdout));
        }
        // The output is printed by the child, which continues inside, where the laboratory would
        // run.
        match Isolated::enter() {
            Ok(_inside) => {
                findings.push(Finding::yes("laboratory", "namespaces of its own can be made"));
                findings.extend(CONGESTION.map(congestion));
            }
            Err(error) => {
                works = false;
                findings.push(Finding::no(
                    "laboratory",
                    error.to_string(),
                    "`midhop sim run` takes the same scenarios and needs no kernel",
                ));
            }
        }
        let width = findings.iter().map(|it| it.subject.chars().count()).max().unwrap_or(0);
        let lines: String = findings.iter().map(|it| it.shown(width)).collect();
        output::print(&(lines + &findings_of_daemon))?;
        Ok(if works { ExitCode::SUCCESS } else { ExitCode::from(crate::failure::RUN) })
    }
}

/// Whether a congestion control is available here; the demo leaves out cells with one that is not.
fn congestion(name: &'static str) -> Finding {
    let found = match resolve(name) {
        Ok(resolution) => resolution.activate(&Parameters::default()).map(drop).map_err(whole),
        Err(error) => Err(whole(error)),
    };
    match found {
        Ok(()) => Finding::yes(name, "can be chosen"),
        Err(why) => Finding::no(name, why, "runs that ask for it are simulated only"),
    }
}

/// An error with its sources.
fn whole(error: impl Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
