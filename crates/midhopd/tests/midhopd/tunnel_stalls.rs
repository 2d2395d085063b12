//! A flow that is not read holds up no other, and arrives completely in the end, on a link with
//! many losses.

use crate::ends::Ends;
use crate::stage::{Family, Stage, noise, receive_all, send_all, until};
use midhop_status::snapshot::FlowSnapshot;
use midhopd::snapshot::Source;
use std::net::TcpStream;
use std::thread::scope;

const LINK: &str = "rate = \"50 Mbit/s\"\ndelay = \"50 ms\"\nloss = \"20 %\"\n";
/// The keys with which both ends describe it. Only QUIC repairs its losses.
const LEG: &str = "rtt = \"100 ms\"\nrate = \"50 Mbit/s\"\ncongestion = \"known-rate\"\nrepair = \"off\"\n\
                    window = \"1 MiB\"\n";

/// One end of a flow sends more than the other's windows hold, and the other one does not read
/// until another flow has begun and ended.
fn stall(request: &str, downwards: bool) {
    let Some(stage) = Stage::set_over(LINK, LINK, "100 ms") else { return };
    let near = format!("{LEG}{request}");
    let ends = Ends::start_with(&stage, Family::V4, "", [&near, LEG]);
    let listener = stage.listen(Family::V4);
    let turned = |(client, server): (TcpStream, TcpStream)| {
        if downwards { (server, client) } else { (client, server) }
    };
    let stalled = turned(stage.flow(&listener));
    let (long, short) = (noise(1, 12_000_000), noise(2, 1_000_000));
    scope(|scope| {
        scope.spawn(|| send_all(&stalled.0, &long));
        let other = turned(stage.flow(&listener));
        scope.spawn(move || send_all(&other.0, &short));
        assert!(receive_all(&other.1) == noise(2, 1_000_000), "the other flow's bytes");
        // The proxy on the sender's side has the bytes that the tunnel does not take yet.
        let sender = if downwards { &ends.far } else { &ends.near };
        until("it is reported to wait for the tunnel", || {
            let snapshot = Source::of(sender).take();
            let waits = |flow: &FlowSnapshot| match downwards {
                true => flow.down_waits_for,
                false => flow.up_waits_for,
            };
            snapshot.busiest.iter().any(|flow| waits(flow) == Some("tunnel"))
                && snapshot.waiting["tunnel"] > 0
        });
        assert!(receive_all(&stalled.1) == long, "every byte arrives, however late");
    });
}

#[test]
fn a_client_that_does_not_read_costs_nobody_anything_on_a_lossy_link() {
    stall("", true);
}

#[test]
fn nor_does_a_server_that_does_not_read() {
    stall("request = \"classic\"\n", false);
}
