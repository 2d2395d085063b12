//! A client is told what the far side says: its SYN waits until then.

mod stage;

use stage::{Family, Stage, hear, noise, say};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Stdio;

fn nft(namespace: &midhop_testbed::namespace::Namespace, rules: &str) {
    let status =
        namespace.command("nft").arg(rules).stdin(Stdio::null()).status().expect("nft starts");
    assert!(status.success(), "nft refused: {rules}");
}

fn split(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    for _ in 0..3 {
        let (client, server) = stage.flow(&listener);
        assert_eq!(server.peer_addr().expect("a peer"), client.local_addr().expect("an address"));
        let bytes = noise(1, 1_000_000);
        std::thread::scope(|scope| {
            scope.spawn(|| say(&client, &bytes));
            assert!(hear(&server) == bytes);
        });
    }
    let flows: u64 = proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum();
    assert_eq!(flows, 3, "each flow was split");
}

#[test]
fn bytes_pass_after_connect_ipv4() {
    split(Family::V4);
}

#[test]
fn bytes_pass_after_connect_ipv6() {
    split(Family::V6);
}

fn refused(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let error = stage.connect(address).expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let refused: u64 = proxy.ledgers().iter().map(|ledger| ledger.refused.value()).sum();
    assert_eq!(refused, 1, "it was the far side that refused");
}

#[test]
fn refused_stays_refused_after_connect_ipv4() {
    refused(Family::V4);
}

#[test]
fn refused_stays_refused_after_connect_ipv6() {
    refused(Family::V6);
}

fn unreachable(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let words = match family {
        Family::V4 => "icmp type host-unreachable",
        Family::V6 => "icmpv6 type addr-unreachable",
    };
    nft(&stage.server, "add table inet t");
    nft(&stage.server, "add chain inet t c { type filter hook input priority 0; }");
    nft(&stage.server, &format!("add rule inet t c tcp dport 9 reject with {words}"));
    let error = stage.connect(SocketAddr::new(family.server(), 9)).expect_err("not reachable");
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
    let told: u64 = proxy.ledgers().iter().map(|ledger| ledger.unreachable.value()).sum();
    assert_eq!(told, 1, "it was the far side's network that said so");
}

#[test]
fn unreachable_stays_unreachable_after_connect_ipv4() {
    unreachable(Family::V4);
}

#[test]
fn unreachable_stays_unreachable_after_connect_ipv6() {
    unreachable(Family::V6);
}
