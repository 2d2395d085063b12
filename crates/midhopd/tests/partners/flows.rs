//! What flows must do through a tunnel whose other end somebody else wrote.

use crate::stage::{PATIENCE, hear, noise, queued, say, until};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::{scope, sleep};
use std::time::Duration;

/// Opens a flow to the server through whatever there is: the client's end and the server's.
pub type Flow<'a> = &'a mut dyn FnMut() -> (TcpStream, TcpStream);

pub fn all(flow: Flow<'_>) {
    carries_all(flow);
    for from_server in [true, false] {
        keeps_half_closes(flow, from_server);
        waits_for_late_readers(flow, from_server);
        passes_resets(flow, from_server);
    }
}

/// 20 MB both ways at once.
pub fn carries_all(flow: Flow<'_>) {
    let (client, server) = flow();
    let (up, down) = (noise(1, 20_000_000), noise(2, 20_000_000));
    scope(|scope| {
        scope.spawn(|| say(&client, &up));
        scope.spawn(|| say(&server, &down));
        let heard = scope.spawn(|| hear(&server));
        assert!(hear(&client) == down, "what the server said");
        assert!(heard.join().expect("the server") == up, "what the client said");
    });
}

/// 20 MB one way, and nothing the other.
pub fn carries_one_way(flow: Flow<'_>, from_server: bool) {
    let (first, second) = in_order(flow, from_server);
    let bytes = noise(5, 20_000_000);
    scope(|scope| {
        scope.spawn(|| say(&first, &bytes));
        assert!(hear(&second) == bytes, "every byte came");
    });
}

/// One end is the first to end; the other answers after that.
pub fn keeps_half_closes(flow: Flow<'_>, from_server: bool) {
    let reply = noise(3, 1_000_000);
    let (first, second) = in_order(flow, from_server);
    say(&first, b"that is all");
    assert_eq!(hear(&second), b"that is all");
    scope(|scope| {
        scope.spawn(|| say(&second, &reply));
        assert!(hear(&first) == reply, "the whole answer after the half-close");
    });
}

/// One end closes first, for good, and its bytes wait for a reader that is late: the origin's for the
/// client, or the client's for the origin.
pub fn waits_for_late_readers(flow: Flow<'_>, from_server: bool) {
    let bytes = noise(8, 12 << 20);
    let (first, late) = in_order(flow, from_server);
    scope(|scope| {
        scope.spawn(|| {
            say(&first, &bytes);
            drop(first);
        });
        until("bytes wait at the reader", || queued::unread(&late) > 0);
        sleep(Duration::from_millis(300));
        assert!(hear(&late) == bytes, "every byte arrives before the end does");
    });
}

/// A reset of one end is the other's.
pub fn passes_resets(flow: Flow<'_>, from_server: bool) {
    let error = end_after_reset(flow, from_server).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// What the other end hears of a reset.
pub fn end_after_reset(flow: Flow<'_>, from_server: bool) -> io::Result<usize> {
    let (mut resetting, mut other) = in_order(flow, from_server);
    resetting.write_all(b"so far").expect("writing");
    let mut heard = [0; 6];
    other.read_exact(&mut heard).expect("what came before the reset");
    reset(resetting);
    other.read(&mut heard)
}

fn in_order(flow: Flow<'_>, from_server: bool) -> (TcpStream, TcpStream) {
    let (client, server) = flow();
    if from_server { (server, client) } else { (client, server) }
}

/// Breaks a connection off.
pub fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a linger");
    drop(stream);
}

/// Bounds a test that hangs.
pub fn impatient(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
}
