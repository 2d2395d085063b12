//! Answers as tables.

use super::figures::{age, bytes, percent, rate, time};
use super::outcome;
use crate::control::answer::{
    DaemonStatus, Flows, LegStatus, LiveFlow, MoveOutcome, PeerFailure, PeerStatus, Why, WhyQuery,
};
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;

/// The whole state. Zeros are left out.
pub(super) fn status(status: &DaemonStatus) -> String {
    let mut text = headline(status);
    let mut lines = Table::new();
    lines.load_style(NOTHING);
    let interfaces = match status.interfaces.is_empty() {
        true => "none: nothing is intercepted".to_owned(),
        false => status.interfaces.join(", "),
    };
    lines.add_row(["interfaces", &interfaces]);
    lines.add_row(["flows", &format!("{} of at most {}", status.flows, status.flows_max)]);
    let held =
        format!("{} of at most {}", bytes(status.buffered_bytes), bytes(status.buffered_max_bytes));
    lines.add_row(["buffered", &held]);
    let moved = format!(
        "{} up, {} down, {} flows",
        bytes(status.up_bytes_total),
        bytes(status.down_bytes_total),
        status.split_total
    );
    lines.add_row(["carried", &moved]);
    for (name, counts) in [
        ("passed by", &status.bypassed_total),
        ("limits", &status.limits_reached_total),
        ("not accepted", &status.refused_total),
        ("ended", &status.ended_total),
    ] {
        if let Some(counts) = listed(counts) {
            lines.add_row([name, &counts]);
        }
    }
    if status.rejected_total > 0 {
        lines.add_row(["rejected", &status.rejected_total.to_string()]);
    }
    if status.data_planes_killed_total > 0 {
        let killed = status.data_planes_killed_total.to_string();
        let flows = listed(&status.orphaned_flows_total).unwrap_or_else(|| "none".to_owned());
        lines.add_row(["data planes killed", &format!("{killed}; flows of the last: {flows}")]);
    }
    if status.moved_flows_total.values().any(|count| *count > 0)
        && let Some(counts) = listed(&status.moved_flows_total)
    {
        lines.add_row(["moved", &counts]);
    }
    if status.upgrades_total > 0 {
        lines.add_row(["upgrades", &status.upgrades_total.to_string()]);
    }
    if let Some(counts) = listed(&status.waiting) {
        lines.add_row(["waiting", &counts]);
    }
    if status.memory_waits_total > 0 {
        lines.add_row(["memory waits", &status.memory_waits_total.to_string()]);
    }
    let reload = status.reload.as_ref().and_then(|reload| reload.error.as_ref());
    if let Some(refusal) = reload {
        let first = refusal.error.lines().next().unwrap_or_default();
        lines.add_row(["last reload", &format!("refused: {first}")]);
    }
    text += &laid_out(&lines);
    text += &format!("\n{}", legs(status));
    if !status.peers.is_empty() || status.last_refusal.is_some() {
        text += &format!("\n{}", peers(status));
    }
    text
}

/// Name, version, uptime and problems.
pub(super) fn headline(status: &DaemonStatus) -> String {
    let DaemonStatus { instance, version, pid, .. } = status;
    let mut text = format!(
        "midhopd {version}, instance {instance}, process {pid}, up {}",
        age(status.uptime_s)
    );
    text += if status.draining { ", draining\n" } else { "\n" };
    if let Some(illness) = &status.illness {
        let _ = writeln!(text, "✗ {illness}");
    }
    if let Some(passing) = &status.passing {
        let _ = writeln!(text, "! new flows pass by: {passing}");
    }
    text
}

