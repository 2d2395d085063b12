//! Segments that arrive when their flow is over: if a socket waits for them they are delivered to
//! it. All others go to the far end, whose kernel does not know the connection either.
//!
//! The simulator's proxy does the same: `crates/sim/src/pep/tests.rs`.

use crate::stage::{Family, Stage, receive_all, send_all, until};
use midhop_testbed::namespace::Namespace;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;

/// No other segment offers this window.
const MARK: u16 = 4242;

/// Counts marked segments that arrive.
fn count(inside: &Namespace) {
    let rules = format!(
        "add table inet late
         add chain inet late input {{ type filter hook input priority 0; }}
         add rule inet late input tcp window {MARK} counter"
    );
    let mut nft =
        inside.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft starts");
    nft.stdin.take().expect("its input").write_all(rules.as_bytes()).expect("writing");
    assert!(nft.wait().expect("an end").success());
}

fn counted(inside: &Namespace) -> u64 {
    let listed = inside.command("nft").args(["list", "chain", "inet", "late", "input"]).output();
    let text = String::from_utf8(listed.expect("nft starts").stdout).expect("text");
    let after = text.split("counter packets ").nth(1).expect("a counter");
    after.split(' ').next().expect("a number").parse().expect("a number")
}

const LISTENING: &str = "0A";
const WAITING: &str = "06";

/// The states of all sockets of connections.
fn sockets(inside: &Namespace) -> Vec<String> {
    let table = inside.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp"));
    let table = table.expect("entering").expect("the kernel's table");
    let states = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3));
    states.filter(|state| *state != LISTENING).map(str::to_owned).collect()
}

/// Sends a segment of no connection: an acknowledgement with a byte of data.
fn send_late(inside: &Namespace, from: SocketAddr, to: SocketAddr) {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else {
        panic!("IPv4 only")
    };
    let mut segment = Vec::new();
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, 0x10]);
    segment.extend(MARK.to_be_bytes());
    segment.extend([0, 0, 0, 0, b'x']);
    let pseudo = [&source.octets()[..], &destination.octets(), &[0, 6, 0, 21]].concat();
    let words = pseudo.chunks(2).chain(segment.chunks(2));
    let sum: u32 =
        words.map(|it| u32::from(it[0]) << 8 | it.get(1).map_or(0, |&low| low.into())).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    let sent = inside.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP))?;
        socket.send_to(&segment, &SocketAddr::new(to.ip(), 0).into())
    });
    assert_eq!(sent.expect("entering").expect("sending"), segment.len());
}

#[test]
fn late_segments_go_to_the_socket_that_waits_or_to_the_far_end() {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy("accept = \"early\"\n");
    [&stage.client, &stage.server].into_iter().for_each(count);
    let listener = stage.listen(Family::V4);
    let ends = |client: &std::net::TcpStream| {
        (client.local_addr().expect("an address"), client.peer_addr().expect("an address"))
    };

    // After a reset, no socket waits at the proxy.
    let (client, server) = stage.flow(&listener);
    let (near, far) = ends(&client);
    socket2::SockRef::from(&server).set_linger(Some(std::time::Duration::ZERO)).expect("a time");
    drop(server);
    until("the reset", || (&client).write(b"x").is_err());
    // For a second the flow counts as new, and packets that find no socket of it are dropped.
    until("it passes to the server", || {
        send_late(&stage.client, near, far);
        counted(&stage.server) > 0
    });
    let passed = counted(&stage.server);
    send_late(&stage.server, far, near);
    until("it passes to the client", || counted(&stage.client) == 1);

    // After an orderly end that the client began, the proxy's socket towards the server waits for
    // late segments.
    let (client, server) = stage.flow(&listener);
    let (near, far) = ends(&client);
    send_all(&client, b"question");
    assert_eq!(receive_all(&server), b"question");
    send_all(&server, b"answer");
    assert_eq!(receive_all(&client), b"answer");
    until("only that is left", || sockets(&stage.gateway) == [WAITING]);
    send_late(&stage.server, far, near);
    until("it passes to the server", || {
        send_late(&stage.client, near, far);
        counted(&stage.server) > passed
    });
    assert_eq!(counted(&stage.client), 1, "the server's has gone to the socket");
}
