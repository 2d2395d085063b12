//! Hostile servers: tiny windows, closed windows, resets at each stage, a FIN before the data,
//! silence. Whatever they do to their own flows, other flows continue with the right bytes. What a
//! flow holds is bounded and freed.
//!
//! The servers are programs of the test, which make each packet by hand.

use crate::hand::{self, ACK, FIN, Hand, Odd, PSH, Place, SYN, prepare};
use crate::stage::{Family, PATIENCE, Stage, noise, until};
use midhopd::data_plane::DataPlane;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::scope;
use std::time::Duration;

/// The most that all flows may hold.
const LIMIT: u64 = 8 << 20;
/// The most that a flow may have read before it is counted, and its minimum window. Unit: bytes.
/// Without a bound on the kernel's own windows, flows were seen to hold 47 MB.
const SLACK: u64 = (1 << 20) + (256 << 10);
/// Long enough for a kernel to retransmit a SYN.
const MOMENT: Duration = Duration::from_millis(100);

/// The gateway, and a well-behaved flow.
struct Scene {
    stage: Stage,
    proxy: DataPlane,
    family: Family,
    accept: &'static str,
    sound: (TcpStream, TcpStream),
}

impl Scene {
    fn set(family: Family, accept: &'static str) -> Option<Self> {
        let stage = Stage::set()?;
        prepare(&stage);
        let proxy = stage.proxy(&format!(
            "accept = \"{accept}\"\n[limits]\nmemory = \"8 MiB\"\nlinger = \"3 s\"\n[legs.wan]\ninterface = \"wan0\"\n"
        ));
        let listener = stage.listen(family);
        let sound = stage.flow(&listener);
        Some(Self { stage, proxy, family, accept, sound })
    }

    /// A flow from a client to a hostile server, while the sound flow continues. When this returns,
    /// both have finished, and nothing is left of the flow.
    fn play(
        &self,
        name: &str,
        server: impl FnOnce(&mut Hand) + Send,
        client: impl FnOnce(io::Result<TcpStream>) + Send,
    ) {
        println!("{name}, {:?}, {}", self.family, self.accept);
        let mut hand = Hand::new(&self.stage, Place::Server, self.family, 80);
        let target = hand.own;
        scope(|scope| {
            let acting = scope.spawn(move || {
                server(&mut hand);
                // It sends no more, and its kernel has never known the connection.
                hand
            });
            let talking = scope.spawn(|| client(self.connect(target)));
            while !(acting.is_finished() && talking.is_finished()) {
                self.pass();
                let held = self.proxy.budget().held();
                assert!(held <= LIMIT + SLACK, "{name}: {held} bytes are held");
                std::thread::sleep(Duration::from_millis(1));
            }
            talking.join().expect(name);
            acting.join().expect(name);
        });
        until("its flow is gone", || self.proxy.admission().flows() == 1);
        until("what it held is given back", || self.proxy.budget().held() == 0);
        self.pass();
    }

    fn connect(&self, target: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.stage.connect(target)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Four bytes in one direction, and four back.
    fn pass(&self) {
        let (mut client, mut server) = (&self.sound.0, &self.sound.1);
        let mut received = [0; 4];
        client.write_all(b"ping").expect("writing");
        server.read_exact(&mut received).expect("reading");
        server.write_all(b"pong").expect("writing");
        client.read_exact(&mut received).expect("reading");
        assert_eq!(&received, b"pong");
    }
}

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a linger time");
    drop(stream);
}

/// Whether a flow was ended by its server's reset: a reset, or a refusal if the client was not
/// accepted yet.
fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused | ErrorKind::BrokenPipe
    )
}

/// Reads to the end, and returns what kind of end it is.
fn receive_to_end(mut stream: &TcpStream) -> (Vec<u8>, io::Result<()>) {
    let mut received = Vec::new();
    let ended = stream.read_to_end(&mut received).map(drop);
    (received, ended)
}

/// Ends both halves in order.
fn part(hand: &mut Hand) {
    hand.receive_end();
    hand.end();
}

