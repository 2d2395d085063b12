//! The UDP socket of an endpoint, from which each peer's datagrams leave at its connection's pace.
//!
//! quinn hands over datagrams of all connections of an endpoint. Those to a peer that has a [`Course`] go
//! through a [`Lane`] of their own; those to anybody else, which are answers to strangers, leave at once.
//! A full lane refuses more, so that QUIC keeps its data and decides as late as possible what goes next.
//! What comes is QUIC's as it is, and what is not goes through its peer's lane, if that peer was told that it
//! may send more than QUIC's ([`Arrivals`]).
//!
//! Invariant: nothing waits for ever. Whoever was refused is woken when there is room, which
//! [`Paced::drive`] makes as time passes.

use super::arrivals::Arrivals;
use super::lane::Lane;
use midhop_tunnel::{control::Pace, fec};
use midhop_units::Instant;
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::{BTreeMap, btree_map::Entry};
use std::convert::Infallible;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::time;

/// Datagrams that QUIC makes at once where nobody says otherwise.
const SEGMENTS: usize = 10;

/// The socket.
#[derive(Debug)]
pub struct Paced {
    io: UdpSocket,
    udp: UdpSocketState,
    /// Zero of the lanes' clock.
    epoch: time::Instant,
    lanes: Mutex<Lanes>,
    /// Something waits on a lane on which nothing waited before.
    busy: Notify,
}

#[derive(Debug, Default)]
struct Lanes {
    by_peer: BTreeMap<SocketAddr, (u64, Lane)>,
    courses: u64,
    /// Whose datagrams were refused by the last call.
    refused: Option<SocketAddr>,
    arrivals: Arrivals,
}

