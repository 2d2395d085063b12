//! `midhop meter link`.

use super::run::{parse_host, parse_seconds};
use super::{runtime, table};
use crate::commands::{arguments, output};
use crate::failure::Failure;
use midhop_testbed::meter::link::{self, LinkDirection, LinkError, LinkOptions, LinkReport};
use midhop_testbed::meter::{FlowError, MeterError};
use midhop_units::Duration;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

/// The shortest measurement: a shorter one has no useful result.
const TIME_MIN: Duration = Duration::from_s(5);
/// The longest measurement that a server allows.
const TIME_MAX: Duration = Duration::from_s(100);

/// Arguments of `midhop meter link`.
#[derive(Debug, clap::Args)]
pub struct MeterLink {
    /// The host that serves, beyond the link; IPv6 addresses with a port in brackets.
    #[arg(value_name = "HOST[:PORT]", value_parser = parse_host)]
    host: (String, u16),
    /// How long the measurement may take. What does not fit is left out, and a note names it.
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "60")]
    time: Duration,
    /// Local address to use.
    #[arg(long, value_name = "ADDRESS", value_parser = arguments::address)]
    bind: Option<IpAddr>,
    /// Print the numbers as JSON.
    #[arg(long, conflicts_with = "toml")]
    json: bool,
    /// Print only the tables for midhopd and for a scenario.
    #[arg(long)]
    toml: bool,
}

impl MeterLink {
    /// Measures, and prints the result.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if !(TIME_MIN..=TIME_MAX).contains(&self.time) {
            let message = format!("--time is from {TIME_MIN} to {TIME_MAX}, not {}", self.time);
            return Err(Failure::usage(message).hint("60 s do over a satellite").into());
        }
        let (host, port) = self.host;
        let options = LinkOptions { bind: self.bind, ..LinkOptions::within(host, port, self.time) };
        let on_line = Arc::new(|line: &str| eprintln!("{line}"));
        let report = runtime()?
            .block_on(link::measure(&options, on_line))
            .map_err(|error| explain(&error))?;
        let text = if self.json {
            serde_json::to_string(&report)? + "\n"
        } else if self.toml {
            report.tables()
        } else {
            format!("{}\n\n{}", render(&report), report.tables())
        };
        if !self.json {
            for warning in &report.warnings {
                eprintln!("note: {warning}");
            }
        }
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn explain(error: &LinkError) -> Failure {
    let failure = Failure::run(error);
    match error {
        LinkError::NoService { .. } => failure.hint(
            "is it a `midhop meter serve` as new as this one? Older ones serve only `midhop meter run`",
        ),
        LinkError::Blocked { port, attached: false, .. } => failure.hint(format!(
            "let UDP to port {port} of the server through firewalls and address translation, as its TCP is"
        )),
        LinkError::Blocked { port, .. } => failure.hint(format!(
            "let UDP from port {port} of the server through firewalls back to this host"
        )),
        LinkError::Flow(FlowError::Connect { .. }) => {
            failure.hint("start `midhop meter serve` there, and let TCP and UDP to its port through")
        }
        LinkError::Meter(MeterError::Resolve { .. }) => {
            failure.hint("is the host's name spelled right?")
        }
        LinkError::Meter(MeterError::NoAddress { .. }) => {
            failure.hint("choose a local address of the same family")
        }
        LinkError::NoTime { .. } => {
            failure.hint("give it more with --time, at most 100 s; or the link is down")
        }
        LinkError::Nothing { .. } => {
            failure.hint("the link may be down, or carry no packets of 1250 bytes: try `ping -s 1222`")
        }
        _ => failure,
    }
}

fn render(report: &LinkReport) -> String {
    let mut ways = table::table(&["", "down (to this host)", "up (from it)"]);
    let mut row = |name: &str, value: &dyn Fn(&LinkDirection) -> String| {
        ways.add_row([name.to_owned(), value(&report.down), value(&report.up)]);
    };
    row("rate", &|way| {
        if !way.is_known() {
            return "not measured".to_owned();
        }
        let bound = if way.rate_at_least_because.is_some() { "at least " } else { "" };
        format!("{bound}{} Mbit/s", mbit(way.rate_bit_per_s))
    });
    row("  over 0.2 s: p10, p50, p90", &|way| {
        let windows = [way.rate_p10_bit_per_s, way.rate_p50_bit_per_s, way.rate_p90_bit_per_s];
        windows.map(|rate| rate.map_or_else(|| "-".to_owned(), mbit)).join(", ")
    });
    row("delay variation: p50, p95", &|way| {
        let variation = [way.delay_variation_median_s, way.delay_variation_p95_s];
        let [median, p95] = variation.map(|s| s * 1e3);
        format!("{median:.2}, {p95:.2} ms")
    });
    row("loss", &|way| match way.loss_at_bit_per_s {
        None => "not measured".to_owned(),
        Some(_) => format!(
            "{:.3} % ({:.3} to {:.3} %)",
            way.loss_ratio * 100.0,
            way.loss_low_ratio * 100.0,
            way.loss_high_ratio * 100.0
        ),
    });
    row("  counted", &|way| match way.loss_at_bit_per_s {
        None => "-".to_owned(),
        Some(rate) => {
            format!("{} of {} at {} Mbit/s", way.packets_lost, way.packets_sent, mbit(rate))
        }
    });
    row("  mean burst", &|way| {
        let burst = way.loss_burst_mean_packets;
        burst.map_or_else(|| "-".to_owned(), |burst| format!("{burst:.1} packets"))
    });
    row("reordered", &|way| format!("{:.3} %", way.reordered_ratio * 100.0));
    row("one TCP flow", &|way| match (way.tcp_goodput_bit_per_s, &way.tcp_congestion) {
        (Some(goodput), Some(congestion)) => format!("{} Mbit/s, {congestion}", mbit(goodput)),
        _ => "not measured".to_owned(),
    });
    let [min, median, p95] =
        [report.rtt_min_s, report.rtt_median_s, report.rtt_p95_s].map(|s| s * 1e3);
    format!(
        "round trip at rest: {min:.1} ms at least, {median:.1} ms median, {p95:.1} ms p95; {} of {} pings lost\n\n{ways}",
        report.pings_lost, report.pings
    )
}

fn mbit(bit_per_s: f64) -> String {
    format!("{:.3}", bit_per_s / 1e6)
}
