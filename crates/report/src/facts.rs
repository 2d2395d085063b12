//! The facts about the runs at the top of the page.

use crate::axes::{Axes, Role};
use crate::date::utc;
use crate::phrases::{count, distinct};
use midhop_experiment::record::{Record, Runner};
use serde_json::Value;

/// Name and value of each fact; facts that the records do not contain are left out.
pub(crate) fn of(records: &[Record]) -> Vec<(&'static str, String)> {
    if records.is_empty() {
        return vec![("Runs", "none".to_owned())];
    }
    let mut facts = vec![("Runs", runs(records))];
    let axes = Axes::of(records);
    for axis in &axes.all {
        let what = if axis.role == Role::Constant { "Fixed" } else { "Varied" };
        facts.push((what, format!("{}: {}", axis.name, axis.labels.join(", "))));
    }
    let links = distinct(records.iter().flat_map(links_of));
    facts.extend(links.into_iter().map(|link| ("Link", link)));
    let transfers = distinct(records.iter().flat_map(|record| transfers(&record.plan)));
    facts.extend(transfers.into_iter().map(|transfer| ("Transfer", transfer)));
    facts.push(("When", when(records)));
    facts.push(("Versions", versions(records)));
    facts.push(("Machine", machine(records)));
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

fn runs(records: &[Record]) -> String {
    let cells = distinct(records.iter().map(|record| format!("{:?}", record.cell))).len();
    let seeds = distinct(
        records.iter().filter(|it| Runner::of(it).runs_plans()).map(|it| it.seed.to_string()),
    );
    if seeds.is_empty() {
        return count(records.len(), "measurement");
    }
    let seeds = if seeds.len() == 1 {
        format!("seed {}", seeds[0])
    } else {
        format!("seeds {}", seeds.join(", "))
    };
    let runs = count(records.len(), "run");
    if cells == records.len() {
        format!("{runs}, one for each cell of the experiment, {seeds}")
    } else {
        format!("{runs} in {}, {seeds}", count(cells, "cell"))
    }
}

/// One line per link with a limit, from a resolved plan; none from a plan of another form.
fn links(plan: &Value) -> Vec<String> {
    links_with(plan, &["rate", "delay", "queue"])
}

/// The same for a record. The queue of a measured link is not known.
pub(crate) fn links_of(record: &Record) -> Vec<String> {
    if Runner::of(record).runs_plans() {
        links(&record.plan)
    } else {
        links_with(&record.plan, &["rate", "delay"])
    }
}

fn links_with(plan: &Value, keys: &[&str]) -> Vec<String> {
    let links = plan.get("links").and_then(Value::as_array);
    links
        .into_iter()
        .flatten()
        .filter_map(|link| {
            let name = link.get("name")?.as_str()?;
            let [first, second] = &link.get("between")?.as_array()?[..] else { return None };
            let (down, up) = (direction(link.get("down")?, keys), direction(link.get("up")?, keys));
            let ways = if down == up {
                format!("each way {down}")
            } else {
                format!("down {down}; up {up}")
            };
            Some(format!("{name}, {} – {}: {ways}", first.as_str()?, second.as_str()?))
        })
        .collect()
}

/// The values of `keys` in one direction, where each is a single value.
fn direction(plan: &Value, keys: &[&str]) -> String {
    let one = |key: &str| match plan.get(key) {
        Some(Value::String(value)) => Some(value.clone()),
        Some(Value::Object(_) | Value::Array(_)) => Some(format!("{key} that varies")),
        _ => None,
    };
    let shown = |key: &&str| match (*key, one(key)?) {
        ("queue", queue) => Some(format!("queue {queue}")),
        (_, value) => Some(value),
    };
    keys.iter().filter_map(shown).collect::<Vec<_>>().join(", ")
}

/// One line per transfer of a resolved plan.
fn transfers(plan: &Value) -> Vec<String> {
    let transfers = plan.get("transfers").and_then(Value::as_array);
    transfers
        .into_iter()
        .flatten()
        .filter_map(|transfer| {
            let name = transfer.get("name")?.as_str()?;
            let (from, to) = (transfer.get("from")?.as_str()?, transfer.get("to")?.as_str()?);
            let work = transfer.get("work")?;
            let text = |key: &str| work.get(key).and_then(Value::as_str);
            let flows = work.get("flows").and_then(Value::as_u64).unwrap_or(1);
            let what = match work.get("kind")?.as_str()? {
                "objects" => {
                    let sizes = work.get("sizes")?.as_array()?;
                    let bytes: u64 = sizes
                        .iter()
                        .filter_map(|size| size.as_str()?.parse::<midhop_units::Bytes>().ok())
                        .map(midhop_units::Bytes::get)
                        .sum();
                    let bytes = midhop_units::Bytes::new(bytes);
                    format!("a page of {} with {bytes} together", count(sizes.len(), "object"))
                }
                "bytes" if flows > 1 => format!("{} on each of {flows} connections", text("each")?),
                "bytes" => text("each")?.to_owned(),
                "time" if flows > 1 => {
                    format!("{flows} connections at once for {}", text("span")?)
                }
                "time" => format!("one connection for {}", text("span")?),
                _ => return None,
            };
            Some(format!("{name}: {what}, from {from} to {to}"))
        })
        .collect()
}

fn when(records: &[Record]) -> String {
    // A meter does not report when it ran.
    let environments =
        || records.iter().map(|record| &record.environment).filter(|it| it.started_unix_s > 0);
    if environments().next().is_none() {
        return String::new();
    }
    let first = environments().map(|environment| environment.started_unix_s).min().unwrap_or(0);
    let last = environments()
        .map(|environment| {
            environment.started_unix_s.saturating_add(environment.took.as_s_f64().ceil() as u64)
        })
        .max()
        .unwrap_or(0);
    format!("{}, {} s from the first run's start to the last one's end", utc(first), last - first)
}

/// Each part with its version; several where runs differ. The hash of a plan, which is among them,
/// is each run's own.
fn versions(records: &[Record]) -> String {
    let parts =
        distinct(records.iter().flat_map(|record| record.environment.versions.keys().cloned()));
    let versions = parts.iter().filter(|part| *part != "plan").map(|part| {
        let found = records.iter().filter_map(|record| record.environment.versions.get(part));
        format!("{part} {}", distinct(found.cloned()).join(" and "))
    });
    versions.collect::<Vec<_>>().join(", ")
}

/// The machine that ran the plans; it is not known for runs without a plan.
fn machine(records: &[Record]) -> String {
    let planned = || records.iter().filter(|record| Runner::of(record).runs_plans());
    if planned().next().is_none() {
        return String::new();
    }
    let environments = || planned().map(|record| &record.environment);
    let processors = distinct(
        environments().map(|environment| count(environment.processors as usize, "processor")),
    );
    let runners = distinct(environments().map(|environment| {
        let privilege = if environment.privileged { "as root" } else { "without root" };
        match environment.runner.as_str() {
            "lab" => format!("real kernels on emulated links, {privilege}"),
            "sim" => "simulated".to_owned(),
            other => format!("{other}, {privilege}"),
        }
    }));
    let loads: Vec<f64> = environments().map(|environment| environment.load).collect();
    let low = loads.iter().copied().fold(f64::INFINITY, f64::min);
    let high = loads.iter().copied().fold(0.0, f64::max);
    format!(
        "{}; {}, load average {low:.1} to {high:.1}",
        runners.join(" / "),
        processors.join(" / ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;

    #[test]
    fn the_plan_of_the_demo_is_described_in_words() {
        let text = include_str!("../../../scenarios/geo-demo.toml");
        let plans = Scenario::parse("geo-demo.toml", text).and_then(|scenario| scenario.plans());
        let plans = plans.expect("the demo is a scenario");
        let plans: Vec<Value> =
            plans.iter().map(|plan| serde_json::to_value(plan).expect("JSON")).collect();
        let links = distinct(plans.iter().flat_map(links));
        let satellite: Vec<&String> =
            links.iter().filter(|link| link.starts_with("satellite, ")).collect();
        assert_eq!(satellite.len(), 1, "{links:?}");
        assert!(
            satellite[0].contains("terminal – gateway: down 20 Mbit/s, 295 ms, queue "),
            "{links:?}"
        );
        let transfers = distinct(plans.iter().flat_map(transfers));
        assert_eq!(
            transfers,
            [
                "page: a page of 7 objects with 4.955 MB together, from server to client",
                "file: 5 MB, from server to client",
                "flows: 4 connections at once for 15 s, from server to client",
            ]
        );
    }

    #[test]
    fn plans_of_other_shapes_are_passed_over() {
        for plan in [
            Value::Null,
            serde_json::json!({ "links": 3, "transfers": "none" }),
            serde_json::json!({ "links": [{ "name": "x", "between": ["a"] }], "transfers": [[]] }),
        ] {
            assert_eq!((links(&plan), transfers(&plan)), (Vec::new(), Vec::new()));
        }
    }
}
