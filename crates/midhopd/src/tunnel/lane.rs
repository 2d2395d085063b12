//! What is on its way to one peer and from it, below QUIC and above the socket.
//!
//! QUIC's datagrams wait here for their moment, and leave together where several may go at once. Where
//! both ends have agreed, repairs leave among them, and what the peer's repairs give back comes out
//! beside what has come ([`Shim`]).

use bytes::Bytes;
use midhop_tunnel::control::Pace;
use midhop_tunnel::departures::QUEUE_TIME;
use midhop_tunnel::fec::{FecSettings, Shim, Stats};
use midhop_units::Instant;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::Waker;

/// The most that one call may send with segmentation offload: an IPv4 packet without its headers.
const BATCH_BYTES: usize = 65_507;
/// What a datagram takes at most, where nothing else is known. Unit: bytes.
const DATAGRAM: u64 = 1500;
/// Datagrams that QUIC may make at once, at most.
const SEGMENTS_MAX: u64 = 10;
/// Datagrams that wait at most for more to leave with: as many as one call sends.
const GATHERED_MAX: usize = BATCH_BYTES / DATAGRAM as usize;

/// Where a datagram goes to or has come from, and how it is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The other end.
    pub peer: SocketAddr,
    /// What is said of congestion.
    pub ecn: Option<EcnCodepoint>,
    /// This end's address, where it is known.
    pub own: Option<IpAddr>,
}

impl Label {
    /// Of what has come.
    pub fn of(meta: &RecvMeta) -> Self {
        Self { peer: meta.addr, ecn: meta.ecn, own: meta.dst_ip }
    }

    /// Whether the path says that it has met congestion.
    fn is_marked(&self) -> bool {
        self.ecn == Some(EcnCodepoint::Ce)
    }
}

/// A datagram on its way.
pub type Datagram = (Bytes, Label);

/// Datagrams that leave by one call: all of one size, but for the last one.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    label: Option<Label>,
    segment: usize,
    count: usize,
}

impl Batch {
    fn takes(&self, (bytes, label): &Datagram, segments_max: usize) -> bool {
        let Some(own) = &self.label else { return true };
        own == label
            && self.count < segments_max
            && bytes.len() <= self.segment
            // The last one was not shorter.
            && self.bytes.len() == self.count * self.segment
            && self.bytes.len() + bytes.len() <= BATCH_BYTES
    }

    fn put(&mut self, (bytes, label): &Datagram) {
        if self.label.is_none() {
            self.label = Some(*label);
            self.segment = bytes.len();
        }
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
    }

    /// Sends it; what the kernel has no room for stays.
    fn send(&mut self, send: &mut impl FnMut(&Transmit<'_>) -> io::Result<()>) -> io::Result<()> {
        let Some(label) = self.label else { return Ok(()) };
        let sent = send(&Transmit {
            destination: label.peer,
            ecn: label.ecn,
            contents: &self.bytes,
            segment_size: (self.count > 1).then_some(self.segment),
            src_ip: label.own,
        });
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return sent;
        }
        // Whatever else went wrong, QUIC will send again.
        self.bytes.clear();
        (self.label, self.count) = (None, 0);
        Ok(())
    }
}

/// The way to one peer.
#[derive(Debug)]
pub struct Lane {
    shim: Shim<Label>,
    /// Whether the peer may have been told that its repairs are read.
    hears: bool,
    /// What may leave and has not: the kernel had no room.
    batch: Batch,
    /// What may leave next and does not belong to it.
    held: Option<Datagram>,
    /// Connections that wait for room.
    waiting: Vec<Waker>,
    /// Datagrams that have come since the last call.
    gathered: usize,
}

