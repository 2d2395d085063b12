//! `midhop meter run`.

use super::start::Start;
use super::{activate, runtime, table};
use crate::commands::{arguments, output};
use crate::failure::{self, Failure};
use indicatif::{ProgressBar, ProgressStyle};
use midhop_experiment::plan::RestartPlan;
use midhop_experiment::spec::RestartFrom;
use midhop_testbed::meter::{
    self, Amount, Connections, Direction, MeterError, MeterOptions, MeterReport, Progress, Workload,
};
use midhop_units::{Bytes, Duration, Seed};
use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv6Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration as StdDuration;

/// A run shorter than this shows no progress bar.
const BAR_AFTER: StdDuration = StdDuration::from_secs(2);
const BAR_STEP: StdDuration = StdDuration::from_millis(100);

/// Arguments of `midhop meter run`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("workload").required(true).args(["bytes", "seconds", "page"]))]
pub struct MeterRun {
    /// The host that serves; IPv6 addresses with a port in brackets.
    #[arg(value_name = "HOST[:PORT]", value_parser = parse_host)]
    host: (String, u16),
    /// Payload per flow, such as 5MB.
    #[arg(long, value_name = "BYTES")]
    bytes: Option<Bytes>,
    /// Seconds for which each flow sends.
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Objects of a page, in the order in which they are requested, such as 50kB,817kB.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',')]
    page: Option<Vec<Bytes>>,
    /// Parallel flows.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "page")]
    flows: u32,
    /// Parallel connections for the objects of a page.
    #[arg(long, value_name = "K", default_value_t = 1, conflicts_with_all = ["bytes", "seconds"])]
    parallel: u32,
    /// Whether a page uses a new connection for each object.
    #[arg(long, value_enum, default_value = "persistent", conflicts_with_all = ["bytes", "seconds"])]
    connections: ConnectionsArgument,
    /// The server sends (the default).
    #[arg(long, conflicts_with = "up")]
    down: bool,
    /// The client sends.
    #[arg(long)]
    up: bool,
    /// Congestion control of the sending end: one of its kernel's, or hybla, hybla-plus,
    /// hybla-linux, westwood, vegas; Hybla's reference round-trip time may be given:
    /// hybla,rtt0=50ms.
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Local address to use.
    #[arg(long, value_name = "ADDRESS", value_parser = arguments::address)]
    bind: Option<IpAddr>,
    /// Time between samples.
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    interval: Duration,
    /// Flows that get series of their own in the JSON report.
    #[arg(long, value_name = "N", default_value_t = 32)]
    series_flows: u32,
    /// Wait this long before the first connection.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    start_delay: Duration,
    /// Stop after this time; what is unfinished then is reported as incomplete.
    #[arg(long, value_name = "TIME")]
    time_limit: Option<Duration>,
    /// How often to request again, for each flow or object, what a broken connection has cut short.
    #[arg(long, value_name = "N", hide = true)]
    restarts: Option<u32>,
    /// How long to wait before that.
    #[arg(long, value_name = "TIME", default_value = "1s", hide = true)]
    restart_after: Duration,
    /// Whether that request is for `all` of it, or in a download for the `rest` that has not arrived.
    #[arg(long, value_name = "PART", default_value = "all", hide = true)]
    restart_from: RestartArgument,
    /// Also report the times in which flows got no payload.
    #[arg(long, hide = true)]
    gaps: bool,
    /// The seed that determines every byte of the payload.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The name of the transfer in the report.
    #[arg(long, value_name = "NAME", default_value = "meter")]
    name: String,
    /// Moment from which the report's times count, in nanoseconds of CLOCK_MONOTONIC; if not given,
    /// the start of the command. With `-` the meter prints a line when it is ready, and reads the
    /// moment from standard input, so that several meters start together.
    #[arg(long, value_name = "NS", allow_hyphen_values = true)]
    epoch: Option<Start>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ConnectionsArgument {
    /// A new connection for each object.
    New,
    /// One object after another on the same connections.
    Persistent,
}

/// What a restart requests.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RestartArgument {
    /// All of it.
    All,
    /// What has not arrived.
    Rest,
}

