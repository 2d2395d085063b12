//! A report in the form of tables.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use midhop_experiment::record::FlowResult;
use midhop_testbed::meter::MeterReport;
use midhop_units::{Duration, Rate};

/// The flows, the objects, and the sum.
pub fn render(report: &MeterReport) -> String {
    let transfer = &report.transfer;
    let mut flows = table(&[
        "flow",
        "ports",
        "bytes",
        "start s",
        "end s",
        "Mbit/s",
        "retrans.",
        "RTT min",
        "CC",
        "bytes agree",
    ]);
    for flow in &transfer.flows {
        flows.add_row([
            flow.id.to_string(),
            format!("{}-{}", flow.client_port, flow.server_port),
            flow.bytes.get().to_string(),
            seconds(flow.start),
            seconds(flow.end),
            megabits(flow.goodput),
            flow.retransmissions.to_string(),
            flow.rtt_min.map_or_else(|| "-".to_owned(), |rtt| format!("{:.3} ms", rtt.as_ms_f64())),
            flow.congestion.clone(),
            verdict(flow).to_owned(),
        ]);
    }
    align_right(&mut flows, &[0, 2, 3, 4, 5, 6, 7]);
    let mut text = flows.to_string();
    if !transfer.objects.is_empty() {
        let mut objects = table(&["object", "flow", "bytes", "start s", "first byte s", "end s"]);
        for object in &transfer.objects {
            objects.add_row([
                object.id.to_string(),
                object.flow.to_string(),
                object.bytes.get().to_string(),
                seconds(object.start),
                seconds(object.first_byte),
                seconds(object.end),
            ]);
        }
        align_right(&mut objects, &[0, 1, 2, 3, 4, 5]);
        text += &format!("\n\n{objects}");
    }
    let state = if transfer.complete { "complete" } else { "INCOMPLETE" };
    text += &format!(
        "\n\n{}: {} bytes in {} s, {} Mbit/s, {state}",
        transfer.name,
        transfer.bytes.get(),
        seconds(transfer.took),
        megabits(transfer.goodput),
    );
    text
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied());
    table
}

fn align_right(table: &mut Table, columns: &[usize]) {
    for &column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn verdict(flow: &FlowResult) -> &'static str {
    match (&flow.error, &flow.hash_sent) {
        (None, Some(_)) if flow.hash_sent == flow.hash_received => "yes",
        (Some(_), Some(_)) if flow.hash_sent != flow.hash_received => "NO",
        _ => "unfinished",
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_s_f64())
}

fn megabits(rate: Rate) -> String {
    format!("{:.3}", rate.mbit_per_s())
}
