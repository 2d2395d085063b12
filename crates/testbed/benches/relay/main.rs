//! Compares relays on one path: none, the minimal one, HAProxy, Envoy, midhopd; and pairs of relays
//! with a tunnel between them: quic-go's, midhopd's.
//!
//! Four namespaces joined by plain veth pairs (client – terminal – gateway – server). The relay is
//! on the gateway; a pair has its other relay on the terminal. All intercept transparently where
//! they can. Each has to carry 20 MB both ways, compared byte by byte, before it is measured. Every
//! round runs all relays in turn, so that a busy minute of the machine affects all of them. The
//! table shows the best round of each, and midhopd's ratio to the best of the others. The cost of a
//! relay is the processor time of its own processes and their descendants, of both ends for a pair.
//! Work that the kernel accounts to soft interrupts is not included for any of them.
//!
//! What a load counted must have crossed the relay that its row names. The kernel's counters and
//! midhopd's own are read each time (`witness`). A relay that fails, or that bytes went past, is
//! named at the end, and the bench fails; the others are measured nevertheless. All processes end
//! with it.
//!
//! `make bench-relay`, or `cargo bench -p midhop-testbed --bench relay -- --help`.

mod cost;
mod figures;
mod floor;
mod load;
mod pairs;
mod path;
mod relays;
mod witness;

use figures::{Costed, Figures};
use load::{Direction, Load};
use relays::Relay;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use witness::Witness;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// One connection's exchanges for the median of a round trip.
const PINGS: usize = 20_000;
/// Exchanges for each handshake that is timed.
const PINGS_PER_HANDSHAKE: usize = 10;

const USAGE: &str = "\
usage: relay [--seconds S] [--rounds N] [--flows N] [--tunnel-flows N] [--idle N] [--relays a,b,…]
             [--loads a,b,…] [--out DIR] [--guard] [--short]
  loads: bulk, single, pings, handshakes, idle, sequence, connections (single and sequence: pairs only)
  --guard: under an administrator's rules that track connections
  --short: everything once, for moments; its figures say nothing but that the bench works
  relays: direct, floor, held-floor, haproxy, envoy, midhopd, before (an older midhopd,
  $MIDHOPD_BEFORE), after-connect (midhopd as it comes), quic-go-pair, midhopd-pair,
  plain-pair (whose flows end with their tunnel), before-pair (those not installed are
  skipped, and it says so)
  midhopd is taken from $MIDHOPD, else from PATH; Envoy from $ENVOY, else from PATH; quic-go's relay
  is built with the Go that is installed";

