//! How the flows of a tunnel over TCP share it, and how it fills a long link.

mod ends;
mod flows;
mod program;
mod stage;

use ends::{Authority, Ends, far_config, near_config};
use flows::{await_bytes, block, jain, with_bulk};
use program::{Desk, Running, log_of};
use stage::{Family, Stage, hear, noise, say, until};
use std::sync::atomic::Ordering::Relaxed;

const EARLY: &str = "accept = \"early\"\n";

#[test]
fn bulk_flows_get_equal_parts_of_a_tunnel_over_tcp() {
    let link = "rate = \"40 Mbit/s\"\ndelay = \"50 ms\"\n";
    let Some(stage) = Stage::set_over(link, link, "100 ms") else { return };
    block(&stage);
    let told = "rtt = \"100 ms\"\nrate = \"40 Mbit/s\"\n";
    let _ends = Ends::start_with(&stage, Family::V4, "", [told, told]);
    let listener = stage.listen(Family::V4);
    with_bulk(&stage, &listener, 32, false, |counts| {
        await_bytes(counts, 5_000_000);
        let before: Vec<_> = counts.iter().map(|count| count.load(Relaxed)).collect();
        await_bytes(counts, 25_000_000);
        let parts: Vec<_> = before.iter().zip(counts).map(|(b, c)| c.load(Relaxed) - b).collect();
        let index = jain(&parts);
        println!("Jain's index {index:.4}, {parts:?}");
        assert!(index >= 0.98, "Jain's index is {index:.4}: {parts:?}");
    });
}

/// A server says much over a long link that loses little; every byte arrives.
#[test]
fn a_long_link_is_crossed_over_tcp() {
    let down = "rate = \"20 Mbit/s\"\ndelay = \"300 ms\"\nloss = \"0.01 %\"\n";
    let Some(stage) = Stage::set_over(down, down, "600 ms") else { return };
    block(&stage);
    let told = "rtt = \"600 ms\"\nrate = \"20 Mbit/s\"\n";
    // As programs, which have the congestion control that is meant for them.
    let authority = Authority::new(&["near", "far"]);
    let far = Desk::new(&far_config(Family::V4, &authority, told));
    let near = Desk::new(&near_config(Family::V4, &authority, EARLY, told, ""));
    let _far = Running::start_in(&stage.server, &far);
    let _near = Running::start(&stage, &near);
    until("there is a tunnel", || log_of(&near).contains("a tunnel is open over TCP"));
    let listener = stage.listen(Family::V4);
    let bulk = stage.flow(&listener);
    let said = noise(3, 20_000_000);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| say(&bulk.1, &said));
        assert!(hear(&bulk.0) == said, "what the server said");
    });
    println!("{:.1} Mbit/s", said.len() as f64 * 8e-6 / start.elapsed().as_secs_f64());
}
