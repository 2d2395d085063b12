//! `midhopd top`: legs and flows with their recent rates.
//!
//! Rates of legs are differences between two looks, divided by the time between them; those of flows are the daemon's.
//! On a terminal each look fills the screen, otherwise one follows the other; with `--json` each is a line.

use super::ask::Daemon;
use super::figures::{bytes, percent, rate};
use super::rates::Rates;
use super::tables::{aligned, flow_table, headline, laid_out};
use crate::control::answer::{DaemonStatus, Flows, FlowsQuery};
use midhop_failure::Failure;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use tokio::time;

/// The most flows that are requested: those that have moved the most bytes.
const FLOWS: u64 = 2000;
/// The number of lines if the terminal's height is unknown.
const LINES: usize = 40;
/// Clears the screen, and puts the cursor at its beginning.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Another screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// One sample of a daemon.
struct Look {
    at: Instant,
    status: DaemonStatus,
    flows: Flows,
}

/// Prints samples until it is interrupted, or has printed `count` of them.
///
/// # Errors
/// When the daemon does not answer any more.
pub(super) async fn watch(
    daemon: &Daemon,
    interval_s: f64,
    count: Option<u64>,
    json: bool,
) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(interval_s);
    let mut last = look(daemon).await?;
    let screen = Screen::open(json);
    for _ in 0..count.unwrap_or(u64::MAX) {
        tokio::select! {
            () = time::sleep(interval) => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        let mut now = look(daemon).await?;
        let passed_s = now.at.duration_since(last.at).as_secs_f64();
        let flows = std::mem::take(&mut now.flows.flows);
        let rates = Rates::between(&last.status, &now.status, flows, passed_s);
        screen.show(&match json {
            true => line(&rates)?,
            false => page(&now.status, &rates, screen.lines()),
        })?;
        last = now;
    }
    Ok(())
}

async fn look(daemon: &Daemon) -> Result<Look, Failure> {
    let query = FlowsQuery { limit: FLOWS, ..FlowsQuery::default() };
    let (status, flows) = (daemon.get("/status").await?, daemon.post("/flows", &query).await?);
    Ok(Look { at: Instant::now(), status, flows })
}

/// Where pages are printed: on a terminal's screen, or one below the other.
struct Screen {
    is_terminal: bool,
}

impl Screen {
    fn open(json: bool) -> Self {
        let is_terminal = !json && io::stdout().is_terminal();
        if is_terminal {
            let _ = io::stdout().write_all(ENTER.as_bytes());
        }
        Self { is_terminal }
    }

    fn lines(&self) -> usize {
        let size = terminal_size::terminal_size().filter(|_| self.is_terminal);
        size.map_or(LINES, |(_, height)| usize::from(height.0))
    }

    fn show(&self, page: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        let clear = if self.is_terminal { CLEAR } else { "" };
        let written = write!(out, "{clear}{page}").and_then(|()| out.flush());
        written.map_err(|error| Failure::run("the page cannot be printed").because(error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = io::stdout().write_all(LEAVE.as_bytes());
        }
    }
}

/// A sample as one line.
fn line(rates: &Rates) -> Result<String, Failure> {
    let line = serde_json::to_string(rates);
    let line = line.map_err(|error| Failure::run("the rates cannot be printed").because(error))?;
    Ok(line + "\n")
}

/// A sample as a page of at most so many lines.
fn page(status: &DaemonStatus, rates: &Rates, lines: usize) -> String {
    let mut text = headline(status);
    text += &format!(
        "{} flows, {:.0} new/s, {} up, {} down, {} buffered\n\n",
        rates.flow_count,
        rates.new_flows_per_s,
        rate(rates.up_bit_per_s),
        rate(rates.down_bit_per_s),
        bytes(rates.buffered_bytes),
    );
    let mut table = aligned(
        &["LEG", "CONNECTIONS", "SENDING", "OF RATE", "RECEIVING", "SENT AGAIN/S"],
        &[1, 2, 3, 4, 5],
    );
    for (name, leg) in &rates.legs {
        if name == "other" && leg.connections == 0 {
            continue;
        }
        table.add_row([
            name.clone(),
            leg.connections.to_string(),
            rate(leg.sent_bit_per_s),
            leg.utilisation_ratio.map_or_else(|| "–".to_owned(), percent),
            rate(leg.received_bit_per_s),
            format!("{:.1}", leg.retransmissions_per_s),
        ]);
    }
    text += &laid_out(&table);
    text.push('\n');
    let left = lines.saturating_sub(text.lines().count() + 2).max(1);
    text + &laid_out(&flow_table(rates.flows.iter().take(left)))
}
