//! The commands that query a running daemon over its control socket: `status`, `legs`, `peers`, `flows`, `why`, `top`,
//! `reload`, `rate` and `move`.
//!
//! Standard output has a table, or with `--json` the daemon's unchanged answer; of `top` a line for each look.

mod ask;
mod figures;
mod live;
mod rates;
mod tables;

pub use rates::{LegRates, Rates};

use crate::control::answer::{
    DaemonStatus, FlowOutcome, Flows, FlowsQuery, MoveOutcome, MoveQuery, RateReport, RateTaken,
    Reload, Why, WhyQuery,
};
use ask::Daemon;
use clap::{Args, Subcommand};
use midhop_config::address;
use midhop_failure::{Failure, RUN, USAGE};
use midhop_pep::config::{Match, Plan};
use midhop_units::{Duration, Rate};
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A command to a running daemon.
#[derive(Debug, Subcommand)]
pub enum Question {
    /// Show the state of a running daemon
    Status(Asking),
    /// Show its legs: rates, round trips, losses
    Legs(Asking),
    /// Show its peers: tunnels, carriers, windows, losses
    Peers(Asking),
    /// List its live flows, those that have moved the most bytes first
    Flows(FlowsArguments),
    /// Explain what happens to a flow: a live one, or one that would begin now
    Why(WhyArguments),
    /// Watch legs and flows, with their current rates
    Top(TopArguments),
    /// Make it read its configuration again, and show the result
    Reload(Asking),
    /// Report the current rate of the link to a peer, as known from its modem
    Rate(RateArguments),
    /// Move live split flows to the daemon of a peer, which continues them; none of them ends
    Move(MoveArguments),
}

/// Which daemon is queried, and how the answer is printed.
#[derive(Debug, Args)]
pub struct Asking {
    #[command(flatten)]
    which: Which,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The status of the daemon that runs by a plan. None: it has no control socket now.
pub fn status_of(plan: &Plan) -> Option<Result<DaemonStatus, Failure>> {
    let path = plan.control.path(&plan.intercept.instance).filter(|path| path.exists())?;
    let which = Which { socket: Some(path), config: None };
    Some(
        runtime().and_then(|runtime| {
            runtime.block_on(async { Daemon::find(&which)?.get("/status").await })
        }),
    )
}

/// Names the control socket if no option does; `midhop lab exec` sets it to that of the node's proxy.
const SOCKET_VARIABLE: &str = "MIDHOPD_SOCKET";

/// Which daemon is queried.
#[derive(Debug, Args)]
pub struct Which {
    /// Its control socket; if not given, that of MIDHOPD_SOCKET, or of the only daemon in
    /// /run/midhopd
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Its configuration, which names the socket
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Which {
    /// The daemon's control socket.
    ///
    /// # Errors
    /// When none, or more than one, may be meant.
    pub fn socket(&self) -> Result<PathBuf, Failure> {
        Daemon::find(self).map(Daemon::into_path)
    }
}

/// Arguments of `midhopd flows`.
#[derive(Debug, Args)]
pub struct FlowsArguments {
    #[command(flatten)]
    asking: Asking,
    /// Only these flows, by the keys of a rule's match: source=10.0.0.0/8, destination_port=443,
    /// peer=ground, …; all keys that are given must match
    #[arg(long = "match", value_name = "KEY=VALUE")]
    matches: Vec<String>,
    /// The most flows to list; 0: all
    #[arg(long, short, value_name = "N", default_value_t = 50)]
    limit: u64,
}

/// Arguments of `midhopd rate`.
#[derive(Debug, Args)]
pub struct RateArguments {
    #[command(flatten)]
    asking: Asking,
    /// The peer
    #[arg(value_name = "PEER")]
    peer: String,
    /// The rate of the link away from this host, headers included
    #[arg(value_name = "RATE")]
    rate: Rate,
    /// How long the report is valid, unless another one replaces it; after that, `peers.NAME.rate`
    /// is used again
    #[arg(long = "for", value_name = "TIME", default_value = "30 s")]
    valid: Duration,
}

/// Arguments of `midhopd move`.
#[derive(Debug, Args)]
pub struct MoveArguments {
    #[command(flatten)]
    asking: Asking,
    /// Which flows: `all`, or the keys of a rule's match: source=10.0.0.0/8, destination_port=443,
    /// …; all keys that are given must match
    #[arg(long = "flows", value_name = "KEY=VALUE", required = true)]
    flows: Vec<String>,
    /// The peer: this host opens the tunnel to it, and it accepts moves
    #[arg(long, value_name = "PEER")]
    to: String,
    /// Flows go on until this moment: 2026-11-29T12:00:00Z, with any offset from UTC. What they hold
    /// is copied in the three seconds before
    #[arg(long, value_name = "TIME", value_parser = moment)]
    at: Option<SystemTime>,
}

/// Parses a moment (RFC 3339).
fn moment(text: &str) -> Result<SystemTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .map(SystemTime::from)
        .map_err(|error| format!("{error}; write it as 2026-11-29T12:00:00Z"))
}

/// Arguments of `midhopd why`.
#[derive(Debug, Args)]
pub struct WhyArguments {
    #[command(flatten)]
    asking: Asking,
    /// The client's address, with its port to select one of several flows
    #[arg(value_name = "CLIENT", value_parser = client)]
    client: SocketAddr,
    /// The server's address and port
    #[arg(value_name = "SERVER:PORT", value_parser = server)]
    server: SocketAddr,
    /// The interface on which the flow arrives; if not given, that of the route to the client
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The DSCP of its SYN
    #[arg(long, value_name = "0..63", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: u8,
}

/// Arguments of `midhopd top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    #[command(flatten)]
    which: Which,
    /// Time between two samples, in seconds
    #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// End after so many samples
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,
    /// Print a line of JSON for each sample
    #[arg(long)]
    json: bool,
}

