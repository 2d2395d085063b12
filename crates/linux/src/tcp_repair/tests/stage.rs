//! A far end and two places, each in a network namespace of its own. One place at a time has the address that moves, as
//! a transparent proxy has the addresses of others: none of the three has it on a device.

use crate::link::{LOOPBACK_INDEX, NewVeth, add_address, create_pair, index, set_up};
use crate::netlink::{Channel, Message};
use crate::netns::{NetNamespace, write_sysctl};
use crate::nft;
use crate::route::wait_until_own;
use crate::route_table::{Family, RouteEntry, octets};
use crate::rule::{Rule, RuleAction, RulePart};
use crate::sockopt;
use crate::tcp_info::TcpInfo;
use crate::tcp_repair::{Mode, TcpSnapshot, Unsent, dump, go_on, prepare, restore, switch};
use crate::tproxy::set_transparent;
use midhop_testkit::POLL;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, socket,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a test waits for what has to come. Some of it comes by retransmissions, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(90);
/// Unit: bytes.
pub const QUEUE_MAX: usize = 64 << 20;
/// The table of what is delivered to a place, whatever its destination.
const DELIVERED: u32 = 100;
/// A table that drops all segments that come.
const DEAF: &str = "table inet deaf {
    chain in { type filter hook prerouting priority -300; meta l4proto tcp drop; }
}";
const FROZEN: &str = "table inet frozen {
    chain in { type filter hook prerouting priority -300; meta l4proto tcp drop; }
    chain out { type filter hook output priority -300; meta l4proto tcp drop; }
}";

/// The namespaces, of which one place at a time has the address.
pub struct Stage {
    pub far: NetNamespace,
    pub places: [NetNamespace; 2],
    v4: bool,
}

/// A connection: the end that moves, and the one that is to notice nothing.
pub struct Pair {
    pub near: TcpStream,
    pub far: TcpStream,
}

/// Which end opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    Near,
    Far,
}

