//! The page's table of all figures, and the details of each run.

use crate::axes::{Axes, Role};
use crate::date::utc;
use crate::escape::html as text;
use crate::number;
use crate::page::Options;
use crate::summary::{Row, rows, run};
use midhop_experiment::record::{FlowResult, LegResult, LinkResult, Record, Runner};
use std::fmt::Write as _;

/// Appends the table: one row per cell and transfer. `id` and `heading` are those of its section.
pub(crate) fn table(page: &mut String, id: &str, heading: &str, records: &[Record]) {
    let _ = writeln!(page, "<section id=\"{id}\">\n<h2>{}</h2>", text(heading));
    let rows = rows(records);
    let axes = Axes::of(records);
    let shown: Vec<_> = [Role::Condition, Role::Configuration]
        .into_iter()
        .flat_map(|role| axes.of_role(role))
        .collect();
    page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>Transfer</th>");
    for axis in &shown {
        let _ = write!(page, "<th title=\"{}\">{}</th>", text(&axis.key), text(&axis.name));
    }
    page.push_str(
        "<th class=\"n\">Goodput<br><small>Mbit/s</small></th><th class=\"n\">Time<br>\
         <small>s</small></th><th class=\"n\">Of limit<br><small>%</small></th>\
         <th class=\"n\">Sent again<br><small>segments</small></th>",
    );
    let proxied = rows.iter().any(|row| row.proxy_retransmissions.is_some());
    if proxied {
        page.push_str("<th class=\"n\">By proxy<br><small>segments</small></th>");
    }
    page.push_str("<th>State</th></tr></thead>\n<tbody>\n");
    let mean = |estimate: Option<midhop_study::Estimate>| estimate.map_or(0.0, |found| found.mean);
    let goodput = number::decimals(rows.iter().map(|row| mean(row.goodput_mbit_per_s)));
    let time = number::decimals(rows.iter().map(|row| mean(row.time_s)));
    let mut faults: Vec<&str> = Vec::new();
    let mut above: Option<(&str, Vec<usize>)> = None;
    for row in &rows {
        let group = (row.transfer.as_str(), axes.order(&row.cell, Role::Condition));
        let class = match (row.valid, above.as_ref() != Some(&group)) {
            (0, true) => " class=\"invalid first\"",
            (0, false) => " class=\"invalid\"",
            (_, true) => " class=\"first\"",
            _ => "",
        };
        above = Some(group);
        let _ = write!(page, "<tr{class}><td>{}</td>", text(&row.transfer));
        for axis in &shown {
            let label = row.cell.get(&axis.key).map_or_else(|| "–".to_owned(), String::clone);
            let _ = write!(page, "<td>{}</td>", text(&label));
        }
        let at_least = if row.is_complete() { "" } else { "&gt;" };
        let _ = write!(
            page,
            "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td>",
            number::estimate(row.goodput_mbit_per_s, 1.0, goodput, ""),
            number::estimate(row.time_s, 1.0, time, at_least),
            share(row),
            number::estimate(row.retransmissions, 1.0, 0, ""),
        );
        if proxied {
            let segments = number::estimate(row.proxy_retransmissions, 1.0, 0, "");
            let _ = write!(page, "<td class=\"n\">{segments}</td>");
        }
        let _ = writeln!(page, "<td>{}</td></tr>", state(row, &mut faults));
    }
    page.push_str("</tbody></table></div>\n");
    list_faults(page, &faults);
    page.push_str(
        "<p class=\"note\">Of limit: the shortest time that physics allows for these bytes, over the \
         time that they took. ±: 95 % confidence interval of the mean over seeds. Sent again: by the \
         transfer's own sender, which behind a proxy is that of its own leg only; by proxy: by the \
         proxies of the run, on all their legs. Incomplete: not everything had arrived when the run ended; the time is a lower bound.</p>\n</section>\n",
    );
}

/// The efficiency with a bar of that length behind it.
fn share(row: &Row) -> String {
    let words = number::estimate(row.efficiency, 100.0, 1, "");
    let Some(estimate) = row.efficiency else { return words };
    let percent = (estimate.mean * 100.0).clamp(0.0, 100.0);
    format!("<span class=\"share\" style=\"--share-end:{percent:.1}%\">{words}</span>")
}

