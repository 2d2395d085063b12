//! Relays side by side on one path: nothing, the least possible, HAProxy, Envoy, midhopd; and pairs of
//! relays with a tunnel between them: quic-go's, midhopd's.
//!
//! Four namespaces joined by plain veth pairs (client – terminal – gateway – server), the relay on the
//! gateway, of a pair one on the terminal too, all of them intercepting transparently where they can.
//! Each has to carry 20 MB both ways, compared byte by byte, before it is measured. Every round takes the relays in
//! turn, so that a busy minute of the machine hits all of them; the table shows each one's best round
//! and midhopd's ratio to the best of the others. What a relay costs is the processor time of its own
//! processes, of a pair both together: work that the kernel books on soft interrupts is not in it, for none of them.
//!
//! `make bench-relay`, or `cargo bench -p midhop-testbed --bench relay -- --help`.

mod cost;
mod figures;
mod floor;
mod load;
mod pairs;
mod path;
mod relays;

use figures::Figures;
use load::{Direction, Load};
use relays::Relay;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "\
usage: relay [--seconds S] [--rounds N] [--flows N] [--tunnel-flows N] [--idle N] [--relays a,b,…]
             [--loads a,b,…] [--out DIR]
  loads: bulk, single, pings, idle, sequence, connections (single and sequence: pairs only)
  relays: direct, floor, haproxy, envoy, midhopd, quic-go-pair, midhopd-pair (those not installed are
  skipped, and it says so)
  midhopd is taken from $MIDHOPD, else from PATH; Envoy from $ENVOY, else from PATH; quic-go's relay
  is built with the Go that is installed";

struct Options {
    seconds: Duration,
    rounds: u32,
    flows: u32,
    tunnel_flows: u32,
    idle: u32,
    relays: Vec<Relay>,
    loads: Vec<Load>,
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(floor::FLAG) {
        let Err(error) = floor::run(relays::RELAY_PORT) else { return ExitCode::SUCCESS };
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
        relays: Relay::ALL.to_vec(),
        loads: Load::ALL.to_vec(),
        out: None,
    };
    let mut arguments = arguments;
    while let Some(flag) = arguments.next() {
        // Cargo hands `--bench` to every bench.
        if flag == "--bench" {
            continue;
        }
        if flag == "--help" || flag == "-h" {
            return Ok(None);
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

/// Each of a list of names.
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
    for round in 1..=options.rounds {
        for (relay, best) in &mut figures {
            // Memory at rest does not vary from round to round; once is enough.
            let idle = if round == 1 { options.idle } else { 0 };
            let measured = measure(*relay, &options, idle)?;
            eprintln!("round {round} of {}: {}: {measured}", options.rounds, relay.name());
            best.keep_best(&measured);
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
    Ok(())
}

/// One relay on a fresh path: every load once.
fn measure(relay: Relay, options: &Options, idle: u32) -> Result<Figures> {
    let path = path::Path::build()?;
    let processes = relay.start(&path)?;
    let server = load::Server::start(&path)?;
    // The first connections pay for what is set up lazily; they are nobody's figure.
    load::whole(&path).map_err(|error| format!("{}: {error}", relay.name()))?;
    let mut figures = Figures::default();
    // The short connections come last: their ports stay taken for a minute.
    let wanted = |load: &Load| options.loads.contains(load) && relay.takes(*load);
    for load in Load::ALL.into_iter().filter(wanted) {
        match load {
            Load::Bulk | Load::Single => {
                let flows = if load == Load::Bulk { relay.flows(options) } else { 1 };
                let bulk = |direction| {
                    processes.cost_of(|| load::bulk(&path, direction, flows, options.seconds))
                };
                let (down, up) = (bulk(Direction::Down)?, bulk(Direction::Up)?);
                match load {
                    Load::Bulk => figures.take_bulk(&down, &up),
                    _ => figures.take_single(&down, &up),
                }
            }
            Load::Pings => figures.take_round_trip(load::ping_pong(&path, 20_000)?),
            Load::Idle => {
                figures.idle_flow_bytes =
                    processes.memory_per_flow(|| load::hold_idle(&path, idle))?;
            }
            Load::Sequence => {
                let work = || load::sequence(&path, options.seconds);
                figures.take_sequence(&processes.cost_of(work)?);
            }
            Load::Connections => {
                let work = || load::connections(&path, options.seconds);
                figures.take_connections(&processes.cost_of(work)?);
            }
        }
    }
    drop(server);
    Ok(figures)
}