/// Counts by name, without zeros; none if all are zero.
fn listed(counts: &BTreeMap<String, u64>) -> Option<String> {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<_> = counts.map(|(name, count)| format!("{count} ({name})")).collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

/// The legs that are configured or used.
pub(super) fn legs(status: &DaemonStatus) -> String {
    let head = [
        "LEG",
        "CONGESTION",
        "CONNECTIONS",
        "RATE",
        "SHARE",
        "SENT",
        "RECEIVED",
        "SENT AGAIN",
        "OUT OF ORDER",
        "QUEUED",
        "RTT",
        "LEAST RTT",
    ];
    let mut table = aligned(&head, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let is_used = |leg: &LegStatus| {
        leg.connections > 0 || leg.sent_bytes_total + leg.received_bytes_total > 0
    };
    for (name, leg) in status.legs.iter().filter(|(name, leg)| *name != "other" || is_used(leg)) {
        let share = match (leg.share_bit_per_s, leg.senders) {
            (Some(share), Some(senders)) if senders > 0 => {
                format!("{senders} × {}", rate(share as f64))
            }
            _ => "–".to_owned(),
        };
        table.add_row([
            name.clone(),
            or_dash(Some(leg.congestion.clone()).filter(|name| !name.is_empty())),
            leg.connections.to_string(),
            or_dash(leg.rate_bit_per_s.map(|it| rate(it as f64))),
            share,
            bytes(leg.sent_bytes_total),
            bytes(leg.received_bytes_total),
            lost(leg.retransmissions_total, leg.sent_segments_total),
            lost(leg.out_of_order_segments_total, leg.received_segments_total),
            bytes(leg.queued_bytes),
            or_dash(leg.rtt_s.map(time)),
            or_dash(leg.rtt_min_s.map(time)),
        ]);
    }
    laid_out(&table)
}

/// The peers.
pub(super) fn peers(status: &DaemonStatus) -> String {
    if status.peers.is_empty() {
        return "There are no peers.\n".to_owned() + &failures(status);
    }
    let head = [
        "PEER",
        "STATE",
        "FLOWS",
        "RATE",
        "IN FLIGHT",
        "WINDOW",
        "RTT",
        "LOSS",
        "REPAIRS",
        "SOURCES",
    ];
    let mut table = aligned(&head, &[2, 3, 4, 5, 6, 7, 8, 9]);
    for (name, peer) in &status.peers {
        table.add_row([
            name.clone(),
            state(peer),
            peer.flows.to_string(),
            or_dash(peer.rate_bit_per_s.map(|it| rate(it as f64))),
            bytes(peer.in_flight_bytes),
            bytes(peer.window_bytes),
            or_dash(peer.rtt_s.map(time)),
            or_dash(peer.loss_ratio.map(percent)),
            or_dash(peer.repair_overhead_ratio.map(percent)),
            or_dash(listed(&peer.conditions)),
        ]);
    }
    laid_out(&table) + &contradictions(status) + &failures(status)
}

/// Links whose rate differs from the configured one.
fn contradictions(status: &DaemonStatus) -> String {
    let mut text = String::new();
    for (name, peer) in &status.peers {
        let shown = |bits: Option<u64>| bits.map(|it| rate(it as f64));
        let reported = shown(peer.reported_bit_per_s);
        if let Some(reported) = &reported {
            let _ = writeln!(text, "\n{name}: the link is reported to carry {reported}");
        }
        if let Some(carried) = shown(peer.carried_bit_per_s) {
            let taken = reported.map_or(format!("`peers.{name}.rate`"), |_| "that".to_owned());
            let _ = writeln!(text, "\n{name}: the link carries {carried}, and not {taken}");
        }
    }
    text
}

/// Why peers without a tunnel have none, and which peer this end refused last.
fn failures(status: &DaemonStatus) -> String {
    let mut text = String::new();
    let closed = status.peers.iter().filter(|(_, peer)| peer.tunnels == 0);
    let closed = closed.filter_map(|(name, peer)| Some((name.as_str(), peer.failure.as_ref()?)));
    let closed: Vec<_> = closed.collect();
    // A refused peer that is known has a line of its own already.
    let last = status.last_refusal.as_ref();
    let last = last.filter(|last| !closed.iter().any(|(_, failure)| failure == last));
    for (name, failure) in closed.into_iter().chain(last.map(|last| ("last refused", last))) {
        let PeerFailure { message, hint, address, .. } = failure;
        let _ = writeln!(text, "\n{name}: {} ago, {address}: {message}", age(since(failure)));
        if let Some(hint) = hint {
            let _ = writeln!(text, "  hint: {hint}");
        }
    }
    text
}

/// Unit: seconds.
fn since(failure: &PeerFailure) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_secs_f64() - failure.at_unix_s as f64
}

/// A part of segments.
fn lost(some: u64, all: u64) -> String {
    or_dash((all > 0).then(|| percent(some as f64 / all as f64)))
}

fn state(peer: &PeerStatus) -> String {
    let open = match (peer.tunnels, peer.tcp_tunnels) {
        (0, _) => match &peer.failure {
            Some(failure) => format!("not open ({})", failure.reason),
            None => "not open".to_owned(),
        },
        (1, 0) => "open, QUIC".to_owned(),
        (1, 1) => "open, TCP".to_owned(),
        (all, tcp) => format!("{all} open, {tcp} of them TCP"),
    };
    match peer.carrier.as_deref() {
        Some(carrier) if carrier != "quic" => format!("{open} ({carrier})"),
        _ => open,
    }
}

/// Live flows.
pub(super) fn flows(flows: &Flows) -> String {
    if flows.flows.is_empty() {
        return "There are no such flows.\n".to_owned();
    }
    let mut text = laid_out(&flow_table(flows.flows.iter()));
    let hidden = flows.matching.saturating_sub(flows.flows.len() as u64);
    if hidden > 0 {
        let _ = writeln!(text, "and {hidden} more: --limit 0 lists all");
    }
    text
}

/// What has happened to flows that were to move.
pub(super) fn moved(peer: &str, outcome: &MoveOutcome) -> String {
    let MoveOutcome { matching, moved, lost, stayed, .. } = outcome;
    let mut text = format!("{moved} of {matching} flows have moved to {peer}.\n");
    if let Some(reasons) = listed(stayed) {
        let _ = writeln!(text, "Flows that stay, by reason: {reasons}.");
    }
    if *lost > 0 {
        let _ = writeln!(text, "{lost} were reset: it was not known whether they had moved.");
    }
    text
}

/// A row for each flow.
pub(super) fn flow_table<'a>(flows: impl Iterator<Item = &'a LiveFlow>) -> Table {
    let head = [
        "CLIENT",
        "SERVER",
        "FROM",
        "TO",
        "RULE",
        "AGE",
        "UP",
        "DOWN",
        "UP/S",
        "DOWN/S",
        "WAITS FOR",
        "SOURCE",
    ];
    let mut table = aligned(&head, &[4, 5, 6, 7, 8, 9]);
    for flow in flows {
        let source = flow.source.as_ref();
        table.add_row([
            flow.client.to_string(),
            flow.server.to_string(),
            side(&flow.client_leg, flow),
            side(&flow.server_leg, flow),
            or_dash(flow.rule.map(|number| format!("rules.{number}"))),
            age(flow.age_s),
            bytes(flow.up_bytes),
            bytes(flow.down_bytes),
            rate(flow.up_bit_per_s as f64),
            rate(flow.down_bit_per_s as f64),
            waits(flow),
            or_dash(source.map(|it| format!("{} ({})", it.condition, time(it.rtt_s)))),
        ]);
    }
    table
}

