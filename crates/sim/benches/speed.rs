//! How fast the simulator is, and how much memory it takes: link-packets (packets times the links that
//! each was handed to) per second of one processor, and the peak of the process.
//!
//! ```text
//! cargo bench -p midhop-sim                 all cases
//! cargo bench -p midhop-sim -- geo          those with this in their name
//! ```
//! Each case runs in a process of its own, so that its peak of memory is its own. Times are processor
//! time as the kernel counts it: other load on the machine does not show but through caches.
#![allow(clippy::disallowed_methods, reason = "a bench reads the clocks and files of its machine")]
#![allow(clippy::expect_used, reason = "a bench may give up")]

use midhop_experiment::{Plan, Scenario};
use midhop_sim::{Options, run};
use std::process::Command;

/// A case: its name, the scenario, and what is changed in it.
struct Case {
    name: String,
    text: String,
    set: Vec<String>,
}

/// So many links in a row, the last one narrow, and a transfer from one end to the other.
fn chain(links: usize, narrow: &str, other: &str, transfer: &str) -> String {
    let nodes: Vec<String> = (0..=links).map(|node| format!("n{node} = {{}}")).collect();
    let links: Vec<String> = (0..links)
        .map(|link| {
            let keys = if link == 0 { narrow } else { other };
            format!("[links.l{link}]\nbetween = [\"n{link}\", \"n{}\"]\n{keys}\n", link + 1)
        })
        .collect();
    format!(
        "title = \"speed\"\nduration = \"10 min\"\n[nodes]\n{}\n{}\n[transfers.t]\nfrom = \"n{}\"\n\
         to = \"n0\"\n{transfer}\n",
        nodes.join("\n"),
        links.join(""),
        links.len()
    )
}

fn cases() -> Vec<Case> {
    let case = |name: &str, text: String| Case { name: name.to_owned(), text, set: Vec::new() };
    let mut all = vec![
        case(
            "5 hops, small window",
            chain(
                5,
                "rate = \"10 Mbit/s\"\ndelay = \"2 ms\"",
                "rate = \"100 Mbit/s\"\ndelay = \"2 ms\"",
                "bytes = \"300 MB\"",
            ),
        ),
        case(
            "geo 140 Mbit/s, cubic",
            chain(
                1,
                "rate = \"140 Mbit/s\"\ndelay = \"300 ms\"\nqueue = \"1 BDP\"",
                "",
                "seconds = 60",
            ),
        ),
        case(
            "geo 140 Mbit/s, 5 hops, hybla",
            chain(
                5,
                "rate = \"140 Mbit/s\"\ndelay = \"280 ms\"\nqueue = \"1 BDP\"",
                "rate = \"1 Gbit/s\"\ndelay = \"5 ms\"",
                "seconds = 60\ncongestion = \"hybla\"",
            ),
        ),
        case(
            "geo 140 Mbit/s, 0.1 % lost, bbr",
            chain(
                1,
                "rate = \"140 Mbit/s\"\ndelay = \"300 ms\"\nqueue = \"1 BDP\"\nloss = 0.001",
                "",
                "seconds = 60\ncongestion = \"bbr\"",
            ),
        ),
    ];
    for flows in [10, 100, 1_000, 10_000] {
        all.push(case(
            &format!("{flows} flows"),
            chain(
                2,
                "rate = \"400 Mbit/s\"\ndelay = \"50 ms\"",
                "rate = \"10 Gbit/s\"\ndelay = \"1 ms\"",
                &format!("seconds = 20\nflows = {flows}"),
            ),
        ));
    }
    all
}

fn plan(case: &Case) -> Plan {
    let mut scenario = Scenario::parse("bench.toml", &case.text).expect("the bench's own text");
    case.set.iter().try_for_each(|set| scenario.set(set)).expect("the bench's own option");
    scenario.plans().expect("can be run").swap_remove(0)
}

/// Processor time of this thread. Unit: seconds.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
    ns.expect("the first field is the time on a processor") / 1e9
}

/// The process' peak of memory. Unit: MiB.
fn peak_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    kib / 1024.0
}

fn measure(case: &Case) {
    let plan = plan(case);
    let before_mib = peak_mib();
    let before = cpu_s();
    let (record, effort) = run(&plan, &Options::default()).expect("runs");
    let took = cpu_s() - before;
    let transfer = &record.transfers[0];
    println!(
        "{:<34} {:>10} {:>8.3} {:>8.2} {:>8.2} {:>7.1} {:>9} {:>10.1} {:>6.2}",
        case.name,
        effort.link_packets,
        took,
        effort.link_packets as f64 / took / 1e6,
        effort.events as f64 / effort.link_packets as f64,
        peak_mib() - before_mib,
        effort.packets_most,
        transfer.goodput.mbit_per_s(),
        transfer.limit.as_ref().map_or(0.0, |limit| limit.efficiency),
    );
}

fn main() {
    // `cargo test --benches` and `cargo bench` pass options of their own.
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let cases = cases();
    if let [one, name] = &words[..]
        && one == "one"
    {
        return measure(cases.iter().find(|case| case.name == *name).expect("a case"));
    }
    println!(
        "{:<34} {:>10} {:>8} {:>8} {:>8} {:>7} {:>9} {:>10} {:>6}",
        "case", "link-pkts", "CPU s", "M/s", "events/", "MiB", "in flight", "Mbit/s", "limit"
    );
    let program = std::env::current_exe().expect("this program has a file");
    for case in cases.iter().filter(|case| words.iter().all(|word| case.name.contains(word))) {
        let status = Command::new(&program).args(["one", &case.name]).status().expect("starts");
        assert!(status.success(), "{}: {status}", case.name);
    }
}
