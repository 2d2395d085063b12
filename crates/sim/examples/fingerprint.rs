//! Fingerprints of all results of runs, which show that a change inside the simulator does not
//! change its results.
//!
//! ```text
//! cargo run --release -p midhop-sim --example fingerprint -- FILE [STEP [SEED]] > before
//! ```
//! Prints, for every STEPth run of a scenario: its label, a fingerprint of its record, a
//! fingerprint of all that watchers saw (each packet on each hop with its headers and time, each
//! change of each sender), and its effort. A SEED replaces the scenario's. Two builds that behave
//! alike print the same.
#![allow(clippy::disallowed_methods, reason = "an example reads the files that it is told to")]
#![allow(clippy::expect_used, reason = "an example may give up")]

use midhop_experiment::Scenario;
use midhop_sim::watch::{Captures, QueueLines, SenderLines, Watcher};
use midhop_sim::{Options, run_watched};
use midhop_units::Seed;
use std::cell::Cell;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

/// FNV-1a over whatever is written.
#[derive(Clone)]
struct Fingerprint(Rc<Cell<u64>>);

impl Fingerprint {
    fn new() -> Self {
        Self(Rc::new(Cell::new(0xcbf2_9ce4_8422_2325)))
    }
}

impl Write for Fingerprint {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.0.set(bytes.iter().fold(self.0.get(), add));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, numbers @ ..] = &words[..] else { panic!("which scenario?") };
    let number = |at: usize| numbers.get(at).map(|text| text.parse::<u64>().expect("a number"));
    let text = std::fs::read_to_string(file).expect("a file that can be read");
    let mut scenario = Scenario::parse(file, &text).unwrap_or_else(|error| panic!("{error}"));
    let folder = Path::new(file).parent().expect("a file is in a folder");
    for name in scenario.files().unwrap_or_else(|error| panic!("{error}")) {
        let text = std::fs::read_to_string(folder.join(&name)).expect("a file that it names");
        scenario.supply(&name, text);
    }
    let plans = scenario.plans().unwrap_or_else(|error| panic!("{error}"));
    for mut plan in plans.into_iter().step_by(number(0).unwrap_or(1) as usize) {
        plan.seed = number(1).map_or(plan.seed, Seed);
        let seen = Fingerprint::new();
        let place = || -> Box<dyn Write> { Box::new(seen.clone()) };
        let captures = Captures::new(&plan, |_| Ok(place())).expect("nothing is written anywhere");
        let watchers: Vec<Box<dyn Watcher>> = vec![
            Box::new(captures),
            Box::new(SenderLines::new(place())),
            Box::new(QueueLines::new(place())),
        ];
        let label = plan.label();
        match run_watched(&plan, &Options::default(), watchers) {
            Ok((record, effort)) => {
                let mut sum = Fingerprint::new();
                let json = record.to_json().expect("a record has a form");
                sum.write_all(json.as_bytes()).expect("nothing is written anywhere");
                let (record, seen) = (sum.0.get(), seen.0.get());
                println!("{label}: record {record:016x} seen {seen:016x} {effort:?}");
            }
            Err(error) => println!("{label}: {error}"),
        }
    }
}
