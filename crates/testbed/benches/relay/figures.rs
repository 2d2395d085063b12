//! The figures of a relay, the best of several rounds, and the tables of all.

use crate::Result;
use crate::load::Work;
use crate::relays::Relay;
use std::fmt::{self, Write as _};
use std::time::Duration;

/// What was done, and what it cost the relay.
pub struct Costed {
    pub work: Work,
    /// Processor time of the relay; none without a relay.
    pub processor: Option<Duration>,
}

/// One relay's figures; `None` where there is nothing to measure.
#[derive(Debug, Default, Clone, serde::Serialize)]
pub struct Figures {
    /// Unit: Gbit/s. More is better.
    pub down_gbit_per_s: Option<f64>,
    /// Unit: Gbit/s. More is better.
    pub up_gbit_per_s: Option<f64>,
    /// Unit: processor seconds per GB. Less is better.
    pub down_cpu_s_per_gb: Option<f64>,
    /// Unit: processor seconds per GB. Less is better.
    pub up_cpu_s_per_gb: Option<f64>,
    /// The same for a single flow. Unit: Gbit/s. More is better.
    pub single_down_gbit_per_s: Option<f64>,
    /// Unit: Gbit/s. More is better.
    pub single_up_gbit_per_s: Option<f64>,
    /// Unit: processor seconds per GB. Less is better.
    pub single_down_cpu_s_per_gb: Option<f64>,
    /// Unit: processor seconds per GB. Less is better.
    pub single_up_cpu_s_per_gb: Option<f64>,
    /// Many at a time. Unit: 1/s. More is better.
    pub connections_per_s: Option<f64>,
    /// Unit: microseconds of processor time. Less is better.
    pub connection_cpu_us: Option<f64>,
    /// One after another. Unit: 1/s. More is better.
    pub sequence_per_s: Option<f64>,
    /// Unit: microseconds of processor time. Less is better.
    pub sequence_cpu_us: Option<f64>,
    /// Unit: microseconds, median of 100 bytes there and back. Less is better.
    pub round_trip_us: Option<f64>,
    /// Unit: microseconds, median from a SYN until the client's connection stands. Less is better.
    pub handshake_us: Option<f64>,
    /// Unit: bytes of user memory. Less is better.
    pub idle_flow_bytes: Option<f64>,
    /// Connections that received nothing for 10 s, in all rounds. The connection figures count only
    /// those that were served.
    pub stuck: u64,
}

impl Figures {
    pub fn take_bulk(&mut self, down: &Costed, up: &Costed) {
        self.down_gbit_per_s = Some(down.work.gbit_per_s());
        self.up_gbit_per_s = Some(up.work.gbit_per_s());
        self.down_cpu_s_per_gb = down.cpu_s_per_gb();
        self.up_cpu_s_per_gb = up.cpu_s_per_gb();
    }

    pub fn take_single(&mut self, down: &Costed, up: &Costed) {
        self.single_down_gbit_per_s = Some(down.work.gbit_per_s());
        self.single_up_gbit_per_s = Some(up.work.gbit_per_s());
        self.single_down_cpu_s_per_gb = down.cpu_s_per_gb();
        self.single_up_cpu_s_per_gb = up.cpu_s_per_gb();
    }

    pub fn take_connections(&mut self, connections: &Costed) {
        self.connections_per_s = Some(connections.work.count_per_s());
        self.connection_cpu_us = connections.cpu_us_each();
        self.stuck += connections.work.stuck;
    }

    pub fn take_sequence(&mut self, connections: &Costed) {
        self.sequence_per_s = Some(connections.work.count_per_s());
        self.sequence_cpu_us = connections.cpu_us_each();
        self.stuck += connections.work.stuck;
    }

    pub fn take_round_trip(&mut self, round_trip: Duration) {
        self.round_trip_us = Some(round_trip.as_secs_f64() * 1e6);
    }

    pub fn take_handshake(&mut self, handshake: Duration) {
        self.handshake_us = Some(handshake.as_secs_f64() * 1e6);
    }

    /// Keeps the better of each figure, and adds up the stuck connections.
    pub fn keep_best(&mut self, other: &Self) {
        self.stuck += other.stuck;
        for row in ROWS {
            let (mine, theirs) = ((row.mut_value)(self), (row.value)(other));
            *mine = match (*mine, theirs) {
                (Some(a), Some(b)) => Some(row.better(a, b)),
                (a, b) => a.or(b),
            };
        }
    }
}

impl Costed {
    fn cpu_s_per_gb(&self) -> Option<f64> {
        let gb = self.work.bytes as f64 / 1e9;
        self.processor.map(|time| time.as_secs_f64() / gb)
    }

    fn cpu_us_each(&self) -> Option<f64> {
        let count = self.work.count as f64;
        self.processor.map(|time| time.as_secs_f64() * 1e6 / count)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in ROWS {
            if let Some(value) = (row.value)(self) {
                write!(f, "{value:.0$} {1}  ", row.decimals, row.title)?;
            }
        }
        if self.stuck > 0 {
            write!(f, "{} connections stuck", self.stuck)?;
        }
        Ok(())
    }
}

