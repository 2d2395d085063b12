//! How flows end that go through a tunnel over TCP: as they do over QUIC.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

mod ends;
mod flows;
mod stage;

use ends::Ends;
use flows::{block, fill, hear_break, reset};
use stage::{Family, Stage, hear, nft, noise, queued, say, until};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{scope, sleep};
use std::time::Duration;

const BOTH: [&str; 2] = ["accept = \"early\"\n", "accept = \"after-connect\"\n"];

/// A stage on which UDP does not pass.
fn set() -> Option<Stage> {
    let stage = Stage::set()?;
    block(&stage);
    Some(stage)
}

/// Two ends whose tunnel is over TCP as soon as there is a flow.
fn start(stage: &Stage, mode: &str) -> Ends {
    let quick = "rtt = \"20 ms\"\n";
    Ends::start_with(stage, Family::V4, mode, [quick, quick])
}

/// Both ends of a flow, as often as there are ways in which one of them may act first.
fn both_ways(stage: &Stage, mut act: impl FnMut(TcpStream, TcpStream)) {
    let listener = stage.listen(Family::V4);
    for from_server in [false, true] {
        let (client, server) = stage.flow(&listener);
        assert_eq!(server.peer_addr().expect("a peer").ip(), Family::V4.server(), "by the tunnel");
        if from_server { act(server, client) } else { act(client, server) }
    }
}

#[test]
fn half_closes_pass_both_ways() {
    let Some(stage) = set() else { return };
    for mode in BOTH {
        let ends = start(&stage, mode);
        let reply = noise(3, 4_000_000);
        both_ways(&stage, |first, second| {
            say(&first, b"that is all");
            assert_eq!(hear(&second), b"that is all");
            // Only after the end has been heard does the answer begin.
            scope(|scope| {
                scope.spawn(|| say(&second, &reply));
                assert!(hear(&first) == reply, "the whole answer after the half-close");
            });
        });
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
        both_ways(&stage, |mut resetting, mut other| {
            resetting.write_all(b"so far").expect("writing");
            let mut heard = [0; 6];
            other.read_exact(&mut heard).expect("what came before the reset");
            reset(resetting);
            assert_eq!(hear_break(&other), ErrorKind::ConnectionReset);
        });
    }
}

#[test]
fn rst_passes_even_when_all_buffers_are_full() {
    let Some(stage) = set() else { return };
    let _ends = start(&stage, BOTH[0]);
    for half_closed in [false, true] {
        both_ways(&stage, |resetting, other| {
            if half_closed {
                say(&other, b"that is all");
                assert_eq!(hear(&resetting), b"that is all");
            }
            // The other end reads nothing.
            fill(&resetting);
            reset(resetting);
            until("the reset arrives where nobody reads", || {
                socket2::SockRef::from(&other).take_error().expect("a state").is_some()
            });
        });
    }
}

/// The end that has ended its half hears of it, too, when the other breaks off.
#[test]
fn rst_after_a_half_close_is_no_end() {
    let Some(stage) = set() else { return };
    let _ends = start(&stage, BOTH[0]);
    both_ways(&stage, |ended, resetting| {
        say(&ended, b"a question");
        assert_eq!(hear(&resetting), b"a question");
        (&resetting).write_all(b"half an ans").expect("writing");
        let mut heard = [0; 11];
        (&ended).read_exact(&mut heard).expect("what came before the reset");
        reset(resetting);
        assert_eq!(hear_break(&ended), ErrorKind::ConnectionReset);
    });
}

/// One end says all it has, ends and goes; the other, whose window is shut, reads only much later.
#[test]
fn who_closes_first_with_bytes_waiting_loses_none() {
    let Some(stage) = set() else { return };
    let ends = start(&stage, BOTH[0]);
    let bytes = noise(8, 12 << 20);
    both_ways(&stage, |first, late| {
        late.shutdown(Shutdown::Write).expect("it has nothing to say");
        scope(|scope| {
            scope.spawn(|| {
                say(&first, &bytes);
                assert_eq!(hear(&first), b"");
                drop(first);
            });
            until("bytes wait at the other end", || queued::unread(&late) > 0);
            sleep(Duration::from_millis(300));
            assert!(hear(&late) == bytes, "every byte arrives before the end does");
        });
    });
    until("the flows have ended in order", || ends.sums(|ledger| &ledger.ended) == [2, 2]);
}

/// A flow whose reader stands still holds up no other, and loses nothing.
#[test]
fn a_reader_that_stands_still_holds_up_nobody_else() {
    let Some(stage) = set() else { return };
    let _ends = start(&stage, BOTH[0]);
    let listener = stage.listen(Family::V4);
    for from_server in [false, true] {
        let (client, server) = stage.flow(&listener);
        let (writer, reader) = if from_server { (server, client) } else { (client, server) };
        let written = fill(&writer);
        let (client, server) = stage.flow(&listener);
        let bytes = noise(5, 20_000_000);
        scope(|scope| {
            scope.spawn(|| if from_server { say(&server, &bytes) } else { say(&client, &bytes) });
            let heard = if from_server { hear(&client) } else { hear(&server) };
            assert!(heard == bytes, "the other flow's bytes");
        });
        writer.shutdown(Shutdown::Write).expect("the end");
        assert_eq!(hear(&reader).len(), written);
    }
}

#[test]
fn what_the_server_said_is_what_the_client_sees() {
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
            Ok(client) => hear_break(&client),
            Err(error) => error.kind(),
        };
        assert_eq!(kind, expected, "{mode} {port}");
        let sum = ends.sums(if port == 9 { |it| &it.refused } else { |it| &it.unreachable });
        assert_eq!(sum[1], 1, "the server itself said so");
    }
}

/// Many flows that break at once are no reason to break the others.
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
            assert_eq!(hear_break(server), ErrorKind::ConnectionReset);
        }
    }
    until("they are booked", || ends.sums(|it| &it.reset_by_client) == [300, 300]);
    flows::exchange(&client, &server, 1_000_000);
}

fn fill_a_little(mut stream: &TcpStream) {
    stream.write_all(&noise(6, 30_000)).expect("writing");
}