/// The faults to which rows refer by number.
pub(crate) fn list_faults(page: &mut String, faults: &[&str]) {
    if faults.is_empty() {
        return;
    }
    page.push_str("<ol class=\"faults\">\n");
    for fault in faults {
        let _ = writeln!(page, "<li>{}</li>", text(fault));
    }
    page.push_str("</ol>\n");
}

pub(crate) fn state<'a>(row: &'a Row, faults: &mut Vec<&'a str>) -> String {
    let mut words = Vec::new();
    let runs = row.seeds.len();
    if row.valid < runs {
        let invalid = runs - row.valid;
        words.push(if runs == 1 {
            "<strong>invalid</strong>".to_owned()
        } else {
            format!("<strong>{invalid} of {runs} invalid</strong>")
        });
    }
    if !row.is_complete() {
        let missing = row.counted - row.complete;
        words.push(if row.counted == 1 {
            "incomplete".to_owned()
        } else {
            format!("{missing} of {} incomplete", row.counted)
        });
    }
    if words.is_empty() {
        words.push("ok".to_owned());
    }
    for fault in &row.faults {
        let place = faults.iter().position(|known| known == fault).unwrap_or_else(|| {
            faults.push(fault);
            faults.len() - 1
        });
        words.push(format!("[{}]", place + 1));
    }
    words.join(" ")
}

/// Appends one fold per run: how to repeat it, the results of its links and flows, its plan.
pub(crate) fn details(page: &mut String, records: &[Record], options: &Options) {
    page.push_str("<section id=\"runs\">\n<h2>Each run</h2>\n");
    let axes = Axes::of(records);
    for record in records {
        let names: Vec<&str> =
            record.transfers.iter().map(|transfer| transfer.name.as_str()).collect();
        let place: Vec<String> = [Role::Condition, Role::Configuration]
            .into_iter()
            .map(|role| axes.words(&record.cell, role))
            .filter(|words| !words.is_empty())
            .collect();
        let verb = Runner::of(record).verb();
        let mark = if record.validity.is_valid() { "" } else { " <strong>invalid</strong>" };
        let _ = writeln!(
            page,
            "<details><summary>{} · {} · {} · {verb}{mark}</summary>",
            text(&names.join(", ")),
            text(&place.join(" · ")),
            run(record)
        );
        for fault in &record.validity.faults {
            let _ = writeln!(page, "<p class=\"warning\">{}</p>", text(fault));
        }
        if Runner::of(record).runs_plans() {
            let environment = &record.environment;
            let _ = write!(
                page,
                "<p class=\"note\">Began {}, took {:.1} s; load {:.1} on {} processors.</p>\n\
                 <p>To run it again:</p>\n<pre><code>{}</code></pre>\n",
                utc(environment.started_unix_s),
                environment.took.as_s_f64(),
                environment.load,
                environment.processors,
                text(&again(record, options))
            );
        }
        links(page, &record.links);
        legs(page, &record.legs);
        for transfer in &record.transfers {
            flows(page, &transfer.name, &transfer.flows);
        }
        if record.plan.is_null() {
            page.push_str("</details>\n");
            continue;
        }
        let plan = serde_json::to_string_pretty(&record.plan).unwrap_or_default();
        let _ = write!(
            page,
            "<details><summary>Plan, every default visible</summary>\n\
             <pre class=\"plan\"><code>{}</code></pre></details>\n</details>\n",
            text(&plan)
        );
    }
    page.push_str("</section>\n");
}

/// The command that repeats the scenario of `record`.
fn again(record: &Record, options: &Options) -> String {
    let scenario = options.scenario.as_deref().unwrap_or("SCENARIO.toml");
    let runner = Runner::of(record).name();
    let mut command = format!("midhop {runner} run {}", quoted(scenario));
    for (axis, label) in &record.cell {
        let _ = write!(command, " --set {}", quoted(&format!("{axis}={label}")));
    }
    let _ = write!(command, " --set seeds=1 --set seed={}", record.seed);
    command
}

