//! Flows that outlive their tunnel: carriers that die, that change, and that are cut for longer
//! than the tunnel's timeout.
//!
//! `client – gateway with one proxy – link – server's host with the other, and the server`

use crate::ends::PORT;
use crate::flows::lasting::{
    SURELY, Way, assert_ended, cut, cut_one_way, lasting_flow, mend, none_is_left, outcomes,
    outlive,
};
use crate::flows::{block, pass, read_until_error, reset, send_endlessly, unblock};
use crate::pages::{metric, page};
use crate::pair::{Pair, REJECT};
use crate::program::{Setup, log_of};
use crate::stage::{Family, Stage, nft, noise, receive_all, send_all, until};
use midhop_status::control::answer::LiveFlow;
use midhop_testbed::namespace::Namespace;
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// A tunnel that is given up soon.
const QUICK: &str = "keepalive = \"500 ms\"\ntimeout = \"2 s\"\nrtt = \"20 ms\"\n";
const LINK: &str = "rate = \"40 Mbit/s\"\ndelay = \"5 ms\"\n";
/// The same without a fallback.
const ALONE: &str = "keepalive = \"500 ms\"\ntimeout = \"2 s\"\nfallback = \"off\"\n";

/// Longer than three attempts to return to UDP take.
const RETURN: Duration = Duration::from_secs(100);

/// Unit: bytes. Relayed by the gateway.
fn stalled(stage: &Stage) -> [u64; 2] {
    let page = page(&stage.gateway, "/metrics");
    ["up", "down"]
        .map(|way| metric(&page, &format!("midhop_relayed_bytes_total{{direction=\"{way}\"}}")))
}

/// How many flows a proxy has.
fn flows_of(host: &Namespace) -> u64 {
    metric(&page(host, "/metrics"), "midhop_flows")
}

#[test]
fn flows_outlive_a_tunnel_that_both_ends_have_given_up() {
    let Some(stage) = Stage::set_over(LINK, LINK, "10 ms") else {
        return;
    };
    let pair = Pair::new(ALONE, ALONE, REJECT);
    let _running = pair.start(&stage);
    outlive(
        &stage,
        &pair,
        Family::V4,
        &[&|| {
            cut(&stage);
            until("both have given it up", || {
                pair.tunnels_of_near(&stage)[0] + pair.tunnels_of_far(&stage)[0] == 0
            });
            mend(&stage);
        }],
    );
    assert!(outcomes(&stage.gateway, "resumed") >= SURELY, "{}", log_of(&pair.near));
    assert!(outcomes(&stage.server, "resumed") >= SURELY, "{}", log_of(&pair.far));
    assert!(pair.far_seen().opened_total >= 2);
}

/// One end receives nothing any more, gives the tunnel up and reports that to the other, which still
/// receives.
fn flows_outlive_a_link_that_is_dead_one_way(way: Way) {
    let Some(stage) = Stage::set_over(LINK, LINK, "10 ms") else { return };
    let pair = Pair::new(ALONE, ALONE, REJECT);
    let _running = pair.start(&stage);
    let event = || {
        cut_one_way(&stage, way);
        until("both have given it up", || {
            pair.tunnels_of_near(&stage)[0] + pair.tunnels_of_far(&stage)[0] == 0
        });
        mend(&stage);
    };
    outlive(&stage, &pair, Family::V4, &[&event]);
    assert!(outcomes(&stage.gateway, "resumed") >= SURELY, "{}", log_of(&pair.near));
    assert!(outcomes(&stage.server, "resumed") >= SURELY, "{}", log_of(&pair.far));
}

#[test]
fn flows_outlive_a_link_that_is_dead_towards_the_far_end() {
    flows_outlive_a_link_that_is_dead_one_way(Way::ToFar);
}

#[test]
fn flows_outlive_a_link_that_is_dead_towards_the_near_end() {
    flows_outlive_a_link_that_is_dead_one_way(Way::ToNear);
}

