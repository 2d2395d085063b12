//! A packet costs no memory allocation once the queues have grown to their size.
#![expect(unsafe_code, reason = "counting allocations means being the allocator")]

use midhop_path::{Direction, DirectionSpec, Link, presets};
use midhop_units::{Bytes, Duration, Instant, Seed};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

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

/// Allocations over `packets` packets at 120 % load, after as many to warm up.
fn allocations(spec: &DirectionSpec, packets: u64) -> u64 {
    let plan = spec.resolve(Duration::from_ms(600)).expect("a plan");
    let rate = plan.rate_max().expect("a rate");
    let gap = rate.time_for(Bytes::new(1500)).scale(1.0 / 1.2);
    let mut link = Link::new(&plan, Direction::Down, Seed(1), Instant::START);
    let mut drive = |from: u64, till: u64| {
        for number in from..till {
            let now = Instant::START + gap * number;
            link.handle_input(now, Bytes::new(1500), number);
            while link.poll_output(now).is_some() {}
        }
    };
    drive(0, packets);
    let before = ALLOCATIONS.with(Cell::get);
    drive(packets, 2 * packets);
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn no_packet_is_allocated_for() {
    for preset in presets::all() {
        for direction in [&preset.down, &preset.up] {
            assert_eq!(allocations(direction, 50_000), 0, "{}", preset.name);
        }
    }
}
