//! How flows through a tunnel end: what happens to the connection at one end is seen at the other
//! end.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

use crate::ends::{Authority, Ends, far_config, near_config, near_tables, start_far};
use crate::flows::duties::{self, Flow};
use crate::flows::{KNOWN_LINK, read_until_error};
use crate::program::{Running, Setup};
use crate::stage::{Family, Stage, nft, receive_all, until};
use midhopd::data_plane::DataPlane;
use midhopd::ledger::{Counter, Ledger};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;

const BOTH: [&str; 2] = ["early", "after-connect"];
/// Forms of a request, each with its own way to carry a flow's bytes and its end.
const FORMS: [&str; 2] = ["classic", "template"];

fn accepting(mode: &str) -> String {
    format!("accept = \"{mode}\"\n")
}

/// Two proxies with a tunnel between them whose flows are requested in this form.
fn pair(stage: &Stage, family: Family, mode: &str, form: &str) -> Ends {
    Ends::start_with(stage, family, &accepting(mode), [&format!("request = \"{form}\"\n"), ""])
}

fn ways() -> impl Iterator<Item = (&'static str, &'static str)> {
    BOTH.into_iter().flat_map(|mode| FORMS.map(|form| (mode, form)))
}

fn sum(end: &DataPlane, count: fn(&Ledger) -> &Counter) -> u64 {
    end.ledgers().iter().map(|ledger| count(ledger).value()).sum()
}

/// Checks a duty of a tunnel, for both ends as the one that acts first.
fn both_ways(stage: &Stage, family: Family, duty: fn(Flow<'_>, bool)) {
    let listener = stage.listen(family);
    for from_server in [false, true] {
        duty(&mut || stage.flow(&listener), from_server);
    }
}

fn half_close(family: Family) {
    let Some(stage) = Stage::set() else { return };
    for (mode, form) in ways() {
        let ends = pair(&stage, family, mode, form);
        both_ways(&stage, family, duties::half_closes);
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
        both_ways(&stage, family, duties::resets);
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
    for form in FORMS {
        let near = format!("request = \"{form}\"\n{KNOWN_LINK}");
        let early = accepting("early");
        let _ends = Ends::start_with(&stage, Family::V4, &early, [&near, KNOWN_LINK]);
        both_ways(&stage, Family::V4, |flow, from_server| {
            duties::resets_of_full_flows(flow, from_server, false);
            duties::resets_of_full_flows(flow, from_server, true);
        });
    }
}

#[test]
fn rst_after_a_half_close_is_no_end() {
    let Some(stage) = Stage::set() else { return };
    for form in FORMS {
        let _ends = pair(&stage, Family::V4, "early", form);
        both_ways(&stage, Family::V4, duties::resets_after_half_closes);
    }
}

#[test]
fn who_closes_first_with_bytes_waiting_loses_none() {
    let Some(stage) = Stage::set() else { return };
    for form in FORMS {
        let ends = pair(&stage, Family::V4, "early", form);
        both_ways(&stage, Family::V4, |flow, from_server| {
            duties::late_readers(flow, from_server, true);
        });
        until("the flows have ended in order", || ends.sums(|it| &it.ended) == [2, 2]);
    }
}

#[test]
fn a_reader_that_stands_still_holds_up_nobody_else() {
    let Some(stage) = Stage::set() else { return };
    for form in FORMS {
        let _ends = pair(&stage, Family::V4, "early", form);
        both_ways(&stage, Family::V4, duties::readers_that_stand_still);
    }
}

#[test]
fn refused_stays_refused() {
    let Some(stage) = Stage::set() else { return };
    for (family, mode) in [(Family::V4, 0), (Family::V4, 1), (Family::V6, 0), (Family::V6, 1)] {
        let ends = Ends::start(&stage, family, &accepting(BOTH[mode]));
        let address = SocketAddr::new(family.server(), 9);
        let kind = match stage.connect(address) {
            Ok(client) => read_until_error(&client),
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
                Ok(client) => read_until_error(&client),
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
            Ok(client) => read_until_error(&client),
            Err(error) => error.kind(),
        };
        let expected =
            if mode == "early" { ErrorKind::ConnectionReset } else { ErrorKind::TimedOut };
        assert_eq!(kind, expected, "{mode}");
        until("the far end has waited in vain", || sum(&ends.far, |it| &it.timed_out) == 1);
    }
}

/// A client that requested the proxy gets the reason in its own protocol.
#[test]
fn clients_that_ask_are_answered_why_not() {
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
    let near = Setup::new(&asking);
    let _near = Running::start(&stage, &near);
    for (target, status, error, code) in [
        ("10.0.2.2:9", "502", "connection_refused", 5),
        ("10.0.2.2:10", "502", "destination_unavailable", 4),
        ("10.0.2.2:99", "403", "destination_ip_prohibited", 2),
        ("192.0.2.1:80", "502", "destination_ip_unroutable", 3),
        // The far end's own host is no permitted target.
        ("127.0.0.1:9310", "403", "destination_ip_prohibited", 2),
    ] {
        let mut client = stage.connect("10.0.1.1:3128".parse().expect("an address")).expect("it");
        write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").expect("asking");
        let answer = String::from_utf8(receive_all(&client)).expect("text");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
        assert!(answer.contains(&format!("error={error}\r\n")), "{target}: {answer}");
        let target: SocketAddr = target.parse().expect("an address");
        let SocketAddr::V4(target) = target else { panic!("{target}") };
        let mut client = stage.connect("10.0.1.1:1080".parse().expect("an address")).expect("it");
        let mut request = vec![5, 1, 0, 5, 1, 0, 1];
        request.extend(target.ip().octets());
        request.extend(target.port().to_be_bytes());
        client.write_all(&request).expect("asking");
        let answer = receive_all(&client);
        assert_eq!(answer[..4], [5, 0, 5, code], "{target}");
    }
}

#[test]
fn a_far_end_that_dies_leaves_no_flow_that_looks_whole() {
    let Some(stage) = Stage::set() else { return };
    for form in FORMS {
        let authority = Authority::new(&["near", "far"]);
        let far = Setup::new(&far_config(Family::V4, &authority, ""));
        let running = Running::start_in(&stage.server, &far);
        let quick = format!(
            "keepalive = \"500 ms\"\ntimeout = \"2 s\"\nresume = \"2 s\"\nrequest = \"{form}\"\n"
        );
        let config = near_config(Family::V4, &authority, &accepting("early"), &quick, "");
        let _near = stage.start(&config);
        let listener = stage.listen(Family::V4);
        duties::no_end_that_looks_whole(&mut || stage.flow(&listener), || {
            running.signal(nix::sys::signal::Signal::SIGKILL);
        });
    }
}
