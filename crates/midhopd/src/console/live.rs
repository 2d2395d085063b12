//! `midhopd top`: legs and flows with the rates of the last moments.
//!
//! Rates of legs are differences between two looks, divided by the time between them; those of flows are the daemon's.

use super::ask::Daemon;
use super::figures::{bytes, percent, rate};
use super::tables::{aligned, flow_table, headline, laid_out};
use crate::control::answer::{DaemonStatus, Flows, FlowsQuery};
use crate::failure::Failure;
use std::cmp::Reverse;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use tokio::time;

/// The most flows that are looked at, those that moved most.
const FLOWS: u64 = 2000;
/// Lines where the terminal's height is not known.
const LINES: usize = 40;
/// Clears the screen, and puts the cursor at its beginning.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Another screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// One look at a daemon.
struct Look {
    at: Instant,
    status: DaemonStatus,
    flows: Flows,
}

/// Looks, and prints what it sees, until it is interrupted or has looked `count` times.
///
/// # Errors
/// When the daemon does not answer any more.
pub(super) async fn watch(
    daemon: &Daemon,
    interval_s: f64,
    count: Option<u64>,
) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(interval_s);
    let mut last = look(daemon).await?;
    let screen = Screen::open();
    for _ in 0..count.unwrap_or(u64::MAX) {
        tokio::select! {
            () = time::sleep(interval) => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        let now = look(daemon).await?;
        screen.show(&page(&last, &now, screen.lines()))?;
        last = now;
    }
    Ok(())
}

async fn look(daemon: &Daemon) -> Result<Look, Failure> {
    let query = FlowsQuery { limit: FLOWS, ..FlowsQuery::default() };
    let (status, flows) = (daemon.get("/status").await?, daemon.post("/flows", &query).await?);
    Ok(Look { at: Instant::now(), status, flows })
}

/// Where pages go: a screen of a terminal, or one below the other.
struct Screen {
    is_terminal: bool,
}

impl Screen {
    fn open() -> Self {
        let is_terminal = io::stdout().is_terminal();
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

/// Two looks as a page of at most so many lines.
fn page(last: &Look, now: &Look, lines: usize) -> String {
    let passed_s = now.at.duration_since(last.at).as_secs_f64().max(1e-3);
    let per_s = |now: u64, last: u64| now.saturating_sub(last) as f64 / passed_s;
    let bits = |now: u64, last: u64| rate(per_s(now, last) * 8.0);
    let (before, status) = (&last.status, &now.status);
    let mut text = headline(status);
    text += &format!(
        "{} flows, {:.0} new/s, {} up, {} down, {} buffered\n\n",
        status.flows,
        per_s(status.split_total, before.split_total),
        bits(status.up_bytes_total, before.up_bytes_total),
        bits(status.down_bytes_total, before.down_bytes_total),
        bytes(status.buffered_bytes),
    );
    let mut table = aligned(
        &["LEG", "CONNECTIONS", "SENDING", "OF RATE", "RECEIVING", "SENT AGAIN/S"],
        &[1, 2, 3, 4, 5],
    );
    for (name, leg) in &status.legs {
        let was = before.legs.get(name).cloned().unwrap_or_default();
        let sending = per_s(leg.sent_bytes_total, was.sent_bytes_total) * 8.0;
        if name == "other" && leg.connections == 0 {
            continue;
        }
        table.add_row([
            name.clone(),
            leg.connections.to_string(),
            rate(sending),
            leg.rate_bit_per_s
                .map_or_else(|| "–".to_owned(), |whole| percent(sending / whole.max(1) as f64)),
            bits(leg.received_bytes_total, was.received_bytes_total),
            format!("{:.1}", per_s(leg.retransmissions_total, was.retransmissions_total)),
        ]);
    }
    text += &laid_out(&table);
    text.push('\n');
    let left = lines.saturating_sub(text.lines().count() + 2).max(1);
    text + &flows(&now.flows, left)
}

/// The fastest flows.
fn flows(flows: &Flows, most: usize) -> String {
    let mut shown: Vec<_> = flows.flows.iter().collect();
    shown.sort_by_key(|flow| {
        Reverse((flow.up_bit_per_s + flow.down_bit_per_s, flow.up_bytes + flow.down_bytes))
    });
    laid_out(&flow_table(shown.into_iter().take(most)))
}
