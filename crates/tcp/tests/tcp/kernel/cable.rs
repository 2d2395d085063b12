//! A cable between an endpoint and this machine's kernel: a packet socket on one end of a veth pair,
//! and a seeded dice that loses, delays, duplicates and marks packets both ways.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use midhop_tcp::{
    Ecn, Segment,
    wire::{self, Addresses, Packet},
};
use midhop_testbed::namespace::{Namespace, veth};
use midhop_units::{Duration, Instant};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send,
            setsockopt, socket, sockopt::RcvBufForce,
        },
        time::TimeSpec,
    },
};

use crate::pair::Dice;

/// What the cable does to packets.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    pub loss_per_mille: u32,
    pub duplicate_per_mille: u32,
    /// Of packets that may be marked.
    pub mark_per_mille: u32,
    pub delay_us: u64,
    /// Up to so much more, drawn for each packet: they overtake each other.
    pub jitter_us: u64,
}

/// The cable, seen from the endpoint.
pub struct Cable {
    socket: OwnedFd,
    header: [u8; 12],
    faults: Faults,
    dice: Dice,
    /// In transit: (due, number) → outgoing frame or incoming packet.
    flying: BTreeMap<(Instant, u64), Flying>,
    number: u64,
    pub lost: u64,
    pub marked: u64,
    endpoint: SocketAddr,
}

enum Flying {
    Out(Vec<u8>),
    In(Packet, Vec<u8>),
}

/// The kernel's side: a namespace with an address, and the neighbour that we pretend to be.
pub struct Kernel {
    pub namespace: Namespace,
    pub address: IpAddr,
}

impl Cable {
    /// Lays a cable between a namespace for the kernel and one that has no address, so that its
    /// kernel answers nothing.
    pub fn lay(six: bool, port: u16, faults: Faults, dice: Dice) -> (Self, Kernel) {
        let (near, far) =
            (Namespace::create("ours").unwrap(), Namespace::create("kernel").unwrap());
        let [ours, theirs] = veth(&near, "cable", &far, "cable", 1500).unwrap();
        let (mine, address, prefix): (IpAddr, IpAddr, u8) = if six {
            ("fd09::2".parse().unwrap(), "fd09::1".parse().unwrap(), 64)
        } else {
            ("10.9.0.2".parse().unwrap(), "10.9.0.1".parse().unwrap(), 24)
        };
        far.add_address("cable", address, prefix).unwrap();
        far.add_neighbour("cable", mine, ours.mac).unwrap();
        let socket = near.run(packet_socket).unwrap().unwrap();
        let mut header = [0; 12];
        header[..6].copy_from_slice(&theirs.mac);
        header[6..].copy_from_slice(&ours.mac);
        let cable = Self {
            socket,
            header,
            faults,
            dice,
            flying: BTreeMap::new(),
            number: 0,
            lost: 0,
            marked: 0,
            endpoint: SocketAddr::new(mine, port),
        };
        (cable, Kernel { namespace: far, address })
    }

    /// The endpoint's own address.
    pub fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// Draws when a packet arrives: never, once or twice.
    fn fate(&mut self, now: Instant) -> Vec<Instant> {
        if self.dice.per_mille(self.faults.loss_per_mille) {
            self.lost += 1;
            return Vec::new();
        }
        let copies = 1 + u32::from(self.dice.per_mille(self.faults.duplicate_per_mille));
        let mut at = || {
            let extra = match self.faults.jitter_us {
                0 => 0,
                jitter => self.dice.roll() % jitter,
            };
            now + Duration::from_us(self.faults.delay_us + extra)
        };
        (0..copies).map(|_| at()).collect()
    }

    fn mark(&mut self, ecn: Ecn) -> Ecn {
        let capable = matches!(ecn, Ecn::Capable | Ecn::CapableOne);
        if capable && self.dice.per_mille(self.faults.mark_per_mille) {
            self.marked += 1;
            return Ecn::Congested;
        }
        ecn
    }

    fn fly(&mut self, at: Instant, what: Flying) {
        self.number += 1;
        self.flying.insert((at, self.number), what);
    }

    /// The endpoint sends.
    pub fn send(&mut self, now: Instant, segment: &Segment, to: SocketAddr, payload: &[u8]) {
        let segment = Segment { ecn: self.mark(segment.ecn), ..*segment };
        let addresses = Addresses { source: self.endpoint, destination: to };
        let mut frame = self.header.to_vec();
        frame.extend(if to.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        wire::write(&segment, addresses, payload, &mut frame).unwrap();
        for at in self.fate(now) {
            self.fly(at, Flying::Out(frame.clone()));
        }
    }

    /// Moves what is due: outgoing frames to the kernel, incoming ones to `arrive`.
    pub fn move_on(&mut self, now: Instant, mut arrive: impl FnMut(&Packet, &[u8])) {
        let mut frame = [0; 2048];
        loop {
            match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                Ok(length) => {
                    let Some(bytes) = frame[..length].get(14..) else { continue };
                    // Other packets are the kernel's neighbour discovery.
                    let Ok(mut packet) = wire::read(bytes) else { continue };
                    if packet.addresses.destination != self.endpoint {
                        continue;
                    }
                    packet.segment.ecn = self.mark(packet.segment.ecn);
                    for at in self.fate(now) {
                        let payload = bytes[packet.payload.clone()].to_vec();
                        self.fly(at, Flying::In(packet.clone(), payload));
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(error) => panic!("reading the cable: {error}"),
            }
        }
        while let Some(due) = self.flying.first_entry().filter(|due| due.key().0 <= now) {
            match due.remove() {
                Flying::In(packet, payload) => arrive(&packet, &payload),
                Flying::Out(frame) => {
                    match send(self.socket.as_raw_fd(), &frame, MsgFlags::empty()) {
                        Ok(_) | Err(Errno::ENOBUFS | Errno::EAGAIN) => {}
                        Err(error) => panic!("writing to the cable: {error}"),
                    }
                }
            }
        }
    }

    /// Waits for a packet, or until the next of the cable's own or `timer` is due.
    pub fn wait(&self, now: Instant, timer: Option<Instant>) {
        let flight = self.flying.keys().next().map(|&(at, _)| at);
        let due = [timer, flight].into_iter().flatten().min();
        // Without anything of ours to wait for, the kernel's side may still have ended.
        let longest = Duration::from_ms(20);
        let span = due.map_or(longest, |at| at.saturating_since(now).min(longest));
        let timeout = TimeSpec::from_duration(span.into());
        let mut poll = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut poll, Some(timeout), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => panic!("waiting at the cable: {error}"),
        }
    }
}

/// A packet socket on the device called `cable` of this thread's namespace.
fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let all = SockProtocol::EthAll;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, all)?;
    let device = nix::ifaddrs::getifaddrs()?
        .filter(|interface| interface.interface_name == "cable")
        .find_map(|interface| interface.address?.as_link_addr().copied());
    bind(socket.as_raw_fd(), &device.ok_or(io::ErrorKind::NotFound)?)?;
    // A burst from the kernel must not overflow it on a busy machine. A smaller buffer is no error.
    let _ = setsockopt(&socket, RcvBufForce, &(8 << 20));
    Ok(socket)
}
