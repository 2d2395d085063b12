//! The memory of a tunnel's flows is counted and bounded, and no flow is reset for it.

use crate::ends::{Authority, Ends, far_config, near_config, start_far};
use crate::stage::{self, Family, Stage, noise, receive_all, send_all, until};
use midhopd::data_plane::DataPlane;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::scope;
use std::time::{Duration, Instant};

const FLOWS: u64 = 12;

/// A pair whose near end has room for everything that a test's clients do not read.
fn pair(stage: &Stage) -> (DataPlane, DataPlane, Authority) {
    pair_with(stage, "")
}

/// The same with keys for the near end's peer.
fn pair_with(stage: &Stage, keys: &str) -> (DataPlane, DataPlane, Authority) {
    let authority = Authority::new(&["near", "far"]);
    let far = start_far(stage, Family::V4, &authority, "");
    let near = near_config(Family::V4, &authority, "", keys, "");
    let near = stage.start(&format!("[legs.lan0]\nbuffer = \"8 MiB\"\n{near}"));
    (near, far, authority)
}

fn waits(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.memory_waits.value()).sum()
}

/// Waits until what is held stays the same for longer than the interval between two counts of a
/// flow.
fn until_unmoved(held: impl Fn() -> u64) {
    let (mut last, mut since) = (held(), Instant::now());
    until("nothing moves any more", || {
        if held() != last {
            (last, since) = (held(), Instant::now());
        }
        since.elapsed() > Duration::from_secs(1)
    });
}

#[test]
fn clients_that_do_not_read_fill_the_memory_and_no_more() {
    const LIMIT: u64 = 256 << 10;
    // Bytes that are moved until a flow is counted again: some 30 to 190 kB were seen, and 900 kB
    // if flows do not wait.
    const UNCOUNTED: u64 = 512 << 10;
    // What the far end may send of a flow beyond what its client took; up to three times this.
    const WINDOW: u64 = 1 << 20;
    let Some(stage) = Stage::set() else { return };
    let (near, _far, _authority) = pair_with(&stage, &format!("window = \"{WINDOW} B\"\n"));
    // The limit is set only now: with windows cut out of so little memory, a tunnel would stand
    // still once two of its readers do.
    near.budget().set_limit(LIMIT);
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..FLOWS).map(|_| stage.flow(&listener)).collect();
    let noises: Vec<_> = (0..FLOWS).map(|seed| noise(seed, 8 << 20)).collect();
    scope(|scope| {
        for ((_, server), bytes) in flows.iter().zip(&noises) {
            scope.spawn(|| send_all(server, bytes));
        }
        until("the limit on memory is met", || waits(&near) > 0);
        until_unmoved(|| near.budget().held());
        let held = near.budget().held();
        assert!(held <= LIMIT + FLOWS * (UNCOUNTED + 3 * WINDOW), "{held} bytes are held");
        for ((client, _), bytes) in flows.iter().zip(&noises) {
            scope.spawn(move || assert!(receive_all(client) == *bytes, "every byte arrives"));
        }
    });
    for (client, server) in &flows {
        send_all(client, b"");
        assert_eq!(receive_all(server), b"");
    }
    until("everything is given back", || near.budget().held() == 0);
}

#[test]
fn what_nobody_acknowledges_is_counted() {
    let Some(stage) = Stage::set() else { return };
    let (near, far, _authority) = pair(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let bytes = noise(1, 2_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&client, &bytes));
        assert!(receive_all(&server) == bytes, "every byte arrives");
    });
    drop((client, server));
    until("everything is given back", || near.budget().held() + far.budget().held() == 0);
}

