//! A restored connection gets a congestion window. Without the privilege to, each test prints that it is skipped.
//!
//! A program of its own: these tests register programs, and so hold registrations for a moment that tests of `registration.rs`
//! check to be gone. cargo runs programs of tests one by one.

use midhop_bpf::{Algorithm, Parameters, ensure, ensure_window, missing_to_load};
use midhop_linux::tcp_info::TcpInfo;
use midhop_linux::tcp_repair::{self, Mode, Seed, TcpSnapshot};
use nix::libc;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// Unit: segments.
const WINDOW_SEGMENTS: u32 = 321;
const THRESHOLD: u32 = 123;
const RATE: u64 = 2_000_000;

fn seed(mss: u32) -> Seed {
    let bytes = |segments| u64::from(segments * mss);
    Seed { window: bytes(WINDOW_SEGMENTS), threshold: bytes(THRESHOLD), pacing_rate: RATE }
}

/// A connection over loopback. Its near end is restored in this network namespace, and still in repair mode.
fn restored() -> (OwnedFd, TcpStream, TcpSnapshot) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    let (mut far, _) = listener.accept().expect("accept");
    near.write_all(b"measured").expect("write");
    far.read_exact(&mut [0; 8]).expect("read");
    // Nothing is on its way any more, so that no packet need be dropped.
    while midhop_linux::sockopt::unacknowledged(&near).expect("a count") > 0 {
        std::thread::yield_now();
    }
    tcp_repair::switch(&near, Mode::On).expect("repair mode");
    let state = tcp_repair::dump(&near, 1 << 20).expect("a state");
    drop(near);
    let socket = tcp_repair::prepare(state.local, &state.buffers).expect("a socket");
    let _nothing_unsent = tcp_repair::restore(&socket, &state).expect("restored");
    (socket, far, state)
}

fn option(socket: &OwnedFd, name: libc::c_int) -> i32 {
    midhop_linux::sockopt::read_int(socket, libc::IPPROTO_TCP, name).expect("an option")
}

fn congestion_of(socket: &OwnedFd) -> String {
    let name = socket2::SockRef::from(socket).tcp_congestion().expect("TCP_CONGESTION");
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}

#[test]
fn a_restored_connection_has_the_window_that_it_is_given() {
    if missing_to_load().inspect(|missing| midhop_testkit::skipped(missing)).is_some() {
        return;
    }
    let (program, _window) = ensure_window().expect("the kernel takes the program");
    let ours = [Algorithm::Hybla, Algorithm::HyblaPlus, Algorithm::Vegas, Algorithm::Westwood]
        .map(|it| ensure(it, &Parameters::default()).expect("the kernel takes it"));
    let ours = ours.iter().map(|it| it.kernel_name());
    for name in ["reno", "cubic", "bbr"].into_iter().chain(ours) {
        let (socket, mut far, _) = restored();
        if midhop_bpf::select(&socket, name).is_err() {
            eprintln!("this kernel has no {name}");
            continue;
        }
        let before = TcpInfo::of(&socket).expect("TCP_INFO");
        let options = [libc::TCP_NOTSENT_LOWAT, libc::TCP_USER_TIMEOUT];
        let kept = options.map(|option_name| option(&socket, option_name));
        tcp_repair::seed(&socket, &seed(before.mss), &program).expect("seeded");
        let after = TcpInfo::of(&socket).expect("TCP_INFO");
        assert!(before.cwnd < 100, "{name}: {}", before.cwnd);
        assert_eq!(after.cwnd, WINDOW_SEGMENTS, "{name}");
        // BBR has no threshold.
        let threshold = if name == "bbr" { before.ssthresh } else { THRESHOLD };
        assert_eq!(after.ssthresh, threshold, "{name}");
        assert!(after.pacing_rate <= RATE, "{name}: {}", after.pacing_rate);
        assert_eq!(congestion_of(&socket), name);
        assert_eq!(options.map(|option_name| option(&socket, option_name)), kept, "{name}");
        let mut most = [0; 8];
        let most = midhop_linux::sockopt::read(
            &socket,
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            &mut most,
        );
        assert_eq!(most.expect("an option"), [0xff; 8], "{name}: its rate is not bounded");
        // It is a connection that works.
        tcp_repair::go_on(&socket, false).expect("it goes on");
        let mut near = TcpStream::from(socket);
        near.set_nonblocking(false).expect("blocking");
        let sent = vec![7; 400_000];
        let writer = std::thread::spawn(move || near.write_all(&sent).map(|()| near));
        let mut read = vec![0; 400_000];
        far.read_exact(&mut read).expect("read");
        assert!(read.iter().all(|byte| *byte == 7), "{name}");
        drop(writer.join().expect("no panic").expect("written"));
        assert_eq!(far.read(&mut read).expect("an end"), 0, "{name}");
    }
}

#[test]
fn without_the_program_nothing_changes() {
    if missing_to_load().inspect(|missing| midhop_testkit::skipped(missing)).is_some() {
        return;
    }
    let (socket, _far, _) = restored();
    let before = TcpInfo::of(&socket).expect("TCP_INFO");
    let name = congestion_of(&socket);
    tcp_repair::seed(&socket, &seed(before.mss), "midhop_nothing")
        .expect_err("nobody has registered it");
    let after = TcpInfo::of(&socket).expect("TCP_INFO");
    assert_eq!((after.cwnd, after.ssthresh), (before.cwnd, before.ssthresh));
    assert_eq!(congestion_of(&socket), name);
    assert_eq!(option(&socket, libc::TCP_USER_TIMEOUT), 0);
}
