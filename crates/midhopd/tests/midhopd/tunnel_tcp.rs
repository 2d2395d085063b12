//! Tunnels over HTTP/2 on TCP, on paths where UDP does not pass, or passes only later, and their
//! return to QUIC.
//!
//! `client – gateway with one proxy – server's host with the other, and the server`

use crate::ends::{Authority, Ends, PORT, far_config, near_config};
use crate::flows::{self, block, exchange, pass, unblock};
use crate::pair::{EARLY, Pair, REJECT};
use crate::program::{Running, Setup, log_of};
use crate::stage::{Family, Stage, nft, noise, until};
use midhop_status::snapshot::PeerSnapshot;
use midhopd::snapshot::Source;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

/// The state of an end's tunnels.
fn reported(end: &midhopd::data_plane::DataPlane, peer: &str) -> PeerSnapshot {
    Source::of(end).take().peers[peer].clone()
}

fn whole(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let ends = Ends::start(&stage, family, &format!("accept = \"{accept}\"\n"));
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    let own = family.server();
    assert_eq!(server.peer_addr().expect("a peer").ip(), own, "the far proxy connects as itself");
    exchange(&client, &server, 20_000_000);
    until("the flow has ended in order", || ends.sums(|ledger| &ledger.ended) == [1, 1]);
    assert_eq!(ends.sums(|ledger| &ledger.bytes_up), [20_000_000; 2]);
    assert_eq!(ends.sums(|ledger| &ledger.bytes_down), [20_000_000; 2]);
    for (end, peer) in [(&ends.near, "far"), (&ends.far, "near")] {
        until("a tunnel over TCP is reported", || {
            let snapshot = reported(end, peer);
            (snapshot.tunnels, snapshot.tcp_tunnels) == (1, 1) && snapshot.sent_packets_total > 100
        });
    }
}

#[test]
fn twenty_megabytes_pass_both_ways_where_udp_is_blocked_early_ipv4() {
    whole(Family::V4, "early");
}

#[test]
fn twenty_megabytes_pass_both_ways_where_udp_is_blocked_after_connect_ipv6() {
    whole(Family::V6, "after-connect");
}

/// Number of the tunnel's packets that the server's host has dropped.
fn dropped(stage: &Stage) -> u64 {
    let list = stage.server.command("nft").args(["list", "table", "inet", "early"]).output();
    let list = String::from_utf8(list.expect("nft starts").stdout).expect("a text");
    let count = list.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
    count.and_then(|count| count.parse().ok()).expect("a counter")
}

/// So many SYNs of a connection are lost, the last one four seconds after the tunnel was wanted.
const SYNS_LOST: u64 = 4;
/// A tunnel that is given up soon.
const QUICK: &str = "keepalive = \"500 ms\"\ntimeout = \"2 s\"\npatience = \"8 s\"\n";

/// A new flow through the tunnel that has carried bytes in both directions.
fn flow(stage: &Stage, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let (client, server) = stage.flow(listener);
    assert_eq!(server.peer_addr().expect("a peer").ip(), Family::V4.server(), "by the tunnel");
    pass(&client, &server);
    (client, server)
}

/// New flows use QUIC once UDP passes. Those on TCP continue there, and the connection ends with
/// the last of them.
#[test]
fn tcp_is_left_again_when_udp_passes() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let pair = Pair::new("rtt = \"20 ms\"\n", "", REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let old = flow(&stage, &listener);
    assert!(pair.goes_by(&stage, "tcp-blocked"), "{}", log_of(&pair.near));
    unblock(&stage);
    until("UDP is found to pass", || pair.goes_by(&stage, "quic"));
    let new = flow(&stage, &listener);
    pass(&old.0, &old.1);
    until("both are open at the far end", || pair.tunnels_of_far(&stage) == [2, 1]);
    // Flows on TCP do not need UDP, and the reverse.
    exchange(&old.0, &old.1, 1_000_000);
    until("TCP is closed", || pair.tunnels_of_near(&stage) == [1, 0]);
    until("at the far end too", || pair.tunnels_of_far(&stage) == [1, 0]);
    exchange(&new.0, &new.1, 1_000_000);
}