/// `word` quoted as one word for a POSIX shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=%,:".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn links(page: &mut String, links: &[LinkResult]) {
    if links.is_empty() {
        return;
    }
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>Link</th><th class=\"n\">Packets in</th>\
         <th class=\"n\">out</th><th>Dropped</th><th class=\"n\">Largest queue<br>\
         <small>kB</small></th><th class=\"n\">Late, p50 / p99 / max<br><small>ms</small></th>\
         <th class=\"n\">Processor<br><small>s</small></th></tr></thead>\n<tbody>\n",
    );
    for link in links {
        let drops: Vec<String> =
            link.drops.iter().map(|(cause, number)| format!("{number} {cause}")).collect();
        let late = link.lateness.as_ref().map_or_else(
            || "–".to_owned(),
            |late| {
                format!(
                    "{:.3} / {:.3} / {:.3}",
                    late.p50.as_ms_f64(),
                    late.p99.as_ms_f64(),
                    late.max.as_ms_f64()
                )
            },
        );
        let _ = writeln!(
            page,
            "<tr><td>{} {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>\
             <td class=\"n\">{:.1}</td><td class=\"n\">{late}</td><td class=\"n\">{}</td></tr>",
            text(&link.name),
            text(&link.direction),
            link.packets_in,
            link.packets_out,
            text(if drops.is_empty() { "none".to_owned() } else { drops.join(", ") }.as_str()),
            link.queue_bytes_max as f64 / 1e3,
            link.cpu.map_or_else(|| "–".to_owned(), |cpu| format!("{:.2}", cpu.as_s_f64())),
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn legs(page: &mut String, legs: &[LegResult]) {
    if legs.is_empty() {
        return;
    }
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>Proxy leg</th><th class=\"n\">Connections</th>\
         <th class=\"n\">Payload sent<br><small>bytes</small></th><th class=\"n\">Sent again</th>\
         <th class=\"n\">Least RTT<br><small>ms</small></th></tr></thead>\n<tbody>\n",
    );
    for leg in legs {
        let _ = writeln!(
            page,
            "<tr><td>{}, {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            text(&leg.node),
            text(&leg.link),
            leg.connections,
            leg.bytes.get(),
            leg.retransmissions,
            leg.rtt_min.map_or_else(|| "–".to_owned(), |rtt| format!("{:.2}", rtt.as_ms_f64())),
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn flows(page: &mut String, transfer: &str, flows: &[FlowResult]) {
    let _ = write!(
        page,
        "<div class=\"scroll\"><table>\n<thead><tr><th>{} flow</th><th class=\"n\">Ports</th>\
         <th class=\"n\">From<br><small>s</small></th><th class=\"n\">To<br><small>s</small></th>\
         <th class=\"n\">Payload<br><small>bytes</small></th><th class=\"n\">Goodput<br>\
         <small>Mbit/s</small></th><th class=\"n\">Sent again</th><th class=\"n\">Least RTT<br>\
         <small>ms</small></th><th>Congestion control</th><th>Hash received (XXH3-128)</th></tr>\
         </thead>\n<tbody>\n",
        text(transfer)
    );
    for flow in flows {
        let hash = match (&flow.hash_sent, &flow.hash_received) {
            (Some(sent), Some(received)) if sent == received => {
                format!("<code>{}</code> as sent", text(received))
            }
            (Some(sent), Some(received)) => format!(
                "<strong><code>{}</code>, sent <code>{}</code></strong>",
                text(received),
                text(sent)
            ),
            _ => "not compared".to_owned(),
        };
        let error = flow
            .error
            .as_ref()
            .map_or_else(String::new, |error| format!("<br><strong>{}</strong>", text(error)));
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{} → {}</td><td class=\"n\">{:.3}</td>\
             <td class=\"n\">{:.3}</td><td class=\"n\">{}</td><td class=\"n\">{:.3}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{hash}{error}</td></tr>",
            flow.id,
            flow.client_port,
            flow.server_port,
            flow.start.as_s_f64(),
            flow.end.as_s_f64(),
            flow.bytes.get(),
            flow.goodput.mbit_per_s(),
            flow.retransmissions,
            flow.rtt_min.map_or_else(|| "–".to_owned(), |rtt| format!("{:.2}", rtt.as_ms_f64())),
            text(&flow.congestion),
        );
    }
    page.push_str("</tbody></table></div>\n");
}
