//! Each algorithm carries real bytes between sockets in a network namespace of the test's own.
//!
//! A program of its own: these tests register algorithms, and so hold registrations for a moment that tests of `registration.rs`
//! check to be gone. cargo runs programs of tests one by one.

use midhop_bpf::{Active, Algorithm, HyblaBounds, Parameters, Resolution, missing_to_load, select};
use midhop_linux::tcp_info::TcpInfo;
use nix::sched::{CloneFlags, unshare};
use socket2::SockRef;
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

const BYTES: usize = 8 << 20;
/// How much is written between two readings of the window.
const PIECE: usize = 64 << 10;
/// In a namespace of one's own every port is free.
const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5000),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 5000),
];

/// Runs a program of the system with the words of each line; each run must succeed.
fn run_each<const N: usize>(program: &str, lines: [&str; N]) {
    for line in lines {
        let status = Command::new(program).args(line.split(' ')).status();
        assert!(status.expect("it is installed").success(), "{program} {line}");
    }
}

/// Runs `body` on a thread of its own in a new network namespace with loopback up at Ethernet's MTU
/// and without joined segments, so that a loss is one segment.
fn in_own_namespace<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
            run_each("ip", ["link set lo up mtu 1500 gso_max_segs 1"]);
            body()
        });
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Lets acknowledgements queue behind one another, so that the window is what bounds the flight.
///
/// Loopback alone acknowledges within the call that sends, and a window above the sixteen segments
/// between two checks for arrivals is filled by chance only. A queue for the data would not do:
/// the kernel sends no more into a queue of its own than a millisecond's worth.
fn hold_acknowledgements() {
    let class = "class add dev lo parent 1: classid 1:1 htb rate 10mbit burst 1k";
    run_each("tc", ["qdisc add dev lo root handle 1: htb", class]);
    run_each(
        "nft",
        [
            "add table inet hold",
            "add chain inet hold leaving { type filter hook output priority 0; }",
            "add rule inet hold leaving tcp dport 5000 meta priority set 1:1",
        ],
    );
}

/// The same bytes every time, none like its neighbours: xorshift64.
fn payload() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(BYTES);
    while bytes.len() < BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_ne_bytes());
    }
    bytes
}

fn name_of(socket: &TcpStream) -> String {
    let name = SockRef::from(socket).tcp_congestion().expect("TCP_CONGESTION");
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}

/// Drops every hundredth segment that the sender sends, at random, where it arrives.
fn lose_one_in_a_hundred() {
    run_each(
        "nft",
        [
            "add table inet loss",
            "add chain inet loss arriving { type filter hook input priority 0; }",
            "add rule inet loss arriving tcp sport 5000 numgen random mod 100 == 0 drop",
        ],
    );
}

/// Sends the payload from an accepted socket, which inherits its listener's algorithm, as a proxy's
/// does. Returns the kernel's measurements of the sender before and after, with the widest window in
/// between: a machine that is busy enough to let a timer fire closes it again at any moment.
fn transfer(active: &Active, address: SocketAddr) -> (TcpInfo, TcpInfo) {
    let listener = TcpListener::bind(address).expect("bind");
    active.select(&listener).expect("select on the listener");
    let sent = payload();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let (mut socket, _) = listener.accept().expect("accept");
            assert_eq!(name_of(&socket), active.kernel_name(), "the accepted socket inherits it");
            let before = TcpInfo::of(&socket).expect("TCP_INFO");
            let mut widest = 0;
            for piece in sent.chunks(PIECE) {
                socket.write_all(piece).expect("write");
                widest = widest.max(TcpInfo::of(&socket).expect("TCP_INFO").cwnd);
            }
            let after = TcpInfo { cwnd: widest, ..TcpInfo::of(&socket).expect("TCP_INFO") };
            (before, after)
        });
        let mut client = TcpStream::connect(address).expect("connect");
        select(&client, active.kernel_name()).expect("select on a live connection");
        assert_eq!(name_of(&client), active.kernel_name());
        let mut received = Vec::with_capacity(BYTES);
        client.read_to_end(&mut received).expect("read");
        assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
        sender.join().expect("the sender is done")
    })
}

