//! Ends that are slow, silent or gone.

use crate::flows;
use crate::stage::{self, Family, ReadOnce, Stage, noise, receive_all, send_all, until};
use midhop_linux::tcp_info::TcpInfo;
use midhopd::data_plane::DataPlane;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{self, sleep};
use std::time::Duration;

/// A small generator, so that a failing run can be repeated: xorshift64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    /// A size that is mostly small, and sometimes large.
    fn size(&mut self) -> usize {
        let sizes = [1, 100, 4_000, 60_000, 300_000, 800_000];
        let most = sizes[usize::try_from(self.roll(6)).expect("small")];
        usize::try_from(self.roll(most) + 1).expect("a size")
    }

    fn pause(&mut self) {
        if self.roll(4) == 0 {
            sleep(Duration::from_micros(self.roll(3000)));
        }
    }
}

fn send_slowly(mut stream: &TcpStream, bytes: &[u8], dice: &mut Dice) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(dice.size().min(rest.len()));
        stream.write_all(now).expect("writing");
        rest = later;
        dice.pause();
    }
    stream.shutdown(Shutdown::Write).expect("ending the stream");
}

fn receive_slowly(mut stream: &TcpStream, dice: &mut Dice) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let size = dice.size().min(buffer.len());
        match stream.read_once(&mut buffer[..size]).expect("reading") {
            0 => return received,
            count => received.extend_from_slice(&buffer[..count]),
        }
        dice.pause();
    }
}

/// The client's end of a flow: sends its seed and some noise, then receives other noise.
fn client(stream: &TcpStream, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut sent = seed.to_be_bytes().to_vec();
    sent.extend(noise(seed, dice.size()));
    send_slowly(stream, &sent, &mut dice);
    let received = receive_slowly(stream, &mut dice);
    assert!(
        received == noise(seed ^ u64::MAX, received.len()),
        "seed {seed}: other bytes came back"
    );
    assert_eq!(received.len(), Dice(seed | 1).size(), "seed {seed}: bytes are missing");
}

fn server(stream: &TcpStream) {
    let mut dice = Dice(7);
    let received = receive_slowly(stream, &mut dice);
    let seed = u64::from_be_bytes(received[..8].try_into().expect("eight bytes"));
    assert!(received[8..] == noise(seed, received.len() - 8), "seed {seed}: other bytes arrived");
    send_slowly(stream, &noise(seed ^ u64::MAX, Dice(seed | 1).size()), &mut dice);
}

fn many(family: Family, accept: &str) {
    const FLOWS: u64 = 300;
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    let listener = stage.listen(family);
    // All are open before the first sends anything.
    let flows: Vec<_> = (0..FLOWS).map(|_| stage.flow(&listener)).collect();
    thread::scope(|scope| {
        for (seed, (near, far)) in (1..).zip(&flows) {
            let small = || thread::Builder::new().stack_size(256 << 10);
            small().spawn_scoped(scope, move || client(near, seed)).expect("a thread");
            small().spawn_scoped(scope, move || server(far)).expect("a thread");
        }
    });
    until("all flows have ended in order", || count(&proxy) == FLOWS);
}

fn count(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.ended.value()).sum()
}

#[test]
fn slow_readers_and_writers_get_every_byte_ipv4() {
    many(Family::V4, "early");
}

#[test]
fn slow_readers_and_writers_get_every_byte_ipv6() {
    many(Family::V6, "after-connect");
}

/// The server ends its stream and closes. The client, whose window is closed, reads only much
/// later.
fn late_reader(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("accept = \"early\"\n");
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    client.shutdown(Shutdown::Write).expect("the client has nothing to send");
    let bytes = noise(8, 12 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            send_all(&server, &bytes);
            assert_eq!(receive_all(&server), b"");
        });
        until("the flow has both ends of its streams, but not its bytes", || {
            stage::queued::unread(&client) > 0
        });
        sleep(Duration::from_millis(300));
        assert!(receive_all(&client) == bytes, "every byte arrives before the end does");
    });
    drop(server);
    until("the flow has ended in order", || count(&proxy) == 1);
}

#[test]
fn a_late_reader_gets_every_byte_ipv4() {
    late_reader(Family::V4);
}

#[test]
fn a_late_reader_gets_every_byte_ipv6() {
    late_reader(Family::V6);
}

