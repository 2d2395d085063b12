//! A packet causes no memory allocation once the queues have grown to their size.

use midhop_path::{Direction, DirectionSpec, Link, presets};
use midhop_testkit::allocations::{Counting, so_far};
use midhop_units::{Bytes, Duration, Instant, Seed};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations over `packets` packets at 120 % load, after as many packets to warm up.
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
    let before = so_far();
    drive(packets, 2 * packets);
    so_far() - before
}

#[test]
fn no_packet_is_allocated_for() {
    for preset in presets::all() {
        for direction in [&preset.down, &preset.up] {
            assert_eq!(allocations(direction, 50_000), 0, "{}", preset.name);
        }
    }
}
