//! Requests on a tunnel over TCP that is full of other flows, and the time until their responses.

use crate::flows::{await_bytes, block, pass, with_bulk};
use crate::pair::Pair;
use crate::stage::{Family, Stage, until};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The median duration of requests of 100 bytes on flows that were idle. Unit: milliseconds.
fn requests(flows: &[(TcpStream, TcpStream)]) -> f64 {
    let mut times = Vec::new();
    for _ in 0..3 {
        for (mut client, mut server) in flows.iter().map(|(client, server)| (client, server)) {
            let (mut asked, mut answer) = ([0; 100], [0; 100]);
            let begun = Instant::now();
            client.write_all(&[1; 100]).expect("a request");
            server.read_exact(&mut asked).expect("a request");
            server.write_all(&[2; 100]).expect("an answer");
            client.read_exact(&mut answer).expect("an answer");
            assert_eq!((asked, answer), ([1; 100], [2; 100]));
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            // The pause ends any advantage from the previous request.
            sleep(Duration::from_millis(100));
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Requests overtake what waits at this end. In the queue of the link they cannot, and TCP's
/// congestion control decides how long that queue is.
#[test]
fn requests_are_answered_on_a_tunnel_over_tcp_that_is_full() {
    let link = "rate = \"20 Mbit/s\"\ndelay = \"150 ms\"\n";
    let leg = "rtt = \"300 ms\"\nrate = \"20 Mbit/s\"\n";
    let Some(stage) = Stage::set_over(link, link, "300 ms") else { return };
    block(&stage);
    let pair = Pair::new(leg, leg, "");
    let _daemons = pair.start(&stage);
    until("there is a tunnel", || pair.tunnels_of_near(&stage) == [1, 1]);
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..4).map(|_| stage.flow(&listener)).collect();
    flows.iter().for_each(|(client, server)| pass(client, server));
    let idle = requests(&flows);
    with_bulk(&stage, &listener, 8, false, |counts| {
        await_bytes(counts, 8_000_000);
        let full = requests(&flows);
        println!("{idle:.0} ms idle, {full:.0} ms full: {:.2} times", full / idle);
    });
}