struct Options {
    seconds: Duration,
    rounds: u32,
    flows: u32,
    tunnel_flows: u32,
    idle: u32,
    pings: usize,
    guard: bool,
    relays: Vec<Relay>,
    loads: Vec<Load>,
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(floor::FLAG) {
        let held = std::env::args().nth(2).as_deref() == Some(floor::HELD);
        let Err(error) = floor::run(relays::RELAY_PORT, held) else { return ExitCode::SUCCESS };
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("error: {message}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(
    arguments: impl Iterator<Item = String>,
) -> std::result::Result<Option<Options>, String> {
    let mut options = Options {
        seconds: Duration::from_secs(4),
        rounds: 3,
        flows: 4,
        tunnel_flows: 32,
        idle: 10_000,
        pings: PINGS,
        guard: false,
        relays: Relay::ALL.to_vec(),
        loads: Load::ALL.to_vec(),
        out: None,
    };
    let mut arguments = arguments;
    while let Some(flag) = arguments.next() {
        // Cargo passes `--bench` to every bench.
        if flag == "--bench" {
            continue;
        }
        if flag == "--help" || flag == "-h" {
            return Ok(None);
        }
        if flag == "--guard" {
            options.guard = true;
            continue;
        }
        if flag == "--short" {
            options.seconds = Duration::from_millis(300);
            (options.rounds, options.tunnel_flows, options.idle) = (1, 8, 300);
            options.pings = PINGS / 20;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse::<u32>().map_err(|_| format!("{flag}: {value} is no number"));
        match flag.as_str() {
            "--seconds" => options.seconds = Duration::from_secs(number()?.max(1).into()),
            "--rounds" => options.rounds = number()?.max(1),
            "--flows" => options.flows = number()?.max(1),
            "--tunnel-flows" => options.tunnel_flows = number()?.max(1),
            "--idle" => options.idle = number()?,
            "--out" => options.out = Some(value.into()),
            "--relays" => options.relays = named(&value, "relay", Relay::named)?,
            "--loads" => options.loads = named(&value, "load", Load::named)?,
            _ => return Err(format!("unknown option {flag}")),
        }
    }
    Ok(Some(options))
}

/// Looks up each name of a list.
fn named<T>(
    list: &str,
    kind: &str,
    find: fn(&str) -> Option<T>,
) -> std::result::Result<Vec<T>, String> {
    list.split(',').map(|name| find(name).ok_or_else(|| format!("no {kind} {name}"))).collect()
}

fn run(mut options: Options) -> Result<()> {
    let flows_max = cost::raise_descriptor_limit()?;
    if options.idle > flows_max {
        eprintln!("open files are limited: {flows_max} idle flows instead of {}", options.idle);
        options.idle = flows_max;
    }
    let load = cost::load_average();
    let mut figures: Vec<(Relay, Figures)> = Vec::new();
    for relay in &options.relays {
        match relay.version() {
            Ok(version) => {
                eprintln!("{}: {version}", relay.name());
                figures.push((*relay, Figures::default()));
            }
            Err(why) => eprintln!("skipped: {}: {why}; hint: {}", relay.name(), relay.hint()),
        }
    }
    let mut faults = Vec::new();
    for round in 1..=options.rounds {
        for (relay, best) in &mut figures {
            // Memory at rest does not vary from round to round; once is enough.
            let idle = if round == 1 { options.idle } else { 0 };
            let turn = format!("round {round} of {}: {}", options.rounds, relay.name());
            match measure(*relay, &options, idle) {
                Ok(measured) => {
                    eprintln!("{turn}: {measured}");
                    best.keep_best(&measured);
                }
                Err(error) => {
                    eprintln!("error: {turn}: {error}");
                    faults.push(format!("{turn}: {error}"));
                }
            }
        }
    }
    let (pairs, alone): (Vec<_>, Vec<_>) =
        figures.iter().cloned().partition(|(relay, _)| relay.is_pair());
    println!("best round of each; idle: {} flows", options.idle);
    for (some, ours) in [(alone, Relay::Midhopd), (pairs, Relay::Pair)] {
        if !some.is_empty() {
            println!("\nbulk: {} flows", ours.flows(&options));
            println!("{}", figures::table(&some, ours));
        }
    }
    println!("load average when it began: {load:.2}");
    if let Some(folder) = &options.out {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("relay.json"), figures::json(&figures, load)?)?;
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// One relay on a fresh path: every load once, each of them proved by the witnesses.
fn measure(relay: Relay, options: &Options, idle: u32) -> Result<Figures> {
    let path = path::Path::build()?;
    if options.guard {
        relays::guard(&path.gateway, relay)?;
    }
    let processes = relay.start(&path)?;
    let server = load::Server::start(&path)?;
    let witness = Witness { relay, path: &path };
    let proved = |load: &str, work: &mut dyn FnMut() -> Result<Costed>| -> Result<Costed> {
        let before = witness.sample()?;
        let done = work().map_err(|error| format!("{load}: {error}"))?;
        witness.check(&before, &done.work).map_err(|error| format!("{load}: {error}"))?;
        if relay.has_counters() && done.work.stuck > 0 {
            return Err(format!("{load}: {} connections are stuck", done.work.stuck).into());
        }
        Ok(done)
    };
    let timed =
        |load: &str, work: &dyn Fn() -> Result<(load::Work, Duration)>| -> Result<Duration> {
            let mut median = Duration::ZERO;
            proved(load, &mut || {
                processes.cost_of(|| {
                    let (done, took) = work()?;
                    median = took;
                    Ok(done)
                })
            })?;
            Ok(median)
        };
    // The first connections pay for what is set up lazily; they are not measured.
    proved("whole", &mut || processes.cost_of(|| load::whole(&path)))?;
    let mut figures = Figures::default();
    // The short connections come last: their ports stay taken for a minute.
    let wanted = |load: &Load| options.loads.contains(load) && relay.takes(*load);
    for load in Load::ALL.into_iter().filter(wanted) {
        let seconds = options.seconds;
        match load {
            Load::Bulk | Load::Single => {
                let flows = if load == Load::Bulk { relay.flows(options) } else { 1 };
                let bulk = |name, direction| {
                    proved(name, &mut || {
                        processes.cost_of(|| load::bulk(witness, direction, flows, seconds))
                    })
                };
                let (down, up) = (bulk("down", Direction::Down)?, bulk("up", Direction::Up)?);
                match load {
                    Load::Bulk => figures.take_bulk(&down, &up),
                    _ => figures.take_single(&down, &up),
                }
            }
            Load::Pings => {
                let median = timed("pings", &|| load::ping_pong(&path, options.pings))?;
                figures.take_round_trip(median);
            }
            Load::Handshakes => {
                let times = options.pings / PINGS_PER_HANDSHAKE;
                let median = timed("handshakes", &|| load::handshakes(&path, times))?;
                figures.take_handshake(median);
            }
            Load::Idle => {
                figures.idle_flow_bytes =
                    processes.memory_per_flow(|| load::hold_idle(&path, idle))?;
            }
            Load::Sequence => {
                let sequence = || load::sequence(&path, seconds);
                let done = proved("sequence", &mut || processes.cost_of(sequence))?;
                figures.take_sequence(&done);
            }
            Load::Connections => {
                let connections = || load::connections(&path, seconds);
                let done = proved("connections", &mut || processes.cost_of(connections))?;
                figures.take_connections(&done);
            }
        }
    }
    drop(server);
    Ok(figures)
}
