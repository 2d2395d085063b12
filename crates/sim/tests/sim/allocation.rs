//! No event allocates memory once everything has grown to its size.
//!
//! The allocations that remain in a steady state come from growth that ends: a window's records
//! double until they hold the largest window, curves double until they are as long as the run. They
//! are so few compared with the events that their number shows whether any event allocates.

use crate::scenes;
use midhop_sim::{Options, run};
use midhop_testkit::allocations::{Counting, so_far};
use std::cell::RefCell;

#[global_allocator]
static COUNTING: Counting = Counting;

const FLOWS: &str = r#"
[peps.gw]
legs.satellite = { congestion = "hybla-plus" }
[peps.shared]
legs.satellite = { congestion = "cubic", rate = "10 Mbit/s", rtt = "50 ms", share = true }
[transfers.file]
from = "server"
to = "client"
seconds = 30
"#;
/// Narrow and short, so that the steady state comes soon.
const SHORT: [&str; 4] = [
    "links.satellite.rate=10 Mbit/s",
    "links.satellite.delay=20 ms",
    "links.satellite.queue=40 packets",
    "links.internet.delay=5 ms",
];

/// Events between two checks of whether to stop.
const EVENTS_BETWEEN_LOOKS: u64 = 1 << 14;

/// Allocations between two checks, which are a fixed number of events apart, in the second half of
/// a run.
///
/// The counts are read when the run checks whether to stop.
fn allocations(set: &[&str]) -> (u64, usize) {
    let plan = scenes::plan(FLOWS, &[&SHORT, set].concat());
    let counts = RefCell::new(Vec::with_capacity(1 << 16));
    let look = || {
        counts.borrow_mut().push(so_far());
        false
    };
    let options = Options { interrupted: &look, ..Options::default() };
    let (_, effort) = run(&plan, &options).unwrap_or_else(|error| panic!("{error}"));
    let counts = counts.borrow();
    assert!(counts.len() >= 4, "{set:?}: {effort:?} is too short to see anything");
    let middle = counts.len() / 2;
    (counts[counts.len() - 1] - counts[middle], counts.len() - 1 - middle)
}

#[test]
fn no_event_is_allocated_for() {
    for set in [
        &[][..],
        &["links.satellite.down.loss=0.001"],
        &["transfers.file.flows=8", "links.satellite.loss=0.01"],
        &["nodes.gateway.pep=gw", "links.satellite.down.loss=0.001"],
        &["nodes.gateway.pep=shared", "transfers.file.flows=8"],
        &["nodes.gateway.pep=gw", "nodes.terminal.pep=gw", "transfers.file.flows=5"],
    ] {
        let (allocations, looks) = allocations(set);
        println!("{set:?}: {allocations} allocations in {looks} looks");
        let events = looks as u64 * EVENTS_BETWEEN_LOOKS;
        assert!(allocations * 1000 < events, "{set:?}: {allocations} in {events} events");
    }
}
