//! One end of the connection, and what it serves or requests.

use super::Datagram;
use bytes::Bytes;
use midhop_pep::config::{ClassPlan, PeerPlan, Plan};
use midhop_tunnel::connect::Request;
use midhop_tunnel::control::Pace;
use midhop_tunnel::http3::Code;
use midhop_tunnel::quic::{CarrierEvent, CarrierStats, Lone, StreamId};
use midhop_tunnel::target::Target;
use midhop_units::{Instant, Seed};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

/// The bytes that are given to a flow at once.
static ZEROS: [u8; 65_536] = [0; 65_536];
/// What IPv4 and UDP add to a datagram.
const OVERHEAD: midhop_units::Bytes = midhop_units::Bytes::new(28);

pub struct End {
    lone: Lone,
    serves: bool,
    connected: bool,
    class: ClassPlan,
    /// How much of each object must still be sent, once its size is known.
    serving: BTreeMap<StreamId, u64>,
    /// Flows whose ends were received, and flows whose ends were delivered.
    ended: BTreeSet<StreamId>,
    delivered: BTreeSet<StreamId>,
    /// What was read of requested objects: stream, bytes, and whether it was the end.
    read: Vec<(u64, u64, bool)>,
    /// The most that ever waited behind a gap.
    pub held_max: u64,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl End {
    pub fn server(peer: &PeerPlan, (epoch, seed): (std::time::Instant, Seed)) -> Self {
        let own = (epoch, seed.derive("server"));
        Self::new(Lone::listen(peer, address(1), own).expect("an end"), true)
    }

    pub fn client(peer: &PeerPlan, (epoch, seed): (std::time::Instant, Seed)) -> Self {
        let own = (epoch, seed.derive("client"));
        Self::new(Lone::connect(peer, address(2), own).expect("an end"), false)
    }

    fn new(lone: Lone, serves: bool) -> Self {
        let plan = Plan::read("pair.toml", "").expect("a plan");
        let class = plan.class_named(None).clone();
        let (serving, ended, delivered, read) = Default::default();
        Self { lone, serves, connected: false, class, serving, ended, delivered, read, held_max: 0 }
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn stats(&self) -> CarrierStats {
        self.lone.stats()
    }

    /// The rate at which it may send, and what it knows of its link.
    pub fn pace(&mut self) -> Pace {
        self.lone.carrier().pace().clone()
    }

    /// Requests an object of this size.
    pub fn ask(&mut self, now: Instant, size: u64) -> u64 {
        let target = Target::Address(address(80));
        let request = Request { target, client: None, class: None, hops: 0 };
        let id = self.lone.carrier().ask(now, &request, &self.class).expect("a flow");
        self.lone.carrier().enqueue(now, id, Bytes::copy_from_slice(&size.to_be_bytes()));
        self.lone.carrier().finish(now, id);
        id.index()
    }

    pub fn receive(&mut self, now: Instant, datagram: Datagram) {
        self.lone.handle_datagram(now, datagram, false);
    }

    /// Does what is due, and passes the datagrams that leave to `leave`, with their size on the link.
    pub fn drive(&mut self, now: Instant, mut leave: impl FnMut(midhop_units::Bytes, Datagram)) {
        self.lone.handle_timeout(now);
        loop {
            let mut any = false;
            while let Some(event) = self.lone.poll_event(now) {
                any = true;
                self.on_event(now, event);
            }
            while let Some(datagram) = self.lone.poll_datagram(now) {
                any = true;
                leave(midhop_units::Bytes::new(datagram.len() as u64) + OVERHEAD, datagram);
            }
            if !any {
                return;
            }
        }
    }

    fn on_event(&mut self, now: Instant, event: CarrierEvent) {
        match event {
            CarrierEvent::Connected => self.connected = true,
            CarrierEvent::Asked(id, _) => self.lone.carrier().grant(now, id, &self.class),
            CarrierEvent::Readable(id) => self.on_readable(now, id),
            CarrierEvent::Writable(id) => self.serve(now, id),
            CarrierEvent::Delivered(id) => {
                self.delivered.insert(id);
                self.leave(id);
            }
            CarrierEvent::Broken(id, fault) => {
                panic!("{id} broke: {fault}, serves: {}", self.serves)
            }
            CarrierEvent::Lost(why) => panic!("lost the connection: {why}"),
            _ => {}
        }
    }

    /// Removes a flow that is over at both ends.
    fn leave(&mut self, id: StreamId) {
        let has_come =
            self.ended.contains(&id) && self.lone.carrier().take_end(id).expect("an end");
        if has_come && self.delivered.contains(&id) {
            self.lone.carrier().forget(id, Code::NO_ERROR);
            self.serving.remove(&id);
        }
    }

    fn on_readable(&mut self, now: Instant, id: StreamId) {
        if self.ended.contains(&id) {
            return self.leave(id);
        }
        self.held_max = self.held_max.max(self.lone.carrier().held(id));
        loop {
            let taken = self.lone.carrier().take(id).expect("a sound flow");
            let bytes: usize = taken.pieces.iter().map(Bytes::len).sum();
            if self.serves && bytes > 0 {
                let size = taken.pieces.concat().try_into().expect("eight bytes at once");
                self.serving.insert(id, u64::from_be_bytes(size));
                self.serve(now, id);
            } else if bytes > 0 || taken.ended {
                self.read.push((id.index(), bytes as u64, taken.ended));
            }
            if taken.ended {
                self.ended.insert(id);
                return self.leave(id);
            }
            if bytes == 0 {
                return;
            }
        }
    }

    /// Continues to send an object.
    fn serve(&mut self, now: Instant, id: StreamId) {
        let Some(left) = self.serving.get_mut(&id) else { return };
        if self.lone.carrier().waiting(id) != Some(0) {
            return;
        }
        let size = (*left).min(ZEROS.len() as u64);
        *left -= size;
        if size > 0 {
            self.lone.carrier().enqueue(now, id, Bytes::from_static(&ZEROS[..size as usize]));
        } else {
            self.lone.carrier().finish(now, id);
        }
    }

    /// What the application has read: flow, bytes, and whether it was the end.
    pub fn read(&mut self) -> Vec<(u64, u64, bool)> {
        std::mem::take(&mut self.read)
    }

    pub fn wake(&mut self) -> Option<Instant> {
        self.lone.poll_timeout()
    }
}
