//! Reports what this host supports, and proves interception with a real connection.
//!
//! The host's properties are read here. What has to be tried is tried by a child process in its own network
//! namespaces, and in its own user namespace where privileges are missing. So no failure there can affect the host.

mod firewall;
mod host;
mod peers;
mod probe;
mod proof;
mod room;

use midhop_failure::{Failure, RUN};
use midhop_pep::config::Plan;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    io::Write,
    process::{Command, ExitCode, Stdio},
};

/// The finding about one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The subject.
    pub name: String,
    /// Its state.
    pub verdict: CheckState,
    /// What was observed.
    pub detail: String,
    /// The remedy, where something is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The state of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// It is available.
    Yes,
    /// It is missing, and interception needs it.
    No,
    /// It is missing or set unfavourably; the daemon runs, but not at its best.
    Could,
    /// It could not be determined.
    Unknown,
}

impl CheckState {
    const fn sign(self) -> &'static str {
        match self {
            Self::Yes => "✓",
            Self::No => "✗",
            Self::Could => "!",
            Self::Unknown => "?",
        }
    }
}

impl Finding {
    fn yes(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: CheckState::Yes, detail: detail.into(), hint: None }
    }

    fn of(name: &str, verdict: CheckState, detail: impl Into<String>, hint: &str) -> Self {
        let hint = (verdict != CheckState::Yes).then(|| hint.to_owned());
        Self { name: name.to_owned(), verdict, detail: detail.into(), hint }
    }
}

/// All findings, as a table.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether interception works here.
    ok: bool,
    findings: Vec<Finding>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|found| found.name.chars().count()).max();
        let width = width.unwrap_or_default();
        for found in &self.findings {
            writeln!(f, "{} {:width$}  {}", found.verdict.sign(), found.name, found.detail)?;
            if let Some(hint) = &found.hint {
                writeln!(f, "  {:width$}  → {hint}", "")?;
            }
        }
        let sum = if self.ok {
            "Interception works on this host."
        } else {
            "Interception does not work as things are: see ✗ above."
        };
        writeln!(f, "\n{sum}")
    }
}

/// Examines the host and prints the findings. The exit code reports whether interception works. The host's firewall
/// rules are checked against the plan's interception, and its peers are asked after where a daemon runs.
///
/// # Errors
/// When the findings cannot be printed.
pub fn examine(plan: Option<&Plan>, json: bool) -> Result<ExitCode, Failure> {
    let mut findings = host::examine();
    let (intercept, assist) =
        plan.map(|plan| (plan.intercept.clone(), plan.assist.clone())).unwrap_or_default();
    findings.extend(firewall::examine(&intercept, &assist));
    findings.extend(plan.map(peers::examine).unwrap_or_default());
    match ask_child() {
        Ok(proven) => findings.extend(proven),
        Err(reason) => findings.push(Finding::of(
            "interception proven",
            CheckState::No,
            reason,
            "run as root, or allow unprivileged user namespaces (user.max_user_namespaces)",
        )),
    }
    let ok = findings.iter().all(|found| found.verdict != CheckState::No);
    let report = Report { ok, findings };
    let printed = if json {
        let json = serde_json::to_string_pretty(&report);
        json.map_err(|error| Failure::run("the findings cannot be printed").because(error))? + "\n"
    } else {
        report.to_string()
    };
    std::io::stdout()
        .write_all(printed.as_bytes())
        .map_err(|error| Failure::run("the findings cannot be printed").because(error))?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(RUN) })
}

/// The option that marks the child process.
pub const CHILD_OPTION: &str = "--try-in-namespace";

/// Lets a child process try what has to be tried.
fn ask_child() -> Result<Vec<Finding>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["doctor", CHILD_OPTION])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty());
        format!(
            "the trial ended early ({}): {}",
            output.status,
            last.unwrap_or("it printed no error")
        )
    })
}

/// A data plane on trial. Dropping it ends it.
pub trait Trial: Send {
    /// How many flows it has taken so far.
    fn taken(&self) -> u64;
}

/// Starts a data plane in the present network namespace, or reports why there is none.
pub type StartTrial = fn(Plan) -> Result<Box<dyn Trial>, String>;

/// The child's part: tries things and prints the findings as JSON.
///
/// # Errors
/// When there is no namespace to try things in.
pub fn try_in_namespace(start: StartTrial) -> Result<ExitCode, Failure> {
    room::isolate_process()
        .map_err(|error| Failure::run("no namespace can be made").because(error))?;
    let mut findings = probe::examine();
    findings.extend(proof::examine(start));
    serde_json::to_writer(std::io::stdout(), &findings)
        .map_err(|error| Failure::run("the findings cannot be printed").because(error))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_has_the_hints() {
        let findings = vec![
            Finding::yes("nft", "nftables v1.0.6"),
            Finding::of("forwarding", CheckState::Could, "off", "turn it on"),
        ];
        let report = Report { ok: true, findings };
        assert_eq!(
            report.to_string(),
            "✓ nft         nftables v1.0.6\n! forwarding  off\n              → turn it on\n\n\
             Interception works on this host.\n"
        );
    }

    #[test]
    fn findings_survive_the_way_from_child_to_parent() {
        let found = Finding::of("a", CheckState::No, "b", "c");
        let json = serde_json::to_string(&found).expect("json");
        assert_eq!(serde_json::from_str::<Finding>(&json).expect("finding"), found);
    }
}
