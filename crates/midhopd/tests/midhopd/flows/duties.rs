//! What a tunnel must do for its flows, whatever carries it and whoever wrote its other end.

use super::{exchange, fill, read_until_error, reset};
use crate::stage::{ReadOnce, noise, queued, receive_all, send_all, until};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{scope, sleep};
use std::time::Duration;

/// Opens a flow to the server through the tunnel: the client's end and the server's.
pub type Flow<'a> = &'a mut dyn FnMut() -> (TcpStream, TcpStream);

/// The duties that every partner must fulfil.
pub fn all(flow: Flow<'_>) {
    let (client, server) = flow();
    exchange(&client, &server, 20_000_000);
    for from_server in [true, false] {
        half_closes(flow, from_server);
        late_readers(flow, from_server, false);
        resets(flow, from_server);
    }
}

/// 20 MB one way, and nothing the other.
pub fn one_way(flow: Flow<'_>, from_server: bool) {
    let (first, second) = in_order(flow, from_server);
    let bytes = noise(5, 20_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&first, &bytes));
        assert!(receive_all(&second) == bytes, "every byte came");
    });
}

/// One end ends its stream first; the other one responds after it has received that end.
pub fn half_closes(flow: Flow<'_>, from_server: bool) {
    let reply = noise(3, 4_000_000);
    let (first, second) = in_order(flow, from_server);
    send_all(&first, b"that is all");
    assert_eq!(receive_all(&second), b"that is all");
    scope(|scope| {
        scope.spawn(|| send_all(&second, &reply));
        assert!(receive_all(&first) == reply, "the whole answer after the half-close");
    });
}

/// One end sends everything and closes. The other one, whose window is closed, reads only much
/// later. It may have ended its own half before, and the closing end may have received that.
pub fn late_readers(flow: Flow<'_>, from_server: bool, half_closed: bool) {
    /// Long enough for an end to overtake bytes, or for a proxy to give up an end that does not
    /// read.
    const LATE: Duration = Duration::from_millis(300);
    let bytes = noise(8, 12 << 20);
    let (first, late) = in_order(flow, from_server);
    if half_closed {
        late.shutdown(Shutdown::Write).expect("it has nothing to say");
    }
    scope(|scope| {
        scope.spawn(|| {
            send_all(&first, &bytes);
            if half_closed {
                assert_eq!(receive_all(&first), b"");
            }
            drop(first);
        });
        until("bytes wait at the reader", || queued::unread(&late) > 0);
        sleep(LATE);
        assert!(receive_all(&late) == bytes, "every byte arrives before the end does");
    });
}

/// If one end resets, the other end receives a reset.
pub fn resets(flow: Flow<'_>, from_server: bool) {
    let error = end_after_reset(flow, from_server).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// What the other end receives after a reset.
pub fn end_after_reset(flow: Flow<'_>, from_server: bool) -> io::Result<usize> {
    let (mut resetting, mut other) = in_order(flow, from_server);
    resetting.write_all(b"so far").expect("writing");
    let mut received = [0; 6];
    other.read_exact(&mut received).expect("what came before the reset");
    reset(resetting);
    other.read_once(&mut received)
}

/// A reset arrives although all buffers are full, once the other end reads, half-closed or not.
pub fn resets_of_full_flows(flow: Flow<'_>, from_server: bool, half_closed: bool) {
    let (_, kind) = reset_when_full(flow, from_server, half_closed);
    assert_eq!(kind, ErrorKind::ConnectionReset);
}

/// The same, and the other end receives everything that was acknowledged first.
pub fn late_resets(flow: Flow<'_>, from_server: bool, half_closed: bool) {
    let ((received, acknowledged), kind) = reset_when_full(flow, from_server, half_closed);
    // The kind of end is checked first: a reader that timed out has received less as well, without
    // a loss.
    assert_eq!(kind, ErrorKind::ConnectionReset, "after {received} of {acknowledged} bytes");
    assert!(received >= acknowledged, "{received} of {acknowledged} bytes came before the reset");
}

/// What the other end receives, what was acknowledged, and how it ends.
fn reset_when_full(
    flow: Flow<'_>,
    from_server: bool,
    half_closed: bool,
) -> ((usize, usize), ErrorKind) {
    /// Long enough for a proxy to have received it.
    const LATE: Duration = Duration::from_millis(300);
    let (resetting, other) = in_order(flow, from_server);
    if half_closed {
        send_all(&other, b"that is all");
        assert_eq!(receive_all(&resetting), b"that is all");
    }
    let written = fill(&resetting);
    let acknowledged = written - queued::unacknowledged(&resetting);
    reset(resetting);
    sleep(LATE);
    let (received, kind) = count_until_error(&other);
    ((received, acknowledged), kind)
}

/// Counts the bytes until an error, which must not be an orderly end.
pub fn count_until_error(mut stream: &TcpStream) -> (usize, ErrorKind) {
    let (mut received, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        match stream.read_once(&mut buffer) {
            Ok(0) => panic!("a truncated stream ended as if it were whole"),
            Ok(count) => received += count,
            Err(error) => return (received, error.kind()),
        }
    }
}

/// If the other end resets, an end that has ended its half receives the reset, too.
pub fn resets_after_half_closes(flow: Flow<'_>, from_server: bool) {
    let (mut ended, mut resetting) = in_order(flow, from_server);
    send_all(&ended, b"a question");
    assert_eq!(receive_all(&resetting), b"a question");
    resetting.write_all(b"half an ans").expect("writing");
    let mut received = [0; 11];
    ended.read_exact(&mut received).expect("what came before the reset");
    reset(resetting);
    assert_eq!(read_until_error(&ended), ErrorKind::ConnectionReset);
}

/// A flow whose reader does not read holds up no other flow, and loses nothing.
pub fn readers_that_stand_still(flow: Flow<'_>, from_server: bool) {
    let (writer, reader) = in_order(flow, from_server);
    let written = fill(&writer);
    one_way(flow, from_server);
    writer.shutdown(Shutdown::Write).expect("the end");
    assert_eq!(receive_all(&reader).len(), written);
}

/// A proxy is killed in the middle of a download and of an upload: their readers must not take what
/// they received for the whole.
pub fn no_end_that_looks_whole(flow: Flow<'_>, kill: impl FnOnce()) {
    let (down, up) = (flow(), flow());
    let bytes = noise(9, 1 << 20);
    let endless = |mut stream: &TcpStream| while stream.write_all(&bytes).is_ok() {};
    scope(|scope| {
        scope.spawn(|| endless(&down.1));
        scope.spawn(|| endless(&up.0));
        let mut chunk = vec![0; 1 << 20];
        (&down.0).read_exact(&mut chunk).expect("the download begins");
        (&up.1).read_exact(&mut chunk).expect("the upload begins");
        kill();
        assert_eq!(read_until_error(&down.0), ErrorKind::ConnectionReset);
        assert_eq!(read_until_error(&up.1), ErrorKind::ConnectionReset);
    });
}

fn in_order(flow: Flow<'_>, from_server: bool) -> (TcpStream, TcpStream) {
    let (client, server) = flow();
    if from_server { (server, client) } else { (client, server) }
}
