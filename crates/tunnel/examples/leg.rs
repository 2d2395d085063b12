//! How a leg is filled, cell by cell: `cargo run --release -p midhop-tunnel --example leg`.

#[path = "../tests/pair/mod.rs"]
mod pair;

use midhop_congestion::Algorithm;
use midhop_units::Duration;
use pair::{Cell, Pair};

const LOSSES: [(&str, &str); 5] = [
    ("0", "\"0 %\""),
    ("0.1 %", "\"0.1 %\""),
    ("1 %", "\"1 %\""),
    ("5 %", "\"5 %\""),
    ("GE 2 %", "{ mean = \"2 %\", burst = \"10 packets\" }"),
];
const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::KnownRate, Algorithm::Hybla, Algorithm::Cubic, Algorithm::Bbr, Algorithm::BbrV3];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
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
    let sent = stats.udp_tx.bytes - before.udp_tx.bytes;
    let resent = stats.path.lost_bytes - before.path.lost_bytes;
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
        (stats.udp_rx.datagrams - before.udp_rx.datagrams) as f64 / 20.0,
        pair.client.held_max as f64 / 1e6,
    );
}