/// Again and again, while the same flows are in progress.
#[test]
fn flows_outlive_one_tunnel_after_the_other() {
    let Some(stage) = Stage::set_over(LINK, LINK, "10 ms") else { return };
    let pair = Pair::over(Family::V6, ALONE, ALONE, REJECT);
    let _running = pair.start(&stage);
    let breaks = Cell::new(0);
    // Flows without bytes may continue later than others.
    let all_go_on = || outcomes(&stage.server, "resumed") >= SURELY * breaks.get();
    let give_up = || {
        until("all flows go on after the break before", all_go_on);
        breaks.set(breaks.get() + 1);
        cut(&stage);
        until("the near end has given it up", || pair.tunnels_of_near(&stage)[0] == 0);
        mend(&stage);
    };
    outlive(&stage, &pair, Family::V6, &[&give_up, &give_up, &give_up]);
    assert!(breaks.get() == 3 && all_go_on(), "{}", log_of(&pair.far));
}

#[test]
fn flows_that_nobody_reads_hold_up_no_others() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(ALONE, ALONE, REJECT);
    let _running = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    let flows: Vec<(TcpStream, TcpStream)> = (0..4).map(|_| stage.flow(&listener)).collect();
    let (up, down) = (noise(1, 8_000_000), noise(2, 8_000_000));
    scope(|scope| {
        for (client, server) in &flows {
            scope.spawn(|| send_all(client, &up));
            scope.spawn(|| send_all(server, &down));
        }
        until("they fill what they may", || {
            let before = stalled(&stage);
            sleep(Duration::from_millis(300));
            before == stalled(&stage)
        });
        for (client, server) in &flows {
            let (up, down) = (&up, &down);
            let other =
                scope.spawn(move || assert!(receive_all(server) == *up, "what the client sent"));
            assert!(receive_all(client) == *down, "what the server sent");
            other.join().expect("received");
        }
    });
}

/// Flows continue over TCP while UDP is blocked, and return to QUIC when it passes again.
#[test]
fn flows_move_to_tcp_when_udp_is_blocked_and_back() {
    let Some(stage) = Stage::set_over(LINK, LINK, "10 ms") else { return };
    let pair = Pair::new(QUICK, QUICK, REJECT);
    let _running = pair.start(&stage);
    outlive(
        &stage,
        &pair,
        Family::V4,
        &[&|| {
            block(&stage);
            until("the tunnel is over TCP", || pair.tunnels_of_near(&stage)[1] == 1);
            until("all flows have moved", || outcomes(&stage.server, "resumed") >= SURELY);
        }],
    );
    let before = outcomes(&stage.gateway, "resumed");
    outlive(
        &stage,
        &pair,
        Family::V4,
        &[&|| {
            unblock(&stage);
            // It is tried at growing intervals.
            let begun = Instant::now();
            while !pair.goes_by(&stage, "quic") {
                assert!(begun.elapsed() < RETURN, "{}", log_of(&pair.near));
                sleep(Duration::from_millis(100));
            }
            until("nothing is left over TCP", || pair.tunnels_of_near(&stage) == [1, 0]);
        }],
    );
    let moved = outcomes(&stage.gateway, "resumed") - before;
    assert!(moved >= 3, "{moved} flows, and three that rested: {}", log_of(&pair.near));
}

/// A connection over TCP is reset on its way, as by a middlebox.
#[test]
fn flows_outlive_a_tunnel_over_tcp() {
    let Some(stage) = Stage::set_over(LINK, LINK, "10 ms") else { return };
    let only = format!("{QUICK}fallback = \"only\"\n");
    let pair = Pair::new(&only, &only, REJECT);
    let _running = pair.start(&stage);
    outlive(
        &stage,
        &pair,
        Family::V4,
        &[&|| {
            nft(&stage.server, "add table inet cut");
            nft(&stage.server, "add chain inet cut input { type filter hook input priority 0; }");
            let rule = format!("add rule inet cut input tcp dport {PORT} reject with tcp reset");
            nft(&stage.server, &rule);
            until("it is gone", || pair.tunnels_of_near(&stage)[0] == 0);
            mend(&stage);
        }],
    );
    assert!(outcomes(&stage.gateway, "resumed") >= SURELY, "{}", log_of(&pair.near));
}

