//! How fast the simulator is, and how much memory it takes: link-packets (packets times the links that
//! each was handed to) per second of one processor, and the peak of the process; beside it ns-3 on
//! the same networks.
//!
//! ```text
//! cargo bench -p midhop-sim                 all cases
//! cargo bench -p midhop-sim -- geo          those with this in their name
//! make bench-sim                            with ns-3 beside
//! ```
//! Each case runs in a process of its own, so that its peak of memory is its own. Times are processor
//! time as the kernel counts it, the least of some repetitions: other load on the machine shows only
//! through caches and through what two threads of a core share. The variable `NS3_CHAIN` names the
//! program that runs ns-3 (`benches/ns3/chain.cc`); without it there is nothing beside.
#![allow(clippy::disallowed_methods, reason = "a bench reads the clocks and files of its machine")]
#![allow(clippy::expect_used, reason = "a bench may give up")]

mod cases;

use cases::Case;
use midhop_sim::{Options, run};
use std::process::{Command, Stdio};

/// What one run took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    link_packets: f64,
    cpu_s: f64,
    events: f64,
    peak_bytes: f64,
    packets_most: f64,
    goodput_mbit_s: f64,
    /// Goodput as a part of what the path allows.
    efficiency: f64,
}

impl Cost {
    fn per_cpu_s(&self) -> f64 {
        self.link_packets / self.cpu_s
    }

    fn row(&self) -> [f64; 7] {
        let Self { link_packets, cpu_s, events, .. } = *self;
        let Self { peak_bytes, packets_most, goodput_mbit_s, efficiency, .. } = *self;
        [link_packets, cpu_s, events, peak_bytes, packets_most, goodput_mbit_s, efficiency]
    }

    fn of_row(row: [f64; 7]) -> Self {
        let [link_packets, cpu_s, events, peak_bytes, packets_most, goodput_mbit_s, efficiency] =
            row;
        Self { link_packets, cpu_s, events, peak_bytes, packets_most, goodput_mbit_s, efficiency }
    }
}

/// Processor time of this thread. Unit: seconds.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
    ns.expect("the first field is the time on a processor") / 1e9
}

/// The process' peak of memory. Unit: bytes.
fn peak_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    kib * 1024.0
}

/// The machine's load over the last minute, and how many processors it has.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").expect("Linux tells it");
    let load = text.split_whitespace().next().unwrap_or("?").to_owned();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("load {load} on {processors} processors")
}

/// Runs a case in this process.
fn measure(case: &Case) -> Cost {
    let plan = case.plan();
    let before_bytes = peak_bytes();
    let before = cpu_s();
    let (record, effort) = run(&plan, &Options::default()).expect("runs");
    let cpu_s = cpu_s() - before;
    let transfer = &record.transfers[0];
    Cost {
        link_packets: effort.link_packets as f64,
        cpu_s,
        events: effort.events as f64,
        peak_bytes: peak_bytes() - before_bytes,
        packets_most: effort.packets_most as f64,
        goodput_mbit_s: transfer.goodput.mbit_per_s(),
        efficiency: transfer.limit.as_ref().map_or(f64::NAN, |limit| limit.efficiency),
    }
}

/// Runs a program that prints numbers.
fn numbers<const N: usize>(command: &mut Command) -> Option<[f64; N]> {
    let output = command.stderr(Stdio::inherit()).output().ok().filter(|it| it.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Runs a case in processes of its own, and takes the cheapest.
fn cheapest(case: &Case) -> Cost {
    let program = std::env::current_exe().expect("this program has a file");
    (0..case.repetitions)
        .map(|_| numbers(Command::new(&program).args(["one", &case.name])).map(Cost::of_row))
        .map(|cost| cost.unwrap_or_else(|| panic!("{}: did not run", case.name)))
        .min_by(|a, b| a.cpu_s.total_cmp(&b.cpu_s))
        .expect("at least one repetition")
}

/// Runs the same network in ns-3, and says how the two compare.
fn beside(case: &Case, ours: &Cost) {
    let Some(program) =
        std::env::var_os("NS3_CHAIN").filter(|it| !it.is_empty() && !case.peer.is_empty())
    else {
        return;
    };
    let Some([packets, cpu_s, goodput]) = numbers(Command::new(&program).args(&case.peer)) else {
        println!("{:<36} did not run", "  ns-3");
        return;
    };
    println!(
        "{:<36} {packets:>10} {cpu_s:>8.4} {:>8.3} {:>7} {:>7} {:>9} {goodput:>9.1}   ours is {:.0} times as fast",
        "  ns-3",
        packets / cpu_s / 1e6,
        "",
        "",
        "",
        ours.per_cpu_s() / (packets / cpu_s),
    );
}

fn main() {
    // `cargo test --benches` and `cargo bench` pass options of their own.
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let cases = cases::all();
    if let [one, name] = &words[..]
        && one == "one"
    {
        let cost = measure(cases.iter().find(|case| case.name == *name).expect("a case"));
        return println!("{}", cost.row().map(|number| number.to_string()).join(" "));
    }
    println!("{}", load());
    println!(
        "{:<36} {:>10} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9} {:>6}",
        "case", "link-pkts", "CPU s", "M/s", "events/", "MiB", "in flight", "Mbit/s", "limit"
    );
    for case in cases.iter().filter(|case| words.iter().all(|word| case.name.contains(word))) {
        let cost = cheapest(case);
        println!(
            "{:<36} {:>10} {:>8.4} {:>8.2} {:>7.2} {:>7.1} {:>9} {:>9.1} {:>6.2}",
            case.name,
            cost.link_packets,
            cost.cpu_s,
            cost.per_cpu_s() / 1e6,
            cost.events / cost.link_packets,
            cost.peak_bytes / 1024.0 / 1024.0,
            cost.packets_most,
            cost.goodput_mbit_s,
            cost.efficiency,
        );
        beside(case, &cost);
    }
    println!("{}", load());
}