/// An open tunnel whose datagrams do not pass any more is left for TCP, as long as they do not.
#[test]
fn a_tunnel_whose_datagrams_pass_no_more_is_left_and_taken_again() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("patience = \"15 s\"\n", "", REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let old = flow(&stage, &listener);
    block(&stage);
    // There must be a pending request, so that the silence counts.
    (&old.0).write_all(b"ping").expect("writing");
    until("QUIC is doubted", || pair.goes_by(&stage, "tcp-silent"));
    let new = flow(&stage, &listener);
    unblock(&stage);
    let mut received = [0; 4];
    (&old.1).read_exact(&mut received).expect("what was sent before has come");
    until("QUIC answers again", || pair.goes_by(&stage, "quic"));
    pass(&old.0, &old.1);
    exchange(&new.0, &new.1, 1_000_000);
    until("TCP is closed", || pair.tunnels_of_near(&stage) == [1, 0]);
    let newest = flow(&stage, &listener);
    exchange(&newest.0, &newest.1, 1_000_000);
    exchange(&old.0, &old.1, 1_000_000);
}

/// TCP is not tried if UDP passes.
#[test]
fn tcp_is_not_tried_where_udp_passes() {
    let Some(stage) = Stage::set() else { return };
    let ends = Ends::start(&stage, Family::V4, EARLY);
    let listener = stage.listen(Family::V4);
    let _flow = flow(&stage, &listener);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let snapshot = reported(&ends.far, "near");
    assert_eq!((snapshot.tunnels, snapshot.tcp_tunnels), (1, 0));
}

/// A near end that starts before the far end uses QUIC as soon as the far end is there, and not
/// TCP. QUIC retransmits what it sent before only after TCP's turn has come.
#[test]
fn what_was_sent_before_the_far_end_was_there_is_sent_anew() {
    let Some(stage) = Stage::set() else { return };
    nft(&stage.server, "add table inet early");
    nft(&stage.server, "add chain inet early input { type filter hook input priority 0; }");
    nft(
        &stage.server,
        &format!(
            "add rule inet early input meta l4proto {{ tcp, udp }} th dport {PORT} counter drop"
        ),
    );
    let pair = Pair::new("rtt = \"1 s\"\n", "", REJECT);
    let _daemons = pair.start(&stage);
    until("the near end has asked", || dropped(&stage) > 0);
    nft(&stage.server, "delete table inet early");
    until("a tunnel is open", || pair.far_seen().opened_total > 0);
    assert_eq!(pair.far_seen().tcp_opened_total, 0, "{}", log_of(&pair.near));
    let listener = stage.listen(Family::V4);
    let (client, server) = flow(&stage, &listener);
    exchange(&client, &server, 1_000_000);
}

/// The path comes up when TCP's next packet is due before QUIC's: the kernel sends a SYN each second at first, QUIC waits
/// twice as long each time. That is no sign that UDP does not pass.
#[test]
fn a_path_that_comes_up_late_is_not_taken_for_one_without_udp() {
    let Some(stage) = Stage::set() else { return };
    nft(&stage.server, "add table inet early");
    nft(&stage.server, "add chain inet early input { type filter hook input priority 0; }");
    for (protocol, counter) in [("udp", ""), ("tcp", "counter")] {
        let rule = format!("{protocol} dport {PORT} {counter} drop");
        nft(&stage.server, &format!("add rule inet early input {rule}"));
    }
    let pair = Pair::new("", "", REJECT);
    let _daemons = pair.start(&stage);
    // QUIC's packets of the first three seconds are lost, and the next ones are due after seven.
    until("TCP's first SYNs are lost", || dropped(&stage) >= SYNS_LOST);
    nft(&stage.server, "delete table inet early");
    until("a tunnel is open", || pair.far_seen().opened_total > 0);
    let seen = pair.far_seen();
    assert_eq!(seen.carrier.as_deref(), Some("quic"), "{seen:?}\n{}", log_of(&pair.near));
    assert_eq!(seen.tcp_opened_total, 0, "{seen:?}");
    let listener = stage.listen(Family::V4);
    let (client, server) = flow(&stage, &listener);
    exchange(&client, &server, 1_000_000);
}

