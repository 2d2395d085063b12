//! The speed and the memory of the simulator: link-packets (packets times the links that each was
//! handed to) per second of one processor, and the peak memory of the process. ns-3 on the same
//! networks and the goal are shown beside them.
//!
//! ```text
//! make bench-sim                            all of it, with ns-3 beside
//! cargo bench -p midhop-sim                 without
//! cargo bench -p midhop-sim -- --short      every case for a moment: whether it runs, not how fast
//! ```
//! Each case runs in a process of its own, for its own peak of memory. Times are processor time as
//! the kernel counts it, the minimum of several repetitions: other load on the machine has an
//! effect only through caches and through what two threads of a core share. The variable
//! `NS3_CHAIN` names the program that runs ns-3 (`benches/ns3/chain.cc`); without it, ns-3 is left
//! out.
//!
//! The memory of an idle flow is all that it takes from its SYN to its line in the record: two
//! sockets with their congestion controls, the application's state, timers. The goal is for each of
//! its two ends, as a real host has only one of them.
//!
//! A missed goal is printed as missed, and does not make the bench fail: the speed of a machine
//! must not decide a test.
#![allow(clippy::disallowed_methods, reason = "a bench reads the clocks and files of its machine")]
#![allow(clippy::expect_used, reason = "a bench may give up")]

mod cases;

use cases::Case;
use midhop_sim::{Options, run};
use std::process::{Command, Stdio};

/// Link-packets per second of one processor that every case is to reach. Unit: million.
const SPEED_GOAL: f64 = 2.5;
/// Processor time of one run of the placement study. Unit: ms.
const PLACEMENT_GOAL_MS: f64 = 20.0;
/// Processor time and memory of 60 s over a geostationary satellite.
const GEO_GOAL_S: f64 = 2.0;
const GEO_GOAL_MIB: f64 = 64.0;
/// Memory of a flow that is open and idle, for each of its two ends, and of a packet under way.
const IDLE_GOAL_BYTES: f64 = 2048.0;
const PACKET_GOAL_BYTES: f64 = 200.0;
/// How much more a packet may cost with ten thousand flows than with ten, to count as linear.
const LINEAR_GOAL: f64 = 1.25;

/// The cost of one run.
#[derive(Debug, Clone, Copy)]
struct Cost {
    link_packets: f64,
    cpu_s: f64,
    events: f64,
    peak_bytes: f64,
    packets_most: f64,
    goodput_mbit_s: f64,
    /// Goodput relative to the path's limit.
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
    // The kernel accounts a thread's time when the thread leaves the processor, otherwise only at
    // the next tick, some milliseconds later.
    std::thread::yield_now();
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

/// Runs a case in several processes, and takes the lowest cost.
fn cheapest(case: &Case) -> Cost {
    let program = std::env::current_exe().expect("this program has a file");
    let form = cases::is_short().then_some("--short");
    (0..case.repetitions)
        .map(|_| Command::new(&program))
        .map(|mut one| numbers(one.args(["one", &case.name]).args(form)).map(Cost::of_row))
        .map(|cost| cost.unwrap_or_else(|| panic!("{}: did not run", case.name)))
        .min_by(|a, b| a.cpu_s.total_cmp(&b.cpu_s))
        .expect("at least one repetition")
}

/// The same network in ns-3. Unit: million link-packets per second of one processor.
fn beside(case: &Case) -> Option<f64> {
    let program = std::env::var_os("NS3_CHAIN").filter(|it| !it.is_empty())?;
    if case.peer.is_empty() {
        return None;
    }
    let [packets, cpu_s, _] = numbers(Command::new(&program).args(&case.peer))?;
    Some(packets / cpu_s / 1e6)
}

/// Whether a goal was reached.
fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

/// Measures the speed of cases, and of ns-3 for comparison; returns million link-packets per
/// processor second.
fn speeds(title: &str, cases: &[Case]) -> Vec<f64> {
    println!(
        "\n{title:<34} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}  goal M/s",
        "link-pkts", "in flight", "events/", "MiB", "M/s", "ns-3 M/s", "ratio"
    );
    let mut speeds = Vec::new();
    for case in cases {
        let cost = cheapest(case);
        let ours = cost.per_cpu_s() / 1e6;
        let (peer, ratio) = match beside(case) {
            Some(peer) => (format!("{peer:.4}"), format!("{:.0}x", ours / peer)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        println!(
            "{:<34} {:>9} {:>9} {:>8.2} {:>8.1} {ours:>8.2} {peer:>8} {ratio:>8}  {SPEED_GOAL} {}",
            case.name,
            cost.link_packets,
            cost.packets_most,
            cost.events / cost.link_packets,
            cost.peak_bytes / 1024.0 / 1024.0,
            verdict(ours >= SPEED_GOAL),
        );
        speeds.push(ours);
    }
    speeds
}

/// Prints a number and its goal, which is an upper bound.
fn row(what: &str, number: f64, unit: &str, goal: f64) {
    println!("{what:<60} {number:>9.2} {unit:<8} goal {goal} {}", verdict(number <= goal));
}

fn placement() {
    let (cells, refused) = cases::placement();
    println!("{refused} cells left out: they have tunnels, which only the laboratory runs");
    let mut costs: Vec<(f64, String)> =
        cells.into_iter().map(|case| (cheapest(&case).cpu_s * 1e3, case.name)).collect();
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(median), Some(worst)) = (costs.get(costs.len() / 2), costs.last()) else { return };
    row(&format!("{} cells, the median", costs.len()), median.0, "CPU ms", PLACEMENT_GOAL_MS);
    row(&format!("the worst, {}", worst.1), worst.0, "CPU ms", PLACEMENT_GOAL_MS);
}

fn memory() {
    let [(few, least), (many, most)] = cases::idle();
    let more = cheapest(&most).peak_bytes - cheapest(&least).peak_bytes;
    let flow = more / f64::from(many - few);
    row(
        &format!("an idle flow's end, of {flow:.0} for both"),
        flow / 2.0,
        "bytes",
        IDLE_GOAL_BYTES,
    );
    let [few, many] = cases::under_way().map(|case| cheapest(&case));
    let packets = many.packets_most - few.packets_most;
    if cases::is_short() {
        return; // Too short for either to fill its path.
    }
    let what = format!("a packet under way, of {packets} more");
    row(&what, (many.peak_bytes - few.peak_bytes) / packets, "bytes", PACKET_GOAL_BYTES);
}

fn main() {
    // `cargo test --benches` and `cargo bench` pass options of their own.
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    if let [one, name] = &words[..]
        && one == "one"
    {
        let cost = measure(&cases::find(name).expect("a case"));
        return println!("{}", cost.row().map(|number| number.to_string()).join(" "));
    }
    println!("{}", load());
    if cases::is_short() {
        println!("short form: it shows that every case runs; no figure below means anything");
    }
    speeds("one flow", &cases::speed());
    let by_flows = speeds("flows through one bottleneck", &cases::flows());
    if let [few, .., many] = by_flows[..] {
        row("a packet's cost with 10,000 flows over 10", few / many, "times", LINEAR_GOAL);
    }
    println!("\nruns");
    for case in cases::geo() {
        let cost = cheapest(&case);
        row(&case.name, cost.cpu_s, "CPU s", GEO_GOAL_S);
        row("", cost.peak_bytes / 1024.0 / 1024.0, "MiB", GEO_GOAL_MIB);
    }
    println!("\nplacement study, 30 s each");
    placement();
    println!("\nmemory");
    memory();
    println!("\n{}", load());
}