/// What its two directions wait for.
fn waits(flow: &LiveFlow) -> String {
    let both = [("to client", &flow.down_waits_for), ("to server", &flow.up_waits_for)];
    let both =
        both.into_iter().filter_map(|(name, why)| Some(format!("{} ({name})", why.as_ref()?)));
    let both: Vec<_> = both.collect();
    or_dash((!both.is_empty()).then(|| both.join(", ")))
}

/// The name of a leg, or of the tunnel to a peer.
pub(super) fn side(name: &str, flow: &LiveFlow) -> String {
    if flow.tunnel.as_deref() == Some(name) { format!("tunnel {name}") } else { name.to_owned() }
}

/// Why a flow is carried or not.
pub(super) fn why(query: &WhyQuery, why: &Why) -> String {
    let (client, server) = match &why.live {
        Some(flow) => (flow.client.to_string(), flow.server.to_string()),
        None if query.client.port() == 0 => {
            (query.client.ip().to_string(), query.server.to_string())
        }
        None => (query.client.to_string(), query.server.to_string()),
    };
    let which =
        if why.live.is_some() { "This live flow is" } else { "A flow that begins now would be" };
    let mut text = format!("{client} → {server}\n{which}: {}\n\n", outcome(why.outcome));
    let mut table = Table::new();
    table.load_style(NOTHING);
    for step in &why.steps {
        table.add_row([if step.decides { "→" } else { " " }, &step.subject, &step.finding]);
    }
    for (name, value) in [
        ("client leg", &why.client_leg),
        ("server leg", &why.server_leg),
        ("accepted", &why.accept),
    ] {
        if let Some(value) = value {
            table.add_row([" ", name, value]);
        }
    }
    text += &laid_out(&table);
    if why.live.is_none() {
        text += "\nThis host's forward rules apply to the flow's SYN as well: `midhopd doctor` checks for rules that would\ndrop it.\n";
    }
    text
}

/// A table with a head, and some columns of numbers.
pub(super) fn aligned(head: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head);
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Without the space that a cell without a border leaves at the edges.
pub(super) fn laid_out(table: &Table) -> String {
    let text = table.to_string();
    text.lines().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{}", line.strip_prefix(' ').unwrap_or(line).trim_end());
        text
    })
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}