impl Paced {
    /// A socket on which nobody has a course yet.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<Arc<Self>> {
        let udp = UdpSocketState::new((&socket).into())?;
        Ok(Arc::new(Self {
            io: UdpSocket::from_std(socket)?,
            udp,
            epoch: time::Instant::now(),
            lanes: Mutex::default(),
            busy: Notify::new(),
        }))
    }

    /// Lets what goes to `peer` leave at `pace`, whoever had a course there before.
    pub fn steer(self: &Arc<Self>, peer: SocketAddr, pace: Pace) -> Course {
        let mut course = Course::new(self.clone(), peer, pace);
        course.take(peer);
        course
    }

    /// The same for a connection of which nobody knows yet what will become of it: a course that is there
    /// already stays.
    pub fn steer_attempt(self: &Arc<Self>, peer: SocketAddr, pace: Pace) -> Course {
        if !self.lanes().by_peer.contains_key(&peer) {
            return self.steer(peer, pace);
        }
        Course::new(self.clone(), peer, pace)
    }

    /// Lets datagrams go as their time comes, for ever.
    ///
    /// # Errors
    /// When the runtime watches the socket no more.
    pub async fn drive(&self) -> io::Result<Infallible> {
        loop {
            let (wake, blocked) = self.flush();
            let timer = async {
                match wake {
                    Some(wake) => time::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = timer => {}
                () = self.busy.notified() => {}
                writable = self.io.writable(), if blocked => writable?,
            }
        }
    }

    /// Sends what may leave now; says when more may, and whether the kernel had no room.
    fn flush(&self) -> (Option<time::Instant>, bool) {
        let now = self.now();
        let (mut wake, mut blocked) = (None, false);
        for (_, lane) in self.lanes().by_peer.values_mut() {
            lane.flush(now, self.udp.max_gso_segments(), |transmit| self.send(transmit));
            if lane.is_blocked() {
                blocked = true;
            } else {
                wake = wake.into_iter().chain(lane.wake()).min();
            }
        }
        let since = |at: Instant| self.epoch + at.saturating_since(Instant::START).into();
        (wake.map(since), blocked)
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.io.try_io(Interest::WRITABLE, || self.udp.send((&self.io).into(), transmit))
    }

    /// Takes out of so many buffers what is not QUIC's, and puts back what is. How many are used then.
    fn sort(&self, count: usize, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        let lanes = &mut *self.lanes();
        let now = self.now();
        let mut is_sooner_now = false;
        for (buffer, meta) in buffers.iter().zip(&mut *metas).take(count) {
            let lane = lanes.by_peer.get_mut(&meta.addr).map(|(_, lane)| lane);
            let mut lane = lane.filter(|lane| lane.hears());
            let before = lane.as_ref().and_then(|lane| lane.wake());
            lanes.arrivals.take(now, buffer, meta, lane.as_deref_mut());
            is_sooner_now |= lane.is_some_and(|lane| is_sooner(lane.wake(), before));
        }
        if is_sooner_now {
            self.busy.notify_one();
        }
        if lanes.arrivals.is_empty() { count } else { lanes.arrivals.give(count, buffers, metas) }
    }

    fn now(&self) -> Instant {
        Instant::START + self.epoch.elapsed().into()
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // Its holder never panics in between: what it guards is whole.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncUdpSocket for Paced {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, refused: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut lanes = self.lanes();
        let Some((_, lane)) = lanes.by_peer.get_mut(&transmit.destination) else {
            drop(lanes);
            // A stranger's answer that the kernel has no room for is lost, as it may be anywhere.
            let _lost = self.udp.send((&self.io).into(), transmit);
            return Ok(());
        };
        if lane.is_full() {
            lane.refuse();
            lanes.refused = Some(transmit.destination);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let now = self.now();
        let before = lane.wake();
        if lane.push(now, transmit) {
            // What drives the socket comes after what has QUIC make its datagrams.
            self.busy.notify_one();
            return Ok(());
        }
        lane.flush(now, self.udp.max_gso_segments(), |transmit| self.send(transmit));
        if is_sooner(lane.wake(), before) || lane.is_blocked() {
            self.busy.notify_one();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let left = self.lanes().arrivals.give(0, buffers, metas);
        if left > 0 {
            return Poll::Ready(Ok(left));
        }
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let received = self
                .io
                .try_io(Interest::READABLE, || self.udp.recv((&self.io).into(), buffers, metas));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => return Poll::Ready(Ok(self.sort(count, buffers, metas))),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        // Asked for all connections alike: as few as the slowest lane needs.
        let lanes = self.lanes();
        let least = lanes.by_peer.values().map(|(_, lane)| lane.segments()).min();
        least.unwrap_or(SEGMENTS).min(self.udp.max_gso_segments())
    }

    fn max_receive_segments(&self) -> usize {
        self.udp.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.udp.may_fragment()
    }
}

/// What one connection waits with.
///
/// quinn does not say whose connection it is, but it asks right after it was refused, and all
/// connections of an endpoint are served by one thread.
#[derive(Debug)]
struct Poller {
    socket: Arc<Paced>,
    refused: Option<SocketAddr>,
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket.clone();
        let mut lanes = socket.lanes();
        let Some(peer) = lanes.refused.take().or(self.refused) else { return Poll::Ready(Ok(())) };
        if let Some((_, lane)) = lanes.by_peer.get_mut(&peer)
            && lane.is_full()
        {
            lane.wake_when_room(cx.waker());
            self.refused = Some(peer);
            return Poll::Pending;
        }
        self.refused = None;
        Poll::Ready(Ok(()))
    }
}

/// Whether a timer that was set for `before` would be late for `wake`.
fn is_sooner(wake: Option<Instant>, before: Option<Instant>) -> bool {
    wake.is_some_and(|wake| before.is_none_or(|before| wake < before))
}

/// A connection's way to its peer; gone when this is.
#[derive(Debug)]
pub struct Course {
    socket: Arc<Paced>,
    peer: SocketAddr,
    pace: Pace,
    number: Option<u64>,
    /// How losses are repaired, where the peer is told that its repairs are read.
    repairs: Option<fec::Settings>,
    /// The largest window of a repair that the peer reads, once it has said so.
    window: Option<usize>,
}

impl Course {
    fn new(socket: Arc<Paced>, peer: SocketAddr, pace: Pace) -> Self {
        Self { socket, peer, pace, number: None, repairs: None, window: None }
    }

    /// Is the way to `peer` from now on, whoever had one there: the peer has shown who it is, or has moved.
    pub fn take(&mut self, peer: SocketAddr) {
        let now = self.socket.now();
        let mut lanes = self.socket.lanes();
        // Another connection that had this way may have gone, and taken it with it.
        let is_there = lanes.by_peer.contains_key(&peer);
        if self.number.is_some() && self.peer == peer && is_there {
            return;
        }
        let moved = self.release(&mut lanes);
        lanes.courses += 1;
        let number = lanes.courses;
        match (lanes.by_peer.entry(peer), moved) {
            // What is known of the leg and what waits go with it, and what was agreed.
            (Entry::Vacant(place), Some(lane)) => {
                place.insert((number, lane));
            }
            (place, _) => {
                let new = || (number, Lane::new(self.pace.clone(), now));
                let (owner, lane) = place.or_insert_with(new);
                *owner = number;
                lane.follow(self.pace.clone(), self.repairs.as_ref());
                if let Some(window) = self.window {
                    lane.agree(window);
                }
            }
        }
        drop(lanes);
        (self.peer, self.number) = (peer, Some(number));
    }

    /// Whoever comes may turn out to be a peer whose losses are repaired.
    pub fn propose(&self) {
        self.with_lane(Lane::propose);
    }

    /// The peer is told that its repairs are read, and gets some once it has [agreed](Self::agree).
    pub fn repair(&mut self, settings: fec::Settings) {
        self.repairs = Some(settings);
        let (pace, repairs) = (self.pace.clone(), self.repairs.clone());
        self.with_lane(|lane| lane.follow(pace, repairs.as_ref()));
    }

    /// The peer has said how large a window of a repair it reads; zero: it reads none.
    pub fn agree(&mut self, window: u64) {
        if self.repairs.is_some() {
            let window = usize::try_from(window).unwrap_or(usize::MAX);
            self.window = Some(window);
            self.with_lane(|lane| lane.agree(window));
        }
    }

    /// What repairs have cost and given, and what part of its datagrams the peer has missed before them.
    /// `None` where another connection has this way now.
    pub fn repaired(&self) -> Option<(fec::Stats, f64)> {
        self.with_lane(|lane| (lane.stats(), lane.loss()))
    }

    /// The pace that its datagrams keep.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    fn with_lane<R>(&self, tell: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        let mut lanes = self.socket.lanes();
        let (owner, lane) = lanes.by_peer.get_mut(&self.peer)?;
        (Some(*owner) == self.number).then(|| tell(lane))
    }

    /// Gives up its own lane.
    fn release(&self, lanes: &mut Lanes) -> Option<Lane> {
        let (owner, _) = lanes.by_peer.get(&self.peer)?;
        let own = Some(*owner) == self.number;
        own.then(|| lanes.by_peer.remove(&self.peer))?.map(|(_, lane)| lane)
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        let _lane = self.release(&mut self.socket.lanes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_units::{Bytes, Rate};

    fn pace(mbit: u64) -> Pace {
        Pace::of(Some(Rate::from_mbit_per_s(mbit)), Bytes::new(28))
    }

    fn sockets() -> (Arc<Paced>, std::net::UdpSocket) {
        let bind = || std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let peer = bind();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
        let own = bind();
        own.set_nonblocking(true).expect("a socket that does not block");
        (Paced::new(own).expect("a socket"), peer)
    }

    fn to(peer: &std::net::UdpSocket, contents: &'static [u8]) -> Transmit<'static> {
        let destination = peer.local_addr().expect("an address");
        Transmit { destination, ecn: None, contents, segment_size: Some(1000), src_ip: None }
    }

    #[tokio::test]
    async fn a_full_lane_refuses_and_lets_go_as_time_passes() {
        let (socket, peer) = sockets();
        let address = peer.local_addr().expect("an address");
        let _course = socket.steer(address, pace(8));
        let mut poller = socket.clone().create_io_poller();
        let refused = socket
            .try_send(&to(&peer, &[1; 20_000]))
            .and_then(|()| socket.try_send(&to(&peer, &[2; 1000])));
        assert_eq!(refused.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        let writable = std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx));
        tokio::select! {
            writable = writable => writable.expect("room"),
            stopped = socket.drive() => panic!("it stopped: {stopped:?}"),
        }
        socket.try_send(&to(&peer, &[2; 1000])).expect("room");
        let heard = async {
            let peer = tokio::task::spawn_blocking(move || {
                let mut buffer = [0; 2000];
                (0..21)
                    .map(|_| peer.recv(&mut buffer).map(|len| (len, buffer[0])))
                    .collect::<Vec<_>>()
            });
            peer.await.expect("the peer")
        };
        let heard = tokio::select! {
            heard = heard => heard,
            stopped = socket.drive() => panic!("it stopped: {stopped:?}"),
        };
        let heard: Vec<_> = heard.into_iter().map(|one| one.expect("a datagram")).collect();
        assert!(heard[..20].iter().all(|one| *one == (1000, 1)) && heard[20] == (1000, 2));
    }

    #[tokio::test]
    async fn a_stranger_takes_nobodys_course() {
        let (socket, peer) = sockets();
        let address = peer.local_addr().expect("an address");
        let owner = |socket: &Paced| socket.lanes().by_peer.get(&address).map(|(owner, _)| *owner);
        let own = socket.steer(address, pace(8));
        let mut other = socket.steer_attempt(address, pace(1));
        assert_eq!(owner(&socket), own.number);
        other.take(address);
        assert_eq!(owner(&socket), other.number);
        // Its successor stays.
        drop(own);
        assert_eq!(owner(&socket), other.number);
        let moved = ([127, 0, 0, 1], 9).into();
        other.take(moved);
        assert_eq!(owner(&socket), None);
        drop(other);
        assert!(socket.lanes().by_peer.is_empty());
    }

    #[tokio::test]
    async fn what_was_agreed_moves_with_the_peer_and_ends_with_the_connection() {
        let (socket, peer) = sockets();
        let at_once = || Pace::of(None, Bytes::new(28));
        let address = peer.local_addr().expect("an address");
        // The runtime finds out.
        socket.io.writable().await.expect("a socket");
        let sent = || {
            socket.try_send(&to(&peer, &[0x40; 500])).expect("room");
            peer.recv(&mut [0; 2000]).expect("a datagram")
        };
        let mut course = socket.steer(([127, 0, 0, 1], 9).into(), at_once());
        course.repair(fec::Settings::default());
        course.agree(128);
        course.take(address);
        assert_eq!(sent(), 500);
        // Nothing was lost until now.
        course.pace().loses();
        assert_eq!(sent(), 503);
        assert!(course.repaired().is_some_and(|(stats, _)| stats.sources_sent == 1));
        let mut next = socket.steer(address, at_once());
        assert_eq!(sent(), 500);
        assert!(course.repaired().is_none());
        // Whoever has not said that it reads repairs gets none.
        next.agree(128);
        assert_eq!(sent(), 500);
        // What the first one's peer may still send is read.
        assert!(socket.lanes().by_peer.values().all(|(_, lane)| lane.hears()));
    }

    #[tokio::test]
    async fn answers_to_strangers_leave_at_once() {
        let (socket, peer) = sockets();
        for _ in 0..100 {
            socket.try_send(&to(&peer, &[1; 1000])).expect("no lane");
        }
        assert_eq!(peer.recv(&mut [0; 2000]).expect("a datagram"), 1000);
        assert_eq!(socket.max_transmit_segments(), SEGMENTS.min(socket.udp.max_gso_segments()));
    }
}