/// The peer comes up between QUIC's second attempt and TCP's first: TCP opens at once then, and QUIC's packets are lost.
#[test]
fn a_peer_that_comes_up_with_tcp_s_turn_is_not_taken_for_one_without_udp() {
    let Some(stage) = Stage::set() else { return };
    // A set of what has come over TCP; no packet has a mark.
    for rule in [
        "add table inet early",
        "add set inet early up { type mark; flags dynamic; timeout 1h; }",
        "add chain inet early input { type filter hook input priority 0; }",
        &format!("add rule inet early input tcp dport {PORT} add @up {{ meta mark }}"),
        &format!("add rule inet early input udp dport {PORT} meta mark != @up counter drop"),
    ] {
        nft(&stage.server, rule);
    }
    let pair = Pair::new("", "", REJECT);
    let _daemons = pair.start(&stage);
    until("a tunnel is open", || pair.far_seen().opened_total > 0);
    assert!(dropped(&stage) > 0, "UDP has passed from the start");
    assert_eq!(pair.far_seen().carrier.as_deref(), Some("quic"), "{}", log_of(&pair.near));
    assert_eq!(pair.far_seen().tcp_opened_total, 0);
}

/// Either end may turn TCP off.
#[test]
fn an_end_that_wants_no_tcp_has_none() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let authority = Authority::new(&["near", "far"]);
    let own = far_config(Family::V4, &authority, "");
    for (near, far) in [("fallback = \"off\"\n", ""), ("", "fallback = \"off\"\n")] {
        let far = Setup::new(&own.replace("[peers.near]", &format!("{far}[peers.near]")));
        let _far = Running::start_in(&stage.server, &far);
        let near = format!("patience = \"2 s\"\n{near}");
        let near = Setup::new(&near_config(Family::V4, &authority, EARLY, &near, ""));
        let _near = Running::start(&stage, &near);
        let listener = stage.listen(Family::V4);
        let (client, server) = stage.flow(&listener);
        pass(&client, &server);
        assert_eq!(server.peer_addr().expect("a peer").ip(), Family::V4.client(), "without it");
        assert_eq!(near.peer("far").opened_total, 0, "{}", log_of(&near));
    }
}

/// The TCP connection ends with its daemon: what its flows have received must not seem complete.
#[test]
fn a_far_end_that_dies_leaves_no_flow_over_tcp_that_looks_whole() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let pair = Pair::new("", "", REJECT);
    let [_near, far] = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let (down, up) = (flow(&stage, &listener), flow(&stage, &listener));
    let bytes = noise(9, 1 << 20);
    let endless = |mut stream: &TcpStream| while stream.write_all(&bytes).is_ok() {};
    std::thread::scope(|scope| {
        scope.spawn(|| endless(&down.1));
        scope.spawn(|| endless(&up.0));
        let mut chunk = vec![0; 1 << 20];
        (&down.0).read_exact(&mut chunk).expect("the download begins");
        (&up.1).read_exact(&mut chunk).expect("the upload begins");
        far.signal(nix::sys::signal::Signal::SIGKILL);
        assert_eq!(flows::read_until_error(&down.0), ErrorKind::ConnectionReset);
        assert_eq!(flows::read_until_error(&up.1), ErrorKind::ConnectionReset);
    });
}

/// A link is cut for longer than the tunnel's timeout: both ends reset their flows, and connect
/// again.
#[test]
fn a_long_cut_resets_flows_over_tcp_and_the_tunnel_comes_back() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let pair = Pair::new(QUICK, QUICK, REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = flow(&stage, &listener);
    nft(&stage.server, "add chain inet block cutoff { type filter hook input priority 0; }");
    nft(&stage.server, &format!("add rule inet block cutoff tcp dport {PORT} drop"));
    assert_eq!(flows::read_until_error(&client), ErrorKind::ConnectionReset);
    assert_eq!(flows::read_until_error(&server), ErrorKind::ConnectionReset);
    nft(&stage.server, "flush chain inet block cutoff");
    until("the tunnel is there again", || pair.far_seen().tcp_opened_total == 2);
    flow(&stage, &listener);
}

/// GOAWAY: the tunnel's flows continue to their ends, and new ones are carried in another way.
#[test]
fn a_far_end_that_is_asked_to_go_serves_its_flows_over_tcp_to_their_ends() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let pair = Pair::new("rtt = \"20 ms\"\n", "", REJECT);
    let [_near, far] = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = flow(&stage, &listener);
    far.signal(nix::sys::signal::Signal::SIGTERM);
    until("the near end knows", || pair.far_seen().closing_tunnels == 1);
    // Longer than the near end's interval of checks.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    exchange(&client, &server, 2_000_000);
    assert_eq!(far.end(), Some(0), "{}", log_of(&pair.far));
    let _far = pair.start_far(&stage);
    until("there is a tunnel again", || pair.far_seen().tcp_opened_total == 2);
    flow(&stage, &listener);
}