/// Windows of a few bytes, or windows that stay closed for long.
fn windows(scene: &Scene) {
    let sent = noise(1, 3000);
    scene.play(
        "a window of a few bytes",
        |hand| {
            hand.window = 70;
            hand.accept();
            part(hand);
            assert!(hand.received == sent, "other bytes came");
        },
        |client| {
            let client = client.expect("a connection");
            (&client).write_all(&sent).expect("writing");
            client.shutdown(Shutdown::Write).expect("an end");
            let (received, ended) = receive_to_end(&client);
            assert!(received.is_empty() && ended.is_ok(), "{ended:?}");
        },
    );
    let much = noise(2, 1_500_000);
    scene.play(
        "a window that is closed for long",
        |hand| {
            hand.window = 0;
            hand.accept();
            // Some probes of the window are acknowledged, and it stays closed.
            for _ in 0..3 {
                if let Some(segment) = hand.listen(PATIENCE) {
                    let inside = segment.sequence.wrapping_sub(hand.expected) == 0;
                    assert!(!inside || segment.bytes.len() <= 1, "it was closed");
                    hand.acknowledge();
                }
            }
            hand.window = 60_000;
            hand.acknowledge();
            part(hand);
            assert!(hand.received == much, "other bytes came");
        },
        |client| {
            let client = client.expect("a connection");
            (&client).write_all(&much).expect("writing");
            client.shutdown(Shutdown::Write).expect("an end");
            let (received, ended) = receive_to_end(&client);
            assert!(received.is_empty() && ended.is_ok(), "{ended:?}");
        },
    );
    scene.play(
        "a window that never opens",
        |hand| {
            hand.window = 0;
            hand.accept();
            hand.receive_reset();
        },
        |client| {
            let client = client.expect("a connection");
            client.set_nonblocking(true).expect("a mode");
            let full = noise(3, 1 << 16);
            // Writes as much as is accepted.
            let (mut taken, mut refused) = (0, 0);
            while refused < 20 {
                match (&client).write(&full) {
                    Ok(count) => (taken, refused) = (taken + count as u64, 0),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        refused += 1;
                        std::thread::sleep(MOMENT / 10);
                    }
                }
            }
            assert!(taken > 0);
            reset(client);
        },
    );
}

/// Resets and silence, during the handshake and after it.
fn resets(scene: &Scene) {
    let early = scene.accept == "early";
    scene.play(
        "a reset in the handshake",
        |hand| {
            let syn = hand.wait_for_syn();
            hand.send(hand::RST | ACK, 0, b"", &Odd::default());
            assert!(syn.bytes.is_empty());
        },
        |client| {
            let outcome = client.and_then(|client| receive_to_end(&client).1);
            assert!(outcome.is_err_and(|error| is_reset(&error)), "it was refused");
        },
    );
    scene.play(
        "a reset with the end of the handshake",
        |hand| {
            hand.accept();
            hand.reset();
        },
        |client| {
            let outcome = client.and_then(|client| receive_to_end(&client).1);
            assert!(outcome.is_err_and(|error| is_reset(&error)), "it was reset");
        },
    );
    let down = noise(4, 1000);
    scene.play(
        "a reset behind some bytes",
        |hand| {
            hand.accept();
            hand.send_data(&down, &Odd::default());
            hand.receive_data(5);
            hand.reset();
        },
        |client| {
            let client = client.expect("a connection");
            let mut received = vec![0; down.len()];
            (&client).read_exact(&mut received).expect("bytes");
            assert!(received == down, "other bytes came");
            (&client).write_all(b"hello").expect("writing");
            let (rest, ended) = receive_to_end(&client);
            assert!(rest.is_empty() && ended.is_err_and(|error| is_reset(&error)));
        },
    );
    scene.play(
        "a reset behind its own end",
        |hand| {
            hand.accept();
            hand.send_data(b"that is all", &Odd::default());
            hand.end();
            hand.receive_data(5);
            hand.reset();
        },
        |client| {
            let client = client.expect("a connection");
            let (received, ended) = receive_to_end(&client);
            assert!(received == b"that is all" && ended.is_ok(), "{ended:?}");
            (&client).write_all(b"hello").expect("writing");
            // The client has no half left in which it could receive the reset, except for what it
            // sends itself.
            until("it is reset", || (&client).write_all(b"more").is_err());
        },
    );
    scene.play(
        "silence behind its answer",
        |hand| {
            let syn = hand.wait_for_syn();
            let mss = Odd { options: vec![2, 4, 5, 0xb4], ..Odd::default() };
            hand.send(SYN | ACK, hand.next, b"", &mss);
            assert!(syn.bytes.is_empty());
            hand.receive_reset();
        },
        |client| {
            let client = client.expect("a connection");
            (&client).write_all(b"hello").expect("writing");
            // Nothing is sent; the client's timeout expires.
            client.set_read_timeout(Some(MOMENT)).expect("a timeout");
            let kind = receive_to_end(&client).1.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::WouldBlock), "nothing comes, and no end");
            reset(client);
        },
    );
    if early {
        return;
    }
    scene.play(
        "an answer to another SYN",
        |hand| {
            hand.wait_for_syn();
            // It acknowledges data that was never sent: the sender of the SYN resets that, and
            // retransmits the SYN.
            hand.expected = hand.expected.wrapping_add(77);
            hand.send(SYN | ACK, hand.next, b"", &Odd::default());
            hand.accept();
            part(hand);
        },
        |client| {
            let client = client.expect("a connection");
            client.shutdown(Shutdown::Write).expect("an end");
            assert!(receive_to_end(&client).1.is_ok());
        },
    );
}