impl Stage {
    /// None, and reported, where this machine lets nobody make namespaces.
    pub fn new(v4: bool, sysctls: &[(&str, &str)]) -> Option<Self> {
        let made: io::Result<Vec<_>> = (0..3).map(|_| NetNamespace::new()).collect();
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                midhop_testkit::skipped(format!("this takes CAP_SYS_ADMIN: {error}"));
                return None;
            }
        };
        let [far, one, other] = <[_; 3]>::try_from(made).expect("three");
        let stage = Self { far, places: [one, other], v4 };
        for namespace in [&stage.far, &stage.places[0], &stage.places[1]] {
            let equip = || {
                set_up(&Channel::routing()?, LOOPBACK_INDEX)?;
                // The kernel would look for duplicates of its own addresses, for a second or two.
                write_sysctl("net.ipv6.conf.default.accept_dad", "0")?;
                sysctls.iter().try_for_each(|(key, value)| write_sysctl(key, value))
            };
            namespace.run(equip).expect("entered").expect("a namespace");
        }
        for (number, place) in (0..).zip(&stage.places) {
            stage.join(number, place).expect("a link");
        }
        let own = stage.far_address();
        let equip =
            || add_address(&Channel::routing()?, LOOPBACK_INDEX, own, if v4 { 32 } else { 128 });
        stage.far.run(equip).expect("entered").expect("an address");
        stage.far.run(|| wait_until_own(own, PATIENCE)).expect("entered").expect("a route");
        stage.route_to(0);
        Some(stage)
    }

    fn address(&self, net: u8, host: u8) -> IpAddr {
        match self.v4 {
            true => IpAddr::from([10, 1, net, host]),
            false => IpAddr::from([0xfd00, 0, 0, net.into(), 0, 0, 0, host.into()]),
        }
    }

    fn far_address(&self) -> IpAddr {
        self.address(100, 1)
    }

    /// The address that moves.
    pub fn near_address(&self) -> IpAddr {
        self.address(200, 1)
    }

    fn join(&self, number: u8, place: &NetNamespace) -> io::Result<()> {
        let name = format!("place{number}");
        let end = |name| NewVeth { name, mac: None, mtu: Some(1500) };
        let pair = || create_pair(&Channel::routing()?, end(&name), end("far"), place);
        self.far.run(pair)??;
        let net = number + 1;
        let bits = if self.v4 { 24 } else { 64 };
        for (namespace, device, host) in [(&self.far, name.as_str(), 1), (place, "far", 2)] {
            let address = self.address(net, host);
            let equip = || {
                let (channel, index) = (Channel::routing()?, index(device)?);
                set_up(&channel, index)?;
                add_address(&channel, index, address, bits)
            };
            namespace.run(equip)??;
        }
        for (namespace, host) in [(&self.far, 1), (place, 2)] {
            let address = self.address(net, host);
            assert!(namespace.run(|| wait_until_own(address, PATIENCE))??, "{address}");
        }
        let any = if self.v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) };
        let router = self.address(net, 1);
        place.run(|| {
            let channel = Channel::routing()?;
            let route = RouteEntry::over(any, 0, router).ok_or(ErrorKind::InvalidInput)?;
            route.add(&channel)?;
            let family = Family::of(any);
            RouteEntry::to_this_host(family, DELIVERED, LOOPBACK_INDEX).add(&channel)?;
            let incoming = vec![
                RulePart::InputDevice("far".to_owned()),
                RulePart::Preference(50),
                RulePart::Table(DELIVERED),
            ];
            Rule::new(family, RuleAction::ToTable, incoming).add(&channel)
        })?
    }

    /// Has the far end reach the moving address at a place.
    pub fn route_to(&self, place: u8) {
        let [near, router] = [self.near_address(), self.address(place + 1, 2)];
        let bits = if self.v4 { 32 } else { 128 };
        let change = || {
            let route = RouteEntry::over(near, bits, router).expect("of one family");
            route.replace(&Channel::routing()?)
        };
        self.far.run(change).expect("entered").expect("a route");
    }

    /// Has connections that a place opens from now on count their timestamps in microseconds.
    pub fn stamp_microseconds(&self, place: u8) -> io::Result<()> {
        // RTM_NEWROUTE of `include/uapi/linux/rtnetlink.h` for a unicast route of the main table; RTA_GATEWAY; and in
        // RTA_METRICS, RTAX_FEATURES with RTAX_FEATURE_TCP_USEC_TS.
        let router = self.address(place + 1, 1);
        let header = [Family::of(router).number(), 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        let message = Message::new(24, flags, &header).with(5, &octets(router));
        let message = message.with_nested(8, |metrics| metrics.with(12, &16_u32.to_ne_bytes()));
        let change = || Channel::routing()?.request(&message.finish());
        self.places[usize::from(place)].run(change)?
    }

    /// A new connection of the first place.
    pub fn connect(&self, opener: Opener) -> Pair {
        let places = [(&self.places[0], self.near_address()), (&self.far, self.far_address())];
        let [(opens, own), (listens, target)] = match opener {
            Opener::Near => places,
            Opener::Far => [places[1], places[0]],
        };
        let listening = || {
            let made = bound(target)?;
            listen(&made, Backlog::new(8)?)?;
            Ok::<_, io::Error>(TcpListener::from(made))
        };
        let listener = listens.run(listening).expect("entered").expect("a listener");
        let at = listener.local_addr().expect("an address");
        let opening = || {
            let made = bound(own)?;
            connect(made.as_raw_fd(), &SockaddrStorage::from(at))?;
            Ok::<_, io::Error>(TcpStream::from(made))
        };
        let opened = opens.run(opening).expect("entered").expect("a connection");
        let (accepted, _) = listener.accept().expect("a connection");
        let [near, far] = match opener {
            Opener::Near => [opened, accepted],
            Opener::Far => [accepted, opened],
        };
        for end in [&near, &far] {
            end.set_nonblocking(true).expect("a mode");
        }
        Pair { near, far }
    }

    /// Drops all segments that come to a place, or leave it.
    pub fn freeze(&self, place: usize) {
        in_nft(&self.places[place], FROZEN);
    }

    pub fn thaw(&self, place: usize) {
        in_nft(&self.places[place], "delete table inet frozen");
    }

    /// How many acknowledgements a place's timers have sent.
    pub fn delayed_acknowledgements(&self, place: usize) -> u64 {
        let read = || std::fs::read_to_string("/proc/thread-self/net/netstat");
        let text = self.places[place].run(read).expect("entered").expect("counters");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
        let [names, values] = [(); 2].map(|()| lines.next().unwrap_or_default().split(' '));
        let found = names.zip(values).find(|(name, _)| *name == "DelayedACKs");
        found.and_then(|(_, value)| value.parse().ok()).expect("a counter")
    }

    /// Moves the connection's end as two machines would: frozen at both, through bytes, and without privileges where
    /// none are needed. The source may be frozen before.
    pub fn relocate(&self, near: TcpStream, [from, to]: [usize; 2], frozen: bool) -> Moved {
        self.freeze(to);
        if !frozen {
            self.freeze(from);
        }
        let moved = self.rebuild(near, to, || {
            self.thaw(to);
            self.route_to(to as u8);
        });
        self.thaw(from);
        moved
    }

    /// The same with the rules left to the caller, who lets packets pass with `release`.
    pub fn rebuild(&self, near: TcpStream, to: usize, release: impl FnOnce()) -> Moved {
        switch(&near, Mode::On).expect("repair mode");
        let bytes = unprivileged(|| dump(&near, QUEUE_MAX).expect("a state").encode());
        let state = TcpSnapshot::decode(&bytes, QUEUE_MAX).expect("a state");
        let prepared = self.places[to].run(|| prepare(state.local, &state.buffers));
        let socket: OwnedFd = prepared.expect("entered").expect("a socket");
        let unsent = unprivileged(|| restore(&socket, &state).expect("restored"));
        release();
        go_on(&socket, unsent.is_end_sent()).expect("the connection goes on");
        drop(near);
        Moved { near: TcpStream::from(socket), state, unsent }
    }
}