impl MeterRun {
    /// Measures, prints, and fails when anything requested did not arrive unchanged.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (json, start) = (self.json, self.epoch);
        let mut options = self.options();
        // In an upload this is the sending end; in a download the server resolves names.
        let active = match (&options.congestion, options.direction) {
            (Some(name), Direction::Up) => Some(activate(name)?),
            _ => None,
        };
        if let Some(active) = &active {
            options.congestion = Some(active.kernel_name().to_owned());
        }
        let runtime = runtime()?;
        if let Some(start) = start {
            let target = format!("{}:{}", options.host, options.port);
            options.epoch = Some(start.moment(&target).map_err(Failure::run)?);
        }
        let report = runtime.block_on(drive(options)).map_err(explain)?;
        drop(active);
        for warning in &report.warnings {
            eprintln!("warning: {warning}");
        }
        let text = if json { serde_json::to_string(&report)? } else { table::render(&report) };
        output::print(&(text + "\n"))?;
        if report.is_complete() {
            return Ok(ExitCode::SUCCESS);
        }
        let mut failed = report.transfer.flows.iter().filter_map(|flow| {
            flow.error.as_ref().map(|error| format!("flow {}: {error}", flow.id))
        });
        let first = failed.next().unwrap_or_else(|| "not every object arrived".to_owned());
        let more = failed.count();
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        eprintln!("error: the transfer is incomplete: {first}{more}");
        Ok(ExitCode::from(failure::RUN))
    }

    fn options(self) -> MeterOptions {
        let workload = match (self.bytes, self.seconds, self.page) {
            (_, _, Some(objects)) => Workload::Page {
                objects,
                parallel: self.parallel,
                connections: match self.connections {
                    ConnectionsArgument::New => Connections::New,
                    ConnectionsArgument::Persistent => Connections::Persistent,
                },
            },
            (_, Some(time), None) => {
                Workload::Flows { count: self.flows, each: Amount::TimeNs(time.as_ns()) }
            }
            (bytes, None, None) => Workload::Flows {
                count: self.flows,
                each: Amount::Bytes(bytes.unwrap_or_default().get()),
            },
        };
        let (host, port) = self.host;
        MeterOptions {
            name: self.name,
            host,
            port,
            bind: self.bind,
            direction: if self.up { Direction::Up } else { Direction::Down },
            workload,
            congestion: self.congestion,
            interval: Some(self.interval).filter(|interval| !interval.is_zero()),
            series_flows: self.series_flows,
            start_delay: self.start_delay,
            time_limit: self.time_limit,
            restarts: self.restarts.map(|most| RestartPlan {
                most,
                after: self.restart_after,
                from: match self.restart_from {
                    RestartArgument::All => RestartFrom::All,
                    RestartArgument::Rest => RestartFrom::Rest,
                },
            }),
            gaps: self.gaps,
            seed: Seed(self.seed),
            epoch: None,
        }
    }
}

async fn drive(options: MeterOptions) -> Result<MeterReport, MeterError> {
    let progress = Arc::new(Progress::default());
    let run = meter::run(&options, Arc::clone(&progress));
    if !io::stderr().is_terminal() {
        return run.await;
    }
    tokio::pin!(run);
    if let Ok(report) = tokio::time::timeout(BAR_AFTER, &mut run).await {
        return report;
    }
    let bar = match options.expected() {
        Some(bytes) => ProgressBar::new(bytes.get()).with_style(style(
            "{elapsed_precise} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        )),
        None => ProgressBar::no_length()
            .with_style(style("{elapsed_precise} {spinner} {bytes}, {bytes_per_sec}")),
    };
    let report = loop {
        bar.set_position(progress.bytes().get());
        if let Ok(report) = tokio::time::timeout(BAR_STEP, &mut run).await {
            break report;
        }
    };
    bar.finish_and_clear();
    report
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn explain(error: MeterError) -> Failure {
    let failure = match &error {
        MeterError::Options(_) => Failure::usage(&error),
        _ => Failure::run(&error),
    };
    match &error {
        MeterError::Resolve { .. } => failure.hint("is the host's name spelled right?"),
        MeterError::NoAddress { .. } => failure.hint("choose a local address of the same family"),
        MeterError::Refused(_) | MeterError::Congestion { .. } => failure,
        _ => failure,
    }
}

/// Reads `host`, `host:port`, `address` or `[address]:port`.
pub(super) fn parse_host(text: &str) -> Result<(String, u16), String> {
    let port = |port: &str| {
        port.parse::<u16>().map_err(|_| format!("{port:?} is no port number (1 to 65535)"))
    };
    if text.parse::<Ipv6Addr>().is_ok() {
        return Ok((text.to_owned(), meter::PORT));
    }
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, meter::PORT),
        Some((host, rest)) => {
            let digits = rest.strip_prefix(':').ok_or("a port follows \"]\" with a colon")?;
            (host, port(digits)?)
        }
        None => match text.rsplit_once(':') {
            Some((host, digits)) => (host, port(digits)?),
            None => (text, meter::PORT),
        },
    };
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    Ok((host.to_owned(), port))
}

/// Reads a number of seconds, with or without a unit.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let bare = text.parse::<f64>().is_ok();
    let read = if bare { format!("{text} s").parse() } else { text.parse::<Duration>() };
    read.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_people_write_them() {
        for (text, host, port) in [
            ("server", "server", 5201),
            ("server:80", "server", 80),
            ("10.0.0.1:7", "10.0.0.1", 7),
            ("fd00::1", "fd00::1", 5201),
            ("[fd00::1]", "fd00::1", 5201),
            ("[fd00::1]:9", "fd00::1", 9),
        ] {
            assert_eq!(parse_host(text), Ok((host.to_owned(), port)), "{text}");
        }
        for text in ["", ":80", "server:", "server:http", "server:65536", "[::1]80"] {
            assert!(parse_host(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn seconds_need_no_unit() {
        assert_eq!(parse_seconds("10"), Ok(Duration::from_s(10)));
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_ms(500)));
        assert_eq!(parse_seconds("2 min"), Ok(Duration::from_s(120)));
        for text in ["", "-1", "inf", "NaN", "1e9999", "ten"] {
            assert!(parse_seconds(text).is_err(), "{text} was accepted");
        }
    }
}
