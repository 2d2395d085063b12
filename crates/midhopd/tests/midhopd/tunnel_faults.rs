//! What survives when a daemon dies, leaves or starts again, and when the link between two daemons
//! is cut.

use crate::ends;
use crate::flows::{pass, read_until_error};
use crate::pair::{Pair, REJECT};
use crate::program::{Setup, log_of};
use crate::stage::{Family, Stage, nft, noise, receive_all, send_all, until};
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{scope, sleep};
use std::time::Duration;

/// A tunnel that is given up soon.
const QUICK: &str = "keepalive = \"500 ms\"\ntimeout = \"2 s\"\npatience = \"2 s\"\n";

/// Whether a flow reached the server through the tunnel.
fn is_tunnelled(server: &TcpStream) -> bool {
    server.peer_addr().expect("a peer").ip() == Family::V4.server()
}

/// A new flow that has carried bytes in both directions. Returns whether it went through the
/// tunnel.
fn try_flow(stage: &Stage, listener: &TcpListener) -> bool {
    let (client, server) = stage.flow(listener);
    pass(&client, &server);
    is_tunnelled(&server)
}

/// Drops the tunnel's packets and nothing else, until [`mend`].
fn cut(stage: &Stage) {
    nft(&stage.server, "add table inet cut");
    for (hook, port) in [("input", "dport"), ("output", "sport")] {
        let chain = format!("add chain inet cut {hook} {{ type filter hook {hook} priority 0; }}");
        nft(&stage.server, &chain);
        let ports = format!("meta l4proto {{ tcp, udp }} th {port} {}", ends::PORT);
        nft(&stage.server, &format!("add rule inet cut {hook} {ports} drop"));
    }
}

fn mend(stage: &Stage) {
    nft(&stage.server, "delete table inet cut");
}

#[test]
fn a_far_end_that_is_killed_and_started_again_is_known_for_another() {
    let Some(stage) = Stage::set() else { return };
    // The tunnel does not time out within this test: its flows end because of the daemon's
    // successor.
    let pair = Pair::new("keepalive = \"1 s\"\n", "", REJECT);
    let far = pair.start_far(&stage);
    let _near = pair.start_near(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    far.signal(Signal::SIGKILL);
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
    assert_ne!(far.end(), Some(0));
    let _far = pair.start_far(&stage);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    assert!(try_flow(&stage, &listener));
}

#[test]
fn a_near_end_that_is_killed_and_started_again_finds_its_peer() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("", "timeout = \"300 s\"\nresume = \"1 s\"\n", REJECT);
    let _far = pair.start_far(&stage);
    let near = pair.start_near(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    near.signal(Signal::SIGKILL);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    assert_ne!(near.end(), Some(0));
    let _near = pair.start_near(&stage);
    assert!(try_flow(&stage, &listener));
    // The dead end sends nothing on it any more, and this is detected: otherwise its connection
    // would last for a minute.
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
}

#[test]
fn a_far_end_that_is_asked_to_go_serves_its_flows_to_their_ends() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("patience = \"1 s\"\n", "", "");
    let far = pair.start_far(&stage);
    let _near = pair.start_near(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    assert!(is_tunnelled(&server));
    far.signal(Signal::SIGTERM);
    until("the near end knows", || pair.far_seen().closing_tunnels == 1);
    assert!(!try_flow(&stage, &listener), "new flows go without it");
    // Longer than the near end's interval of checks.
    sleep(Duration::from_millis(2500));
    let bytes = noise(3, 2_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&server, &bytes));
        assert!(receive_all(&client) == bytes);
    });
    client.shutdown(Shutdown::Write).expect("the end");
    assert_eq!(receive_all(&server), b"");
    assert_eq!(far.end(), Some(0), "{}", log_of(&pair.far));
    let _far = pair.start_far(&stage);
    until("there is a tunnel again", || try_flow(&stage, &listener));
}

#[test]
fn an_end_that_goes_at_once_announces_it() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("", "", REJECT);
    let drain = |setup: &Setup| {
        let config = std::fs::read_to_string(setup.config()).expect("a file");
        setup.rewrite(&format!("[daemon]\ndrain = \"0 s\"\n{config}"));
    };
    drain(&pair.near);
    drain(&pair.far);
    let mut far = pair.start_far(&stage);
    let mut near = pair.start_near(&stage);
    let listener = stage.listen(Family::V4);
    // The tunnel would time out at neither end within this test.
    for far_goes in [true, false] {
        let (client, server) = stage.flow(&listener);
        pass(&client, &server);
        if far_goes {
            far.signal(Signal::SIGTERM);
        } else {
            near.signal(Signal::SIGTERM);
        }
        assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
        assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
        if far_goes {
            until("it has gone", || far.has_ended());
            far = pair.start_far(&stage);
        } else {
            until("it has gone", || near.has_ended());
            near = pair.start_near(&stage);
        }
    }
}

