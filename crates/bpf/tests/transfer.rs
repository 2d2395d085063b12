//! Each algorithm carries real bytes between sockets in a network namespace of the test's own.

use midhop_bpf::{Active, Algorithm, Parameters, Resolution, missing_to_load, select};
use nix::sched::{CloneFlags, unshare};
use socket2::SockRef;
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

const BYTES: usize = 8 << 20;

/// Runs `body` on a thread of its own in a new network namespace with loopback up at Ethernet's MTU.
fn in_own_namespace<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
            let up = Command::new("ip").args(["link", "set", "lo", "up", "mtu", "1500"]).status();
            assert!(up.expect("iproute2 is installed").success());
            body()
        });
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
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

/// Sends the payload from an accepted socket, which inherits its listener's algorithm, as a proxy's
/// does; returns the sender's window before and after, in segments.
fn transfer(active: &Active, address: SocketAddr) -> (u32, u32) {
    let listener = TcpListener::bind(address).expect("bind");
    active.select(&listener).expect("select on the listener");
    let address = listener.local_addr().expect("an address");
    let sent = payload();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let (mut socket, _) = listener.accept().expect("accept");
            assert_eq!(name_of(&socket), active.kernel_name(), "the accepted socket inherits it");
            let before = tcp_info::window(&socket);
            socket.write_all(&sent).expect("write");
            let after = tcp_info::window(&socket);
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

/// Over IPv4 and IPv6, in a namespace of its own; `None` where the algorithm cannot be registered.
fn windows(test: &str, algorithm: Algorithm, parameters: &Parameters) -> Option<[(u32, u32); 2]> {
    if let Some(missing) = missing_to_load() {
        println!("skipped: {test}: {missing}");
        return None;
    }
    let active = Resolution::Program(algorithm)
        .activate(parameters)
        .unwrap_or_else(|error| panic!("{algorithm}: {error}"));
    Some(in_own_namespace(|| {
        [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))]
            .map(|address| transfer(&active, address))
    }))
}

/// Parameters that make loopback's tens of microseconds a long path.
fn as_if_far() -> Parameters {
    Parameters { rtt0: Duration::from_micros(1), ..Parameters::default() }
}

#[test]
fn hybla_moves_bytes_and_grows() {
    let Some(windows) = windows("hybla_moves_bytes_and_grows", Algorithm::Hybla, &as_if_far())
    else {
        return;
    };
    for (before, after) in windows {
        assert!(before >= 10, "it starts with ten segments or rho: {before}");
        assert!(after > before, "{before} to {after}");
    }
}

#[test]
fn the_kernels_hybla_starts_with_rho_and_jumps() {
    let test = "the_kernels_hybla_starts_with_rho_and_jumps";
    let near = Parameters::default();
    let Some(close) = windows(test, Algorithm::HyblaLinux, &near) else { return };
    for (before, after) in close {
        assert_eq!(before, 1, "below rtt0 rho is 1 and so is the window");
        assert!(after > 1);
    }
    let Some(far) = windows(test, Algorithm::HyblaLinux, &as_if_far()) else { return };
    for (before, after) in far {
        assert!(before > 1, "rho is the handshake's RTT in microseconds: {before}");
        assert!(after > 1000, "an acknowledgement adds up to 65535 segments: {after}");
    }
}

#[test]
fn westwood_moves_bytes_and_grows() {
    let parameters = Parameters::default();
    let test = "westwood_moves_bytes_and_grows";
    let Some(windows) = windows(test, Algorithm::Westwood, &parameters) else { return };
    for (before, after) in windows {
        assert!(before >= 10 && after > before, "{before} to {after}");
    }
}

#[test]
fn vegas_moves_bytes() {
    let parameters = Parameters::default();
    let Some(windows) = windows("vegas_moves_bytes", Algorithm::Vegas, &parameters) else { return };
    for (before, after) in windows {
        assert!(before >= 10 && after >= 2, "{before} to {after}");
    }
}

mod tcp_info {
    #![expect(unsafe_code, reason = "no crate at hand reads TCP_INFO")]

    use std::{mem, net::TcpStream, os::fd::AsRawFd};

    /// The congestion window. Unit: segments.
    pub fn window(socket: &TcpStream) -> u32 {
        // SAFETY: `tcp_info` is integers throughout, for which zeros are values.
        let mut info: libc::tcp_info = unsafe { mem::zeroed() };
        let mut length = size_of_val(&info) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `info`, which lives until it returns.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        info.tcpi_snd_cwnd
    }
}
