//! `midhopd upgrade`: replaces the program of a running daemon. Before anything is ended, `midhopd takeover` of the
//! other program checks whether it can take over.

use super::door::{
    Candidate, DESCRIBE, Description, PROGRAM, UPGRADE, UPGRADE_AHEAD, UpgradeOutcome, path_beside,
};
use super::register::is_read;
use crate::failure::Failure;
use crate::keeper::descriptors;
use clap::Args;
use midhop_process::configuration::read_plan;
use midhop_status::console::Which;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Timeout of an upgrade.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `midhopd upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArguments {
    /// The program that replaces the daemon's program; this program if not given
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `midhopd takeover`.
#[derive(Debug, Args)]
pub struct TakeoverArguments {
    /// The format of the daemon's register of flows
    #[arg(long)]
    format: u64,
    /// The oldest format whose readers can read the register
    #[arg(long)]
    readable_from: u64,
    /// The daemon's configuration file
    config: PathBuf,
}

/// Checks whether this program could take over.
///
/// # Errors
/// The reason why not.
pub fn takeover(arguments: &TakeoverArguments, version: &str) -> Result<(), Failure> {
    is_read(arguments.format, arguments.readable_from).map_err(Failure::run)?;
    read_plan(&arguments.config)?;
    let candidate = Candidate { version: version.to_owned(), starts_ahead: true };
    let printed = serde_json::to_string(&candidate).map_err(io::Error::other);
    let printed = printed.and_then(|text| writeln!(io::stdout(), "{text}"));
    printed.map_err(|error| Failure::run("the version cannot be printed").because(error))
}

/// Replaces the program of a daemon, and prints the outcome.
///
/// # Errors
/// When the program cannot take over. The daemon then continues unchanged.
pub fn upgrade(arguments: &UpgradeArguments) -> Result<(), Failure> {
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()
            .map_err(|error| Failure::run("this program's own path is unknown").because(error))?,
    };
    let file = File::open(&program).map_err(|error| {
        Failure::usage(format!("{} cannot be opened", program.display())).because(error)
    })?;
    let path = path_beside(&arguments.which.socket()?);
    let daemon: Description = exchange(&path, |mut stream| stream.write_all(&[DESCRIBE]))?;
    let candidate = examine(&program, &daemon)?;
    let request = match daemon.starts_ahead && candidate.starts_ahead {
        true => UPGRADE_AHEAD,
        false => UPGRADE,
    };
    let outcome: UpgradeOutcome = exchange(&path, |mut stream| {
        stream.write_all(&[request])?;
        descriptors::send(stream, &[PROGRAM], &[file.as_raw_fd()])
    })?;
    if let Some(error) = outcome.error {
        return Err(Failure::run(format!("midhopd {} continues with all flows", outcome.version))
            .because(error)
            .hint(format!("the daemon's log has the messages of {}", program.display())));
    }
    let printed = if arguments.json {
        serde_json::to_string_pretty(&outcome).map_err(io::Error::other)
    } else {
        let UpgradeOutcome { version, before, flows, pause_s, .. } = &outcome;
        let milliseconds = pause_s * 1e3;
        Ok(format!(
            "midhopd {version} has replaced {before}: {flows} flows continue, after {milliseconds:.0} ms"
        ))
    };
    let printed = printed.and_then(|text| writeln!(io::stdout(), "{text}"));
    printed.map_err(|error| Failure::run("the outcome cannot be printed").because(error))
}

/// Runs `takeover` of the program, which checks whether it can take over.
fn examine(program: &Path, daemon: &Description) -> Result<Candidate, Failure> {
    let Description { version, format, readable_from, config, .. } = daemon;
    let hint = format!("midhopd {version} continues");
    let mut command = Command::new(program);
    command.args(["takeover", "--format", &format.to_string()]);
    command.args(["--readable-from", &readable_from.to_string()]).arg(config);
    let answered = command.stdin(Stdio::null()).output().map_err(|error| {
        Failure::usage(format!("{} cannot be started", program.display()))
            .because(error)
            .hint(&hint)
    })?;
    let candidate = serde_json::from_slice::<Candidate>(&answered.stdout);
    if answered.status.success()
        && let Ok(candidate) = candidate
    {
        return Ok(candidate);
    }
    let words = String::from_utf8_lossy(&answered.stderr);
    let cause = words.trim().trim_start_matches("error: ").to_owned();
    let cause = match cause.is_empty() {
        true => "it does not respond as midhopd does".to_owned(),
        false => cause,
    };
    Err(Failure::run(format!("{} cannot take over", program.display())).because(cause).hint(hint))
}

/// Sends a request to the daemon, and reads its answer.
fn exchange<T: DeserializeOwned>(
    path: &Path,
    send: impl FnOnce(&UnixStream) -> io::Result<()>,
) -> Result<T, Failure> {
    let stream = UnixStream::connect(path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => "run as root",
            io::ErrorKind::NotFound => {
                "restart the daemon instead: it serves no flows yet, or its version does not support upgrades"
            }
            _ => "start the daemon",
        };
        Failure::run(format!("no daemon responds at {}", path.display()))
            .because(error)
            .hint(hint)
    })?;
    let failure = |error: io::Error| {
        Failure::run("the daemon does not respond")
            .because(error)
            .hint("see its log for the reason")
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(failure)?;
    // A daemon that refuses closes the connection, with an answer or without.
    let sent = send(&stream);
    let mut text = String::new();
    (&stream).read_to_string(&mut text).map_err(failure)?;
    sent.map_err(failure)?;
    serde_json::from_str(&text).map_err(|error| {
        let error = if text.is_empty() {
            "it closed the connection without a response".to_owned()
        } else {
            error.to_string()
        };
        Failure::run("the daemon does not respond")
            .because(error)
            .hint("see its log for the reason")
    })
}