/// A download continues after a cut, a flow that begins meanwhile waits, and an idle one is kept.
fn outlive(seconds: u64) {
    let Some(stage) = Stage::set() else { return };
    let patient = format!("patience = \"{} s\"\n", seconds + 10);
    let pair = Pair::new(&patient, "", REJECT);
    let _far = pair.start_far(&stage);
    let _near = pair.start_near(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let idle = stage.flow(&listener);
    let bytes = noise(6, 30_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&server, &bytes));
        let mut head = vec![0; 1 << 20];
        (&client).read_exact(&mut head).expect("it begins");
        cut(&stage);
        let address = listener.local_addr().expect("an address");
        let young = stage.connect(address).expect("it is accepted early");
        sleep(Duration::from_secs(seconds));
        mend(&stage);
        let (other, _) = listener.accept().expect("a flow that began meanwhile");
        pass(&young, &other);
        assert!(is_tunnelled(&other));
        assert!(receive_all(&client) == bytes[head.len()..], "every byte arrives");
    });
    pass(&idle.0, &idle.1);
    // TCP may have been tried as well.
    let seen = pair.far_seen();
    assert_eq!(seen.opened_total - seen.tcp_opened_total, 1, "{}", log_of(&pair.near));
}

#[test]
fn flows_outlive_a_cut_of_a_second() {
    outlive(1);
}

/// Longer than a beam change, and shorter than the tunnel's timeout.
#[test]
fn flows_outlive_a_cut_of_fifteen_seconds() {
    outlive(15);
}

/// If a peer refuses at once, each time, the pauses between attempts grow.
#[test]
fn attempts_come_at_growing_intervals() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("", "", "");
    let other = Pair::new("", "", "");
    let _far = other.start_far(&stage);
    let _near = pair.start_near(&stage);
    until("it has tried five times", || {
        let seen = pair.far_seen();
        if let Some(last) = seen.open_failures_total.checked_sub(1) {
            assert_eq!(seen.retry_pause_s, Some(f64::powi(2.0, last as i32) / 4.0), "{seen:?}");
        }
        seen.open_failures_total == 5
    });
}

#[test]
fn a_long_cut_resets_flows_and_new_ones_go_without_the_tunnel_until_it_is_back() {
    let Some(stage) = Stage::set() else { return };
    let own = format!("{QUICK}resume = \"0 s\"\n");
    let pair = Pair::new(&own, &own, "");
    let _far = pair.start_far(&stage);
    let _near = pair.start_near(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    assert!(is_tunnelled(&server));
    cut(&stage);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
    for _ in 0..30 {
        assert!(!try_flow(&stage, &listener));
    }
    mend(&stage);
    until("the tunnel is used again", || {
        sleep(Duration::from_millis(100));
        try_flow(&stage, &listener)
    });
}

/// The near end gets another address, like a terminal that is moved to another beam.
#[test]
fn flows_outlive_a_change_of_the_near_end_s_address() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("", "", REJECT);
    let _far = pair.start_far(&stage);
    let _near = pair.start_near(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let bytes = noise(6, 30_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&server, &bytes));
        let mut head = vec![0; 1 << 20];
        (&client).read_exact(&mut head).expect("it begins");
        for change in ["del 10.0.2.1/24", "add 10.0.2.3/24"] {
            let mut command = stage.gateway.command("ip");
            command.args(["addr"]).args(change.split(' ')).args(["dev", "wan0"]);
            assert!(command.status().expect("ip starts").success());
        }
        assert!(receive_all(&client) == bytes[head.len()..], "every byte arrives");
    });
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    assert_eq!(pair.far_seen().opened_total, 1, "{}", log_of(&pair.near));
}

/// A flow that still works after a silence longer than the timeout of a [quick](QUICK) tunnel.
fn idle_flow(stage: &Stage) -> (TcpStream, TcpStream) {
    let (client, server) = stage.flow(&stage.listen(Family::V4));
    pass(&client, &server);
    sleep(Duration::from_secs(5));
    pass(&client, &server);
    (client, server)
}

#[test]
fn an_idle_flow_is_kept() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(QUICK, QUICK, REJECT);
    let _far = pair.start_far(&stage);
    let _near = pair.start_near(&stage);
    let _flow = idle_flow(&stage);
    assert_eq!(pair.far_seen().opened_total, 1, "{}", log_of(&pair.near));
}

/// QUIC settles the permitted silence before the peer is identified.
#[test]
fn a_peer_is_asked_and_given_up_by_its_own_table() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("", &format!("{QUICK}resume = \"0 s\"\n[peers.another]\n"), REJECT);
    let _far = pair.start_far(&stage);
    let _near = pair.start_near(&stage);
    let (_client, server) = idle_flow(&stage);
    cut(&stage);
    // With the other peer's table this would take a minute.
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
}

#[test]
fn without_a_far_end_flows_go_by_their_rule() {
    let Some(stage) = Stage::set() else { return };
    let listener = stage.listen(Family::V4);
    for (rule, expected) in [("", Some(false)), (REJECT, None)] {
        let pair = Pair::new("patience = \"200 ms\"\n", "", rule);
        let _near = pair.start_near(&stage);
        if expected.is_some() {
            assert!(!try_flow(&stage, &listener));
        } else {
            let address = listener.local_addr().expect("an address");
            // It is accepted early; on a busy machine the reset arrives before connecting has
            // returned.
            let broken = stage
                .connect(address)
                .map_or_else(|error| error.kind(), |it| read_until_error(&it));
            assert_eq!(broken, ErrorKind::ConnectionReset);
        }
    }
}