/// Sends the request, and prints the answer.
///
/// # Errors
/// When no daemon answers, it refuses, or nothing can be printed.
pub fn run(question: Question) -> Result<ExitCode, Failure> {
    runtime()?.block_on(async {
        match question {
            Question::Status(asking) => show(&asking, tables::status).await,
            Question::Legs(asking) => show(&asking, tables::legs).await,
            Question::Peers(asking) => show(&asking, tables::peers).await,
            Question::Flows(arguments) => flows(&arguments).await,
            Question::Why(arguments) => why(&arguments).await,
            Question::Top(arguments) => {
                let daemon = Daemon::find(&arguments.which)?;
                live::watch(&daemon, arguments.interval, arguments.count, arguments.json)
                    .await
                    .map(|()| ExitCode::SUCCESS)
            }
            Question::Reload(asking) => reload(&asking).await,
            Question::Rate(arguments) => report_rate(&arguments).await,
            Question::Move(arguments) => relocate(&arguments).await,
        }
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::run("the event loop cannot be created").because(error))
}

/// Exit code 1 if the daemon is not well.
async fn show(
    asking: &Asking,
    table: impl FnOnce(&DaemonStatus) -> String,
) -> Result<ExitCode, Failure> {
    let status: DaemonStatus = Daemon::find(&asking.which)?.get("/status").await?;
    print(&status, asking.json, || table(&status))?;
    let well = status.illness.is_none();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(RUN) })
}

async fn flows(arguments: &FlowsArguments) -> Result<ExitCode, Failure> {
    let matches = matching(&arguments.matches)?;
    let query = FlowsQuery { matches, limit: arguments.limit };
    let daemon = Daemon::find(&arguments.asking.which)?;
    let flows: Flows = daemon.post("/flows", &query).await?;
    print(&flows, arguments.asking.json, || tables::flows(&flows))?;
    Ok(ExitCode::SUCCESS)
}

async fn why(arguments: &WhyArguments) -> Result<ExitCode, Failure> {
    let WhyArguments { asking, client, server, interface, dscp } = arguments;
    let query =
        WhyQuery { client: *client, server: *server, interface: interface.clone(), dscp: *dscp };
    let why: Why = Daemon::find(&asking.which)?.post("/why", &query).await?;
    print(&why, asking.json, || tables::why(&query, &why))?;
    Ok(ExitCode::SUCCESS)
}

