//! No event costs a memory allocation once everything has grown to its size.
//!
//! What is left in a steady state is growth that ends: a window's records double until they hold the
//! largest window, curves double until they are as long as the run. So few allocations come with so
//! many events that their number says whether any event makes one.
#![expect(unsafe_code, reason = "counting allocations means being the allocator")]

use midhop_experiment::Scenario;
use midhop_sim::{Options, run};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract; the
// counter is a plain thread-local number that allocates nothing and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: `place` came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CHAIN: &str = r#"
title = "steady"
duration = "10 min"
[nodes]
client = {}
terminal = {}
gateway = {}
server = {}
[links.lan]
between = ["client", "terminal"]
rate = "100 Mbit/s"
delay = "1 ms"
[links.satellite]
between = ["terminal", "gateway"]
rate = "10 Mbit/s"
delay = "20 ms"
queue = "40 packets"
[links.internet]
between = ["gateway", "server"]
rate = "100 Mbit/s"
delay = "5 ms"
[peps.gw]
legs.satellite = { congestion = "hybla" }
[peps.shared]
legs.satellite = { congestion = "cubic", rate = "10 Mbit/s", rtt = "50 ms", share = true }
[transfers.file]
from = "server"
to = "client"
seconds = 30
"#;

/// Events that pass before a run asks again whether to stop.
const EVENTS_BETWEEN_LOOKS: u64 = 1 << 14;

/// Allocations between looks that are so many events apart, in the second half of a run.
///
/// The run asks now and then whether to stop, which is when the counts are read.
fn allocations(set: &[&str]) -> (u64, usize) {
    let mut scenario = Scenario::parse("steady.toml", CHAIN).expect("a scenario");
    for assignment in set {
        scenario.set(assignment).unwrap_or_else(|error| panic!("{error}"));
    }
    let plan = scenario.plans().unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    let counts = RefCell::new(Vec::with_capacity(1 << 16));
    let look = || {
        counts.borrow_mut().push(ALLOCATIONS.with(Cell::get));
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