/// A transparent socket of an address, at a free port.
fn bound(address: IpAddr) -> io::Result<OwnedFd> {
    let v4 = address.is_ipv4();
    let family = if v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let made = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    set_transparent(&made, v4)?;
    sockopt::set_int(&made, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    bind(made.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(address, 0)))?;
    Ok(made)
}

/// The end that has moved.
pub struct Moved {
    pub near: TcpStream,
    pub state: TcpSnapshot,
    pub unsent: Unsent,
}

impl Moved {
    /// Has the kernel take all that had not been sent, while the far end reads.
    #[track_caller]
    pub fn send_rest(&mut self, far: &TcpStream, received: &mut Vec<u8>) {
        wait_until("what was unsent is written", || {
            read_some(far, received);
            unprivileged(|| self.unsent.send(&self.near).expect("a connection"))
        });
    }
}

pub fn in_nft(place: &NetNamespace, transaction: &str) {
    place.run(|| nft::run(transaction)).expect("entered").expect("a transaction");
}

/// Loses all segments that come to a namespace.
pub fn deafen(place: &NetNamespace) {
    in_nft(place, DEAF);
}

pub fn heal(place: &NetNamespace) {
    in_nft(place, "delete table inet deaf");
}

/// Runs `work` on a thread that has no capability.
pub fn unprivileged<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| {
            drop_capabilities();
            work()
        });
        dropped.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[expect(unsafe_code, reason = "the C library has no capset")]
fn drop_capabilities() {
    // `struct __user_cap_header_struct` of version 3 for the calling thread, and two empty sets.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: both pointers are to arrays of the sizes that version 3 reads, which outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(result, 0, "capset: {}", io::Error::last_os_error());
}

#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Bytes of a stream that nobody could guess, from `at` on.
pub fn noise(stream: u64, at: usize, length: usize) -> Vec<u8> {
    let byte = |place: usize| {
        let mut word = (place as u64 / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream << 32;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31).to_le_bytes()[place % 8]
    };
    (at..at + length).map(byte).collect()
}

/// What one end writes: the noise of a stream, in pieces.
pub struct Writer {
    stream: u64,
    pub written: usize,
}

impl Writer {
    pub fn new(stream: u64) -> Self {
        Self { stream, written: 0 }
    }

    /// Both directions' of a connection: the near end's, and the far end's.
    pub fn both() -> [Self; 2] {
        [Self::new(1), Self::new(2)]
    }

    /// Writes so many bytes, all of which the kernel has to take.
    #[track_caller]
    pub fn write(&mut self, mut socket: &TcpStream, length: usize) {
        let bytes = noise(self.stream, self.written, length);
        socket.write_all(&bytes).expect("room for all");
        self.written += length;
    }

    /// Writes until the kernel takes no more.
    pub fn fill(&mut self, mut socket: &TcpStream) {
        loop {
            let bytes = noise(self.stream, self.written, 1 << 15);
            match socket.write(&bytes) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Whether `received` is all that was written.
    #[track_caller]
    pub fn check(&self, received: &[u8]) {
        assert_eq!(received.len(), self.written, "of stream {}", self.stream);
        let wanted = noise(self.stream, 0, self.written);
        let differs = received.iter().zip(&wanted).position(|(one, other)| one != other);
        assert_eq!(differs, None, "stream {} differs there", self.stream);
    }
}

/// Reads what is there. Whether the stream has ended.
pub fn read_some(mut socket: &TcpStream, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 1 << 16];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return true,
            Ok(count) => into.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads until `length` bytes are there.
#[track_caller]
pub fn read_all(socket: &TcpStream, into: &mut Vec<u8>, length: usize) {
    wait_until("the bytes arrive", || {
        let ended = read_some(socket, into);
        assert!(!ended || into.len() >= length, "the stream ends after {} bytes", into.len());
        into.len() >= length
    });
}

/// Reads until the stream ends.
#[track_caller]
pub fn read_to_end(socket: &TcpStream, into: &mut Vec<u8>) {
    wait_until("the stream ends", || read_some(socket, into));
}

pub fn info(socket: &TcpStream) -> TcpInfo {
    TcpInfo::of(socket).expect("TCP_INFO")
}

pub fn unread(socket: &TcpStream) -> usize {
    sockopt::unread(socket).expect("a count")
}

#[track_caller]
pub fn wait_for_unread(socket: &TcpStream, bytes: usize) {
    wait_until("it arrives", || unread(socket) == bytes);
}
