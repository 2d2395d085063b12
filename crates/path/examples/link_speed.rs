//! How many packets a second one direction of a link processes on this machine, by its features.

#![expect(clippy::disallowed_methods, reason = "an example that measures needs a clock")]

use midhop_path::{Direction, DirectionSpec, Link, presets};
use midhop_units::{Bytes, Duration, Instant, Seed};

const PACKETS: u64 = 5_000_000;

fn main() {
    let geo = presets::find("geo").map(|preset| preset.down).unwrap_or_default();
    let starlink = presets::find("starlink").map(|preset| preset.down).unwrap_or_default();
    let lossy: DirectionSpec = DirectionSpec { loss: starlink.loss.clone(), ..geo.clone() };
    for (name, spec) in [("plain", geo), ("with losses", lossy), ("starlink", starlink)] {
        match spec.resolve(Duration::from_ms(600)) {
            Ok(plan) => {
                let rate = plan.rate_max().unwrap_or_default();
                let gap = rate.time_for(Bytes::new(1500));
                let mut link = Link::new(&plan, Direction::Down, Seed(1), Instant::START);
                let began = std::time::Instant::now();
                for number in 0..PACKETS {
                    let now = Instant::START + gap * number;
                    link.handle_input(now, Bytes::new(1500), number);
                    while link.poll_output(now).is_some() {}
                }
                let rate = PACKETS as f64 / began.elapsed().as_secs_f64() / 1e6;
                println!("{name}: {rate:.1} M packets/s, {} out", link.counters().packets_out);
            }
            Err(error) => println!("{name}: {error}"),
        }
    }
}
