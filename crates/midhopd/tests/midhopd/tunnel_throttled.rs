//! Tunnels whose datagrams pass but carry little: they change to TCP if that carries more, and
//! back.
//!
//! `client – gateway with one proxy – link – server's host with the other, and the server`

use crate::ends::PORT;
use crate::flows::{self, EndedFlow, await_bytes, count_on, send_endlessly, with_bulk};
use crate::pair::{Pair, REJECT};
use crate::program::log_of;
use crate::stage::{Family, Stage, nft};
use midhop_status::control::answer::PeerStatus;
use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::atomic::AtomicU64;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const LINK: &str = "rate = \"20 Mbit/s\"\ndelay = \"20 ms\"\n";
const LEG: &str = "rtt = \"40 ms\"\nrate = \"20 Mbit/s\"\n";
/// Longer than a suspicion and a trial take together, on a machine so busy that a suspicion lapses
/// at times.
const PATIENCE: Duration = Duration::from_secs(540);

/// A condition on the near end's report of its carriers.
type Holds = fn(&PeerStatus) -> bool;

const GONE: Holds = |seen| seen.carrier.as_deref() == Some("tcp-throttled");
const KEPT: Holds = |seen| seen.vain_tcp_trials_total > 0;
const BACK: Holds = |seen| seen.carrier.as_deref() == Some("quic");

/// The end that sends without limit.
#[derive(Clone, Copy, PartialEq)]
enum Talker {
    Client,
    Server,
}

/// Opens new flows, of which one end sends without limit, until a condition on the near proxy's
/// carriers holds.
fn come_until(stage: &Stage, listener: &TcpListener, pair: &Pair, talker: Talker, holds: Holds) {
    let start = Instant::now();
    scope(|scope| {
        let mut flows = VecDeque::new();
        while !holds(&pair.far_seen()) && start.elapsed() < PATIENCE {
            let (client, server) = stage.flow(listener);
            let [own, other] = [&client, &server].map(|it| it.try_clone().expect("another"));
            flows.push_back(EndedFlow((client, server)));
            let (from, to) = if talker == Talker::Client { (own, other) } else { (other, own) };
            scope.spawn(move || send_endlessly(&from));
            scope.spawn(move || count_on(&to, &AtomicU64::new(0)));
            // Only a few at a time, because each has two threads here. A trial gets new ones,
            // whenever it begins.
            if flows.len() > 20 {
                flows.pop_front();
            }
            sleep(Duration::from_secs(1));
        }
    });
    let seen = pair.far_seen();
    assert!(holds(&seen), "waited in vain: {seen:?}\n{}", log_of(&pair.near));
}

/// Fails if TCP was tried at all.
fn assert_untried(pair: &Pair) {
    let seen = pair.far_seen();
    let counts = (seen.tcp_trials_total, seen.tcp_opened_total, seen.carrier_changes_total);
    assert_eq!(counts, (0, 0, 0), "{seen:?}\n{}", log_of(&pair.near));
}

/// Datagrams from the talker beyond a tenth of the link's rate are dropped; TCP passes.
fn police(stage: &Stage, talker: Talker) {
    let (hook, port) =
        if talker == Talker::Client { ("input", "dport") } else { ("output", "sport") };
    nft(&stage.server, "add table inet police");
    let chain = format!("add chain inet police way {{ type filter hook {hook} priority 0; }}");
    nft(&stage.server, &chain);
    let limit = "limit rate over 250 kbytes/second burst 25 kbytes drop";
    nft(&stage.server, &format!("add rule inet police way udp {port} {PORT} {limit}"));
}

/// All earlier flows have ended when the policer is removed: new ones have to detect that.
#[test]
fn a_tunnel_whose_downloads_are_policed_goes_to_tcp_and_comes_back() {
    let Some(stage) = Stage::set_over(LINK, LINK, "40 ms") else { return };
    police(&stage, Talker::Server);
    let pair = Pair::new(LEG, LEG, REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    come_until(&stage, &listener, &pair, Talker::Server, GONE);
    assert_ne!(pair.far_seen().tcp_trials_total, 0, "{}", log_of(&pair.near));
    nft(&stage.server, "delete table inet police");
    come_until(&stage, &listener, &pair, Talker::Server, BACK);
}

/// No new flow is needed if an earlier one continues.
#[test]
fn a_tunnel_whose_uploads_are_policed_goes_to_tcp_and_comes_back() {
    let Some(stage) = Stage::set_over(LINK, LINK, "40 ms") else { return };
    police(&stage, Talker::Client);
    let pair = Pair::new(LEG, LEG, REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    with_bulk(&stage, &listener, 1, true, |_| {
        come_until(&stage, &listener, &pair, Talker::Client, GONE);
        nft(&stage.server, "delete table inet police");
        come_until(&stage, &listener, &pair, Talker::Client, BACK);
    });
}

/// The link loses much, and is full: this is no suspicion.
#[test]
fn a_full_link_that_loses_much_is_not_suspected() {
    let lossy = format!("{LINK}loss = \"5 %\"\n");
    let Some(stage) = Stage::set_over(&lossy, &lossy, "40 ms") else { return };
    let pair = Pair::new(LEG, LEG, REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    // More than the link carries during two suspicion times.
    with_bulk(&stage, &listener, 4, false, |counts| await_bytes(counts, 45_000_000));
    assert_untried(&pair);
}

/// The link carries far less than configured, and loses much: TCP is tried, and carries no more.
#[test]
fn a_lossy_link_that_is_slower_than_configured_stays_on_quic() {
    let lossy = format!("{}loss = \"5 %\"\n", LINK.replace("20 Mbit/s", "5 Mbit/s"));
    let Some(stage) = Stage::set_over(&lossy, &lossy, "40 ms") else { return };
    let leg = "rtt = \"40 ms\"\nrate = \"40 Mbit/s\"\n";
    let pair = Pair::new(leg, leg, REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    with_bulk(&stage, &listener, 1, false, |_| {
        come_until(&stage, &listener, &pair, Talker::Server, KEPT)
    });
    let seen = pair.far_seen();
    assert_eq!(seen.tcp_trials_total, seen.vain_tcp_trials_total, "{seen:?}");
    assert_eq!(seen.carrier_changes_total, 0, "{seen:?}");
}

/// A tunnel with TCP turned off does not try it.
#[test]
fn a_tunnel_that_wants_no_tcp_tries_none() {
    let Some(stage) = Stage::set_over(LINK, LINK, "40 ms") else { return };
    police(&stage, Talker::Server);
    let pair = Pair::new(&format!("{LEG}fallback = \"off\"\n"), LEG, REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    // More than the policer lets pass during a suspicion time.
    with_bulk(&stage, &listener, 2, false, |counts| await_bytes(counts, 3_500_000));
    assert_untried(&pair);
}

/// If throttling is known, UDP is not even tried.
#[test]
fn a_tunnel_that_wants_tcp_only_has_it_at_once() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("fallback = \"only\"\n", "", REJECT);
    let _daemons = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    flows::exchange(&client, &server, 1_000_000);
    assert!(pair.goes_by(&stage, "tcp-only"), "{}", log_of(&pair.near));
}
