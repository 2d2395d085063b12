//! Flows that pass by whole and are repaired: `action = "assist"`.

use crate::program::{Running, Setup, traces};
use crate::stage::{Family, Stage, nft, noise, receive_all, send_all, until};
use crate::strangers::counter;
use midhop_linux::tcp_info::TcpInfo;
use midhopd::data_plane::DataPlane;
use nix::sys::signal::Signal;
use std::net::TcpStream;

const ASSIST: &str = "[[rules]]\naction = \"assist\"\n[assist]\ninterfaces = \"wan0\"\n";

/// A link that loses packets in the direction of the server only.
fn lossy() -> Option<Stage> {
    // The link is so fast that its queue stays short: losses are those of the link.
    let link = "rate = \"500 Mbit/s\"\ndelay = \"10 ms\"\nqueue = \"4 MB\"";
    Stage::set_over(link, &format!("{link}\nloss = 0.03"), "20 ms")
}

/// A counter of the agent, by its name, as of the last report.
fn counted(proxy: &DataPlane, what: &str) -> u64 {
    let counts = proxy.ledgers().iter().map(|ledger| ledger.assist.counts());
    counts.filter_map(|counts| counts.get(what).copied()).sum()
}

fn assisted(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.assisted.value()).sum()
}

fn split(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum()
}

/// Retransmissions of a sender's kernel.
fn retransmissions(sender: &TcpStream) -> u32 {
    TcpInfo::of(sender).expect("the kernel's figures").retransmissions
}

/// Sends `length` bytes to the server over a flow, and a few back. Returns the retransmissions of
/// the client's kernel.
fn upload(stage: &Stage, family: Family, length: usize) -> u32 {
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    let (sent, answer) = (noise(3, length), noise(4, 5000));
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let received = receive_all(&server);
            send_all(&server, &answer);
            received
        });
        send_all(&client, &sent);
        receiver.join().expect("all arrives")
    });
    assert!(received == sent, "other bytes arrived than were sent");
    assert!(receive_all(&client) == answer, "other bytes came back than were sent");
    retransmissions(&client)
}

/// Uploads until the agent has `done` something, which requires that it has found that the link
/// loses packets. Returns the number of uploads.
fn upload_until(stage: &Stage, family: Family, done: impl Fn() -> bool) -> u64 {
    let mut flows = 0;
    until("it is repaired", || {
        upload(stage, family, 1 << 20);
        flows += 1;
        done()
    });
    flows
}

#[test]
fn losses_beyond_the_gateway_are_repaired_there() {
    for family in [Family::V4, Family::V6] {
        let Some(stage) = lossy() else { return };
        assert!(upload(&stage, family, 1 << 20) > 0, "the link loses nothing");
        for conntrack in ["off", "on"] {
            let proxy = stage.proxy(&format!("conntrack = \"{conntrack}\"\n{ASSIST}"));
            // How many losses are left to the client depends on delays, which are longer on a busy
            // machine.
            let flows = upload_until(&stage, family, || {
                counted(&proxy, "segments-resent") > 0 && counted(&proxy, "acks-suppressed") > 0
            });
            assert_eq!((assisted(&proxy), split(&proxy)), (flows, 0));
            assert_eq!(counted(&proxy, "packets-unsent"), 0);
        }
    }
}

#[test]
fn a_flow_behind_source_nat_is_repaired_too() {
    let Some(stage) = lossy() else { return };
    nft(
        &stage.gateway,
        "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; \
         add rule ip nat post oifname wan0 masquerade",
    );
    let proxy = stage.proxy(ASSIST);
    let flows = upload_until(&stage, Family::V4, || {
        counted(&proxy, "segments-resent") > 0 && counted(&proxy, "acks-suppressed") > 0
    });
    assert_eq!((assisted(&proxy), split(&proxy)), (flows, 0));
}

/// A link with the same rate and delay that loses only what its queue has no room for.
#[test]
fn what_a_queue_drops_is_left_to_the_client() {
    let link = "rate = \"100 Mbit/s\"\ndelay = \"10 ms\"";
    let Some(stage) = Stage::set_over(link, &format!("{link}\nqueue = \"60 kB\""), "20 ms") else {
        return;
    };
    let proxy = stage.proxy(ASSIST);
    let again: u32 = (0..3).map(|_| upload(&stage, Family::V4, 4 << 20)).sum();
    assert!(again > 0, "the queue drops nothing");
    until("its losses are counted", || counted(&proxy, "segments-left-to-source") > 0);
    assert_eq!((assisted(&proxy), split(&proxy)), (3, 0));
    // On a busy host, a queue of 5 ms is sometimes hidden by the host's own delays, and its drops
    // look like losses of a radio link.
    let [resent, left] =
        ["segments-resent", "segments-left-to-source"].map(|what| counted(&proxy, what));
    assert!(
        resent <= left / 10,
        "{resent} are sent again from here, {left} are left to the client"
    );
}

