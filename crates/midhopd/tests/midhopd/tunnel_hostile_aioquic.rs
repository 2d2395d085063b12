//! A hostile peer with a QUIC implementation of others: `crates/testbed/peers/aioquic/hostile.py`.
//!
//! It connects again and again for some seconds, with withheld bytes, endless headers, resets,
//! stalls, floods of streams, false settings, and capsules cut anywhere. Meanwhile a well-behaved
//! peer's flow continues. What the attacks hold is bounded, and nothing of it is left when they
//! end.
//!
//! `MIDHOP_ATTACK_SEED` sets the random seed, `MIDHOP_ATTACK_SECONDS` the duration.

use crate::ends::{Ends, PORT};
use crate::partners::{Program, identity, sources};
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, until};
use midhopd::data_plane::DataPlane;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// The most that all flows of the far end may hold.
const LIMIT: u64 = 64 << 20;
/// Bytes that were counted late. Unit: bytes.
const SLACK: u64 = 2 << 20;

fn pass(client: &mut TcpStream, server: &mut TcpStream) {
    let mut received = [0; 4];
    client.write_all(b"ping").expect("writing");
    server.read_exact(&mut received).expect("reading");
    server.write_all(b"pong").expect("writing");
    client.read_exact(&mut received).expect("reading");
    assert_eq!(&received, b"pong");
}

/// Serves everything that the far end opens for the hostile peer, until the end: some bytes are
/// sent back, and many to peers that do not read.
fn serve(listener: &TcpListener, stop: &AtomicBool) {
    listener.set_nonblocking(true).expect("a mode");
    thread::scope(|scope| {
        while !stop.load(Relaxed) {
            match listener.accept() {
                Ok((mut stream, _)) => {
                    stream.set_nonblocking(false).expect("a mode");
                    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
                    scope.spawn(move || {
                        let mut piece = [0; 16 << 10];
                        while let Ok(count @ 1..) = stream.read_once(&mut piece) {
                            if stream.write_all(&piece[..count]).is_err() {
                                return;
                            }
                        }
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}

fn number_of(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok().and_then(|text| text.parse().ok());
    set.unwrap_or(otherwise)
}

#[test]
fn a_peer_of_others_that_turned_harms_nobody_and_leaves_nothing() {
    let (Some(stage), Some(words)) = (Stage::set(), Program::Aioquic.words()) else { return };
    let seed = number_of("MIDHOP_ATTACK_SEED", 1);
    let seconds = number_of("MIDHOP_ATTACK_SECONDS", 5);
    println!("again: MIDHOP_ATTACK_SEED={seed}");
    // A peer that leaves without a notice is given up soon.
    let silence =
        "[peers.rogue]\nkeepalive = \"1 s\"\ntimeout = \"3 s\"\n[limits]\nmemory = \"64 MiB\"\n";
    let ends = Ends::start_with(&stage, Family::V4, "accept = \"early\"\n", ["", silence]);
    midhop_pki::authority::issue(ends.authority.path(), "rogue", 30).expect("a certificate");
    let (listener, prey) = (stage.listen(Family::V4), stage.listen(Family::V4));
    let (mut client, mut server) = stage.flow(&listener);
    pass(&mut client, &mut server);
    let flows = |end: &DataPlane| end.admission().flows();
    let before = flows(&ends.far);
    let mut command = Command::new(&words[0]);
    command.arg(sources("aioquic").join("hostile.py")).args(identity(&ends.authority, "rogue"));
    let proxy = SocketAddr::new(Family::V4.server(), PORT).to_string();
    let target = prey.local_addr().expect("an address").to_string();
    let (seconds, seed) = (seconds.to_string(), seed.to_string());
    command.args(["-proxy", &proxy, "-name", "far", "-target", &target]);
    command.args(["-seconds", &seconds, "-seed", &seed]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let stop = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| serve(&prey, &stop));
        let visits = scope.spawn(|| stage.gateway.run(|| command.output()));
        while !visits.is_finished() {
            pass(&mut client, &mut server);
            let held = ends.far.budget().held();
            assert!(held <= LIMIT + SLACK, "{held} bytes are held");
            thread::sleep(Duration::from_millis(1));
        }
        let output = visits.join().expect("no panic").expect("entering").expect("it starts");
        stop.store(true, Relaxed);
        output
    });
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{printed}{errors}");
    assert!(output.status.success(), "{}", output.status);
    assert!(printed.starts_with("sessions ") && printed.contains(" failed 0 "), "{printed}");
    // Not all of its requests were refused.
    let [_, granted] = ends.sums(|ledger| &ledger.flows);
    assert!(granted > 10, "{granted} flows were granted");
    let (mut another, mut its_server) = stage.flow(&listener);
    pass(&mut another, &mut its_server);
    drop((another, its_server));
    until("the hostile peer's flows are gone", || flows(&ends.far) == before);
    pass(&mut client, &mut server);
    drop((client, server));
    until("all flows are gone", || flows(&ends.far) + flows(&ends.near) == 0);
    until("no buffer is held", || ends.far.budget().held() + ends.near.budget().held() == 0);
}