/// The client's host disappears without a notice.
fn dead_end(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy =
        stage.proxy("[legs.lan0]\nkeepalive = { idle = \"1 s\", interval = \"1 s\", count = 2 }\n");
    let listener = stage.listen(family);
    let (client, mut server) = stage.flow(&listener);
    server.write_all(b"are you there?").expect("writing");
    until("the client has received it", || stage::queued::unread(&client) == 14);
    silence(&stage);
    let error = server.read_once(&mut [0; 1]).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let dead = || -> u64 { proxy.ledgers().iter().map(|ledger| ledger.dead.value()).sum() };
    until("it was the keep-alive that found it", || dead() == 1);
}

/// Drops all packets to the client.
fn silence(stage: &Stage) {
    let rules = "add table inet dead; \
                 add chain inet dead input { type filter hook input priority 0; policy drop; }";
    stage::nft(&stage.client, rules);
}

#[test]
fn keepalive_finds_dead_end_ipv4() {
    dead_end(Family::V4);
}

#[test]
fn keepalive_finds_dead_end_ipv6() {
    dead_end(Family::V6);
}

/// Open connections of the proxy.
fn connections(stage: &Stage, family: Family) -> usize {
    let table = if family == Family::V4 { "tcp" } else { "tcp6" };
    let path = format!("/proc/thread-self/net/{table}");
    let text = stage.gateway.run(|| std::fs::read_to_string(path)).expect("entering");
    let text = text.expect("the kernel's table");
    text.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
}

/// The client's host disappears while data for it is waiting, and while what it sent is still on
/// its way. That arrives, and then the server is informed.
fn dead_in_flight(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("accept = \"early\"\n[legs.lan0]\nuser_timeout = \"1 s\"\n");
    let listener = stage.listen(family);
    let (client, mut server) = stage.flow(&listener);
    let written = flows::fill(&client);
    let acknowledged = written - stage::queued::unacknowledged(&client);
    silence(&stage);
    server.write_all(b"are you there?").expect("writing");
    until("the proxy has given up on the client", || connections(&stage, family) == 1);
    let (received, kind) = flows::duties::count_until_error(&server);
    assert!(received >= acknowledged, "{received} of {acknowledged} bytes came");
    assert_eq!(kind, ErrorKind::ConnectionReset);
    let dead = || -> u64 { proxy.ledgers().iter().map(|ledger| ledger.dead.value()).sum() };
    until("it is booked as dead", || dead() == 1);
}

#[test]
fn what_a_dead_end_had_sent_arrives_and_the_other_is_reset_ipv4() {
    dead_in_flight(Family::V4);
}

#[test]
fn what_a_dead_end_had_sent_arrives_and_the_other_is_reset_ipv6() {
    dead_in_flight(Family::V6);
}

/// Segments with data that a socket has received.
fn data_segments(stream: &TcpStream) -> u32 {
    TcpInfo::of(stream).expect("the kernel's figures").data_segments_received
}

/// Each of many small messages is sent at once, in a segment of its own. If one were held back to
/// be sent with the next, there would be no next one, as each is a response.
fn ping_pong(family: Family) {
    const ROUNDS: u32 = 500;
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy("accept = \"early\"\n");
    let listener = stage.listen(family);
    let (mut client, mut server) = stage.flow(&listener);
    client.set_nodelay(true).expect("an option");
    server.set_nodelay(true).expect("an option");
    let mut message = [7; 100];
    for _ in 0..ROUNDS {
        // In two parts: this detects a sender that waits for more, or for an acknowledgement.
        client.write_all(&message[..1]).expect("writing");
        server.read_exact(&mut message[..1]).expect("the first byte, alone");
        client.write_all(&message[1..]).expect("writing");
        server.read_exact(&mut message[1..]).expect("the rest");
        server.write_all(&message).expect("writing");
        client.read_exact(&mut message).expect("the answer");
    }
    // There are more if the kernel of a busy machine assumed that one was lost.
    assert!(data_segments(&server) >= 2 * ROUNDS);
    assert!(data_segments(&client) >= ROUNDS);
}

#[test]
fn ping_pong_is_never_corked_ipv4() {
    ping_pong(Family::V4);
}

#[test]
fn ping_pong_is_never_corked_ipv6() {
    ping_pong(Family::V6);
}