async fn reload(asking: &Asking) -> Result<ExitCode, Failure> {
    let result: Reload = Daemon::find(&asking.which)?.reload().await?;
    if asking.json {
        print(&result, true, String::new)?;
    }
    match &result.error {
        Some(_) if asking.json => return Ok(ExitCode::from(USAGE)),
        Some(refusal) => {
            let failure = Failure::usage("the configuration was not reloaded, the old one stays");
            let failure = failure.because(refusal.error.clone());
            return Err(refusal.hint.iter().fold(failure, |failure, hint| failure.hint(hint)));
        }
        None => {}
    }
    for key in &result.kept {
        eprintln!("warning: {key} has changed, which takes effect at the next restart");
    }
    if !asking.json {
        print(&result, false, || "reloaded; live flows keep what they began with\n".to_owned())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn report_rate(arguments: &RateArguments) -> Result<ExitCode, Failure> {
    let RateArguments { asking, peer, rate, valid } = arguments;
    let report = RateReport {
        peer: peer.clone(),
        rate_bit_per_s: rate.bits_per_s(),
        valid_s: valid.as_s_f64(),
    };
    let taken: RateTaken = Daemon::find(&asking.which)?.post("/rate", &report).await?;
    print(&taken, asking.json, || format!("{peer}: {rate} for {valid}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Exit code 1 where a flow that matched has not moved.
async fn relocate(arguments: &MoveArguments) -> Result<ExitCode, Failure> {
    let MoveArguments { asking, flows, to, at } = arguments;
    let matches = match &flows[..] {
        [all] if all == "all" => Match::default(),
        conditions => matching(conditions)?,
    };
    let mut query = MoveQuery { matches, to: to.clone(), still_in_ms: 0 };
    let daemon = Daemon::find(&asking.which)?;
    if let Some(at) = at {
        // A daemon that does not run is better noticed now.
        let _: DaemonStatus = daemon.get("/status").await?;
        let left = wait_until(*at, AHEAD).await?;
        query.still_in_ms = left.as_millis() as u64;
    }
    let outcome: MoveOutcome = daemon.post_long("/move", &query).await?;
    print(&outcome, asking.json, || tables::moved(to, &outcome))?;
    let whole = outcome.moved == outcome.matching;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(RUN) })
}

/// How long before the moment of a move the daemon is asked for it.
const AHEAD: std::time::Duration = std::time::Duration::from_secs(3);

/// Waits until some time before this moment, and returns what is left. The clock may be set meanwhile.
async fn wait_until(
    at: SystemTime,
    ahead: std::time::Duration,
) -> Result<std::time::Duration, Failure> {
    const LOOK: std::time::Duration = std::time::Duration::from_secs(1);
    let mut left = at.duration_since(SystemTime::now()).map_err(|_| {
        Failure::usage("--at is past").hint("without --at flows begin to move at once")
    })?;
    while left > ahead {
        tokio::time::sleep((left - ahead).min(LOOK)).await;
        left = at.duration_since(SystemTime::now()).unwrap_or_default();
    }
    Ok(left)
}

/// Parses conditions in the form of a rule's match.
fn matching(conditions: &[String]) -> Result<Match, Failure> {
    let mut table = toml::Table::new();
    for condition in conditions {
        let (key, value) = condition.split_once('=').ok_or_else(|| {
            Failure::usage(format!("{condition}: there is no value"))
                .hint("write KEY=VALUE, such as destination_port=443")
        })?;
        // A number is one, everything else is text.
        let value = value.trim();
        let value = match value.parse::<i64>() {
            Ok(number) => toml::Value::Integer(number),
            Err(_) => toml::Value::String(value.to_owned()),
        };
        let values = table.entry(key.trim()).or_insert_with(|| toml::Value::Array(Vec::new()));
        if let toml::Value::Array(values) = values {
            values.push(value);
        }
    }
    table.try_into::<Match>().map_err(|error: toml::de::Error| {
        const KEYS: &str =
            "keys are source, destination, source_port, destination_port, interface, peer and dscp";
        // An address has its own hint, behind a line break.
        let (why, hint) = error.message().split_once('\n').unwrap_or((error.message(), KEYS));
        Failure::usage("the condition is invalid").because(one_line(&why)).hint(hint)
    })
}

fn one_line(error: &impl Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn print(
    answer: &impl Serialize,
    json: bool,
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let refused = || Failure::run("the answer cannot be printed");
    let text = match json {
        true => {
            serde_json::to_string_pretty(answer).map_err(|error| refused().because(error))? + "\n"
        }
        false => table(),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| refused().because(error))
}

/// An address whose port may be missing.
fn client(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match address::address(bare) {
        Ok(address) => Ok(SocketAddr::new(address, 0)),
        // It may have a port.
        Err(error) => text.parse().map_err(|_| error.one_line()),
    }
}

fn server(text: &str) -> Result<SocketAddr, String> {
    address::endpoint(text).map_err(|error| error.one_line())
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// The text for an outcome.
fn outcome(outcome: FlowOutcome) -> &'static str {
    match outcome {
        FlowOutcome::Split => "split here",
        FlowOutcome::Tunnel => "carried through a tunnel",
        FlowOutcome::Bypass => "passes by",
        FlowOutcome::Assist => "passes by, and its losses are repaired",
        FlowOutcome::Reject => "refused",
        FlowOutcome::NotIntercepted => "not seen by this daemon",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_those_of_rules() {
        let conditions =
            ["source=10.0.0.0/8", "source=10.9.0.0/16", "destination_port=443", "dscp=46"];
        let read = matching(&conditions.map(str::to_owned)).expect("a match");
        assert_eq!((read.source.len(), read.destination_port.len(), read.dscp.len()), (2, 1, 1));
        for wrong in ["source", "sauce=1", "source=nowhere", "destination_port=70000"] {
            assert!(matching(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_client_needs_no_port_and_a_server_does() {
        assert_eq!(client("10.0.0.7"), Ok("10.0.0.7:0".parse().expect("an address")));
        assert_eq!(client("2001:db8::7"), Ok("[2001:db8::7]:0".parse().expect("an address")));
        assert_eq!(client("[2001:db8::7]:5"), Ok("[2001:db8::7]:5".parse().expect("an address")));
        assert!(client("host").is_err());
        assert!(server("192.0.2.1").is_err_and(|error| error.contains("192.0.2.1:443")));
        assert!(server("2001:db8::1").is_err_and(|error| error.contains("[2001:db8::1]:443")));
    }
}
