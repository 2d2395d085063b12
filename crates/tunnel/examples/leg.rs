//! How a leg is filled, cell by cell: `cargo run --release -p midhop-tunnel --example leg`; what repairs
//! below QUIC gain and cost: the same with `-- repairs`.

#[path = "../tests/tunnel/pair/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod pair;
#[path = "../tests/tunnel/way/mod.rs"]
mod way;

use midhop_congestion::Algorithm;
use midhop_tunnel::fec;
use midhop_units::{Duration, Rate};
use pair::{Cell, Pair};
use way::{Faults, Way, left_by_a_block};

const LOSSES: [(&str, &str); 5] = [
    ("0", "\"0 %\""),
    ("0.1 %", "\"0.1 %\""),
    ("1 %", "\"1 %\""),
    ("5 %", "\"5 %\""),
    ("GE 2 %", "{ mean = \"2 %\", burst = \"10 packets\" }"),
];
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::KnownRate,
    Algorithm::HyblaPlus,
    Algorithm::Cubic,
    Algorithm::Bbr,
    Algorithm::BbrV3,
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.iter().any(|word| word == "repairs") {
        objects();
        return residue();
    }
    println!(
        "{:>8} {:>7} {:<11} {:>10} {:>10} {:>7} {:>9} {:>9} {:>7} {:>8} {:>7}",
        "Mbit/s",
        "loss",
        "control",
        "first 10 s",
        "steady",
        "of lim",
        "queue",
        "queue max",
        "resent",
        "acks/s",
        "held MB"
    );
    for rate in [20, 140] {
        for (name, loss) in LOSSES {
            for algorithm in ALGORITHMS {
                let text = format!("{rate} {name} {algorithm}");
                if !wanted.iter().all(|word| text.contains(word.as_str())) {
                    continue;
                }
                let mut cell = Cell::new(rate, loss, algorithm);
                if rate == 140 {
                    cell.queue = "\"36 MB\"".to_owned();
                }
                row(&cell, name);
            }
        }
    }
}

fn row(cell: &Cell, loss: &str) {
    let mut pair = Pair::connected(cell);
    pair.ask(1 << 40);
    let first = pair.goodput(Duration::from_s(10));
    pair.stood();
    let before = pair.server.stats();
    let steady = pair.goodput(Duration::from_s(20));
    let (stood, stats) = (pair.stood(), pair.server.stats());
    let bdp = cell.bdp().get() as f64;
    let sent = stats.sent - before.sent;
    let resent = stats.lost - before.lost;
    println!(
        "{:>8} {:>7} {:<11} {:>10.2} {:>10.2} {:>7.3} {:>9.3} {:>9.3} {:>6.2}% {:>8.1} {:>7.2}",
        cell.rate.mbit_per_s(),
        loss,
        cell.algorithm.to_string(),
        first.mbit_per_s(),
        steady.mbit_per_s(),
        steady.mbit_per_s() / cell.limit().mbit_per_s(),
        stood.mean() / bdp,
        stood.max as f64 / bdp,
        100.0 * resent as f64 / sent as f64,
        (stats.received - before.received) as f64 / 20.0,
        pair.client.held_max as f64 / 1e6,
    );
}

/// Objects of three sizes, one every two seconds, with and without repairs: mean and 95th percentile.
fn objects() {
    println!(
        "{:>6} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>14} {:>14} {:>14}",
        "Mbit/s",
        "loss",
        "repairs",
        "of limit",
        "overhead",
        "residue",
        "held MB",
        "10 kB ms",
        "100 kB ms",
        "1 MB ms"
    );
    for (rate, rtt_ms, return_kbit) in [(20, 600, 5000), (2, 500, 500)] {
        for (name, loss) in LOSSES {
            for fec in [false, true] {
                let mut cell = Cell::new(rate, loss, Algorithm::KnownRate);
                (cell.fec, cell.rtt) = (fec, Duration::from_ms(rtt_ms));
                cell.return_rate = Rate::from_bits_per_s(return_kbit * 1000);
                let mut pair = Pair::connected(&cell);
                pair.ask(1 << 40);
                pair.run_for(Duration::from_s(5));
                let before = pair.server.stats().repairs;
                let goodput = pair.goodput(Duration::from_s(60));
                let stats = pair.server.stats().repairs;
                let (now, then) = (stats.reported, before.reported);
                let left = (now.lost - then.lost) as f64 - (now.repaired - then.repaired) as f64;
                let extra = stats.extra_bytes_sent - before.extra_bytes_sent;
                let own = (stats.source_bytes_sent - before.source_bytes_sent).max(1);
                print!(
                    "{rate:>6} {name:>7} {:>7} {:>8.3} {:>7.2}% {:>7.3}% {:>8.2}",
                    if fec { "yes" } else { "no" },
                    goodput.mbit_per_s() / cell.limit().mbit_per_s(),
                    100.0 * extra as f64 / own as f64,
                    100.0 * left.max(0.0) / f64::from(now.judged - then.judged).max(1.0),
                    pair.client.held_max as f64 / 1e6,
                );
                for size in [10_000, 100_000, 1_000_000] {
                    let (mean, most) = fetches(&cell, size);
                    print!(" {mean:>7.0} {most:>6.0}");
                }
                println!();
            }
        }
    }
}

fn fetches(cell: &Cell, size: u64) -> (f64, f64) {
    let mut took = Vec::new();
    for seed in 1..=4 {
        let mut cell = cell.clone();
        cell.seed = seed;
        let mut pair = Pair::connected(&cell);
        // The shim has to see losses before it repairs any.
        pair.fetch(3_000_000, Duration::from_s(10_000));
        for _ in 0..50 {
            pair.run_for(Duration::from_s(2));
            let object = pair.fetch(size, Duration::from_s(10_000));
            took.push(object.map_or(f64::INFINITY, Duration::as_ms_f64));
        }
    }
    took.sort_by(f64::total_cmp);
    (took.iter().sum::<f64>() / took.len() as f64, took[took.len() * 95 / 100])
}

/// What repairs leave of random losses at 20 Mbit/s, beside the best blocks of 128 with as many repairs.
fn residue() {
    println!("\n{:>8} {:>8} {:>10} {:>10}", "loss", "repairs", "residue", "blocks");
    for loss in [0.0005, 0.001, 0.01, 0.02, 0.05] {
        let rate = Some(Rate::from_mbit_per_s(20));
        let faults = Faults { loss, ..Faults::default() };
        let mut way = Way::new(&fec::FecSettings::default(), rate, faults, 1);
        let mut send = |count: u64| {
            way.delivered.clear();
            (0..count).for_each(|_| way.send(&[0x40; 100]));
            way.run_for(Duration::from_s(2));
            let repairs = way.near.stats().repairs_sent as f64;
            (way.delivered.len() as f64, repairs)
        };
        let (_, before) = send(50_000);
        let (come, after) = send(500_000);
        let ratio = (after - before) / 500_000.0;
        println!(
            "{loss:>8} {:>7.2}% {:>10.1e} {:>10.1e}",
            100.0 * ratio,
            1.0 - come / 500_000.0,
            left_by_a_block(128, (128.0 * ratio).round() as u32, loss),
        );
    }
}