/// For a flow that passes by, acknowledgements onto a slow link are thinned, and acknowledgements
/// from one are spaced.
#[test]
fn acknowledgements_are_thinned_and_spaced() {
    // Acknowledgements of losses are not thinned. This link loses nothing.
    let link = "rate = \"200 Mbit/s\"\ndelay = \"5 ms\"\nqueue = \"8 MB\"";
    let none = "repair = \"none\"\n";
    let spacing =
        format!("{ASSIST}{none}[assist.ack_spacing]\nrate = \"50 Mbit/s\"\nrebuild = \"2896 B\"\n");
    let thinning = format!("{ASSIST}{none}[assist.ack_decimation]\nkeep_one_in = 8\n");
    for family in [Family::V4, Family::V6] {
        let Some(stage) = Stage::set_over(link, link, "20 ms") else { return };
        let proxy = stage.proxy(&spacing);
        upload(&stage, family, 4 << 20);
        until("they are spaced", || counted(&proxy, "acks-spaced") > 0);
        assert_eq!((assisted(&proxy), split(&proxy)), (1, 0));
        drop(proxy);
        let proxy = stage.proxy(&thinning);
        let listener = stage.listen(family);
        let (client, server) = stage.flow(&listener);
        let sent = noise(8, 4 << 20);
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_all(&client));
            send_all(&server, &sent);
            receiver.join().expect("all arrives")
        });
        assert!(received == sent, "other bytes arrived than were sent");
        // The number depends on how close together acknowledgements arrive, and so on the load of
        // the machine.
        until("they are thinned", || counted(&proxy, "acks-left-out") > 0);
        assert_eq!(counted(&proxy, "packets-unsent"), 0);
    }
}

#[test]
fn a_flow_goes_on_when_the_daemon_goes() {
    let Some(stage) = lossy() else { return };
    let proxy = stage.proxy(ASSIST);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let sent = noise(5, 2 << 20);
    let (first, rest) = sent.split_at(1 << 20);
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_all(&server));
        std::io::Write::write_all(&mut &client, first).expect("writing");
        drop(proxy);
        send_all(&client, rest);
        receiver.join().expect("all arrives")
    });
    assert!(received == sent, "other bytes arrived than were sent");
}

#[test]
fn where_what_is_sent_does_not_leave_the_host_flows_pass_as_they_are() {
    let Some(stage) = lossy() else { return };
    // What the agent sends belongs to no connection of this host.
    nft(
        &stage.gateway,
        "add table inet strict; add chain inet strict out { type filter hook output priority 0; policy drop; }; \
         add rule inet strict out ct state established accept",
    );
    let proxy = stage.proxy(ASSIST);
    let mut flows = 0;
    until("it is noticed", || {
        upload(&stage, Family::V4, 1 << 20);
        flows += 1;
        counted(&proxy, "rests") == 1
    });
    upload(&stage, Family::V4, 1 << 20);
    assert_eq!((assisted(&proxy), split(&proxy)), (flows + 1, 0));
}

#[test]
fn without_a_rule_nothing_is_assisted() {
    let Some(stage) = lossy() else { return };
    let proxy = stage.proxy("[[rules]]\naction = \"bypass\"\n[assist]\ninterfaces = \"wan0\"\n");
    upload(&stage, Family::V4, 1 << 18);
    assert_eq!((assisted(&proxy), split(&proxy)), (0, 0));
    assert_eq!(counted(&proxy, "segments-cached"), 0);
}

/// The process that reads the packets has no privilege, and a flow whose daemon was killed goes on
/// to its end.
#[test]
fn a_daemon_with_a_keeper_repairs_and_may_be_killed() {
    for family in [Family::V4, Family::V6] {
        let Some(stage) = lossy() else { return };
        let before = traces(&stage.gateway);
        let setup = Setup::new(&format!("[intercept]\ninterfaces = \"lan0\"\n{ASSIST}"));
        let running = Running::start(&stage, &setup);
        upload_until(&stage, family, || counter(&stage.gateway, "midhop_main", "mended") > 0);
        let listener = stage.listen(family);
        let (client, server) = stage.flow(&listener);
        let sent = noise(6, 2 << 20);
        let (first, rest) = sent.split_at(1 << 20);
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_all(&server));
            std::io::Write::write_all(&mut &client, first).expect("writing");
            running.signal(Signal::SIGKILL);
            send_all(&client, rest);
            receiver.join().expect("all arrives")
        });
        assert!(received == sent, "other bytes arrived than were sent");
        running.end();
        until("nothing is left", || traces(&stage.gateway) == before);
    }
}
