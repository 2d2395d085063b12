//! Packets that come for a flow while it moves.

use crate::floods::Stops;
use crate::program::log_of;
use crate::relocation::{ACCEPT, Place, ip, move_flows};
use crate::stage::{Family, until};
use crate::survival::relayed;
use midhop_linux::tcp_info::TcpInfo;
use midhop_testbed::namespace::Namespace;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::Duration;

const FLOWS: usize = 16;

/// The queue of such packets: it follows those of both workers, and one more.
const QUEUE: u64 = 28_008 + 2 + 1;

/// How many packets have come into this queue of a host, and for how many there was no room.
fn waited(host: &Namespace) -> [u64; 2] {
    let listed = host.command("cat").arg("/proc/net/netfilter/nfnetlink_queue").output();
    let listed = String::from_utf8(listed.expect("cat starts").stdout).expect("text");
    let queues = listed.lines().map(|line| -> Vec<u64> {
        line.split_whitespace().map(|it| it.parse().expect("a number")).collect()
    });
    let fields = queues.into_iter().find(|fields| fields[0] == QUEUE);
    let fields = fields.unwrap_or_else(|| panic!("no such queue: {listed}"));
    // Number, port, waiting, mode, range, dropped for lack of room in the queue and in the socket, and all.
    [fields[7], fields[5] + fields[6]]
}

/// Unit: segments.
fn sent_again(flows: &[(TcpStream, TcpStream)]) -> u32 {
    let all = flows.iter().flat_map(|(client, server)| [client, server]);
    all.map(|socket| TcpInfo::of(socket).expect("an open socket").retransmissions).sum()
}

/// Otherwise each costs its end a retransmission timeout: 200 ms or more.
#[test]
fn no_packet_is_lost_while_a_flow_moves() {
    let Some(place) = Place::set_apart(Some("20 ms")) else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let stage = &place.stage;
    // On no host does an end send something again only because it waits for long.
    for (host, next, device) in
        [(&stage.client, "10.0.1.1", "lan0"), (&stage.server, "10.0.2.1", "wan0")]
    {
        host.set_sysctl("net.ipv4.tcp_early_retrans", "0").expect("no probes");
        ip(host, Family::V4, &format!("route replace default via {next} dev {device} rto_min 15s"));
    }
    let listener = stage.listen(Family::V4);
    let mut flows: Vec<_> = (0..FLOWS)
        .map(|number| {
            let (client, server) = relayed(stage, &listener);
            // With Nagle's algorithm, a word waits for the acknowledgement of the one before.
            if number % 2 == 0 { (client, server) } else { (server, client) }
        })
        .collect();
    let before = sent_again(&flows);
    let (stop, words) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut moved = 0;
    scope(|scope| {
        // If this fails, the words end as well.
        let _stops = Stops(&stop);
        for (one, other) in &mut flows {
            let (stop, words) = (&stop, &words);
            scope.spawn(move || {
                let mut word = [0; 4];
                // One packet is on its way at a time, and most of the time none: then the next one comes when the flow stands
                // still.
                while !stop.load(Relaxed) {
                    sleep(Duration::from_millis(20));
                    one.write_all(b"word").expect("written");
                    other.read_exact(&mut word).expect("the word");
                    assert_eq!(&word, b"word");
                    words.fetch_add(1, Relaxed);
                }
            });
        }
        // On a busy host one command may not come to all of them.
        until("all have moved", || {
            let (_, outcome) = move_flows(&old, "all");
            assert_eq!(outcome.lost, 0, "{outcome:?}");
            moved += outcome.moved;
            moved == FLOWS as u64
        });
        let at_that_time = words.load(Relaxed);
        until("words pass after it", || words.load(Relaxed) > at_that_time + 4 * FLOWS as u64);
    });
    let [all, dropped] = waited(&place.second);
    let what = format!(
        "{} again, {all} waited, {dropped} dropped\n{}",
        sent_again(&flows) - before,
        log_of(&new)
    );
    assert!(all > 0, "no packet came while flows moved: {what}");
    assert_eq!((sent_again(&flows), dropped), (before, 0), "{what}");
}
