//! How flows through a tunnel end: what either end does to its connection, the other end sees.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

mod ends;
mod program;
mod stage;

use ends::{Authority, Ends, far_config, near_config, near_tables, start_far};
use midhopd::daemon::DataPlane;
use midhopd::ledger::{Count, Ledger};
use program::{Desk, Running};
use stage::{Family, Stage, hear, nft, noise, queued, say, until};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{scope, sleep};
use std::time::Duration;

const BOTH: [&str; 2] = ["early", "after-connect"];
/// Forms of a request, and so ways in which a flow's bytes and its end are carried.
const FORMS: [&str; 2] = ["classic", "template"];

fn accepting(mode: &str) -> String {
    format!("accept = \"{mode}\"\n")
}

/// Two proxies with a tunnel between them whose flows are asked for in a form.
fn pair(stage: &Stage, family: Family, mode: &str, form: &str) -> Ends {
    Ends::start_with(stage, family, &accepting(mode), [&format!("request = \"{form}\"\n"), ""])
}

fn ways() -> impl Iterator<Item = (&'static str, &'static str)> {
    BOTH.into_iter().flat_map(|mode| FORMS.map(|form| (mode, form)))
}

fn sum(end: &DataPlane, count: fn(&Ledger) -> &Count) -> u64 {
    end.ledgers().iter().map(|ledger| count(ledger).value()).sum()
}

/// Both ends of a flow, as often as there are ways in which one of them may act first.
fn both_ways(stage: &Stage, family: Family, mut act: impl FnMut(TcpStream, TcpStream)) {
    let listener = stage.listen(family);
    for from_server in [false, true] {
        let (client, server) = stage.flow(&listener);
        if from_server { act(server, client) } else { act(client, server) }
    }
}

/// Closes with a reset.
fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a linger time");
}