/// Writes without end until nothing has been accepted for a while.
fn fill(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).expect("a mode");
    let (piece, mut written, mut fitted) = (noise(1, 64 << 10), 0, Instant::now());
    while fitted.elapsed() < Duration::from_millis(500) {
        match stream.write(&piece) {
            Ok(count) => (written, fitted) = (written + count, Instant::now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    stream.set_nonblocking(false).expect("a mode");
    written
}

/// More flows than fit into a few windows, like videos that were paused.
#[test]
fn twenty_readers_that_stand_still_hold_up_nobody_else() {
    let Some(stage) = Stage::set() else { return };
    let leg = "rtt = \"5 ms\"\nrate = \"500 Mbit/s\"\n";
    let _ends = Ends::start_with(&stage, Family::V4, "", [leg, leg]);
    let listener = stage.listen(Family::V4);
    let stuck: Vec<_> = (0..20).map(|_| stage.flow(&listener)).collect();
    let written: Vec<_> = scope(|scope| {
        let filling: Vec<_> =
            stuck.iter().map(|(_, server)| scope.spawn(|| fill(server))).collect();
        filling.into_iter().map(|one| one.join().expect("a writer")).collect()
    });
    let (client, server) = stage.flow(&listener);
    let bytes = noise(2, 5_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&server, &bytes));
        assert!(receive_all(&client) == bytes, "the other flow's bytes");
    });
    scope(|scope| {
        for ((client, server), written) in stuck.iter().zip(&written) {
            scope.spawn(|| send_all(server, b""));
            scope.spawn(move || assert_eq!(receive_all(client).len(), *written));
        }
    });
}

/// Like videos that people watch and then pause, a few at a time: each leaves a part of the room
/// for the next.
#[test]
fn readers_that_pause_one_after_another_leave_room_for_others() {
    const TOGETHER: u64 = 8;
    const ROUNDS: u64 = 6;
    let Some(stage) = Stage::set() else { return };
    let leg = "rtt = \"5 ms\"\nrate = \"500 Mbit/s\"\n";
    let authority = Authority::new(&["near", "far"]);
    let _far = start_far(&stage, Family::V4, &authority, leg);
    let near = near_config(Family::V4, &authority, "", leg, "");
    // What is read out of the tunnel for paused flows counts as well.
    let near = stage.start(&format!("[limits]\nmemory = \"128 MiB\"\n{near}"));
    let listener = stage.listen(Family::V4);
    let watched = noise(3, 1_000_000);
    let videos: Vec<_> = (0..ROUNDS * TOGETHER).map(|_| stage.flow(&listener)).collect();
    for flows in videos.chunks(TOGETHER as usize) {
        scope(|scope| {
            for (client, server) in flows {
                scope.spawn(|| (&*server).write_all(&watched).expect("writing"));
                scope.spawn(|| {
                    let mut seen = vec![0; watched.len()];
                    (&*client).read_exact(&mut seen).expect("what was sent");
                    assert!(seen == watched, "what is watched");
                });
            }
        });
        scope(|scope| flows.iter().for_each(|(_, server)| drop(scope.spawn(|| fill(server)))));
    }
    let (client, server) = stage.flow(&listener);
    let bytes = noise(2, 5_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&server, &bytes));
        assert!(receive_all(&client) == bytes, "the other flow's bytes");
    });
    assert_eq!(waits(&near), 0, "the memory was not what held anybody up");
}

/// Ten times as many flows as the far end accepts: the others pass without the tunnel, and none is
/// reset.
#[test]
fn a_flood_of_flows_goes_beside_a_tunnel_that_is_full() {
    const PLACES: usize = 20;
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let limits = format!("[limits]\nflows = {PLACES}\n");
    let far = stage::start(&stage.server, &far_config(Family::V4, &authority, &limits));
    let near = near_config(Family::V4, &authority, "accept = \"after-connect\"\n", "", "");
    let _near = stage.start(&near);
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..10 * PLACES).map(|_| stage.flow(&listener)).collect();
    let own = Family::V4.server();
    let by_tunnel = |server: &TcpStream| server.peer_addr().expect("a peer").ip() == own;
    let inside = flows.iter().filter(|(_, server)| by_tunnel(server)).count();
    assert_eq!(inside, PLACES);
    for (seed, (client, server)) in flows.iter().enumerate() {
        let bytes = noise(seed as u64, 1000);
        send_all(client, &bytes);
        assert!(receive_all(server) == bytes);
        send_all(server, &bytes);
        assert!(receive_all(client) == bytes);
    }
    drop(flows);
    until("places are free again", || !far.admission().is_full());
    until("the tunnel is used again", || by_tunnel(&stage.flow(&listener).1));
}
