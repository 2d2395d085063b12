//! What has come for QUIC, where not all that came is QUIC's.
//!
//! The kernel puts what it has received into QUIC's own buffers, several datagrams of one size in each.
//! As long as all of it is QUIC's nothing is touched. Else what came goes through the peer's [`Lane`],
//! and what that gives is put where it was; what finds no room there comes first the next time.

use super::lane::{Datagram, Label, Lane};
use bytes::Bytes;
use midhop_tunnel::fec::Packet;
use midhop_units::Instant;
use quinn::udp::{EcnCodepoint, RecvMeta};
use std::{collections::VecDeque, io::IoSliceMut};

/// Datagrams of QUIC that have been taken out of what came.
///
/// Invariant: no more wait than one reading of the socket has brought, and what it has let be repaired, and so many
/// as the socket lets other workers' sockets hand over.
#[derive(Debug, Default)]
pub struct Arrivals {
    waiting: VecDeque<Datagram>,
}

impl Arrivals {
    /// Takes a datagram that another socket has received.
    pub fn add(&mut self, now: Instant, (bytes, label): Datagram, lane: Option<&mut Lane>) {
        match lane {
            Some(lane) => {
                lane.receive(now, (bytes, label));
                self.waiting.extend(std::iter::from_fn(|| lane.arrival()));
            }
            None => self.waiting.extend(unwrapped(bytes).map(|it| (it, label))),
        }
    }

    /// Datagrams that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes what is not for QUIC alone out of a buffer, which is empty then. Without a lane, as after a change
    /// of the peer's address or when this process is a successor, it is only unwrapped: who it is, and what
    /// to say to it, QUIC knows.
    pub fn take(
        &mut self,
        now: Instant,
        buffer: &[u8],
        meta: &mut RecvMeta,
        lane: Option<&mut Lane>,
    ) {
        let Some(contents) = buffer.get(..meta.len) else { return };
        // What the path says of QUIC's datagrams, the peer is to know.
        let is_told = lane.is_some() && meta.ecn == Some(EcnCodepoint::Ce);
        if !is_told && contents.chunks(meta.stride.max(1)).all(is_quic) {
            return;
        }
        let label = Label::of(meta);
        let mut bytes = Bytes::copy_from_slice(contents);
        let stride = meta.stride.max(1);
        let datagrams = std::iter::from_fn(|| {
            (!bytes.is_empty()).then(|| bytes.split_to(stride.min(bytes.len())))
        });
        let mut lane = lane;
        for datagram in datagrams {
            self.add(now, (datagram, label), lane.as_deref_mut());
        }
        meta.len = 0;
    }

    /// Puts what waits into buffers that are empty, the first `used` of which need not be. How many are
    /// used now.
    pub fn give(
        &mut self,
        used: usize,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> usize {
        let mut count = used;
        for (at, (buffer, meta)) in buffers.iter_mut().zip(metas).enumerate() {
            if at < used && meta.len > 0 {
                continue;
            }
            if !self.fill(buffer, meta) {
                break;
            }
            count = count.max(at + 1);
        }
        count
    }

    /// Fills one with datagrams that may go together: all of one size, but for the last one.
    fn fill(&mut self, buffer: &mut [u8], meta: &mut RecvMeta) -> bool {
        // What fits nowhere was sent by nobody who knows what we take.
        while self.waiting.front().is_some_and(|(bytes, _)| bytes.len() > buffer.len()) {
            self.waiting.pop_front();
        }
        let first = self.waiting.front().map(|(bytes, label)| (bytes.len(), *label));
        let Some((stride, label)) = first else { return false };
        let mut len = 0;
        // A shorter one is the last.
        while len % stride == 0
            && let Some((bytes, own)) = self.waiting.front()
            && (*own == label && bytes.len() <= stride)
            && let Some(place) = buffer.get_mut(len..len + bytes.len())
        {
            place.copy_from_slice(bytes);
            len += bytes.len();
            self.waiting.pop_front();
        }
        *meta = RecvMeta::default();
        (meta.addr, meta.ecn, meta.dst_ip) = (label.peer, label.ecn, label.own);
        (meta.len, meta.stride) = (len, stride);
        true
    }
}

/// RFC 9000 §17.2, §17.3.
fn is_quic(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x40 != 0)
}