/// The sender's window at first and at its widest, over IPv4 and over IPv6, in segments; `None` where
/// the algorithm cannot be registered.
fn windows(algorithm: Algorithm, parameters: &Parameters) -> Option<[(u32, u32); 2]> {
    if let Some(missing) = missing_to_load() {
        midhop_testkit::skipped(missing);
        return None;
    }
    let active = Resolution::Program(algorithm)
        .activate(parameters)
        .unwrap_or_else(|error| panic!("{algorithm}: {error}"));
    Some(in_own_namespace(|| {
        hold_acknowledgements();
        ADDRESSES
            .map(|address| transfer(&active, address))
            .map(|(before, after)| (before.cwnd, after.cwnd))
    }))
}

/// Parameters that make loopback's tens of microseconds a long path.
fn as_if_far() -> Parameters {
    Parameters { rtt0: Duration::from_micros(1), ..Parameters::default() }
}

/// The same, where the first window is wider than what is in flight on loopback alone.
fn as_if_farther() -> Parameters {
    let hybla = HyblaBounds { initial_window: 100, ..HyblaBounds::default() };
    Parameters { hybla, ..as_if_far() }
}

#[test]
fn hybla_moves_bytes_and_grows() {
    for (algorithm, parameters) in [
        (Algorithm::Hybla, as_if_far()),
        (Algorithm::HyblaPlus, as_if_far()),
        (Algorithm::HyblaPlus, as_if_farther()),
    ] {
        let Some(windows) = windows(algorithm, &parameters) else { return };
        for (before, after) in windows {
            assert!(before >= 10, "{algorithm} starts with ten segments or rho: {before}");
            assert!(after > before, "{algorithm}: {before} to {after}");
        }
    }
}

#[test]
fn the_kernels_hybla_starts_with_rho_and_jumps() {
    let near = Parameters::default();
    let Some(close) = windows(Algorithm::HyblaLinux, &near) else { return };
    for (before, after) in close {
        assert_eq!(before, 1, "below rtt0 rho is 1 and so is the window");
        assert!(after > 1);
    }
    let Some(far) = windows(Algorithm::HyblaLinux, &as_if_far()) else { return };
    for (before, after) in far {
        assert!(before > 1, "rho is the handshake's RTT in microseconds: {before}");
        assert!(after > 1000, "an acknowledgement adds up to 65535 segments: {after}");
    }
}

#[test]
fn westwood_moves_bytes_and_grows() {
    let parameters = Parameters::default();
    let Some(windows) = windows(Algorithm::Westwood, &parameters) else { return };
    for (before, after) in windows {
        assert!(before >= 10 && after > before, "{before} to {after}");
    }
}

#[test]
fn vegas_moves_bytes() {
    let parameters = Parameters::default();
    let Some(windows) = windows(Algorithm::Vegas, &parameters) else { return };
    for (before, after) in windows {
        assert!(before >= 10 && after >= 2, "{before} to {after}");
    }
}

#[test]
fn every_byte_arrives_where_one_segment_in_a_hundred_does_not() {
    if let Some(missing) = missing_to_load() {
        midhop_testkit::skipped(missing);
        return;
    }
    for algorithm in Algorithm::ALL {
        let active = Resolution::Program(algorithm)
            .activate(&Parameters::default())
            .unwrap_or_else(|error| panic!("{algorithm}: {error}"));
        in_own_namespace(|| {
            lose_one_in_a_hundred();
            let (_, after) = transfer(&active, ADDRESSES[0]);
            assert!(after.retransmissions > 0, "{algorithm}: nothing was lost");
        });
    }
}