/// A FIN before the data, a FIN in one direction only, and urgent data.
fn ends(scene: &Scene) {
    let down = noise(5, 2400);
    let half = |hand: &Hand, at: usize, flags: u8, to: usize| {
        let place = hand.next.wrapping_add(at as u32);
        hand.send(ACK | PSH | flags, place, &down[at..to], &Odd::default());
    };
    scene.play(
        "an end before what it ends",
        |hand| {
            hand.accept();
            half(hand, 1200, FIN, 2400);
            half(hand, 1200, FIN, 2400);
            hand.receive_data(5);
            let begin = hand.next;
            hand.send_data_at(begin, &down[..1200], &Odd::default());
            hand.next = begin.wrapping_add(2401);
            hand.receive_end();
        },
        |client| {
            let client = client.expect("a connection");
            (&client).write_all(b"hello").expect("writing");
            let (received, ended) = receive_to_end(&client);
            assert!(received == down && ended.is_ok(), "{} bytes, {ended:?}", received.len());
        },
    );
    let up = noise(6, 400_000);
    scene.play(
        "an end of its half at once",
        |hand| {
            hand.accept();
            hand.end();
            hand.receive_end();
            assert!(hand.received == up, "other bytes came");
        },
        |client| {
            let client = client.expect("a connection");
            let (received, ended) = receive_to_end(&client);
            assert!(received.is_empty() && ended.is_ok(), "{ended:?}");
            (&client).write_all(&up).expect("writing");
        },
    );
    scene.play(
        "urgent bytes everywhere",
        |hand| {
            hand.accept();
            for (number, piece) in down.chunks(300).enumerate() {
                let urgent = Odd { urgent: 1 + 40 * number as u16, ..Odd::default() };
                hand.send_data(piece, &urgent);
            }
            hand.end();
            hand.receive_end();
        },
        |client| {
            let client = client.expect("a connection");
            let (received, ended) = receive_to_end(&client);
            assert!(received == down && ended.is_ok(), "{} bytes, {ended:?}", received.len());
        },
    );
}

fn all(family: Family, accept: &'static str, acts: fn(&Scene)) {
    let Some(scene) = Scene::set(family, accept) else { return };
    acts(&scene);
    let Scene { proxy, sound, .. } = scene;
    drop(sound);
    until("all flows have ended", || proxy.admission().flows() == 0);
}

#[test]
fn small_windows_and_closed_ones_hold_up_nobody_else_ipv4() {
    all(Family::V4, "after-connect", windows);
}

#[test]
fn small_windows_and_closed_ones_hold_up_nobody_else_ipv6() {
    all(Family::V6, "early", windows);
}

#[test]
fn resets_at_each_stage_end_their_own_flow_ipv4() {
    all(Family::V4, "after-connect", resets);
}

#[test]
fn resets_at_each_stage_end_their_own_flow_ipv6() {
    all(Family::V6, "after-connect", resets);
}

#[test]
fn resets_at_each_stage_end_their_own_flow_early_ipv4() {
    all(Family::V4, "early", resets);
}

#[test]
fn ends_come_behind_what_they_end_ipv4() {
    all(Family::V4, "after-connect", ends);
}

#[test]
fn ends_come_behind_what_they_end_ipv6() {
    all(Family::V6, "early", ends);
}