/// QUIC's own part of a datagram, whoever has sent it.
fn unwrapped(datagram: Bytes) -> Option<Bytes> {
    match Packet::parse(datagram)? {
        Packet::Plain(datagram) | Packet::Source { datagram, .. } => Some(datagram),
        Packet::Repair(_) | Packet::Report(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_tunnel::{control::Pace, fec::FecSettings};
    use midhop_units::Bytes as Size;
    use std::net::SocketAddr;

    fn peer() -> SocketAddr {
        ([192, 0, 2, 1], 443).into()
    }

    fn meta(len: usize, stride: usize) -> RecvMeta {
        let mut meta = RecvMeta::default();
        (meta.addr, meta.len, meta.stride) = (peer(), len, stride);
        meta
    }

    fn lane(hears: bool) -> Lane {
        let pace = Pace::of(None, Size::new(28));
        let mut lane = Lane::new(pace.clone(), Instant::START);
        lane.follow(pace, hears.then(FecSettings::default).as_ref());
        lane
    }

    /// A source: its header, and a datagram of QUIC that begins with `name`.
    fn source(number: u8, name: u8, len: usize) -> Vec<u8> {
        let mut datagram = vec![0x80, 0, number, 0x40 | name];
        datagram.resize(3 + len, name);
        datagram
    }

    /// What QUIC makes of its buffers: each datagram.
    fn read(buffers: &[Vec<u8>], metas: &[RecvMeta], count: usize) -> Vec<Vec<u8>> {
        let used = buffers.iter().zip(metas).take(count);
        used.flat_map(|(buffer, meta)| buffer[..meta.len].chunks(meta.stride.max(1)))
            .map(<[u8]>::to_vec)
            .collect()
    }

    fn give(
        arrivals: &mut Arrivals,
        used: usize,
        buffers: &mut [Vec<u8>],
        metas: &mut [RecvMeta],
    ) -> usize {
        let mut slices: Vec<_> = buffers.iter_mut().map(|it| IoSliceMut::new(it)).collect();
        arrivals.give(used, &mut slices, metas)
    }

    #[test]
    fn what_is_quic_s_is_not_touched() {
        let mut arrivals = Arrivals::default();
        let buffer = [0x40; 3000];
        let mut batch = meta(2500, 1000);
        arrivals.take(Instant::START, &buffer, &mut batch, Some(&mut lane(true)));
        assert_eq!((batch.len, arrivals.is_empty()), (2500, true));
        // But for what the path says of it, which the peer is told.
        let mut marked = meta(2500, 1000);
        marked.ecn = Some(EcnCodepoint::Ce);
        arrivals.take(Instant::START, &buffer, &mut marked, Some(&mut lane(true)));
        assert_eq!((marked.len, arrivals.waiting.len()), (0, 3));
        assert!(arrivals.waiting.iter().all(|(_, label)| label.ecn == Some(EcnCodepoint::Ce)));
    }

    #[test]
    fn what_is_not_makes_room_for_what_comes_of_it() {
        let (mut arrivals, mut lane) = (Arrivals::default(), lane(true));
        let mut buffers = vec![vec![0; 2000]; 3];
        let sources = [source(0, 1, 400), source(1, 2, 400), source(2, 3, 300)].concat();
        buffers[0][..sources.len()].copy_from_slice(&sources);
        buffers[1][..500].fill(0x47);
        let mut metas = [meta(sources.len(), 403), meta(500, 500), meta(0, 0)];
        for (buffer, meta) in buffers.iter().zip(&mut metas).take(2) {
            arrivals.take(Instant::START, buffer, meta, Some(&mut lane));
        }
        assert_eq!((metas[0].len, metas[1].len), (0, 500));
        let count = give(&mut arrivals, 2, &mut buffers, &mut metas);
        let came = read(&buffers, &metas, count);
        let lens: Vec<_> = came.iter().map(|it| (it[0], it.len())).collect();
        assert_eq!(lens, [(0x41, 400), (0x42, 400), (0x43, 300), (0x47, 500)]);
        assert_eq!((count, metas[0].stride, metas[0].addr), (2, 400, peer()));
        assert!(arrivals.is_empty());
    }

    #[test]
    fn what_finds_no_room_comes_first_the_next_time() {
        let mut arrivals = Arrivals::default();
        let mut buffers = vec![vec![0; 1000]; 2];
        let (mut came, mut times) = (Vec::new(), 0);
        let many: Vec<u8> = (0..7).flat_map(|number| source(number, number, 300)).collect();
        let mut batch = meta(many.len(), 303);
        arrivals.take(Instant::START, &many, &mut batch, Some(&mut lane(true)));
        while !arrivals.is_empty() {
            let mut metas = [meta(0, 0), meta(0, 0)];
            let count = give(&mut arrivals, 0, &mut buffers, &mut metas);
            came.extend(read(&buffers, &metas, count).iter().map(|it| it[0]));
            times += 1;
        }
        assert_eq!((came, times), ((0x40..0x47).collect(), 2));
    }

    /// A peer whose address has changed has no lane, and must be heard by QUIC.
    #[test]
    fn without_a_lane_quic_gets_its_part_and_nothing_else_is_heard() {
        let mut arrivals = Arrivals::default();
        let of = |kind: u8| [&[kind][..], &[0x40; 30]].concat();
        for (datagram, len) in [
            (of(0x80), Some(28)),
            (of(0x00), Some(24)),
            (of(0xa0), None),
            (of(0x20), None),
            (of(0x90), Some(28)),
            (vec![0x80, 0x40], None),
        ] {
            let mut one = meta(datagram.len(), datagram.len());
            arrivals.take(Instant::START, &datagram, &mut one, None);
            assert_eq!(one.len, 0);
            let came = arrivals.waiting.pop_front().map(|(bytes, _)| bytes.len());
            assert_eq!(came, len, "{:x}", datagram[0]);
        }
    }

    #[test]
    fn what_is_larger_than_any_buffer_holds_nothing_up() {
        let mut arrivals = Arrivals::default();
        let mut buffers = vec![vec![0; 100]; 2];
        for (number, len) in [(0, 101), (1, 100)] {
            let datagram = source(number, number, len);
            let mut one = meta(datagram.len(), datagram.len());
            arrivals.take(Instant::START, &datagram, &mut one, Some(&mut lane(true)));
        }
        let mut metas = [meta(0, 0), meta(0, 0)];
        let count = give(&mut arrivals, 0, &mut buffers, &mut metas);
        let came = read(&buffers, &metas, count);
        assert_eq!(came.iter().map(Vec::len).collect::<Vec<_>>(), [100]);
        assert!(arrivals.is_empty());
    }
}
