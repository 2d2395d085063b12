//! Registers every algorithm and keeps them until standard input ends, for trying them with any
//! program: `register </dev/zero`, then `iperf3 -C midhop_hybla04 …` elsewhere.

use midhop_bpf::{Algorithm, LoadError, Loaded, Parameters, ensure};
use std::io;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let loaded = Algorithm::ALL
        .into_iter()
        .map(|algorithm| ensure(algorithm, &Parameters::default()))
        .collect::<Result<Vec<Loaded>, LoadError>>()?;
    for one in &loaded {
        println!("{} is {}", one.algorithm(), one.kernel_name());
    }
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
