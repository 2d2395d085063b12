//! Operations on flows through a tunnel, and on the tunnel's datagrams.
pub mod duties;
pub mod lasting;

use crate::ends::PORT;
use crate::stage::{PATIENCE, ReadOnce, Stage, nft, noise, receive_all, send_all};
use std::borrow::Borrow;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::Duration;

/// From now on no datagram reaches the far end of the tunnel, or leaves it.
pub fn block(stage: &Stage) {
    nft(&stage.server, "add table inet block");
    for (hook, port) in [("input", "dport"), ("output", "sport")] {
        let chain =
            format!("add chain inet block {hook} {{ type filter hook {hook} priority 0; }}");
        nft(&stage.server, &chain);
        nft(&stage.server, &format!("add rule inet block {hook} udp {port} {PORT} drop"));
    }
}

/// From now on they pass again.
pub fn unblock(stage: &Stage) {
    nft(&stage.server, "delete table inet block");
}

/// What both ends send arrives, and so does how they end.
pub fn exchange(client: &TcpStream, server: &TcpStream, bytes: usize) {
    let (up, down) = (noise(1, bytes), noise(2, bytes));
    scope(|scope| {
        scope.spawn(|| send_all(client, &up));
        scope.spawn(|| send_all(server, &down));
        let received = scope.spawn(|| receive_all(server));
        assert!(receive_all(client) == down, "what the server said");
        assert!(received.join().expect("the server") == up, "what the client said");
    });
}

/// Four bytes in one direction, and four back.
pub fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    let mut received = [0; 4];
    from.write_all(b"ping").expect("writing");
    to.read_exact(&mut received).expect("reading");
    to.write_all(b"pong").expect("writing");
    from.read_exact(&mut received).expect("reading");
    assert_eq!(&received, b"pong");
}

/// Closes with a reset.
pub fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a linger time");
    drop(stream);
}

/// Sets timeouts that bound a test that hangs.
pub fn impatient(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
}

/// Keys of a peer whose link is known, for tests that fill what a flow may hold. This depends on
/// the link, and is far more if none is configured.
pub const KNOWN_LINK: &str = "rate = \"1 Gbit/s\"\nrate_in = \"1 Gbit/s\"\nrtt = \"10 ms\"\n";

/// Reads until an error, which must not be an orderly end.
pub fn read_until_error(mut stream: &TcpStream) -> ErrorKind {
    loop {
        match stream.read_once(&mut [0; 1 << 16]) {
            Ok(0) => panic!("a truncated stream ended as if it were whole"),
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

/// Writes until nothing is accepted any more.
pub fn fill(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).expect("a mode");
    let (chunk, mut quiet, mut written) = (noise(4, 1 << 16), 0, 0);
    while quiet < 40 {
        match stream.write(&chunk) {
            Ok(count) => (quiet, written) = (0, written + count),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                quiet += 1;
                sleep(Duration::from_millis(5));
            }
        }
    }
    stream.set_nonblocking(false).expect("a mode");
    written
}

/// Unit: bytes. No multiple of what a segment or a page has.
const PIECE: usize = 65_528;

/// Sends until the other end is gone.
pub fn send_endlessly(mut stream: &TcpStream) {
    let piece = noise(4, 64 << 10);
    while stream.write_all(&piece).is_ok() {}
}

/// Counts received bytes until the stream breaks.
pub fn count_on(mut stream: &TcpStream, counted: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = stream.read_once(&mut buffer)
        && count > 0
    {
        counted.fetch_add(count as u64, Relaxed);
    }
}

/// Flows on which the server sends without end, and if `both`, so does the client. Counts what each
/// client has received.
pub fn with_bulk(
    stage: &Stage,
    listener: &TcpListener,
    flows: usize,
    both: bool,
    what: impl FnOnce(&[AtomicU64]),
) {
    let flows: Vec<_> = (0..flows).map(|_| stage.flow(listener)).collect();
    let counts: Vec<_> = flows.iter().map(|_| AtomicU64::new(0)).collect();
    let other = AtomicU64::new(0);
    scope(|scope| {
        for ((client, server), count) in flows.iter().zip(&counts) {
            scope.spawn(|| send_endlessly(server));
            scope.spawn(|| count_on(client, count));
            if both {
                scope.spawn(|| send_endlessly(client));
                scope.spawn(|| count_on(server, &other));
            }
        }
        let _ended: Vec<_> = flows.iter().map(EndedFlow).collect();
        what(&counts);
    });
}

/// Ends a flow when it is dropped, also if a test fails: otherwise a thread that writes or reads
/// without end would never end.
pub struct EndedFlow<F: Borrow<(TcpStream, TcpStream)>>(pub F);

impl<F: Borrow<(TcpStream, TcpStream)>> Drop for EndedFlow<F> {
    fn drop(&mut self) {
        let (client, server) = self.0.borrow();
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}

pub fn sum(counts: &[AtomicU64]) -> u64 {
    counts.iter().map(|count| count.load(Relaxed)).sum()
}

/// Waits for this many bytes, which arrive at the link's rate.
pub fn await_bytes(counts: &[AtomicU64], bytes: u64) {
    let start = sum(counts);
    while sum(counts) < start + bytes {
        sleep(Duration::from_millis(10));
    }
}

/// Jain's index of fairness: 1 where all parts are equal.
pub fn jain(parts: &[u64]) -> f64 {
    let total = parts.iter().sum::<u64>() as f64;
    let squares: f64 = parts.iter().map(|part| (*part as f64).powi(2)).sum();
    total * total / (parts.len() as f64 * squares)
}

/// Sets a flag when it is dropped: a test that fails has to end.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Has both ends send until `over`, and end then. Each end receives all of it, and the end.
pub fn exchange_until(client: &TcpStream, server: &TcpStream, over: &AtomicBool) {
    let [up, down] = [(client, server, 1), (server, client, 2)];
    let send = |mut from: &TcpStream, seed: u64| {
        let (piece, mut sent) = (noise(seed, PIECE), 0);
        while !over.load(Relaxed) {
            from.write_all(&piece).expect("writing");
            sent += 1;
            // There are others on this machine.
            sleep(Duration::from_millis(5));
        }
        from.shutdown(Shutdown::Write).expect("ending");
        sent
    };
    let receive = |mut to: &TcpStream, seed: u64| {
        let (piece, mut room, mut received) = (noise(seed, PIECE), vec![0; PIECE], 0);
        // A piece is whole, or the stream has ended.
        while to.peek(&mut [0]).expect("reading") > 0 {
            to.read_exact(&mut room).expect("a whole piece");
            assert!(room == piece, "piece {received} is another");
            received += 1;
        }
        received
    };
    scope(|scope| {
        let ways = [up, down].map(|(from, to, seed)| {
            let received = scope.spawn(move || receive(to, seed));
            (scope.spawn(move || send(from, seed)), received)
        });
        for (sent, received) in ways {
            let (sent, received): (u64, u64) =
                (sent.join().expect("a sender"), received.join().expect("a receiver"));
            assert_eq!(sent, received, "pieces");
        }
    });
}
