//! How the flows of a tunnel over TCP share it, how it fills a long link, and its share beside
//! QUIC.

use crate::ends::Ends;
use crate::flows::{await_bytes, block, count_on, jain, send_endlessly, unblock, with_bulk};
use crate::pair::Pair;
use crate::stage::{Family, Stage, noise, receive_all, send_all, until};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[test]
fn bulk_flows_get_equal_parts_of_a_tunnel_over_tcp() {
    let link = "rate = \"40 Mbit/s\"\ndelay = \"50 ms\"\n";
    let Some(stage) = Stage::set_over(link, link, "100 ms") else { return };
    block(&stage);
    let leg = "rtt = \"100 ms\"\nrate = \"40 Mbit/s\"\n";
    let _ends = Ends::start_with(&stage, Family::V4, "", [leg, leg]);
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

/// A server sends much over a long link with few losses; every byte arrives.
#[test]
fn a_long_link_is_crossed_over_tcp() {
    let down = "rate = \"20 Mbit/s\"\ndelay = \"300 ms\"\nloss = \"0.01 %\"\n";
    let Some(stage) = Stage::set_over(down, down, "600 ms") else { return };
    block(&stage);
    let leg = "rtt = \"600 ms\"\nrate = \"20 Mbit/s\"\n";
    let pair = Pair::new(leg, leg, "");
    let _daemons = pair.start(&stage);
    until("there is a tunnel", || pair.tunnels_of_near(&stage) == [1, 1]);
    let listener = stage.listen(Family::V4);
    let bulk = stage.flow(&listener);
    let sent = noise(3, 20_000_000);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&bulk.1, &sent));
        assert!(receive_all(&bulk.0) == sent, "what the server sent");
    });
    println!("{:.1} Mbit/s", sent.len() as f64 * 8e-6 / start.elapsed().as_secs_f64());
}

/// A flow on TCP continues while a new one uses QUIC: both together send no faster than the
/// configured rate of the link.
#[test]
fn both_carriers_of_a_tunnel_divide_its_rate() {
    let link = "rate = \"80 Mbit/s\"\ndelay = \"10 ms\"\n";
    let Some(stage) = Stage::set_over(link, link, "20 ms") else { return };
    block(&stage);
    let leg = "rtt = \"20 ms\"\nrate = \"20 Mbit/s\"\n";
    let pair = Pair::new(leg, leg, "");
    let _daemons = pair.start(&stage);
    until("there is a tunnel", || pair.tunnels_of_near(&stage) == [1, 1]);
    let listener = stage.listen(Family::V4);
    let old = stage.flow(&listener);
    unblock(&stage);
    until("UDP passes", || pair.goes_by(&stage, "quic"));
    let new = stage.flow(&listener);
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let come = || [0, 1].map(|at: usize| counts[at].load(Relaxed));
    std::thread::scope(|scope| {
        for ((client, server), count) in [&old, &new].into_iter().zip(&counts) {
            scope.spawn(|| send_endlessly(server));
            scope.spawn(|| count_on(client, count));
        }
        // Each had the whole rate while the other was silent: the first two seconds are skipped,
        // and the next five are measured.
        await_bytes(&counts, 5_000_000);
        let (start, before) = (std::time::Instant::now(), come());
        await_bytes(&counts, 12_500_000);
        let (passed, after) = (start.elapsed().as_secs_f64(), come());
        for (client, server) in [&old, &new] {
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = server.shutdown(std::net::Shutdown::Both);
        }
        let parts = [0, 1].map(|at| (after[at] - before[at]) as f64 * 8e-6 / passed);
        println!("TCP and QUIC: {parts:.1?} Mbit/s");
        // Bytes that were in buffers come in addition.
        assert!(parts[0] + parts[1] <= 22.0, "{parts:.1?} Mbit/s");
        assert!(parts.iter().all(|part| *part > 0.2 * (parts[0] + parts[1])), "{parts:.1?} Mbit/s");
    });
}