impl Lane {
    /// A way on which nothing waits.
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self {
            shim: Shim::new(FecSettings::default(), pace, now),
            hears: false,
            batch: Batch::default(),
            held: None,
            waiting: Vec::new(),
            gathered: 0,
        }
    }

    /// Goes at another pace from now on, for another connection: what was agreed for the last one is over.
    /// With `repairs` those of the peer are read, and it may [agree](Self::agree) to read ours.
    pub fn follow(&mut self, pace: Pace, repairs: Option<&FecSettings>) {
        self.shim.follow(repairs.cloned().unwrap_or_default(), pace);
        if repairs.is_some() {
            // And stays so: what an earlier connection's peer sends may come late.
            self.hears = true;
            self.shim.propose();
        }
    }

    /// Somebody may turn out to be a peer that reads repairs.
    pub fn propose(&mut self) {
        self.shim.propose();
    }

    /// The peer reads repairs that cover so many datagrams: from now on it gets them. Zero: it reads none.
    pub fn agree(&mut self, window: usize) {
        self.shim.agree(window);
    }

    /// Whether anything but QUIC may come.
    pub fn hears(&self) -> bool {
        self.hears
    }

    /// What repairs have cost and given since the connection began.
    pub fn stats(&self) -> Stats {
        self.shim.stats()
    }

    /// What part of its datagrams the peer has lately missed, before repairs.
    pub fn loss(&self) -> f64 {
        self.shim.loss()
    }

    /// Whether QUIC is to keep its datagrams for now.
    pub fn is_full(&self) -> bool {
        self.is_blocked() || self.shim.is_full()
    }

    /// QUIC has more, and is to keep it for now.
    pub fn refuse(&mut self) {
        self.shim.refuse();
    }

    /// Whether the kernel had no room.
    pub fn is_blocked(&self) -> bool {
        self.batch.label.is_some()
    }

    /// When something may leave next; none: nothing waits.
    pub fn wake(&self) -> Option<Instant> {
        self.shim.poll_timeout()
    }

    /// Datagrams that QUIC is to make at once: those of a slow lane would wait for longer than they need.
    pub fn segments(&self) -> usize {
        let Some(rate) = self.shim.pace().rate() else { return SEGMENTS_MAX as usize };
        (rate.bytes_in(QUEUE_TIME).get() / DATAGRAM).clamp(1, SEGMENTS_MAX) as usize
    }

    /// Wakes a connection once there is room again.
    pub fn wake_when_room(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// Takes what QUIC sends, one datagram or several; whether more follows at once, so that it is time to
    /// [flush](Self::flush) once QUIC has made that. Where QUIC made as many as it may, it has more.
    pub fn push(&mut self, now: Instant, transmit: &Transmit<'_>) -> bool {
        let label = Label { peer: transmit.destination, ecn: transmit.ecn, own: transmit.src_ip };
        let mut bytes = Bytes::copy_from_slice(transmit.contents);
        let segment = transmit.segment_size.unwrap_or(bytes.len()).max(1);
        let count = bytes.len().div_ceil(segment);
        while !bytes.is_empty() {
            self.shim.push(now, bytes.split_to(segment.min(bytes.len())), label);
        }
        self.gathered += count;
        // On a slow lane it is their time that they wait for.
        count as u64 >= SEGMENTS_MAX && self.gathered < GATHERED_MAX
    }

    /// Takes a datagram that has come from the peer; [`Lane::arrival`] gives what comes of it.
    pub fn receive(&mut self, now: Instant, (bytes, label): Datagram) {
        self.shim.handle_input(now, bytes, label, label.is_marked());
    }

    /// The next datagram for QUIC.
    pub fn arrival(&mut self) -> Option<Datagram> {
        self.shim.poll_delivery()
    }

    /// Sends what may leave, up to `segments_max` datagrams by one call, and wakes whoever waited for room.
    pub fn flush(
        &mut self,
        now: Instant,
        segments_max: usize,
        mut send: impl FnMut(&Transmit<'_>) -> io::Result<()>,
    ) {
        self.gathered = 0;
        self.send(now, segments_max, &mut send);
        if !self.is_full() {
            self.waiting.drain(..).for_each(Waker::wake);
        }
    }

    fn send(
        &mut self,
        now: Instant,
        segments_max: usize,
        send: &mut impl FnMut(&Transmit<'_>) -> io::Result<()>,
    ) {
        if self.is_blocked() && self.batch.send(send).is_err() {
            return;
        }
        while let Some(datagram) = self.held.take().or_else(|| self.shim.poll_output(now)) {
            if !self.batch.takes(&datagram, segments_max) && self.batch.send(send).is_err() {
                self.held = Some(datagram);
                return;
            }
            self.batch.put(&datagram);
        }
        // What the kernel does not take stays, and is tried again.
        let _blocked = self.batch.send(send);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Whoever waits finds out that nothing holds it up any more.
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_units::{Duration, Rate};

    fn lane(mbit: Option<u64>) -> Lane {
        let overhead = midhop_units::Bytes::new(28);
        Lane::new(Pace::of(mbit.map(Rate::from_mbit_per_s), overhead), Instant::START)
    }

    fn transmit(contents: &[u8], segment: usize) -> Transmit<'_> {
        Transmit {
            destination: ([192, 0, 2, 1], 4433).into(),
            ecn: Some(EcnCodepoint::Ect0),
            contents,
            segment_size: (segment < contents.len()).then_some(segment),
            src_ip: None,
        }
    }

    /// Sends what may leave; gives the sizes of calls and of segments, and all bytes.
    fn sent(lane: &mut Lane, now: Instant, room: usize) -> (Vec<(usize, Option<usize>)>, Vec<u8>) {
        let (mut calls, mut bytes) = (Vec::new(), Vec::new());
        lane.flush(now, 64, |transmit| {
            if calls.len() == room {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            assert_eq!(transmit.ecn, Some(EcnCodepoint::Ect0));
            calls.push((transmit.contents.len(), transmit.segment_size));
            bytes.extend_from_slice(transmit.contents);
            Ok(())
        });
        (calls, bytes)
    }

    #[test]
    fn what_may_leave_at_once_leaves_together() {
        let mut lane = lane(None);
        let noise: Vec<u8> = (0..4000_u32).map(|at| (at % 251) as u8).collect();
        lane.push(Instant::START, &transmit(&noise[..2500], 1000));
        // A short one ended the first batch; these are of another size.
        lane.push(Instant::START, &transmit(&noise[2500..], 700));
        let (calls, bytes) = sent(&mut lane, Instant::START, usize::MAX);
        assert_eq!(calls, [(2500, Some(1000)), (1500, Some(700))]);
        assert_eq!(bytes, noise);
        assert!(!lane.is_full() && lane.wake().is_none());
    }

    #[test]
    fn a_full_batch_waits_for_those_that_follow_and_a_short_one_for_nothing() {
        let mut lane = lane(None);
        let mut push = |count: usize| {
            let contents = vec![7; count * 1472];
            lane.push(Instant::START, &transmit(&contents, 1472))
        };
        assert!(push(10) && push(10) && push(10) && push(10));
        assert!(!push(4), "that is what one call sends");
        assert!(!push(10), "nor is there room for more");
        let (calls, _) = sent(&mut lane, Instant::START, usize::MAX);
        let sizes: Vec<_> = calls.iter().map(|(bytes, _)| bytes / 1472).collect();
        assert_eq!(sizes, [44, 10]);
        for (count, waits) in [(1, false), (9, false), (10, true)] {
            let contents = vec![7; count * 1472];
            let transmit = transmit(&contents, 1472);
            assert_eq!(lane.push(Instant::START, &transmit), waits, "{count}");
            sent(&mut lane, Instant::START, usize::MAX);
        }
    }

    #[test]
    fn what_the_kernel_refuses_leaves_later_and_in_order() {
        let mut lane = lane(None);
        let noise: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
        for (from, to) in [(0, 2500), (2500, 3500), (3500, 5000)] {
            lane.push(Instant::START, &transmit(&noise[from..to], 1000));
        }
        let (_, mut bytes) = sent(&mut lane, Instant::START, 1);
        assert!(lane.is_blocked() && lane.is_full());
        assert!(sent(&mut lane, Instant::START, 0).1.is_empty());
        bytes.extend(sent(&mut lane, Instant::START, usize::MAX).1);
        assert_eq!(bytes, noise);
        assert!(!lane.is_blocked() && !lane.is_full());
    }

    #[test]
    fn a_full_lane_wakes_whoever_waits_once_there_is_room() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let flag = std::sync::Arc::new(Flag(false.into()));
        let woken = || flag.0.load(std::sync::atomic::Ordering::Relaxed);
        let mut lane = lane(Some(12));
        lane.push(Instant::START, &transmit(&[0; 14_720], 1472));
        assert!(lane.is_full());
        assert_eq!(lane.segments(), 4);
        lane.wake_when_room(&flag.clone().into());
        assert_eq!(sent(&mut lane, Instant::START, usize::MAX).0, [(1472, None)]);
        assert!(lane.is_full() && !woken());
        // 10 ms at 12 Mbit/s.
        let (calls, _) = sent(&mut lane, Instant::START + Duration::from_ms(10), usize::MAX);
        assert_eq!(calls.len(), 1);
        assert!(woken());
    }
}
