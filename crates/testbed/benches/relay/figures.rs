//! The figures of a relay, the best of several rounds, and the table of all.

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
    /// Unit: 1/s. More is better.
    pub connections_per_s: Option<f64>,
    /// Unit: microseconds of processor time. Less is better.
    pub connection_cpu_us: Option<f64>,
    /// Unit: microseconds, median of 100 bytes there and back. Less is better.
    pub round_trip_us: Option<f64>,
    /// Unit: bytes of user memory. Less is better.
    pub idle_flow_bytes: Option<f64>,
}

impl Figures {
    pub fn take_bulk(&mut self, down: &Costed, up: &Costed) {
        let per_gb = |costed: &Costed| {
            let gb = costed.work.bytes as f64 / 1e9;
            costed.processor.map(|time| time.as_secs_f64() / gb)
        };
        self.down_gbit_per_s = Some(down.work.gbit_per_s());
        self.up_gbit_per_s = Some(up.work.gbit_per_s());
        self.down_cpu_s_per_gb = per_gb(down);
        self.up_cpu_s_per_gb = per_gb(up);
    }

    pub fn take_connections(&mut self, connections: &Costed) {
        let count = connections.work.count as f64;
        self.connections_per_s = Some(connections.work.count_per_s());
        self.connection_cpu_us = connections.processor.map(|time| time.as_secs_f64() * 1e6 / count);
    }

    pub fn take_round_trip(&mut self, round_trip: Duration) {
        self.round_trip_us = Some(round_trip.as_secs_f64() * 1e6);
    }

    /// Keeps the better of each figure.
    pub fn keep_best(&mut self, other: &Self) {
        for column in COLUMNS {
            let (mine, theirs) = ((column.mut_value)(self), (column.value)(other));
            *mine = match (*mine, theirs) {
                (Some(a), Some(b)) => Some(if column.more_is_better { a.max(b) } else { a.min(b) }),
                (a, b) => a.or(b),
            };
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for column in COLUMNS {
            if let Some(value) = (column.value)(self) {
                write!(f, "{value:.0$} {1}  ", column.decimals, column.title)?;
            }
        }
        Ok(())
    }
}

struct Column {
    title: &'static str,
    decimals: usize,
    more_is_better: bool,
    value: fn(&Figures) -> Option<f64>,
    mut_value: fn(&mut Figures) -> &mut Option<f64>,
}

macro_rules! column {
    ($title:literal, $decimals:literal, $more:literal, $field:ident) => {
        Column {
            title: $title,
            decimals: $decimals,
            more_is_better: $more,
            value: |figures| figures.$field,
            mut_value: |figures| &mut figures.$field,
        }
    };
}

const COLUMNS: &[Column] = &[
    column!("down Gbit/s", 2, true, down_gbit_per_s),
    column!("up Gbit/s", 2, true, up_gbit_per_s),
    column!("down CPU s/GB", 3, false, down_cpu_s_per_gb),
    column!("up CPU s/GB", 3, false, up_cpu_s_per_gb),
    column!("conn/s", 0, true, connections_per_s),
    column!("CPU us/conn", 0, false, connection_cpu_us),
    column!("100 B RTT us", 1, false, round_trip_us),
    column!("idle B/flow", 0, false, idle_flow_bytes),
];

/// The table of all relays, and midhopd's ratio to the best of the others.
pub fn table(figures: &[(Relay, Figures)], flows: u32, idle: u32) -> String {
    let mut text = format!("bulk: {flows} flows; idle: {idle} flows; best round of each\n\n");
    let _ = write!(text, "{:<14}", "relay");
    for column in COLUMNS {
        let _ = write!(text, "{:>15}", column.title);
    }
    for (relay, figures) in figures {
        let _ = write!(text, "\n{:<14}", relay.name());
        for column in COLUMNS {
            match (column.value)(figures) {
                Some(value) => {
                    let _ = write!(text, "{value:>15.0$}", column.decimals);
                }
                None => {
                    let _ = write!(text, "{:>15}", "-");
                }
            }
        }
    }
    if let Some((_, ours)) = figures.iter().find(|(relay, _)| *relay == Relay::Midhopd) {
        let _ = write!(text, "\n{:<14}", "ours / best");
        for column in COLUMNS {
            let others = figures.iter().filter(|(relay, _)| relay.is_peer());
            let best = others
                .filter_map(|(_, figures)| (column.value)(figures))
                .reduce(|a, b| if column.more_is_better { a.max(b) } else { a.min(b) });
            match ((column.value)(ours), best) {
                (Some(ours), Some(best)) if best > 0.0 => {
                    let _ = write!(text, "{:>14.2}x", ours / best);
                }
                _ => {
                    let _ = write!(text, "{:>15}", "-");
                }
            }
        }
    }
    text.push('\n');
    text
}

/// The same for machines.
pub fn json(figures: &[(Relay, Figures)], load: f64) -> Result<String> {
    let relays: serde_json::Map<String, serde_json::Value> = figures
        .iter()
        .map(|(relay, figures)| Ok((relay.name().to_owned(), serde_json::to_value(figures)?)))
        .collect::<Result<_>>()?;
    Ok(serde_json::to_string_pretty(&serde_json::json!({ "load": load, "relays": relays }))?)
}