/// Reads up to what is no end.
fn hear_break(mut stream: &TcpStream) -> ErrorKind {
    loop {
        match stream.read(&mut [0; 1 << 16]) {
            Ok(0) => panic!("a truncated stream ended as if it were whole"),
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

/// Writes until nothing fits anywhere.
fn fill(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).expect("a mode");
    let (chunk, mut quiet, mut written) = (noise(4, 1 << 16), 0, 0);
    while quiet < 40 {
        match stream.write(&chunk) {
            Ok(count) => (quiet, written) = (0, written + count),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                quiet += 1;
                sleep(Duration::from_millis(5));
            }
        }
    }
    stream.set_nonblocking(false).expect("a mode");
    written
}

fn half_close(family: Family) {
    let Some(stage) = Stage::set() else { return };
    for (mode, form) in ways() {
        let ends = pair(&stage, family, mode, form);
        let reply = noise(3, 4_000_000);
        both_ways(&stage, family, |first, second| {
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
fn half_close_both_directions_ipv4() {
    half_close(Family::V4);
}

#[test]
fn half_close_both_directions_ipv6() {
    half_close(Family::V6);
}

fn rst(family: Family) {
    let Some(stage) = Stage::set() else { return };
    for (mode, form) in ways() {
        let _ends = pair(&stage, family, mode, form);
        both_ways(&stage, family, |mut resetting, mut other| {
            resetting.write_all(b"so far").expect("writing");
            let mut heard = [0; 6];
            other.read_exact(&mut heard).expect("what came before the reset");
            reset(resetting);
            assert_eq!(hear_break(&other), ErrorKind::ConnectionReset);
        });
    }
}

#[test]
fn rst_from_either_side_arrives_as_rst_ipv4() {
    rst(Family::V4);
}

#[test]
fn rst_from_either_side_arrives_as_rst_ipv6() {
    rst(Family::V6);
}

#[test]
fn rst_passes_even_when_all_buffers_are_full() {
    let Some(stage) = Stage::set() else { return };
    for (form, half_closed) in FORMS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let _ends = pair(&stage, Family::V4, "early", form);
        both_ways(&stage, Family::V4, |resetting, other| {
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
    let Some(stage) = Stage::set() else { return };
    for form in FORMS {
        let _ends = pair(&stage, Family::V4, "early", form);
        both_ways(&stage, Family::V4, |ended, resetting| {
            say(&ended, b"a question");
            assert_eq!(hear(&resetting), b"a question");
            (&resetting).write_all(b"half an ans").expect("writing");
            let mut heard = [0; 11];
            (&ended).read_exact(&mut heard).expect("what came before the reset");
            reset(resetting);
            assert_eq!(hear_break(&ended), ErrorKind::ConnectionReset);
        });
    }
}

/// One end says all it has, ends and goes; the other, whose window is shut, reads only much later.
#[test]
fn who_closes_first_with_bytes_waiting_loses_none() {
    let Some(stage) = Stage::set() else { return };
    FORMS.into_iter().for_each(|form| who_closes_first(&stage, form));
}

fn who_closes_first(stage: &Stage, form: &str) {
    let ends = pair(stage, Family::V4, "early", form);
    let bytes = noise(8, 12 << 20);
    both_ways(stage, Family::V4, |first, late| {
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
    let Some(stage) = Stage::set() else { return };
    FORMS.into_iter().for_each(|form| a_reader_stands_still(&stage, form));
}

fn a_reader_stands_still(stage: &Stage, form: &str) {
    let _ends = pair(stage, Family::V4, "early", form);
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
fn refused_stays_refused() {
    let Some(stage) = Stage::set() else { return };
    for (family, mode) in [(Family::V4, 0), (Family::V4, 1), (Family::V6, 0), (Family::V6, 1)] {
        let ends = Ends::start(&stage, family, &accepting(BOTH[mode]));
        let address = SocketAddr::new(family.server(), 9);
        let kind = match stage.connect(address) {
            Ok(client) => hear_break(&client),
            Err(error) => error.kind(),
        };
        let expected = [ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused][mode];
        assert_eq!(kind, expected, "{family:?} {mode}");
        assert_eq!(sum(&ends.far, |ledger| &ledger.refused), 1, "the server itself refused");
    }
}

#[test]
fn unreachable_stays_unreachable() {
    let Some(stage) = Stage::set() else { return };
    for (family, words) in
        [(Family::V4, "icmp type host-unreachable"), (Family::V6, "icmpv6 type addr-unreachable")]
    {
        nft(&stage.server, "add table inet t");
        nft(&stage.server, "add chain inet t c { type filter hook input priority 0; }");
        nft(&stage.server, &format!("add rule inet t c tcp dport 9 reject with {words}"));
        for mode in BOTH {
            let ends = Ends::start(&stage, family, &accepting(mode));
            let kind = match stage.connect(SocketAddr::new(family.server(), 9)) {
                Ok(client) => hear_break(&client),
                Err(error) => error.kind(),
            };
            if mode == "after-connect" {
                assert_eq!(kind, ErrorKind::HostUnreachable);
                assert_eq!(sum(&ends.near, |ledger| &ledger.unreachable), 1);
            } else {
                assert_eq!(kind, ErrorKind::ConnectionReset);
            }
            assert_eq!(sum(&ends.far, |ledger| &ledger.unreachable), 1);
        }
        nft(&stage.server, "delete table inet t");
    }
}

#[test]
fn silence_stays_silence() {
    let Some(stage) = Stage::set() else { return };
    for namespace in [&stage.client, &stage.server] {
        namespace.set_sysctl("net.ipv4.tcp_syn_retries", "1").expect("a setting");
    }
    nft(&stage.server, "add table inet t");
    nft(&stage.server, "add chain inet t c { type filter hook input priority 0; }");
    nft(&stage.server, "add rule inet t c tcp dport 9 drop");
    for mode in BOTH {
        let ends = Ends::start(&stage, Family::V4, &accepting(mode));
        let kind = match stage.connect(SocketAddr::new(Family::V4.server(), 9)) {
            Ok(client) => hear_break(&client),
            Err(error) => error.kind(),
        };
        let expected =
            if mode == "early" { ErrorKind::ConnectionReset } else { ErrorKind::TimedOut };
        assert_eq!(kind, expected, "{mode}");
        until("the far end has waited in vain", || sum(&ends.far, |it| &it.timed_out) == 1);
    }
}

/// A client that asked is told in the words of its protocol.
#[test]
fn clients_that_ask_are_told_why_not() {
    let Some(stage) = Stage::set() else { return };
    nft(&stage.server, "add table inet t");
    nft(&stage.server, "add chain inet t c { type filter hook input priority 0; }");
    nft(&stage.server, "add rule inet t c tcp dport 10 reject with icmp type host-unreachable");
    let authority = Authority::new(&["near", "far"]);
    let reject = "[[rules]]\nmatch.destination_port = 99\naction = \"reject\"\n";
    let _far = start_far(&stage, Family::V4, &authority, reject);
    let asking = format!(
        "[explicit]\nhttp_connect = \"10.0.1.1:3128\"\nsocks5 = \"10.0.1.1:1080\"\n\
         clients = \"10.0.1.0/24\"\n{}",
        near_tables(Family::V4, &authority, "", "otherwise = \"reject\"\n")
    );
    let near = Desk::new(&asking);
    let _near = Running::start(&stage, &near);
    for (target, status, error, code) in [
        ("10.0.2.2:9", "502", "connection_refused", 5),
        ("10.0.2.2:10", "502", "destination_unavailable", 4),
        ("10.0.2.2:99", "403", "destination_ip_prohibited", 2),
        ("192.0.2.1:80", "502", "destination_ip_unroutable", 3),
        // The far end's own host is not for others.
        ("127.0.0.1:9310", "403", "destination_ip_prohibited", 2),
    ] {
        let mut client = stage.connect("10.0.1.1:3128".parse().expect("an address")).expect("it");
        write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").expect("asking");
        let said = String::from_utf8(hear(&client)).expect("text");
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {said}");
        assert!(said.contains(&format!("error={error}\r\n")), "{target}: {said}");
        let target: SocketAddr = target.parse().expect("an address");
        let SocketAddr::V4(target) = target else { panic!("{target}") };
        let mut client = stage.connect("10.0.1.1:1080".parse().expect("an address")).expect("it");
        let mut request = vec![5, 1, 0, 5, 1, 0, 1];
        request.extend(target.ip().octets());
        request.extend(target.port().to_be_bytes());
        client.write_all(&request).expect("asking");
        let said = hear(&client);
        assert_eq!(said[..4], [5, 0, 5, code], "{target}");
    }
}

/// The far daemon is killed in the middle of a download and of an upload: what its peers have had of
/// them is no whole.
#[test]
fn a_far_end_that_dies_leaves_no_flow_that_looks_whole() {
    let Some(stage) = Stage::set() else { return };
    FORMS.into_iter().for_each(|form| a_far_end_dies(&stage, form));
}

fn a_far_end_dies(stage: &Stage, form: &str) {
    let authority = Authority::new(&["near", "far"]);
    let far = Desk::new(&far_config(Family::V4, &authority, ""));
    let running = Running::start_in(&stage.server, &far);
    let quick = format!("keepalive = \"500 ms\"\ntimeout = \"2 s\"\nrequest = \"{form}\"\n");
    let config = near_config(Family::V4, &authority, &accepting("early"), &quick, "");
    let _near = stage.try_proxy(&config).expect("a proxy");
    let listener = stage.listen(Family::V4);
    let (down, up) = (stage.flow(&listener), stage.flow(&listener));
    let bytes = noise(9, 1 << 20);
    let endless = |mut stream: &TcpStream| while stream.write_all(&bytes).is_ok() {};
    scope(|scope| {
        scope.spawn(|| endless(&down.1));
        scope.spawn(|| endless(&up.0));
        let mut chunk = vec![0; 1 << 20];
        (&down.0).read_exact(&mut chunk).expect("the download begins");
        (&up.1).read_exact(&mut chunk).expect("the upload begins");
        running.signal(nix::sys::signal::Signal::SIGKILL);
        assert_eq!(hear_break(&down.0), ErrorKind::ConnectionReset);
        assert_eq!(hear_break(&up.1), ErrorKind::ConnectionReset);
    });
}
