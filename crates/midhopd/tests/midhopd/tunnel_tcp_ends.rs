//! How flows through a tunnel over TCP end: as they do over QUIC.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

use crate::ends::Ends;
use crate::flows::duties::{self, Flow};
use crate::flows::{self, block, read_until_error, reset};
use crate::stage::{Family, Stage, nft, noise, until};
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

const BOTH: [&str; 2] = ["accept = \"early\"\n", "accept = \"after-connect\"\n"];

/// A stage on which UDP does not pass.
fn set() -> Option<Stage> {
    let stage = Stage::set()?;
    block(&stage);
    Some(stage)
}

/// Two ends whose tunnel uses TCP as soon as there is a flow.
fn start(stage: &Stage, mode: &str) -> Ends {
    let quick = "rtt = \"20 ms\"\n";
    Ends::start_with(stage, Family::V4, mode, [quick, quick])
}

/// Checks a duty of a tunnel, for both ends as the one that acts first.
fn both_ways(stage: &Stage, duty: fn(Flow<'_>, bool)) {
    let listener = stage.listen(Family::V4);
    for from_server in [false, true] {
        let mut flow = || {
            let (client, server) = stage.flow(&listener);
            let from = server.peer_addr().expect("a peer").ip();
            assert_eq!(from, Family::V4.server(), "by the tunnel");
            (client, server)
        };
        duty(&mut flow, from_server);
    }
}

#[test]
fn half_closes_pass_both_ways() {
    let Some(stage) = set() else { return };
    for mode in BOTH {
        let ends = start(&stage, mode);
        both_ways(&stage, duties::half_closes);
        until("the flows are booked as ended in order", || {
            ends.sums(|ledger| &ledger.ended) == [2, 2]
        });
    }
}

#[test]
fn rst_from_either_side_arrives_as_rst() {
    let Some(stage) = set() else { return };
    for mode in BOTH {
        let _ends = start(&stage, mode);
        both_ways(&stage, duties::resets);
    }
}

#[test]
fn rst_passes_even_when_all_buffers_are_full() {
    let Some(stage) = set() else { return };
    let _ends = start(&stage, BOTH[0]);
    both_ways(&stage, |flow, from_server| duties::resets_of_full_flows(flow, from_server, false));
    both_ways(&stage, |flow, from_server| duties::resets_of_full_flows(flow, from_server, true));
}

#[test]
fn rst_after_a_half_close_is_no_end() {
    let Some(stage) = set() else { return };
    let _ends = start(&stage, BOTH[0]);
    both_ways(&stage, duties::resets_after_half_closes);
}

#[test]
fn who_closes_first_with_bytes_waiting_loses_none() {
    let Some(stage) = set() else { return };
    let ends = start(&stage, BOTH[0]);
    both_ways(&stage, |flow, from_server| duties::late_readers(flow, from_server, true));
    until("the flows have ended in order", || ends.sums(|ledger| &ledger.ended) == [2, 2]);
}

#[test]
fn a_reader_that_stands_still_holds_up_nobody_else() {
    let Some(stage) = set() else { return };
    let _ends = start(&stage, BOTH[0]);
    both_ways(&stage, duties::readers_that_stand_still);
}

#[test]
fn what_the_server_answered_is_what_the_client_sees() {
    let Some(stage) = set() else { return };
    nft(&stage.server, "add chain inet block refuse { type filter hook input priority 0; }");
    let reject = "add rule inet block refuse tcp dport 10 reject with icmp type host-unreachable";
    nft(&stage.server, reject);
    for (mode, port, expected) in [
        (BOTH[0], 9, ErrorKind::ConnectionReset),
        (BOTH[1], 9, ErrorKind::ConnectionRefused),
        (BOTH[0], 10, ErrorKind::ConnectionReset),
        (BOTH[1], 10, ErrorKind::HostUnreachable),
    ] {
        let ends = start(&stage, mode);
        let kind = match stage.connect(SocketAddr::new(Family::V4.server(), port)) {
            Ok(client) => read_until_error(&client),
            Err(error) => error.kind(),
        };
        assert_eq!(kind, expected, "{mode} {port}");
        let sum = ends.sums(if port == 9 { |it| &it.refused } else { |it| &it.unreachable });
        assert_eq!(sum[1], 1, "the server itself answered so");
    }
}

/// Many flows that break at once do not break the others.
#[test]
fn a_hundred_flows_that_break_at_once_harm_no_other() {
    let Some(stage) = set() else { return };
    let ends = start(&stage, BOTH[0]);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    for _ in 0..3 {
        let flows: Vec<_> = (0..100).map(|_| stage.flow(&listener)).collect();
        for (client, server) in &flows {
            fill_a_little(client);
            fill_a_little(server);
        }
        let (clients, servers): (Vec<_>, Vec<_>) = flows.into_iter().unzip();
        clients.into_iter().for_each(reset);
        for server in &servers {
            assert_eq!(read_until_error(server), ErrorKind::ConnectionReset);
        }
    }
    until("they are booked", || ends.sums(|it| &it.reset_by_client) == [300, 300]);
    flows::exchange(&client, &server, 1_000_000);
}

fn fill_a_little(mut stream: &TcpStream) {
    stream.write_all(&noise(6, 30_000)).expect("writing");
}
