//! Flows with a backlog are counted on the leg whose rate they divide, and no others.

use crate::stage::{Family, Stage, noise, receive_all, send_all, until};

fn counted(family: Family) {
    const BYTES: usize = 4 << 20;
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("[legs.lan0]\nrate = \"1 Gbit/s\"\nrtt = \"20 ms\"\n");
    let senders = || proxy.pools().all().get("lan0").map(|pool| pool.senders());
    let listener = stage.listen(family);
    let flows: Vec<_> = (0..4).map(|_| stage.flow(&listener)).collect();
    for (client, server) in &flows {
        send_all(client, b"question");
        assert_eq!(receive_all(server), b"question");
    }
    assert_eq!(senders(), Some(0), "whose data goes to the leg \"other\" has no part in this one");
    let noises: Vec<_> = (0..4).map(|seed| noise(seed, BYTES)).collect();
    std::thread::scope(|scope| {
        for ((_, server), bytes) in flows.iter().zip(&noises) {
            scope.spawn(|| send_all(server, bytes));
        }
        // The clients do not read: what exceeds their windows waits in the proxy.
        until("four have a backlog", || senders() == Some(4));
        for ((client, _), bytes) in flows[..2].iter().zip(&noises) {
            assert!(receive_all(client) == *bytes, "every byte arrives");
        }
        until("two have ended, two have not", || senders() == Some(2));
        for ((client, _), bytes) in flows[2..].iter().zip(&noises[2..]) {
            assert!(receive_all(client) == *bytes, "every byte arrives");
        }
        until("nobody has a backlog", || senders() == Some(0));
    });
    let share = proxy.pools().all().get("lan0").map(|pool| pool.share().bits_per_s());
    assert_eq!(share, Some(950_000_000), "the next flow may have all but the headers' twentieth");
}

#[test]
fn flows_with_a_backlog_divide_their_leg_ipv4() {
    counted(Family::V4);
}

#[test]
fn flows_with_a_backlog_divide_their_leg_ipv6() {
    counted(Family::V6);
}