/// The near end gets another address, which a connection over TCP does not outlive.
#[test]
fn flows_outlive_a_change_of_address_over_tcp() {
    let Some(stage) = Stage::set() else { return };
    let only = format!("{QUICK}fallback = \"only\"\n");
    let pair = Pair::new(&only, &only, REJECT);
    let _running = pair.start(&stage);
    // A flow that has sent everything before the change has nothing to resume. The idle flows have.
    outlive(
        &stage,
        &pair,
        Family::V4,
        &[&|| {
            for change in ["del 10.0.2.1/24", "add 10.0.2.3/24"] {
                let mut command = stage.gateway.command("ip");
                command.args(["addr"]).args(change.split(' ')).args(["dev", "wan0"]);
                assert!(command.status().expect("ip starts").success());
            }
            until("they have moved", || outcomes(&stage.gateway, "resumed") >= 2);
        }],
    );
}

/// The last confirmation of one end is lost with its carrier: the next carrier shows both ends that the flow is complete.
fn a_complete_flow_is_left_by_both_ends(settings: &str, lost: Lost) {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(settings, settings, REJECT);
    let _running = pair.start(&stage);
    let (client, server) = lasting_flow(&stage, Family::V4);
    until("the flow before is over", || [&stage.gateway, &stage.server].map(flows_of) == [1, 1]);
    let (first, second, way) = match lost {
        Lost::OfNear => (&client, &server, Way::ToFar),
        Lost::OfFar => (&server, &client, Way::ToNear),
    };
    first.shutdown(Shutdown::Write).expect("the end");
    assert_eq!(receive_all(second), b"");
    cut_one_way(&stage, way);
    second.shutdown(Shutdown::Write).expect("the end");
    assert_eq!(receive_all(first), b"");
    // Nothing passes any more, so that neither end learns from the other that the tunnel is given up.
    mend(&stage);
    cut(&stage);
    until("both have given the tunnel up", || {
        [pair.tunnels_of_near(&stage), pair.tunnels_of_far(&stage)] == [[0, 0]; 2]
    });
    mend(&stage);
    none_is_left(&stage);
    assert_ended(&(client, server));
    for host in [&stage.gateway, &stage.server] {
        let seen = ["lost", "refused"].map(|outcome| outcomes(host, outcome));
        assert_eq!(seen, [0, 0], "{} {}", log_of(&pair.near), log_of(&pair.far));
    }
}

/// Whose confirmation is lost.
#[derive(Debug, Clone, Copy)]
enum Lost {
    OfNear,
    OfFar,
}

#[test]
fn a_complete_flow_is_left_though_the_near_end_s_confirmation_is_lost_over_quic() {
    a_complete_flow_is_left_by_both_ends(ALONE, Lost::OfNear);
}

#[test]
fn a_complete_flow_is_left_though_the_near_end_s_confirmation_is_lost_over_tcp() {
    a_complete_flow_is_left_by_both_ends(&format!("{QUICK}fallback = \"only\"\n"), Lost::OfNear);
}

#[test]
fn a_complete_flow_is_left_though_the_far_end_s_confirmation_is_lost_over_quic() {
    a_complete_flow_is_left_by_both_ends(ALONE, Lost::OfFar);
}

#[test]
fn a_complete_flow_is_left_though_the_far_end_s_confirmation_is_lost_over_tcp() {
    a_complete_flow_is_left_by_both_ends(&format!("{QUICK}fallback = \"only\"\n"), Lost::OfFar);
}

/// The bytes of a flow that a proxy has accepted, and that were not passed on yet, are shown.
#[test]
fn what_is_accepted_and_not_delivered_is_shown() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(ALONE, ALONE, REJECT);
    let _running = pair.start(&stage);
    let (client, server) = lasting_flow(&stage, Family::V4);
    // The previous flow may live for a moment longer: all of its bytes are delivered.
    let undelivered = |setup: &Setup| -> u64 {
        let of = |flow: &LiveFlow| {
            let bytes = flow.up_undelivered_bytes?;
            assert!(bytes <= flow.up_bytes, "more than was accepted: {flow:?}");
            Some(bytes)
        };
        setup.flows().iter().filter_map(of).sum()
    };
    let bytes = noise(1, 8_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&client, &bytes));
        until("what nobody reads is counted where it is", || {
            let [near, far] = [&pair.near, &pair.far].map(undelivered);
            near > 100_000 && far > 0
        });
        assert!(receive_all(&server) == bytes);
    });
    until("all of it is delivered", || [&pair.near, &pair.far].map(undelivered) == [0, 0]);
}