struct Row {
    title: &'static str,
    decimals: usize,
    more_is_better: bool,
    /// The bound for a pair's ratio to the other pair: a minimum or a maximum.
    goal: Option<f64>,
    value: fn(&Figures) -> Option<f64>,
    mut_value: fn(&mut Figures) -> &mut Option<f64>,
}

impl Row {
    fn better(&self, a: f64, b: f64) -> f64 {
        if self.more_is_better { a.max(b) } else { a.min(b) }
    }
}

macro_rules! row {
    ($title:literal, $decimals:literal, $more:literal, $goal:expr, $field:ident) => {
        Row {
            title: $title,
            decimals: $decimals,
            more_is_better: $more,
            goal: $goal,
            value: |figures| figures.$field,
            mut_value: |figures| &mut figures.$field,
        }
    };
}

const ROWS: &[Row] = &[
    row!("down Gbit/s", 2, true, Some(2.0), down_gbit_per_s),
    row!("up Gbit/s", 2, true, Some(2.0), up_gbit_per_s),
    row!("down CPU s/GB", 3, false, Some(0.5), down_cpu_s_per_gb),
    row!("up CPU s/GB", 3, false, Some(0.5), up_cpu_s_per_gb),
    row!("1 flow down Gbit/s", 2, true, Some(2.0), single_down_gbit_per_s),
    row!("1 flow up Gbit/s", 2, true, Some(2.0), single_up_gbit_per_s),
    row!("1 flow down CPU s/GB", 3, false, Some(0.5), single_down_cpu_s_per_gb),
    row!("1 flow up CPU s/GB", 3, false, Some(0.5), single_up_cpu_s_per_gb),
    row!("conn/s, 64 at once", 0, true, Some(1.2), connections_per_s),
    row!("CPU us/conn", 0, false, None, connection_cpu_us),
    row!("conn/s, in sequence", 0, true, Some(1.2), sequence_per_s),
    row!("CPU us/conn", 0, false, None, sequence_cpu_us),
    row!("100 B RTT us", 1, false, None, round_trip_us),
    row!("handshake us", 1, false, None, handshake_us),
    row!("idle B/flow", 0, false, None, idle_flow_bytes),
];

/// The table of some relays with a column each, and the ratio of ours to the best of the others; rows of
/// which nothing was measured are left out.
pub fn table(figures: &[(Relay, Figures)], ours: Relay) -> String {
    let pair = ours.is_pair();
    let mut text = format!("{:<22}", "");
    for (relay, _) in figures {
        let _ = write!(text, "{:>14}", relay.name());
    }
    let found = figures.iter().find(|(relay, _)| *relay == ours).map(|(_, figures)| figures);
    if found.is_some() {
        text.push_str("   ours / best");
    }
    let before = figures.iter().find(|(relay, _)| *relay == ours.before());
    let before = before.map(|(_, figures)| figures).filter(|_| found.is_some());
    if before.is_some() {
        text.push_str(" ours / before");
    }
    if found.is_some() && pair {
        text.push_str("        goal");
    }
    for row in ROWS {
        if figures.iter().all(|(_, figures)| (row.value)(figures).is_none()) {
            continue;
        }
        let _ = write!(text, "\n{:<22}", row.title);
        for (_, figures) in figures {
            match (row.value)(figures) {
                Some(value) => {
                    let _ = write!(text, "{value:>14.0$}", row.decimals);
                }
                None => {
                    let _ = write!(text, "{:>14}", "-");
                }
            }
        }
        let others = figures.iter().filter(|(relay, _)| relay.is_peer_of(ours));
        let best = others.filter_map(|(_, figures)| (row.value)(figures));
        let best = best.reduce(|a, b| row.better(a, b)).filter(|best| *best > 0.0);
        let ours = found.and_then(row.value);
        let over = |other: Option<f64>| ours.zip(other).map(|(ours, other)| ours / other);
        let ratio = over(best);
        let shown = |ratio: Option<f64>| {
            ratio.map_or_else(|| format!("{:>14}", ""), |ratio| format!("{ratio:>13.2}x"))
        };
        if found.is_some() {
            text.push_str(&shown(ratio));
        }
        if let Some(before) = before {
            text.push_str(&shown(over((row.value)(before))));
        }
        let Some(ratio) = ratio else { continue };
        if let Some(goal) = row.goal.filter(|_| pair) {
            let sign = if row.more_is_better { '≥' } else { '≤' };
            let reached = row.better(ratio, goal) == ratio;
            let verdict = if reached { "reached" } else { "missed" };
            let _ = write!(text, "{sign:>8}{goal:.1} {verdict}");
        }
    }
    text.push('\n');
    for (relay, figures) in figures.iter().filter(|(_, figures)| figures.stuck > 0) {
        let _ = writeln!(
            text,
            "{}: {} connections were stuck for 10 s, in all rounds",
            relay.name(),
            figures.stuck
        );
    }
    text
}

/// The same for programs, as JSON.
pub fn json(figures: &[(Relay, Figures)], load: f64) -> Result<String> {
    let relays: serde_json::Map<String, serde_json::Value> = figures
        .iter()
        .map(|(relay, figures)| Ok((relay.name().to_owned(), serde_json::to_value(figures)?)))
        .collect::<Result<_>>()?;
    Ok(serde_json::to_string_pretty(&serde_json::json!({ "load": load, "relays": relays }))?)
}
