//! The congestion windows of flows that move, and what was in flight.

use crate::program::Setup;
use crate::relocation::{ACCEPT, Place, begin_to_move, outcome_of, relayed_bytes};
use crate::stage::{Family, nft, noise, receive_all, until};
use crate::survival::relayed;
use midhop_bpf::missing_to_load;
use midhop_linux::sock_diag::Diag;
use midhop_testbed::namespace::Namespace;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown};

/// Unit: segments. More than the first window of a connection (RFC 6928), with a margin.
const MANY: u32 = 20;

/// Drops the client's segments as they arrive, and counts those that come by the second gateway.
const DEAF: &str = "
    add table inet deaf
    add chain inet deaf in { type filter hook prerouting priority -300; }
    add rule inet deaf in iifname lan1 meta l4proto tcp counter drop
    add rule inet deaf in meta l4proto tcp drop";

fn arrived_by_the_second(client: &Namespace) -> u32 {
    let listed = client.command("nft").args(["list", "chain", "inet", "deaf", "in"]).output();
    let listed = String::from_utf8(listed.expect("nft starts").stdout).expect("text");
    let count = listed.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no counter: {listed}"))
}

/// Unit: segments. What connections with this host have sent and not acknowledged.
fn outstanding(gateway: &Namespace, client: IpAddr) -> u32 {
    let count = gateway.run(|| {
        let mut count = 0;
        Diag::open()?.dump(|socket| {
            if socket.remote.ip() == client {
                count += socket.info.map_or(0, |info| info.unacknowledged);
            }
        })?;
        Ok::<_, std::io::Error>(count)
    });
    count.expect("entered").expect("sockets")
}

fn what_was_in_flight_is_sent_again(family: Family) {
    if let Some(missing) = missing_to_load() {
        return midhop_testkit::skipped(missing);
    }
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let stage = &place.stage;
    let listener = stage.listen(family);
    let (mut client, server) = relayed(stage, &listener);
    // So that the window grows.
    let some = noise(1, 3_000_000);
    let mut read = vec![0; some.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| (&server).write_all(&some).expect("written"));
        client.read_exact(&mut read).expect("all of it");
    });
    assert!(read == some);
    nft(&stage.client, DEAF);
    // Less than the window of its socket, which is large by now: what ends with the window is not sent again.
    let more = noise(2, 50_000);
    (&server).write_all(&more).expect("written");
    until("much is in flight", || outstanding(&stage.gateway, family.client()) > MANY);
    until("it has moved", || {
        let output = begin_to_move(&old, "all").wait_with_output().expect("an end");
        outcome_of(&output).moved == 1
    });
    // No acknowledgement comes: a new connection would send ten segments at most, and this one only the first again.
    until("all that was in flight is sent at once", || arrived_by_the_second(&stage.client) > MANY);
    place.change_routes();
    nft(&stage.client, "delete table inet deaf");
    server.shutdown(Shutdown::Write).expect("an end");
    assert!(receive_all(&client) == more, "every byte arrives once");
    assert!(relayed_bytes(&new) <= more.len() as u64);
    for setup in [&old, &new] {
        Setup::assert_no_errors(setup);
    }
}

#[test]
fn what_was_in_flight_is_sent_again_ipv4() {
    what_was_in_flight_is_sent_again(Family::V4);
}

#[test]
fn what_was_in_flight_is_sent_again_ipv6() {
    what_was_in_flight_is_sent_again(Family::V6);
}