#[test]
fn what_nobody_confirms_is_not_called_delivered() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(ALONE, &format!("{ALONE}resume = \"0 s\"\n"), REJECT);
    let _running = pair.start(&stage);
    let _flow = lasting_flow(&stage, Family::V4);
    let is_unknown = |flow: &LiveFlow| flow.up_undelivered_bytes.is_none();
    until("its flows are shown without it", || {
        let flows = pair.near.flows();
        !flows.is_empty() && flows.iter().all(is_unknown)
    });
}

#[test]
fn a_flow_that_is_not_resumed_in_time_breaks() {
    let Some(stage) = Stage::set() else { return };
    let hasty = format!("{ALONE}resume = \"3 s\"\n");
    let pair = Pair::new(&hasty, &hasty, REJECT);
    let _running = pair.start(&stage);
    let (client, server) = lasting_flow(&stage, Family::V4);
    cut(&stage);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
    for host in [&stage.gateway, &stage.server] {
        until("it is counted", || outcomes(host, "lost") == 1);
    }
}

/// A far end that was started again does not know earlier flows: they break at once, and do not
/// wait.
#[test]
fn a_far_end_that_knows_no_flow_reports_it() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(ALONE, ALONE, REJECT);
    let [_near, far] = pair.start(&stage);
    let (client, server) = lasting_flow(&stage, Family::V4);
    far.signal(nix::sys::signal::Signal::SIGKILL);
    assert_ne!(far.end(), Some(0));
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
    let _far = pair.start_far(&stage);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    until("it is counted", || outcomes(&stage.server, "refused") >= 1);
}

/// A client resets while its flow has no tunnel: the server is reset, after what the client had
/// sent.
#[test]
fn a_client_that_breaks_meanwhile_breaks_the_flow_when_it_goes_on() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(ALONE, ALONE, REJECT);
    let _running = pair.start(&stage);
    let (client, mut server) = lasting_flow(&stage, Family::V4);
    cut(&stage);
    (&client).write_all(b"last words").expect("writing");
    until("both have given it up", || {
        pair.tunnels_of_near(&stage)[0] + pair.tunnels_of_far(&stage)[0] == 0
    });
    reset(client);
    mend(&stage);
    let mut received = [0; 10];
    server.read_exact(&mut received).expect("the last words");
    assert_eq!(&received, b"last words");
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
}

#[test]
fn where_one_end_keeps_no_flows_they_end_with_their_tunnel() {
    let Some(stage) = Stage::set() else { return };
    let none = format!("{ALONE}resume = \"0 s\"\n");
    for (near, far) in [(ALONE, none.as_str()), (none.as_str(), ALONE)] {
        let pair = Pair::new(near, far, REJECT);
        let _running = pair.start(&stage);
        let (client, server) = lasting_flow(&stage, Family::V4);
        cut(&stage);
        assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
        assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
        mend(&stage);
    }
}

/// A client that closes in the middle of a download, and one that resets: neither leaves a flow
/// behind.
#[test]
fn who_leaves_in_the_middle_leaves_no_flow() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new(ALONE, ALONE, REJECT);
    let _running = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    drop(stage.flow(&listener));
    for ends in 0..3 {
        let (client, server) = stage.flow(&listener);
        pass(&client, &server);
        scope(|scope| {
            scope.spawn(|| send_endlessly(&server));
            (&client).read_exact(&mut [0; 100_000]).expect("it begins");
            match ends {
                0 => client.shutdown(Shutdown::Both).expect("the end"),
                1 => drop(client),
                _ => reset(client),
            }
        });
        drop(server);
        for host in [&stage.gateway, &stage.server] {
            until("no flow is left", || metric(&page(host, "/metrics"), "midhop_flows") == 0);
        }
    }
}
