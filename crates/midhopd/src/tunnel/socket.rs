//! The UDP socket of an endpoint, from which each peer's datagrams leave at its connection's pace.
//!
//! quinn hands over datagrams of all connections of an endpoint. Those to a peer that has a [`Course`] go
//! through a [`Lane`] of their own; those to anybody else, which are answers to strangers, leave at once.
//! A full lane refuses more, so that QUIC keeps its data and decides as late as possible what goes next.
//!
//! Invariant: nothing waits for ever. Whoever was refused is woken when there is room, which
//! [`Paced::drive`] makes as time passes.

use super::lane::Lane;
use midhop_tunnel::control::Pace;
use midhop_units::Instant;
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::BTreeMap;
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
        let mut course = Course { socket: self.clone(), peer, pace, number: None };
        course.take(peer);
        course
    }

    /// The same for somebody who has not said who it is: a course that is there already stays.
    pub fn steer_stranger(self: &Arc<Self>, peer: SocketAddr, pace: Pace) -> Course {
        if !self.lanes().by_peer.contains_key(&peer) {
            return self.steer(peer, pace);
        }
        Course { socket: self.clone(), peer, pace, number: None }
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
            lanes.refused = Some(transmit.destination);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let now = self.now();
        let idle = lane.wake().is_none();
        lane.push(now, transmit);
        lane.flush(now, self.udp.max_gso_segments(), |transmit| self.send(transmit));
        if (idle && lane.wake().is_some()) || lane.is_blocked() {
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
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let received = self
                .io
                .try_io(Interest::READABLE, || self.udp.recv((&self.io).into(), buffers, metas));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
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

/// A connection's way to its peer; gone when this is.
#[derive(Debug)]
pub struct Course {
    socket: Arc<Paced>,
    peer: SocketAddr,
    pace: Pace,
    number: Option<u64>,
}

impl Course {
    /// Is the way to `peer` from now on, whoever had one there: the peer has shown who it is, or has moved.
    pub fn take(&mut self, peer: SocketAddr) {
        let now = self.socket.now();
        let mut lanes = self.socket.lanes();
        if self.number.is_some() && self.peer == peer {
            return;
        }
        self.release(&mut lanes);
        lanes.courses += 1;
        let number = lanes.courses;
        let place = lanes.by_peer.entry(peer);
        let (owner, lane) = place.or_insert_with(|| (number, Lane::new(self.pace.clone(), now)));
        *owner = number;
        lane.follow(self.pace.clone());
        drop(lanes);
        (self.peer, self.number) = (peer, Some(number));
    }

    /// The pace that its datagrams keep.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    fn release(&self, lanes: &mut Lanes) {
        let own = |lanes: &Lanes| lanes.by_peer.get(&self.peer).map(|(owner, _)| *owner);
        if self.number.is_some() && own(lanes) == self.number {
            lanes.by_peer.remove(&self.peer);
        }
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        self.release(&mut self.socket.lanes());
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
        let mut other = socket.steer_stranger(address, pace(1));
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
    async fn answers_to_strangers_leave_at_once() {
        let (socket, peer) = sockets();
        for _ in 0..100 {
            socket.try_send(&to(&peer, &[1; 1000])).expect("no lane");
        }
        assert_eq!(peer.recv(&mut [0; 2000]).expect("a datagram"), 1000);
        assert_eq!(socket.max_transmit_segments(), SEGMENTS.min(socket.udp.max_gso_segments()));
    }
}
